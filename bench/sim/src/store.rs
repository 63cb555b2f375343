//! The faulty store: operations of one UAID take effect in submission order, anything else may happen.
//!
//! Relaxed writes are seen by every reader at once but survive a kill only up to some point behind the last
//! durable one: one log, one order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shards::ids::{StoreTicket, Uaid};
use shards::machine::{StoreError, StoreOp, StoreReply};
use shards::message::Message;

use crate::marks::Marks;
use crate::plan::Faults;
use crate::rng::Rng;
use crate::rows::Rows;
use crate::sabotage::Sabotage;

/// One store under all shards.
#[derive(Default)]
pub(crate) struct Store {
    /// What a reader sees.
    seen: Rows,
    /// What a kill leaves.
    durable: Rows,
    /// What `seen` has beyond `durable`, oldest first.
    relaxed: VecDeque<StoreOp>,
    queues: BTreeMap<Uaid, Queue>,
    pub(crate) sabotage: Option<Sabotage>,
    /// Nothing moves before this instant (monotonic nanoseconds).
    pub(crate) stalled_until: u64,
    /// Every operation fails before this instant.
    pub(crate) down_until: u64,
}

#[derive(Default)]
struct Queue {
    submitted: VecDeque<Submitted>,
    answered: VecDeque<(usize, StoreTicket, Result<StoreReply, StoreError>)>,
}

struct Submitted {
    shard: usize,
    ticket: StoreTicket,
    op: StoreOp,
}

/// How operations fail, and how long pages get.
pub(crate) struct Weather<'a> {
    /// Which faults are on.
    pub(crate) faults: &'a Faults,
    /// Whether pages come shorter than asked for.
    pub(crate) short_pages: bool,
    /// Monotonic nanoseconds.
    pub(crate) now: u64,
}

impl Store {
    /// An empty store, perhaps a broken one.
    pub(crate) fn new(sabotage: Option<Sabotage>) -> Store {
        Store { sabotage, ..Store::default() }
    }

    /// Takes an operation of a shard. Two operations never wait under one ticket.
    pub(crate) fn submit(&mut self, shard: usize, ticket: StoreTicket, op: StoreOp) {
        self.queues.entry(op.uaid()).or_default().submitted.push_back(Submitted { shard, ticket, op });
    }

    /// Whether a shard waits for this ticket.
    pub(crate) fn outstanding(&self, shard: usize, ticket: StoreTicket) -> bool {
        self.queues.values().any(|queue| {
            queue.submitted.iter().any(|s| s.shard == shard && s.ticket == ticket)
                || queue.answered.iter().any(|(at, of, _)| *at == shard && *of == ticket)
        })
    }

    /// How many replies a shard waits for.
    pub(crate) fn outstanding_count(&self, shard: usize) -> usize {
        let count = |queue: &Queue| {
            queue.submitted.iter().filter(|s| s.shard == shard).count()
                + queue.answered.iter().filter(|(at, _, _)| *at == shard).count()
        };
        self.queues.values().map(count).sum()
    }

