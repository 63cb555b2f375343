//! A real server process and clients that are not ours: tokio-tungstenite for user agents, hyper for app servers,
//! web-push-native for encryption and VAPID.

// Every test file is a crate of its own and uses its part of this.
#![allow(dead_code)]

pub mod scenario;

pub mod wire;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use murre_bench::agent::channel_id;
use murre_bench::process::{Options, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use web_push_native::jwt_simple::algorithms::{ECDSAP256KeyPairLike, ES256KeyPair};
use web_push_native::{Auth, WebPushBuilder, p256};

/// Longest wait for something that must come: a host that has other things to do is no fault of the server.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How long nothing must come.
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
        let directory = tempfile::tempdir().unwrap();
        let sets = ["--set", "delivery.ledger_bytes=4MiB", "--set", "drain.delay=0"];
        let mut arguments = sets.map(str::to_owned).to_vec();
        if !settings.contains(&"--shards") {
            arguments.extend(["--shards".to_owned(), "3".into()]);
        }
        // Whoever tests this says so; a client of the others may be slow because its host is.
        if !settings.iter().any(|text| text.starts_with("websocket.hello_timeout")) {
            arguments.extend(["--set".to_owned(), "websocket.hello_timeout=60".into()]);
        }
        arguments.extend(settings.iter().map(|text| text.to_string()));
        let command = vec![env!("CARGO_BIN_EXE_murre-bench").to_owned(), "serve".into()];
        let options = Options { command, arguments, patience: Duration::from_secs(60) };
        let server = Server::start(options, &directory.path().join("data")).unwrap();
        World { server, directory }
    }

    /// Where the server keeps everything.
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
    pub async fn agent(&self, uaid: Option<&str>) -> UserAgent {
        let mut agent = UserAgent::connect(self.server.websocket()).await;
        agent.uaid = agent.hello(uaid).await;
        agent
    }

    /// A user agent that has one channel.
    pub async fn subscriber(&self) -> (UserAgent, Subscription) {
        let mut agent = self.agent(None).await;
        let subscription = agent.register(None).await;
        (agent, subscription)
    }

    /// A POST whose body the server need not understand.
    pub async fn post(&self, to: &Subscription, ttl: u32, body: &str) -> Reply {
        self.send(to.request(ttl).body(body)).await
    }

    pub async fn send(&self, request: Draft) -> Reply {
        exchange(self.server.endpoint(), request.0).await
    }

    /// `DELETE /m/{id}`.
    pub async fn cancel(&self, id: &str) -> Reply {
        self.send(Draft::new("DELETE", &format!("/m/{id}"))).await
    }
}

/// A request under construction.
pub struct Draft(Request<Vec<u8>>);

impl Draft {
    pub fn new(method: &str, path: &str) -> Draft {
        Draft(Request::builder().method(method).uri(path).body(Vec::new()).unwrap())
    }

    pub fn header(mut self, name: &'static str, value: &str) -> Draft {
        self.0.headers_mut().insert(name, value.parse().unwrap());
        self
    }

    pub fn into_request(self) -> Request<Vec<u8>> {
        self.0
    }

    pub fn without(mut self, name: &str) -> Draft {
        self.0.headers_mut().remove(name);
        self
    }

    /// Sets a body and says nothing of it.
    pub fn form(mut self, body: &str) -> Draft {
        *self.0.body_mut() = body.into();
        self
    }

    /// Sets a body, and says that it is aes128gcm unless something else was said.
    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Draft {
        *self.0.body_mut() = body.into();
        if !self.0.body().is_empty() && !self.0.headers().contains_key("content-encoding") {
            return self.header("content-encoding", "aes128gcm");
        }
        self
    }
}

/// An answer of the endpoint port.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: hyper::HeaderMap,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Status and errno; 0 when there is none.
    pub fn refusal(&self) -> (u16, u64) {
        let body: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        (self.status, body["errno"].as_u64().unwrap_or(0))
    }

    /// The message id of an accepted POST.
    pub fn id(&self) -> String {
        assert_eq!(self.status, 201, "{self:?}");
        self.header("location").rsplit("/m/").next().unwrap().to_owned()
    }
}

