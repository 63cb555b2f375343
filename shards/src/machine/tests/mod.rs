//! Scenarios: each race of DESIGN.md 5 and 6 by name, on a mesh of two or three machines with a fake clock, a
//! scripted store and sockets that exist only as lists of what was said on them.

mod cluster;
mod conversation;
mod delivery;
mod departure;
mod hello;
mod late;
mod liveness;
mod rates;
mod receipts;
mod relay;
mod reset;
mod script;
mod simple;
mod slow_reader;
mod topics;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::*;
use crate::ids::{Chid, Clock, KeyDigest, Origin, ShardId, StoreTicket};
use crate::message::{Message, Topic, Urgency};
use crate::place::Placement;
use crate::simple::{Mode as Reach, WakeData};
use crate::time::{Span, UnixSeconds};
use script::{Mode, Script};

/// A WebSocket of the test, wherever it is now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Socket(usize);

/// What was said on a socket.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Said {
    Hello(Uaid),
    Registered(u16),
    Unregistered(u16),
    Notification(Stamp),
    Pong,
    Ping,
    Broadcast(usize, usize),
    /// It is a relay, for so many.
    Relay(u16),
    /// To a member of a relay.
    Of(Uaid, Box<Said>),
    Bye(Option<Uaid>, CloseReason),
    Closed(CloseReason),
}

struct Place {
    shard: usize,
    conn: ConnId,
    said: Vec<Said>,
    emissions: Vec<EmissionId>,
    ready: bool,
    fed: Vec<u8>,
}

pub struct Mesh {
    pub machines: Vec<ShardMachine>,
    pub now: Now,
    pub store: Script,
    placement: Placement,
    sockets: Vec<Place>,
    /// Answers to POSTs, cancels and node requests by connection slot.
    answers: BTreeMap<(usize, u32), String>,
    published: BTreeMap<(usize, u32), Published>,
    receipts: BTreeMap<(usize, u32), ReceiptAnswer>,
    pub mail: VecDeque<(usize, Mail)>,
    /// Moves under way: the descriptor half, and the mail half.
    pub descriptors: VecDeque<(Socket, usize, Claim)>,
    pub arrivals: VecDeque<(usize, Mail)>,
    pub hold_moves: bool,
    pub hold_mail: bool,
    /// Live ledger records by shard and slot: what survives `kill -9`.
    pub ledger: BTreeMap<(usize, u32), Arc<Message>>,
    pub drained: Vec<usize>,
    /// Wake-up calls asked for.
    pub woken: Vec<WakeData>,
    /// Versions of the updates that were sent, by their stamps.
    pub versions: BTreeMap<Stamp, (Chid, u64)>,
    /// Calls between nodes under way.
    pub calls: VecDeque<(usize, StoreTicket, PeerOp)>,
    /// Calls to look at storage that got no answer: whoever carries them calls again.
    pub owed: Vec<PeerOp>,
    /// How calls to each node go.
    pub lines: Vec<Line>,
    /// The channels that the hellos of the test name.
    pub channels: Option<Box<[Chid]>>,
    next_slot: u32,
    next_uaid: u128,
}

pub fn config(shard: u16, placement: Placement) -> MachineConfig {
    MachineConfig {
        origin: Origin(1_000 + u32::from(shard)),
        relay_members: 8,
        ..MachineConfig::new(ShardId(shard), placement)
    }
}

pub const CHANNEL: Chid = Chid([0xc1; 16]);
pub const OTHER: Chid = Chid([0xc2; 16]);

impl Mesh {
    pub fn new(shards: u16) -> Mesh {
        Mesh::with(shards, |_| {})
    }

