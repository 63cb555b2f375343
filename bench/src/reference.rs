//! A small server of the same protocol to compare with: tokio, tokio-tungstenite, one task per connection,
//! everything in memory behind one lock. It knows hello, register, ack, POST, TTL, topics, broadcasts and pings, and
//! nothing that makes a push service hard: nothing survives its end, and a VAPID key given with `register` is not
//! looked at.
//!
//! Its options make it misbehave, so that a test can show that a scenario notices.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::interval_at;
use tokio_tungstenite::accept_async_with_config;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Listen addresses. The flags are those of `murre serve`, so that one can stand in for the other.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// User agents.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub websocket: SocketAddr,
    /// App servers.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    pub endpoint: SocketAddr,
    /// Listened on, never answered.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8081")]
    pub node: SocketAddr,
    /// Listened on, never answered.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8083")]
    pub admin: SocketAddr,
    /// Start of endpoint URLs.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8082")]
    pub endpoint_url: String,
    /// Not used: nothing survives.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Seconds between pings to a session that is idle.
    #[arg(long, value_name = "S", default_value_t = 300.0)]
    pub ping_interval: f64,
    /// Faults that it makes.
    #[command(flatten)]
    pub faults: Faults,
}

/// Faults for tests of scenarios: each must make a check fail. All off by default.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Faults {
    /// Answer every N-th POST 201 and drop it.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub drop_every: u64,
    /// Deliver every N-th notification twice.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub double_every: u64,
    /// Know no user that comes back.
    #[arg(long)]
    pub forget_users: bool,
    /// Ignore acks: a delivered message comes again.
    #[arg(long)]
    pub ignore_acks: bool,
    /// Ignore TTL and topics: a message that has expired or was replaced comes too.
    #[arg(long)]
    pub ignore_ttl: bool,
    /// Never answer a `{}`.
    #[arg(long)]
    pub ignore_pings: bool,
}

struct Shared {
    endpoint_url: String,
    ping_interval: Duration,
    faults: Faults,
    users: Mutex<HashMap<String, User>>,
    next_id: AtomicU64,
}

#[derive(Default)]
struct User {
    channels: Vec<String>,
    /// Not acked, in order of acceptance.
    mailbox: VecDeque<Kept>,
    session: Option<mpsc::UnboundedSender<String>>,
}

struct Kept {
    id: String,
    text: String,
    /// Channel and topic.
    topic: Option<(String, String)>,
    expires: Instant,
}

impl Shared {
    /// A panic of one connection's task must not end the others.
    fn users(&self) -> MutexGuard<'_, HashMap<String, User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves until killed.
pub fn run(options: &Options) -> io::Result<bool> {
    crate::host::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(options))?;
    Ok(true)
}

async fn serve(options: &Options) -> io::Result<()> {
    let shared = Arc::new(Shared {
        endpoint_url: options.endpoint_url.clone(),
        ping_interval: Duration::from_secs_f64(options.ping_interval.max(0.01)),
        faults: options.faults.clone(),
        users: Mutex::default(),
        next_id: AtomicU64::new(1),
    });
    let (agents, publishers) =
        (TcpListener::bind(options.websocket).await?, TcpListener::bind(options.endpoint).await?);
    // Bound so that a caller that waits for all four ports of a server does not wait for ever.
    let _unanswered = (TcpListener::bind(options.node).await?, TcpListener::bind(options.admin).await?);
    println!("reference: {}, endpoint {}; VAPID keys are accepted unseen", options.websocket, options.endpoint);
    loop {
        tokio::select! {
            accepted = agents.accept() => {
                if let Some(stream) = connection(accepted).await { tokio::spawn(session(stream, shared.clone())); }
            }
            accepted = publishers.accept() => {
                if let Some(stream) = connection(accepted).await { tokio::spawn(publisher(stream, shared.clone())); }
            }
        }
    }
}

