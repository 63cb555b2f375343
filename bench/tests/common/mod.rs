//! A real server process and blocking clients of it, which panic where the server breaks the protocol.

// Every test file is a crate of its own and uses its part of this.
#![allow(dead_code)]

pub mod scenario;

pub mod stand_in;

pub mod wire;

use std::net::{SocketAddr, TcpStream};
use std::ops::Deref;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::agent::Agent;
pub use client::agent::{Note, Received, channel_id};
use client::encryption::SubscriptionKeys;
pub use client::http::Request;
use client::http::{self, Response};
pub use client::stream::PATIENCE;
use murre_bench::process::{ENDPOINT_URL, Options, Server};
use protocol::webpush::identity::Identity;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

/// Time in which no message may come.
pub const SILENCE: Duration = Duration::from_millis(400);

/// A server with three shards and a data directory of its own.
pub struct World {
    pub server: Server,
    directory: TempDir,
}

impl World {
    pub fn start() -> World {
        World::with(&[])
    }

    pub fn with(settings: &[&str]) -> World {
        World::run(vec![env!("CARGO_BIN_EXE_murre-bench").to_owned(), "serve".into()], settings)
    }

    /// As [`World::with`], started by this command.
    pub fn run(command: Vec<String>, settings: &[&str]) -> World {
        let directory = tempfile::tempdir().unwrap();
        let sets = ["--set", "delivery.ledger_bytes=4MiB", "--set", "drain.delay=0"];
        let mut arguments = sets.map(str::to_owned).to_vec();
        if !settings.contains(&"--shards") {
            arguments.extend(["--shards".to_owned(), "3".into()]);
        }
        // A test of this timeout sets it itself; a client of the others may be slow because its host is.
        if !settings.iter().any(|text| text.starts_with("websocket.hello_timeout")) {
            arguments.extend(["--set".to_owned(), "websocket.hello_timeout=60".into()]);
        }
        arguments.extend(settings.iter().map(|text| text.to_string()));
        let options = Options { command, arguments, patience: Duration::from_secs(60) };
        let server = Server::start(options, &directory.path().join("data")).unwrap();
        World { server, directory }
    }

    /// Data directory of the server.
    pub fn data_dir(&self) -> std::path::PathBuf {
        self.directory.path().join("data")
    }

    pub fn restart(&mut self) {
        assert_eq!(self.server.terminate().unwrap(), Some(0), "{}", self.server.log());
        self.server.start_again().unwrap();
    }

    pub fn crash(&mut self) {
        self.server.kill().unwrap();
        self.server.start_again().unwrap();
    }

    /// A user agent that has said hello.
    pub fn agent(&self, uaid: Option<&str>) -> UserAgent {
        let mut agent = UserAgent::connect(self.server.websocket());
        agent.uaid = agent.hello(uaid);
        agent
    }

    /// A user agent that has one channel.
    pub fn subscriber(&self) -> (UserAgent, Subscription) {
        let mut agent = self.agent(None);
        let subscription = agent.register(None);
        (agent, subscription)
    }

    /// A POST whose body the server need not understand.
    pub fn post(&self, to: &Subscription, ttl: u32, body: &str) -> Reply {
        self.send(to.request(ttl).encrypted(body))
    }

    pub fn send(&self, request: Request) -> Reply {
        exchange(self.server.endpoint(), request)
    }

    /// `DELETE /m/{id}`.
    pub fn cancel(&self, id: &str) -> Reply {
        self.send(Request::new("DELETE", &format!("/m/{id}")))
    }
}

/// A response of the server.
#[derive(Debug)]
pub struct Reply(Response);

impl Deref for Reply {
    type Target = Response;

    fn deref(&self) -> &Response {
        &self.0
    }
}

impl Reply {
    /// The value of a header, empty without one.
    pub fn header(&self, name: &str) -> &str {
        self.0.header(name).unwrap_or_default()
    }

    /// Status and errno; 0 without an errno.
    pub fn refusal(&self) -> (u16, u64) {
        (self.status, self.errno().unwrap_or(0))
    }

    /// The message id of an accepted POST.
    pub fn id(&self) -> String {
        assert_eq!(self.status, 201, "{self:?}");
        self.message_id().unwrap().to_owned()
    }
}

/// One request on a connection of its own.
pub fn exchange(address: SocketAddr, request: Request) -> Reply {
    Reply(http::exchange(address, &request.header("Host", "push.test")).unwrap())
}

