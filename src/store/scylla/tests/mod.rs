//! The shared store against a real database: Apache Cassandra, as `bench/cassandra/cassandra` starts it.
//!
//! `TEST_CQL` names one that runs; without it the first test that asks starts one, which ends with the tests. A
//! test fails when there is none. Every store of a test has UAIDs of its own, so tests may run beside each other.

mod faults;

mod midnight;

mod moving;

pub(super) mod proxy;

mod refresh;

pub(crate) mod replicas;

mod ring;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use machine::ids::{StoreTicket, Uaid};
use machine::message::Message;
use machine::{Page, RowKey, StoreError, StoreOp, StoreReply};
use shards::ports::Store;
use shards::wall::Wall;

use super::{Scylla, Surroundings, cassandra, schema_apply};
use crate::config::{self, Level};

/// Configuration of a test's connection to the database.
pub(crate) fn config(nodes: Vec<String>) -> config::Scylla {
    config::Scylla {
        nodes,
        keyspace: cassandra::keyspace(),
        replication_factor: 1,
        read_consistency: Level::Quorum,
        write_consistency: Level::Quorum,
        connect_timeout: Duration::from_secs(30),
        request_timeout: Duration::from_secs(30),
        in_flight: 256,
        ..config::Scylla::default()
    }
}

/// The database of all tests, with tables that those of this module share.
pub(crate) fn shared() -> &'static config::Scylla {
    static SHARED: OnceLock<config::Scylla> = OnceLock::new();
    SHARED.get_or_init(|| {
        let nodes = cassandra::shared().split(',').map(str::to_owned).collect();
        // One name for all runs: rows of one test are never seen by another, and go by themselves.
        let keyspace = format!("murre_laws_{}", super::schema::VERSION);
        let config = config::Scylla { keyspace, ..config(nodes) };
        make_tables(&config);
        config
    })
}

/// Makes the tables where they are not there.
pub(crate) fn make_tables(config: &config::Scylla) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let session = super::connect::connect(config).await.expect("the database answers");
        schema_apply::create(&session, config).await.expect("tables");
    });
}

/// A store in standing time: the present of the laws lies in the future, and their clocks in 1970.
pub(crate) fn open() -> Scylla {
    open_with(shared())
}

pub(crate) fn open_with(config: &config::Scylla) -> Scylla {
    // Refusals of the database are in the log only.
    let _ = tracing_subscriber::fmt().with_test_writer().with_max_level(tracing::Level::WARN).try_init();
    Scylla::connect(config, Surroundings { wall: Arc::new(Wall::standing(0)) }).expect("the store opens")
}

/// A keyspace that goes with the test.
pub(crate) struct Keyspace(config::Scylla);

impl Keyspace {
    pub(crate) fn name(&self) -> &str {
        &self.0.keyspace
    }

    pub(crate) fn config(&self) -> &config::Scylla {
        &self.0
    }

    /// Sends a statement in which `KS` is its name; returns the number of rows of the answer.
    pub(crate) fn send(&self, statement: &str) -> usize {
        let statement = statement.replace("KS", self.name());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let session = super::connect::connect(&self.0).await.expect("the database answers");
            let answer = session.query_unpaged(statement.as_str(), ()).await.expect(&statement);
            answer.into_rows_result().map_or(0, |rows| rows.rows_num())
        })
    }
}

impl Drop for Keyspace {
    fn drop(&mut self) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            if let Ok(session) = super::connect::connect(&self.0).await {
                let _ = session.query_unpaged(format!("DROP KEYSPACE {}", self.0.keyspace), ()).await;
            }
        });
    }
}

/// A store with users of its own, for tests that list them.
pub(crate) fn open_alone() -> (Scylla, Keyspace) {
    let config = config(shared().nodes.clone());
    make_tables(&config);
    (open_with(&config), Keyspace(config))
}

/// Contact points, and a keyspace with tables of its own, for tests with a configuration file.
pub(crate) fn empty() -> (Vec<String>, Keyspace) {
    let config = config(shared().nodes.clone());
    make_tables(&config);
    (config.nodes.clone(), Keyspace(config))
}

/// A port that no other test meets: the laws name their users by small numbers.
pub(crate) struct Apart {
    port: Box<dyn Store>,
    mask: [u8; 16],
}

impl Apart {
    pub(crate) fn new(store: &Scylla) -> Apart {
        use std::hash::{BuildHasher as _, RandomState};
        let random = RandomState::new();
        let mask = [random.hash_one(1).to_be_bytes(), random.hash_one(2).to_be_bytes()].concat();
        Apart { port: store.port(Arc::new(|| {})), mask: mask.try_into().expect("16 bytes") }
    }

    /// Another node's port for the same users.
    fn beside(&self, store: &Scylla) -> Apart {
        Apart { port: store.port(Arc::new(|| {})), mask: self.mask }
    }

    fn uaid(&self, uaid: Uaid) -> Uaid {
        Uaid(std::array::from_fn(|n| uaid.0[n] ^ self.mask[n]))
    }

    fn message(&self, message: &Message) -> Arc<Message> {
        Arc::new(Message { uaid: self.uaid(message.uaid), ..message.clone() })
    }

    fn rename(&self, op: StoreOp) -> StoreOp {
        let row = |row: RowKey| RowKey { uaid: self.uaid(row.uaid), ..row };
        match op {
            StoreOp::Publish { message, checked } => StoreOp::Publish { message: self.message(&message), checked },
            StoreOp::Save { messages } => {
                StoreOp::Save { messages: messages.iter().map(|message| self.message(message)).collect() }
            }
            StoreOp::Read { row: one, now } => StoreOp::Read { row: row(one), now },
            StoreOp::Settle { rows, low_water, durable } => {
                StoreOp::Settle { rows: rows.into_iter().map(row).collect(), low_water, durable }
            }
            StoreOp::Tried { rows } => {
                StoreOp::Tried { rows: rows.into_iter().map(|(of, tries)| (row(of), tries)).collect() }
            }
            mut other => {
                let (StoreOp::LoadUser { uaid }
                | StoreOp::Locate { uaid, .. }
                | StoreOp::Touch { uaid, .. }
                | StoreOp::Register { uaid, .. }
                | StoreOp::SetContact { uaid, .. }
                | StoreOp::SetPresence { uaid, .. }
                | StoreOp::ClearPresence { uaid, .. }
                | StoreOp::Unregister { uaid, .. }
                | StoreOp::DropUser { uaid }
                | StoreOp::Topics { uaid, .. }
                | StoreOp::Messages { uaid, .. }) = &mut other
                else {
                    panic!("an operation without a user");
                };
                *uaid = self.uaid(*uaid);
                other
            }
        }
    }
}

impl Store for Apart {
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp) {
        let op = self.rename(op);
        self.port.submit(ticket, op);
    }

    fn collect(&mut self) -> Option<(StoreTicket, Result<StoreReply, StoreError>)> {
        let (ticket, answer) = self.port.collect()?;
        let answer = answer.map(|reply| match reply {
            StoreReply::Page(page) => {
                let messages = page.messages.iter().map(|message| self.message(message)).collect();
                StoreReply::Page(Box::new(Page { messages, ..*page }))
            }
            other => other,
        });
        Some((ticket, answer))
    }
}
