//! A pending hello: a hello that this shard, the owner, handles (ARCHITECTURE.md 4; PROTOCOL.md 1.5).
//!
//! It is resident before storage is read, so that no message falls between hello and the registry.

use crate::ids::Uaid;

use super::command::CloseReason;
use super::components::conns::ConnState;
use super::components::pending_hellos::{EndedHello, Grant, HelloOrigin};
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::mail::ClaimReply;
use super::pending_op::PendingOp;
use super::slab::SlabKey;
use super::store::{StoreError, StoreOp, UserRow};

impl ShardMachine {
    /// Registers the hello as resident, in place of the previous resident, and looks the user up.
    pub(super) fn greet(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, from: HelloOrigin) {
        // Without a shared store a hello costs this shard only, and its turn.
        if self.in_cluster() && !self.rates.take_hello(cx.now.mono, uaid, &mut self.stats) {
            return match from {
                HelloOrigin::Local { conn, .. } => self.close_conn(cx, conn, CloseReason::BudgetExhausted),
                HelloOrigin::Remote { caller, .. } => self.reply(cx, caller, ClaimReply::Full),
            };
        }
        match self.resident(uaid) {
            Some(Resident::Session(index)) => {
                let old = self.session_ref(index);
                self.end_session(cx, old, Some(CloseReason::Superseded));
            }
            Some(Resident::Hello(index)) => {
                self.stats.greetings_superseded += 1;
                self.cancel_greeting_at(cx, index, CloseReason::Superseded);
            }
            None => {}
        }
        let local = match &from {
            HelloOrigin::Local { conn, .. } => Some(*conn),
            HelloOrigin::Remote { .. } => None,
        };
        let at = self.pending_hellos.begin(cx.now.mono, uaid, from);
        if let Some(conn) = local {
            self.conns.set(conn, ConnState::Greeting(at.index));
        }
        self.add_resident(uaid, Resident::Hello(at.index));
        if self.pending_saves.goes_first(uaid) {
            self.pending_hellos.await_save(at);
        } else {
            self.load_user(cx, at, uaid);
        }
    }

    fn load_user(&mut self, cx: &mut StepContext<'_>, at: SlabKey, uaid: Uaid) {
        if !self.tickets.room() {
            self.stats.hellos_shed += 1;
            self.cancel_pending_hello(cx, at, CloseReason::Overloaded);
            return;
        }
        self.pending_hellos.load(at);
        self.submit(cx, PendingOp::LoadUser { pending_hello: at }, StoreOp::LoadUser { uaid });
    }

    /// Continues with the waiting hello, or closes it. The save of the previous session's ledger has ended: storage has
    /// it, has no room for it, or failed.
    pub(super) fn departure_over(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, go_on: bool) {
        let waits = match self.resident(uaid) {
            Some(Resident::Hello(index)) => self.pending_hellos.awaits_save(index),
            Some(Resident::Session(_)) | None => None,
        };
        match waits {
            Some(at) if go_on => self.load_user(cx, at, uaid),
            Some(at) => self.cancel_pending_hello(cx, at, CloseReason::StorageDown),
            None => {}
        }
    }

