//! Many user agents on one epoll: each connects, says hello, registers, subscribes to a broadcast, and then acks
//! whatever comes. An agent that waits holds no buffer.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use mio::net::TcpStream;
use mio::{Interest, Registry, Token, event::Event};
use socket2::{Domain, Protocol, Socket, Type};

use crate::agent::{channel_id, upgrade_request};
use crate::frame;

/// What an agent does before it is idle.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Channels to register.
    pub channels: usize,
    /// VAPID key to register them with.
    pub key: Option<String>,
    /// Broadcast id to subscribe to.
    pub broadcast: Option<String>,
    /// Whether notifications are acked.
    pub ack: bool,
}

/// Something that happened to an agent.
#[derive(Debug)]
pub enum Happening {
    /// The agent did its whole plan and is idle.
    Ready {
        /// Which.
        agent: usize,
    },
    /// A notification came (and was acked, if that is the plan).
    Notified {
        /// To which.
        agent: usize,
        /// `version`.
        version: String,
        /// `data`.
        data: String,
    },
    /// The connection ended.
    Ended {
        /// Whose.
        agent: usize,
        /// Close code; `None` without a close frame.
        code: Option<u16>,
    },
}

/// What an agent waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Absent,
    Connecting,
    Upgrading,
    Greeting,
    Registering,
    Subscribing,
    Idle,
}

/// One user agent.
#[derive(Debug)]
pub struct Agent {
    stream: Option<TcpStream>,
    phase: Phase,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// The UAID it says hello with, then the one it was given. Empty: none.
    pub uaid: String,
    /// UAID of the last hello's answer differed from the one offered.
    pub renamed: bool,
    /// Endpoint URLs of the channels registered so far.
    pub endpoints: Vec<String>,
    /// How many of the plan's channels this connection still registers.
    to_register: usize,
    close_code: Option<u16>,
}

/// All of them. Tokens are `0..agents.len()`.
pub struct Swarm {
    server: SocketAddr,
    plan: Plan,
    agents: Vec<Agent>,
    waiting: VecDeque<usize>,
    in_flight: usize,
    in_flight_max: usize,
    connected: usize,
    scratch: Vec<u8>,
}

/// Connections of one source address: well below the 28,232 ports that Linux hands out by default.
const PORTS_PER_SOURCE: usize = 20_000;

impl Swarm {
    /// `count` agents that know nothing yet; at most `in_flight_max` handshakes at once.
    pub fn new(server: SocketAddr, plan: Plan, count: usize, in_flight_max: usize) -> Swarm {
        let agent = |_| Agent {
            stream: None,
            phase: Phase::Absent,
            inbox: Vec::new(),
            outbox: Vec::new(),
            uaid: String::new(),
            renamed: false,
            endpoints: Vec::new(),
            to_register: 0,
            close_code: None,
        };
        Swarm {
            server,
            plan,
            agents: (0..count).map(agent).collect(),
            waiting: VecDeque::new(),
            in_flight: 0,
            in_flight_max,
            connected: 0,
            scratch: vec![0; 128 * 1024],
        }
    }

    /// The agents by index.
    pub fn agents(&self) -> &[Agent] {
        &self.agents
    }

    /// Changes what agents know, for returning ones.
    pub fn agents_mut(&mut self) -> &mut [Agent] {
        &mut self.agents
    }

    /// Changes what later connections do.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Changes how many handshakes may be under way at once.
    pub fn set_in_flight_max(&mut self, in_flight_max: usize) {
        self.in_flight_max = in_flight_max;
    }

    /// Queues these agents to connect.
    pub fn launch(&mut self, agents: impl IntoIterator<Item = usize>) {
        self.waiting.extend(agents);
    }

    /// Agents that are connected and idle.
    pub fn connected(&self) -> usize {
        self.connected
    }

    /// Whether every launched agent is idle or has failed.
    pub fn settled(&self) -> bool {
        self.waiting.is_empty() && self.in_flight == 0
    }

    /// Drops all connections, with a FIN each, or an RST when there is unread input.
    pub fn disconnect_all(&mut self) {
        for agent in &mut self.agents {
            agent.stream = None;
            agent.phase = Phase::Absent;
            agent.inbox = Vec::new();
            agent.outbox = Vec::new();
        }
        self.waiting.clear();
        self.in_flight = 0;
        self.connected = 0;
    }

