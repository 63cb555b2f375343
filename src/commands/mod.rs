//! The commands of the binary.
