//! Shards that take turns on the test's thread, and clients that never block.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mailbox::{Mailbox, mesh};
use crate::ports::{Listening, NoPeers, NoUpstreams, Port};
use crate::process_clock::ProcessClock;
use crate::reactor::{CallerRules, ControlQueue, Parts, PlaneLimits, Reactor, ring_uses};
use crate::ring::{PlaneKind, RingUses, listen, local_address};
use machine::limits::BACKLOG_DEFAULT;

use super::script::{LineEdge, Log, Nothing, Script};
use super::toy_tls::ToyTls;

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) type TestReactor = Reactor<LineEdge, Script>;

/// Shards on this thread.
pub(super) struct Bench {
    pub shards: Vec<TestReactor>,
    pub websocket: SocketAddr,
    pub endpoint: SocketAddr,
    pub websocket_tls: SocketAddr,
    pub endpoint_tls: SocketAddr,
    pub public: SocketAddr,
    pub public_tls: SocketAddr,
}

thread_local! {
    static KIND: Cell<PlaneKind> = const { Cell::new(PlaneKind::Rings) };
}

/// Kind of the plane of the shards that the test on this thread makes.
pub(super) fn plane_kind() -> PlaneKind {
    KIND.get()
}

/// Runs a test on each kind of plane, one after the other.
pub(super) fn run(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    for kind in [PlaneKind::Rings, PlaneKind::Poll] {
        let test = Arc::clone(&test);
        run_on(kind, move || test());
    }
}

/// Runs a test on this kind of plane, on a thread of its own, as a shard has one.
pub(super) fn run_on(kind: PlaneKind, test: impl FnOnce() + Send + 'static) {
    let on_thread = move || {
        KIND.set(kind);
        test();
    };
    let ended = std::thread::spawn(on_thread).join();
    assert!(ended.is_ok(), "the test failed on the plane {}; see above", kind.word());
}

impl Bench {
    /// One shard with the usual limits.
    pub(super) fn one() -> Bench {
        Bench::new(1, PlaneLimits::new(1_000))
    }

    /// `shards` shards; only the first listens.
    pub(super) fn new(shards: u16, limits: PlaneLimits) -> Bench {
        Bench::of(mesh(shards).unwrap(), limits)
    }

    /// `shards` shards with these rules about callers.
    pub(super) fn with_callers(shards: u16, callers: &CallerRules) -> Bench {
        Bench::made(mesh(shards).unwrap(), PlaneLimits::new(2_000), callers)
    }

    /// A reactor for each of these mailboxes; the first listens.
    pub(super) fn of(mailboxes: Vec<Mailbox>, limits: PlaneLimits) -> Bench {
        Bench::made(mailboxes, limits, &CallerRules::default())
    }

    fn made(mailboxes: Vec<Mailbox>, limits: PlaneLimits, callers: &CallerRules) -> Bench {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let kinds = [
            (Port::WebSocket, false),
            (Port::Endpoint, false),
            (Port::WebSocket, true),
            (Port::Endpoint, true),
            (Port::Public, false),
            (Port::Public, true),
        ];
        let mut listeners = Vec::from(kinds.map(|(port, tls)| {
            let socket = listen(any, port, BACKLOG_DEFAULT).unwrap();
            Listening { port, tls, socket }
        }));
        let address = |at: usize| local_address(&listeners[at].socket).unwrap();
        let [websocket, endpoint, websocket_tls, endpoint_tls, public, public_tls] = [0, 1, 2, 3, 4, 5].map(address);
        let mut all = Vec::new();
        for mailbox in mailboxes {
            let control = Arc::new(ControlQueue::new(Arc::clone(mailbox.waker())));
            let parts = Parts {
                edge: LineEdge::default(),
                machine: Script::default(),
                store: Box::new(Nothing),
                peers: Box::new(NoPeers),
                upstreams: Box::new(NoUpstreams::default()),
                wake: Box::new(|_| ()),
                ledger: Box::new(Nothing),
                mailbox,
                control,
                listeners: std::mem::take(&mut listeners),
                tls: Box::new(ToyTls::default()),
                callers: callers.clone(),
                hibernation: None,
                limits: PlaneLimits { kind: plane_kind(), ..limits },
                // A test may let its shard hibernate later.
                uses: RingUses { freezes: true, ..ring_uses(callers, None) },
                board: Arc::new(TestReactor::board()),
                clock: Arc::new(ProcessClock::start()),
            };
            all.push(TestReactor::new(parts).unwrap());
        }
        for shard in &mut all {
            shard.steer_accepting();
        }
        Bench { shards: all, websocket, endpoint, websocket_tls, endpoint_tls, public, public_tls }
    }

