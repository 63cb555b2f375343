//! Ends of sockets, sockets that take no bytes and take them again, and the close of a socket by the server.

use crate::ids::{ConnId, EmissionId};

use super::command::CloseReason;
use super::components::conns::ConnState;
use super::components::conns::virtual_conns::same_emission;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;

impl ShardMachine {
    /// Ends the session, the pending hello or the relay of a socket that has ended.
    pub(super) fn gone(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.end_session(cx, at, None);
            }
            Some(ConnState::Greeting(index)) => {
                self.abandon_pending_hello(index);
                self.conns.remove(conn);
                self.admit_waiting_hellos(cx);
            }
            Some(ConnState::Relay(index)) => self.end_relay(cx, index, None),
            Some(ConnState::Opened(_) | ConnState::Waiting | ConnState::Claiming) => {
                self.conns.remove(conn);
            }
            None => {}
        }
    }

    /// Closes a socket, with its session, its pending hello or its relay.
    pub(super) fn close_conn(&mut self, cx: &mut StepContext<'_>, conn: ConnId, reason: CloseReason) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.end_session(cx, at, Some(reason));
                return;
            }
            Some(ConnState::Relay(index)) => {
                self.end_relay(cx, index, Some(reason));
                return;
            }
            Some(ConnState::Greeting(index)) => self.abandon_pending_hello(index),
            _ => {}
        }
        self.conns.remove(conn);
        cx.effects.push_back(Effect::Close(conn, reason));
    }

    pub(super) fn blocked(&mut self, conn: ConnId) {
        if let Some(ConnState::Relay(index)) = self.conns.get(conn) {
            self.relay_blocked(index);
        }
        if let Some(ConnState::Session(index)) = self.conns.get(conn) {
            let at = self.session_ref(index);
            self.sessions.live_mut(at).link.block();
        }
    }

    /// Handles a frame of which the socket took nothing: the entry is unsent again, in its place. If only storage has
    /// the body of a row by now, the row is read when it is its turn. A TTL 0 frame has no entry; it had its one try.
    pub(super) fn unsent(&mut self, cx: &mut StepContext<'_>, conn: ConnId, emission: EmissionId) {
        if let Some(ConnState::Relay(index)) = self.conns.get(conn) {
            self.relay_unsent(cx, index, emission);
        }
        // A relay, or the session has ended: its unacked notifications are saved.
        let Some(ConnState::Session(index)) = self.conns.get(conn) else { return };
        self.stats.unsent += 1;
        let at = self.session_ref(index);
        // The window does not have it: it had TTL 0, or has ended otherwise.
        let Some(active) = self.active_mut(at) else { return };
        active.window.unsend(|ours| same_emission(conn, ours, emission));
    }

    /// Handles a socket that takes bytes: waiting entries of the window go out in their order, then storage is read on.
    pub(super) fn writable(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        if let Some(ConnState::Relay(index)) = self.conns.get(conn) {
            self.relay_writable(cx, index);
        }
        // A relay, or a socket that has no session.
        let Some(ConnState::Session(index)) = self.conns.get(conn) else { return };
        let at = self.session_ref(index);
        let session = self.sessions.live_mut(at);
        session.link.unblock();
        let active_index = session.active;
        if let Some(active) = self.active_of_mut(active_index) {
            active.window.resume(cx.now.mono);
        }
        self.tell_broadcasts(cx, at);
        self.hold_window(cx, at);
        self.continue_drain(cx, at);
    }
}