    pub fn with(shards: u16, tune: impl Fn(&mut MachineConfig)) -> Mesh {
        let placement = Placement::new([9; 16], shards);
        let machines = (0..shards).map(|n| {
            let mut config = config(n, placement);
            tune(&mut config);
            ShardMachine::new(config)
        });
        Mesh {
            machines: machines.collect(),
            now: Now { mono: Instant(1_000_000_000), unix_us: 1_700_000_000_000_000 },
            store: Script::new(),
            placement,
            sockets: Vec::new(),
            answers: BTreeMap::new(),
            published: BTreeMap::new(),
            receipts: BTreeMap::new(),
            mail: VecDeque::new(),
            descriptors: VecDeque::new(),
            arrivals: VecDeque::new(),
            hold_moves: false,
            hold_mail: false,
            ledger: BTreeMap::new(),
            drained: Vec::new(),
            woken: Vec::new(),
            versions: BTreeMap::new(),
            calls: VecDeque::new(),
            owed: Vec::new(),
            lines: Vec::new(),
            channels: None,
            next_slot: 0,
            next_uaid: 1,
        }
    }

    /// Nodes of one shard each that share the storage.
    pub fn nodes(count: usize, tune: impl Fn(&mut MachineConfig)) -> Mesh {
        let mut mesh = Mesh::with(1, |_| {});
        mesh.machines.clear();
        mesh.store.tombstones = Some(Default::default());
        for n in 0..count {
            let mut config = MachineConfig { origin: Origin(1_000 + n as u32), ..config(0, mesh.placement) };
            config.node = Some(Arc::new(node_id(n, 1)));
            tune(&mut config);
            mesh.machines.push(ShardMachine::new(config));
            mesh.lines.push(Line::Up);
        }
        mesh
    }

    /// One node dies and starts again as another boot: what its ledger held is saved.
    pub fn restart_node(&mut self, n: usize, boot: u64) {
        let config = MachineConfig {
            origin: Origin(2_000 + n as u32),
            clock_floor: Clock(self.now.unix_us),
            node: Some(Arc::new(node_id(n, boot))),
            ..self.machines[n].config.clone()
        };
        self.machines[n] = ShardMachine::new(config);
        let records: Vec<_> = self.ledger.keys().filter(|(shard, _)| *shard == n).copied().collect();
        for record in records {
            let message = self.ledger.remove(&record).expect("listed just now");
            self.store.put(message);
        }
        // Tickets of the run that died mean something else in the next one.
        self.store.replies.retain(|(shard, ..)| *shard != n);
        self.store.held.retain(|(shard, ..)| *shard != n);
        self.calls.retain(|(from, ..)| *from != n);
    }

    /// Carries one call of a node to another; false when none is to be carried.
    fn deliver_call(&mut self) -> bool {
        let Some(at) = self.calls.iter().position(|(_, _, op)| self.lines[target(op).0] != Line::Held) else {
            return false;
        };
        let (from, ticket, op) = self.calls.remove(at).expect("found just now");
        let to = target(&op).0;
        let reply = match self.lines[to] {
            Line::Up => self.carry(&op),
            Line::Mute => {
                self.carry(&op);
                PeerReply::NoAnswer
            }
            Line::Down => PeerReply::Unreachable,
            Line::Held => unreachable!("held calls are not carried"),
        };
        if matches!((&op, reply), (PeerOp::Notify { .. }, PeerReply::NoAnswer | PeerReply::Unreachable)) {
            self.owed.push(op);
        }
        self.step(from, Input::Peer { ticket, reply });
        true
    }

    /// Carries a call out on the node it is for.
    fn carry(&mut self, op: &PeerOp) -> PeerReply {
        let (to, boot) = target(op);
        if self.machines[to].config.node.as_ref().is_none_or(|node| node.boot != boot) {
            return PeerReply::NotHere;
        }
        let command = match op.clone() {
            PeerOp::Push { message, stored, .. } => Command::NodePush(Box::new(NodePush { message, stored })),
            PeerOp::Notify { uaid, unsure, .. } => Command::NodeNotify(Box::new(NodeNotify { uaid, unsure })),
            PeerOp::Leave { uaid, connected_at, .. } => Command::NodeDisconnect { uaid, connected_at },
        };
        let conn = self.conn();
        self.step(to, Input::Command { conn, command });
        match self.answers.get(&(to, conn.slot)).map(String::as_str) {
            Some("Done" | "Noted") => PeerReply::Done,
            Some("NotHere") => PeerReply::NotHere,
            Some("Busy") => PeerReply::Busy,
            other => panic!("a call was answered {other:?}"),
        }
    }

