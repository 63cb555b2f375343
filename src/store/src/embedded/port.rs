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
use machine::{StoreError, StoreOp, StoreReply};
use shards::ports::Store;

use super::StoreStatus;
use super::stats::Tally;

/// Reply of a port.
pub(super) type Answer = Result<StoreReply, StoreError>;

/// Replies on their way to one shard, and its waker. Bounded by the operations that the port has sent.
pub(super) struct ReplyQueue {
    replies: SegQueue<(StoreTicket, OpRoute, Answer)>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl ReplyQueue {
    /// Adds a reply; the shard reads it after the next [`ReplyQueue::wake`].
    pub(super) fn push(&self, ticket: StoreTicket, route: OpRoute, answer: Answer) {
        self.replies.push((ticket, route, answer));
    }

    pub(super) fn wake(&self) {
        (self.waker)();
    }
}

/// Way of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OpRoute {
    pub(super) uaid: Uaid,
    pub(super) through_reader: bool,
    /// The committer answers it.
    pub(super) to_committer: bool,
}

/// One operation under way.
pub(super) struct Job {
    pub(super) reply_queue: Arc<ReplyQueue>,
    pub(super) ticket: StoreTicket,
    pub(super) route: OpRoute,
    pub(super) op: StoreOp,
}

/// Work for the committer.
pub(super) enum CommitterMail {
    Job(Job),
    /// From the keeper or a reader.
    Upkeep(super::group::CleanupOp),
    /// Messages of a ledger replay, saved also beyond the bound on disk use. The reply comes when they are durable,
    /// with those that could not be saved. An error when the store failed.
    Replay(Vec<Arc<machine::message::Message>>, Sender<Result<Option<super::Unsaved>, ()>>),
    /// Rows and users of a transfer; answered when durable.
    Load(super::group::Load, Sender<Result<(), StoreError>>),
    /// Commit, sync and end.
    Stop,
}

/// Work for a reader.
pub(super) enum ReaderMail {
    /// To answer or to hand on.
    Job(Job),
    Stop,
}

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
        let to_committer = is_write(op) || writing > 0;
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
        let job = Job { reply_queue: self.reply_queue.clone(), ticket, route, op };
        let sent = if route.through_reader {
            self.reader.send(ReaderMail::Job(job)).is_ok()
        } else {
            self.store_status.queued.fetch_add(1, Ordering::Relaxed);
            self.committer.send(CommitterMail::Job(job)).is_ok()
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

/// Returns true if the committer writes for it.
pub(super) fn is_write(op: &StoreOp) -> bool {
    match op {
        StoreOp::LoadUser { .. }
        | StoreOp::Locate { .. }
        | StoreOp::Topics { .. }
        | StoreOp::Messages { .. }
        | StoreOp::Read { .. } => false,
        StoreOp::Touch { .. }
        | StoreOp::Register { .. }
        | StoreOp::Subscribe { .. }
        | StoreOp::SetContact { .. }
        | StoreOp::SetPresence { .. }
        | StoreOp::ClearPresence { .. }
        | StoreOp::Unregister { .. }
        | StoreOp::DropUser { .. }
        | StoreOp::SetBridge { .. }
        | StoreOp::MarkRefused { .. }
        | StoreOp::ClearRefused { .. }
        | StoreOp::DropBridged { .. }
        | StoreOp::Publish { .. }
        | StoreOp::Save { .. }
        | StoreOp::Settle { .. }
        | StoreOp::Tried { .. } => true,
    }
}

/// Returns true if the reply must wait for a sync.
pub(super) fn is_durable(op: &StoreOp) -> bool {
    match op {
        StoreOp::Settle { durable, .. } | StoreOp::SetContact { durable, .. } => *durable,
        StoreOp::Touch { .. } | StoreOp::MarkRefused { .. } | StoreOp::ClearRefused { .. } => false,
        other => is_write(other),
    }
}
