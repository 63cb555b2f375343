//! A small push server on threads of the test, which makes faults: it shows that a judge sees each of them.
//!
//! It knows hello, register, unregister, ack, `{}`, POST, TTL and topics. Users and messages are in memory, behind one
//! lock, under which each frame is written.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use murre_bench::frame;
use murre_bench::process::{ENDPOINT_URL, own_address};
use serde_json::{Value, json};
use tungstenite::Message;

/// Faults. All are off by default.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    /// Every N-th POST is answered 201 and dropped.
    pub drop_every: Option<u64>,
    /// Every N-th notification comes twice.
    pub double_every: Option<u64>,
    /// No user that comes back is known.
    pub forget_users: bool,
    /// Acks are ignored: a delivered message comes again.
    pub ignore_acks: bool,
    /// TTL and topics are ignored: a message that has expired or was replaced comes, too.
    pub ignore_ttl: bool,
    /// A `{}` has no answer.
    pub ignore_pings: bool,
}

/// The server. It takes no connection any more when it is dropped.
pub struct StandIn {
    listeners: [TcpListener; 2],
}

#[derive(Default)]
struct State {
    faults: Faults,
    users: HashMap<String, User>,
    /// Accepted POSTs.
    accepted: u64,
}

#[derive(Default)]
struct User {
    channels: Vec<String>,
    /// Messages without an ack, in order of acceptance.
    mailbox: VecDeque<Kept>,
    session: Option<TcpStream>,
}

struct Kept {
    id: String,
    text: String,
    /// Channel and topic.
    topic: Option<(String, String)>,
    expires: Instant,
}

type Shared = Mutex<State>;

impl StandIn {
    pub fn start(faults: Faults) -> StandIn {
        let shared = Arc::new(Mutex::new(State { faults, ..State::default() }));
        let ip = own_address();
        let listen = |serve: fn(TcpStream, &Shared) -> Option<()>| {
            let listener = TcpListener::bind((ip, 0)).unwrap();
            let (accepting, shared) = (listener.try_clone().unwrap(), Arc::clone(&shared));
            thread::spawn(move || {
                for stream in accepting.incoming().map_while(Result::ok) {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || serve(stream, &shared));
                }
            });
            listener
        };
        StandIn { listeners: [listen(agent), listen(app_server)] }
    }

    /// Address for user agents.
    pub fn websocket(&self) -> SocketAddr {
        self.listeners[0].local_addr().unwrap()
    }

    /// Address for app servers.
    pub fn endpoint(&self) -> SocketAddr {
        self.listeners[1].local_addr().unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        for listener in &self.listeners {
            let _ = socket2::SockRef::from(listener).shutdown(Shutdown::Both);
        }
    }
}

/// Serves a user agent. Any error ends the connection.
fn agent(stream: TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut socket = tungstenite::accept(stream.try_clone().ok()?).ok()?;
    let mut uaid = String::new();
    let mut serve = || -> Option<()> {
        loop {
            match socket.read().ok()? {
                Message::Text(text) => {
                    let request: Value = serde_json::from_str(&text).ok()?;
                    obey(&request, &mut uaid, &stream, &mut shared.lock().unwrap())?;
                }
                Message::Ping(_) | Message::Pong(_) => {}
                _ => return None,
            }
        }
    };
    serve();
    // The user has another descriptor of it.
    stream.shutdown(Shutdown::Both).ok()
}

fn obey(request: &Value, uaid: &mut String, stream: &TcpStream, state: &mut State) -> Option<()> {
    let State { faults, users, .. } = state;
    let kind = &request["messageType"];
    if kind == "hello" {
        let offered = request["uaid"].as_str().unwrap_or_default();
        let is_known = users.contains_key(offered) && !faults.forget_users;
        *uaid = if is_known { offered.to_owned() } else { uuid::Uuid::new_v4().simple().to_string() };
        say(stream, &json!({"messageType": "hello", "uaid": uaid, "status": 200, "use_webpush": true}).to_string())?;
        let user = users.entry(uaid.clone()).or_default();
        user.session = Some(stream.try_clone().ok()?);
        let now = Instant::now();
        user.mailbox.retain(|kept| kept.expires > now);
        return user.mailbox.iter().try_for_each(|kept| say(stream, &kept.text));
    }
    if request.as_object()?.is_empty() {
        return if faults.ignore_pings { Some(()) } else { say(stream, "{}") };
    }
    let user = users.get_mut(uaid)?;
    match kind.as_str()? {
        "register" => {
            let channel = request["channelID"].as_str()?;
            user.channels.push(channel.to_owned());
            let url = format!("{ENDPOINT_URL}/wpush/v1/{uaid}.{channel}");
            let reply = json!({"messageType": kind, "channelID": channel, "status": 200, "pushEndpoint": url});
            say(stream, &reply.to_string())
        }
        "unregister" => {
            let channel = request["channelID"].as_str()?;
            user.channels.retain(|known| known != channel);
            say(stream, &json!({"messageType": kind, "channelID": channel, "status": 200}).to_string())
        }
        "ack" if !faults.ignore_acks => {
            let updates = request["updates"].as_array()?;
            user.mailbox.retain(|kept| updates.iter().all(|update| update["version"] != *kept.id));
            Some(())
        }
        _ => Some(()),
    }
}

