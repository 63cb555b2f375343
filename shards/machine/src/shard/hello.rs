//! Hello: the UAID of a user agent, and the shard where its socket belongs (ARCHITECTURE.md 4; PROTOCOL.md 1.5).
//!
//! A user agent without a UAID is minted on the shard of its socket. If this shard is the owner, the hello is greeted
//! (`greet`): registered, looked up, identified. Otherwise the UAID is claimed at its owner (`claim`). The owner greets
//! it, and either refuses (a stranger: minted on the shard of its socket) or grants, and then the socket moves. This
//! file has the two ends of that: the first message of a socket, and the session that it becomes.

use crate::ids::{Chid, ConnId, Uaid};
use crate::limits;
use crate::simplepush::Contact;
use crate::time::UnixSeconds;

use super::command::{CloseReason, Hello, SessionEvent};
use super::components::conns::ConnState;
use super::components::pending_hellos::HelloOrigin;
use super::components::refresh::Refreshed;
use super::components::session::{ChannelSet, ConnectedAt, InStorage, Link, NONE, Session};
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::store::{RECORD_VERSION, UserRow};
use super::ticks::ticks;

/// Facts and requests of a new session about storage.
struct StoreNeeds {
    /// True if there may be messages.
    check: bool,
    /// Time of the user's last refresh; `None` if the user is new.
    seen: Option<UnixSeconds>,
    /// Channels that the hello has left out.
    left_out: Vec<Chid>,
}

impl ShardMachine {
    pub(super) fn opened(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        if self.draining() {
            cx.effects.push_back(Effect::Close(conn, CloseReason::Draining));
            return;
        }
        self.conns.set(conn, ConnState::Opened(ticks(cx.now.mono)));
        self.hello_timer.arm(cx.now.mono);
    }

    /// Closes the sockets whose hello did not come in time.
    pub(super) fn hello_timeouts(&mut self, cx: &mut StepContext<'_>) {
        // No socket is silent, or it is not time to look.
        let Some(overdue) = self.hello_timer.overdue(cx.now.mono, self.keepalive.input_horizon()) else { return };
        for conn in self.conns.opened_until(overdue, limits::SWEEP_SESSIONS_PER_TURN) {
            self.close_conn(cx, conn, CloseReason::HandshakeTimeout);
        }
        self.hello_timer.looked(cx.now.mono, self.conns.opened());
    }

    /// Handles the first message of a socket. If too many hellos are under way, it waits, and its bytes with it.
    pub(super) fn hello(&mut self, cx: &mut StepContext<'_>, conn: ConnId, hello: Box<Hello>) {
        if !matches!(self.conns.get(conn), Some(ConnState::Opened(_))) {
            self.refuse_command(cx, conn);
            return;
        }
        if self.draining() {
            self.close_conn(cx, conn, CloseReason::Draining);
            return;
        }
        if self.pending_hellos.may_begin() {
            self.hello_now(cx, conn, hello);
        } else if self.pending_hellos.wait(conn, hello) {
            self.conns.set(conn, ConnState::Waiting);
        } else {
            self.stats.hellos_shed += 1;
            self.close_conn(cx, conn, CloseReason::Overloaded);
        }
    }

    /// Lets waiting hellos proceed while there are places.
    pub(super) fn admit_waiting_hellos(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some((conn, hello)) = self.pending_hellos.next_waiting()
        {
            if self.conns.get(conn) == Some(ConnState::Waiting) {
                self.hello_now(cx, conn, hello);
            }
        }
    }

    fn hello_now(&mut self, cx: &mut StepContext<'_>, conn: ConnId, hello: Box<Hello>) {
        if self.refuses_stamp() {
            self.close_conn(cx, conn, CloseReason::StorageDown);
            return;
        }
        let Some(uaid) = hello.uaid else {
            self.mint(cx, conn, hello);
            return;
        };
        let owner = self.config.placement.owner(uaid);
        if owner == self.config.shard {
            self.greet(cx, uaid, HelloOrigin::Local { conn, hello });
        } else {
            self.claim(cx, conn, owner, uaid, hello);
        }
    }

