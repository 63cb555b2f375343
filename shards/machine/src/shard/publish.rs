//! A POST at the owner: the one place that decides direct or stored (ARCHITECTURE.md 3).
//!
//! **201 means**: the notification was acked, or is in storage, or is in exactly one ledger, or it ended by a rule that
//! is counted. So a direct is in the ledger log before its answer is queued, and a stored one is answered when its
//! commit returns.

use std::sync::Arc;

use crate::ids::{Chid, Stamp, Uaid};
use crate::limits;
use crate::message::{Message, Rank, Topic, Urgency};
use crate::time::{Instant, TimeSpan};

use super::cluster::pending::PeerNotify;
use super::command::{Disposition, Publish, Published, Refusal, SessionEvent};
use super::components::ledger_room::ledger_bytes;
use super::components::requests::ReplyTo;
use super::components::user_index::Resident;
use super::components::window::CopyLocation;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::pending_publish::{AfterCommit, PendingPublish, PushOutcome};
use super::receipt::{self, Outcome};
use super::row::RowKey;
use super::slab::SlabKey;
use super::store::{StoreError, StoreOp, Written};

impl ShardMachine {
    pub(super) fn publish(&mut self, cx: &mut StepContext<'_>, reply_to: ReplyTo<Published>, publish: Publish) {
        self.stats.publishes += 1;
        let (uaid, chid) = (publish.uaid, publish.chid);
        let resident = self.resident(uaid);
        let session = match resident {
            Some(Resident::Session(index)) => Some(self.session_ref(index)),
            Some(Resident::Hello(_)) | None => None,
        };
        let registered = session.is_some_and(|at| self.registered_channel(at, chid));
        // A session that is unsure of its channels decides for those only that it knows.
        let decides = session.is_some_and(|at| registered || !self.sessions.live(at).stored.is_unsure());
        let gone = if decides { !registered } else { self.known_dead(cx.now.mono, uaid, chid) };
        // Another node may have registered it since.
        if gone && !self.in_cluster() {
            self.stats.publishes_unregistered += 1;
            self.answer(cx, reply_to, Published::NoSubscription);
            return;
        }
        let name = || self.config.placement.subscription(uaid, chid);
        if let Err(retry_after) = self.rates.take_token(cx.now.mono, name, &mut self.stats) {
            self.answer(cx, reply_to, Published::TooMany { retry_after });
            return;
        }
        if self.refuses_stamp() {
            self.stats.publishes_unavailable += 1;
            self.answer(cx, reply_to, Published::Unavailable);
            return;
        }
        if !registered && self.in_cluster() {
            self.route(cx, reply_to, publish);
            return;
        }
        let message = match publish.message {
            Ok(message) => message,
            Err(refusal) if registered => {
                self.answer(cx, reply_to, Published::Refused(refusal));
                return;
            }
            Err(refusal) => {
                self.refuse_publish(cx, reply_to, (uaid, chid), refusal);
                return;
            }
        };
        let (message, stamped) = (self.stamp(cx, message), cx.now.mono);
        if let Some(at) = session.filter(|_| registered) {
            self.offer(cx, reply_to, at, (message, stamped));
            return;
        }
        if let Some(Resident::Hello(index)) = resident {
            self.nudge_pending_hello(index);
        }
        self.store_publish(cx, reply_to, (message, stamped), AfterCommit::Here { send: None });
    }

