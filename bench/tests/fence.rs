//! Fence of rings of a running server: no thread of it can make a further ring.

use std::fs;
use std::path::{Path, PathBuf};

use client::http::{Request, exchange};
use serde_json::Value;

use crate::common::World;

/// Value of a field of a `status` file.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
    value.unwrap_or_else(|| panic!("no {name} in {status}"))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// Number behind `name=` in the last line of the log that has `words`.
fn logged(log: &str, words: &str, name: &str) -> usize {
    let line = log.lines().rfind(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words} in {log}"));
    let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    value.unwrap().parse().unwrap()
}

/// Checks a thread.
fn is_filtered(status: &str, filters: &str) {
    let found = ["Seccomp", "Seccomp_filters", "NoNewPrivs"].map(|name| field(status, name));
    assert_eq!(found, ["2", filters, "1"], "{}", field(status, "Name"));
}

#[test]
fn every_thread_of_a_server_is_refused_further_rings_by_a_filter() {
    let mut world = World::with(&["--shards", "2"]);
    let mine = fs::read_to_string("/proc/self/status").unwrap();
    let filters = (field(&mine, "Seccomp_filters").parse::<usize>().unwrap() + 1).to_string();
    for round in ["start", "restart"] {
        let process = PathBuf::from(format!("/proc/{}", world.server.pid()));
        // A request is served by a shard, and the page by the control plane: none begins before the fence is closed.
        let (mut agent, subscription) = world.subscriber();
        let id = world.post(&subscription, 60, "direct").id();
        let note = agent.note();
        assert_eq!(note.version, id, "{round}");
        agent.ack([&note]);
        let health =
            exchange(world.server.admin(), &Request::new("GET", "/health").header("Host", "localhost")).unwrap();
        let health: Value = serde_json::from_slice(&health.body).unwrap();
        assert_eq!(health["plane"]["fence"], "closed", "{health}");

        // A thread can end meanwhile.
        let threads = entries(&process.join("task"));
        let threads = threads.iter().filter_map(|thread| fs::read_to_string(thread.join("status")).ok());
        let named: Vec<String> = threads.inspect(|status| is_filtered(status, &filters)).collect();
        let has = |name: &str| named.iter().any(|status| field(status, "Name") == name);
        assert!(has("shard0") && has("shard1") && has("control-plane"), "{named:?}");
        let is_ring =
            |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target.ends_with("anon_inode:[io_uring]"));
        let rings = entries(&process.join("fd")).iter().filter(|path| is_ring(path)).count();
        let is_polling = health["plane"]["kind"] == "poll";
        assert_eq!(rings == 0, is_polling);
        let said = |name| logged(&world.server.log(), "rings fenced, and further ones forbidden", name);
        assert_eq!((said("rings"), said("register_calls")), (rings, 0));
        assert_eq!(said("operations"), if is_polling { 0 } else { 11 });
        world.restart();
    }
}