    /// UAIDs with an operation that could take effect.
    pub(crate) fn submitted(&self) -> impl Iterator<Item = Uaid> + '_ {
        self.queues.iter().filter(|(_, queue)| !queue.submitted.is_empty()).map(|(uaid, _)| *uaid)
    }

    /// UAIDs with a reply that could be delivered, and the shard it goes to.
    pub(crate) fn answered(&self) -> impl Iterator<Item = (Uaid, usize)> + '_ {
        self.queues.iter().filter_map(|(uaid, queue)| queue.answered.front().map(|(shard, _, _)| (*uaid, *shard)))
    }

    /// The oldest operation of this UAID takes effect, or fails. Returns the messages that it wrote.
    pub(crate) fn work(
        &mut self,
        uaid: Uaid,
        weather: &Weather<'_>,
        rng: &mut Rng,
        marks: &mut Marks,
    ) -> Vec<Arc<Message>> {
        let Some(queue) = self.queues.get_mut(&uaid) else { return Vec::new() };
        let Some(Submitted { shard, ticket, op }) = queue.submitted.pop_front() else { return Vec::new() };
        let faults = weather.faults;
        let mut written = Vec::new();
        let result = if weather.now < self.down_until || rng.permille(faults.store_error) {
            marks.hit("store: failed without effect");
            Err(StoreError::Transient)
        } else if grows(&op) && rng.permille(faults.store_full) {
            marks.hit("store: refused as full");
            Err(StoreError::Full)
        } else {
            let page_max = if weather.short_pages { rng.between(1, 4) as usize } else { usize::MAX };
            let messages = messages_of(&op);
            let reply = self.carry_out(op, page_max);
            if matches!(reply, StoreReply::Done) {
                written = messages;
            }
            if rng.permille(faults.store_reply_lost) {
                marks.hit("store: failed after success");
                Err(StoreError::Transient)
            } else {
                Ok(reply)
            }
        };
        if let Some(queue) = self.queues.get_mut(&uaid) {
            queue.answered.push_back((shard, ticket, result));
        }
        written
    }

    fn carry_out(&mut self, op: StoreOp, page_max: usize) -> StoreReply {
        match (self.sabotage, &op) {
            (Some(Sabotage::SettleIgnored), StoreOp::Settle { .. })
            | (Some(Sabotage::PublishIgnored), StoreOp::Publish { .. })
            | (Some(Sabotage::UnregisterIgnored), StoreOp::Unregister { .. }) => return StoreReply::Done,
            (Some(Sabotage::UserForgotten), StoreOp::LoadUser { .. }) => return StoreReply::User(None),
            (Some(Sabotage::TopicStale), StoreOp::Publish { message, .. }) if self.seen.has_topic(message) => {
                return StoreReply::Done;
            }
            _ => {}
        }
        let mut reply = self.seen.apply(&op, page_max);
        if let (Some(Sabotage::PagesReversed), StoreReply::Page(page)) = (self.sabotage, &mut reply) {
            page.messages.reverse();
        }
        match kind(&op) {
            Kind::Read => {}
            Kind::Relaxed => self.relaxed.push_back(op),
            Kind::Durable => {
                self.sync(usize::MAX);
                self.durable.apply(&op, page_max);
            }
        }
        reply
    }

    /// Makes up to `count` relaxed writes durable, oldest first.
    fn sync(&mut self, count: usize) {
        for _ in 0..count.min(self.relaxed.len()) {
            if let Some(op) = self.relaxed.pop_front() {
                self.durable.apply(&op, usize::MAX);
            }
        }
    }

    /// The next reply to this UAID's operations: shard, ticket, result.
    pub(crate) fn collect(&mut self, uaid: Uaid) -> Option<(usize, StoreTicket, Result<StoreReply, StoreError>)> {
        let queue = self.queues.get_mut(&uaid)?;
        let reply = queue.answered.pop_front();
        if queue.submitted.is_empty() && queue.answered.is_empty() {
            self.queues.remove(&uaid);
        }
        reply
    }

    /// The process is gone: of each UAID's open operations some first ones still took effect, and of the
    /// relaxed writes some last ones are lost. Returns the messages that were written.
    pub(crate) fn kill(&mut self, rng: &mut Rng, marks: &mut Marks) -> Vec<Arc<Message>> {
        let mut written = Vec::new();
        for (_, queue) in std::mem::take(&mut self.queues) {
            let landed = rng.index(queue.submitted.len() + 1);
            for submitted in queue.submitted.into_iter().take(landed) {
                let messages = messages_of(&submitted.op);
                if matches!(self.carry_out(submitted.op, 1), StoreReply::Done) {
                    written.extend(messages);
                }
            }
        }
        let kept = rng.index(self.relaxed.len() + 1);
        if kept < self.relaxed.len() {
            marks.hit("kill: relaxed writes lost");
        }
        self.sync(kept);
        self.relaxed.clear();
        self.seen = self.durable.clone();
        written
    }

    /// Whether no operation is under way.
    pub(crate) fn idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// The process ended in order: everything that was written is durable.
    pub(crate) fn close(&mut self) {
        assert!(self.queues.is_empty(), "an orderly end leaves no storage work");
        self.sync(usize::MAX);
    }

    /// What the start does before any listener opens: saves live ledger records.
    pub(crate) fn replay(&mut self, op: StoreOp) {
        self.carry_out(op, 1);
    }

    /// Another node writes a message, at once and durably; false when there is no such channel.
    pub(crate) fn foreign(&mut self, op: StoreOp) -> bool {
        matches!(self.carry_out(op, 1), StoreReply::Done)
    }

    /// What a reader sees.
    pub(crate) fn rows(&self) -> &Rows {
        &self.seen
    }
}

enum Kind {
    Read,
    Relaxed,
    Durable,
}

fn kind(op: &StoreOp) -> Kind {
    match op {
        StoreOp::LoadUser { .. } | StoreOp::Topics { .. } | StoreOp::Messages { .. } | StoreOp::Read { .. } => {
            Kind::Read
        }
        StoreOp::Touch { .. } | StoreOp::SetContact { .. } | StoreOp::Settle { durable: false, .. } => Kind::Relaxed,
        StoreOp::Register { .. }
        | StoreOp::Unregister { .. }
        | StoreOp::SetPresence { .. }
        | StoreOp::ClearPresence { .. }
        | StoreOp::DropUser { .. }
        | StoreOp::Publish { .. }
        | StoreOp::Save { .. }
        | StoreOp::Settle { durable: true, .. } => Kind::Durable,
    }
}

fn messages_of(op: &StoreOp) -> Vec<Arc<Message>> {
    match op {
        StoreOp::Publish { message, .. } => vec![message.clone()],
        StoreOp::Save { messages } => messages.clone(),
        _ => Vec::new(),
    }
}

fn grows(op: &StoreOp) -> bool {
    matches!(op, StoreOp::Publish { .. } | StoreOp::Save { .. } | StoreOp::Register { .. })
}
