//! The scripted machine and the edge of the tests.
//!
//! A line is an order: a letter and a number. `UP` upgrades a WebSocket; `E` is answered `pong`; `H` is held
//! until the test releases it; `P` and `S` are answered at once, `S` as a request whose signature fails; `N n` sends n
//! notifications; `X` closes; `L` answers and asks for a lingering close;
//! `M n` moves to shard n; `R` registers; `W` makes a user, `W 1` greets a known one; `A` registers a user by
//! request; `O` opens a relay. An upgrade and such a request may name their caller, as `UP 192.0.2.1` does. A PROXY
//! header is a line too: `PROXY 192.0.2.1`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::ports::{Edge, Emitted, Ingest, Ingested, Ledger, Port, ProxyHeader, Refused, Store};
use crate::reactor::Machine;
use machine::ids::{Chid, Claim, ConnId, EmissionId, Stamp, Uaid};
use machine::limits::{REQUEST_COST, SIGNATURE_COST};
use machine::message::{Message, Urgency};
use machine::simplepush::Mode;
use machine::stats::{Board, Meaning};
use machine::time::{Instant, Now, UnixSeconds};
use machine::{
    AgentCommand, AgentEvent, BroadcastDelta, BroadcastVersion, Cancelled, Carried, CloseReason, Command, Effect,
    EffectQueue, Event, Hello, Input, Mail, NewChannel, RegistrationAnswer, RegistrationCall, RegistrationCommand,
    RelayCommand, SenderEvent, SessionCommand, SessionEvent, StoreOp, StoreReply,
};

/// Bytes of a notification's payload.
pub(super) const NOTE_BYTES: usize = 5_600;

#[derive(Default)]
pub(super) struct LineEdge {
    /// Address in the last upgrade.
    forwarded: Option<IpAddr>,
    refused: Refused,
    /// Cost of all that was decoded.
    pub spent: u32,
}

pub(super) enum Codec {
    Http,
    Fresh,
    Upgraded,
    /// It has no place: one line is answered.
    Placeless,
    /// Of the public port, before its first line.
    Unknown,
    /// Of the public port, behind a line that is no upgrade.
    Sender,
    /// Behind a head whose body has not come.
    Body,
}

/// Longest line.
const LINE_MAX: usize = 20_000;

impl Edge for LineEdge {
    type Codec = Codec;

    fn open(&mut self, port: Port, _tls: bool) -> Codec {
        match port {
            Port::WebSocket => Codec::Fresh,
            Port::Endpoint | Port::Node => Codec::Http,
            Port::Public => Codec::Unknown,
        }
    }

    fn open_placeless(&mut self, port: Port) -> Option<Codec> {
        matches!(port, Port::WebSocket | Port::Public).then_some(Codec::Placeless)
    }

    fn arrived(&mut self) -> Codec {
        Codec::Upgraded
    }

    fn ingest(&mut self, _now: Now, codec: &mut Codec, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingested {
        let failed_signatures = u32::from(bytes.starts_with(b"S\n"));
        let cost = REQUEST_COST + failed_signatures * SIGNATURE_COST;
        self.spent += cost;
        Ingested { ingest: self.read_line(codec, bytes, out), cost, failed_signatures }
    }

    fn take_refused(&mut self) -> Refused {
        std::mem::take(&mut self.refused)
    }

    fn emit(&mut self, _now: Now, _codec: &mut Codec, event: &Event, out: &mut Vec<u8>) -> Emitted {
        match event {
            Event::Agent(AgentEvent::Session(SessionEvent::Notification { message, emission, .. })) => {
                out.extend_from_slice(format!("note {} ", emission.0).as_bytes());
                out.extend_from_slice(&message.payload);
                out.push(b'\n');
            }
            Event::Sender(SenderEvent::Cancelled(_)) => {
                out.extend_from_slice(b"last\n");
                return Emitted::Last;
            }
            Event::Registration(RegistrationAnswer::TooMany { retry_after }) => {
                out.extend_from_slice(format!("429 {retry_after}\n").as_bytes());
            }
            _ => out.extend_from_slice(b"pong\n"),
        }
        Emitted::Stay
    }

    fn close(&mut self, _codec: &mut Codec, reason: CloseReason, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("bye {reason:?}\n").as_bytes());
    }