    /// Sends a message for a session of this shard, or stores it if it cannot be sent now. `stamped` is the time of its
    /// stamp.
    pub(super) fn offer(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Published>,
        at: SlabKey,
        (message, stamped): (Arc<Message>, Instant),
    ) {
        self.read_before_directs(cx, at);
        if !self.mode_fits(at, &message) {
            self.stats.publishes_other_mode += 1;
            self.answer(cx, reply_to, Published::OtherMode);
        } else if self.is_outranked(at, &message) {
            self.stats.updates_screened += 1;
            let accepted = Published::Accepted { stamp: message.stamp, disposition: Disposition::Stored };
            self.answer(cx, reply_to, accepted);
        } else if self.is_held(cx.now.mono, at, &message) && message.ttl > 0 {
            self.stats.messages_held += 1;
            self.hold(at);
            self.store_publish(cx, reply_to, (message, stamped), AfterCommit::Held);
        } else if message.ttl == 0 {
            let disposition = self.send_once(cx, at, message.clone());
            let accepted = Published::Accepted { stamp: message.stamp, disposition };
            self.answer(cx, reply_to, accepted);
        } else if self.config.durable || self.share_counts(at) || (message.topic.is_some() && self.may_hold_topic(at)) {
            let send = self.direct_fits(at, &message).then(|| message.clone());
            if send.is_none() {
                self.want_check_later(at);
            }
            self.store_publish(cx, reply_to, (message, stamped), AfterCommit::Here { send });
        } else if self.direct_fits(at, &message) && !self.write_in_flight(message.uaid) {
            let accepted = Published::Accepted { stamp: message.stamp, disposition: Disposition::Direct };
            self.send_direct(cx, at, message);
            self.answer(cx, reply_to, accepted);
        } else {
            self.want_check_later(at);
            self.store_publish(cx, reply_to, (message, stamped), AfterCommit::Here { send: None });
        }
    }

    /// Refuses a POST that broke a rule. 410 comes before that rule (ARCHITECTURE.md 8.5), so storage is asked for the
    /// channel.
    fn refuse_publish(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Published>,
        (uaid, chid): (Uaid, Chid),
        refusal: Refusal,
    ) {
        if !self.tickets.room() {
            self.answer(cx, reply_to, Published::Unavailable);
            return;
        }
        // With TTL 0 storage only checks if the subscription exists.
        let question = Arc::new(Message {
            uaid,
            chid,
            stamp: Stamp::default(),
            ttl: 0,
            accepted: cx.now.unix(),
            urgency: Urgency::Normal,
            topic: None,
            receipt: false,
            tries: Default::default(),
            payload: Box::default(),
        });
        let work = PendingPublish {
            reply_to,
            row: RowKey::of(&question),
            message: Arc::clone(&question),
            epoch: self.dead_epoch(uaid, chid),
            receipt: None,
            charged: 0,
            slot: None,
            since: cx.now.mono,
            urgency: question.urgency,
            refusal: Some(refusal),
            check_only: true,
            storing: AfterCommit::Here { send: None },
        };
        self.submit(cx, PendingOp::Publish(work), StoreOp::Publish { message: question, checked: false });
    }

    /// Gives an accepted message its identity.
    pub(super) fn stamp(&mut self, cx: &mut StepContext<'_>, mut message: Arc<Message>) -> Arc<Message> {
        let stamp = Stamp { clock: self.tick(cx), origin: self.config.origin };
        // The edge made the only reference; a clone here would be a copy of the body.
        let stamped = Arc::make_mut(&mut message);
        stamped.stamp = stamp;
        stamped.accepted = cx.now.unix();
        message
    }

    /// Returns true if the ledger has room for the message and it would not overtake a stored one.
    pub(super) fn direct_fits(&self, at: SlabKey, message: &Message) -> bool {
        let session = self.sessions.live(at);
        // The user may have come back in the other mode while this was at storage.
        if !self.mode_fits(at, message) || self.is_outranked(at, message) {
            return false;
        }
        // Messages that the pace holds back wait in the ledger. If the socket takes nothing, messages go to storage.
        if self.draining() || session.link.is_blocked() {
            return false;
        }
        // A direct may have to be saved, and comes after what an earlier session of its user left.
        if self.storage_room.is_full() || self.pending_saves.contains(session.uaid) {
            return false;
        }
        let (bytes, active) = (ledger_bytes(message), self.active_of(session.active));
        if !self.ledger_room.fits(bytes, active.map_or(0, |active| active.window.waiting_bytes())) {
            return false;
        }
        match active {
            None => true,
            Some(active) => {
                active.window.len() < usize::from(self.config.window)
                    && active.drain.clear()
                    // Behind these rows it would keep them in memory.
                    && (active.window.ahead_bytes() == 0 || !self.rows_are_full(at))
                    && active.window.waiting_bytes() + bytes <= limits::SESSION_LEDGER_BYTES_MAX
            }
        }
    }