/// One request on a connection of its own, through hyper.
pub async fn exchange(address: SocketAddr, request: Request<Vec<u8>>) -> Reply {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    head.headers.insert("host", "push.test".parse().unwrap());
    // hyper sends the URI as it is: an absolute one would be a proxy request.
    let path = head.uri.path_and_query().unwrap().as_str();
    head.uri = path.parse::<Uri>().unwrap();
    let request = Request::from_parts(head, Full::new(Bytes::from(body)));
    let response = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer in time").unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Reply { status: head.status.as_u16(), headers: head.headers, body }
}

/// One channel of one user agent.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub channel: String,
    pub url: String,
}

impl Subscription {
    /// A POST to it with this TTL.
    pub fn request(&self, ttl: u32) -> Draft {
        let path: Uri = self.url.parse().unwrap();
        Draft::new("POST", path.path()).header("ttl", &ttl.to_string())
    }
}

/// A user agent.
pub struct UserAgent {
    socket: WebSocketStream<TcpStream>,
    pub uaid: String,
}

impl UserAgent {
    pub async fn connect(address: SocketAddr) -> UserAgent {
        let stream = TcpStream::connect(address).await.unwrap();
        UserAgent::upgrade(stream, address).await
    }

    pub async fn upgrade(stream: TcpStream, address: SocketAddr) -> UserAgent {
        let url = format!("ws://{address}/");
        let (socket, response) = tokio_tungstenite::client_async(url, stream).await.unwrap();
        assert_eq!(response.status(), 101);
        UserAgent::of(socket)
    }

    pub fn of(socket: WebSocketStream<TcpStream>) -> UserAgent {
        UserAgent { socket, uaid: String::new() }
    }

    pub async fn send(&mut self, message: Value) {
        self.send_frame(Message::text(message.to_string())).await;
    }

    pub async fn send_frame(&mut self, frame: Message) {
        self.socket.send(frame).await.unwrap();
    }

    /// The next frame that is no ping; `None` at the end of the stream, however it came.
    pub async fn frame(&mut self) -> Option<Message> {
        loop {
            match timeout(PATIENCE, self.socket.next()).await.expect("a frame in time") {
                Some(Ok(Message::Ping(_))) => {}
                Some(Ok(frame)) => return Some(frame),
                Some(Err(_)) | None => return None,
            }
        }
    }

    /// The next message.
    pub async fn message(&mut self) -> Value {
        match self.frame().await {
            Some(Message::Text(text)) => serde_json::from_str(&text).unwrap(),
            other => panic!("waited for a message, got {other:?}"),
        }
    }

    /// The next message, which must be of this type.
    pub async fn expect(&mut self, kind: &str) -> Value {
        let message = self.message().await;
        assert_eq!(message["messageType"], kind, "{message}");
        message
    }

    pub async fn hello(&mut self, uaid: Option<&str>) -> String {
        self.send(json!({"messageType": "hello", "use_webpush": true, "uaid": uaid.unwrap_or("")})).await;
        let answer = self.expect("hello").await;
        assert_eq!(answer["status"], 200);
        answer["uaid"].as_str().unwrap().to_owned()
    }

    pub async fn register(&mut self, key: Option<&str>) -> Subscription {
        let channel = channel_id();
        let answer = self.register_as(&channel, key).await;
        assert_eq!(answer["status"], 200, "{answer}");
        assert_eq!(answer["channelID"], channel.as_str());
        Subscription { channel, url: answer["pushEndpoint"].as_str().unwrap().to_owned() }
    }

    pub async fn register_as(&mut self, channel: &str, key: Option<&str>) -> Value {
        let mut request = json!({"messageType": "register", "channelID": channel});
        if let Some(key) = key {
            request["key"] = json!(key);
        }
        self.send(request).await;
        self.expect("register").await
    }

    pub async fn unregister(&mut self, channel: &str) {
        self.send(json!({"messageType": "unregister", "channelID": channel, "code": 200})).await;
        let answer = self.expect("unregister").await;
        assert_eq!((&answer["status"], &answer["channelID"]), (&json!(200), &json!(channel)));
    }

    pub async fn note(&mut self) -> Note {
        Note::of(self.message().await)
    }