    fn mid_request(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::Body)
    }

    fn role(&self, codec: &Codec, port: Port) -> Port {
        match codec {
            Codec::Sender | Codec::Body => Port::Endpoint,
            Codec::Upgraded => Port::WebSocket,
            Codec::Http | Codec::Fresh | Codec::Placeless | Codec::Unknown => port,
        }
    }

    fn proxy_header(&self, bytes: &[u8]) -> ProxyHeader {
        let (word, rest) = bytes.split_at(bytes.len().min(5));
        match rest.iter().position(|byte| *byte == b'\n') {
            _ if !b"PROXY".starts_with(word) => ProxyHeader::Malformed,
            None => ProxyHeader::Incomplete,
            Some(end) => ProxyHeader::Whole { len: 5 + end + 1, source: address(&rest[..end]) },
        }
    }

    fn forwarded(&mut self) -> Option<IpAddr> {
        self.forwarded.take()
    }

    fn is_websocket(&self, codec: &Codec) -> bool {
        matches!(codec, Codec::Upgraded)
    }

    fn too_many(&self, _port: Port) -> &'static [u8] {
        b"503\n"
    }
}

impl LineEdge {
    fn read_line(&mut self, codec: &mut Codec, bytes: &mut [u8], out: &mut Vec<u8>) -> Ingest {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            return if bytes.len() > LINE_MAX {
                Ingest::Close { reason: CloseReason::TooBig }
            } else {
                Ingest::More { consumed: 0 }
            };
        };
        let (line, consumed) = (&bytes[..end], end + 1);
        if matches!(codec, Codec::Placeless) {
            out.extend_from_slice(if line == b"P" { b"at once\n" } else { self.too_many(Port::WebSocket) });
            return Ingest::Close { reason: CloseReason::Said };
        }
        if let Some(rest) = line.strip_prefix(b"UP") {
            self.forwarded = address(rest);
            *codec = Codec::Upgraded;
            out.extend_from_slice(b"101\n");
            return Ingest::Upgraded { consumed };
        }
        if matches!(codec, Codec::Unknown) {
            *codec = Codec::Sender;
        }
        if line == b"BODY" {
            *codec = Codec::Body;
            return Ingest::More { consumed };
        }
        if line == b"P" || line == b"S" {
            out.extend_from_slice(if line == b"P" { b"at once\n" } else { b"denied\n" });
            return Ingest::Next { consumed };
        }
        if let Some(rest) = line.strip_prefix(b"DENY").or(line.strip_prefix(b"LATER")) {
            self.refused.by_rule[0] += 1;
            self.refused.caller = address(rest);
            if line.starts_with(b"LATER") {
                // The answer waits for a body.
                return Ingest::More { consumed };
            }
            out.extend_from_slice(b"denied\n");
            return Ingest::Next { consumed };
        }
        let Some((op, rest)) = line.split_first() else { return Ingest::Next { consumed } };
        if *op == b'R' {
            return Ingest::Command {
                consumed,
                command: SessionCommand::Register { chid: CHID, key: None, caller: None }.into(),
            };
        }
        if *op == b'O' {
            return Ingest::Command { consumed, command: RelayCommand::Open.into() };
        }
        if *op == b'A' {
            self.forwarded = address(rest);
            let call =
                RegistrationCall::Create { device: None, channel: NewChannel { chid: CHID, key: None }, caller: None };
            return Ingest::Command { consumed, command: RegistrationCommand { uaid: Uaid([0; 16]), call }.into() };
        }
        let code = std::str::from_utf8(rest).unwrap().trim_matches([' ', '.']).parse().unwrap_or(0);
        Ingest::Command { consumed, command: SessionCommand::Unregister { chid: Chid([*op; 16]), code }.into() }
    }
}

const CHID: Chid = Chid([b'R'; 16]);

fn address(text: &[u8]) -> Option<IpAddr> {
    std::str::from_utf8(text).unwrap().trim().parse().ok()
}

/// Inputs that a script saw, for the test to look at.
pub(super) type Log = Arc<Mutex<Vec<String>>>;

#[derive(Default)]
pub(super) struct Script {
    pub log: Log,
    /// Connections whose `H` waits.
    pub held: VecDeque<ConnId>,
    /// Every WebSocket that was opened or arrived.
    pub opened: Vec<ConnId>,
    /// Carried out with the next turn.
    pub orders: Vec<Effect>,
    /// Every `Heard`: the horizon, if it was late, and how long the log was.
    pub heard: Vec<(Instant, bool, usize)>,
    /// Something is under way at storage.
    pub owes: bool,
    /// Users that have come back.
    pub users: Vec<Uaid>,
    /// Those of each session.
    pub broadcasts: Vec<BroadcastVersion>,
    busy: HashSet<ConnId>,
    unsent: Vec<(ConnId, EmissionId)>,
    claims: u64,
    arrived: HashMap<Claim, ConnId>,
    mails: HashMap<Claim, Carried>,
}

