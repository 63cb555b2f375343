//! Execution of the effects of a machine.

use super::{Mesh, Socket};
use crate::ids::{ConnId, Stamp, Uaid};
use crate::shard::*;

/// Message on a socket.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Said {
    Hello(Uaid),
    Registered(u16),
    Unregistered(u16),
    Urgency(u16),
    Notification(Stamp),
    Pong,
    Ping,
    Broadcast(usize, usize),
    /// The socket is a relay, with this maximum number of members.
    Relay(u16),
    /// Message to a member of a relay.
    Of(Uaid, Box<Said>),
    Bye(Option<Uaid>, CloseReason),
    Closed(CloseReason),
}

impl Mesh {
    fn socket_at(&mut self, shard: usize, conn: ConnId) -> Option<usize> {
        self.sockets.iter().position(|place| place.shard == shard && place.conn == conn)
    }

    pub(super) fn carry_out(&mut self, shard: usize, effect: Effect) {
        match effect {
            Effect::Ready(conn) => {
                if let Some(at) = self.socket_at(shard, conn) {
                    self.sockets[at].ready = true;
                }
            }
            Effect::Emit(conn, event) => self.emit(shard, conn, event),
            Effect::Close(conn, reason) => {
                if let Some(at) = self.socket_at(shard, conn) {
                    self.sockets[at].said.push(Said::Closed(reason));
                }
            }
            Effect::Move { conn, to, claim, hello } => {
                let at = self.socket_at(shard, conn).expect("only sockets move");
                let to = usize::from(to.0);
                self.descriptors.push_back((Socket(at), to, claim));
                let bytes = Carried(Box::from(&b"early"[..]));
                self.arrivals.push_back((to, Mail::Arrive(Box::new(Arrival { claim, hello, bytes }))));
            }
            Effect::Feed(conn, bytes) => {
                let at = self.socket_at(shard, conn).expect("bytes are fed to a socket that arrived");
                self.sockets[at].fed.extend_from_slice(&bytes.0);
            }
            Effect::Mail(to, mail) => self.mail.push_back((usize::from(to.0), mail)),
            Effect::Store(ticket, op) => self.store.submit(shard, ticket, op),
            Effect::Peer(ticket, op) => self.calls.push_back((shard, ticket, op)),
            Effect::Upstream(ticket, op) => self.upstream_calls.push_back((shard, ticket, op)),
            Effect::LedgerAppend(slot, message) => {
                let before = self.ledger.insert((shard, slot.0), message);
                assert!(before.is_none(), "a ledger slot is dead before it is used again");
            }
            Effect::LedgerDead(slot) => {
                assert!(self.ledger.remove(&(shard, slot.0)).is_some(), "a ledger record dies once");
            }
            Effect::ClockFloor(_) => {}
            Effect::Wake(data) => self.woken.push(data),
            Effect::Drained => self.drained.push(shard),
        }
    }

    fn emit(&mut self, shard: usize, conn: ConnId, event: Event) {
        let said = match event {
            Event::Sender(SenderEvent::Published(published)) => {
                self.published.insert((shard, conn.slot), published);
                return;
            }
            Event::Sender(SenderEvent::Cancelled(Cancelled { done })) => {
                self.answers.insert((shard, conn.slot), format!("cancelled {done}"));
                return;
            }
            Event::Sender(SenderEvent::Receipt(answer)) => {
                self.receipts.insert((shard, conn.slot), answer);
                return;
            }
            Event::Registration(answer) => {
                self.registrations.insert((shard, conn.slot), answer);
                return;
            }
            Event::Node(answer) => {
                self.answers.insert((shard, conn.slot), format!("{answer:?}"));
                return;
            }
            Event::Agent(AgentEvent::Session(event)) => self.said_on(shard, conn, event),
            Event::Agent(AgentEvent::Pong) | Event::Relay(RelayEvent::Pong) => Said::Pong,
            Event::Agent(AgentEvent::Ping) | Event::Relay(RelayEvent::Ping) => Said::Ping,
            Event::Relay(RelayEvent::Opened { members }) => Said::Relay(members),
            Event::Relay(RelayEvent::Of { uaid, event }) => Said::Of(uaid, Box::new(self.said_on(shard, conn, *event))),
            Event::Relay(RelayEvent::Bye { uaid, reason }) => Said::Bye(uaid, reason),
        };
        let at = self.socket_at(shard, conn).expect("events go to sockets");
        assert!(
            !self.sockets[at].said.iter().any(|s| matches!(s, Said::Closed(_))),
            "nothing is said after the goodbye"
        );
        self.sockets[at].said.push(said);
    }

    fn said_on(&mut self, shard: usize, conn: ConnId, event: SessionEvent) -> Said {
        match event {
            SessionEvent::Hello { uaid, .. } => Said::Hello(uaid),
            SessionEvent::Registered { status, .. } => Said::Registered(status),
            SessionEvent::Unregistered { status, .. } => Said::Unregistered(status),
            SessionEvent::Urgency { status } => Said::Urgency(status),
            SessionEvent::Notification { message, emission, tells_urgency } => {
                let at = self.socket_at(shard, conn).expect("notifications go to sockets");
                self.sockets[at].emissions.push(emission);
                self.sockets[at].told.extend(tells_urgency.then_some(message.urgency));
                self.versions.extend(message.simple_version().map(|version| (message.stamp, (message.chid, version))));
                Said::Notification(message.stamp)
            }
            SessionEvent::Broadcast(delta) => Said::Broadcast(delta.changed.len(), delta.unknown.len()),
        }
    }
}
