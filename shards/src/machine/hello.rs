//! Hello: who is this, and on which shard does its socket belong (DESIGN.md 5; BEHAVIOUR.md 1.5).
//!
//! A user agent without a UAID is minted where it is. One whose owner is this shard is *greeted*: registered,
//! looked up, identified. One whose owner is elsewhere is *claimed* there: the owner greets it, and either
//! refuses (a stranger: minted where it is) or grants, and then the socket moves.

use std::collections::VecDeque;

use crate::ids::{Chid, Claim, ConnId, ShardId, Uaid};
use crate::limits;
use crate::time::{Instant, Now, Span};

use super::command::{CloseReason, Event, Hello};
use super::conns::ConnState;
use super::input::Effect;
use super::mail::{Arrival, ClaimReply, ClaimRequest, Reply, Request};
use super::remote::{Asker, Outgoing};
use super::session::{ChannelSet, NONE, OLD_RECORD, Session, UNSAVED, span_ticks, ticks};
use super::slab::Ref;
use super::store::{RECORD_VERSION, StoreError, StoreOp, StoreReply, UserRow};
use super::tickets::Work;
use super::users::Resident;
use super::{ShardMachine, Turn};

/// A hello that this shard, the owner, works on. Registered as resident before storage is read.
pub(super) struct Greeting {
    pub uaid: Uaid,
    from: From,
    phase: Phase,
    /// A message came meanwhile: the session starts with a check of storage.
    pub nudged: bool,
}

enum From {
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

/// What a new session wants of storage.
struct Stored {
    /// There may be messages.
    check: bool,
    /// The user was last seen another day.
    touch: bool,
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

enum Phase {
    /// What the previous session left unacked is being saved.
    AwaitingSave,
    Loading,
    /// The other shard was told to move the socket; a place is reserved for it.
    Granted(Box<UserRow>),
}

impl ShardMachine {
    pub(super) fn opened(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        if self.draining() {
            turn.effects.push_back(Effect::Close(conn, CloseReason::Draining));
            return;
        }
        self.conns.set(conn, ConnState::Opened(ticks(turn.now.mono)));
        if self.hello_check.is_none() {
            self.hello_check = Some(turn.now.mono.after(self.config.hello_timeout));
        }
    }

    /// Closes the sockets whose hello did not come in time. Looks through the table of connections a few times per
    /// timeout while there are such sockets: a queue of clocks would grow with every storm.
    pub(super) fn hello_timeouts(&mut self, turn: &mut Turn<'_>) {
        if self.hello_check.is_none_or(|due| due > turn.now.mono) {
            return;
        }
        let overdue = ticks(turn.now.mono).saturating_sub(span_ticks(self.config.hello_timeout));
        for conn in self.conns.opened_until(overdue, limits::SWEEP_SESSIONS_PER_TURN) {
            self.close_conn(turn, conn, CloseReason::HandshakeTimeout);
        }
        let pause = Span((self.config.hello_timeout.0 / 8).max(Span::from_ms(50).0));
        self.hello_check = (self.conns.opened() > 0).then(|| turn.now.mono.after(pause));
    }

    /// The first message of a socket. Too many under way: it waits, and its bytes with it.
    pub(super) fn hello(&mut self, turn: &mut Turn<'_>, conn: ConnId, hello: Box<Hello>) {
        if !matches!(self.conns.get(conn), Some(ConnState::Opened(_))) {
            self.stats.wrong_state += 1;
            self.close_conn(turn, conn, CloseReason::WrongState);
            return;
        }
        if self.draining() {
            self.close_conn(turn, conn, CloseReason::Draining);
            return;
        }
        if self.hellos_in_flight >= limits::HELLOS_IN_FLIGHT_MAX {
            if self.hellos_waiting.len() >= limits::HELLOS_WAITING_MAX {
                self.stats.hellos_shed += 1;
                self.close_conn(turn, conn, CloseReason::Overloaded);
                return;
            }
            self.conns.set(conn, ConnState::Waiting);
            self.hellos_waiting.push_back((conn, hello));
            return;
        }
        self.hello_now(turn, conn, hello);
    }