impl Script {
    /// One that tells `log` what it sees.
    pub(super) fn with(log: Log) -> Script {
        Script { log, ..Script::default() }
    }

    fn say(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    fn note(&self, conn: ConnId, emission: EmissionId) -> Effect {
        let payload = vec![b'x'; NOTE_BYTES].into();
        let message = Arc::new(Message {
            uaid: Uaid([0; 16]),
            chid: Chid([0; 16]),
            stamp: Stamp::default(),
            ttl: 0,
            accepted: UnixSeconds(0),
            urgency: Urgency::Normal,
            topic: None,
            receipt: false,
            tries: Default::default(),
            payload,
        });
        Effect::Emit(conn, SessionEvent::Notification { message, emission, tells_urgency: false }.into())
    }

    /// Takes a command that the first byte of its channel, or its code, makes an order.
    fn take(&mut self, conn: ConnId, command: Command, effects: &mut EffectQueue) {
        let (chid, code) = match command {
            Command::Agent(AgentCommand::Session(SessionCommand::Unregister { chid, code })) => (chid, code),
            Command::Agent(AgentCommand::Session(SessionCommand::Register { chid, caller, .. })) => {
                caller.into_iter().for_each(|caller| self.say(format!("caller {:x}", caller.0)));
                (chid, 0)
            }
            Command::Registration(command) => {
                if let RegistrationCall::Create { caller, .. } = &command.call {
                    caller.iter().for_each(|caller| self.say(format!("caller {:x}", caller.0)));
                }
                (CHID, 0)
            }
            Command::Relay(RelayCommand::Open) => (CHID, 0),
            _ => panic!("the edge makes no other"),
        };
        assert!(self.busy.insert(conn), "a second command while one is under way (rule 8)");
        self.say(format!("command {}", char::from(chid.0[0])));
        self.obey(conn, chid.0[0], code, effects);
    }

    fn obey(&mut self, conn: ConnId, op: u8, code: u32, effects: &mut EffectQueue) {
        match op {
            b'H' => return self.held.push_back(conn),
            b'X' => {
                self.busy.remove(&conn);
                return effects.push_back(Effect::Close(conn, CloseReason::Superseded));
            }
            b'M' => {
                self.busy.remove(&conn);
                self.claims += 1;
                let claim = Claim::new(machine::ids::ShardId(0), self.claims);
                let uaid = Uaid([0; 16]);
                let hello = Box::new(Hello::new(None, uaid));
                let to = machine::ids::ShardId(code as u16);
                return effects.push_back(Effect::Move { conn, to, claim, hello });
            }
            b'N' => effects.extend((0..code).map(|n| self.note(conn, EmissionId(n)))),
            b'W' => {
                let (uaid, mode, broadcasts) = (Uaid([0; 16]), Mode::WebPush, Box::default());
                let hello = SessionEvent::Hello { uaid, minted: code == 0, mode, broadcasts };
                effects.push_back(Effect::Emit(conn, hello.into()));
            }
            b'L' => effects.push_back(Effect::Emit(conn, Cancelled { done: true }.into())),
            _ => effects.push_back(Effect::Emit(conn, AgentEvent::Pong.into())),
        }
        self.busy.remove(&conn);
        effects.push_back(Effect::Ready(conn));
    }

    fn pair(&mut self, claim: Claim, effects: &mut EffectQueue) {
        if let (Some(conn), true) = (self.arrived.get(&claim), self.mails.contains_key(&claim)) {
            let bytes = self.mails.remove(&claim).unwrap();
            effects.push_back(Effect::Feed(*conn, bytes));
            effects.push_back(Effect::Emit(*conn, AgentEvent::Pong.into()));
            effects.push_back(Effect::Ready(*conn));
        }
    }

    /// Answers the oldest held command.
    pub(super) fn release(&mut self) {
        let conn = self.held.pop_front().expect("a command is held");
        self.busy.remove(&conn);
        self.orders.push(Effect::Emit(conn, AgentEvent::Pong.into()));
        self.orders.push(Effect::Ready(conn));
    }

    /// Has these notifications sent with the next turn.
    pub(super) fn send_notes(&mut self, conn: ConnId, ids: std::ops::Range<u32>) {
        let notes: Vec<_> = ids.map(|id| self.note(conn, EmissionId(id))).collect();
        self.orders.extend(notes);
    }
}

impl Machine for Script {
    const MEANINGS: &'static [Meaning] = &[];