    /// Returns true if storage judges a message before the session gets it: room is scarce there, and what the session
    /// leaves unacked will have to be saved (`crate::share`).
    fn share_counts(&self, at: SlabKey) -> bool {
        let unacked =
            || self.active_of(self.sessions.live(at).active).map_or(0, |active| active.window.unacked_count());
        self.storage_room.is_scarce() && unacked() >= limits::UNACKED_IF_SCARCE
    }

    /// As `direct_fits`, for a message that storage has already: the window keeps its body until the socket has it.
    pub(super) fn row_fits(&self, at: SlabKey, message: &Message) -> bool {
        self.direct_fits(at, message) && !self.rows_are_full(at)
    }

    pub(super) fn write_in_flight(&self, uaid: Uaid) -> bool {
        self.writes.in_flight(uaid)
    }

    /// Puts a direct in the ledger and on the wire.
    pub(super) fn send_direct(&mut self, cx: &mut StepContext<'_>, at: SlabKey, message: Arc<Message>) {
        let slot = self.ledger_room.take(ledger_bytes(&message));
        cx.effects.push_back(Effect::LedgerAppend(slot, message.clone()));
        // The older messages end only now: a kill between the two effects leaves both, and replay keeps the newer one.
        if let Some(topic) = message.topic {
            self.end_receipts_of_slot(message.uaid, (message.chid, topic), message.stamp);
            self.end_older(cx, message.uaid, (message.chid, topic, message.rank()));
        }
        self.stats.directs += 1;
        self.push_entry(cx, at, message, CopyLocation::Direct(slot));
    }

    /// Sends a message with TTL 0 now or never (RFC 8030 section 5.2).
    pub(super) fn send_once(&mut self, cx: &mut StepContext<'_>, at: SlabKey, message: Arc<Message>) -> Disposition {
        let session = self.sessions.live(at);
        let (conn, blocked) = (session.conn, session.link.is_blocked());
        let tells_urgency = session.link.named_minimum().is_some();
        self.expect_receipt(&message);
        if blocked || self.draining() || self.is_held(cx.now.mono, at, &message) {
            self.stats.ttl_zero_dropped += 1;
            self.end_receipt(&RowKey::of(&message), Outcome::Expired);
            return Disposition::Dropped;
        }
        self.stats.ttl_zero_sent += 1;
        self.stats.notifications_sent += 1;
        let emission = self.activate(at).window.emission();
        let event = SessionEvent::Notification { message, emission, tells_urgency };
        cx.effects.push_back(Effect::Emit(conn, event.into()));
        self.deactivate_if_idle(at);
        Disposition::Direct
    }

    /// Ends every older message of a topic slot on this shard (RFC 8030 section 5.4): in the window, deferred, or left
    /// by a session that ended.
    fn end_older(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, (chid, topic, newest): (Chid, Topic, Rank)) {
        let older = |row: &RowKey, rank: Rank| row.chid == chid && row.topic == Some(topic) && rank < newest;
        self.end_older_departing(cx, uaid, |message| older(&RowKey::of(message), message.rank()));
        // The user is not here: storage has replaced its row, or the user's next session is sent only the newer
        // message.
        let Some(at) = self.session_of(uaid) else { return };
        // An idle session has nothing older.
        let Some(active) = self.active_mut(at) else { return };
        let (replaced, deferred) = active.window.older((chid, topic, newest));
        self.stats.replaced += (replaced.len() + deferred.len()) as u64;
        for stamp in replaced {
            self.take_entry(cx, at, stamp);
        }
        for row in deferred {
            self.settle(row);
        }
    }