/// A connection from the `n`th loopback address, a stranger of its own.
pub fn stranger(n: u8, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, n], 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// One channel of one user agent.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub channel: String,
    pub url: String,
}

impl Subscription {
    /// A POST to it with this TTL.
    pub fn request(&self, ttl: u32) -> Request {
        Request::post(&self.url, ttl).unwrap()
    }

    /// A POST of `text`, encrypted for `page`, and signed if there is an identity.
    pub fn secret(&self, page: &SubscriptionKeys, identity: Option<&Identity>, text: &str) -> Request {
        let request = self.request(43_200).encrypted(page.encrypt(text.as_bytes()).unwrap());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        match identity {
            Some(identity) => request.header("Authorization", &identity.authorization(ENDPOINT_URL, now + 600)),
            None => request,
        }
    }
}

/// A user agent.
pub struct UserAgent {
    agent: Agent,
    pub uaid: String,
}

impl UserAgent {
    pub fn connect(address: SocketAddr) -> UserAgent {
        UserAgent { agent: Agent::connect(address).unwrap(), uaid: String::new() }
    }

    pub fn send(&mut self, message: Value) {
        self.agent.send(&message).unwrap();
    }

    pub fn send_text(&mut self, text: &str) {
        self.agent.send_text(text).unwrap();
    }

    pub fn receive(&mut self, patience: Duration) -> Received {
        self.agent.receive(patience).unwrap()
    }

    pub fn message(&mut self) -> Value {
        match self.receive(PATIENCE) {
            Received::Message(message) => message,
            other => panic!("waited for a message, got {other:?}"),
        }
    }

    /// The next message, which must be of this type.
    pub fn expect(&mut self, kind: &str) -> Value {
        self.agent.receive_type(kind).unwrap()
    }

    pub fn hello(&mut self, uaid: Option<&str>) -> String {
        self.agent.hello(uaid).unwrap()
    }

    pub fn register(&mut self, key: Option<&str>) -> Subscription {
        let channel = channel_id();
        let url = self.agent.register(&channel, key).unwrap();
        Subscription { channel, url }
    }

    /// Registers a channel; the reply, which may be a refusal.
    pub fn register_as(&mut self, channel: &str, key: Option<&str>) -> Value {
        let mut request = json!({"messageType": "register", "channelID": channel});
        if let Some(key) = key {
            request["key"] = json!(key);
        }
        self.send(request);
        self.expect("register")
    }

    pub fn unregister(&mut self, channel: &str) {
        self.agent.unregister(channel).unwrap();
    }

    pub fn note(&mut self) -> Note {
        self.agent.note().unwrap()
    }

    /// Acks, and returns when the server has processed the ack.
    pub fn ack<'a>(&mut self, notes: impl IntoIterator<Item = &'a Note>) {
        self.agent.ack(notes).unwrap();
        self.barrier();
    }

    /// Returns when the server has processed everything sent before: an unknown broadcast is always answered.
    pub fn barrier(&mut self) {
        self.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {"tests/none": "v"}}));
        let answer = self.expect("broadcast");
        assert!(answer["broadcasts"]["errors"]["tests/none"].is_string(), "{answer}");
    }

    /// Subscribes to a broadcast that was set a moment ago, until its shard has it: others may have it earlier.
    pub fn knows_broadcast(&mut self, id: &str, version: &str) {
        let begun = Instant::now();
        loop {
            self.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {id: "older"}}));
            let told = self.expect("broadcast")["broadcasts"].clone();
            if told == json!({id: version}) {
                return;
            }
            assert_eq!(told, json!({"errors": {id: "Broadcast not found"}}));
            assert!(begun.elapsed() < PATIENCE, "no shard but one has heard of {id}");
        }
    }

    /// Checks that no message comes for [`SILENCE`].
    pub fn silence(&mut self) {
        assert_eq!(self.receive(SILENCE), Received::Nothing);
    }

    /// The code with which the server closes; 0 when the stream ends without a close frame.
    pub fn close_code(&mut self) -> u16 {
        loop {
            match self.receive(PATIENCE) {
                Received::Message(_) => {}
                Received::Close(code) => return code,
                Received::End => return 0,
                Received::Nothing => panic!("not closed in {PATIENCE:?}"),
            }
        }
    }

    /// Closes as a browser does and waits for the answer.
    pub fn leave(self) {
        self.agent.close().unwrap();
    }
}
