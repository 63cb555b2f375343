//! Register and unregister (PROTOCOL.md 1.5): the user's channels, in storage and as fingerprints in the session.

use std::collections::BTreeSet;

use crate::ids::{CallerAddress, Chid, KeyDigest, Uaid};
use crate::limits;

use super::command::{CloseReason, SessionEvent};
use super::components::refresh::Refreshed;
use super::components::session::NONE;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::{ListChannels, PendingOp};
use super::slab::SlabKey;
use super::store::{StoreError, StoreOp, UserRow};

impl ShardMachine {
    /// Adds a channel; the first one of a new user writes the user too.
    pub(super) fn register(
        &mut self,
        cx: &mut StepContext<'_>,
        at: SlabKey,
        (chid, key): (Chid, Option<KeyDigest>),
        caller: Option<CallerAddress>,
    ) {
        let session = self.sessions.live(at);
        let (uaid, conn, channels) = (session.uaid, session.conn, session.channels.as_slice().len());
        if !self.rates.take_register(cx.now.mono, uaid, &mut self.stats) {
            self.end_session(cx, at, Some(CloseReason::BudgetExhausted));
            return;
        }
        if channels >= limits::CHANNELS_MAX || !self.tickets.room() || self.refuses_stamp() {
            self.stats.registers_failed += 1;
            self.say(cx, at, SessionEvent::Registered { uaid, chid, key, status: 500 });
            cx.effects.push_back(Effect::Ready(conn));
            return;
        }
        self.activate(at).command.begin(None);
        let clock = self.tick(cx);
        self.endpoint_registering(uaid, chid);
        self.dropped_users.remove(uaid);
        let whole = self.sessions.get(at).filter(|session| session.registers_user());
        let presence = whole.and_then(|session| self.presence_of(session));
        let op = StoreOp::Register {
            uaid,
            chid,
            key,
            at: clock,
            seen: cx.now.unix(),
            contact: self.contact_of(at),
            presence,
            maker: caller.map(|caller| self.config.placement.address(caller)),
        };
        self.submit(cx, PendingOp::Register { session: at, uaid, chid, key }, op);
    }