    /// Stores a message that was stamped at the given time; the answer comes with the commit.
    pub(super) fn store_publish(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Published>,
        (message, stamped): (Arc<Message>, Instant),
        storing: AfterCommit,
    ) {
        if !self.tickets.room() {
            self.stats.publishes_unavailable += 1;
            self.answer(cx, reply_to, Published::Unavailable);
            return;
        }
        let charged = match self.rates.charge_budget(cx.now, &message, &mut self.stats) {
            Ok(charged) => charged,
            Err(retry_after) => {
                self.answer(cx, reply_to, Published::OverBudget { retry_after });
                return;
            }
        };
        let work = PendingPublish {
            reply_to,
            row: RowKey::of(&message),
            message: Arc::clone(&message),
            epoch: self.dead_epoch(message.uaid, message.chid),
            receipt: message.receipt.then(|| receipt::expires(&message)),
            charged,
            since: stamped,
            urgency: message.urgency,
            slot: message.topic.filter(|_| message.ttl > 0).map(|topic| (message.chid, topic, message.rank())),
            refusal: None,
            check_only: message.ttl == 0,
            storing,
        };
        if work.orders() {
            self.writes.begin(message.uaid);
        }
        let op = match &work.storing {
            // The node that got the push may save the message from its ledger: two rows would be settled one by one.
            AfterCommit::Routed { push: PushOutcome::Unsure(_), .. } => StoreOp::Save { messages: vec![message] },
            AfterCommit::Routed { .. } => StoreOp::Publish { message, checked: true },
            AfterCommit::Here { .. } | AfterCommit::Held => StoreOp::Publish { message, checked: false },
        };
        self.submit(cx, PendingOp::Publish(work), op);
    }

    /// Handles the return of a `store_publish`.
    pub(super) fn publish_stored(
        &mut self,
        cx: &mut StepContext<'_>,
        work: PendingPublish,
        result: Result<Written, StoreError>,
    ) {
        let RowKey { uaid, stamp, .. } = work.row;
        if work.orders() {
            self.writes.end(uaid);
        }
        let stored = result == Ok(Written::Done);
        if stored && !self.in_cluster() && self.dead_epoch(uaid, work.row.chid) == work.epoch {
            // Storage knows the channel, and a session may be unsure of it.
            self.enter_channel(cx, uaid, work.row.chid);
        }
        if let Some(slot) = work.slot
            && stored
        {
            self.end_receipts_of_slot(uaid, (slot.0, slot.1), stamp);
            self.end_older(cx, uaid, slot);
            self.wake_absent(cx, uaid, slot.1);
        }
        if !stored {
            self.rates.refund_budget(cx.now, uaid, work.charged);
        }
        if !work.check_only && (stored || result.is_err()) {
            // Also after an error: the write may have taken effect, and no message may overtake it.
            self.after_store(cx, &work, stored);
        } else if let Some(Resident::Session(index)) = self.resident(uaid) {
            // A check may have waited for the end of this write.
            let at = self.session_ref(index);
            self.continue_drain(cx, at);
        }
        let published = self.stored_answer(cx, &work, result);
        if matches!(published, Published::Accepted { disposition: Disposition::Stored, .. }) && self.must_tell(&work) {
            self.notify_holder(cx, PeerNotify::of_publish(work, published));
            return;
        }
        self.answer(cx, work.reply_to, published);
        if let Some(notify) = PeerNotify::of_failure(work).filter(|_| published == Published::Unavailable) {
            self.notify_holder(cx, notify);
        }
    }