    /// Makes the owed calls to nodes that answer.
    pub fn call_again(&mut self) {
        for op in std::mem::take(&mut self.owed) {
            if self.lines[target(&op).0] == Line::Up {
                self.carry(&op);
            } else {
                self.owed.push(op);
            }
        }
        self.run();
    }

    /// The process dies and starts again: only storage is left, and what the ledgers held is saved to it.
    pub fn restart(&mut self) {
        let configs = self.machines.iter().map(|machine| MachineConfig {
            origin: Origin(machine.config.origin.0 + 1_000),
            clock_floor: Clock(self.now.unix_us),
            ..machine.config.clone()
        });
        self.machines = configs.collect::<Vec<_>>().into_iter().map(ShardMachine::new).collect();
        for message in std::mem::take(&mut self.ledger).into_values() {
            self.store.put(message);
        }
        self.store.replies.clear();
        self.mail.clear();
    }

    /// A UAID that `shard` owns and nobody has used.
    pub fn uaid_of(&mut self, shard: usize) -> Uaid {
        loop {
            self.next_uaid += 1;
            let uaid = Uaid((self.next_uaid * 0x9e37_79b9_7f4a_7c15).to_be_bytes());
            if usize::from(self.placement.owner(uaid).0) == shard % usize::from(self.placement.shard_count()) {
                return uaid;
            }
        }
    }

    /// A user that storage knows, with both channels.
    pub fn known_user(&mut self, shard: usize) -> Uaid {
        let uaid = self.uaid_of(shard);
        self.store.add_user(uaid, &[CHANNEL, OTHER]);
        uaid
    }

    fn conn(&mut self) -> ConnId {
        self.next_slot += 1;
        ConnId { slot: self.next_slot, generation: 1 }
    }

    pub fn open(&mut self, shard: usize) -> Socket {
        let conn = self.conn();
        let (said, emissions) = (Vec::new(), Vec::new());
        self.sockets.push(Place { shard, conn, said, emissions, ready: true, fed: Vec::new() });
        self.step(shard, Input::Opened { conn });
        Socket(self.sockets.len() - 1)
    }

    /// Whether the edge would take the next command of this socket.
    pub fn is_ready(&self, socket: Socket) -> bool {
        self.sockets[socket.0].ready
    }

    pub fn command(&mut self, socket: Socket, command: Command) {
        let place = &mut self.sockets[socket.0];
        assert!(place.ready, "a command only when the socket is ready");
        place.ready = false;
        let (shard, conn) = (place.shard, place.conn);
        self.step(shard, Input::Command { conn, command });
    }

    pub fn say_hello(&mut self, socket: Socket, uaid: Option<Uaid>) {
        self.say_hello_as(socket, uaid, Reach::WebPush, None);
    }

    pub fn say_hello_as(&mut self, socket: Socket, uaid: Option<Uaid>, mode: Reach, wake: Option<&str>) {
        let fresh = self.uaid_of(self.sockets[socket.0].shard);
        let wake = wake.and_then(WakeData::new);
        let hello = Hello { channels: self.channels.clone(), mode, wake, ..Hello::new(uaid, fresh) };
        self.command(socket, Command::Hello(Box::new(hello)));
    }

    /// A socket on `shard` that has said hello and everything has come to rest.
    pub fn session(&mut self, shard: usize, uaid: Option<Uaid>) -> Socket {
        let socket = self.open(shard);
        self.say_hello(socket, uaid);
        self.run();
        socket
    }

    pub fn register(&mut self, socket: Socket, chid: Chid) {
        self.command(socket, Command::Register { chid, key: Some(KeyDigest([1; 32])) });
        self.run();
    }

