//! Tests of the edge without any socket: its commands to the machine, its output and its ends.

mod access;
mod bad_input;
mod callers;
mod chunking;
mod endpoint;
mod fields;
mod foreign;
mod heads;
mod node;
mod public;
mod receipts;
mod registration;
mod relay;
mod replies;
mod senders;
mod simple;
mod unfinished;
mod websocket;

use std::sync::Arc;

use machine::ids::{Chid, Clock, KeyDigest, Origin, ShardId, Stamp, Uaid};
use machine::placement::Placement;
use machine::time::{Instant, Now};
use machine::{
    AgentCommand, AgentEvent, Cancelled, CloseReason, Command, Disposition, Event, Hello, NewChannel, NodeAnswer,
    NodeCommand, Published, ReceiptAnswer, RegistrationAnswer, RegistrationCall, RelayCommand, RelayEvent,
    SenderCommand, SessionCommand, SessionEvent,
};
use runtime::ports::{Edge, Emitted, Ingest, Port};
use runtime::process_clock::ProcessClock;

use super::{
    AccessRules, AdmissionGate, BODY_BYTES_DEFAULT, Codec, EdgeConfig, EdgeKeys, Forwarding, PushEdge,
    UNFINISHED_BYTES_MAX, VersionInfo,
};
use protocol::webpush::endpoint::{Subscription, TokenForm, Tokens};
use protocol::webpush::identity::Identity;
use protocol::webpush::key::key_digest;
use protocol::wire::url::BaseUrl;
use protocol::wire::ws::{self, Opcode};

pub(super) const KEY: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
pub(super) const OTHER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
pub(super) const ORIGIN: &str = "https://push.example.com";
pub(super) const NODE_KEY: &str = "node-key";
/// Boot of the node that is tested.
pub(super) const BOOT: u64 = 0x0123_4567_89ab_cdef;
/// Wall time of every test, in seconds.
pub(super) const NOW: u64 = 1_700_000_000;

pub(super) fn config() -> EdgeConfig {
    EdgeConfig {
        reconcile: false,
        relays: true,
        endpoint_url: base(ORIGIN),
        agent_url: base("https://push.example.org").origin().clone(),
        tokens: TokenForm::Short,
        keys: EdgeKeys { crypto: vec![KEY.into()], node: vec!["older".into(), NODE_KEY.into()] },
        registrations: Arc::default(),
        rules: AccessRules::default(),
        forwarding: Forwarding::default(),
        placement: Placement::new([1; 16], 3),
        shard: ShardId(1),
        body_bytes_max: BODY_BYTES_DEFAULT,
        simplepush: false,
        boot: BOOT,
        hsts: 0,
        receipts: true,
        gate: Arc::default(),
        vapid_cache_max: 64,
        origin_rate: 0,
        unfinished_bytes_max: UNFINISHED_BYTES_MAX,
        clock: Arc::new(ProcessClock::standing(NOW * 1_000_000)),
        version: VersionInfo { version: "1.2.3".into(), ..VersionInfo::default() },
        events: None,
    }
}

pub(super) fn base(url: &str) -> BaseUrl {
    BaseUrl::parse(url).unwrap()
}

pub(super) fn now() -> Now {
    Now { mono: Instant(5), unix_us: NOW * 1_000_000 }
}

/// An app server with a key of its own.
struct Sender(Identity);

impl Sender {
    fn new() -> Sender {
        Sender(Identity::generate())
    }

    fn key(&self) -> String {
        self.0.public_key()
    }

    fn digest(&self) -> KeyDigest {
        key_digest(self.0.point().try_into().unwrap())
    }

    fn good_token(&self, exp: u64) -> String {
        self.0.sign(&serde_json::json!({ "aud": ORIGIN, "exp": exp, "sub": "mailto:a@b" }))
    }
}

