//! Allocations of a shard once it has found its size: nothing for idle sessions, their pings and its own turns, and a
//! small number for each notification, every one of which is named here.
//!
//! A whole node runs in this process, with one shard; the allocations of that thread are counted (`counting`). The
//! clients are blocking sockets on the thread of the test. One test, so that no other test uses the shard meanwhile. A
//! bound that is broken is shown with the places that allocate.

mod client;
mod counting;

use std::time::{Duration, Instant};

use config::{Config, Sources};
use server::RunningNode;
use tempfile::TempDir;

use client::{Agent, Sender};
use counting::{Counting, Thread};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Rounds before counting: pools, queues and tables find their size.
const WARM_UP: u64 = 300;
/// Rounds that are counted.
const ROUNDS: u64 = 500;

/// Allocations of each direct notification, from its POST to its ack.
const NOTIFICATION: u64 = NAMED.len() as u64;
const NAMED: &[&str] = &[
    "the message body, as storage and the ledger will have it",
    "the message around it, which the window, the ledger and the frame share",
    "the request to the machine, which may travel to another shard",
    "the list of acks that the machine is told",
];
/// Allocations that a shard may make beside its work in a phase, and in each second of it.
const STRAY: u64 = 24;
const STRAY_PER_SECOND: u64 = 4;

/// A node with one shard, and its clients.
struct World {
    running: RunningNode,
    shard: Thread,
    agents: Vec<Agent>,
    paths: Vec<String>,
    sender: Sender,
    _directory: TempDir,
}

impl World {
    fn start(agents: usize, settings: &[&str]) -> World {
        let directory = tempfile::tempdir().unwrap();
        let mut sets = vec![
            format!("data_dir={}", directory.path().display()),
            "websocket.listen=127.0.0.1:0".to_owned(),
            "endpoint.listen=127.0.0.1:0".to_owned(),
            "node.listen=127.0.0.1:0".to_owned(),
            "admin.listen=127.0.0.1:0".to_owned(),
            "shards.count=1".to_owned(),
            "delivery.ledger_bytes=4MiB".to_owned(),
            "max_connections=1000".to_owned(),
            "websocket.ping_min_interval=0".to_owned(),
            "websocket.hello_timeout=60".to_owned(),
        ];
        sets.extend(settings.iter().map(|text| (*text).to_owned()));
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        let running = server::start(&config).unwrap();
        let addresses = running.addresses();
        let mut agents: Vec<Agent> = (0..agents).map(|_| Agent::new(addresses.websocket[0])).collect();
        let paths = agents.iter_mut().map(Agent::register).collect();
        let sender = Sender::new(addresses.endpoint[0]);
        World { shard: Thread::named("shard0"), running, agents, paths, sender, _directory: directory }
    }

    /// Posts to one agent after the other; each takes its notification and acks it.
    fn notify(&mut self, rounds: u64) {
        for round in 0..rounds as usize {
            let at = round % self.agents.len();
            self.sender.post(&self.paths[at]);
            self.agents[at].take();
        }
        self.settle();
    }

    /// Waits until everything that was sent is processed, and answers every Ping.
    fn settle(&mut self) {
        self.agents.iter_mut().for_each(Agent::settle);
    }

    /// Every agent gets a Ping of the server and answers it.
    fn answer_pings(&mut self) {
        let pings = self.running.total("pings");
        std::thread::scope(|scope| {
            for agent in &mut self.agents {
                scope.spawn(|| agent.pong());
            }
        });
        until("the Pings are counted", || self.running.total("pings") >= pings + self.agents.len() as u64);
    }

    /// Fails when `work` makes the shard allocate more than `bound`, and shows the places.
    fn bound(&mut self, what: &str, bound: u64, mut work: impl FnMut(&mut World)) {
        let (before, begun) = (self.shard.allocations(), Instant::now());
        work(self);
        let allocations = self.shard.allocations() - before;
        let bound = bound + STRAY + STRAY_PER_SECOND * begun.elapsed().as_secs();
        if allocations > bound {
            let places = self.shard.trace(|| work(self));
            panic!("{what}: {allocations} allocations, at most {bound}. Once more, by place:\n{places}");
        }
    }
}

#[test]
fn a_shard_that_has_found_its_size_allocates_only_what_is_named() {
    let mut world = World::start(8, &[]);
    world.notify(WARM_UP);

    world.bound("notifications", ROUNDS * NOTIFICATION, |world| world.notify(ROUNDS));
    world.bound("pings of a client", 0, |world| {
        for _ in 0..ROUNDS {
            world.agents[0].say("{}");
            assert_eq!(world.agents[0].hear(), serde_json::json!({}));
            world.agents[1].settle();
        }
    });
    // Slow enough for the shard to sleep each time.
    world.bound("wakes", 0, |world| {
        let parks = world.running.total("parks");
        for _ in 0..ROUNDS {
            std::thread::sleep(Duration::from_millis(2));
            world.agents[2].settle();
        }
        // A busy host does not always let it: then some more.
        until("the shard has slept", || {
            world.agents[2].settle();
            world.running.total("parks") >= parks + ROUNDS / 2
        });
    });
    // The bound is no higher than it must be: every named allocation is made.
    let before = world.shard.allocations();
    world.notify(10);
    assert!(world.shard.allocations() - before >= 10 * NOTIFICATION, "less is allocated than is named here");
    drop(world);

    let mut idle = World::start(100, &["websocket.auto_ping_interval=8", "websocket.auto_ping_timeout=7"]);
    idle.answer_pings();
    idle.bound("idle sessions and their pings", 0, World::answer_pings);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
