//! The repository checks itself.
