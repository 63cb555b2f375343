//! Visits to idle sessions that are due for a ping, a refresh, or the end of a silence. No timer per connection.

use crate::ids::ConnId;
use crate::time::Instant;

use super::command::{AgentEvent, CloseReason};
use super::components::conns::ConnState;
use super::components::conns::virtual_conns::is_virtual;
use super::components::keepalive::{PongState, Verdict};
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::slab::SlabKey;

impl ShardMachine {
    pub(super) fn sweep_sessions(&mut self, cx: &mut StepContext<'_>) {
        let (sessions, end) = (self.sessions.len(), self.sessions.end());
        // The walk pauses, or its next turn is not due.
        let Some(mut walk) = self.sweep.begin(cx.now.mono, sessions, end) else { return };
        while cx.has_room()
            && let Some(index) = walk.next()
        {
            if let Some((at, _)) = self.sessions.at(index) {
                self.sweep_one(cx, at);
            }
        }
        self.sweep.finish(cx.now.mono, &walk);
    }

    fn sweep_one(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        self.refresh_session(cx, at);
        if self.is_idled_out(at, cx.now.mono) {
            self.stats.idled_out += 1;
            self.end_session(cx, at, Some(CloseReason::IdledOut));
            return;
        }
        let session = self.sessions.live_mut(at);
        let conn = session.conn;
        // A relay gets one ping for its connection, not one for each member.
        if !is_virtual(conn) && self.keepalive.ping(cx.now.mono, at, &mut session.keepalive) {
            self.stats.pings += 1;
            cx.effects.push_back(Effect::Emit(conn, AgentEvent::Ping.into()));
        }
    }

    /// Ends the sessions whose Pong did not come. A delay of this server is no silence: a Pong that waits in a socket
    /// until the shard reads it, or behind a command that storage has not answered yet, is in time.
    pub(super) fn pong_timeouts(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some(ping) = self.keepalive.overdue(cx.now.mono)
        {
            let silent = self.sessions.get(ping.session()).filter(|session| session.keepalive.awaits(ping));
            let state = match silent.map(|session| self.active_of(session.active)) {
                None => PongState::Settled,
                Some(Some(active)) if active.command.waits() => PongState::Busy,
                Some(_) => PongState::Silent,
            };
            match self.keepalive.judge(cx.now.mono, ping, state) {
                // The timeout stays; the next turns read on.
                Verdict::Wait => break,
                Verdict::Stays => {}
                Verdict::Ends => {
                    self.stats.pong_timeouts += 1;
                    self.end_session(cx, ping.session(), Some(CloseReason::PongTimeout));
                }
            }
        }
        self.keepalive.give_back();
    }

    /// Sets the input horizon of the shard. After a delay (`late`), the timeouts of the Pings that it wrote since then
    /// begin now.
    pub(super) fn horizon_advanced(&mut self, cx: &StepContext<'_>, until: Instant, late: bool) {
        if let Some(held_up) = self.keepalive.horizon_advanced(cx.now.mono, until, late) {
            self.relays_were_held_up(held_up.since, held_up.due);
        }
    }

    /// Handles a frame of the user agent that is no command.
    pub(super) fn frame(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.postpone_ping(cx, at);
                self.heard_from(cx, at);
            }
            Some(ConnState::Relay(index)) => self.postpone_relay_ping(cx, index),
            // The ping is postponed from hello on; a connection that has ended has none.
            Some(ConnState::Opened(_) | ConnState::Waiting | ConnState::Greeting(_) | ConnState::Claiming) | None => {}
        }
    }

    /// Postpones the ping: any frame of the user agent shows that it is there. The sweep applies it at its next visit.
    pub(super) fn postpone_ping(&mut self, cx: &StepContext<'_>, at: SlabKey) {
        self.keepalive.postpone(cx.now.mono, &mut self.sessions.live_mut(at).keepalive);
    }

    pub(super) fn pong(&mut self, at: SlabKey) {
        self.sessions.live_mut(at).keepalive.pong();
    }

    /// Handles the message `{}`.
    pub(super) fn client_ping(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live_mut(at);
        if self.keepalive.client_ping(cx.now.mono, &mut session.keepalive) {
            cx.effects.push_back(Effect::Emit(session.conn, AgentEvent::Pong.into()));
        } else {
            self.stats.pings_too_soon += 1;
            self.end_session(cx, at, Some(CloseReason::PingTooSoon));
        }
    }
}
