//! One validated configuration.
