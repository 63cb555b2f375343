//! Shards on their own threads: parking, waking, moving and ending for real.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::ports::{Listening, NoPeers, NoUpstreams, Port};
use crate::process_clock::ProcessClock;
use crate::reactor::{CallerRules, ControlMessage, PlaneLimits};
use crate::ring::{listen, local_address};
use crate::thread::{ShardSetup, Shards, start_with};
use machine::MachineConfig;
use machine::ids::ShardId;
use machine::limits::BACKLOG_DEFAULT;
use machine::placement::Placement;
use machine::time::TimeSpan;

use super::bench::{plane_kind, run};
use super::script::{LineEdge, Log, Nothing, Script};
use super::toy_tls::ToyTls;

/// Longer than anything takes that goes well.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Server {
    pub shards: Shards<LineEdge>,
    pub websocket: SocketAddr,
    endpoint: SocketAddr,
    logs: Vec<Log>,
}

fn config(shard: u16, count: u16) -> MachineConfig {
    MachineConfig {
        window: 1,
        spill_after: TimeSpan(0),
        retry_after: TimeSpan(0),
        hello_timeout: TimeSpan(0),
        ping_interval: TimeSpan(0),
        pong_timeout: TimeSpan(0),
        ping_min_interval: TimeSpan(0),
        relay_members: 0,
        sessions_max: 1,
        ledger_bytes_max: 1,
        ..MachineConfig::new(ShardId(shard), Placement::new([0; 16], count))
    }
}

/// `count` shards; only the first listens. Two share a core when there are more shards than cores.
pub(super) fn serve(count: u16, limits: PlaneLimits) -> Server {
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let websocket = listen(any, Port::WebSocket, BACKLOG_DEFAULT).unwrap();
    let endpoint = listen(any, Port::Endpoint, BACKLOG_DEFAULT).unwrap();
    let addresses = (local_address(&websocket).unwrap(), local_address(&endpoint).unwrap());
    let plain = |port, socket| Listening { port, tls: false, socket };
    let mut listeners = vec![plain(Port::WebSocket, websocket), plain(Port::Endpoint, endpoint)];
    let logs: Vec<Log> = (0..count).map(|_| Log::default()).collect();
    let setup = |shard: u16| ShardSetup {
        machine: config(shard, count),
        core: Some(usize::from(shard) % 2),
        clock: Arc::new(ProcessClock::start()),
        limits: PlaneLimits { kind: plane_kind(), ..limits },
        listeners: std::mem::take(&mut listeners),
        tls: Box::new(|| Box::new(ToyTls::default())),
        callers: CallerRules::default(),
        hibernation: None,
        edge: Box::new(LineEdge::default),
        store: Box::new(|_| Box::new(Nothing)),
        peers: Box::new(|_| Box::new(NoPeers)),
        upstreams: Box::new(|_| Box::new(NoUpstreams::default())),
        ledger: Box::new(|| Box::new(Nothing)),
        wake: Box::new(|_| ()),
    };
    let setups = (0..count).map(setup).collect();
    let scripts = logs.clone();
    let make = move |config: MachineConfig| {
        let log = Arc::clone(&scripts[usize::from(config.shard.0)]);
        Script::with(log)
    };
    let shards = start_with(setups, |_| Ok(()), make).unwrap();
    Server { shards, websocket: addresses.0, endpoint: addresses.1, logs }
}

pub(super) struct Peer(BufReader<TcpStream>);

impl Peer {
    pub fn connect(address: SocketAddr) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Peer(BufReader::new(stream))
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.0.get_mut().write_all(line.as_bytes()).unwrap();
        self.answer()
    }

    pub fn answer(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }
}

impl Server {
    pub fn number(&self, shard: usize, name: &str) -> u64 {
        let board = &self.shards.boards()[shard];
        board.read().find(|(meaning, _)| meaning.name == name).map(|(_, value)| value).unwrap()
    }

