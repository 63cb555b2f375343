//! The shared store in a build without the feature `scylla`: a type that has no value, and calls that say so.
//!
//! Its items are those of `scylla/`, which a build with the driver has in its place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use machine::message::Message;
use machine::stats::Board;
use runtime::ports::Store;

use crate::latencies::LatencyHistograms;
use crate::nodes::NodeTable;
use crate::shared::error::DatabaseError;
use crate::shared::opening::{ConnectOptions, OpenError};
use crate::shared::options::Options;
use crate::transfer::Transfer;

const SAID: &str = "this murre was built without the feature \"scylla\": use a build that `murre --version` says has it, \
                    or store.kind = embedded";

fn absent() -> DatabaseError {
    DatabaseError::lasting(SAID)
}

/// Login and certificates: there are none.
pub enum Access {}

impl Access {
    /// # Errors
    /// Always.
    pub fn read(_: &Options) -> Result<Access, DatabaseError> {
        Err(absent())
    }
}

/// The shared store: there is none.
pub enum Scylla {}

impl Scylla {
    /// # Errors
    /// Always.
    pub fn open(_: &Options, _: Duration, _: Vec<DatabaseError>, _: ConnectOptions) -> Result<Scylla, OpenError> {
        Err(OpenError { said: SAID.to_owned(), passes: false })
    }

    /// # Errors
    /// Always.
    pub fn connect(_: &Options, _: ConnectOptions) -> Result<Scylla, String> {
        Err(SAID.to_owned())
    }

    pub fn renew_access(&self, new: &Access) {
        match *new {}
    }

    pub fn port(&self, _: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        match *self {}
    }

    pub fn board(&self) -> Arc<Board> {
        match *self {}
    }

    pub fn latencies(&self) -> Arc<LatencyHistograms> {
        match *self {}
    }

    pub fn nodes(&self) -> Arc<dyn NodeTable> {
        match *self {}
    }

    /// # Errors
    /// Never: there is no value.
    pub fn save_all(&self, _: &[Arc<Message>]) -> Result<(), (usize, String)> {
        match *self {}
    }

    pub fn transfer(&self) -> Box<dyn Transfer + '_> {
        match *self {}
    }

    pub fn close(self) {
        match self {}
    }
}

/// The calls of commands.
pub mod operator {
    use super::{AtomicBool, BTreeMap, DatabaseError, Duration, Options, absent};
    use crate::shared::census::{Census, Purge, Space};
    use crate::shared::schema::Server;

    /// Returns one fault: nothing can be examined.
    pub fn faults(_: &Options, _: Duration) -> Vec<DatabaseError> {
        vec![absent()]
    }

    /// Connection of an operator's command: there is none.
    pub enum Operator {}

    impl Operator {
        /// # Errors
        /// Always.
        pub fn connect(_: &Options) -> Result<Operator, DatabaseError> {
            Err(absent())
        }

        /// # Errors
        /// Never: there is no value.
        pub fn server(&self) -> Result<Server, DatabaseError> {
            match *self {}
        }

        /// # Errors
        /// Never: there is no value.
        pub fn create(&self) -> Result<Vec<i32>, DatabaseError> {
            match *self {}
        }

        /// # Errors
        /// Never: there is no value.
        pub fn migrate(&self) -> Result<Vec<i32>, DatabaseError> {
            match *self {}
        }

        /// # Errors
        /// Never: there is no value.
        pub fn look_after(
            &self,
            _: Purge,
            _: &AtomicBool,
        ) -> Result<(Census, BTreeMap<&'static str, Space>), DatabaseError> {
            match *self {}
        }
    }
}