    /// Starts as many queued connections as may be in flight.
    pub fn connect_more(&mut self, registry: &Registry) -> io::Result<()> {
        while self.in_flight < self.in_flight_max {
            let Some(index) = self.waiting.pop_front() else { break };
            let mut stream = connect(self.server, index / PORTS_PER_SOURCE)?;
            registry.register(&mut stream, Token(index), Interest::READABLE | Interest::WRITABLE)?;
            let agent = &mut self.agents[index];
            agent.stream = Some(stream);
            agent.phase = Phase::Connecting;
            agent.to_register = self.plan.channels;
            agent.close_code = None;
            self.in_flight += 1;
        }
        Ok(())
    }

    /// Reacts to readiness of one agent's socket and says what came of it.
    pub fn ready(&mut self, event: &Event, happenings: &mut Vec<Happening>) {
        let index = event.token().0;
        let Some(agent) = self.agents.get_mut(index) else { return };
        if agent.stream.is_none() {
            return;
        }
        let before = agent.phase;
        let mut alive = Ok(true);
        if event.is_writable() {
            alive = agent.writable(&self.server);
        }
        if matches!(alive, Ok(true)) && (event.is_readable() || event.is_read_closed()) {
            alive = agent.readable(index, &self.plan, &mut self.scratch, happenings);
        }
        if !matches!(alive, Ok(true)) {
            agent.stream = None;
            agent.phase = Phase::Absent;
            happenings.push(Happening::Ended { agent: index, code: agent.close_code });
        }
        let was = usize::from(before == Phase::Idle);
        let is = usize::from(agent.phase == Phase::Idle);
        self.connected = self.connected + is - was;
        if before != Phase::Idle && matches!(agent.phase, Phase::Idle | Phase::Absent) {
            self.in_flight -= 1;
            if agent.phase == Phase::Idle {
                happenings.push(Happening::Ready { agent: index });
            }
        }
    }
}

impl Agent {
    fn writable(&mut self, server: &SocketAddr) -> io::Result<bool> {
        if self.phase == Phase::Connecting {
            let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            stream.set_nodelay(true)?;
            self.phase = Phase::Upgrading;
            self.outbox = upgrade_request(&server.to_string());
        }
        self.flush()
    }

