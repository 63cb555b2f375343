//! The begin of a session: its state, the answer to its hello, and the check of what is stored.

use crate::ids::{Chid, ConnId, Uaid};
use crate::simplepush::Contact;
use crate::time::UnixSeconds;

use super::command::{CloseReason, Hello, SessionEvent};
use super::components::conns::ConnState;
use super::components::refresh::Refreshed;
use super::components::session::{ChannelSet, ConnectedAt, InStorage, Link, NONE, Session};
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::store::{RECORD_VERSION, UserRow};

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
        // It reads storage by itself.
        self.storage_round.take(at.index);
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
