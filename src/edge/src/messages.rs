//! Messages of user agents, of their own or by a relay: what each asks of the machine (PROTOCOL.md 1).

use machine::ids::{Chid, Uaid};
use machine::simplepush::Mode;
use machine::{AckUpdate, BroadcastVersion, CloseReason, Hello, SessionCommand};
use runtime::ports::Ingest;
use runtime::strangers::Access;

use super::PushEdge;
use protocol::webpush::message_id::MessageId;
use protocol::wire::client_message::{Ack, BadMessage, ClientMessage};
use protocol::wire::relay;
use protocol::wire::server_message;
use protocol::wire::simplepush::{self, HelloPart};
use protocol::wire::text::parse_dashed;
use protocol::wire::ws::{self, Opcode};

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
                SessionCommand::Register { chid: Chid(chid), key: checked.flatten(), caller: None }
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
    pub(super) fn hello_part(&self, text: &str) -> Result<HelloPart, BadMessage> {
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
}
