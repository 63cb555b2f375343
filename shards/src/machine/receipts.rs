//! Delivery receipts (RFC 8030 sections 5.1 and 6.3): what became of a message, told to whoever asks for it.
//!
//! The owner keeps a record of every message whose sender asked for a receipt, from its acceptance or, after a restart,
//! from its first sending. Where the message ends the outcome is noted, and whoever waits for it is told. A record that
//! the bound or a restart took is made again when the message is found; else the answer is that it is not known: never
//! that it expired, since it may have been delivered.

use crate::ids::{Chid, ConnId, Stamp, Uaid};
use crate::limits;
use crate::message::{Message, Topic};
use crate::time::{Instant, Span, UnixSeconds};

use super::active::Active;
use super::mail::{Reply, Request};
use super::remote::{Asker, Outgoing};
use super::session::NONE;
use super::store::{RowKey, StoreError, StoreOp, StoreReply};
use super::tickets::Work;
use super::users::Resident;
use super::{ShardMachine, Turn};

/// A receipt, opened, and how long its holder would like to wait.
#[derive(Clone, Copy, Debug)]
pub struct ReceiptQuery {
    /// Whose message.
    pub uaid: Uaid,
    /// On which channel.
    pub chid: Chid,
    /// Exactly which one.
    pub stamp: Stamp,
    /// Its topic slot, if it had one.
    pub topic: Option<Topic>,
    /// When it expires.
    pub expires: UnixSeconds,
    /// How long to wait for an outcome; at most [`limits::RECEIPT_WAIT_SECONDS_MAX`].
    pub wait: Span,
}

/// How a message ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The user agent acked it with 100 or no code.
    Delivered,
    /// The user agent acked it with 101: it could not decrypt it.
    Undecryptable,
    /// The user agent acked it with 102: it has it and could not hand it to its application.
    Undelivered,
    /// Its TTL was over first; with TTL 0, nobody was there to take it.
    Expired,
    /// It was delivered `delivery.attempts_max` times, and no ack came.
    Unacked,
    /// A newer message of its topic took its place.
    Replaced,
    /// Its sender took it back.
    Cancelled,
    /// Its channel was unregistered, or its user was reset.
    Unregistered,
}

impl Outcome {
    /// Of the code of an ack.
    pub fn of_ack(code: u16) -> Outcome {
        match code {
            101 => Outcome::Undecryptable,
            102 => Outcome::Undelivered,
            _ => Outcome::Delivered,
        }
    }
}

/// The answer to a [`ReceiptQuery`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReceiptAnswer {
    /// It ended.
    Ended(Outcome),
    /// It is still under way.
    Pending,
    /// There is no such message any more, and what became of it was forgotten, or its storage did not say.
    Unknown,
    /// 503: too many wait, or storage could not say.
    Unavailable,
}

impl ReceiptQuery {
    fn row(&self) -> RowKey {
        RowKey { uaid: self.uaid, chid: self.chid, stamp: self.stamp, topic: self.topic }
    }
}

impl ShardMachine {
    // --- what happens to messages ----------------------------------------------------------------------

    /// A message was accepted, or is sent for the first time since a restart.
    pub(super) fn expect_receipt(&mut self, message: &Message) {
        if message.receipt {
            self.expect_receipt_of(&RowKey::of(message), expires(message));
        }
    }

    pub(super) fn expect_receipt_of(&mut self, row: &RowKey, expires: UnixSeconds) {
        if self.receipts.begin(row, expires) {
            self.stats.receipts_forgotten += 1;
        }
    }

    /// A message ended. Says nothing of one that nobody asked about.
    pub(super) fn end_receipt(&mut self, row: &RowKey, outcome: Outcome) {
        if !self.receipts.is_empty() && self.receipts.end(row, outcome) {
            self.count_outcome(outcome, 1);
        }
    }

