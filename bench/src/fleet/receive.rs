//! Handling of the bytes that an agent receives.

use std::io;
use std::time::Duration;

use super::agent::Phase;
use super::agents::Agents;
use super::codec::{self, Message};
use super::event::{AgentEvent, End};
use super::user_data::ConnKey;
use crate::frame;

/// Bytes of a message that is not whole yet.
const INBOX_MAX: usize = 1 << 20;
/// Bytes of a control frame (RFC 6455 section 5.5).
const CONTROL_MAX: usize = 125;

impl Agents {
    /// Takes in bytes, sends what they call for, and ends the connection when they make no sense.
    pub(super) fn hear(&mut self, name: ConnKey, bytes: &[u8], happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        let mut held = self.side(name).map(|side| std::mem::take(&mut side.inbox)).unwrap_or_default();
        let verdict = if held.is_empty() {
            self.consume(name, bytes, happenings).map(|used| {
                if used < bytes.len() {
                    held.extend_from_slice(&bytes[used..]);
                }
            })
        } else {
            held.extend_from_slice(bytes);
            self.consume(name, &held, happenings).map(|used| drop(held.drain(..used)))
        };
        let verdict = match verdict {
            Ok(()) if held.len() > INBOX_MAX => {
                self.complain("a message that does not end", &held);
                Err(End::Nonsense)
            }
            Ok(()) if held.is_empty() => Ok(()),
            Ok(()) => {
                self.keep(name, held);
                Ok(())
            }
            Err(reason) => Err(reason),
        };
        let out = std::mem::take(&mut self.out);
        let sent = self.send(name, &out);
        self.out = out;
        self.out.clear();
        sent?;
        match verdict {
            Ok(()) => {
                self.put_side_away(name);
                Ok(())
            }
            Err(reason) => self.end(name, reason, happenings),
        }
    }

    fn keep(&mut self, name: ConnKey, inbox: Vec<u8>) {
        self.side_or_new(name).inbox = inbox;
    }

    /// Takes whole messages off the front of `bytes` and returns the number of their bytes.
    fn consume(&mut self, name: ConnKey, bytes: &[u8], happenings: &mut Vec<AgentEvent>) -> Result<usize, End> {
        let mut used = 0;
        if self.agent(name).phase == Phase::Upgrading {
            match codec::upgrade(bytes) {
                Ok(None) => return Ok(0),
                Ok(Some((101, head))) => used = head,
                Ok(Some((status, _))) => {
                    self.complain("an upgrade refused", bytes);
                    return Err(End::Rejected(status));
                }
                Err(why) => return Err(self.nonsense(why, bytes)),
            }
            self.upgraded(name);
        }
        loop {
            let rest = &bytes[used..];
            let frame = match frame::parse(rest) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Ok(used),
                Err(why) => return Err(self.nonsense(&why, rest)),
            };
            let payload = &rest[frame.start..frame.end];
            match frame.opcode {
                frame::TEXT => self.message(name, payload, happenings)?,
                _ if payload.len() > CONTROL_MAX => return Err(self.nonsense("a long control frame", rest)),
                frame::PING => {
                    frame::push(&mut self.out, frame::PONG, payload);
                    self.pings += 1;
                    happenings.push(AgentEvent::Pinged { agent: name.agent as usize });
                }
                frame::PONG => {
                    self.pongs += 1;
                    happenings.push(AgentEvent::Pong { agent: name.agent as usize });
                }
                frame::CLOSE => {
                    frame::push(&mut self.out, frame::CLOSE, payload);
                    return Err(End::Closed(frame::close_code(payload)));
                }
                _ => return Err(self.nonsense("a frame of a kind that a server does not send", rest)),
            }
            used += frame.end;
        }
    }

    fn nonsense(&mut self, why: &str, about: &[u8]) -> End {
        self.complain(why, about);
        End::Nonsense
    }

    fn upgraded(&mut self, name: ConnKey) {
        let now = self.now;
        if let Some(side) = self.side(name) {
            side.upgraded = now;
        }
        let agent = self.agent(name);
        agent.phase = Phase::Greeting;
        let uaid = agent.uaid();
        codec::hello(&mut self.out, uaid);
    }

    fn message(&mut self, name: ConnKey, payload: &[u8], happenings: &mut Vec<AgentEvent>) -> Result<(), End> {
        let message = codec::read(payload).map_err(|why| self.nonsense(why, payload))?;
        let index = name.agent as usize;
        match (self.agent(name).phase, message) {
            (_, Message::Notification { channel, version, data }) => {
                if self.plan.ack {
                    codec::ack(&mut self.out, channel, version);
                }
                happenings.push(AgentEvent::Notified { agent: index, sequence: codec::sequence(data), at: self.now });
            }
            (Phase::Greeting, Message::Hello(uaid)) => {
                let now = self.now;
                self.agent(name).greeted(uaid);
                if let Some(side) = self.side(name) {
                    side.greeted = now;
                }
                self.next_step(name, happenings);
            }
            (phase @ (Phase::Registering | Phase::Idle), Message::Register { status, endpoint }) => {
                let added = status == 200 && self.endpoints.add(&mut self.agents[index].endpoints, endpoint);
                if phase == Phase::Idle {
                    self.agent(name).set_registering(false);
                    happenings.push(AgentEvent::Registered { agent: index, status });
                } else if added {
                    self.next_step(name, happenings);
                } else {
                    return Err(self.nonsense("a register refused", payload));
                }
            }
            (_, Message::Unregister { status }) => happenings.push(AgentEvent::Unregistered { agent: index, status }),
            (Phase::Subscribing, Message::Broadcast) => self.idle(name, happenings),
            (_, Message::Broadcast) => happenings.push(AgentEvent::Broadcast { agent: index }),
            (_, Message::Pong) => {
                self.pongs += 1;
                happenings.push(AgentEvent::Pong { agent: index });
            }
            (Phase::Idle, Message::Urgency { status }) => {
                happenings.push(AgentEvent::MinimumSet { agent: index, status });
            }
            (Phase::Idle, Message::Other) => {}
            (_, _) => return Err(self.nonsense("an answer to something else", payload)),
        }
        Ok(())
    }

    /// The plan goes on.
    fn next_step(&mut self, name: ConnKey, happenings: &mut Vec<AgentEvent>) {
        let more = self.side(name).is_some_and(|side| {
            let more = side.to_register > 0;
            side.to_register -= usize::from(more);
            more
        });
        if more {
            self.agent(name).phase = Phase::Registering;
            let channel = self.new_channel(name);
            codec::register(&mut self.out, channel, self.plan.key.as_deref());
        } else if let Some(id) = &self.plan.broadcast {
            // A version the server does not have, so that it answers.
            codec::subscribe(&mut self.out, id, "none");
            self.agent(name).phase = Phase::Subscribing;
        } else {
            self.idle(name, happenings);
        }
    }

    fn idle(&mut self, name: ConnKey, happenings: &mut Vec<AgentEvent>) {
        let hello = self.side(name).map_or(Duration::ZERO, |side| side.greeted - side.upgraded);
        self.agent(name).phase = Phase::Idle;
        self.in_flight -= 1;
        self.connected += 1;
        happenings.push(AgentEvent::Ready { agent: name.agent as usize, hello });
    }
}
