//! A shared store for the commands of an operator: each call blocks until it is done.
//!
//! Commands therefore need neither a runtime nor a session of the driver. Lives on: the thread of the command, and the
//! threads of a runtime that ends with the connection.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use scylla::client::session::Session;
use tokio::runtime::Runtime;

use super::blocking::runtime;
use super::connect::connect;
use super::maintain;
use super::{preflight, schema_apply};
use crate::shared::census::{Census, Purge, Space};
use crate::shared::error::DatabaseError;
use crate::shared::options::Options;
use crate::shared::schema::Server;

/// Returns every fault of the database that keeps a server from starting. Its clocks may differ from that of this host
/// by `max_skew`.
pub fn faults(config: &Options, max_skew: Duration) -> Vec<DatabaseError> {
    match runtime() {
        Ok(runtime) => runtime.block_on(preflight::examine(config, max_skew)).1,
        Err(said) => vec![DatabaseError::passing(said)],
    }
}

/// Connection of an operator's command to the database.
pub struct Operator<'a> {
    config: &'a Options,
    // Ends before the runtime that it lives on.
    session: Session,
    runtime: Runtime,
}

impl Operator<'_> {
    /// Connects as configured.
    ///
    /// # Errors
    /// No node answers or accepts the login, or this host refuses a runtime.
    pub fn connect(config: &Options) -> Result<Operator<'_>, DatabaseError> {
        let runtime = runtime().map_err(DatabaseError::passing)?;
        let session = runtime.block_on(connect(config))?;
        Ok(Operator { config, session, runtime })
    }

    /// Finds out the features of the database that tables may use.
    ///
    /// # Errors
    /// The database does not answer, is too old, or keeps its version from this account.
    pub fn server(&self) -> Result<Server, DatabaseError> {
        self.runtime.block_on(schema_apply::server(&self.session))
    }

    /// Makes the keyspace and every table that is not there. Returns the versions that were applied.
    ///
    /// # Errors
    /// The database does not answer or refuses a statement, or the tables are newer than this build.
    pub fn create(&self) -> Result<Vec<i32>, DatabaseError> {
        self.runtime.block_on(schema_apply::create(&self.session, self.config))
    }

    /// Brings tables of an older version up to date. Returns the versions that were applied.
    ///
    /// # Errors
    /// As [`create`](Operator::create), and there are no tables.
    pub fn migrate(&self) -> Result<Vec<i32>, DatabaseError> {
        self.runtime.block_on(schema_apply::migrate(&self.session, self.config))
    }

    /// Counts users, drops those of `purge` until `stop` is set, and measures the two large tables.
    ///
    /// # Errors
    /// The database refuses or does not answer, or `stop` was set. Nothing is half done then: it may be run again.
    pub fn look_after(
        &self,
        purge: Purge,
        stop: &AtomicBool,
    ) -> Result<(Census, BTreeMap<&'static str, Space>), DatabaseError> {
        self.runtime.block_on(async {
            let census = maintain::census(&self.session, self.config, purge, stop).await?;
            Ok((census, maintain::space(&self.session, self.config).await?))
        })
    }
}