    /// A newer message took a slot.
    pub(super) fn end_receipts_of_slot(&mut self, uaid: Uaid, slot: (Chid, Topic), newest: Stamp) {
        if !self.receipts.is_empty() {
            let count = self.receipts.end_slot(uaid, slot, newest);
            self.count_outcome(Outcome::Replaced, count);
        }
    }

    /// A channel is no more.
    pub(super) fn end_receipts_of_channel(&mut self, uaid: Uaid, chid: Chid) {
        if !self.receipts.is_empty() {
            let count = self.receipts.end_channel(uaid, chid);
            self.count_outcome(Outcome::Unregistered, count);
        }
    }

    /// A user is no more, and every channel with it.
    pub(super) fn end_receipts_of_user(&mut self, uaid: Uaid) {
        if !self.receipts.is_empty() {
            let count = self.receipts.end_user(uaid);
            self.count_outcome(Outcome::Unregistered, count);
        }
    }

    /// Storage has a message no more, and this shard has not ended it. It expired, or what removed it was answered with
    /// an error: an unregister, or a newer message of its topic. Where neither is certain its end is not known.
    pub(super) fn receipt_of_gone(&mut self, now: UnixSeconds, row: &RowKey, registered: bool) {
        match self.receipts.find(row) {
            Some((None, expires)) if expires <= now => self.end_receipt(row, Outcome::Expired),
            Some((None, _)) if !registered => self.end_receipt(row, Outcome::Unregistered),
            Some((None, _)) => self.receipts.forget(row),
            Some((Some(_), _)) | None => {}
        }
    }

    fn count_outcome(&mut self, outcome: Outcome, count: u64) {
        match outcome {
            Outcome::Delivered => self.stats.receipts_delivered += count,
            _ => self.stats.receipts_not_delivered += count,
        }
    }

    // --- who asks --------------------------------------------------------------------------------------

    /// Somebody on this shard asks: to the owner. Those that wait at another shard hold reply credit meanwhile, so they
    /// get no more than half of it.
    pub(super) fn ask_receipt(&mut self, turn: &mut Turn<'_>, conn: ConnId, query: Box<ReceiptQuery>) {
        let owner = self.config.placement.owner(query.uaid);
        if owner == self.config.shard {
            self.receipt(turn, Asker::Local(conn), *query);
            return;
        }
        let credit = limits::reply_credit(self.config.placement.shard_count());
        if self.receipts.ask(owner, credit) {
            let outgoing = Outgoing { peer: owner, conn, claim: None };
            if self.send_request(turn, outgoing, Request::Receipt(query)) {
                return;
            }
            self.receipts.came_back(owner);
        }
        self.stats.receipts_refused += 1;
        self.answer(turn, Asker::Local(conn), Reply::Receipt(ReceiptAnswer::Unavailable));
    }

