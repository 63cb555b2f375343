//! A real Cassandra, as the tests of a shared store use it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use runtime::process_clock::ProcessClock;

use crate::scylla::Scylla;
use crate::scylla::connect::connect;
use crate::scylla::operator::Operator;
use crate::shared::opening::ConnectOptions;
use crate::shared::options::{Level, Options};
use crate::shared::schema;

/// Configuration of a test's connection to the database.
pub fn options(nodes: &str) -> Options {
    Options {
        nodes: nodes.split(',').map(str::to_owned).collect(),
        keyspace: cassandra::keyspace(),
        replication_factor: 1,
        read_consistency: Level::Quorum,
        write_consistency: Level::Quorum,
        connect_timeout: Duration::from_secs(30),
        request_timeout: Duration::from_secs(30),
        in_flight: 256,
        ..Options::default()
    }
}

/// The database of all tests, with tables that those of this module share.
pub fn shared() -> &'static Options {
    static SHARED: OnceLock<Options> = OnceLock::new();
    SHARED.get_or_init(|| {
        // One name for all runs: rows of one test are never seen by another, and go by themselves.
        let keyspace = format!("murre_laws_{}", schema::VERSION);
        let config = Options { keyspace, ..options(cassandra::shared()) };
        make_tables(&config);
        config
    })
}

/// Makes the tables where they are not there.
pub fn make_tables(config: &Options) {
    Operator::connect(config).expect("the database answers").create().expect("tables");
}

/// A store in standing time: the present of the laws lies in the future, and their clocks in 1970.
pub fn open() -> Scylla {
    open_with(shared())
}

pub fn open_with(config: &Options) -> Scylla {
    // Refusals of the database are in the log only.
    let _ = tracing_subscriber::fmt().with_test_writer().with_max_level(tracing::Level::WARN).try_init();
    Scylla::connect(config, ConnectOptions { process_clock: Arc::new(ProcessClock::standing(0)) })
        .expect("the store opens")
}

/// A keyspace that goes with the test.
pub struct Keyspace(pub(crate) Options);

impl Keyspace {
    pub fn name(&self) -> &str {
        &self.0.keyspace
    }

    pub fn config(&self) -> &Options {
        &self.0
    }

    /// Sends a statement in which `KS` is its name; returns the number of rows of the answer.
    pub fn send(&self, statement: &str) -> usize {
        let statement = statement.replace("KS", self.name());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let session = connect(&self.0).await.expect("the database answers");
            let answer = session.query_unpaged(statement.as_str(), ()).await.expect(&statement);
            answer.into_rows_result().map_or(0, |rows| rows.rows_num())
        })
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            if let Ok(session) = connect(&self.0).await {
                let _ = session.query_unpaged(format!("DROP KEYSPACE {}", self.0.keyspace), ()).await;
            }
        });
    }
}

/// A keyspace with tables of its own.
pub fn empty() -> Keyspace {
    let config = options(cassandra::shared());
    make_tables(&config);
    Keyspace(config)
}

/// A store with users of its own, for tests that list them.
pub fn open_alone() -> (Scylla, Keyspace) {
    let keyspace = empty();
    (open_with(keyspace.config()), keyspace)
}