    /// Waits for a number, which is told about once a second.
    pub fn await_number(&self, shard: usize, name: &str, enough: impl Fn(u64) -> bool) {
        let begun = Instant::now();
        while !enough(self.number(shard, name)) {
            assert!(begun.elapsed() < PATIENCE, "{name} is {}", self.number(shard, name));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns true if shard 0 sleeps while it is asked once in three seconds. Earlier sleeps may be told late: a shard
    /// that sleeps does so every time, and one try in five is enough.
    pub fn sleeps(&self, peer: &mut Peer) -> bool {
        (0..5).any(|_| {
            std::thread::sleep(Duration::from_millis(2_500));
            let before = self.number(0, "turns");
            std::thread::sleep(Duration::from_millis(1_500));
            assert_eq!(peer.ask("E\n"), "pong\n");
            std::thread::sleep(Duration::from_millis(1_500));
            self.number(0, "turns") - before < 100
        })
    }

    pub fn end(self) {
        self.shards.drain(1, PATIENCE);
        let reports = self.shards.wait();
        assert!(reports.iter().all(|report| report.drained));
    }
}

#[test]
fn four_shards_on_two_cores_move_sessions_while_parked() {
    run(|| {
        let server = serve(4, PlaneLimits::new(1_000));
        let mut peers = Vec::new();
        for round in 0..40 {
            let mut peer = Peer::connect(server.websocket);
            assert_eq!(peer.ask("UP\n"), "101\n");
            // Let all shards park in between, now and then.
            if round % 8 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let to = round % 4;
            if to > 0 {
                assert_eq!(peer.ask(&format!("M {to}\nE\n")), "pong\n");
                assert_eq!(peer.answer(), "pong\n");
            }
            peers.push(peer);
        }
        for peer in &mut peers {
            assert_eq!(peer.ask("E\n"), "pong\n");
        }
        let arrivals: Vec<usize> = server
            .logs
            .iter()
            .map(|log| log.lock().unwrap().iter().filter(|line| *line == "arrived").count())
            .collect();
        assert_eq!(arrivals, [0, 10, 10, 10]);
        server.end();
    });
}

/// Rings beyond the hub wake a parked shard, again and again.
#[test]
fn a_parked_shard_is_woken_by_a_ring_that_is_not_its_hub() {
    run(|| {
        let mut limits = PlaneLimits::new(300);
        limits.table_max = 100;
        let server = serve(1, limits);
        let mut peers = Vec::new();
        for _ in 0..250 {
            // One after the other: a burst would be larger than what these small tables keep free.
            let mut peer = Peer::connect(server.websocket);
            assert_eq!(peer.ask("UP\n"), "101\n");
            peers.push(peer);
        }
        let last = peers.last_mut().unwrap();
        let (begun, parks) = (Instant::now(), server.number(0, "parks"));
        while server.number(0, "parks") < parks + 40 {
            assert!(begun.elapsed() < PATIENCE, "{} parks after {parks}", server.number(0, "parks"));
            // Long enough to be parked, when the host lets it.
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(last.ask("E\n"), "pong\n");
        }
        server.await_number(0, "accept_ring_changes", |changes| changes >= 2);
        server.await_number(0, "connections", |connections| connections == 250);
        server.end();
    });
}

#[test]
fn an_idle_shard_sleeps() {
    run(|| {
        let server = serve(2, PlaneLimits::new(100));
        let mut peer = Peer::connect(server.websocket);
        assert_eq!(peer.ask("UP\n"), "101\n");
        assert!(server.sleeps(&mut peer), "more than a hundred turns for one request in three seconds");
        server.end();
    });
}

#[test]
fn endpoint_connections_are_dealt_across_threads() {
    run(|| {
        let server = serve(3, PlaneLimits::new(100));
        let mut peers: Vec<Peer> = (0..30).map(|_| Peer::connect(server.endpoint)).collect();
        for _ in 0..10 {
            for peer in &mut peers {
                assert_eq!(peer.ask("E\n"), "pong\n");
            }
        }
        let commands = |shard: usize| {
            let log = server.logs[shard].lock().unwrap();
            log.iter().filter(|line| *line == "command E").count()
        };
        assert_eq!([commands(0), commands(1), commands(2)], [100, 100, 100]);
        server.end();
    });
}

#[test]
fn controls_reach_every_shard_and_a_drain_stops_accepting() {
    run(|| {
        let server = serve(2, PlaneLimits::new(100));
        let seen = Arc::new(Mutex::new(0));
        let count = Arc::clone(&seen);
        server.shards.control(ControlMessage::Edge(Arc::new(move |_: &mut LineEdge| *count.lock().unwrap() += 1)));
        let begun = Instant::now();
        while *seen.lock().unwrap() < 2 {
            assert!(begun.elapsed() < PATIENCE, "a control was lost");
            std::thread::sleep(Duration::from_millis(1));
        }
        let address = server.websocket;
        server.shards.drain(1, 10 * PATIENCE);
        while TcpStream::connect(address).is_ok() {
            assert!(begun.elapsed() < 2 * PATIENCE, "it still accepts");
            std::thread::sleep(Duration::from_millis(1));
        }
        let reports = server.shards.wait();
        assert_eq!(reports.len(), 2);
        assert!(reports.iter().all(|report| report.drained && report.connections == 0));
        assert!(begun.elapsed() < 5 * PATIENCE, "it waited for the deadline although all were drained");
    });
}

#[test]
fn a_core_that_is_not_there_is_refused_in_one_sentence() {
    run(|| {
        let setup = ShardSetup {
            machine: config(0, 1),
            core: Some(100_000),
            clock: Arc::new(ProcessClock::start()),
            limits: PlaneLimits { kind: plane_kind(), ..PlaneLimits::new(10) },
            listeners: Vec::new(),
            tls: Box::new(|| Box::new(ToyTls::default())),
            callers: CallerRules::default(),
            hibernation: None,
            edge: Box::new(LineEdge::default),
            store: Box::new(|_| Box::new(Nothing)),
            peers: Box::new(|_| Box::new(NoPeers)),
            upstreams: Box::new(|_| Box::new(NoUpstreams::default())),
            ledger: Box::new(|| Box::new(Nothing)),
            wake: Box::new(|_| ()),
        };
        let error = start_with(vec![setup], |_| Ok(()), |_| Script::default()).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("core 100000") && error.contains("shards.cores"), "{error}");
    });
}