    /// The owner's side.
    pub(super) fn receipt(&mut self, turn: &mut Turn<'_>, asker: Asker, query: ReceiptQuery) {
        self.stats.receipt_queries += 1;
        let (row, now) = (query.row(), turn.now.unix());
        let known = self.receipts.find(&row);
        match known {
            Some((Some(outcome), _)) => self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Ended(outcome))),
            _ if self.in_memory(&row) => self.wait_for_receipt(turn, asker, &query),
            Some((None, expires)) if expires <= now && !self.is_reading(row.uaid) => {
                self.end_receipt(&row, Outcome::Expired);
                self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Ended(Outcome::Expired)));
            }
            Some((None, _)) => self.wait_for_receipt(turn, asker, &query),
            // Storage returns nothing that is expired, so it cannot say whether it was delivered.
            None if query.expires <= now => self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Unknown)),
            None if !self.tickets.room() => self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Unavailable)),
            None => self.submit(turn, Work::Receipt { asker, query: Box::new(query) }, StoreOp::Read { row, now }),
        }
    }

    /// Storage was asked for a message of which there is no record.
    pub(super) fn receipt_read(
        &mut self,
        turn: &mut Turn<'_>,
        asker: Asker,
        query: &ReceiptQuery,
        result: Result<StoreReply, StoreError>,
    ) {
        let row = query.row();
        let is_there = match &result {
            Ok(StoreReply::Page(page)) => !page.messages.is_empty(),
            Ok(_) | Err(_) => {
                self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Unavailable));
                return;
            }
        };
        match self.receipts.find(&row) {
            Some((Some(outcome), _)) => self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Ended(outcome))),
            Some((None, _)) => self.wait_for_receipt(turn, asker, query),
            None if is_there && !self.is_settling(row.uaid, row.stamp) => self.wait_for_receipt(turn, asker, query),
            None if self.in_memory(&row) => self.wait_for_receipt(turn, asker, query),
            None => self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Unknown)),
        }
    }

    fn wait_for_receipt(&mut self, turn: &mut Turn<'_>, asker: Asker, query: &ReceiptQuery) {
        let (row, now) = (query.row(), turn.now);
        self.expect_receipt_of(&row, query.expires);
        let expires = self.receipts.find(&row).map_or(query.expires, |(_, expires)| expires);
        let longest = Span::from_secs(u64::from(limits::RECEIPT_WAIT_SECONDS_MAX));
        let wait = match expires.0.saturating_sub(now.unix().0) {
            // It may be acked all the same: it is in the window.
            0 => query.wait.min(longest),
            left => query.wait.min(longest).min(Span::from_secs(left.min(u64::from(limits::RECEIPT_WAIT_SECONDS_MAX)))),
        };
        if wait == Span(0) || self.draining() {
            self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Pending));
        } else if !self.receipts.wait(&row, asker, now.mono.after(wait)) {
            self.stats.receipts_refused += 1;
            self.answer(turn, asker, Reply::Receipt(ReceiptAnswer::Unavailable));
        }
    }

    /// Whether the message is in the window of a session or on its way to storage: its end is still to come.
    fn in_memory(&self, row: &RowKey) -> bool {
        let in_session = self.active_of_user(row.uaid).is_some_and(|active| {
            active.position(row.stamp).is_some() || active.parked.iter().any(|parked| parked.row.stamp == row.stamp)
        });
        in_session || self.is_departing(row.uaid, row.stamp)
    }

    /// Whether a page is on its way that may hold what expired since it was asked for.
    fn is_reading(&self, uaid: Uaid) -> bool {
        self.active_of_user(uaid).is_some_and(|active| active.drain.reading)
    }

    fn active_of_user(&self, uaid: Uaid) -> Option<&Active> {
        let Some(Resident::Session(index)) = self.resident(uaid) else { return None };
        let active = self.sessions.at(index).map_or(NONE, |(_, session)| session.active);
        self.active_of(active)
    }

    /// Those who have waited long enough are told that it is pending, unless it has expired meanwhile.
    pub(super) fn receipt_timeouts(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some(row) = self.receipts.next_overdue(turn.now.mono)
        {
            let over = self.receipts.find(&row).is_some_and(|(_, expires)| expires <= turn.now.unix());
            if over && !self.in_memory(&row) && !self.is_reading(row.uaid) {
                self.end_receipt(&row, Outcome::Expired);
            }
            self.receipts.give_up(&row, turn.now.mono);
        }
    }

    /// Answers those whose wait is over, as far as this step has room; the rest in the next ones.
    pub(super) fn say_receipts(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some((asker, answer)) = self.receipts.next_ready()
        {
            self.answer(turn, asker, Reply::Receipt(answer));
        }
    }

    pub(super) fn receipts_due(&self) -> Option<Instant> {
        if self.receipts.has_ready() { Some(Instant(0)) } else { self.receipts.next_due() }
    }
}

/// When nothing but an ack of what was sent can come any more. A message of TTL 0 is sent once: its ack has a minute.
pub(super) fn expires(message: &Message) -> UnixSeconds {
    let expires = message.expires();
    if message.ttl == 0 { UnixSeconds(expires.0 + ACK_OF_TTL_ZERO_SECONDS) } else { expires }
}

const ACK_OF_TTL_ZERO_SECONDS: u64 = 60;
