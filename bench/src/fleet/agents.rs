//! All agents and their connections. Their input is in [`super::receive`], the commands of scenarios in
//! [`super::actions`].

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Instant;

use tls::Clients;

use super::agent::{Agent, NO_SIDE, Phase, Side, Sides};
use super::codec;
use super::endpoints::Endpoints;
use super::event::{AgentEvent, End, Plan};
use super::ring::{Cut, Rings, Short, Span, Spans, Wire};
use super::user_data::{ConnKey, Done, Kind};
use crate::target::ClientTls;

/// Servers to which agents connect, and the number of agents.
#[derive(Clone, Debug)]
pub struct Options {
    /// Listeners; agents are spread over them evenly, each always goes to the same. At least one.
    pub servers: Vec<SocketAddr>,
    /// Source addresses, on loopback; as many as are needed when absent.
    pub sources: Option<usize>,
    /// Agents.
    pub count: usize,
    /// Handshakes under way at once.
    pub in_flight_max: usize,
    /// Sockets of one ring: at most the soft limit of open files.
    pub table: u32,
    /// Agents speak TLS.
    pub tls: Option<ClientTls>,
}

/// All of them. Agents are named by `0..count`.
pub struct Agents {
    pub(super) plan: Plan,
    pub(super) rings: Rings,
    spans: Rc<Spans>,
    pub(super) agents: Vec<Agent>,
    pub(super) sides: Sides,
    pub(super) endpoints: Endpoints,
    /// Those that connect next, first come, first served.
    pub(super) queue: VecDeque<u32>,
    /// Readable ones for which no span was free.
    hungry: VecDeque<ConnKey>,
    /// Those whose server does not read.
    behind: Vec<ConnKey>,
    pub(super) in_flight: usize,
    pub(super) in_flight_max: usize,
    pub(super) connected: usize,
    pub(super) pongs: u64,
    pub(super) pings: u64,
    /// Seed of channel ids.
    pub(super) seed: u64,
    /// Time at which the completions being handled were reaped.
    pub(super) now: Instant,
    /// Frames to send, of the agent being handled.
    pub(super) out: Vec<u8>,
    /// The TLS connections of agents, by their numbers.
    tls: Option<Clients>,
    /// Ciphertext of the agent being handled: received, to send.
    ciphertext: (Vec<u8>, Vec<u8>),
    complaints: Vec<String>,
    /// A ring failed outside of `step`.
    broken: Option<io::Error>,
}

/// Connections begun before completions are looked at again.
const STARTS_MAX: usize = 256;
/// Rounds of submitting and reaping before the caller gets its turn.
const ROUNDS_MAX: usize = 4;
/// Strange answers whose text is kept.
const COMPLAINTS_MAX: usize = 16;
/// Bytes a socket may be behind.
const OUTBOX_MAX: usize = 1 << 20;

impl Agents {
    /// Agents that know nothing yet.
    pub fn new(options: &Options, plan: Plan) -> io::Result<Agents> {
        if options.servers.is_empty() || options.table == 0 || options.count > u32::MAX as usize {
            return Err(io::Error::other("agents need a server, a table and numbers of 32 bits"));
        }
        let wire = Wire::new(&options.servers, options.sources, options.count, options.tls.is_none());
        let rings = Rings::new(wire, options.count, options.table)?;
        let clients = |tls: &ClientTls| Clients::new(tls.config()?, &tls.name, options.count).map_err(io::Error::other);
        let tls = options.tls.as_ref().map(clients).transpose()?;
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Ok(Agents {
            plan,
            spans: rings.spans(),
            rings,
            agents: (0..options.count).map(|_| Agent::new()).collect(),
            sides: Sides::new(),
            endpoints: Endpoints::new(),
            queue: VecDeque::new(),
            hungry: VecDeque::new(),
            behind: Vec::new(),
            in_flight: 0,
            in_flight_max: options.in_flight_max,
            connected: 0,
            pongs: 0,
            pings: 0,
            seed,
            now: Instant::now(),
            out: Vec::new(),
            tls,
            ciphertext: Default::default(),
            complaints: Vec::new(),
            broken: None,
        })
    }

    /// Starts agents that wait, submits, and reacts to what has come. Never waits.
    pub fn step(&mut self, happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        for _ in 0..ROUNDS_MAX {
            self.now = Instant::now();
            self.start_waiting()?;
            let busy = self.rings.enter()?;
            self.now = Instant::now();
            self.take_in(happenings)?;
            if !busy {
                break;
            }
        }
        self.rings.trim();
        Ok(())
    }

    /// Returns true if there is nothing to do until [`Agents::event`] is readable. After this [`Agents::awake`] must be
    /// called.
    pub fn quiet(&mut self) -> bool {
        let nothing_waits = self.hungry.is_empty() && self.behind.is_empty() && self.broken.is_none();
        self.rings.quiet() && nothing_waits && !self.can_start()
    }

