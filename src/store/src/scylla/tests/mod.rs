//! The shared store against a real database: Apache Cassandra, as `bench/cassandra/cassandra` starts it.
//!
//! `TEST_CQL` names one that runs; without it the first test that asks starts one, which ends with the tests. A
//! test fails when there is none. Every store of a test has UAIDs of its own, so tests may run beside each other.

mod bridges;
mod idle_users;

mod debts;

mod faults;

mod midnight;

mod moving;

pub(super) mod proxy;

pub(super) mod refresh;

pub(crate) mod replicas;

mod ring;

mod timed;

mod tombstones;

use std::sync::Arc;

use machine::ids::{StoreTicket, Uaid};
use machine::message::Message;
use machine::{Page, RowKey, StoreError, StoreOp, StoreReply};
use runtime::ports::Store;

use super::Scylla;

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
                | StoreOp::Subscribe { uaid, .. }
                | StoreOp::SetContact { uaid, .. }
                | StoreOp::SetPresence { uaid, .. }
                | StoreOp::ClearPresence { uaid, .. }
                | StoreOp::Unregister { uaid, .. }
                | StoreOp::DropUser { uaid }
                | StoreOp::DropIdle { uaid }
                | StoreOp::SetBridge { uaid, .. }
                | StoreOp::MarkRefused { uaid, .. }
                | StoreOp::ClearRefused { uaid, .. }
                | StoreOp::DropBridged { uaid, .. }
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
