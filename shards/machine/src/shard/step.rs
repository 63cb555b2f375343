//! One step: the input goes to the file of its subject, and its consequences follow in one order.

use crate::ids::{ConnId, EmissionId};
use crate::limits;
use crate::time::Now;

use super::command::{AgentCommand, CloseReason, Command, SessionCommand};
use super::components::conns::ConnState;
use super::components::conns::virtual_conns::same_emission;
use super::composer::{ShardMachine, StepContext};
use super::input::{Effect, EffectQueue, Input};
use super::slab::SlabKey;

impl ShardMachine {
    /// Applies one input at `now`. Appends at most `limits::EFFECTS_PER_INPUT_MAX` effects.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut EffectQueue) {
        let before = effects.len();
        let cx = &mut StepContext { now, effects, before };
        match input {
            Input::Opened { conn } => self.opened(cx, conn),
            Input::Command { conn, command } => self.command(cx, conn, command),
            Input::Frame { conn } => self.frame(cx, conn),
            Input::Gone { conn, reason: _ } => self.gone(cx, conn),
            Input::Blocked { conn } => self.blocked(conn),
            Input::Unsent { conn, emission } => self.unsent(cx, conn, emission),
            Input::Writable { conn } => self.writable(cx, conn),
            Input::Mail(mail) => self.mail(cx, mail),
            Input::Arrived { conn, claim } => self.descriptor_arrived(cx, conn, claim),
            Input::MoveFailed { conn, to, claim } => self.move_failed(cx, conn, to, claim),
            Input::Stored { ticket, result } => self.stored(cx, ticket, result),
            Input::Peer { ticket, reply } => self.peer_replied(cx, ticket, reply),
            Input::Upstream { ticket, reply } => self.upstream_replied(cx, ticket, reply),
            Input::Timeout => self.timeout(cx),
            Input::HorizonAdvanced { until, late } => self.horizon_advanced(cx, until, late),
            Input::ClockStopped(stopped) => self.clock.stop(stopped),
            Input::Broadcasts(values) => self.set_broadcasts(cx, &values),
            Input::Drain { rate } => self.begin_drain(cx, rate),
        }
        self.submit_settles(cx);
        self.say_receipts(cx);
        self.carry_to_relays(cx);
        self.say_drained(cx);
        assert!(effects.len() - before <= limits::EFFECTS_PER_INPUT_MAX, "a step keeps within its effects");
    }

    fn timeout(&mut self, cx: &mut StepContext<'_>) {
        self.hello_timeouts(cx);
        self.greeting_timeouts(cx);
        // Ended relays come first: events for their members from here on would be lost and count as delivered.
        self.relay_turn(cx);
        self.active_timeouts(cx);
        self.spread_broadcasts(cx);
        // Clocks first: those whose Pong came in time are removed before the next Pings go out.
        self.pong_timeouts(cx);
        self.sweep_sessions(cx);
        self.receipt_timeouts(cx);
        self.submit_deferred(cx);
        self.drain_turn(cx);
    }

    /// Passes a command to the files of its speaker.
    fn command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: Command) {
        match command {
            Command::Agent(command) => self.agent_command(cx, conn, command),
            Command::Relay(command) => self.relay_command(cx, conn, command),
            Command::Sender(command) => self.sender_command(cx, conn, command),
            Command::Registration(command) => self.registration_command(cx, conn, command),
            Command::Node(command) => self.node_command(cx, conn, command),
        }
    }

    fn agent_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: AgentCommand) {
        match command {
            AgentCommand::Hello(hello) => self.hello(cx, conn, hello),
            AgentCommand::Session(command) => self.session_command(cx, conn, command),
            AgentCommand::Ping => {
                let Some(at) = self.commanding_session(cx, conn) else { return };
                self.client_ping(cx, at);
                self.command_over(cx, conn, at);
            }
            AgentCommand::Pong => {
                // A Pong before hello answers no Ping of the server and is harmless (RFC 6455 section 5.5.3).
                if let Some(ConnState::Session(index)) = self.conns.get(conn) {
                    let at = self.session_ref(index);
                    self.postpone_ping(cx, at);
                    self.pong(at);
                    self.heard_from(cx, at);
                }
                cx.effects.push_back(Effect::Ready(conn));
            }
        }
    }

    /// Handles a command that needs a session, on a socket or on a virtual connection.
    pub(super) fn session_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: SessionCommand) {
        let Some(at) = self.commanding_session(cx, conn) else { return };
        match command {
            // These answer, and are Ready, when storage has replied.
            SessionCommand::Register { chid, key } => return self.register(cx, at, chid, key),
            SessionCommand::Unregister { chid, code } => return self.unregister(cx, at, chid, code),
            SessionCommand::Urgency { minimum } => return self.set_minimum(cx, at, minimum),
            SessionCommand::Ack(updates) => self.ack(cx, at, &updates),
            SessionCommand::AckVersions(updates) => self.ack_versions(cx, at, &updates),
            SessionCommand::Nack { code: _ } => self.stats.nacks += 1,
            SessionCommand::BroadcastSubscribe(wanted) => self.broadcast_subscribe(cx, at, &wanted),
        }
        self.command_over(cx, conn, at);
    }

    /// Returns the session of a connection that has sent a command. A connection without one is closed.
    fn commanding_session(&mut self, cx: &mut StepContext<'_>, conn: ConnId) -> Option<SlabKey> {
        let Some(ConnState::Session(index)) = self.conns.get(conn) else {
            self.refuse_command(cx, conn);
            return None;
        };
        let at = self.session_ref(index);
        self.postpone_ping(cx, at);
        self.simple_active(at, cx.now.mono);
        self.heard_from(cx, at);
        Some(at)
    }

    /// Allows the next command, unless this one has ended the session.
    fn command_over(&self, cx: &mut StepContext<'_>, conn: ConnId, at: SlabKey) {
        if self.sessions.get(at).is_some() {
            cx.effects.push_back(Effect::Ready(conn));
        }
    }

    /// Closes a socket that sent a command which it may not send now.
    pub(super) fn refuse_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        self.stats.wrong_state += 1;
        self.close_conn(cx, conn, CloseReason::WrongState);
    }

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
