//! Visits to idle sessions that are due for a ping, a refresh, or the end of a silence. No timer per connection.

use crate::ids::ConnId;
use crate::time::Instant;

use super::command::{AgentEvent, CloseReason};
use super::components::conns::ConnState;
use super::components::conns::seats::is_seat;
use super::components::keepalive::{PongState, Verdict};
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::slab::Ref;

impl ShardMachine {
    pub(super) fn sweep_sessions(&mut self, turn: &mut Turn<'_>) {
        let (sessions, end) = (self.sessions.len(), self.sessions.end());
        // The walk pauses, or its next turn is not due.
        let Some(mut walk) = self.sweep.begin(turn.now.mono, sessions, end) else { return };
        while turn.has_room()
            && let Some(index) = walk.next()
        {
            if let Some((at, _)) = self.sessions.at(index) {
                self.sweep_one(turn, at);
            }
        }
        self.sweep.finish(turn.now.mono, &walk);
    }

    fn sweep_one(&mut self, turn: &mut Turn<'_>, at: Ref) {
        self.refresh_session(turn, at);
        if self.is_idled_out(at, turn.now.mono) {
            self.stats.idled_out += 1;
            self.end_session(turn, at, Some(CloseReason::IdledOut));
            return;
        }
        let session = self.sessions.live_mut(at);
        let conn = session.conn;
        // A relay gets one ping for its connection, not one for each member.
        if !is_seat(conn) && self.keepalive.ping(turn.now.mono, at, &mut session.keepalive) {
            self.stats.pings += 1;
            turn.effects.push_back(Effect::Emit(conn, AgentEvent::Ping.into()));
        }
    }

    /// Ends the sessions whose Pong did not come. A delay of this server is no silence: a Pong that waits in a socket
    /// until the shard reads it, or behind a command that storage has not answered yet, is in time.
    pub(super) fn pong_timeouts(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some(ping) = self.keepalive.overdue(turn.now.mono)
        {
            let silent = self.sessions.get(ping.session()).filter(|session| session.keepalive.awaits(ping));
            let state = match silent.map(|session| self.active_of(session.active)) {
                None => PongState::Settled,
                Some(Some(active)) if active.command.waits() => PongState::Busy,
                Some(_) => PongState::Silent,
            };
            match self.keepalive.judge(turn.now.mono, ping, state) {
                // The timeout stays; the next turns read on.
                Verdict::Wait => break,
                Verdict::Stays => {}
                Verdict::Ends => {
                    self.stats.pong_timeouts += 1;
                    self.end_session(turn, ping.session(), Some(CloseReason::PongTimeout));
                }
            }
        }
        self.keepalive.give_back();
    }

    /// Sets the input horizon of the shard. After a delay (`late`), the timeouts of the Pings that it wrote since then
    /// begin now.
    pub(super) fn heard(&mut self, turn: &Turn<'_>, until: Instant, late: bool) {
        if let Some(held_up) = self.keepalive.heard(turn.now.mono, until, late) {
            self.relays_were_held_up(held_up.since, held_up.due);
        }
    }

    /// Handles a frame of the user agent that is no command.
    pub(super) fn frame(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.postpone_ping(turn, at);
                self.heard_from(turn, at);
            }
            Some(ConnState::Relay(index)) => self.postpone_relay_ping(turn, index),
            // The ping is postponed from hello on; a connection that has ended has none.
            Some(ConnState::Opened(_) | ConnState::Waiting | ConnState::Greeting(_) | ConnState::Claiming) | None => {}
        }
    }

    /// Postpones the ping: any frame of the user agent shows that it is there. The sweep applies it at its next visit.
    pub(super) fn postpone_ping(&mut self, turn: &Turn<'_>, at: Ref) {
        self.keepalive.postpone(turn.now.mono, &mut self.sessions.live_mut(at).keepalive);
    }

    pub(super) fn pong(&mut self, at: Ref) {
        self.sessions.live_mut(at).keepalive.pong();
    }

    /// Handles the message `{}`.
    pub(super) fn client_ping(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let session = self.sessions.live_mut(at);
        if self.keepalive.client_ping(turn.now.mono, &mut session.keepalive) {
            turn.effects.push_back(Effect::Emit(session.conn, AgentEvent::Pong.into()));
        } else {
            self.stats.pings_too_soon += 1;
            self.end_session(turn, at, Some(CloseReason::PingTooSoon));
        }
    }
}
