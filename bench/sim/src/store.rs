//! The faulty store: the model of the laws, between queues. Operations of one UAID take effect in submission order,
//! anything else may happen.
//!
//! Relaxed writes are seen by every reader at once but survive a kill only up to some point behind the last
//! durable one: one log, one order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use machine::ids::{Chid, Clock, Stamp, StoreTicket, Uaid};
use machine::message::{Message, Tries};
use machine::model::{Model, User};
use machine::time::UnixSeconds;
use machine::{RowKey, StoreError, StoreOp, StoreReply};

use crate::coverage::CoverageMarks;
use crate::plan::Faults;
use crate::rng::Rng;
use crate::sabotage::Sabotage;

/// One store under all shards.
pub(crate) struct Store {
    /// State that a reader sees.
    seen: Model,
    /// State that a kill leaves.
    durable: Model,
    /// Operations that `seen` has beyond `durable`, oldest first.
    relaxed: VecDeque<StoreOp>,
    queues: BTreeMap<Uaid, Queue>,
    pub(crate) sabotage: Option<Sabotage>,
    /// Nothing moves before this instant (monotonic nanoseconds).
    pub(crate) stalled_until: u64,
    /// Every operation fails before this instant.
    pub(crate) down_until: u64,
    /// Storage takes no message and no user before this instant.
    pub(crate) full_until: u64,
    /// The least time that an operation takes.
    pub(crate) latency: u64,
    /// Bytes of messages for which there is room: near it, users have shares of what is left.
    pub(crate) bytes_max: u64,
}

#[derive(Default)]
struct Queue {
    submitted: VecDeque<Submitted>,
    /// Refused when they were submitted: these overtake the answers to what was submitted before.
    refused: VecDeque<(usize, StoreTicket)>,
    answered: VecDeque<(usize, StoreTicket, Result<StoreReply, StoreError>)>,
}

struct Submitted {
    shard: usize,
    ticket: StoreTicket,
    op: StoreOp,
    /// It cannot be over before this (monotonic nanoseconds).
    ready_at: u64,
}

/// Results of operations.
#[derive(Default)]
pub(crate) struct Worked {
    pub(crate) written: Vec<Arc<Message>>,
    pub(crate) unregistered: Vec<(Uaid, Chid)>,
    pub(crate) dropped: Vec<Uaid>,
    /// Rows whose deliveries were not noted.
    pub(crate) untold: Vec<Stamp>,
}

impl Worked {
    /// This was done, by this operation.
    fn note(&mut self, op: &StoreOp) {
        match op {
            StoreOp::Publish { message, .. } => self.written.push(message.clone()),
            StoreOp::Save { messages } => self.written.extend(messages.iter().cloned()),
            StoreOp::Unregister { uaid, chid, .. } => self.unregistered.push((*uaid, *chid)),
            StoreOp::DropUser { uaid } => self.dropped.push(*uaid),
            _ => {}
        }
    }
}

/// Faults of operations, and lengths of pages.
pub(crate) struct FaultProfile<'a> {
    pub(crate) faults: &'a Faults,
    /// Pages come shorter than asked for.
    pub(crate) short_pages: bool,
    /// Monotonic nanoseconds.
    pub(crate) now: u64,
}

impl Store {
    /// An empty store, perhaps a broken one.
    pub(crate) fn new(sabotage: Option<Sabotage>, latency: u64, bytes_max: u64) -> Store {
        Store {
            seen: Model::new(u64::MAX),
            durable: Model::new(u64::MAX),
            relaxed: VecDeque::new(),
            queues: BTreeMap::new(),
            sabotage,
            stalled_until: 0,
            down_until: 0,
            full_until: 0,
            latency,
            bytes_max,
        }
    }

    /// Takes an operation of a shard. Two operations never wait under one ticket.
    pub(crate) fn submit(&mut self, shard: usize, ticket: StoreTicket, op: StoreOp, now: u64) {
        let queue = self.queues.entry(op.uaid()).or_default();
        if now < self.full_until && (takes_more(&op) || self.sabotage == Some(Sabotage::FullRefusesSaves) && grows(&op))
        {
            queue.refused.push_back((shard, ticket));
            return;
        }
        queue.submitted.push_back(Submitted { shard, ticket, op, ready_at: now + self.latency });
    }

