//! Statements of each operation, counted by a running server on a real database.

use std::process::Command;
use std::time::Duration;

use crate::common::World;
use crate::common::scenario::run;
use murre_bench::process::{self, Options, Server};
use murre_bench::scenario::{statements, storm};
use tempfile::TempDir;

/// A node on a keyspace of its own.
struct Node {
    server: Server,
    _directory: TempDir,
}

impl Node {
    fn start() -> Node {
        let program = env!("CARGO_BIN_EXE_murre-bench");
        let nodes = cassandra::shared();
        let keyspace = format!("store.scylla.keyspace={}", cassandra::keyspace());
        let database = ["--scylla", nodes, "--set", &keyspace, "--set", "store.scylla.replication_factor=1"];
        let made = Command::new(program).args(["schema", "create"]).args(database).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let ip = process::own_address();
        let url = format!("http://{ip}:{}", process::NODE_PORT);
        let keys = "endpoint.crypto_keys=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        let node = ["--store", "scylla", "--shards", "2", "--node-url", &url, "--set", keys];
        let bounds = ["--set", "node.keys=for-this-test-only", "--set", "delivery.ledger_bytes=4MiB"];
        // The host may keep the database waiting.
        let patient = ["--set", "store.scylla.request_timeout=30", "--set", "websocket.hello_timeout=60"];
        let in_flight = ["--set", "store.scylla.in_flight=8", "--max-connections", "2000"];
        let arguments = [&database[..], &node, &bounds, &patient, &in_flight]
            .concat()
            .iter()
            .map(|word| word.to_string())
            .collect();
        let directory = tempfile::tempdir().unwrap();
        let command = vec![program.to_owned(), "serve".into()];
        let options = Options { command, arguments, patience: Duration::from_secs(60) };
        Node { server: Server::start_on(ip, options, &directory.path().join("data")).unwrap(), _directory: directory }
    }
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_direct_costs_no_statement_and_a_hello_four() {
    let node = Node::start();
    let words = ["--sessions", "12", "--messages", "3"];
    // Its own checks are those of new users, registers, directs, ends, known users and POSTs.
    let outcome = run(&node.server, true, &words, statements::run).good();
    let each = |what: &str| outcome.figure(&format!("statements per {what}"));
    let again = outcome.figure("statements sent again, in no figure above").unwrap();
    // Kinds count those as well that a slow database was asked a second time.
    let exactly = |what: &str, wanted: f64| {
        let found = outcome.figure(what).unwrap();
        assert!(found == wanted || again > 0.0 && found > wanted, "{what}: {found}, not {wanted}; {again} sent again");
    };
    assert_eq!(each("direct to a session of the node itself"), Some(0.0));
    // One more when two of them share a place in the memory of the node.
    assert!(each("connect of a known user").is_some_and(|each| (4.0..4.3).contains(&each)), "{:?}", outcome.figures);
    exactly("  user_read per connect of a known user", 1.0);
    exactly("  topics_read per connect of a known user", 1.0);
    exactly("  messages_read per connect of a known user", 1.0);
    assert_eq!(each("POST to an absent user"), Some(3.0));
    exactly("  message_put per POST to an absent user", 1.0);
    assert!(each("ack of a message").is_some_and(|each| (0.3..=2.0).contains(&each)), "{:?}", outcome.figures);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_storm_asks_no_more_at_once_than_configured_and_everybody_is_served() {
    let node = Node::start();
    let words = ["--sessions", "800", "--stored", "10", "--no-strangers", "--statements-max", "8"];
    let outcome = run(&node.server, true, &words, storm::run);
    // The placement of so few users is chance.
    let failed: Vec<_> = outcome.failed().into_iter().filter(|check| !check.contains("moves more than")).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let most = outcome.outcome.figure("statements under way at once, the most").unwrap();
    assert!((2.0..=16.0).contains(&most), "{most}");
    assert!(outcome.outcome.figure("statements per session, return").is_some_and(|each| each >= 4.0));
}

#[test]
fn a_store_of_its_own_has_no_statements_to_count() {
    let world = World::start();
    let options = ["--ws", &world.server.websocket().to_string(), "--admin", &world.server.admin().to_string()];
    let program = env!("CARGO_BIN_EXE_murre-bench");
    let said = Command::new(program).arg("statements").args(options).output().unwrap();
    assert!(!said.status.success());
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("its store is not a shared one"), "{said}");
}
