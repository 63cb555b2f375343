//! The gate in a build without the feature `gate`: it cannot be opened, so that no shard hibernates.
//!
//! Its items are those of `gate.rs`. What an earlier process has left is found and removed all the same.

use std::io;

use crate::error::Unfit;
use crate::news::{GateStats, News};
use crate::queue::Segment;
use crate::rules::Ports;
use crate::table::ConnName;
use crate::tuple::Tuple;

fn absent() -> io::Error {
    io::Error::other("this build lacks the feature \"hibernate\"")
}

/// Returns the reason why nothing can be frozen.
///
/// # Errors
/// Always.
pub fn self_test() -> Result<(), Unfit> {
    Err(Unfit::Step("opening the gate", absent()))
}

/// The open gate: there is none.
pub enum Gate {}

impl Gate {
    /// # Errors
    /// Always.
    pub fn open(_: Ports<'_>, _: u16, _: u16, _: bool) -> io::Result<(Gate, Vec<ShardGate>)> {
        Err(absent())
    }

    pub fn remove_rules(self) {
        match self {}
    }
}

/// The gate as a shard sees it: there is none.
pub enum ShardGate {}

impl ShardGate {
    pub fn attach(&self, _: Vec<(Tuple, ConnName)>, _: impl Fn() + Send + Sync + 'static) {
        match *self {}
    }

    pub fn next(&self) -> Option<News> {
        match *self {}
    }

    pub fn stats(&self) -> &GateStats {
        match *self {}
    }

    pub fn has_news(&self) -> bool {
        match *self {}
    }

    pub fn set_apart(&self, _: Vec<(Tuple, ConnName)>) {
        match *self {}
    }

    pub fn live(&self, _: Tuple, _: ConnName) {
        match *self {}
    }

    pub fn accept(&mut self, _: Segment) {
        match *self {}
    }

    pub fn drop(&mut self, _: Segment) {
        match *self {}
    }

    pub fn accept_no_more(&self) {
        match *self {}
    }

    pub fn send_verdicts(&mut self) {
        match *self {}
    }
}