    pub fn ack(&mut self, socket: Socket, stamp: Stamp) {
        let update = AckUpdate { stamp, chid: CHANNEL, topic: None, code: 100 };
        self.command(socket, Command::Ack(vec![update]));
        self.run();
    }

    pub fn close(&mut self, socket: Socket) {
        let (shard, conn) = (self.sockets[socket.0].shard, self.sockets[socket.0].conn);
        self.step(shard, Input::Gone { conn, reason: CloseReason::PeerClosed });
        self.run();
    }

    /// A POST that landed on `shard`; its answer is looked up later.
    pub fn start_post(&mut self, shard: usize, message: Message) -> (usize, u32) {
        let conn = self.conn();
        let publish = Publish { uaid: message.uaid, chid: message.chid, message: Ok(Arc::new(message)) };
        self.step(shard, Input::Command { conn, command: Command::Publish(Box::new(publish)) });
        (shard, conn.slot)
    }

    pub fn answer_to(&self, post: (usize, u32)) -> Option<Published> {
        self.published.get(&post).copied()
    }

    pub fn post(&mut self, shard: usize, message: Message) -> Published {
        let post = self.start_post(shard, message);
        self.run();
        self.answer_to(post).expect("the POST was answered")
    }

    pub fn publish(&mut self, shard: usize, publish: Publish) -> Published {
        let conn = self.conn();
        self.step(shard, Input::Command { conn, command: Command::Publish(Box::new(publish)) });
        self.run();
        self.answer_to((shard, conn.slot)).expect("the POST was answered")
    }

    /// Posts and expects 201 with this disposition; returns the stamp.
    pub fn accept(&mut self, shard: usize, message: Message, expected: Disposition) -> Stamp {
        match self.post(shard, message) {
            Published::Accepted { stamp, disposition } => {
                assert_eq!(disposition, expected);
                stamp
            }
            refused => panic!("not accepted: {refused:?}"),
        }
    }

    pub fn request(&mut self, shard: usize, command: Command) -> String {
        let conn = self.conn();
        self.step(shard, Input::Command { conn, command });
        self.run();
        self.answers.get(&(shard, conn.slot)).cloned().expect("the request was answered")
    }

    /// A look at the receipt of this message that landed on `shard`; its answer is looked up later.
    pub fn start_receipt(&mut self, shard: usize, (message, stamp): (&Message, Stamp), wait: Span) -> (usize, u32) {
        let conn = self.conn();
        let Message { uaid, chid, topic, ttl, .. } = *message;
        let expires = UnixSeconds(stamp.clock.0 / 1_000_000 + u64::from(ttl));
        let query = ReceiptQuery { uaid, chid, stamp, topic, expires, wait };
        self.step(shard, Input::Command { conn, command: Command::Receipt(Box::new(query)) });
        self.run();
        (shard, conn.slot)
    }

    pub fn receipt_said(&self, asked: (usize, u32)) -> Option<ReceiptAnswer> {
        self.receipts.get(&asked).copied()
    }

    /// What is known of a message now.
    pub fn receipt(&mut self, shard: usize, message: (&Message, Stamp)) -> ReceiptAnswer {
        let asked = self.start_receipt(shard, message, Span(0));
        self.receipt_said(asked).expect("without a wait the answer comes at once")
    }

    pub fn said(&self, socket: Socket) -> &[Said] {
        &self.sockets[socket.0].said
    }

    pub fn shard_of(&self, socket: Socket) -> usize {
        self.sockets[socket.0].shard
    }

    pub fn fed(&self, socket: Socket) -> &[u8] {
        &self.sockets[socket.0].fed
    }

    pub fn uaid_on(&self, socket: Socket) -> Uaid {
        let hello = self.said(socket).iter().find_map(|said| match said {
            Said::Hello(uaid) => Some(*uaid),
            _ => None,
        });
        hello.expect("hello was answered")
    }

