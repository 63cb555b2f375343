//! A shard's port of the embedded store: routes operations so that those of one user keep their order.
//!
//! There are two lanes, each first in, first out: to a reader and to the committer. A read goes to a reader unless a
//! write of its user is under way. An operation behind one in the reader's lane goes through that lane too, and the
//! reader hands the committer's operations on.
//!
//! Lives on: its shard.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::channel::Sender;
use crossbeam::queue::SegQueue;
use hashbrown::HashMap;
use machine::ids::{StoreTicket, Uaid};
use machine::limits;
use machine::{StoreError, StoreOp};
use runtime::ports::Store;

use super::mail::{Answer, CommitterMail, OpRoute, ReaderMail, ReplyQueue, SubmittedOp};
use super::stats::Tally;
use super::store_status::StoreStatus;

/// Operations of one user under way.
#[derive(Default)]
struct InFlight {
    through_reader: u32,
    to_committer: u32,
}

/// The port of one shard.
pub(super) struct Port {
    pub(super) reply_queue: Arc<ReplyQueue>,
    pub(super) committer: Sender<CommitterMail>,
    pub(super) reader: Sender<ReaderMail>,
    pub(super) store_status: Arc<StoreStatus>,
    users: HashMap<Uaid, InFlight>,
    outstanding: usize,
    refused: VecDeque<StoreTicket>,
}

impl Port {
    pub(super) fn new(
        waker: Arc<dyn Fn() + Send + Sync>,
        committer: Sender<CommitterMail>,
        reader: Sender<ReaderMail>,
        store_status: Arc<StoreStatus>,
    ) -> Port {
        let reply_queue = Arc::new(ReplyQueue { replies: SegQueue::new(), waker });
        Port {
            reply_queue,
            committer,
            reader,
            store_status,
            users: HashMap::new(),
            outstanding: 0,
            refused: VecDeque::new(),
        }
    }

    fn route(&self, op: &StoreOp) -> OpRoute {
        let uaid = op.uaid();
        let (reading, writing) = self.users.get(&uaid).map_or((0, 0), |u| (u.through_reader, u.to_committer));
        let to_committer = !op.is_read() || writing > 0;
        OpRoute { uaid, to_committer, through_reader: !to_committer || reading > 0 }
    }

    /// Refuses at once; the reply is collected like any other.
    fn refuse(&mut self, ticket: StoreTicket) {
        Tally::add(&self.store_status.tally.transient);
        self.refused.push_back(ticket);
        self.reply_queue.wake();
    }
}

impl Store for Port {
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp) {
        let route = self.route(&op);
        let stalled = route.to_committer && self.store_status.circuit_open.load(Ordering::Relaxed);
        if stalled || self.outstanding >= limits::STORE_TICKETS_MAX {
            return self.refuse(ticket);
        }
        let submitted = SubmittedOp { reply_queue: self.reply_queue.clone(), ticket, route, op };
        let sent = if route.through_reader {
            self.reader.send(ReaderMail::Op(submitted)).is_ok()
        } else {
            self.store_status.queued.fetch_add(1, Ordering::Relaxed);
            self.committer.send(CommitterMail::Op(submitted)).is_ok()
        };
        if !sent {
            // The store has been closed.
            return self.refuse(ticket);
        }
        self.outstanding += 1;
        let user = self.users.entry(route.uaid).or_default();
        user.through_reader += u32::from(route.through_reader);
        user.to_committer += u32::from(route.to_committer);
    }

    fn collect(&mut self) -> Option<(StoreTicket, Answer)> {
        if let Some(ticket) = self.refused.pop_front() {
            return Some((ticket, Err(StoreError::Transient)));
        }
        let (ticket, route, answer) = self.reply_queue.replies.pop()?;
        assert!(self.outstanding > 0, "a reply answers an operation");
        self.outstanding -= 1;
        if let Some(user) = self.users.get_mut(&route.uaid) {
            user.through_reader -= u32::from(route.through_reader);
            user.to_committer -= u32::from(route.to_committer);
            if user.through_reader == 0 && user.to_committer == 0 {
                self.users.remove(&route.uaid);
            }
        }
        Some((ticket, answer))
    }
}
