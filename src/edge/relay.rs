//! Relays: connections that speak for several user agents, a member each (docs/PROTOCOL.md, relays).

use machine::ids::Uaid;
use machine::simplepush::Mode;
use machine::{RelayCommand, RelayEvent, SessionEvent};
use shards::ports::Ingest;

use super::PushEdge;
use super::close::close_frame;
use super::websocket::{MessageAction, write_ping, write_pong};
use protocol::wire::client_message::{BadMessage, ClientMessage};
use protocol::wire::relay::{self, RelayMessage};
use protocol::wire::simplepush::HelloPart;
use protocol::wire::ws::{self, Opcode};

/// Code and text of a bye that the relay itself requested: a normal end (RFC 6455 section 7.4.1).
const ASKED_FOR: (u16, &str) = (1000, "");

impl PushEdge {
    /// Handles one message of a relay. Members are always in WebPush mode.
    pub(super) fn relay_message(
        &mut self,
        agent_family: u16,
        text: &str,
        consumed: usize,
        out: &mut Vec<u8>,
    ) -> Ingest {
        let command = match relay::read(text) {
            Err(BadMessage) => return self.unreadable(),
            Ok(RelayMessage::Ping) => RelayCommand::Ping,
            Ok(RelayMessage::Bye(uaid)) => RelayCommand::Bye(Uaid(uaid)),
            Ok(RelayMessage::Hello(hello)) => {
                let ClientMessage::Hello { uaid, channels, broadcasts } = hello else { return self.misplaced() };
                let part = HelloPart { mode: Mode::WebPush, wake: None };
                match self.hello(uaid, channels, broadcasts, agent_family, part) {
                    Ok(hello) => RelayCommand::Attach(hello),
                    Err(end) => return end,
                }
            }
            Ok(RelayMessage::Of { uaid, message }) => match self.asked(message, false, Some(Uaid(uaid)), out) {
                MessageAction::Command(command) => RelayCommand::For { uaid: Uaid(uaid), command: Box::new(command) },
                MessageAction::Answered => return Ingest::Next { consumed },
                MessageAction::Misplaced => return self.misplaced(),
            },
        };
        Ingest::Command { consumed, command: command.into() }
    }

    pub(super) fn emit_relay(&mut self, event: &RelayEvent, out: &mut Vec<u8>) {
        match event {
            RelayEvent::Ping => write_ping(out),
            RelayEvent::Pong => write_pong(out),
            RelayEvent::Opened { members } => ws::write_frame(out, Opcode::Text, |out| relay::opened(*members, out)),
            RelayEvent::Of { uaid, event } => ws::write_frame(out, Opcode::Text, |out| match &**event {
                // The reply to a hello contains the UAID itself.
                hello @ SessionEvent::Hello { .. } => self.push_text(false, hello, out),
                event => relay::of_member(&uaid.0, |out| self.push_text(false, event, out), out),
            }),
            RelayEvent::Bye { uaid, reason } => {
                let (code, text) = close_frame(*reason).unwrap_or(ASKED_FOR);
                let uaid = uaid.as_ref().map(|uaid| &uaid.0);
                ws::write_frame(out, Opcode::Text, |out| relay::bye(uaid, code, text, out));
            }
        }
    }
}
