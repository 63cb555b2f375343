//! Commands of user agents: each goes to the file of its subject.

use crate::ids::ConnId;

use super::command::{AgentCommand, CloseReason, SessionCommand};
use super::components::conns::ConnState;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::slab::SlabKey;

impl ShardMachine {
    pub(super) fn agent_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: AgentCommand) {
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
            SessionCommand::Register { chid, key, caller } => return self.register(cx, at, (chid, key), caller),
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
}