    /// The thread does not sleep any more.
    pub fn awake(&mut self) {
        self.rings.awake();
    }

    /// An eventfd for an edge-triggered wait.
    pub fn event(&self) -> RawFd {
        self.rings.event()
    }

    /// The texts of the first few answers that were not what they should be.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    pub(super) fn complain(&mut self, what: &str, about: &[u8]) {
        if self.complaints.len() < COMPLAINTS_MAX {
            let text = String::from_utf8_lossy(&about[..about.len().min(200)]);
            self.complaints.push(format!("{what}: {text}"));
        }
    }

    /// Errors of what cannot return them come out of the next [`Agents::step`].
    pub(super) fn note(&mut self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            self.broken = Some(error);
        }
    }

    fn can_start(&self) -> bool {
        !self.queue.is_empty() && self.in_flight < self.in_flight_max
    }

    fn start_waiting(&mut self) -> io::Result<()> {
        for _ in 0..STARTS_MAX {
            let Some(index) = self.queue.pop_front_if(|_| self.in_flight < self.in_flight_max) else { break };
            let Some(agent) = self.agents.get_mut(index as usize).filter(|agent| agent.phase == Phase::Absent) else {
                continue;
            };
            agent.generation = agent.generation.wrapping_add(1);
            agent.phase = Phase::Upgrading;
            let mut side = Side::new(self.now);
            // An agent that comes back has its channels.
            side.to_register = self.plan.channels.saturating_sub(self.endpoints.numbers(agent.endpoints).count());
            if let Some(tls) = &mut self.tls {
                tls.start(index as usize, &mut side.outbox);
            }
            agent.side = self.sides.add(side);
            self.in_flight += 1;
            let name = agent.name(index);
            self.rings.connect(name)?;
        }
        if self.queue.is_empty() {
            self.queue.shrink_to(STARTS_MAX);
        }
        Ok(())
    }

    fn take_in(&mut self, happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        while let Some(done) = self.rings.next() {
            self.complete(done, happenings)?;
        }
        while let Some(short) = self.rings.short() {
            self.not_all_sent(short, happenings)?;
        }
        while let Some(name) = self.behind.pop() {
            if self.is_current(name) {
                self.complain("a server that does not read", &[]);
                self.end(name, End::Nonsense, happenings)?;
            }
        }
        while let Some(&name) = self.hungry.front() {
            if self.is_current(name) && !self.rings.receive(name)? {
                break;
            }
            self.hungry.pop_front();
        }
        Ok(())
    }

    pub(super) fn is_current(&self, name: ConnKey) -> bool {
        let agent = self.agents.get(name.agent as usize);
        agent.is_some_and(|agent| agent.generation == name.generation && agent.phase != Phase::Absent)
    }

    pub(super) fn agent(&mut self, name: ConnKey) -> &mut Agent {
        &mut self.agents[name.agent as usize]
    }

    pub(super) fn side(&mut self, name: ConnKey) -> Option<&mut Side> {
        self.sides.get(self.agents[name.agent as usize].side)
    }

    pub(super) fn side_or_new(&mut self, name: ConnKey) -> &mut Side {
        self.sides.get_or_add(&mut self.agents[name.agent as usize].side, self.now)
    }

    fn complete(&mut self, done: Done, happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        let Done { kind, name, result, .. } = done;
        let current = self.is_current(name);
        if kind == Kind::Recv {
            let span = self.rings.span(&done);
            let outcome = if current { self.received(name, &span, result, happenings) } else { Ok(()) };
            self.spans.free(span);
            return outcome;
        }
        if !current {
            return Ok(());
        }
        match kind {
            Kind::Poll if result >= 0 => {
                if !self.rings.receive(name)? {
                    self.hungry.push_back(name);
                }
                Ok(())
            }
            Kind::Room if result >= 0 => self.flush(name),
            Kind::Ignored => Ok(()),
            _ => self.end(name, End::of_errno(-result), happenings),
        }
    }

    fn received(
        &mut self,
        name: ConnKey,
        span: &Span,
        result: i32,
        happenings: &mut Vec<AgentEvent>,
    ) -> io::Result<()> {
        match result {
            0 => self.end(name, End::Finished, happenings),
            1.. => {
                let spans = self.spans.clone();
                let bytes = spans.bytes(span, result as usize);
                if self.tls.is_some() { self.open(name, bytes, happenings) } else { self.hear(name, bytes, happenings) }
            }
            // The wake-up was for nothing; the poll behind the receive is armed.
            _ if result == -libc::EAGAIN || result == -libc::EINTR => Ok(()),
            _ => self.end(name, End::of_errno(-result), happenings),
        }
    }

    /// Opens TLS records and takes in what was in them.
    fn open(&mut self, name: ConnKey, received: &[u8], happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        let (mut bytes, mut wire) = std::mem::take(&mut self.ciphertext);
        if let Some(side) = self.side(name) {
            bytes.append(&mut side.sealed);
        }
        bytes.extend_from_slice(received);
        let heard = self.tls.as_mut().and_then(|tls| tls.receive(name.agent as usize, &mut bytes, &mut wire));
        let sent = self.send_wire(name, &wire);
        if let Some(heard) = heard {
            if heard.consumed < bytes.len() {
                self.side_or_new(name).sealed.extend_from_slice(&bytes[heard.consumed..]);
            }
            if heard.is_new {
                self.send(name, &self.rings.upgrade_of(name))?;
            }
            if heard.plain > 0 {
                self.hear(name, &bytes[..heard.plain], happenings)?;
            }
        } else if self.is_current(name) {
            self.end(name, End::Finished, happenings)?;
        }
        bytes.clear();
        wire.clear();
        self.ciphertext = (bytes, wire);
        sent
    }

    /// Sends this now or when there is room, sealed where the agent speaks TLS.
    pub(super) fn send(&mut self, name: ConnKey, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.send_wire(name, bytes) };
        let mut wire = Vec::new();
        tls.seal(name.agent as usize, bytes, &mut wire);
        self.send_wire(name, &wire)
    }

    fn send_wire(&mut self, name: ConnKey, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(side) = self.side(name).filter(|side| !side.outbox.is_empty()) {
            side.outbox.extend_from_slice(bytes);
            if side.outbox.len() > OUTBOX_MAX {
                self.behind.push(name);
            }
            return Ok(());
        }
        let sent = self.rings.send(name, bytes)?;
        if sent < bytes.len() { self.hold_back(name, &bytes[sent..]) } else { Ok(()) }
    }

    /// These bytes go before what waits already.
    fn hold_back(&mut self, name: ConnKey, bytes: &[u8]) -> io::Result<()> {
        let side = self.side_or_new(name);
        let polled = !side.outbox.is_empty();
        side.outbox.splice(..0, bytes.iter().copied());
        if polled { Ok(()) } else { self.rings.poll_room(name) }
    }

    fn not_all_sent(&mut self, short: Short, happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        let Short { name, result, bytes } = short;
        if !self.is_current(name) {
            return Ok(());
        }
        let sent = match result {
            0.. => result as usize,
            _ if result == -libc::EAGAIN || result == -libc::EINTR => 0,
            _ => return self.end(name, End::of_errno(-result), happenings),
        };
        self.hold_back(name, bytes.get(sent..).unwrap_or(&[]))
    }

    /// There is room again.
    fn flush(&mut self, name: ConnKey) -> io::Result<()> {
        let Some(side) = self.side(name) else { return Ok(()) };
        let waiting = std::mem::take(&mut side.outbox);
        self.send_wire(name, &waiting)?;
        self.put_side_away(name);
        Ok(())
    }

    /// An idle agent owns nothing that it does not need.
    pub(super) fn put_side_away(&mut self, name: ConnKey) {
        let agent = &mut self.agents[name.agent as usize];
        if agent.phase != Phase::Idle || agent.side == NO_SIDE {
            return;
        }
        if self
            .sides
            .get(agent.side)
            .is_none_or(|side| side.inbox.is_empty() && side.outbox.is_empty() && side.sealed.is_empty())
        {
            self.sides.remove(agent.side);
            agent.side = NO_SIDE;
        }
    }

    /// The server ended it, or has to be left.
    pub(super) fn end(&mut self, name: ConnKey, reason: End, happenings: &mut Vec<AgentEvent>) -> io::Result<()> {
        let was_ready = self.agent(name).phase == Phase::Idle;
        happenings.push(AgentEvent::Ended { agent: name.agent as usize, reason, was_ready });
        self.hang_up(name, false)
    }

    /// Closes the socket and forgets the connection.
    pub(super) fn hang_up(&mut self, name: ConnKey, reset: bool) -> io::Result<()> {
        let agent = &mut self.agents[name.agent as usize];
        let cut = Cut { reset, connecting: agent.phase == Phase::Upgrading, room: agent.side != NO_SIDE };
        if agent.phase == Phase::Idle {
            self.connected -= 1;
        } else {
            self.in_flight -= 1;
        }
        agent.phase = Phase::Absent;
        agent.set_registering(false);
        self.sides.remove(agent.side);
        agent.side = NO_SIDE;
        if let Some(tls) = &mut self.tls {
            tls.end(name.agent as usize);
        }
        self.rings.close(name, cut)
    }

    /// The next number of an agent's channels, and the id that goes with it.
    pub(super) fn new_channel(&self, name: ConnKey) -> uuid::Uuid {
        let number = self.endpoints.next_number(self.agents[name.agent as usize].endpoints);
        codec::channel_of(self.seed, name.agent, number)
    }
}