    pub fn notifications(&self, socket: Socket) -> Vec<Stamp> {
        self.said(socket)
            .iter()
            .filter_map(|said| match said {
                Said::Notification(stamp) => Some(*stamp),
                _ => None,
            })
            .collect()
    }

    pub fn closed(&self, socket: Socket) -> Option<CloseReason> {
        self.said(socket).iter().find_map(|said| match said {
            Said::Closed(reason) => Some(*reason),
            _ => None,
        })
    }

    /// The socket stops taking bytes.
    pub fn block(&mut self, socket: Socket) {
        let (shard, conn) = (self.sockets[socket.0].shard, self.sockets[socket.0].conn);
        self.step(shard, Input::Blocked { conn });
    }

    /// The last `count` notification frames were refused whole.
    pub fn unsend(&mut self, socket: Socket, count: usize) {
        let place = &mut self.sockets[socket.0];
        let (shard, conn) = (place.shard, place.conn);
        let refused = place.emissions.split_off(place.emissions.len() - count);
        for emission in refused {
            self.step(shard, Input::Unsent { conn, emission });
        }
    }

    pub fn unblock(&mut self, socket: Socket) {
        let (shard, conn) = (self.sockets[socket.0].shard, self.sockets[socket.0].conn);
        self.step(shard, Input::Writable { conn });
        self.run();
    }

    /// Lets time pass in steps of a fifth of a second, timeouts delivered as they come due.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 5 {
            self.now.mono = self.now.mono.after(Span::from_ms(200));
            self.now.unix_us += 200_000;
            for shard in 0..self.machines.len() {
                if self.machines[shard].next_timeout().is_some_and(|due| due <= self.now.mono) {
                    self.step(shard, Input::Timeout);
                }
            }
            self.run();
        }
    }

    /// Delivers mail, moves and storage replies until nothing is left but what is held.
    pub fn run(&mut self) {
        loop {
            if let Some((shard, ticket, result)) = self.store.replies.pop_front() {
                self.step(shard, Input::Stored { ticket, result });
            } else if !self.hold_mail && !self.mail.is_empty() {
                if let Some((to, mail)) = self.mail.pop_front() {
                    self.step(to, Input::Mail(mail));
                }
            } else if !self.hold_moves && !self.descriptors.is_empty() {
                self.deliver_descriptor();
            } else if !self.hold_moves && !self.arrivals.is_empty() {
                self.deliver_arrival();
            } else if self.deliver_call() {
            } else {
                return;
            }
        }
    }

    pub fn deliver_descriptor(&mut self) {
        let (socket, to, claim) = self.descriptors.pop_front().expect("a descriptor is under way");
        let conn = self.conn();
        let place = &mut self.sockets[socket.0];
        (place.shard, place.conn) = (to, conn);
        self.step(to, Input::Arrived { conn, claim });
    }

    pub fn deliver_arrival(&mut self) {
        let (to, mail) = self.arrivals.pop_front().expect("an arrival is under way");
        self.step(to, Input::Mail(mail));
    }

    pub fn step(&mut self, shard: usize, input: Input) {
        let mut effects = EffectQueue::new();
        self.machines[shard].step(self.now, input, &mut effects);
        for effect in effects {
            self.carry_out(shard, effect);
        }
    }

    fn socket_at(&mut self, shard: usize, conn: ConnId) -> Option<usize> {
        self.sockets.iter().position(|place| place.shard == shard && place.conn == conn)
    }

    fn carry_out(&mut self, shard: usize, effect: Effect) {
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
                let bytes: Box<[u8]> = Box::from(&b"early"[..]);
                self.arrivals.push_back((to, Mail::Arrive(Box::new(Arrival { claim, hello, bytes }))));
            }
            Effect::Feed(conn, bytes) => {
                let at = self.socket_at(shard, conn).expect("bytes are fed to a socket that arrived");
                self.sockets[at].fed.extend_from_slice(&bytes);
            }
            Effect::Mail(to, mail) => self.mail.push_back((usize::from(to.0), mail)),
            Effect::Store(ticket, op) => self.store.submit(shard, ticket, op),
            Effect::Peer(ticket, op) => self.calls.push_back((shard, ticket, op)),
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
            Event::Published(published) => {
                self.published.insert((shard, conn.slot), published);
                return;
            }
            Event::Cancelled { done } => {
                self.answers.insert((shard, conn.slot), format!("cancelled {done}"));
                return;
            }
            Event::Receipt(answer) => {
                self.receipts.insert((shard, conn.slot), answer);
                return;
            }
            Event::NodeAnswer(answer) => {
                self.answers.insert((shard, conn.slot), format!("{answer:?}"));
                return;
            }
            event => self.said_on(shard, conn, event),
        };
        let at = self.socket_at(shard, conn).expect("events go to sockets");
        assert!(
            !self.sockets[at].said.iter().any(|s| matches!(s, Said::Closed(_))),
            "nothing is said after the goodbye"
        );
        self.sockets[at].said.push(said);
    }

    fn said_on(&mut self, shard: usize, conn: ConnId, event: Event) -> Said {
        match event {
            Event::Relay(event) => match *event {
                RelayEvent::Opened { members } => Said::Relay(members),
                RelayEvent::Of { uaid, event } => Said::Of(uaid, Box::new(self.said_on(shard, conn, event))),
                RelayEvent::Bye { uaid, reason } => Said::Bye(uaid, reason),
            },
            Event::Hello { uaid, .. } => Said::Hello(uaid),
            Event::Registered { status, .. } => Said::Registered(status),
            Event::Unregistered { status, .. } => Said::Unregistered(status),
            Event::Notification { message, emission } => {
                let at = self.socket_at(shard, conn).expect("notifications go to sockets");
                self.sockets[at].emissions.push(emission);
                self.versions.extend(message.simple_version().map(|version| (message.stamp, (message.chid, version))));
                Said::Notification(message.stamp)
            }
            Event::Broadcast(delta) => Said::Broadcast(delta.changed.len(), delta.unknown.len()),
            Event::Pong => Said::Pong,
            Event::Ping => Said::Ping,
            Event::Published(_) | Event::Cancelled { .. } | Event::Receipt(_) | Event::NodeAnswer(_) => {
                panic!("an answer to HTTP")
            }
        }
    }
}