    /// Lets waiting hellos proceed while there are places.
    pub(super) fn admit_waiting_hellos(&mut self, turn: &mut Turn<'_>) {
        while self.hellos_in_flight < limits::HELLOS_IN_FLIGHT_MAX && turn.has_room() {
            let Some((conn, hello)) = self.hellos_waiting.pop_front() else { return };
            if self.conns.get(conn) == Some(ConnState::Waiting) {
                self.hello_now(turn, conn, hello);
            }
        }
    }

    fn hello_now(&mut self, turn: &mut Turn<'_>, conn: ConnId, hello: Box<Hello>) {
        let Some(uaid) = hello.uaid else {
            self.mint(turn, conn, hello);
            return;
        };
        let owner = self.config.placement.owner(uaid);
        if owner == self.config.shard {
            self.greet(turn, uaid, From::Local { conn, hello });
        } else {
            self.claim(turn, conn, owner, uaid, hello);
        }
    }

    /// A new user agent, or one nobody knows: the fresh UAID of this shard's slice. Nothing is written before its
    /// first register.
    pub(super) fn mint(&mut self, turn: &mut Turn<'_>, conn: ConnId, hello: Box<Hello>) {
        let Some(hello) = self.refuse_stranger(turn, conn, hello) else { return };
        let uaid = hello.fresh;
        assert!(self.config.placement.owner(uaid) == self.config.shard, "fresh UAIDs are drawn from the own slice");
        if hello.uaid.is_some() {
            self.stats.hellos_reassigned += 1;
        } else {
            self.stats.hellos_new += 1;
        }
        self.identify(turn, conn, uaid, &hello, None, false);
    }

    // --- the source of a claim ---------------------------------------------------------------------

    fn claim(&mut self, turn: &mut Turn<'_>, conn: ConnId, owner: ShardId, uaid: Uaid, hello: Box<Hello>) {
        self.claims_made += 1;
        let claim = Claim::new(self.config.shard, self.claims_made);
        let request = Request::Claim(Box::new(ClaimRequest { uaid, claim, channels: hello.channels.clone() }));
        let outgoing = Outgoing { peer: owner, conn, claim: Some((claim, hello)) };
        if self.send_request(turn, outgoing, request) {
            self.hellos_in_flight += 1;
            self.conns.set(conn, ConnState::Claiming);
        } else {
            self.stats.hellos_shed += 1;
            self.close_conn(turn, conn, CloseReason::Overloaded);
        }
    }

    /// The owner has decided on a claim of ours.
    pub(super) fn claim_decided(
        &mut self,
        turn: &mut Turn<'_>,
        conn: ConnId,
        owner: ShardId,
        claim: Claim,
        hello: Box<Hello>,
        decision: ClaimReply,
    ) {
        self.hellos_in_flight -= 1;
        if self.conns.get(conn) != Some(ConnState::Claiming) {
            // The socket went meanwhile. A grant's place at the owner times out as a half pair.
            self.stats.claims_abandoned += 1;
        } else {
            match decision {
                ClaimReply::Refused => self.mint(turn, conn, hello),
                ClaimReply::Granted => {
                    self.stats.moves_out += 1;
                    self.conns.remove(conn);
                    turn.effects.push_back(Effect::Move { conn, to: owner, claim, hello });
                }
                ClaimReply::Full => self.close_conn(turn, conn, CloseReason::Overloaded),
                ClaimReply::Superseded => self.close_conn(turn, conn, CloseReason::Superseded),
                ClaimReply::Unavailable => self.close_conn(turn, conn, CloseReason::StorageDown),
            }
        }
        self.admit_waiting_hellos(turn);
    }

    /// The loop could not move the socket; it is still here.
    pub(super) fn move_failed(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        self.stats.moves_failed += 1;
        turn.effects.push_back(Effect::Close(conn, CloseReason::MoveFailed));
    }

    // --- the owner -----------------------------------------------------------------------------------

    /// Another shard has a socket that says it is `uaid`.
    pub(super) fn claimed(&mut self, turn: &mut Turn<'_>, asker: Asker, request: ClaimRequest) {
        let ClaimRequest { uaid, claim, channels } = request;
        assert!(self.config.placement.owner(uaid) == self.config.shard, "claims come to the owner");
        self.stats.claims += 1;
        if self.draining() {
            self.answer(turn, asker, Reply::Claim(ClaimReply::Full));
            return;
        }
        self.greet(turn, uaid, From::Remote { asker, claim, channels, hello: None, bytes: Box::default(), conn: None });
    }