/// A fresh endpoint.
fn url(tokens: &mut Tokens, subscription: &Subscription) -> String {
    let mut out = Vec::new();
    tokens.seal(subscription, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// The path of a fresh endpoint of user agent 1 and channel 2.
pub(super) fn endpoint_path(form: TokenForm, key: Option<KeyDigest>) -> String {
    let mut tokens = Tokens::new(&base(ORIGIN), form, &config().keys.crypto).unwrap();
    let url = url(&mut tokens, &Subscription { uaid: Uaid([1; 16]), chid: Chid([2; 16]), key });
    url.strip_prefix(ORIGIN).unwrap().to_string()
}

/// One event on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Out(Vec<u8>),
    /// The machine was asked this, in words.
    Asked(String),
    Upgraded,
    Closed(CloseReason),
    /// The connection's last answer was given.
    Last,
}

/// One connection, driven as the loop of a shard drives it.
pub(super) struct Harness {
    pub(super) edge: PushEdge,
    pub(super) codec: Codec,
    /// Bytes received and not consumed.
    aside: Vec<u8>,
    pub(super) steps: Vec<Step>,
    pub(super) commands: Vec<Command>,
    /// Answer of the machine to a POST.
    pub(super) published: Published,
    pub(super) node_answer: NodeAnswer,
    /// Answer of the machine to the next call of the registration API, instead of that of a user who exists.
    pub(super) registration: Option<RegistrationAnswer>,
    /// Answer of the machine to a receipt request.
    pub(super) receipt: ReceiptAnswer,
    ended: bool,
}

pub(super) const STAMP: Stamp = Stamp { clock: Clock(77), origin: Origin(8) };

impl Harness {
    pub(super) fn new(port: Port) -> Harness {
        Harness::with(PushEdge::new(&config()).unwrap(), port)
    }

    pub(super) fn with(edge: PushEdge, port: Port) -> Harness {
        Harness::over(edge, port, false)
    }

    pub(super) fn over(mut edge: PushEdge, port: Port, tls: bool) -> Harness {
        let codec = edge.open(port, tls);
        Harness {
            edge,
            codec,
            aside: Vec::new(),
            steps: Vec::new(),
            commands: Vec::new(),
            published: Published::Accepted { stamp: STAMP, disposition: Disposition::Direct },
            node_answer: NodeAnswer::Done,
            registration: None,
            receipt: ReceiptAnswer::Pending,
            ended: false,
        }
    }

    /// Returns a harness with a WebSocket after its upgrade and hello.
    pub(super) fn greeted() -> Harness {
        let mut harness = Harness::new(Port::WebSocket);
        harness.codec = harness.edge.arrived();
        harness
    }

    /// Feeds bytes. Decodes all that can be decoded, and answers each command at once.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> &mut Harness {
        self.aside.extend_from_slice(bytes);
        // Every turn consumes a byte at least; one more finds nothing.
        for _ in 0..=self.aside.len() + 1 {
            if self.ended || self.turn() {
                return self;
            }
        }
        panic!("the edge turns without consuming");
    }

    pub(super) fn feed_text(&mut self, message: &str) -> &mut Harness {
        let mut bytes = Vec::new();
        ws::write_masked(&mut bytes, Opcode::Text, [1, 2, 3, 4], message.as_bytes());
        self.feed(&bytes)
    }

    /// Calls `ingest` once. Returns true if it waits for more bytes.
    fn turn(&mut self) -> bool {
        let mut out = Vec::new();
        let result = self.edge.ingest(now(), &mut self.codec, &mut self.aside, &mut out).ingest;
        self.wrote(out);
        match result {
            Ingest::More { consumed } => {
                self.aside.drain(..consumed);
                assert!(self.aside.len() <= ws::MESSAGE_BYTES_MAX + 14, "{} bytes are kept aside", self.aside.len());
                return true;
            }
            Ingest::Next { consumed } => drop(self.aside.drain(..consumed)),
            Ingest::Upgraded { consumed } => {
                self.aside.drain(..consumed);
                self.steps.push(Step::Upgraded);
                assert!(self.edge.is_websocket(&self.codec));
            }
            Ingest::Command { consumed, command } => {
                self.aside.drain(..consumed);
                self.steps.push(Step::Asked(describe(&command)));
                self.answer(&command);
                self.commands.push(command);
            }
            Ingest::Close { reason } => {
                self.steps.push(Step::Closed(reason));
                self.close(reason);
            }
        }
        false
    }

    pub(super) fn close(&mut self, reason: CloseReason) {
        let mut out = Vec::new();
        self.edge.close(&mut self.codec, reason, &mut out);
        self.wrote(out);
        self.ended = true;
    }

    /// Sends a possible answer of the machine.
    fn answer(&mut self, command: &Command) {
        if let Some(event) = self.answer_to(command) {
            self.emit(event);
        }
    }

    fn answer_to(&mut self, command: &Command) -> Option<Event> {
        let of = |uaid, event| RelayEvent::Of { uaid, event: Box::new(event) }.into();
        let hello = |hello: &Hello| {
            let uaid = hello.uaid.unwrap_or(Uaid([9; 16]));
            (uaid, SessionEvent::Hello { uaid, minted: true, mode: hello.mode, broadcasts: Box::default() })
        };
        let session = |command: &SessionCommand| match command {
            // Without a URL, whose text is different each time.
            SessionCommand::Register { chid, key, .. } => {
                Some(SessionEvent::Registered { uaid: Uaid([9; 16]), chid: *chid, key: *key, status: 500 })
            }
            SessionCommand::Unregister { chid, .. } => Some(SessionEvent::Unregistered { chid: *chid, status: 200 }),
            _ => None,
        };
        Some(match command {
            Command::Relay(RelayCommand::Open) => RelayEvent::Opened { members: 9 }.into(),
            Command::Relay(RelayCommand::Bye(uaid)) => {
                RelayEvent::Bye { uaid: Some(*uaid), reason: CloseReason::PeerClosed }.into()
            }
            Command::Relay(RelayCommand::Attach(said)) => {
                let (uaid, event) = hello(said);
                of(uaid, event)
            }
            Command::Relay(RelayCommand::For { uaid, command }) => of(*uaid, session(command)?),
            Command::Relay(RelayCommand::Ping) => RelayEvent::Pong.into(),
            Command::Agent(AgentCommand::Hello(said)) => hello(said).1.into(),
            Command::Agent(AgentCommand::Session(command)) => session(command)?.into(),
            Command::Agent(AgentCommand::Ping) => AgentEvent::Pong.into(),
            Command::Agent(AgentCommand::Pong) | Command::Relay(RelayCommand::Pong) => return None,
            Command::Sender(SenderCommand::Publish(publish)) => match publish.message {
                Ok(_) => self.published.into(),
                Err(refusal) => Published::Refused(refusal).into(),
            },
            Command::Sender(SenderCommand::Cancel(_)) => Cancelled { done: true }.into(),
            Command::Sender(SenderCommand::Receipt(_)) => self.receipt.into(),
            Command::Registration(of) => {
                self.registration.take().unwrap_or_else(|| registered(of.uaid, &of.call)).into()
            }
            Command::Node(_) => self.node_answer.into(),
        })
    }

    pub(super) fn emit(&mut self, event: impl Into<Event>) {
        let mut out = Vec::new();
        let emitted = self.edge.emit(now(), &mut self.codec, &event.into(), &mut out);
        self.wrote(out);
        if emitted == Emitted::Last {
            self.steps.push(Step::Last);
            self.ended = true;
        }
    }

    fn wrote(&mut self, out: Vec<u8>) {
        let is_pong = |bytes: &[u8]| bytes.first() == Some(&0x8a);
        match self.steps.last_mut() {
            _ if out.is_empty() => {}
            // Pongs in a row count as the latest of them, however the pings were split.
            Some(Step::Out(last)) if is_pong(last) && is_pong(&out) => *last = out,
            _ => self.steps.push(Step::Out(out)),
        }
    }

    pub(super) fn written(&self) -> Vec<u8> {
        let out = |step: &Step| if let Step::Out(bytes) = step { bytes.clone() } else { Vec::new() };
        self.steps.iter().flat_map(out).collect()
    }

    pub(super) fn written_text(&self) -> String {
        String::from_utf8_lossy(&self.written()).into_owned()
    }

    pub(super) fn statuses(&self) -> Vec<u16> {
        let text = self.written_text();
        text.split("HTTP/1.1 ").skip(1).map(|rest| rest[..3].parse().unwrap()).collect()
    }

    /// Returns the one HTTP response that was written: status, head and body.
    pub(super) fn response(&self) -> (u16, String, String) {
        let statuses = self.statuses();
        let text = self.written_text();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(statuses.len(), 1, "{text}");
        (statuses[0], head.to_string(), body.to_string())
    }

    /// Returns status and errno of the one error that was written; its body must be the documented JSON.
    pub(super) fn fault(&self) -> (u16, Option<u64>) {
        let (status, head, body) = self.response();
        let json: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{head}\n{body}"));
        assert_eq!(json["code"], status);
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 5);
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        (status, json["errno"].as_u64())
    }

    /// Returns code and reason of the close frame that was written last.
    pub(super) fn goodbye(&self) -> (u16, String) {
        let out = |step: &Step| if let Step::Out(bytes) = step { Some(bytes.clone()) } else { None };
        let bytes = self.steps.iter().rev().find_map(out).unwrap();
        assert_eq!((bytes[0], usize::from(bytes[1])), (0x88, bytes.len() - 2));
        (u16::from_be_bytes([bytes[2], bytes[3]]), String::from_utf8(bytes[4..].to_vec()).unwrap())
    }

    pub(super) fn ended(&self) -> bool {
        self.ended
    }
}

