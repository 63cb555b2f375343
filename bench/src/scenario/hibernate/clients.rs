//! User agents that freeze their own ends, so that those cost no kernel memory: the kernel has the ends of sessions
//! that speak, and no others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hibernate::{ConnName, Frozen, Gate, News, Ports, ShardGate, Tuple, freeze, set_live};
use mio::event::Event;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::Socket;

use super::fleet::{Counts, Fleet, Received};
use super::socket::{self, BUFFERS};
use crate::alarm::{self, Alarm};
use crate::fleet::codec::{self, Message};
use crate::frame;
use crate::publishers::{Answer, Publishers, TOKEN_BASE};

/// Token of the gate.
const GATE: Token = Token(TOKEN_BASE - 1);

/// Time from the last word of a session to its freeze. The server delays its acknowledgement by 40 ms.
const REST: Duration = Duration::from_millis(60);

/// Time from a wake of a session that waits for a notification to its freeze.
const LONG_REST: Duration = Duration::from_secs(30);

/// Sessions that are set apart together.
const BATCH_MAX: usize = 1_024;

/// News of the gate in one turn.
const NEWS_PER_TURN: usize = 256;

/// Progress of a session whose end is live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Connecting,
    Upgrading,
    Hello,
    Registering,
    Ready,
    /// Its freeze waits for the gate.
    Apart,
}

struct Live {
    socket: Socket,
    step: Step,
    inbox: Vec<u8>,
    /// Time at which it is set apart; `None` if it stays live.
    freeze_at: Option<Instant>,
    has_arrived: bool,
}

/// All sessions.
pub struct Clients {
    fleet: Fleet,
    host: String,
    poll: Poll,
    alarm: Alarm,
    gate: ShardGate,
    _gate: Gate,
    frozen: Vec<Option<Frozen>>,
    frozen_count: u64,
    live: HashMap<u32, Live>,
    arriving: usize,
    /// Sessions by the time of their freeze.
    resting: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The batch that is set apart.
    batch: Vec<u32>,
    endpoints: HashMap<u32, String>,
    publishers: Option<Publishers>,
    pub answers: Vec<Answer>,
    pub received: Vec<Received>,
    pub counts: Counts,
    scratch: Vec<u8>,
}