    /// Registers the hello as resident, in place of whoever was, and looks the user up.
    fn greet(&mut self, turn: &mut Turn<'_>, uaid: Uaid, from: From) {
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
        if self.departures.contains_key(&uaid) {
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

    /// The previous session's ledger is in storage (or could not be put there): go on with the hello that waits.
    pub(super) fn departure_over(&mut self, turn: &mut Turn<'_>, uaid: Uaid, saved: bool) {
        let Some(Resident::Greeting(index)) = self.resident(uaid) else { return };
        let Some((at, greeting)) = self.greetings.at(index) else { return };
        if !matches!(greeting.phase, Phase::AwaitingSave) {
            return;
        }
        if saved {
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
            Ok(StoreReply::User(Some(user))) => {
                if self.clock.advance(turn.now, user.user_clock).is_err() {
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
        if let From::Remote { asker, .. } = greeting.from {
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
    fn remove_greeting(&mut self, at: Ref) -> Option<Greeting> {
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
        match greeting.from {
            From::Local { conn, .. } => self.close_conn(turn, conn, reason),
            From::Remote { asker, conn, .. } => {
                if !matches!(greeting.phase, Phase::Granted(_)) {
                    let decision = match reason {
                        CloseReason::Superseded => ClaimReply::Superseded,
                        CloseReason::StorageDown => ClaimReply::Unavailable,
                        _ => ClaimReply::Full,
                    };
                    self.answer(turn, asker, Reply::Claim(decision));
                } else if let Some(conn) = conn {
                    self.conns.remove(conn);
                    turn.effects.push_back(Effect::Close(conn, reason));
                }
            }
        }
    }

    /// The socket of a local hello is gone or closed: nobody is left to answer.
    pub(super) fn abandon_greeting(&mut self, index: u32) {
        if let Some((at, _)) = self.greetings.at(index) {
            self.remove_greeting(at);
        }
    }

    /// The descriptor of a moved socket. Pairs with the mail in either order.
    pub(super) fn descriptor_arrived(&mut self, turn: &mut Turn<'_>, conn: ConnId, claim: Claim) {
        let arrived = self.claims.get(&claim).copied();
        match arrived.and_then(|at| Some((at, self.greetings.get_mut(at)?))) {
            Some((at, Greeting { from: From::Remote { conn: place, .. }, .. })) => {
                *place = Some(conn);
                // It may go before its mail comes: then nobody is to be served under this name.
                self.conns.set(conn, ConnState::Greeting(at.index));
                self.pair(turn, claim);
            }
            _ => {
                self.stats.arrivals_stale += 1;
                turn.effects.push_back(Effect::Close(conn, CloseReason::Superseded));
            }
        }
    }

    /// State and bytes of a moved socket.
    pub(super) fn mail_arrived(&mut self, turn: &mut Turn<'_>, arrival: Arrival) {
        let arrived = self.claims.get(&arrival.claim).copied();
        match arrived.and_then(|at| self.greetings.get_mut(at)) {
            Some(Greeting { from: From::Remote { hello, bytes, .. }, .. }) => {
                *hello = Some(arrival.hello);
                *bytes = arrival.bytes;
                self.pair(turn, arrival.claim);
            }
            _ => self.stats.arrivals_stale += 1,
        }
    }

    fn pair(&mut self, turn: &mut Turn<'_>, claim: Claim) {
        let Some(at) = self.claims.get(&claim).copied() else { return };
        let complete = matches!(
            self.greetings.get(at),
            Some(Greeting { from: From::Remote { hello: Some(_), conn: Some(_), .. }, phase: Phase::Granted(_), .. })
        );
        if !complete {
            return;
        }
        let Some(greeting) = self.remove_greeting(at) else { return };
        let From::Remote { hello: Some(hello), bytes, conn: Some(conn), .. } = greeting.from else { return };
        let Phase::Granted(user) = greeting.phase else { return };
        self.stats.moves_in += 1;
        self.stats.hellos_known += 1;
        if !bytes.is_empty() {
            turn.effects.push_back(Effect::Feed(conn, bytes));
        }
        self.identify(turn, conn, greeting.uaid, &hello, Some(user), greeting.nudged);
        self.admit_waiting_hellos(turn);
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

    // --- identified ----------------------------------------------------------------------------------

    /// Makes the session, answers hello, and starts the drain of what is stored.
    fn identify(
        &mut self,
        turn: &mut Turn<'_>,
        conn: ConnId,
        uaid: Uaid,
        hello: &Hello,
        mut user: Option<Box<UserRow>>,
        nudged: bool,
    ) {
        let contact_changes = user.as_ref().is_some_and(|user| user.contact != hello.contact());
        let full = self.sessions.len() >= self.config.sessions_max as usize;
        if full || (contact_changes && !self.tickets.room()) {
            self.stats.hellos_shed += 1;
            self.conns.remove(conn);
            turn.effects.push_back(Effect::Close(conn, CloseReason::Overloaded));
            return;
        }
        let (broadcast_set, delta) = self.broadcasts.subscribe(0, &hello.broadcasts);
        let mut session = Session {
            uaid,
            conn,
            connected_at: turn.now.unix_us / 1_000,
            channels: ChannelSet::new(),
            broadcast_set,
            broadcast_seen: self.broadcasts.change(),
            ping_due: self.first_ping(turn.now, uaid),
            client_ping: 0,
            active: NONE,
            seen_day: day(turn.now),
            flags: 0,
            registers: 0,
            register_minute: 0,
        };
        let stored = match &mut user {
            None => {
                session.flags |= UNSAVED;
                Stored { check: nudged, touch: false }
            }
            Some(user) => self.take_over(turn, &mut session, hello, user, nudged),
        };
        let at = self.sessions.insert(session);
        self.conns.set(conn, ConnState::Session(at.index));
        self.add_resident(uaid, Resident::Session(at.index));
        self.stats.hellos += 1;
        self.arm_sweep(turn.now.mono);
        turn.effects
            .push_back(Effect::Emit(conn, Event::Hello { uaid, mode: hello.mode, broadcasts: Box::new(delta) }));
        self.begin_simple(turn, at, hello, contact_changes);
        if stored.touch && self.tickets.room() {
            self.submit(turn, Work::Touch, StoreOp::Touch { uaid, seen: turn.now.unix() });
        }
        if stored.check {
            self.check_storage(turn, at);
        }
        turn.effects.push_back(Effect::Ready(conn));
        self.reset_old_record(turn, at);
    }

    /// Puts what storage knows of the user into its session.
    fn take_over(
        &mut self,
        turn: &mut Turn<'_>,
        session: &mut Session,
        hello: &Hello,
        user: &mut UserRow,
        nudged: bool,
    ) -> Stored {
        self.forget_channels(turn, session.uaid, hello.channels.as_deref(), user);
        session.put(OLD_RECORD, user.record_version < RECORD_VERSION);
        user.channels.iter().for_each(|c| session.channels.insert(self.config.placement.fingerprint(*c)));
        Stored { check: nudged || user.may_have_messages, touch: user.seen.0 / 86_400 != u64::from(session.seen_day) }
    }

    /// The first ping is jittered over the second half of the interval, by the UAID.
    fn first_ping(&self, now: Now, uaid: Uaid) -> u32 {
        let interval = u64::from(span_ticks(self.config.ping_interval));
        let share = self.config.placement.hash(uaid) & 0xffff;
        let wait = interval - interval * share / 0x2_0000;
        ticks(now.mono) + wait as u32
    }

    pub(super) fn greeting_due(&self) -> Option<Instant> {
        self.greeting_clocks.front().map(|(due, _)| *due)
    }
}

/// Gives back what a burst made a queue grow to, once it is mostly over: idle sessions pay for nobody's storm.
pub(super) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > QUEUE_KEPT && queue.len() < queue.capacity() / 4 {
        queue.shrink_to(QUEUE_KEPT.max(queue.len() * 2));
    }
}

/// Entries of a queue that are kept whatever happens.
const QUEUE_KEPT: usize = 256;

/// Days since the epoch.
pub(super) fn day(now: Now) -> u16 {
    (now.unix_us / 86_400_000_000) as u16
}

/// How long a hello may take at the owner: a half pair or a silent store ends then.
pub(super) const GREETING_TIMEOUT: Span = Span::from_secs(10);
