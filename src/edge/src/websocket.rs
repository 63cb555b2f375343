//! The port of user agents after the upgrade: frames to commands (PROTOCOL.md 1). `frames` writes the way back.

use machine::{AgentCommand, CloseReason, RelayCommand, SessionCommand};
use runtime::ports::{Ingest, Port};

use super::PushEdge;
use super::messages::MessageAction;
use super::upgraded::{Fragments, Session, Stage};
use protocol::wire::client_message::{self, BadMessage, ClientMessage};
use protocol::wire::relay;
use protocol::wire::simplepush::{self};
use protocol::wire::ws::{self, FrameError, Kind, Opcode};

impl PushEdge {
    pub(super) fn ingest_websocket(&mut self, session: Session<'_>, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingest {
        let open = session.fragments.as_ref().map(|fragments| fragments.text.len());
        let frame = match ws::read_frame(bytes, open) {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ingest::More { consumed: 0 },
            Err(fault) => return self.frame_fault(fault),
        };
        let consumed = frame.len;
        match frame.kind {
            Kind::Ping => {
                let start = consumed - frame.payload.len();
                // Of several pings in a row only the latest needs a pong (RFC 6455 section 5.5.3).
                if !ws::is_next(&bytes[consumed..], Kind::Ping) {
                    let payload = &bytes[start..consumed];
                    ws::write_frame(out, Opcode::Pong, |out| out.extend_from_slice(payload));
                }
                Ingest::Next { consumed }
            }
            Kind::Pong => match *session.stage {
                Stage::Upgraded => Ingest::Next { consumed },
                Stage::WebPush | Stage::SimplePush => Ingest::Command { consumed, command: AgentCommand::Pong.into() },
                Stage::Relay => Ingest::Command { consumed, command: RelayCommand::Pong.into() },
            },
            Kind::Close => match ws::close_code(frame.payload) {
                Ok(code) => {
                    if self.reporter.is_on() && code.is_some() {
                        let unfinished = self.unfinished.of(Port::WebSocket);
                        let kept = session.fragments.get_or_insert_with(|| Box::new(Fragments::new(unfinished)));
                        kept.peer_code = code;
                    }
                    let reason = frame.payload.get(2..).and_then(|reason| std::str::from_utf8(reason).ok());
                    ws::write_close(out, code, reason.unwrap_or_default());
                    Ingest::Close { reason: CloseReason::PeerClosed }
                }
                Err(fault) => self.frame_fault(fault),
            },
            Kind::Text if frame.is_final => self.message(session, frame.payload, consumed, out),
            Kind::Text | Kind::Continuation => {
                let unfinished = self.unfinished.of(Port::WebSocket);
                let mut fragments = session.fragments.take().unwrap_or_else(|| Box::new(Fragments::new(unfinished)));
                fragments.text.extend_from_slice(frame.payload);
                if frame.is_final {
                    return self.message(session, &fragments.text, consumed, out);
                }
                if fragments.are_refused(self.unfinished.of(Port::WebSocket)) {
                    return self.refuse_unfinished();
                }
                *session.fragments = Some(fragments);
                Ingest::Next { consumed }
            }
        }
    }

    fn frame_fault(&mut self, fault: FrameError) -> Ingest {
        self.stats.frames_refused += 1;
        let reason = match fault {
            FrameError::Protocol => CloseReason::ProtocolError,
            FrameError::Binary => CloseReason::Unsupported,
            FrameError::TooBig => CloseReason::TooBig,
            FrameError::BadText => CloseReason::BadText,
        };
        Ingest::Close { reason }
    }

    fn message(&mut self, session: Session<'_>, text: &[u8], consumed: usize, out: &mut Vec<u8>) -> Ingest {
        let Ok(text) = std::str::from_utf8(text) else {
            self.stats.frames_refused += 1;
            return Ingest::Close { reason: CloseReason::BadText };
        };
        let simple = *session.stage == Stage::SimplePush;
        if *session.stage == Stage::Relay {
            return self.relay_message(session.agent_family, text, consumed, out);
        }
        let message = match client_message::read(text) {
            // In SimplePush mode an ack names versions.
            Ok(ClientMessage::Ack(acks)) if simple && !acks.is_empty() => return self.unreadable(),
            Err(_) if simple => match simplepush::read_acks(text) {
                Ok(updates) => {
                    return Ingest::Command { consumed, command: SessionCommand::AckVersions(updates).into() };
                }
                Err(BadMessage) => return self.unreadable(),
            },
            Ok(message) => message,
            Err(BadMessage) => return self.unreadable(),
        };
        if (*session.stage != Stage::Upgraded) == matches!(message, ClientMessage::Hello { .. }) {
            return self.misplaced();
        }
        let (uaid, channels, broadcasts) = match message {
            ClientMessage::Hello { uaid, channels, broadcasts } => (uaid, channels, broadcasts),
            ClientMessage::Ping => return Ingest::Command { consumed, command: AgentCommand::Ping.into() },
            message => {
                return match self.asked(message, simple, None, out) {
                    MessageAction::Command(command) => Ingest::Command { consumed, command: command.into() },
                    MessageAction::Answered => Ingest::Next { consumed },
                    MessageAction::Misplaced => self.misplaced(),
                };
            }
        };
        if self.relays && uaid.is_none() && relay::opens(text) {
            *session.stage = Stage::Relay;
            return Ingest::Command { consumed, command: RelayCommand::Open.into() };
        }
        let Ok(part) = self.hello_part(text) else { return self.unreadable() };
        match self.hello(uaid, channels, broadcasts, session.agent_family, part) {
            Ok(hello) => {
                *session.stage = Stage::WebPush;
                Ingest::Command { consumed, command: AgentCommand::Hello(hello).into() }
            }
            Err(end) => end,
        }
    }
}