fn say(mut stream: &TcpStream, text: &str) -> Option<()> {
    const FINAL: u8 = 0x80;
    let mut bytes = Vec::new();
    frame::push_header(&mut bytes, FINAL | frame::TEXT, text.len(), 0);
    bytes.extend_from_slice(text.as_bytes());
    stream.write_all(&bytes).ok()
}

/// Serves an app server. Any error ends the connection.
fn app_server(mut stream: TcpStream, shared: &Shared) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut inbox, mut bytes) = (Vec::new(), [0; 1 << 14]);
    loop {
        while let Some((status, used)) = take_request(&inbox, shared)? {
            inbox.drain(..used);
            stream.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).ok()?;
        }
        match stream.read(&mut bytes).ok()? {
            0 => return None,
            len => inbox.extend_from_slice(&bytes[..len]),
        }
    }
}

/// Obeys the request at the front of `bytes`, and returns its status and length: `Some(None)` when it is not whole,
/// `None` when it is not a request.
fn take_request(bytes: &[u8], shared: &Shared) -> Option<Option<(&'static str, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(bytes).ok()? else { return Some(None) };
    let header = |name: &str| {
        let found = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(found.value).ok()
    };
    let len: usize = header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    let Some(body) = bytes.get(start..start + len) else { return Some(None) };
    let mut state = shared.lock().unwrap();
    let accepted = state.accept(head.path?, header, body);
    Some(Some((if accepted.is_some() { "201 Created" } else { "410 Gone" }, start + len)))
}

impl State {
    /// Accepts a message. `None` if its user or its channel is not known.
    fn accept<'h>(&mut self, path: &str, header: impl Fn(&str) -> Option<&'h str>, body: &[u8]) -> Option<()> {
        let (uaid, channel) = path.strip_prefix("/wpush/v1/")?.split_once('.')?;
        let ttl: u32 = header("ttl")?.parse().ok()?;
        let user = self.users.get_mut(uaid).filter(|user| user.channels.iter().any(|known| known == channel))?;
        self.accepted += 1;
        let is_hit = |every: Option<u64>| every.is_some_and(|every| self.accepted.is_multiple_of(every));
        if is_hit(self.faults.drop_every) {
            return Some(());
        }
        let id = format!("{:016x}", self.accepted);
        let mut text = json!({"messageType": "notification", "channelID": channel, "version": id});
        // A message without a body has neither (PROTOCOL.md 1.6).
        if !body.is_empty() {
            text["data"] = URL_SAFE_NO_PAD.encode(body).into();
            text["headers"] = json!({ "encoding": header("content-encoding") });
        }
        let text = text.to_string();
        for _ in 0..1 + u8::from(is_hit(self.faults.double_every)) {
            if user.session.as_ref().is_some_and(|session| say(session, &text).is_none()) {
                user.session = None;
            }
        }
        if ttl == 0 {
            return Some(());
        }
        let knows_ttl = !self.faults.ignore_ttl;
        let topic = header("topic").filter(|_| knows_ttl).map(|topic| (channel.to_owned(), topic.to_owned()));
        if topic.is_some() {
            user.mailbox.retain(|kept| kept.topic != topic);
        }
        let lasting = if knows_ttl { ttl } else { u32::MAX };
        let expires = Instant::now() + Duration::from_secs(lasting.into());
        user.mailbox.push_back(Kept { id, text, topic, expires });
        Some(())
    }
}