    fn step(&mut self, _now: Now, input: Input, effects: &mut EffectQueue) {
        match input {
            Input::Opened { conn } => {
                self.opened.push(conn);
                self.say("opened".to_owned());
            }
            Input::Command { conn, command: Command::Agent(AgentCommand::Hello(hello)) } => {
                assert!(hello.uaid == Some(hello.fresh), "a session of an earlier process keeps its UAID");
                self.say("hello".to_owned());
                let broadcasts = Box::new(BroadcastDelta { changed: hello.broadcasts, unknown: Vec::new() });
                let hello = SessionEvent::Hello { uaid: hello.fresh, minted: false, mode: Mode::WebPush, broadcasts };
                effects.push_back(Effect::Emit(conn, hello.into()));
                effects.push_back(Effect::Ready(conn));
            }
            Input::Command { conn, command: Command::Agent(AgentCommand::Pong) } => {
                self.say("pong".to_owned());
                effects.push_back(Effect::Ready(conn));
            }
            Input::Command { conn, command } => self.take(conn, command, effects),
            Input::Frame { .. } => self.say("frame".to_owned()),
            Input::Gone { reason, .. } => self.say(format!("gone {reason:?}")),
            Input::Blocked { .. } => self.say("blocked".to_owned()),
            Input::Unsent { conn, emission } => {
                self.say(format!("unsent {}", emission.0));
                self.unsent.push((conn, emission));
            }
            Input::Writable { conn } => {
                self.say("writable".to_owned());
                let unsent = std::mem::take(&mut self.unsent);
                let (due, other) = unsent.into_iter().partition(|(of, _)| *of == conn);
                self.unsent = other;
                let due: Vec<(ConnId, EmissionId)> = due;
                effects.extend(due.into_iter().map(|(conn, emission)| self.note(conn, emission)));
            }
            Input::Mail(Mail::Arrive(arrival)) => {
                self.say("arrival mail".to_owned());
                self.mails.insert(arrival.claim, arrival.bytes);
                self.pair(arrival.claim, effects);
            }
            Input::Arrived { conn, claim } => {
                self.say("arrived".to_owned());
                self.opened.push(conn);
                self.arrived.insert(claim, conn);
                self.pair(claim, effects);
            }
            Input::MoveFailed { conn, .. } => {
                self.say("move failed".to_owned());
                effects.push_back(Effect::Close(conn, CloseReason::MoveFailed));
            }
            Input::Timeout => effects.extend(self.orders.drain(..)),
            Input::Drain { .. } if self.owes => {}
            Input::Drain { .. } => effects.push_back(Effect::Drained),
            Input::HorizonAdvanced { until, late } => self.heard.push((until, late, self.log.lock().unwrap().len())),
            Input::ClockStopped(stopped) => self.log.lock().unwrap().push(format!("clock stopped: {stopped}")),
            Input::Mail(_)
            | Input::Stored { .. }
            | Input::Peer { .. }
            | Input::Upstream { .. }
            | Input::Broadcasts(_)
            | Input::ReadStorage => {}
        }
    }

    fn hello_of(&self, conn: ConnId) -> Option<Hello> {
        let uaid = Uaid([conn.slot as u8; 16]);
        Some(Hello { broadcasts: self.broadcasts.clone(), ..Hello::new(Some(uaid), uaid) })
    }

    fn owes_nothing_but(&self, idle: usize) -> bool {
        !self.owes && self.opened.len() == idle
    }

    fn has_user(&self, uaid: Uaid) -> bool {
        self.users.contains(&uaid)
    }

    fn next_timeout(&self) -> Option<Instant> {
        (!self.orders.is_empty()).then_some(Instant(0))
    }

    fn write_to(&mut self, _board: &Board, _at: usize) {}
}

/// Storage and ledger of the tests: they are not used.
pub(super) struct Nothing;

impl Store for Nothing {
    fn submit(&mut self, _ticket: machine::ids::StoreTicket, _op: StoreOp) {}

    fn collect(&mut self) -> Option<(machine::ids::StoreTicket, Result<StoreReply, machine::StoreError>)> {
        None
    }
}

impl Ledger for Nothing {
    fn append(&mut self, _slot: machine::ids::LedgerSlot, _message: &Message) {}

    fn dead(&mut self, _slot: machine::ids::LedgerSlot) {}

    fn clock_floor(&mut self, _clock: machine::ids::Clock) {}
}
