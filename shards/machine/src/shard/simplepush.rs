//! Differences of SimplePush mode (PROTOCOL.md 1.12): only the newest version of each channel, acks that name a
//! version, and wake-ups of user agents that are not connected.
//!
//! `Message::rank` decides between two versions. Everything else about an update is as for a notification with a topic.

use crate::ids::{Chid, Stamp, Uaid};
use crate::message::{Message, Topic};
use crate::simplepush::{Contact, Mode};
use crate::time::Instant;

use super::command::{AckVersion, CloseReason, Hello};
use super::components::session::NONE;
use super::components::simplepush::WakeUp;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::PendingOp;
use super::slab::SlabKey;
use super::store::{StoreError, StoreOp, UserRow};

impl Hello {
    /// Returns the contact of the user from now on.
    pub(super) fn contact(&self) -> Contact {
        Contact { mode: self.mode, wake: self.wake.clone(), ..Contact::default() }
    }

    /// Returns true if this is how the user is reached already.
    pub(super) fn keeps(&self, contact: &Contact) -> bool {
        (self.mode, &self.wake) == (contact.mode, &contact.wake)
    }
}

impl ShardMachine {
    /// Begins a session. `changed`: storage has another contact of its user.
    pub(super) fn begin_simple(&mut self, cx: &mut StepContext<'_>, at: SlabKey, hello: &Hello, changed: bool) {
        let uaid = self.sessions.live(at).uaid;
        self.simple.begin(at.index, uaid, hello.wake.clone(), cx.now.mono);
        if changed {
            let op = StoreOp::SetContact { uaid, contact: Box::new(hello.contact()), durable: false };
            self.submit(cx, PendingOp::Contact { session: at }, op);
        }
    }

    /// Returns the contact that a register writes.
    pub(super) fn contact_of(&self, at: SlabKey) -> Option<Box<Contact>> {
        let session = self.sessions.get(at)?;
        match session.link.mode() {
            Mode::Simple => {
                let wake = self.simple.wake_data(at.index);
                Some(Box::new(Contact { mode: Mode::Simple, wake, ..Contact::default() }))
            }
            // Storage may have a user only with its first register, and then with the minimum that it named before.
            Mode::WebPush => {
                let minimum = session.link.named_minimum().filter(|_| session.registers_user())?;
                Some(Box::new(Contact { minimum: Some(minimum), ..Contact::default() }))
            }
        }
    }

    /// Handles the reply to a write of the contact. If the write failed, the user agent must send hello again:
    /// otherwise its updates would be refused, or it would be woken at its old address.
    pub(super) fn contact_set(&mut self, cx: &mut StepContext<'_>, at: SlabKey, done: bool) {
        if !done && self.sessions.get(at).is_some() {
            self.stats.contacts_failed += 1;
            self.end_session(cx, at, Some(CloseReason::StorageDown));
        }
    }

    /// Returns true if the message has the mode of this session.
    pub(super) fn mode_fits(&self, at: SlabKey, message: &Message) -> bool {
        self.sessions.get(at).is_some_and(|session| session.link.mode() == message.mode())
    }

    /// Returns true if this version or a higher one of its channel was sent and is not acked yet.
    pub(super) fn is_outranked(&self, at: SlabKey, message: &Message) -> bool {
        if message.mode() != Mode::Simple {
            return false;
        }
        // An idle session has nothing unacked.
        let Some(active) = self.active(at) else { return false };
        active.window.outranks(message)
    }

    /// Returns true if a stored row is sent on this session; other rows are settled. Rows of the other mode belong to
    /// subscriptions that ended when the user agent came back in this mode.
    pub(super) fn is_for_session(&mut self, at: SlabKey, message: &Message) -> bool {
        if !self.mode_fits(at, message) {
            self.stats.rows_other_mode += 1;
            return false;
        }
        let acked = |version| self.simple.is_acked(at.index, message.chid, version);
        let seen = message.simple_version().is_some_and(acked);
        if seen || self.is_outranked(at, message) {
            self.stats.updates_screened += 1;
            return false;
        }
        true
    }