/// A connection that went before it was accepted is no reason to end; without descriptors it helps to wait.
async fn connection(accepted: io::Result<(TcpStream, SocketAddr)>) -> Option<TcpStream> {
    match accepted {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            eprintln!("reference: accept: {error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

/// One user agent. Any error ends the connection.
async fn session(stream: TcpStream, shared: Arc<Shared>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    // The default of 128 KiB for each connection would make a poor comparison.
    let config = WebSocketConfig::default().read_buffer_size(4_096).write_buffer_size(4_096);
    let (mut write, mut read) = accept_async_with_config(stream, Some(config)).await.ok()?.split();
    let (sender, mut queue) = mpsc::unbounded_channel::<String>();
    let mut uaid = String::new();
    let mut beat = interval_at(tokio::time::Instant::now() + shared.ping_interval, shared.ping_interval);
    loop {
        tokio::select! {
            _ = beat.tick() => write.send(Message::Ping(Default::default())).await.ok()?,
            text = queue.recv() => write.send(Message::text(text?)).await.ok()?,
            frame = read.next() => match frame?.ok()? {
                Message::Text(text) => {
                    let request: Value = serde_json::from_str(&text).ok()?;
                    handle(&request, &mut uaid, &sender, &shared)?;
                }
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Binary(_) | Message::Close(_) | Message::Frame(_) => return None,
            },
        }
    }
}

fn handle(request: &Value, uaid: &mut String, sender: &mpsc::UnboundedSender<String>, shared: &Shared) -> Option<()> {
    let say = |answer: Value| sender.send(answer.to_string()).ok();
    let channel = || request["channelID"].as_str();
    match request["messageType"].as_str() {
        Some("hello") => {
            let offered = request["uaid"].as_str().unwrap_or("");
            let mut users = shared.users();
            let known = users.contains_key(offered) && !shared.faults.forget_users;
            *uaid = if known { offered.to_owned() } else { fresh_id() };
            say(json!({"messageType": "hello", "uaid": uaid, "status": 200, "use_webpush": true, "broadcasts": {}}))?;
            let user = users.entry(uaid.clone()).or_default();
            user.session = Some(sender.clone());
            let now = Instant::now();
            user.mailbox.retain(|kept| kept.expires > now);
            user.mailbox.iter().try_for_each(|kept| sender.send(kept.text.clone()).ok())
        }
        Some("register") => {
            let channel = channel()?;
            shared.users().get_mut(uaid.as_str())?.channels.push(channel.to_owned());
            let url = format!("{}/wpush/v1/{uaid}.{channel}", shared.endpoint_url);
            say(json!({"messageType": "register", "channelID": channel, "status": 200, "pushEndpoint": url}))
        }
        Some("unregister") => {
            let channel = channel()?;
            shared.users().get_mut(uaid.as_str())?.channels.retain(|known| known != channel);
            say(json!({"messageType": "unregister", "channelID": channel, "status": 200}))
        }
        Some("ack") if shared.faults.ignore_acks => Some(()),
        Some("ack") => {
            let acked: Vec<&str> =
                request["updates"].as_array()?.iter().filter_map(|u| u["version"].as_str()).collect();
            let mut users = shared.users();
            users.get_mut(uaid.as_str())?.mailbox.retain(|kept| !acked.contains(&kept.id.as_str()));
            Some(())
        }
        Some("broadcast_subscribe") => {
            let ids = request["broadcasts"].as_object()?.keys();
            let errors: Value = ids.map(|id| (id.clone(), json!("Broadcast not found"))).collect::<Map<_, _>>().into();
            say(json!({"messageType": "broadcast", "broadcasts": {"errors": errors}}))
        }
        Some("nack") => Some(()),
        None if shared.faults.ignore_pings => Some(()),
        None if request.as_object().is_some_and(|object| object.is_empty()) => say(json!({})),
        _ => None,
    }
}

fn fresh_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}

/// One app server connection.
async fn publisher(mut stream: TcpStream, shared: Arc<Shared>) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut inbox = Vec::new();
    loop {
        while let Some((answer, used)) = take_request(&inbox, &shared)? {
            inbox.drain(..used);
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
        if stream.read_buf(&mut inbox).await.ok()? == 0 {
            return None;
        }
    }
}

/// Answers the request at the front of `bytes`: `Some(None)` when it is not whole, `None` when it is not a request.
fn take_request(bytes: &[u8], shared: &Shared) -> Option<Option<(String, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(bytes).ok()? else { return Some(None) };
    let header = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let len: usize = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let Some(body) = bytes.get(start..start.checked_add(len)?) else { return Some(None) };
    let ttl: Option<u32> = header("ttl").and_then(|text| text.parse().ok());
    let letter = Letter { ttl, body, encoding: header("content-encoding"), topic: header("topic") };
    let answer = match accept(head.path.unwrap_or(""), &letter, shared) {
        Ok(id) => {
            format!("HTTP/1.1 201 Created\r\nLocation: {}/m/{id}\r\nContent-Length: 0\r\n\r\n", shared.endpoint_url)
        }
        Err((status, errno)) => {
            let body = json!({"code": status, "errno": errno}).to_string();
            format!("HTTP/1.1 {status} Refused\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        }
    };
    Some(Some((answer, start + len)))
}

/// Content of a POST.
struct Letter<'a> {
    ttl: Option<u32>,
    body: &'a [u8],
    encoding: Option<&'a str>,
    topic: Option<&'a str>,
}

fn accept(path: &str, letter: &Letter<'_>, shared: &Shared) -> Result<String, (u16, u16)> {
    let token = path.strip_prefix("/wpush/v1/").ok_or((404, 102))?;
    let (uaid, channel) = token.split_once('.').ok_or((404, 102))?;
    let ttl = letter.ttl.ok_or((400, 111))?;
    let mut users = shared.users();
    let user = users.get_mut(uaid).filter(|user| user.channels.iter().any(|known| known == channel));
    let user = user.ok_or((410, 106))?;
    let number = shared.next_id.fetch_add(1, Ordering::Relaxed);
    let every = |n: u64| n > 0 && number.is_multiple_of(n);
    let id = format!("{number:016x}");
    if every(shared.faults.drop_every) {
        return Ok(id);
    }
    let mut text =
        json!({"messageType": "notification", "channelID": channel, "version": id, "data": "", "headers": {}});
    text["data"] = URL_SAFE_NO_PAD.encode(letter.body).into();
    if letter.body.is_empty() {
        // A message without a body has neither (PROTOCOL.md 1.6).
        text.as_object_mut().into_iter().for_each(|text| text.retain(|key, _| key != "data" && key != "headers"));
    } else {
        text["headers"] = json!({ "encoding": letter.encoding });
    }
    let text = text.to_string();
    for _ in 0..1 + u8::from(every(shared.faults.double_every)) {
        if let Some(session) = &user.session
            && session.send(text.clone()).is_err()
        {
            user.session = None;
        }
    }
    if ttl > 0 {
        let lasting = if shared.faults.ignore_ttl { u32::MAX } else { ttl };
        let topic = letter.topic.filter(|_| !shared.faults.ignore_ttl).map(|topic| (channel.into(), topic.into()));
        if topic.is_some() {
            user.mailbox.retain(|kept| kept.topic != topic);
        }
        let expires = Instant::now() + Duration::from_secs(lasting.into());
        user.mailbox.push_back(Kept { id: id.clone(), text, topic, expires });
    }
    Ok(id)
}
