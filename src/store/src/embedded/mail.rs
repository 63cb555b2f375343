//! Mail between the ports of shards, the readers and the committer of a store.

use std::sync::Arc;

use crossbeam::channel::Sender;
use crossbeam::queue::SegQueue;
use machine::ids::{StoreTicket, Uaid};
use machine::message::Message;
use machine::{StoreError, StoreOp, StoreReply};

use super::error::Unsaved;
use super::group::cleanup::CleanupOp;
use super::group::load::Load;

/// Reply of a port.
pub(super) type Answer = Result<StoreReply, StoreError>;

/// Replies on their way to one shard, and its waker. Bounded by the operations that the port has sent.
pub(super) struct ReplyQueue {
    pub(super) replies: SegQueue<(StoreTicket, OpRoute, Answer)>,
    pub(super) waker: Arc<dyn Fn() + Send + Sync>,
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
pub(super) struct SubmittedOp {
    pub(super) reply_queue: Arc<ReplyQueue>,
    pub(super) ticket: StoreTicket,
    pub(super) route: OpRoute,
    pub(super) op: StoreOp,
}

/// Work for the committer.
pub(super) enum CommitterMail {
    Op(SubmittedOp),
    /// From the keeper or a reader.
    Upkeep(CleanupOp),
    /// Messages of a ledger replay, saved also beyond the bound on disk use. The reply comes when they are durable,
    /// with those that could not be saved. An error when the store failed.
    Replay(Vec<Arc<Message>>, Sender<Result<Option<Unsaved>, ()>>),
    /// Rows and users of a transfer; answered when durable.
    Load(Load, Sender<Result<(), StoreError>>),
    /// Commit, sync and end.
    Stop,
}

/// Work for a reader.
pub(super) enum ReaderMail {
    /// To answer or to hand on.
    Op(SubmittedOp),
    Stop,
}