    /// Returns true if a shard waits for this ticket.
    pub(crate) fn outstanding(&self, shard: usize, ticket: StoreTicket) -> bool {
        self.queues.values().any(|queue| {
            queue.submitted.iter().any(|s| s.shard == shard && s.ticket == ticket)
                || queue.answered.iter().any(|(at, of, _)| *at == shard && *of == ticket)
                || queue.refused.contains(&(shard, ticket))
        })
    }

    /// Number of replies that a shard waits for.
    pub(crate) fn outstanding_count(&self, shard: usize) -> usize {
        let count = |queue: &Queue| {
            queue.submitted.iter().filter(|s| s.shard == shard).count()
                + queue.answered.iter().filter(|(at, _, _)| *at == shard).count()
                + queue.refused.iter().filter(|(at, _)| *at == shard).count()
        };
        self.queues.values().map(count).sum()
    }

    /// UAIDs with an operation that could take effect.
    pub(crate) fn submitted(&self, now: u64) -> impl Iterator<Item = Uaid> + '_ {
        let ready = move |queue: &Queue| queue.submitted.front().is_some_and(|first| first.ready_at <= now);
        self.queues.iter().filter(move |(_, queue)| ready(queue)).map(|(uaid, _)| *uaid)
    }

    /// Earliest end of the next operation.
    pub(crate) fn due(&self) -> impl Iterator<Item = u64> + '_ {
        self.queues.values().filter_map(|queue| queue.submitted.front().map(|first| first.ready_at))
    }

    /// UAIDs with a reply that could be delivered, and the shard it goes to.
    pub(crate) fn answered(&self) -> impl Iterator<Item = (Uaid, usize)> + '_ {
        let first = |queue: &Queue| {
            queue.refused.front().map(|(shard, _)| *shard).or(queue.answered.front().map(|(shard, _, _)| *shard))
        };
        self.queues.iter().filter_map(move |(uaid, queue)| first(queue).map(|shard| (*uaid, shard)))
    }

    /// The oldest operation of this UAID takes effect, or fails. Returns what it did.
    pub(crate) fn work(
        &mut self,
        uaid: Uaid,
        weather: &FaultProfile<'_>,
        rng: &mut Rng,
        marks: &mut CoverageMarks,
    ) -> Worked {
        let mut worked = Worked::default();
        let Some(queue) = self.queues.get_mut(&uaid) else { return worked };
        let Some(Submitted { shard, ticket, mut op, .. }) = queue.submitted.pop_front() else { return worked };
        let faults = weather.faults;
        let result = if weather.now < self.down_until || rng.permille(faults.store_error) {
            marks.hit("store: failed without effect");
            if let StoreOp::Tried { rows } = &op {
                worked.untold.extend(rows.iter().map(|(row, _)| row.stamp));
            }
            Err(StoreError::Transient)
        } else if takes_more(&op) && rng.permille(faults.store_full) {
            marks.hit("store: refused as full");
            Err(StoreError::Full)
        } else {
            if weather.short_pages {
                shorten(&mut op, rng.between(1, 4) as u16);
            }
            let done = op.clone();
            let result = self.carry_out(op);
            match result {
                Ok(StoreReply::Done) => worked.note(&done),
                Ok(StoreReply::Scarce) => {
                    marks.hit("store: room is scarce");
                    worked.note(&done);
                }
                Err(StoreError::Full) if matches!(done, StoreOp::Publish { .. }) => {
                    marks.hit("store: refused beyond a share");
                }
                _ => {}
            }
            if rng.permille(faults.store_reply_lost) {
                marks.hit("store: failed after success");
                Err(StoreError::Transient)
            } else {
                result
            }
        };
        if let Some(queue) = self.queues.get_mut(&uaid) {
            queue.answered.push_back((shard, ticket, result));
        }
        worked
    }

    fn carry_out(&mut self, mut op: StoreOp) -> Result<StoreReply, StoreError> {
        if let (Some(Sabotage::TriedTooMuch), StoreOp::Tried { rows }) = (self.sabotage, &mut op) {
            rows.iter_mut().for_each(|(_, tries)| *tries = tries.and(Tries::DELIVERIES_MAX).and(1).and(1));
        }
        match (self.sabotage, &op) {
            (Some(Sabotage::SettleIgnored), StoreOp::Settle { .. })
            | (Some(Sabotage::PublishIgnored), StoreOp::Publish { .. })
            | (Some(Sabotage::UnregisterIgnored), StoreOp::Unregister { .. })
            | (Some(Sabotage::MinimumIgnored), StoreOp::SetContact { durable: true, .. })
            | (Some(Sabotage::TriedIgnored), StoreOp::Tried { .. }) => return Ok(StoreReply::Done),
            (Some(Sabotage::UserForgotten), StoreOp::LoadUser { .. }) => return Ok(StoreReply::User(None)),
            (Some(Sabotage::TopicStale), StoreOp::Publish { message, .. }) if self.has_topic(message) => {
                return Ok(StoreReply::Done);
            }
            _ => {}
        }
        match &mut op {
            StoreOp::Publish { message, .. } => *message = copy(message),
            StoreOp::Save { messages } => messages.iter_mut().for_each(|message| *message = copy(message)),
            _ => {}
        }
        let mut reply = self.apply_bounded(&op)?;
        if let StoreReply::Page(page) = &mut reply {
            page.messages.iter_mut().for_each(|message| *message = copy(message));
            if self.sabotage == Some(Sabotage::PagesReversed) {
                page.messages.reverse();
            }
        }
        match kind(&op) {
            Kind::Read => {}
            Kind::Relaxed => self.relaxed.push_back(op),
            Kind::Durable => {
                self.sync(usize::MAX);
                let _ = self.durable.apply(&op);
            }
        }
        Ok(reply)
    }

    /// Carries out an operation on what readers see. The bound refuses messages of POSTs only: everything else must
    /// happen.
    fn apply_bounded(&mut self, op: &StoreOp) -> Result<StoreReply, StoreError> {
        let needed = if matches!(op, StoreOp::Save { .. }) { self.seen.bytes() + 1 } else { 0 };
        self.seen.bound(self.bytes_max.max(needed));
        let result = self.seen.apply(op);
        if result.is_err() && self.sabotage == Some(Sabotage::RoomMade) && matches!(op, StoreOp::Publish { .. }) {
            let row =
                self.seen.users_after(None).flat_map(|(_, user)| user.messages()).map(|row| RowKey::of(row)).next();
            if let Some(row) = row {
                let removed = StoreOp::Settle { rows: vec![row], low_water: None, durable: true };
                let _ = (self.seen.apply(&removed), self.durable.apply(&removed));
            }
            self.seen.bound(u64::MAX);
            return self.seen.apply(op);
        }
        result
    }

    /// Returns true if the topic slot of this message is taken.
    fn has_topic(&self, message: &Message) -> bool {
        let mut of_user = self.seen.user(message.uaid).into_iter().flat_map(User::messages);
        message.topic.is_some() && of_user.any(|row| (row.chid, row.topic) == (message.chid, message.topic))
    }

    /// Makes up to `count` relaxed writes durable, oldest first.
    fn sync(&mut self, count: usize) {
        for _ in 0..count.min(self.relaxed.len()) {
            if let Some(op) = self.relaxed.pop_front() {
                let _ = self.durable.apply(&op);
            }
        }
    }

    /// The next reply to this UAID's operations: shard, ticket, result.
    pub(crate) fn collect(&mut self, uaid: Uaid) -> Option<(usize, StoreTicket, Result<StoreReply, StoreError>)> {
        let queue = self.queues.get_mut(&uaid)?;
        let reply = match queue.refused.pop_front() {
            Some((shard, ticket)) => Some((shard, ticket, Err(StoreError::Full))),
            None => queue.answered.pop_front(),
        };
        if queue.submitted.is_empty() && queue.answered.is_empty() && queue.refused.is_empty() {
            self.queues.remove(&uaid);
        }
        reply
    }

    /// The process is gone: of each UAID's open operations some first ones still took effect, and of the
    /// relaxed writes some last ones are lost. Returns what was done.
    pub(crate) fn kill(&mut self, rng: &mut Rng, marks: &mut CoverageMarks) -> Worked {
        let mut worked = Worked::default();
        for (_, queue) in std::mem::take(&mut self.queues) {
            let landed = rng.index(queue.submitted.len() + 1);
            for submitted in queue.submitted.into_iter().take(landed) {
                let done = submitted.op.clone();
                if matches!(self.carry_out(submitted.op), Ok(StoreReply::Done | StoreReply::Scarce)) {
                    worked.note(&done);
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
        worked
    }

    /// Returns true if no operation is under way.
    pub(crate) fn idle(&self) -> bool {
        self.queues.is_empty()
    }

    /// The process ended in order: everything that was written is durable.
    pub(crate) fn close(&mut self) {
        assert!(self.queues.is_empty(), "an orderly end leaves no storage work");
        self.sync(usize::MAX);
    }

    /// Saves live ledger records, as the start does before any listener opens.
    pub(crate) fn replay(&mut self, op: StoreOp) {
        let _ = self.carry_out(op);
    }

    /// Another node writes a message, at once and durably; false when there is no such channel.
    pub(crate) fn foreign(&mut self, op: StoreOp) -> bool {
        matches!(self.carry_out(op), Ok(StoreReply::Done | StoreReply::Scarce))
    }

    /// Adds a user with this channel, last seen then.
    pub(crate) fn know(&mut self, uaid: Uaid, chid: Chid, seen: UnixSeconds) {
        let (key, contact, presence) = (None, None, None);
        let _ =
            self.carry_out(StoreOp::Register { uaid, chid, key, at: Clock(1), seen, contact, presence, maker: None });
    }

    /// State that a kill would leave.
    pub(crate) fn durable(&self) -> &Model {
        &self.durable
    }

    /// State that a reader sees.
    pub(crate) fn seen(&self) -> &Model {
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
        StoreOp::LoadUser { .. }
        | StoreOp::Locate { .. }
        | StoreOp::Topics { .. }
        | StoreOp::Messages { .. }
        | StoreOp::Read { .. } => Kind::Read,
        StoreOp::Touch { .. }
        | StoreOp::DropIdle { .. }
        | StoreOp::SetContact { durable: false, .. }
        | StoreOp::Tried { .. }
        | StoreOp::MarkRefused { .. }
        | StoreOp::ClearRefused { .. }
        | StoreOp::Settle { durable: false, .. } => Kind::Relaxed,
        StoreOp::Register { .. }
        | StoreOp::Subscribe { .. }
        | StoreOp::Unregister { .. }
        | StoreOp::SetPresence { .. }
        | StoreOp::ClearPresence { .. }
        | StoreOp::DropUser { .. }
        | StoreOp::SetBridge { .. }
        | StoreOp::DropBridged { .. }
        | StoreOp::Publish { .. }
        | StoreOp::Save { .. }
        | StoreOp::SetContact { durable: true, .. }
        | StoreOp::Settle { durable: true, .. } => Kind::Durable,
    }
}

/// Limits a page to this many rows.
fn shorten(op: &mut StoreOp, rows: u16) {
    if let StoreOp::Topics { limit, .. } | StoreOp::Messages { limit, .. } = op {
        *limit = rows.min(*limit);
    }
}

/// Storage keeps bytes of its own.
fn copy(message: &Arc<Message>) -> Arc<Message> {
    Arc::new(Message::clone(message))
}

/// Operations that a full store refuses; everything else must happen.
fn takes_more(op: &StoreOp) -> bool {
    match op {
        StoreOp::Publish { message, .. } => message.ttl > 0,
        StoreOp::Register { .. } | StoreOp::Subscribe { .. } => true,
        _ => false,
    }
}

fn grows(op: &StoreOp) -> bool {
    matches!(op, StoreOp::Publish { .. } | StoreOp::Save { .. } | StoreOp::Register { .. } | StoreOp::Subscribe { .. })
}