    /// Acks, and returns when the server has dealt with it.
    pub async fn ack<'a>(&mut self, notes: impl IntoIterator<Item = &'a Note>) {
        let update = |note: &Note| json!({"channelID": note.channel, "version": note.version, "code": 100});
        let updates: Vec<Value> = notes.into_iter().map(update).collect();
        self.send(json!({"messageType": "ack", "updates": updates})).await;
        self.barrier().await;
    }

    /// Returns when everything sent before was dealt with: an unknown broadcast is always answered.
    pub async fn barrier(&mut self) {
        self.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {"tests/none": "v"}})).await;
        let answer = self.expect("broadcast").await;
        assert!(answer["broadcasts"]["errors"]["tests/none"].is_string(), "{answer}");
    }

    /// Subscribes to a broadcast that was set a moment ago, until its shard has heard of it: others may hear earlier.
    pub async fn knows_broadcast(&mut self, id: &str, version: &str) {
        let begun = Instant::now();
        loop {
            self.send(json!({"messageType": "broadcast_subscribe", "broadcasts": {id: "older"}})).await;
            let told = self.expect("broadcast").await["broadcasts"].clone();
            if told == json!({id: version}) {
                return;
            }
            assert_eq!(told, json!({"errors": {id: "Broadcast not found"}}));
            assert!(begun.elapsed() < PATIENCE, "no shard but one has heard of {id}");
        }
    }

    /// Nothing comes for a while.
    pub async fn silence(&mut self) {
        if let Ok(frame) = timeout(SILENCE, self.socket.next()).await {
            panic!("silence was expected, got {frame:?}");
        }
    }

    /// The code with which the server closes; 0 when the stream ends without a close frame.
    pub async fn close_code(&mut self) -> u16 {
        loop {
            match self.frame().await {
                Some(Message::Close(frame)) => return frame.map_or(1005, |frame| frame.code.into()),
                Some(_) => {}
                None => return 0,
            }
        }
    }

    /// Closes as a browser does and waits for the answer.
    pub async fn leave(mut self) {
        self.socket.close(None).await.unwrap();
        while self.frame().await.is_some() {}
    }

    pub fn into_stream(self) -> TcpStream {
        self.socket.into_inner()
    }
}

/// A notification as a user agent got it.
#[derive(Debug, Clone)]
pub struct Note {
    pub channel: String,
    pub version: String,
    pub body: Vec<u8>,
    pub headers: Value,
    pub message: Value,
}

impl Note {
    /// Reads a message, which must be a notification.
    pub fn of(message: Value) -> Note {
        assert_eq!(message["messageType"], "notification", "{message}");
        let text = |key: &str| message[key].as_str().unwrap_or("").to_owned();
        let body = URL_SAFE_NO_PAD.decode(text("data")).unwrap();
        let (channel, version, headers) = (text("channelID"), text("version"), message["headers"].clone());
        Note { channel, version, body, headers, message }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// The keys of a page's subscription, which only the browser and its app server know (RFC 8291).
pub struct Secrets {
    private: p256::SecretKey,
    auth: Auth,
}

impl Secrets {
    pub fn new() -> Secrets {
        let mut bytes = [0; 48];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes).unwrap();
        let (private, auth) = bytes.split_at(32);
        Secrets { private: p256::SecretKey::from_slice(private).unwrap(), auth: Auth::clone_from_slice(auth) }
    }

    /// The request that the published sender makes for `text`.
    pub fn request(&self, to: &Subscription, identity: Option<&ES256KeyPair>, text: &str) -> Draft {
        let url = to.url.parse().unwrap();
        let builder = WebPushBuilder::new(url, self.private.public_key(), self.auth);
        Draft(match identity {
            Some(identity) => builder.with_vapid(identity, "mailto:tests@example.com").build(text).unwrap(),
            None => builder.build(text).unwrap(),
        })
    }

    pub fn decrypt(&self, note: &Note) -> String {
        let clear = web_push_native::decrypt(note.body.clone(), &self.private, &self.auth).unwrap();
        String::from_utf8(clear).unwrap()
    }
}

/// A VAPID key pair and how `register` spells its public half.
pub fn identity() -> (ES256KeyPair, String) {
    let pair = ES256KeyPair::generate();
    let key = URL_SAFE_NO_PAD.encode(pair.key_pair().public_key().to_bytes_uncompressed());
    (pair, key)
}