/// Returns a command in words, without its random parts.
/// Answer of the machine to a call of a user with the channel 2.
fn registered(uaid: Uaid, call: &RegistrationCall) -> RegistrationAnswer {
    let of = |channel: &NewChannel| RegistrationAnswer::Registered { uaid, channel: *channel };
    match call {
        RegistrationCall::Create { channel, .. } | RegistrationCall::Subscribe(Ok(channel)) => of(channel),
        RegistrationCall::Update(Err(refusal)) | RegistrationCall::Subscribe(Err(refusal)) => {
            RegistrationAnswer::Refused(*refusal)
        }
        RegistrationCall::List => RegistrationAnswer::Channels(Box::new([Chid([2; 16]), Chid([3; 16])])),
        RegistrationCall::Unsubscribe(None) => RegistrationAnswer::NoChannel,
        RegistrationCall::Update(Ok(_)) | RegistrationCall::Remove | RegistrationCall::Unsubscribe(Some(_)) => {
            RegistrationAnswer::Done
        }
    }
}

fn describe(command: &Command) -> String {
    match command {
        Command::Relay(RelayCommand::Attach(hello)) => format!("attach {:?} {:?}", hello.uaid, hello.broadcasts),
        Command::Agent(AgentCommand::Hello(hello)) => {
            format!("hello {:?} {:?} {}", hello.uaid, hello.broadcasts, hello.agent_family)
        }
        Command::Node(NodeCommand::Push(push)) => format!("push {:?} {:?}", push.message, push.message.payload),
        Command::Sender(SenderCommand::Publish(publish)) => match &publish.message {
            Ok(message) => format!("publish {message:?} {:?}", message.payload),
            Err(refusal) => format!("publish {:?} {refusal:?}", publish.uaid),
        },
        Command::Agent(AgentCommand::Session(command)) => format!("{command:?}"),
        Command::Agent(command) => format!("{command:?}"),
        other => format!("{other:?}"),
    }
}

/// Upgrade request as Firefox makes it.
pub(super) const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; \
    rv:140.0) Gecko/20100101 Firefox/140.0\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: push-notification\r\n\
    Sec-WebSocket-Extensions: permessage-deflate\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