    /// Handles acks of versions: each ends every update of its channel up to that version.
    pub(super) fn ack_versions(&mut self, cx: &mut StepContext<'_>, at: SlabKey, updates: &[AckVersion]) {
        let out = self.out(at);
        for update in updates {
            self.ack_version(cx, at, update);
        }
        self.pace_acked(cx, at, out);
        self.continue_drain(cx, at);
        self.reset_old_record(cx, at);
        self.deactivate_if_idle(at);
    }

    fn ack_version(&mut self, cx: &mut StepContext<'_>, at: SlabKey, update: &AckVersion) {
        let fingerprint = self.config.placement.fingerprint(update.chid);
        let session =
            self.sessions.get(at).filter(|s| s.link.mode() == Mode::Simple && s.channels.contains(fingerprint));
        let Some((uaid, index)) = session.map(|session| (session.uaid, session.active)) else {
            self.stats.acks_unknown += 1;
            return;
        };
        let mut rows = self.ack_departing_updates(cx, uaid, (update.chid, update.version));
        let (mut sent, mut reading): (Vec<Stamp>, bool) = (Vec::new(), false);
        if let Some(active) = self.active_of_mut(index) {
            let deferred;
            (sent, deferred) = active.window.updates(update.chid, update.version);
            rows.extend(deferred);
            reading = active.drain.is_looking();
        }
        if reading {
            self.simple.ack(at.index, update.chid, update.version);
        }
        match sent.len() + rows.len() {
            0 => self.stats.acks_unknown += 1,
            _ => self.stats.acks += 1,
        }
        for stamp in sent {
            self.take_entry(cx, at, stamp);
        }
        for row in rows {
            self.settle(row);
        }
    }

    /// Forgets the acked versions after storage was read to its end: rows that it returns from now on were stored
    /// behind the acks.
    pub(super) fn forget_acked(&mut self, at: SlabKey) {
        if self.active(at).is_some_and(|active| active.drain.is_looking()) {
            return;
        }
        self.simple.forget_acks(at.index);
    }

    // --- idle, and woken again ---------------------------------------------------------------------------

    /// Notes that the session sent or received something.
    pub(super) fn simple_active(&mut self, at: SlabKey, now: Instant) {
        self.simple.said(at.index, now);
    }

    /// Forgets the acked version of an ended channel: it means nothing for the next subscription under this name.
    pub(super) fn forget_acked_of(&mut self, at: SlabKey, chid: Chid) {
        self.simple.forget_channel(at.index, chid);
    }

    /// Returns true if the session was silent for so long that it ends, and the user agent is woken for the next
    /// update.
    pub(super) fn is_idled_out(&self, at: SlabKey, now: Instant) -> bool {
        let limit = self.config.wake_timeout;
        // Work under way keeps the session: a disconnected user agent must have nothing that waits for its return.
        if self.sessions.get(at).is_none_or(|session| session.active != NONE) {
            return false;
        }
        self.simple.idled_out(at.index, now, limit)
    }

    /// Reads the wake data of a user after a message was stored in this slot, if the message is an update and the user
    /// is not connected here. `wake_loaded` then wakes it.
    pub(super) fn wake_absent(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, slot: Topic) {
        if slot != Topic::UPDATE || self.resident(uaid).is_some() || self.draining() {
            return;
        }
        if !self.tickets.room() {
            self.stats.wakes_shed += 1;
            return;
        }
        match self.simple.wake(cx.now.mono, uaid) {
            WakeUp::Granted => self.submit(cx, PendingOp::Wake { uaid }, StoreOp::LoadUser { uaid }),
            WakeUp::TooSoon => self.stats.wakes_spared += 1,
            WakeUp::TooMany => self.stats.wakes_shed += 1,
        }
    }

    /// Wakes the user that was read.
    pub(super) fn wake_loaded(
        &mut self,
        cx: &mut StepContext<'_>,
        uaid: Uaid,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        // Storage failed, or the user does not exist any more. The next update asks again.
        let Ok(Some(user)) = result else { return };
        if let Some(data) = user.contact.wake
            && self.resident(uaid).is_none()
        {
            self.stats.wakes += 1;
            cx.effects.push_back(Effect::Wake(data));
        }
    }
}
