//! Helpers for the tests of this crate and of those above it: sample rows, whole users, a comparison of two
//! stores, a table of nodes, a small disk, a real database.

pub mod sample;

pub mod users;

pub mod compare;

pub mod nodes;

pub mod disk;

pub mod database;

use std::time::Duration;

use super::embedded::Options;

/// A disk that other tests keep busy is no stall.
pub fn patient() -> Options {
    Options { stall_after: Duration::from_secs(60), ..Options::default() }
}