    pub(super) fn user_loaded(
        &mut self,
        cx: &mut StepContext<'_>,
        at: SlabKey,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let Some(uaid) = self.pending_hellos.uaid(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        match result {
            Ok(Some(_)) if self.refuses_stamp() => {
                self.cancel_pending_hello(cx, at, CloseReason::StorageDown);
            }
            // It stays a bridged user: its messages go to its service, and no session would see them.
            Ok(Some(user)) if user.contact.bridge.is_some() => self.user_unknown(cx, at),
            Ok(Some(user)) => {
                if self.clock.advance(cx.now, user.newest_clock()).is_err() {
                    self.stats.clocks_refused += 1;
                }
                self.dropped_users.remove(uaid);
                if self.starts_over(self.pending_hellos.channels(at), &user.channels) {
                    self.start_over(cx, at, uaid);
                } else {
                    self.user_known(cx, at, Some(user));
                }
            }
            Ok(None) if self.is_dropped_idle(at, uaid) => self.user_known(cx, at, None),
            Ok(None) => self.user_unknown(cx, at),
            // "Not sure" is never "unknown": an unknown UAID makes Firefox drop every subscription.
            Err(_) => self.cancel_pending_hello(cx, at, CloseReason::StorageDown),
        }
        self.admit_waiting_hellos(cx);
    }

    /// Returns true if the user of this hello was dropped without a channel. It keeps its UAID, as before its first
    /// register, unless its hello says that it should have a channel.
    fn is_dropped_idle(&mut self, at: SlabKey, uaid: Uaid) -> bool {
        self.dropped_users.contains(uaid) && !self.starts_over(self.pending_hellos.channels(at), &[])
    }

    fn user_known(&mut self, cx: &mut StepContext<'_>, at: SlabKey, user: Option<Box<UserRow>>) {
        if self.sessions.len() + self.pending_hellos.granted() >= self.config.sessions_max as usize {
            self.cancel_pending_hello(cx, at, CloseReason::Overloaded);
            return;
        }
        match self.pending_hellos.grant(at, user) {
            Grant::Full => {
                self.stats.grants_refused += 1;
                self.cancel_pending_hello(cx, at, CloseReason::Overloaded);
            }
            Grant::Granted(caller) => {
                self.stats.claims_granted += 1;
                self.reply(cx, caller, ClaimReply::Granted);
            }
            Grant::Local(user) => {
                if let Some(EndedHello { uaid, nudged, from: HelloOrigin::Local { conn, hello }, .. }) =
                    self.end_greeting(at)
                {
                    self.count_hello(user.is_some());
                    self.identify(cx, conn, uaid, &hello, user, nudged);
                }
            }
        }
    }

    /// Counts a hello that keeps its UAID, of a user that is in storage or was dropped.
    pub(super) fn count_hello(&mut self, in_storage: bool) {
        match in_storage {
            true => self.stats.hellos_known += 1,
            false => self.stats.hellos_returned += 1,
        }
    }

    pub(super) fn user_unknown(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        match self.end_greeting(at).map(|pending_hello| pending_hello.from) {
            Some(HelloOrigin::Local { conn, hello }) => self.mint(cx, conn, hello),
            Some(HelloOrigin::Remote { caller, .. }) => {
                self.stats.claims_refused += 1;
                self.reply(cx, caller, ClaimReply::Refused);
            }
            // A newer hello took its place while its user was dropped.
            None => {}
        }
    }

    /// Takes a pending hello out of every table.
    fn end_greeting(&mut self, at: SlabKey) -> Option<EndedHello> {
        let pending_hello = self.pending_hellos.end(at)?;
        self.remove_resident(pending_hello.uaid, Resident::Hello(pending_hello.index));
        Some(pending_hello)
    }

    /// Ends a hello without a session. Its mail or descriptor that is still on its way is closed on arrival.
    pub(super) fn cancel_pending_hello(&mut self, cx: &mut StepContext<'_>, at: SlabKey, reason: CloseReason) {
        // It may have ended since its caller learned of it.
        let Some(pending_hello) = self.end_greeting(at) else { return };
        match pending_hello.from {
            HelloOrigin::Local { conn, .. } => self.close_conn(cx, conn, reason),
            HelloOrigin::Remote { caller, .. } if !pending_hello.granted => {
                let decision = match reason {
                    CloseReason::Superseded => ClaimReply::Superseded,
                    CloseReason::StorageDown => ClaimReply::Unavailable,
                    _ => ClaimReply::Full,
                };
                self.reply(cx, caller, decision);
            }
            HelloOrigin::Remote { arrived, .. } => {
                if let Some(conn) = arrived.conn() {
                    self.conns.remove(conn);
                    cx.effects.push_back(Effect::Close(conn, reason));
                }
            }
        }
    }

    /// Ends a hello by index, as above.
    pub(super) fn cancel_greeting_at(&mut self, cx: &mut StepContext<'_>, index: u32, reason: CloseReason) {
        if let Some(at) = self.pending_hellos.at(index) {
            self.cancel_pending_hello(cx, at, reason);
        }
    }

    /// Ends a local hello whose socket has ended: there is no connection to answer.
    pub(super) fn abandon_pending_hello(&mut self, index: u32) {
        if let Some(at) = self.pending_hellos.at(index) {
            self.end_greeting(at);
        }
    }

    /// Ends half pairs and hellos that wait too long for storage.
    pub(super) fn greeting_timeouts(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some((at, granted)) = self.pending_hellos.next_overdue(cx.now.mono)
        {
            self.stats.half_pairs += u64::from(granted);
            let reason = if granted { CloseReason::MoveFailed } else { CloseReason::StorageDown };
            self.cancel_pending_hello(cx, at, reason);
        }
        self.pending_hellos.give_back();
        self.admit_waiting_hellos(cx);
    }
}
