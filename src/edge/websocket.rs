//! The port of user agents after the upgrade: frames to commands, events to frames (PROTOCOL.md 1).

use machine::ids::{Chid, Uaid};
use machine::message::Message;
use machine::simplepush::Mode;
use machine::{
    AckUpdate, AgentCommand, AgentEvent, BroadcastVersion, CloseReason, Hello, RelayCommand, SessionCommand,
    SessionEvent,
};
use shards::ports::{Ingest, Port};
use shards::strangers::Access;

use super::PushEdge;
use super::upgraded::{Fragments, Session, Stage};
use protocol::webpush::endpoint::Subscription;
use protocol::webpush::message_id::MessageId;
use protocol::webpush::payload;
use protocol::wire::client_message::{self, Ack, BadMessage, ClientMessage};
use protocol::wire::relay;
use protocol::wire::server_message;
use protocol::wire::simplepush::{self, HelloPart};
use protocol::wire::text::parse_dashed;
use protocol::wire::ws::{self, FrameError, Kind, Opcode};

/// Result of reading a message.
pub(super) enum MessageAction {
    Command(SessionCommand),
    /// The edge answered it, or there is nothing to ask.
    Answered,
    /// The state of the session does not allow the message.
    Misplaced,
}

/// Text in the place of an endpoint when the key of a `register` is no point on P-256 (PROTOCOL.md 1.6).
const NO_ENDPOINT: &[u8] = b"Failed to generate endpoint";
/// Text in that place when `access.vapid_keys` lacks the key.
const NOT_ALLOWED: &[u8] = b"This server has no endpoints for this key";

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

    /// Returns the hello for the machine, or ends the connection when the kernel gives no random bytes.
    pub(super) fn hello(
        &mut self,
        uaid: Option<[u8; 16]>,
        channels: Option<Vec<[u8; 16]>>,
        broadcasts: Vec<BroadcastVersion>,
        agent_family: u16,
        HelloPart { mode, wake }: HelloPart,
    ) -> Result<Box<Hello>, Ingest> {
        let Some(fresh) = self.fresh.draw() else { return Err(Ingest::Close { reason: CloseReason::Overloaded }) };
        let channels = channels.filter(|_| self.reconcile).map(|ids| ids.into_iter().map(Chid).collect());
        let uaid = uaid.map(Uaid);
        Ok(Box::new(Hello { uaid, fresh, channels, broadcasts, agent_family, mode, wake }))
    }

    /// Handles any message but hello and ping. `member` is the speaker on a relay.
    pub(super) fn asked(
        &mut self,
        message: ClientMessage<'_>,
        simple: bool,
        member: Option<Uaid>,
        out: &mut Vec<u8>,
    ) -> MessageAction {
        MessageAction::Command(match message {
            ClientMessage::Hello { .. } | ClientMessage::Ping => return MessageAction::Misplaced,
            ClientMessage::Register { channel, key } => {
                let Some(chid) = parse_dashed(channel.as_bytes()) else { return MessageAction::Misplaced };
                // An endpoint of SimplePush is locked to no key.
                let checked = key.filter(|_| !simple).map(|key| self.points.check(key.as_bytes()));
                let refused = if checked == Some(None) {
                    self.stats.registers_refused += 1;
                    Some((400, NO_ENDPOINT))
                } else if !self.access.may_register(checked.flatten()) {
                    self.refuse_access(Access::Vapid);
                    Some((401, NOT_ALLOWED))
                } else {
                    None
                };
                if let Some((status, text)) = refused {
                    let endpoint = |out: &mut Vec<u8>| out.extend_from_slice(text);
                    let refusal = |out: &mut Vec<u8>| server_message::registered(&chid, status, endpoint, out);
                    ws::write_frame(out, Opcode::Text, |out| match member {
                        Some(uaid) => relay::of_member(&uaid.0, refusal, out),
                        None => refusal(out),
                    });
                    return MessageAction::Answered;
                }
                SessionCommand::Register { chid: Chid(chid), key: checked.flatten() }
            }
            ClientMessage::Unregister { channel, code } => SessionCommand::Unregister { chid: Chid(channel), code },
            ClientMessage::Ack(acks) => match self.open_acks(&acks) {
                updates if updates.is_empty() => return MessageAction::Answered,
                updates => SessionCommand::Ack(updates),
            },
            ClientMessage::Nack { code } => SessionCommand::Nack { code },
            ClientMessage::BroadcastSubscribe(versions) => SessionCommand::BroadcastSubscribe(versions),
            ClientMessage::Urgency { minimum } => SessionCommand::Urgency { minimum },
        })
    }

    /// Reads the mode, and in SimplePush mode the wake address.
    fn hello_part(&self, text: &str) -> Result<HelloPart, BadMessage> {
        if self.simplepush { simplepush::read_hello(text) } else { Ok(HelloPart { mode: Mode::WebPush, wake: None }) }
    }

    pub(super) fn unreadable(&mut self) -> Ingest {
        self.stats.messages_refused += 1;
        Ingest::Close { reason: CloseReason::BadMessage }
    }

    pub(super) fn misplaced(&mut self) -> Ingest {
        self.stats.messages_misplaced += 1;
        Ingest::Close { reason: CloseReason::WrongState }
    }

    /// Returns the acks whose ids this server sealed. The sealed user is not compared: the machine searches only what
    /// it sent to this session, and a stamp names one message of one user.
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

    /// Writes an event. `simplepush` is true if the hello was answered in SimplePush mode.
    pub(super) fn emit_websocket(&mut self, simple: bool, event: &AgentEvent, out: &mut Vec<u8>) {
        match event {
            AgentEvent::Session(event) => ws::write_frame(out, Opcode::Text, |out| self.push_text(simple, event, out)),
            AgentEvent::Ping => write_ping(out),
            AgentEvent::Pong => write_pong(out),
        }
    }

    pub(super) fn push_text(&mut self, simple: bool, event: &SessionEvent, out: &mut Vec<u8>) {
        match event {
            SessionEvent::Notification { message, tells_urgency, .. } => {
                self.push_notification(message, *tells_urgency, out);
            }
            SessionEvent::Hello { uaid, mode, broadcasts, .. } => {
                server_message::hello(&uaid.0, *mode, broadcasts, out)
            }
            SessionEvent::Registered { uaid, chid, key, status } => {
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
                // The channel is registered. A second register gives the URL that could not be made now.
                let status = if sealed { *status } else { 500 };
                let endpoint = |out: &mut Vec<u8>| out.extend_from_slice(&self.url);
                server_message::registered(&chid.0, status, endpoint, out);
            }
            SessionEvent::Unregistered { chid, status } => server_message::unregistered(&chid.0, *status, out),
            SessionEvent::Urgency { status } => server_message::urgency(*status, out),
            SessionEvent::Broadcast(delta) => server_message::broadcast(delta, out),
        }
    }

    fn push_notification(&self, message: &Message, tells_urgency: bool, out: &mut Vec<u8>) {
        if let Some(update) = message.update() {
            return simplepush::update(&message.chid.0, &update, out);
        }
        let Message { stamp, uaid, chid, topic, .. } = *message;
        let version = |out: &mut Vec<u8>| self.ids.seal(&MessageId { stamp, uaid, chid, topic }, out);
        let content = |out: &mut Vec<u8>| payload::push_content(&message.payload, out);
        let urgency = tells_urgency.then_some(message.urgency);
        server_message::notification(&chid.0, version, urgency, content, out);
    }
}

pub(super) fn write_ping(out: &mut Vec<u8>) {
    ws::write_frame(out, Opcode::Ping, |_| ());
}

pub(super) fn write_pong(out: &mut Vec<u8>) {
    ws::write_frame(out, Opcode::Text, |out| out.extend_from_slice(b"{}"));
}