    /// Returns the answer to a POST after its commit.
    fn stored_answer(
        &mut self,
        cx: &StepContext<'_>,
        work: &PendingPublish,
        result: Result<Written, StoreError>,
    ) -> Published {
        let RowKey { uaid, chid, stamp, topic: _ } = work.row;
        match (result, work.refusal) {
            (Ok(Written::NoSubscription), _) => {
                self.endpoint_died(cx.now.mono, uaid, chid, work.epoch);
                self.stats.publishes_unregistered += 1;
                Published::NoSubscription
            }
            (Ok(Written::Done | Written::OtherMode), Some(refusal)) => Published::Refused(refusal),
            (Ok(Written::OtherMode), None) => {
                self.stats.publishes_other_mode += 1;
                Published::OtherMode
            }
            (Ok(Written::Done), None) if cx.now.mono.since(work.since) > WRITE_TIMEOUT && !work.check_only => {
                self.stats.publishes_unavailable += 1;
                Published::Unavailable
            }
            (Ok(Written::Done), None) => {
                let disposition = if work.check_only { Disposition::Dropped } else { Disposition::Stored };
                match disposition {
                    Disposition::Dropped => self.stats.ttl_zero_dropped += 1,
                    _ => self.stats.stored += 1,
                }
                if let Some(expires) = work.receipt {
                    self.expect_receipt_of(&work.row, expires);
                }
                if work.receipt.is_some() && disposition == Disposition::Dropped {
                    self.end_receipt(&work.row, Outcome::Expired);
                }
                Published::Accepted { stamp, disposition }
            }
            (Err(_), _) => {
                self.stats.publishes_unavailable += 1;
                Published::Unavailable
            }
        }
    }

    /// Notifies the session if the user is here by now: sends from memory (durable mode), or checks storage.
    fn after_store(&mut self, cx: &mut StepContext<'_>, work: &PendingPublish, stored: bool) {
        match self.resident(work.row.uaid) {
            Some(Resident::Session(index)) => {
                let at = self.session_ref(index);
                match work.storing.send() {
                    _ if self.is_held_now(cx.now.mono, at, work) => {
                        self.hold(at);
                        // Nothing of it stays unacked, which would show that the user has gone to another node.
                        self.check_presence(cx, at);
                        self.continue_drain(cx, at);
                    }
                    Some(message) if stored && self.row_fits(at, message) && !message.expired(cx.now.unix()) => {
                        self.push_entry(cx, at, message.clone(), CopyLocation::Row);
                    }
                    _ => self.check_news(cx, at),
                }
            }
            Some(Resident::Hello(index)) => self.nudge_pending_hello(index),
            None => {}
        }
    }

    /// Returns true if a session on another node may have to be notified of the stored message.
    fn must_tell(&self, work: &PendingPublish) -> bool {
        let unsure = matches!(work.storing, AfterCommit::Routed { push: PushOutcome::Unsure(_), .. });
        self.in_cluster() && (unsure || self.session_with(work.row.uaid, work.row.chid).is_none())
    }

    /// Returns the session of a user on this shard if it knows the channel. With several nodes, a session that does not
    /// know it may have been replaced unnoticed.
    pub(super) fn session_with(&self, uaid: Uaid, chid: Chid) -> Option<SlabKey> {
        self.session_of(uaid).filter(|at| self.registered_channel(*at, chid))
    }

    pub(super) fn nudge_pending_hello(&mut self, index: u32) {
        self.pending_hellos.nudge(index);
    }

    pub(super) fn registered_channel(&self, at: SlabKey, chid: Chid) -> bool {
        let fingerprint = self.config.placement.fingerprint(chid);
        self.sessions.get(at).is_some_and(|session| session.channels.contains(fingerprint))
    }
}

/// Maximum time from the stamp to the end of a write that is answered 201: later, low water may have passed its clock.
const WRITE_TIMEOUT: TimeSpan = TimeSpan::from_secs(limits::WRITE_SECONDS_MAX);