/// A message as an edge makes it: no stamp yet.
pub fn message(uaid: Uaid) -> Message {
    Message {
        uaid,
        chid: CHANNEL,
        stamp: Stamp::default(),
        ttl: 3_600,
        accepted: UnixSeconds(0),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        payload: Box::from(&b"payload"[..]),
    }
}

pub fn topical(uaid: Uaid, topic: &str) -> Message {
    Message { topic: Topic::new(topic.as_bytes()), ..message(uaid) }
}

pub fn lasting(uaid: Uaid, ttl: u32) -> Message {
    Message { ttl, ..message(uaid) }
}

/// What another node says when it has stored something.
pub fn notify(uaid: Uaid) -> Command {
    Command::NodeNotify(Box::new(NodeNotify { uaid, unsure: None }))
}

/// How calls to a node go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// Carried out and answered.
    Up,
    /// Carried out; the answer is lost.
    Mute,
    /// Not carried out.
    Down,
    /// Under way.
    Held,
}

/// A run of the `n`th node.
pub fn node_id(n: usize, boot: u64) -> NodeId {
    NodeId { url: format!("http://node/{n}").into(), boot }
}

/// Whom a call is for: which node, and which run of it.
fn target(op: &PeerOp) -> (usize, u64) {
    let (PeerOp::Push { to, .. } | PeerOp::Notify { to, .. } | PeerOp::Leave { to, .. }) = op;
    let n = to.url.rsplit('/').next().and_then(|n| n.parse().ok());
    (n.expect("nodes of tests are numbered"), to.boot)
}