impl Clients {
    /// Opens the gate; none is connected.
    pub fn new(fleet: Fleet) -> io::Result<Clients> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), GATE)?);
        let (gate, mut shards) = Gate::open(Ports::From(&[fleet.server.port()]), fleet.queue, 1, false)?;
        let shard = shards.pop().ok_or_else(|| io::Error::other("the gate has no handle"))?;
        shard.attach(Vec::new(), move || {
            // It fails for want of memory only; the next news wakes.
            let _ = waker.wake();
        });
        Ok(Clients {
            host: fleet.server.to_string(),
            alarm: Alarm::new(poll.registry())?,
            poll,
            gate: shard,
            _gate: gate,
            frozen: Vec::with_capacity(fleet.sessions as usize),
            frozen_count: 0,
            live: HashMap::new(),
            arriving: 0,
            resting: BinaryHeap::new(),
            batch: Vec::new(),
            endpoints: HashMap::new(),
            publishers: None,
            answers: Vec::new(),
            received: Vec::new(),
            counts: Counts::default(),
            scratch: vec![0; 16 << 10],
            fleet,
        })
    }

    /// Sessions that are connected and not ready yet.
    pub fn arriving(&self) -> usize {
        self.arriving
    }

    /// Sessions whose end is frozen.
    pub fn frozen(&self) -> u64 {
        self.frozen_count
    }

    /// Sessions whose end is live.
    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Sessions that ended.
    pub fn ended(&self) -> u64 {
        self.counts.ended.values().sum()
    }

    /// Endpoint of a session that has registered.
    pub fn endpoint(&self, number: u32) -> Option<&str> {
        self.endpoints.get(&number).map(String::as_str)
    }

    /// Opens the connections of app servers. The server closes those that are idle for long, so each stage has its own.
    pub fn open_app_servers(&mut self, count: usize) -> io::Result<()> {
        self.publishers = None;
        self.publishers = Some(Publishers::connect(self.fleet.endpoint, None, count, self.poll.registry())?);
        Ok(())
    }

    /// Closes the connections of app servers.
    pub fn close_app_servers(&mut self) {
        self.publishers = None;
    }

    /// Returns true if an app server is free.
    pub fn can_post(&self) -> bool {
        self.publishers.as_ref().is_some_and(Publishers::has_idle)
    }

    /// Sends a POST; its answer comes with the tag.
    pub fn post(&mut self, request: &[u8], tag: u64) -> io::Result<bool> {
        self.publishers.as_mut().map_or(Ok(false), |publishers| publishers.post(request, tag))
    }

    /// Begins the connection of a session, each once.
    pub fn connect(&mut self, number: u32) -> io::Result<()> {
        let socket = socket::connect(&self.fleet, number)?;
        self.arriving += 1;
        self.enter(number, socket, Step::Connecting, None)
    }

    fn enter(&mut self, number: u32, socket: Socket, step: Step, freeze_at: Option<Instant>) -> io::Result<()> {
        let interest =
            if step == Step::Connecting { Interest::WRITABLE | Interest::READABLE } else { Interest::READABLE };
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), Token(number as usize), interest)?;
        let has_arrived = step != Step::Connecting;
        self.live.insert(number, Live { socket, step, inbox: Vec::new(), freeze_at, has_arrived });
        if let Some(at) = freeze_at {
            self.resting.push(Reverse((at, number)));
        }
        Ok(())
    }

    /// Thaws the end of a session that waits for a notification. The server notices nothing.
    pub fn awaken(&mut self, number: u32) -> io::Result<()> {
        match self.live.get_mut(&number) {
            // A member of the batch stays in it until its check.
            Some(live) if live.step == Step::Apart => self.leave_batch(number),
            Some(_) => {}
            None => self.thaw(number)?,
        }
        if let Some(live) = self.live.get_mut(&number) {
            let at = (number >= self.fleet.control).then(|| Instant::now() + LONG_REST);
            live.freeze_at = at;
            self.resting.extend(at.map(|at| Reverse((at, number))));
        }
        Ok(())
    }

    /// Sends an empty WebSocket ping.
    pub fn ping(&mut self, number: u32) -> io::Result<()> {
        self.awaken(number)?;
        let mut ping = Vec::new();
        frame::push(&mut ping, frame::PING, b"");
        self.send(number, &ping);
        Ok(())
    }

    fn thaw(&mut self, number: u32) -> io::Result<()> {
        let record = self.frozen.get_mut(number as usize).and_then(Option::take);
        let record = record.ok_or_else(|| io::Error::other(format!("session {number} has ended")))?;
        match record.thaw(BUFFERS) {
            Ok(socket) => {
                self.frozen_count -= 1;
                let socket = Socket::from(socket);
                set_live(&socket, true)?;
                self.gate.live(record.tuple(), name(number));
                self.enter(number, socket, Step::Ready, Some(Instant::now() + REST))
            }
            Err(error) => {
                self.counts.thaw_failures += 1;
                self.frozen[number as usize] = Some(record);
                Err(error)
            }
        }
    }

    /// Reacts to all that has happened, and waits for more until `until` at most.
    pub fn turn(&mut self, events: &mut Events, until: Instant) -> io::Result<()> {
        let mut until = until;
        if let Some(Reverse((at, _))) = self.resting.peek().filter(|_| self.batch.is_empty()) {
            until = until.min(*at);
        }
        let waits = !self.gate.has_news() && until > Instant::now();
        if waits {
            self.alarm.set(until)?;
        }
        match self.poll.poll(events, (!waits).then_some(Duration::ZERO)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => events.clear(),
            outcome => outcome?,
        }
        for event in events.iter() {
            match event.token() {
                GATE => {}
                alarm::TOKEN => {}
                Token(number) if number >= TOKEN_BASE => {
                    if let Some(publishers) = &mut self.publishers {
                        publishers.ready(event, self.poll.registry(), &mut self.answers)?;
                    }
                }
                Token(number) => self.ready(number as u32, event),
            }
        }
        self.read_gate();
        self.set_apart()
    }

    fn read_gate(&mut self) {
        for _ in 0..NEWS_PER_TURN {
            let Some(news) = self.gate.next() else { break };
            match news {
                News::GraceOver => self.freeze_batch(),
                News::Segment(conn, segment, _) => {
                    let record = self.frozen.get(conn.slot as usize).and_then(Option::as_ref);
                    let accepts = match record.filter(|record| record.tuple() == segment.tuple) {
                        // The end is live, or is set apart.
                        None => true,
                        Some(record) if record.takes(segment.position, segment.acknowledged, segment.syn) => {
                            let is_thawed = self.thaw(conn.slot).is_ok();
                            self.counts.woken += u64::from(is_thawed);
                            is_thawed
                        }
                        Some(_) => {
                            self.counts.wakes_refused += 1;
                            false
                        }
                    };
                    if accepts { self.gate.accept(segment) } else { self.gate.drop(segment) }
                }
            }
        }
        self.gate.send_verdicts();
    }

    /// Sets those apart that have rested.
    fn set_apart(&mut self) -> io::Result<()> {
        if !self.batch.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let mut batch = Vec::new();
        while batch.len() < BATCH_MAX && self.resting.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((at, number))) = self.resting.pop() else { break };
            let Some(live) = self.live.get_mut(&number) else { continue };
            if live.freeze_at != Some(at) || live.step != Step::Ready {
                continue;
            }
            set_live(&live.socket, false)?;
            live.step = Step::Apart;
            self.batch.push(number);
            batch.push((Tuple::of(&live.socket)?, name(number)));
        }
        if !batch.is_empty() {
            self.gate.set_apart(batch);
        }
        Ok(())
    }

    /// Makes a session live again that is set apart.
    fn leave_batch(&mut self, number: u32) {
        let Some(live) = self.live.get_mut(&number) else { return };
        live.step = Step::Ready;
        // It has worked before; without the mark its segments pass through the queue.
        let _ = set_live(&live.socket, true);
        if let Ok(tuple) = Tuple::of(&live.socket) {
            self.gate.live(tuple, name(number));
        }
    }

    fn freeze_batch(&mut self) {
        for number in std::mem::take(&mut self.batch) {
            if self.live.get(&number).is_none_or(|live| live.step != Step::Apart) {
                continue;
            }
            let Some(mut live) = self.live.remove(&number) else { continue };
            let Ok(tuple) = Tuple::of(&live.socket) else {
                self.count_end("no address");
                continue;
            };
            match freeze(OwnedFd::from(live.socket), tuple) {
                Ok(record) => {
                    self.counts.freezes += 1;
                    self.frozen_count += 1;
                    let at = number as usize;
                    if self.frozen.len() <= at {
                        self.frozen.resize(at + 1, None);
                    }
                    self.frozen[at] = Some(record);
                }
                Err((socket, _)) => {
                    self.counts.freezes_refused += 1;
                    let at = Instant::now() + REST;
                    live.socket = Socket::from(socket);
                    live.freeze_at = Some(at);
                    self.live.insert(number, live);
                    self.leave_batch(number);
                    self.resting.push(Reverse((at, number)));
                }
            }
        }
    }

    fn ready(&mut self, number: u32, event: &Event) {
        let Some(live) = self.live.get_mut(&number) else { return };
        if live.step == Step::Connecting {
            match live.socket.take_error() {
                Ok(None) if event.is_writable() => {
                    live.step = Step::Upgrading;
                    let request = frame::upgrade_request(&self.host);
                    self.send(number, &request);
                }
                Ok(None) => {}
                Ok(Some(error)) | Err(error) => self.end(number, &error.kind().to_string()),
            }
            return;
        }
        loop {
            let Some(live) = self.live.get_mut(&number) else { return };
            match (&live.socket).read(&mut self.scratch) {
                Ok(0) => return self.end(number, "end of stream"),
                Ok(length) => {
                    live.inbox.extend_from_slice(&self.scratch[..length]);
                    if let Err(why) = self.process(number) {
                        return self.end(number, &why);
                    }
                    if length < self.scratch.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.end(number, &error.kind().to_string()),
            }
        }
    }

    /// Acts on the whole frames of the inbox.
    fn process(&mut self, number: u32) -> Result<(), String> {
        if self.live.get(&number).is_some_and(|live| live.step == Step::Apart) {
            self.leave_batch(number);
        }
        let Some(live) = self.live.get_mut(&number) else { return Ok(()) };
        let mut inbox = std::mem::take(&mut live.inbox);
        let mut at = 0;
        let mut out = Vec::new();
        if live.step == Step::Upgrading {
            match codec::upgrade(&inbox)? {
                Some((101, length)) => {
                    at = length;
                    live.step = Step::Hello;
                    codec::hello(&mut out, None);
                }
                Some((status, _)) => return Err(format!("upgrade answered {status}")),
                None => {}
            }
        }
        let mut rests = false;
        while live.step != Step::Upgrading
            && let Some(found) = frame::parse(&inbox[at..])?
        {
            let payload = &inbox[at + found.start..at + found.end];
            at += found.end;
            rests = true;
            match found.opcode {
                frame::PING => {
                    self.counts.pings += 1;
                    frame::push(&mut out, frame::PONG, payload);
                }
                frame::PONG => self.received.push(Received::Pong(number)),
                frame::CLOSE => return Err(format!("close {}", frame::close_code(payload))),
                _ => match codec::read(payload)? {
                    Message::Hello(_) if number < self.fleet.control || self.fleet.registered.contains(&number) => {
                        live.step = Step::Registering;
                        codec::register(&mut out, codec::channel_of(0, number, 0), None);
                    }
                    Message::Hello(_) => live.step = Step::Ready,
                    Message::Register { status: 200, endpoint } => {
                        live.step = Step::Ready;
                        self.endpoints.insert(number, endpoint.to_owned());
                    }
                    Message::Register { status, .. } => return Err(format!("register answered {status}")),
                    Message::Notification { channel, version, data } => {
                        codec::ack(&mut out, channel, version);
                        self.received.extend(codec::sequence(data).map(Received::Notification));
                    }
                    _ => {}
                },
            }
        }
        if at == inbox.len() {
            inbox = Vec::new();
        } else {
            inbox.drain(..at);
        }
        live.inbox = inbox;
        if live.step == Step::Ready {
            self.rest(number, rests);
        }
        if !out.is_empty() {
            self.send(number, &out);
        }
        Ok(())
    }

    /// A session is ready: it has arrived, and is frozen after a rest if it has heard something.
    fn rest(&mut self, number: u32, has_heard: bool) {
        let Some(live) = self.live.get_mut(&number) else { return };
        if !live.has_arrived {
            live.has_arrived = true;
            self.arriving -= 1;
            self.counts.arrived += 1;
        }
        if has_heard && number >= self.fleet.control {
            // An acknowledgement that the kernel delays would refuse the freeze.
            let _ = live.socket.set_tcp_quickack(true);
            let at = Instant::now() + REST;
            live.freeze_at = Some(at);
            self.resting.push(Reverse((at, number)));
        }
    }

    fn send(&mut self, number: u32, bytes: &[u8]) {
        let Some(live) = self.live.get(&number) else { return };
        match (&live.socket).write(bytes) {
            Ok(length) if length == bytes.len() => {}
            Ok(_) => self.end(number, "a full send buffer"),
            Err(error) => self.end(number, &error.kind().to_string()),
        }
    }

    fn end(&mut self, number: u32, why: &str) {
        if let Some(live) = self.live.remove(&number) {
            if live.step == Step::Apart
                && let Ok(tuple) = Tuple::of(&live.socket)
            {
                self.gate.live(tuple, name(number));
            }
            self.arriving -= usize::from(!live.has_arrived);
            self.count_end(why);
        }
    }

    fn count_end(&mut self, why: &str) {
        *self.counts.ended.entry(why.to_owned()).or_default() += 1;
    }
}

fn name(number: u32) -> ConnName {
    ConnName { slot: number, generation: 0 }
}
