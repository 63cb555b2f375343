//! The place of the module below in the server: its files name each other by it.

pub mod bridges;