    /// Gives every shard a turn; false when none had anything to do.
    pub(super) fn turn(&mut self) -> bool {
        self.shards.iter_mut().fold(false, |worked, shard| shard.turn() | worked)
    }

    /// Turns until `done`.
    pub(super) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Bench) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            if !self.turn() {
                std::thread::sleep(Duration::from_micros(50));
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: did not happen; logs {:?}", self.logs());
        }
    }

    /// Turns until nothing has happened for a while, and for many turns: on a busy host, a while may be one turn.
    pub(super) fn settle(&mut self) {
        let (mut quiet, mut idle_turns) = (Instant::now(), 0);
        while quiet.elapsed() < Duration::from_millis(30) || idle_turns < 100 {
            idle_turns += 1;
            if self.turn() {
                (quiet, idle_turns) = (Instant::now(), 0);
            }
        }
    }

    /// A client that is upgraded.
    pub(super) fn websocket(&mut self) -> Client {
        let mut client = Client::connect(self.websocket);
        client.say(b"UP\n");
        self.until("upgrade", |_| client.heard() == b"101\n");
        client.forget();
        client
    }

    pub(super) fn log(&self, shard: usize) -> Vec<String> {
        let log: &Log = &self.shards[shard].machine.log;
        log.lock().unwrap().clone()
    }

    fn logs(&self) -> Vec<Vec<String>> {
        let tail = |log: Vec<String>| log[log.len().saturating_sub(10)..].to_vec();
        (0..self.shards.len()).map(|shard| tail(self.log(shard))).collect()
    }
}

/// A peer.
pub(super) struct Client {
    stream: TcpStream,
    heard: Vec<u8>,
    /// Ends of lines in it.
    lines: usize,
    /// End of the stream, if it has ended.
    pub end: Option<Result<(), ErrorKind>>,
}

impl Client {
    pub(super) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream.set_nodelay(true).unwrap();
        Client { stream, heard: Vec::new(), lines: 0, end: None }
    }

    /// Sends all of it, which the socket's buffer takes.
    pub(super) fn say(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends what the socket takes now.
    pub(super) fn try_say(&mut self, bytes: &[u8]) -> usize {
        self.stream.write(bytes).unwrap_or(0)
    }

    /// Ends its side of the stream.
    pub(super) fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Resets the connection.
    pub(super) fn reset(self) {
        rustix::net::sockopt::set_socket_linger(&self.stream, Some(Duration::ZERO)).unwrap();
    }

    /// Reads at most `most` bytes that are there.
    pub(super) fn hear(&mut self, most: usize) -> usize {
        let mut buffer = vec![0; most];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.end = Some(Ok(())),
            Ok(len) => {
                self.heard.extend_from_slice(&buffer[..len]);
                self.lines += buffer[..len].iter().filter(|byte| **byte == b'\n').count();
                return len;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.end = Some(Err(error.kind())),
        }
        0
    }

    /// Everything heard so far.
    pub(super) fn heard(&mut self) -> &[u8] {
        while self.end.is_none() && self.hear(64 * 1024) > 0 {}
        &self.heard
    }

    /// Everything heard so far, without reading on.
    pub(super) fn heard_so_far(&self) -> &[u8] {
        &self.heard
    }

    /// Whole lines heard, without reading on.
    pub(super) fn lines_so_far(&self) -> usize {
        self.lines
    }

    /// Whole lines heard, after hearing everything that is there.
    pub(super) fn lines(&mut self) -> usize {
        self.heard();
        self.lines
    }

    pub(super) fn forget(&mut self) {
        self.heard.clear();
        self.lines = 0;
    }
}