    pub(super) fn registered(
        &mut self,
        cx: &mut StepContext<'_>,
        (at, uaid): (SlabKey, Uaid),
        chid: Chid,
        key: Option<KeyDigest>,
        done: bool,
    ) {
        self.endpoint_registering(uaid, chid);
        let fingerprint = self.config.placement.fingerprint(chid);
        let Some(session) = self.sessions.get_mut(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        let conn = session.conn;
        let passed_over = done && session.stored.is_unsure();
        if !session.stored.has_user() {
            session.refreshed = Refreshed::at(uaid, cx.now.unix());
        }
        session.stored.registered(done);
        if done {
            session.channels.insert(fingerprint);
            self.stats.registers += 1;
        } else {
            self.stats.registers_failed += 1;
        }
        self.command_done(at);
        self.say(cx, at, SessionEvent::Registered { uaid, chid, key, status: if done { 200 } else { 500 } });
        cx.effects.push_back(Effect::Ready(conn));
        if passed_over {
            self.read_passed_over(cx, at);
        }
    }

    /// Reads storage from its start: a session that was unsure of a channel may have skipped rows of it. They come
    /// before anything new.
    pub(super) fn read_passed_over(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        self.activate(at).drain.restart();
        self.continue_drain(cx, at);
    }

    /// Removes a channel with its pending messages; 200 also for one that is unknown (Firefox unsubscribes late).
    pub(super) fn unregister(&mut self, cx: &mut StepContext<'_>, at: SlabKey, chid: Chid, code: u32) {
        match code {
            201 => self.stats.unregisters_quota += 1,
            202 => self.stats.unregisters_permission += 1,
            _ => self.stats.unregisters += 1,
        }
        let session = self.sessions.live(at);
        let (uaid, conn) = (session.uaid, session.conn);
        if !session.stored.has_user() {
            self.say(cx, at, SessionEvent::Unregistered { chid, status: 200 });
            cx.effects.push_back(Effect::Ready(conn));
            return;
        }
        if !self.tickets.room() || self.refuses_stamp() {
            self.say(cx, at, SessionEvent::Unregistered { chid, status: 500 });
            cx.effects.push_back(Effect::Ready(conn));
            return;
        }
        self.activate(at).command.begin(Some(chid));
        let clock = self.tick(cx);
        self.endpoint_unregistering(uaid, chid);
        let op = StoreOp::Unregister { uaid, chid, at: clock };
        self.submit(cx, PendingOp::Unregister { session: at, uaid, chid }, op);
    }

    pub(super) fn unregistered(&mut self, cx: &mut StepContext<'_>, at: SlabKey, uaid: Uaid, chid: Chid, done: bool) {
        self.endpoint_unregistering(uaid, chid);
        if done {
            self.end_receipts_of_channel(uaid, chid);
        }
        if self.sessions.get(at).is_none() {
            self.departing_unregistered(cx, uaid, chid, done);
        } else if done {
            self.list_channels(cx, ListChannels { session: at, uaid, chid, is_command: true });
        } else {
            // The operation may have taken effect, and no direct may be accepted for the channel.
            self.doubt_channel(at, chid);
            self.end_unregister(cx, at, chid, 500);
        }
    }

    /// Reads the channels that are left after an unregister: another one may have the fingerprint of this one.
    pub(super) fn list_channels(&mut self, cx: &mut StepContext<'_>, work: ListChannels) {
        self.submit(cx, PendingOp::ListChannels(work), StoreOp::LoadUser { uaid: work.uaid });
    }

    pub(super) fn channels_listed(
        &mut self,
        cx: &mut StepContext<'_>,
        work: ListChannels,
        user: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let ListChannels { session: at, uaid, chid, is_command } = work;
        let placement = &self.config.placement;
        let Some(session) = self.sessions.get_mut(at) else {
            if is_command {
                self.departing_unregistered(cx, uaid, chid, true);
            }
            return;
        };
        match user {
            // Channels of another session of the user stay unknown to this one.
            Ok(user) => {
                let left = user.map_or_else(Vec::new, |user| user.channels);
                let left: BTreeSet<u32> = left.iter().map(|chid| placement.fingerprint(*chid)).collect();
                session.channels.retain(|fingerprint| left.contains(&fingerprint));
            }
            Err(_) => self.doubt_channel(at, chid),
        }
        let index = self.sessions.live(at).active;
        if index != NONE {
            self.drop_channel(cx, at, index, chid);
        }
        if is_command {
            self.end_unregister(cx, at, chid, 200);
        } else {
            self.continue_drain(cx, at);
            self.deactivate_if_idle(at);
        }
    }

    /// Removes a channel from a session that cannot be sure of it: storage decides about each POST and each row of a
    /// channel that the session does not know.
    fn doubt_channel(&mut self, at: SlabKey, chid: Chid) {
        let fingerprint = self.config.placement.fingerprint(chid);
        let session = self.sessions.live_mut(at);
        session.channels.retain(|kept| kept != fingerprint);
        session.stored.mark_unsure();
    }

    fn end_unregister(&mut self, cx: &mut StepContext<'_>, at: SlabKey, chid: Chid, status: u16) {
        let conn = self.sessions.live(at).conn;
        self.command_done(at);
        self.say(cx, at, SessionEvent::Unregistered { chid, status });
        cx.effects.push_back(Effect::Ready(conn));
        self.continue_drain(cx, at);
        self.deactivate_if_idle(at);
    }

    /// Ends the entries of a removed channel in the window. Storage has dropped its rows, and any row that a save in
    /// flight brings back is deleted with the entry.
    pub(super) fn drop_channel(&mut self, cx: &mut StepContext<'_>, at: SlabKey, index: u32, chid: Chid) {
        self.forget_acked_of(at, chid);
        let active = self.active_sessions.live_mut(index);
        for stamp in active.window.of_channel(chid) {
            self.stats.dropped_with_channel += 1;
            self.take_entry(cx, at, stamp);
        }
    }

    pub(super) fn command_done(&mut self, at: SlabKey) {
        self.active_sessions.live_mut(self.sessions.live(at).active).command.end();
        self.deactivate_if_idle(at);
    }

    /// Writes an event on a session's socket.
    pub(super) fn say(&mut self, cx: &mut StepContext<'_>, at: SlabKey, event: SessionEvent) {
        if let Some(session) = self.sessions.get(at) {
            cx.effects.push_back(Effect::Emit(session.conn, event.into()));
        }
    }
}
