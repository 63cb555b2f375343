//! A shard's port of the shared store: a bounded lane there and a queue of replies back.
//!
//! Lives on: its shard. Nothing here waits.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam::queue::SegQueue;
use machine::ids::StoreTicket;
use machine::limits;
use machine::{StoreError, StoreOp, StoreReply};
use runtime::ports::Store;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::Instant;

use super::breaker::Breaker;
use super::stats::{SharedStoreStats, count};

/// Reply of a port.
pub(super) type Answer = Result<StoreReply, StoreError>;

/// Replies on their way to one shard, and its waker. Bounded by the operations that the port has sent.
pub(super) struct ReplyQueue {
    replies: SegQueue<(StoreTicket, Answer)>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl ReplyQueue {
    pub(super) fn new(waker: Arc<dyn Fn() + Send + Sync>) -> ReplyQueue {
        ReplyQueue { replies: SegQueue::new(), waker }
    }

    /// Adds a reply and wakes the shard.
    pub(super) fn push(&self, ticket: StoreTicket, answer: Answer) {
        self.replies.push((ticket, answer));
        (self.waker)();
    }
}

/// One operation under way.
pub(super) struct SubmittedOp {
    pub(super) ticket: StoreTicket,
    pub(super) op: StoreOp,
    pub(super) arrived: Instant,
}

/// The port of one shard.
pub(super) struct Port {
    pub(super) reply_queue: Arc<ReplyQueue>,
    pub(super) lane: UnboundedSender<SubmittedOp>,
    pub(super) breaker: Arc<Breaker>,
    pub(super) stats: Arc<SharedStoreStats>,
    outstanding: usize,
    refused: VecDeque<StoreTicket>,
}

impl Port {
    pub(super) fn new(
        reply_queue: Arc<ReplyQueue>,
        lane: UnboundedSender<SubmittedOp>,
        breaker: Arc<Breaker>,
        stats: Arc<SharedStoreStats>,
    ) -> Port {
        Port { reply_queue, lane, breaker, stats, outstanding: 0, refused: VecDeque::new() }
    }

    /// Refuses at once; the reply is collected like any other.
    fn refuse(&mut self, ticket: StoreTicket) {
        count(&self.stats.others.transient);
        self.refused.push_back(ticket);
        (self.reply_queue.waker)();
    }
}

impl Store for Port {
    fn submit(&mut self, ticket: StoreTicket, op: StoreOp) {
        self.stats.asked(&op);
        // The lane is not bounded by itself: this is its bound.
        if self.breaker.is_open() || self.outstanding >= limits::STORE_TICKETS_MAX {
            return self.refuse(ticket);
        }
        if self.lane.send(SubmittedOp { ticket, op, arrived: Instant::now() }).is_err() {
            // The store has been closed.
            return self.refuse(ticket);
        }
        self.outstanding += 1;
    }

    fn collect(&mut self) -> Option<(StoreTicket, Answer)> {
        if let Some(ticket) = self.refused.pop_front() {
            return Some((ticket, Err(StoreError::Transient)));
        }
        let reply = self.reply_queue.replies.pop()?;
        assert!(self.outstanding > 0, "a reply answers an operation");
        self.outstanding -= 1;
        Some(reply)
    }
}