    /// Writes what there is to write; what does not fit waits for the next writable event.
    fn flush(&mut self) -> io::Result<bool> {
        let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
        let mut done = 0;
        while done < self.outbox.len() {
            match stream.write(&self.outbox[done..]) {
                Ok(n) => done += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if done == self.outbox.len() {
            self.outbox = Vec::new();
        } else {
            self.outbox.drain(..done);
        }
        Ok(true)
    }

    fn readable(
        &mut self,
        index: usize,
        plan: &Plan,
        scratch: &mut [u8],
        out: &mut Vec<Happening>,
    ) -> io::Result<bool> {
        loop {
            let stream = self.stream.as_mut().ok_or(ErrorKind::NotConnected)?;
            let n = match stream.read(scratch) {
                Ok(0) => return Ok(false),
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            };
            if self.inbox.is_empty() {
                let used = self.consume(index, &scratch[..n], plan, out)?;
                self.inbox.extend_from_slice(&scratch[used..n]);
            } else {
                let mut bytes = std::mem::take(&mut self.inbox);
                bytes.extend_from_slice(&scratch[..n]);
                let used = self.consume(index, &bytes, plan, out)?;
                bytes.drain(..used);
                self.inbox = if bytes.is_empty() { Vec::new() } else { bytes };
            }
            // Edge-triggered epoll: a read that did not fill the buffer has drained a stream (epoll(7)).
            if n < scratch.len() {
                break;
            }
        }
        if self.outbox.is_empty() { Ok(true) } else { self.flush() }
    }

    /// Takes whole messages off the front of `bytes` and returns how many bytes they were.
    fn consume(&mut self, index: usize, bytes: &[u8], plan: &Plan, out: &mut Vec<Happening>) -> io::Result<usize> {
        let mut used = 0;
        if self.phase == Phase::Upgrading {
            match crate::http::parse(bytes).map_err(io::Error::other)? {
                None => return Ok(0),
                Some((response, head)) if response.status == 101 => used = head,
                Some((response, _)) => return Err(io::Error::other(format!("upgrade answered {}", response.status))),
            }
            self.phase = Phase::Greeting;
            let hello = format!(r#"{{"messageType":"hello","use_webpush":true,"uaid":"{}"}}"#, self.uaid);
            frame::push(&mut self.outbox, frame::TEXT, hello.as_bytes());
        }
        while let Some(frame) = frame::parse(&bytes[used..]).map_err(io::Error::other)? {
            let payload = &bytes[used + frame.start..used + frame.end];
            match frame.opcode {
                frame::TEXT => self.message(index, payload, plan, out)?,
                frame::PING => frame::push(&mut self.outbox, frame::PONG, payload),
                frame::CLOSE => self.close_code = Some(frame::close_code(payload)),
                _ => {}
            }
            used += frame.end;
        }
        Ok(used)
    }

    fn message(&mut self, index: usize, payload: &[u8], plan: &Plan, out: &mut Vec<Happening>) -> io::Result<()> {
        let text = std::str::from_utf8(payload).map_err(io::Error::other)?;
        let kind = string_field(text, "messageType").unwrap_or("");
        if kind == "notification" {
            let version = string_field(text, "version").unwrap_or("");
            if plan.ack {
                let channel = string_field(text, "channelID").unwrap_or("");
                let update = format!(r#"{{"channelID":"{channel}","version":"{version}","code":100}}"#);
                let ack = format!(r#"{{"messageType":"ack","updates":[{update}]}}"#);
                frame::push(&mut self.outbox, frame::TEXT, ack.as_bytes());
            }
            let data = string_field(text, "data").unwrap_or("").to_owned();
            out.push(Happening::Notified { agent: index, version: version.to_owned(), data });
            return Ok(());
        }
        match (self.phase, kind) {
            (Phase::Greeting, "hello") => {
                let uaid = string_field(text, "uaid").unwrap_or("").to_owned();
                self.renamed = !self.uaid.is_empty() && self.uaid != uaid;
                self.uaid = uaid;
                self.next_step(plan);
            }
            (Phase::Registering, "register") => {
                let Some(endpoint) = string_field(text, "pushEndpoint").filter(|url| !url.is_empty()) else {
                    return Err(io::Error::other(format!("register answered {text}")));
                };
                self.endpoints.push(endpoint.to_owned());
                self.next_step(plan);
            }
            (Phase::Subscribing, "broadcast") => self.phase = Phase::Idle,
            _ => {}
        }
        Ok(())
    }

    fn next_step(&mut self, plan: &Plan) {
        if self.to_register > 0 {
            self.to_register -= 1;
            self.phase = Phase::Registering;
            let key = plan.key.as_ref().map_or(String::new(), |key| format!(r#","key":"{key}""#));
            let register = format!(r#"{{"messageType":"register","channelID":"{}"{key}}}"#, channel_id());
            frame::push(&mut self.outbox, frame::TEXT, register.as_bytes());
        } else if let Some(id) = plan.broadcast.as_ref().filter(|_| self.phase != Phase::Subscribing) {
            // A version the server does not have, so that it answers.
            self.phase = Phase::Subscribing;
            let subscribe = format!(r#"{{"messageType":"broadcast_subscribe","broadcasts":{{"{id}":"none"}}}}"#);
            frame::push(&mut self.outbox, frame::TEXT, subscribe.as_bytes());
        } else {
            self.phase = Phase::Idle;
        }
    }
}

/// The text of a string member, found without parsing the whole; good for values that need no escapes, which is all
/// that the server sends.
fn string_field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = json;
    loop {
        let at = rest.find(name)?;
        let after = &rest[at + name.len()..];
        if rest[..at].ends_with('"')
            && let Some(value) = after.strip_prefix("\":\"")
        {
            return value.split('"').next();
        }
        rest = after;
    }
}

fn connect(server: SocketAddr, source: usize) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    if source > 0 && server.ip().is_loopback() && server.is_ipv4() {
        let [.., low] = (source as u32).to_be_bytes();
        socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 1, low), 0)).into())?;
    }
    match socket.connect(&server.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    Ok(TcpStream::from_std(socket.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_fields_are_found_in_any_order() {
        let json = r#"{"version":"abc","messageType":"notification","data":"","channelID":"x-y"}"#;
        assert_eq!(string_field(json, "messageType"), Some("notification"));
        assert_eq!(string_field(json, "version"), Some("abc"));
        assert_eq!(string_field(json, "channelID"), Some("x-y"));
        assert_eq!(string_field(json, "data"), Some(""));
        assert_eq!(string_field(json, "status"), None);
        assert_eq!(string_field(r#"{"status":200}"#, "status"), None);
    }
}
