//! Delivery receipts (RFC 8030 sections 5.1 and 6.3) with sessions, storage and other shards.

use crate::ids::{Chid, ConnId, ShardId, Stamp, Uaid};
use crate::limits;
use crate::message::{Message, Topic};
use crate::time::UnixSeconds;

use super::components::active_session::ActiveSession;
use super::components::receipts::{Look, Whereabouts};
use super::components::requests::{OutgoingRequest, ReplyTo, Waiter};
use super::composer::{ShardMachine, StepContext};
use super::mail::Request;
use super::pending_op::PendingOp;
use super::receipt::{Outcome, ReceiptAnswer, ReceiptQuery, expires};
use super::row::RowKey;
use super::shard_replies::answer_conn;
use super::store::{Page, StoreError, StoreOp};

impl ShardMachine {
    // --- what happens to messages ----------------------------------------------------------------------

    /// Expects the outcome of a message that was accepted, or is sent for the first time since a restart.
    pub(super) fn expect_receipt(&mut self, message: &Message) {
        if message.receipt {
            self.expect_receipt_of(&RowKey::of(message), expires(message));
        }
    }

    pub(super) fn expect_receipt_of(&mut self, row: &RowKey, expires: UnixSeconds) {
        self.receipts.accepted(row, expires, &mut self.stats);
    }

    /// Records the outcome of a message.
    pub(super) fn end_receipt(&mut self, row: &RowKey, outcome: Outcome) {
        self.receipts.ended(row, outcome, &mut self.stats);
    }

    /// Records the outcome `Replaced` of the older messages of a slot that a newer message took.
    pub(super) fn end_receipts_of_slot(&mut self, uaid: Uaid, slot: (Chid, Topic), newest: Stamp) {
        self.receipts.replaced(uaid, slot, newest, &mut self.stats);
    }

    /// Records the outcome of the messages of a removed channel.
    pub(super) fn end_receipts_of_channel(&mut self, uaid: Uaid, chid: Chid) {
        self.receipts.unregistered(uaid, chid, &mut self.stats);
    }

    /// Records the outcome of the messages of a removed user, on every channel.
    pub(super) fn end_receipts_of_user(&mut self, uaid: Uaid) {
        self.receipts.user_dropped(uaid, &mut self.stats);
    }

    /// Records the outcome of a message that storage no longer has and that this shard has not ended, or forgets the
    /// message if its outcome is not certain.
    pub(super) fn receipt_of_gone(&mut self, now: UnixSeconds, row: &RowKey, registered: bool) {
        self.receipts.gone(now, row, registered, &mut self.stats);
    }

    // --- who asks --------------------------------------------------------------------------------------

    /// Sends a query to its owner, another shard. Queries that wait there hold reply credit meanwhile, so they get at
    /// most half of it.
    pub(super) fn ask_receipt(
        &mut self,
        cx: &mut StepContext<'_>,
        (owner, conn): (ShardId, ConnId),
        query: Box<ReceiptQuery>,
    ) {
        let credit = limits::reply_credit(self.config.placement.shard_count());
        if self.receipts.ask(owner, credit) {
            let outgoing = OutgoingRequest { peer: owner, waiter: Waiter::Conn(conn) };
            if self.send_request(cx, outgoing, Request::Receipt(query)) {
                return;
            }
            self.receipts.came_back(owner);
        }
        self.stats.receipts_refused += 1;
        answer_conn(cx, conn, ReceiptAnswer::Unavailable);
    }

    /// Handles a query as the owner.
    pub(super) fn receipt(&mut self, cx: &mut StepContext<'_>, reply_to: ReplyTo<ReceiptAnswer>, query: ReceiptQuery) {
        let (row, now) = (query.row(), cx.now);
        let known = (self.whereabouts(&row), !self.draining());
        match self.receipts.query(now, reply_to, &query, known, &mut self.stats) {
            Some(Look::Answer(answer)) => self.answer(cx, reply_to, answer),
            Some(Look::Waits) => {}
            None if self.tickets.room() => {
                let op = StoreOp::Read { row, now: now.unix() };
                self.submit(cx, PendingOp::Receipt { reply_to, query: Box::new(query) }, op);
            }
            None => self.answer(cx, reply_to, ReceiptAnswer::Unavailable),
        }
    }

    /// Answers a query after storage was read for a message without a record.
    pub(super) fn receipt_read(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<ReceiptAnswer>,
        query: &ReceiptQuery,
        result: Result<Box<Page>, StoreError>,
    ) {
        let look = match &result {
            Ok(page) => {
                let known = (!page.messages.is_empty(), self.whereabouts(&query.row()), !self.draining());
                self.receipts.read(cx.now, reply_to, query, known, &mut self.stats)
            }
            Err(_) => Look::Answer(ReceiptAnswer::Unavailable),
        };
        match look {
            Look::Answer(answer) => self.answer(cx, reply_to, answer),
            Look::Waits => {}
        }
    }

    fn whereabouts(&self, row: &RowKey) -> Whereabouts {
        let active = self.active_of_user(row.uaid);
        let in_session = active.is_some_and(|active| active.window.holds(row.stamp));
        Whereabouts {
            in_memory: in_session || self.pending_saves.holds(row.uaid, row.stamp),
            reading: active.is_some_and(|active| active.drain.is_reading()),
            settling: self.settling.holds(row.uaid, row.stamp),
        }
    }

    fn active_of_user(&self, uaid: Uaid) -> Option<&ActiveSession> {
        self.active_of(self.sessions.get(self.session_of(uaid)?)?.active)
    }

    /// Answers the queries whose wait is over with pending, unless the message has expired meanwhile.
    pub(super) fn receipt_timeouts(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some(row) = self.receipts.overdue(cx.now.mono)
        {
            let whereabouts = self.whereabouts(&row);
            self.receipts.waited(cx.now, &row, whereabouts, &mut self.stats);
        }
    }

    /// Answers the queries whose wait is over, as far as this step has room; the rest in the next ones.
    pub(super) fn say_receipts(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some((reply_to, answer)) = self.receipts.next_ready()
        {
            self.answer(cx, reply_to, answer);
        }
    }
}
