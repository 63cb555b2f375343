//! The port of user agents after the upgrade: frames to commands, events to frames (BEHAVIOUR.md 1).

use shards::ids::{Chid, Uaid};
use shards::machine::{AckUpdate, CloseReason, Command, Event, Hello};
use shards::message::Message;
use shards::ports::Ingest;
use shards::simple::Mode;

use super::PushEdge;
use crate::webpush::endpoint::Subscription;
use crate::webpush::message_id::MessageId;
use crate::webpush::payload;
use crate::wire::push::{self, Ack, BadMessage, ClientMessage};
use crate::wire::server_message;
use crate::wire::simple::{self, HelloPart};
use crate::wire::text::parse_dashed;
use crate::wire::ws::{self, FrameFault, Kind, Opcode};

/// Decoding state of an upgraded WebSocket, borrowed from its codec.
pub(super) struct Session<'c> {
    pub(super) fragments: &'c mut Option<Box<Fragments>>,
    pub(super) agent_family: u16,
    pub(super) greeted: &'c mut bool,
    pub(super) simple: bool,
}

/// The fragments of a text message whose last one is not there yet; at most `ws::MESSAGE_BYTES_MAX` bytes.
pub struct Fragments {
    text: Vec<u8>,
}

/// What `register` says in the place of an endpoint when its key is no point on P-256 (BEHAVIOUR.md 1.6).
const NO_ENDPOINT: &[u8] = b"Failed to generate endpoint";

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
                // Of several pings in a row only the latest is owed a pong (RFC 6455 section 5.5.3).
                if !ws::is_next(&bytes[consumed..], Kind::Ping) {
                    let payload = &bytes[start..consumed];
                    ws::write_frame(out, Opcode::Pong, |out| out.extend_from_slice(payload));
                }
                Ingest::Next { consumed }
            }
            Kind::Pong if *session.greeted => Ingest::Command { consumed, command: Command::Pong },
            Kind::Pong => Ingest::Next { consumed },
            Kind::Close => match ws::close_code(frame.payload) {
                Ok(code) => {
                    let reason = frame.payload.get(2..).and_then(|reason| std::str::from_utf8(reason).ok());
                    ws::write_close(out, code, reason.unwrap_or_default());
                    Ingest::Close { reason: CloseReason::PeerClosed }
                }
                Err(fault) => self.frame_fault(fault),
            },
            Kind::Text if frame.is_final => self.message(session, frame.payload, consumed, out),
            Kind::Text | Kind::Continuation => {
                let mut fragments =
                    session.fragments.take().unwrap_or_else(|| Box::new(Fragments { text: Vec::new() }));
                fragments.text.extend_from_slice(frame.payload);
                if frame.is_final {
                    return self.message(session, &fragments.text, consumed, out);
                }
                *session.fragments = Some(fragments);
                Ingest::Next { consumed }
            }
        }
    }

    fn frame_fault(&mut self, fault: FrameFault) -> Ingest {
        self.stats.frames_refused += 1;
        let reason = match fault {
            FrameFault::Protocol => CloseReason::ProtocolError,
            FrameFault::Binary => CloseReason::Unsupported,
            FrameFault::TooBig => CloseReason::TooBig,
            FrameFault::BadText => CloseReason::BadText,
        };
        Ingest::Close { reason }
    }

    fn message(&mut self, session: Session<'_>, text: &[u8], consumed: usize, out: &mut Vec<u8>) -> Ingest {
        let Ok(text) = std::str::from_utf8(text) else {
            self.stats.frames_refused += 1;
            return Ingest::Close { reason: CloseReason::BadText };
        };
        let message = match push::read(text) {
            // In SimplePush mode an ack names versions.
            Ok(ClientMessage::Ack(acks)) if session.simple && !acks.is_empty() => return self.unreadable(),
            Err(_) if session.simple => match simple::read_acks(text) {
                Ok(updates) => return Ingest::Command { consumed, command: Command::AckVersions(updates) },
                Err(BadMessage) => return self.unreadable(),
            },
            Ok(message) => message,
            Err(BadMessage) => return self.unreadable(),
        };
        if *session.greeted == matches!(message, ClientMessage::Hello { .. }) {
            return self.misplaced();
        }
        let command = match message {
            ClientMessage::Hello { uaid, channels, broadcasts } => {
                let Ok(HelloPart { mode, wake }) = self.hello_part(text) else { return self.unreadable() };
                let Some(fresh) = self.fresh.draw() else {
                    return Ingest::Close { reason: CloseReason::Overloaded };
                };
                *session.greeted = true;
                let agent_family = session.agent_family;
                let channels = channels.filter(|_| self.reconcile).map(|ids| ids.into_iter().map(Chid).collect());
                let uaid = uaid.map(Uaid);
                Command::Hello(Box::new(Hello { uaid, fresh, channels, broadcasts, agent_family, mode, wake }))
            }
            ClientMessage::Register { channel, key } => {
                let Some(chid) = parse_dashed(channel.as_bytes()) else { return self.misplaced() };
                // An endpoint of SimplePush is locked to no key.
                let checked = key.filter(|_| !session.simple).map(|key| self.points.check(key.as_bytes()));
                if checked == Some(None) {
                    self.stats.registers_refused += 1;
                    let endpoint = |out: &mut Vec<u8>| out.extend_from_slice(NO_ENDPOINT);
                    ws::write_frame(out, Opcode::Text, |out| server_message::registered(&chid, 400, endpoint, out));
                    return Ingest::Next { consumed };
                }
                Command::Register { chid: Chid(chid), key: checked.flatten() }
            }
            ClientMessage::Unregister { channel, code } => Command::Unregister { chid: Chid(channel), code },
            ClientMessage::Ack(acks) => match self.open_acks(&acks) {
                updates if updates.is_empty() => return Ingest::Next { consumed },
                updates => Command::Ack(updates),
            },
            ClientMessage::Nack { code } => Command::Nack { code },
            ClientMessage::BroadcastSubscribe(versions) => Command::BroadcastSubscribe(versions),
            ClientMessage::Ping => Command::Ping,
        };
        Ingest::Command { consumed, command }
    }

    /// Whether it is in SimplePush mode, and how it is woken then.
    fn hello_part(&self, text: &str) -> Result<HelloPart, BadMessage> {
        if self.simplepush { simple::read_hello(text) } else { Ok(HelloPart { mode: Mode::WebPush, wake: None }) }
    }

    fn unreadable(&mut self) -> Ingest {
        self.stats.messages_refused += 1;
        Ingest::Close { reason: CloseReason::BadMessage }
    }

    fn misplaced(&mut self) -> Ingest {
        self.stats.messages_misplaced += 1;
        Ingest::Close { reason: CloseReason::WrongState }
    }

    /// The acks whose ids we sealed. Which user they were sealed for is not asked: the machine looks among what
    /// this session was sent, and a stamp names one message of one user.
    fn open_acks(&mut self, acks: &[Ack<'_>]) -> Vec<AckUpdate> {
        let mut updates = Vec::with_capacity(acks.len());
        for ack in acks {
            match self.ids.open(ack.version.as_bytes()) {
                Some(MessageId { stamp, chid, topic, .. }) => {
                    updates.push(AckUpdate { stamp, chid, topic, code: ack.code });
                }
                None => self.stats.ack_ids_unknown += 1,
            }
        }
        updates
    }

    /// `simple`: its hello was answered in SimplePush mode.
    pub(super) fn emit_websocket(&mut self, simple: bool, event: &Event, out: &mut Vec<u8>) {
        match event {
            Event::Ping => ws::write_frame(out, Opcode::Ping, |_| ()),
            Event::Notification { message, .. } => {
                ws::write_frame(out, Opcode::Text, |out| self.push_notification(message, out));
            }
            Event::Hello { uaid, mode, broadcasts } => {
                ws::write_frame(out, Opcode::Text, |out| server_message::hello(&uaid.0, *mode, broadcasts, out));
            }
            Event::Registered { uaid, chid, key, status } => {
                self.url.clear();
                let sealed = match *status {
                    200 if simple => {
                        self.tokens.seal_simple(*uaid, *chid, &mut self.url);
                        true
                    }
                    200 => {
                        self.tokens.seal(&Subscription { uaid: *uaid, chid: *chid, key: *key }, &mut self.url).is_some()
                    }
                    _ => true,
                };
                // The channel is registered, and registering it again gives the URL that could not be made now.
                let status = if sealed { *status } else { 500 };
                let endpoint = |out: &mut Vec<u8>| out.extend_from_slice(&self.url);
                ws::write_frame(out, Opcode::Text, |out| server_message::registered(&chid.0, status, endpoint, out));
            }
            Event::Unregistered { chid, status } => {
                ws::write_frame(out, Opcode::Text, |out| server_message::unregistered(&chid.0, *status, out));
            }
            Event::Broadcast(delta) => {
                ws::write_frame(out, Opcode::Text, |out| server_message::broadcast(delta, out));
            }
            Event::Pong => ws::write_frame(out, Opcode::Text, |out| out.extend_from_slice(b"{}")),
            // Answers to HTTP requests, which no WebSocket makes.
            Event::Published(_) | Event::Cancelled { .. } | Event::Receipt(_) | Event::NodeAnswer(_) => {}
        }
    }

    fn push_notification(&self, message: &Message, out: &mut Vec<u8>) {
        if let Some(update) = message.update() {
            return simple::update(&message.chid.0, &update, out);
        }
        let Message { stamp, uaid, chid, topic, .. } = *message;
        let version = |out: &mut Vec<u8>| self.ids.seal(&MessageId { stamp, uaid, chid, topic }, out);
        let content = |out: &mut Vec<u8>| payload::push_content(&message.payload, out);
        server_message::notification(&chid.0, version, content, out);
    }
}
