//! A greeting: a hello that this shard, the owner, works on (DESIGN.md 5; BEHAVIOUR.md 1.5, decision table).
//!
//! It is resident before storage is read, so that no message falls between hello and the registry.

use crate::ids::{Chid, Claim, ConnId, Uaid};
use crate::limits;
use crate::time::{Instant, Span};

use super::command::{CloseReason, Hello};
use super::conns::ConnState;
use super::hello::give_back;
use super::input::Effect;
use super::mail::{ClaimReply, Reply};
use super::remote::Asker;
use super::slab::Ref;
use super::store::{StoreError, StoreOp, StoreReply, UserRow};
use super::tickets::Work;
use super::users::Resident;
use super::{ShardMachine, Turn};

/// A hello that this shard, the owner, works on. Registered as resident before storage is read.
pub(super) struct Greeting {
    pub uaid: Uaid,
    pub from: From,
    pub phase: Phase,
    /// A message came meanwhile: the session starts with a check of storage.
    pub nudged: bool,
}

/// Whose socket it came on.
pub(super) enum From {
    Local {
        conn: ConnId,
        hello: Box<Hello>,
    },
    Remote {
        asker: Asker,
        claim: Claim,
        channels: Option<Box<[Chid]>>,
        hello: Option<Box<Hello>>,
        bytes: Box<[u8]>,
        conn: Option<ConnId>,
    },
}

impl From {
    /// The channels that the hello named.
    fn channels(&self) -> Option<Box<[Chid]>> {
        match self {
            From::Local { hello, .. } => hello.channels.clone(),
            From::Remote { channels, .. } => channels.clone(),
        }
    }
}

/// How far it is.
pub(super) enum Phase {
    /// What the previous session left unacked is being saved.
    AwaitingSave,
    Loading,
    /// The other shard was told to move the socket; a place is reserved for it.
    Granted(Box<UserRow>),
}

impl ShardMachine {
    /// Registers the hello as resident, in place of whoever was, and looks the user up.
    pub(super) fn greet(&mut self, turn: &mut Turn<'_>, uaid: Uaid, from: From) {
        match self.resident(uaid) {
            Some(Resident::Session(index)) => {
                let old = self.session_ref(index);
                self.end_session(turn, old, Some(CloseReason::Superseded));
            }
            Some(Resident::Greeting(index)) => {
                self.stats.greetings_superseded += 1;
                self.cancel_greeting(turn, index, CloseReason::Superseded);
            }
            None => {}
        }
        let local = match &from {
            From::Local { conn, .. } => Some(*conn),
            From::Remote { .. } => None,
        };
        let claim = match &from {
            From::Local { .. } => None,
            From::Remote { claim, .. } => Some(*claim),
        };
        let at = self.greetings.insert(Greeting { uaid, from, phase: Phase::Loading, nudged: false });
        if let Some(conn) = local {
            self.conns.set(conn, ConnState::Greeting(at.index));
        }
        if let Some(claim) = claim {
            self.claims.insert(claim, at);
        }
        self.hellos_in_flight += 1;
        self.add_resident(uaid, Resident::Greeting(at.index));
        self.greeting_clocks.push_back((turn.now.mono.after(GREETING_TIMEOUT), at));
        if self.departs_first(uaid) {
            self.set_phase(at, Phase::AwaitingSave);
        } else {
            self.load_user(turn, at);
        }
    }

    fn set_phase(&mut self, at: Ref, phase: Phase) {
        if let Some(greeting) = self.greetings.get_mut(at) {
            greeting.phase = phase;
        }
    }

    fn load_user(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let Some(uaid) = self.greetings.get(at).map(|g| g.uaid) else { return };
        if !self.tickets.room() {
            self.stats.hellos_shed += 1;
            self.cancel_greeting(turn, at.index, CloseReason::Overloaded);
            return;
        }
        self.set_phase(at, Phase::Loading);
        self.submit(turn, Work::LoadUser { greeting: at }, StoreOp::LoadUser { uaid });
    }

    /// The previous session's ledger is in storage, or storage has no room for it, or it could not be put there: goes
    /// on with the hello that waits, or closes it.
    pub(super) fn departure_over(&mut self, turn: &mut Turn<'_>, uaid: Uaid, go_on: bool) {
        let Some(Resident::Greeting(index)) = self.resident(uaid) else { return };
        let Some((at, greeting)) = self.greetings.at(index) else { return };
        if !matches!(greeting.phase, Phase::AwaitingSave) {
            return;
        }
        if go_on {
            self.load_user(turn, at);
        } else {
            self.cancel_greeting(turn, index, CloseReason::StorageDown);
        }
    }

