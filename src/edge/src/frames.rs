//! Events of sessions and of relays, written as frames (PROTOCOL.md 1 and 13).

use machine::message::Message;
use machine::{AgentEvent, RelayEvent, SessionEvent};

use super::PushEdge;
use super::close::close_frame;
use protocol::webpush::endpoint::Subscription;
use protocol::webpush::message_id::MessageId;
use protocol::webpush::payload;
use protocol::wire::relay;
use protocol::wire::server_message;
use protocol::wire::simplepush;
use protocol::wire::ws::{self, Opcode};

/// Code and text of a bye that the relay itself requested: a normal end (RFC 6455 section 7.4.1).
const ASKED_FOR: (u16, &str) = (1000, "");

impl PushEdge {
    /// Writes an event. `simple` is true if the hello was answered in SimplePush mode.
    pub(super) fn emit_websocket(&mut self, simple: bool, event: &AgentEvent, out: &mut Vec<u8>) {
        match event {
            AgentEvent::Session(event) => ws::write_frame(out, Opcode::Text, |out| self.push_text(simple, event, out)),
            AgentEvent::Ping => write_ping(out),
            AgentEvent::Pong => write_pong(out),
        }
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

    fn push_text(&mut self, simple: bool, event: &SessionEvent, out: &mut Vec<u8>) {
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

fn write_ping(out: &mut Vec<u8>) {
    ws::write_frame(out, Opcode::Ping, |_| ());
}

fn write_pong(out: &mut Vec<u8>) {
    ws::write_frame(out, Opcode::Text, |out| out.extend_from_slice(b"{}"));
}
