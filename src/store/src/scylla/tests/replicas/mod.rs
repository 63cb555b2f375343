//! Three replicas that miss writes: each write of a law misses one of them, or a replica is stopped for a while.
//!
//! All tests of this module share one ring of `bench/cassandra/cassandra start --nodes 3 --no-hints --faults`, which
//! `TEST_CQL_REPLICAS` names. Without that variable the first test starts one, which ends with the test process.

mod expiry;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use cassandra::Database;
use runtime::ports::Store;

use super::super::Scylla;
use super::Apart;
use super::moving::{self, Moving};
use crate::shared::opening::ConnectOptions;
use crate::shared::options::Options;
use crate::testing::database::{Keyspace, make_tables, open_with, options};

/// Port of the commands that `FaultyNode.java` takes.
const CONTROL_PORT: u16 = 7070;
/// Time from the end of a compaction to the next one, of the next replica.
const COMPACT_EVERY: Duration = Duration::from_secs(3);

/// The ring of this process.
struct Ring {
    _started: Option<Database>,
    hosts: Vec<String>,
    /// The tables of the laws.
    config: Options,
    /// Laws share the ring. A test that stops replicas has it alone.
    shared: RwLock<()>,
}

fn ring() -> &'static Ring {
    static RING: OnceLock<Ring> = OnceLock::new();
    RING.get_or_init(|| {
        let (started, nodes) = match std::env::var("TEST_CQL_REPLICAS") {
            Ok(nodes) if !nodes.is_empty() => (None, nodes),
            _ => {
                let database = Database::start(&["--nodes", "3", "--no-hints", "--faults"]);
                let database = database.unwrap_or_else(|error| panic!("{error}"));
                let nodes = database.nodes().to_owned();
                (Some(database), nodes)
            }
        };
        let hosts: Vec<String> =
            nodes.split(',').map(|node| node.split(':').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(hosts.len(), 3, "three replicas");
        let config = Options { replication_factor: 3, ..options(&nodes) };
        make_tables(&config);
        hosts.iter().for_each(|host| drop(send(host, "lose-writes")));
        let (compacted, keyspace) = (hosts.clone(), config.keyspace.clone());
        std::thread::spawn(move || {
            for host in compacted.iter().cycle() {
                std::thread::sleep(COMPACT_EVERY);
                send(host, &format!("flush {keyspace}"));
                send(host, &format!("compact {keyspace}"));
            }
        });
        Ring { _started: started, hosts, config, shared: RwLock::new(()) }
    })
}

/// Sends one command to a node and returns the rest of its reply.
fn send(host: &str, line: &str) -> String {
    let sent = || -> std::io::Result<String> {
        let mut node = TcpStream::connect((host, CONTROL_PORT))?;
        writeln!(node, "{line}")?;
        let mut reply = String::new();
        BufReader::new(node).read_line(&mut reply)?;
        Ok(reply)
    };
    let reply = sent().unwrap_or_else(|error| panic!("{host} {line}: {error}"));
    let rest = reply.trim_end().strip_prefix("ok").unwrap_or_else(|| panic!("{host} {line}: {reply}"));
    rest.trim().to_owned()
}

impl Ring {
    fn share(&self) -> RwLockReadGuard<'_, ()> {
        self.shared.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the ring alone, and no write misses a replica meanwhile.
    fn take(&self) -> Alone<'_> {
        let taken = self.shared.write().unwrap_or_else(PoisonError::into_inner);
        self.send_all("keep-writes");
        Alone { ring: self, _taken: taken }
    }

    fn send_all(&self, line: &str) {
        self.hosts.iter().for_each(|host| drop(send(host, line)));
    }

    /// Stops a replica: its clients lose it, its peers hold it for dead, and its process stands still.
    fn stop(&self, replica: usize) -> Stopped<'_> {
        let host = &self.hosts[replica];
        send(host, "close");
        let peers = self.hosts.iter().filter(|peer| *peer != host).collect::<Vec<_>>();
        peers.iter().for_each(|peer| drop(send(peer, &format!("cut {host}"))));
        let stopped = Stopped { peers, host, process: send(host, "pid") };
        signal(&stopped.process, "STOP");
        // The driver takes a moment to see that connections are closed.
        std::thread::sleep(Duration::from_millis(200));
        stopped
    }
}

/// The ring without other tests.
struct Alone<'a> {
    ring: &'a Ring,
    _taken: RwLockWriteGuard<'a, ()>,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.ring.send_all("lose-writes");
    }
}

/// A replica that stands still until this value is dropped.
struct Stopped<'a> {
    peers: Vec<&'a String>,
    host: &'a String,
    process: String,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        signal(&self.process, "CONT");
        for peer in &self.peers {
            send(peer, &format!("join {}", self.host));
            send(self.host, &format!("join {peer}"));
        }
        send(self.host, "open");
    }
}

fn signal(process: &str, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), process]).status();
    assert!(status.expect("kill runs").success(), "{name} {process}");
}

/// Runs a law in moving time. Each of its writes misses one of the replicas, which are compacted in turn.
pub(crate) fn with_port(law: impl FnOnce(Box<dyn Store>)) {
    let ring = ring();
    let _shared = ring.share();
    let process_clock = moving::process_clock();
    let store = Scylla::connect(&ring.config, ConnectOptions { process_clock: Arc::clone(&process_clock) })
        .expect("the store opens");
    law(Box::new(Moving::new(Apart::new(&store), process_clock)));
    store.close();
}

/// As [`with_port`] in standing time, with tables that no other test has.
pub(crate) fn with_store(law: impl FnOnce(&Scylla)) {
    let ring = ring();
    let _shared = ring.share();
    let keyspace = keyspace(ring);
    let store = open_with(keyspace.config());
    law(&store);
    store.close();
}

fn keyspace(ring: &Ring) -> Keyspace {
    let alone = Options { keyspace: cassandra::keyspace(), ..ring.config.clone() };
    make_tables(&alone);
    Keyspace(alone)
}

/// The laws would hold too if no write were lost.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn writes_of_the_laws_miss_replicas() {
    let lost = || -> u64 { ring().hosts.iter().map(|host| send(host, "lost").parse::<u64>().expect("a number")).sum() };
    let before = lost();
    with_port(|port| {
        let mut port = crate::conformance::BlockingStore::new(port);
        (1..=20).for_each(|user| port.register(user, 2));
    });
    assert!(lost() >= before + 20, "{before} and {}", lost());
}