    pub(super) fn user_loaded(&mut self, turn: &mut Turn<'_>, at: Ref, result: Result<StoreReply, StoreError>) {
        let Some((uaid, said)) = self.greetings.get(at).map(|greeting| (greeting.uaid, greeting.from.channels()))
        else {
            self.stats.store_replies_stale += 1;
            return;
        };
        match result {
            Ok(StoreReply::User(Some(_))) if self.refuses_stamp() => {
                self.cancel_greeting(turn, at.index, CloseReason::StorageDown);
            }
            Ok(StoreReply::User(Some(user))) => {
                if self.clock.advance(turn.now, user.newest_clock()).is_err() {
                    self.stats.clocks_refused += 1;
                }
                if self.starts_over(said.as_deref(), &user) {
                    self.start_over(turn, at, uaid);
                } else if self.sessions.len() + self.granted >= self.config.sessions_max as usize {
                    self.cancel_greeting(turn, at.index, CloseReason::Overloaded);
                } else {
                    self.user_known(turn, at, user);
                }
            }
            Ok(StoreReply::User(None)) => self.user_unknown(turn, at),
            // "Not sure" is never "unknown": an unknown UAID makes Firefox drop every subscription.
            Ok(_) | Err(_) => self.cancel_greeting(turn, at.index, CloseReason::StorageDown),
        }
        self.admit_waiting_hellos(turn);
    }

    fn user_known(&mut self, turn: &mut Turn<'_>, at: Ref, user: Box<UserRow>) {
        let Some(greeting) = self.greetings.get_mut(at) else { return };
        if let From::Remote { asker, claim, .. } = greeting.from {
            if self.grants.len() >= limits::GRANTS_MAX {
                self.stats.grants_refused += 1;
                self.cancel_greeting(turn, at.index, CloseReason::Overloaded);
                return;
            }
            self.grants.insert(claim);
            greeting.phase = Phase::Granted(user);
            self.granted += 1;
            self.stats.claims_granted += 1;
            self.answer(turn, asker, Reply::Claim(ClaimReply::Granted));
            return;
        }
        let Some(greeting) = self.remove_greeting(at) else { return };
        if let From::Local { conn, hello } = greeting.from {
            self.stats.hellos_known += 1;
            self.identify(turn, conn, greeting.uaid, &hello, Some(user), greeting.nudged);
        }
    }

    pub(super) fn user_unknown(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let Some(greeting) = self.remove_greeting(at) else { return };
        match greeting.from {
            From::Local { conn, hello } => self.mint(turn, conn, hello),
            From::Remote { asker, .. } => {
                self.stats.claims_refused += 1;
                self.answer(turn, asker, Reply::Claim(ClaimReply::Refused));
            }
        }
    }

    /// Takes a greeting out of every table.
    pub(super) fn remove_greeting(&mut self, at: Ref) -> Option<Greeting> {
        let greeting = self.greetings.remove(at)?;
        self.remove_resident(greeting.uaid, Resident::Greeting(at.index));
        if let From::Remote { claim, .. } = greeting.from {
            self.claims.remove(&claim);
        }
        if matches!(greeting.phase, Phase::Granted(_)) {
            self.granted -= 1;
        }
        self.hellos_in_flight -= 1;
        Some(greeting)
    }

    /// Ends a hello without a session. What is still on its way to it is closed on arrival.
    pub(super) fn cancel_greeting(&mut self, turn: &mut Turn<'_>, index: u32, reason: CloseReason) {
        let Some((at, _)) = self.greetings.at(index) else { return };
        let Some(greeting) = self.remove_greeting(at) else { return };
        let granted = matches!(greeting.phase, Phase::Granted(_));
        match greeting.from {
            From::Local { conn, .. } => self.close_conn(turn, conn, reason),
            From::Remote { asker, .. } if !granted => {
                let decision = match reason {
                    CloseReason::Superseded => ClaimReply::Superseded,
                    CloseReason::StorageDown => ClaimReply::Unavailable,
                    _ => ClaimReply::Full,
                };
                self.answer(turn, asker, Reply::Claim(decision));
            }
            From::Remote { conn: Some(conn), .. } => {
                self.conns.remove(conn);
                turn.effects.push_back(Effect::Close(conn, reason));
            }
            From::Remote { conn: None, .. } => {}
        }
    }

    /// The socket of a local hello is gone or closed: nobody is left to answer.
    pub(super) fn abandon_greeting(&mut self, index: u32) {
        if let Some((at, _)) = self.greetings.at(index) {
            self.remove_greeting(at);
        }
    }

    /// Half pairs and hellos that wait too long for storage.
    pub(super) fn greeting_timeouts(&mut self, turn: &mut Turn<'_>) {
        while let Some((due, at)) = self.greeting_clocks.front().copied() {
            if due > turn.now.mono || !turn.has_room() {
                break;
            }
            self.greeting_clocks.pop_front();
            let reason = match self.greetings.get(at) {
                None => continue,
                Some(Greeting { phase: Phase::Granted(_), .. }) => {
                    self.stats.half_pairs += 1;
                    CloseReason::MoveFailed
                }
                Some(_) => CloseReason::StorageDown,
            };
            self.cancel_greeting(turn, at.index, reason);
        }
        give_back(&mut self.greeting_clocks);
        self.admit_waiting_hellos(turn);
    }

    pub(super) fn greeting_due(&self) -> Option<Instant> {
        self.greeting_clocks.front().map(|(due, _)| *due)
    }
}

/// How long a hello may take at the owner: a half pair or a silent store ends then.
pub(super) const GREETING_TIMEOUT: Span = Span::from_secs(10);