    /// Mints the fresh UAID of this shard's slice, for a new user agent or an unknown UAID. Nothing is written before
    /// its first register.
    pub(super) fn mint(&mut self, cx: &mut StepContext<'_>, conn: ConnId, hello: Box<Hello>) {
        // The home shard of its relay mints.
        let Some(hello) = self.refuse_stranger(cx, conn, hello) else { return };
        let uaid = hello.fresh;
        assert!(self.config.placement.owner(uaid) == self.config.shard, "fresh UAIDs are drawn from the own slice");
        if hello.uaid.is_some() {
            self.stats.hellos_reassigned += 1;
        } else {
            self.stats.hellos_new += 1;
        }
        self.identify(cx, conn, uaid, &hello, None, false);
    }

    /// Makes the session, answers hello, and starts the drain of what is stored.
    pub(super) fn identify(
        &mut self,
        cx: &mut StepContext<'_>,
        conn: ConnId,
        uaid: Uaid,
        hello: &Hello,
        mut user: Option<Box<UserRow>>,
        nudged: bool,
    ) {
        let contact_changes = user.as_ref().is_some_and(|user| !hello.keeps(&user.contact));
        let full = self.sessions.len() >= self.config.sessions_max as usize;
        if full || (contact_changes && !self.tickets.room()) {
            self.stats.hellos_shed += 1;
            self.conns.remove(conn);
            cx.effects.push_back(Effect::Close(conn, CloseReason::Overloaded));
            return;
        }
        // A user agent that was here names its minimum once.
        let minimum = user.as_ref().and_then(|user| user.contact.minimum);
        let contact = Contact { minimum, ..hello.contact() };
        let (broadcasts, delta) = self.broadcasts.open(&hello.broadcasts);
        let connected_at = ConnectedAt::new(self.arrival(cx));
        let others = user.as_mut().map(|user| std::mem::take(&mut user.presence));
        let mut session = Session {
            uaid,
            conn,
            connected_at,
            channels: ChannelSet::new(),
            broadcasts,
            keepalive: self.keepalive.begin(cx.now.mono, self.config.placement.hash(uaid)),
            active: NONE,
            refreshed: Refreshed::at(uaid, cx.now.unix()),
            stored: InStorage::nothing(),
            link: Link::new(&contact),
        };
        let stored = match &mut user {
            None => StoreNeeds { check: nudged, seen: None, left_out: Vec::new() },
            Some(user) => self.take_over(&mut session, hello, user, nudged),
        };
        let at = self.sessions.insert(session);
        self.forget_channels(cx, at, uaid, stored.left_out);
        self.conns.set(conn, ConnState::Session(at.index));
        self.add_resident(uaid, Resident::Session(at.index));
        self.stats.hellos += 1;
        self.sweep.arm(cx.now.mono);
        let minted = uaid == hello.fresh;
        let answer = SessionEvent::Hello { uaid, minted, mode: hello.mode, broadcasts: Box::new(delta) };
        cx.effects.push_back(Effect::Emit(conn, answer.into()));
        self.begin_simple(cx, at, hello, contact_changes);
        if let Some(seen) = stored.seen {
            self.refresh_known(cx, at, seen);
        }
        self.heard_from(cx, at);
        if let Some(others) = others.filter(|_| self.in_cluster()) {
            self.enter(cx, at, others);
        } else if stored.check {
            self.check_storage(cx, at);
        }
        cx.effects.push_back(Effect::Ready(conn));
        self.reset_old_record(cx, at);
    }

    /// Copies the stored facts of the user into its session.
    fn take_over(&self, session: &mut Session, hello: &Hello, user: &mut UserRow, nudged: bool) -> StoreNeeds {
        let left_out = self.left_out(hello.channels.as_deref(), user);
        session.stored = InStorage::record(user.record_version < RECORD_VERSION);
        session.refreshed = Refreshed::at(session.uaid, user.seen);
        user.channels.iter().for_each(|c| session.channels.insert(self.config.placement.fingerprint(*c)));
        StoreNeeds { check: nudged || user.may_have_messages, seen: Some(user.seen), left_out }
    }
}
