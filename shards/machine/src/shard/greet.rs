//! A greeting: a hello that this shard, the owner, handles (ARCHITECTURE.md 4; PROTOCOL.md 1.5).
//!
//! It is resident before storage is read, so that no message falls between hello and the registry.

use crate::ids::Uaid;

use super::command::CloseReason;
use super::components::conns::ConnState;
use super::components::greetings::{Ended, From, Grant};
use super::components::user_index::Resident;
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::mail::ClaimReply;
use super::slab::Ref;
use super::store::{StoreError, StoreOp, UserRow};
use super::work::Work;

impl ShardMachine {
    /// Registers the hello as resident, in place of the previous resident, and looks the user up.
    pub(super) fn greet(&mut self, turn: &mut Turn<'_>, uaid: Uaid, from: From) {
        match self.resident(uaid) {
            Some(Resident::Session(index)) => {
                let old = self.session_ref(index);
                self.end_session(turn, old, Some(CloseReason::Superseded));
            }
            Some(Resident::Greeting(index)) => {
                self.stats.greetings_superseded += 1;
                self.cancel_greeting_at(turn, index, CloseReason::Superseded);
            }
            None => {}
        }
        let local = match &from {
            From::Local { conn, .. } => Some(*conn),
            From::Remote { .. } => None,
        };
        let at = self.greetings.begin(turn.now.mono, uaid, from);
        if let Some(conn) = local {
            self.conns.set(conn, ConnState::Greeting(at.index));
        }
        self.add_resident(uaid, Resident::Greeting(at.index));
        if self.departures.goes_first(uaid) {
            self.greetings.await_save(at);
        } else {
            self.load_user(turn, at, uaid);
        }
    }

    fn load_user(&mut self, turn: &mut Turn<'_>, at: Ref, uaid: Uaid) {
        if !self.tickets.room() {
            self.stats.hellos_shed += 1;
            self.cancel_greeting(turn, at, CloseReason::Overloaded);
            return;
        }
        self.greetings.load(at);
        self.submit(turn, Work::LoadUser { greeting: at }, StoreOp::LoadUser { uaid });
    }

    /// Continues with the waiting hello, or closes it. The save of the previous session's ledger has ended: storage has
    /// it, has no room for it, or failed.
    pub(super) fn departure_over(&mut self, turn: &mut Turn<'_>, uaid: Uaid, go_on: bool) {
        let waits = match self.resident(uaid) {
            Some(Resident::Greeting(index)) => self.greetings.awaits_save(index),
            Some(Resident::Session(_)) | None => None,
        };
        match waits {
            Some(at) if go_on => self.load_user(turn, at, uaid),
            Some(at) => self.cancel_greeting(turn, at, CloseReason::StorageDown),
            None => {}
        }
    }

    pub(super) fn user_loaded(
        &mut self,
        turn: &mut Turn<'_>,
        at: Ref,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let Some(uaid) = self.greetings.uaid(at) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        match result {
            Ok(Some(_)) if self.refuses_stamp() => {
                self.cancel_greeting(turn, at, CloseReason::StorageDown);
            }
            Ok(Some(user)) => {
                if self.clock.advance(turn.now, user.newest_clock()).is_err() {
                    self.stats.clocks_refused += 1;
                }
                if self.starts_over(self.greetings.channels(at), &user) {
                    self.start_over(turn, at, uaid);
                } else if self.sessions.len() + self.greetings.granted() >= self.config.sessions_max as usize {
                    self.cancel_greeting(turn, at, CloseReason::Overloaded);
                } else {
                    self.user_known(turn, at, user);
                }
            }
            Ok(None) => self.user_unknown(turn, at),
            // "Not sure" is never "unknown": an unknown UAID makes Firefox drop every subscription.
            Err(_) => self.cancel_greeting(turn, at, CloseReason::StorageDown),
        }
        self.admit_waiting_hellos(turn);
    }

    fn user_known(&mut self, turn: &mut Turn<'_>, at: Ref, user: Box<UserRow>) {
        match self.greetings.grant(at, user) {
            Grant::Full => {
                self.stats.grants_refused += 1;
                self.cancel_greeting(turn, at, CloseReason::Overloaded);
            }
            Grant::Granted(caller) => {
                self.stats.claims_granted += 1;
                self.reply(turn, caller, ClaimReply::Granted);
            }
            Grant::Local(user) => {
                if let Some(Ended { uaid, nudged, from: From::Local { conn, hello }, .. }) = self.end_greeting(at) {
                    self.stats.hellos_known += 1;
                    self.identify(turn, conn, uaid, &hello, Some(user), nudged);
                }
            }
        }
    }

    pub(super) fn user_unknown(&mut self, turn: &mut Turn<'_>, at: Ref) {
        match self.end_greeting(at).map(|greeting| greeting.from) {
            Some(From::Local { conn, hello }) => self.mint(turn, conn, hello),
            Some(From::Remote { caller, .. }) => {
                self.stats.claims_refused += 1;
                self.reply(turn, caller, ClaimReply::Refused);
            }
            // A newer hello took its place while its user was dropped.
            None => {}
        }
    }

    /// Takes a greeting out of every table.
    fn end_greeting(&mut self, at: Ref) -> Option<Ended> {
        let greeting = self.greetings.end(at)?;
        self.remove_resident(greeting.uaid, Resident::Greeting(greeting.index));
        Some(greeting)
    }

    /// Ends a hello without a session. Its mail or descriptor that is still on its way is closed on arrival.
    pub(super) fn cancel_greeting(&mut self, turn: &mut Turn<'_>, at: Ref, reason: CloseReason) {
        // It may have ended since its caller learned of it.
        let Some(greeting) = self.end_greeting(at) else { return };
        match greeting.from {
            From::Local { conn, .. } => self.close_conn(turn, conn, reason),
            From::Remote { caller, .. } if !greeting.granted => {
                let decision = match reason {
                    CloseReason::Superseded => ClaimReply::Superseded,
                    CloseReason::StorageDown => ClaimReply::Unavailable,
                    _ => ClaimReply::Full,
                };
                self.reply(turn, caller, decision);
            }
            From::Remote { arrived, .. } => {
                if let Some(conn) = arrived.conn() {
                    self.conns.remove(conn);
                    turn.effects.push_back(Effect::Close(conn, reason));
                }
            }
        }
    }

    /// Ends a hello by index, as above.
    pub(super) fn cancel_greeting_at(&mut self, turn: &mut Turn<'_>, index: u32, reason: CloseReason) {
        if let Some(at) = self.greetings.at(index) {
            self.cancel_greeting(turn, at, reason);
        }
    }

    /// Ends a local hello whose socket has ended: there is no connection to answer.
    pub(super) fn abandon_greeting(&mut self, index: u32) {
        if let Some(at) = self.greetings.at(index) {
            self.end_greeting(at);
        }
    }

    /// Ends half pairs and hellos that wait too long for storage.
    pub(super) fn greeting_timeouts(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some((at, granted)) = self.greetings.next_overdue(turn.now.mono)
        {
            self.stats.half_pairs += u64::from(granted);
            let reason = if granted { CloseReason::MoveFailed } else { CloseReason::StorageDown };
            self.cancel_greeting(turn, at, reason);
        }
        self.greetings.give_back();
        self.admit_waiting_hellos(turn);
    }
}
