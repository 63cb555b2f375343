//! SIGHUP: keys are read again from the same file while sessions go on; a list that is refused changes nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Request, World, exchange};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const CRYPTO_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const CRYPTO_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NODE_1: &str = "first-node-key-0123456789";
const NODE_2: &str = "second-node-key-0123456789";

/// A configuration file of its own, and the number of its reloads.
struct Keys {
    directory: TempDir,
    read: usize,
    refused: usize,
}

impl Keys {
    fn new(text: &str) -> Keys {
        let keys = Keys { directory: tempfile::tempdir().unwrap(), read: 0, refused: 0 };
        std::fs::write(keys.path(), text).unwrap();
        keys
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("murre.toml")
    }

    /// Writes the file, sends SIGHUP, and waits until the log has the result.
    fn change(&mut self, world: &World, text: &str, taken: bool) {
        std::fs::write(self.path(), text).unwrap();
        let pid = Pid::from_raw(world.server.pid() as i32).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
        self.read += usize::from(taken);
        self.refused += usize::from(!taken);
        let begin = Instant::now();
        let said = |sentence: &str| world.server.log().matches(sentence).count();
        while said("keys reloaded") < self.read || said("keys not reloaded") < self.refused {
            assert!(begin.elapsed() < PATIENCE, "{}", world.server.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!((said("keys reloaded"), said("keys not reloaded")), (self.read, self.refused));
    }
}

fn file(crypto: &[&str], node: &[&str]) -> String {
    format!("[endpoint]\ncrypto_keys = {crypto:?}\n[node]\nkeys = {node:?}\n")
}

/// The status of `PUT /notif` with this key.
fn notify(world: &World, uaid: &str, key: &str) -> u16 {
    let request = Request::new("PUT", &format!("/notif/{uaid}")).header("authorization", &format!("Bearer {key}"));
    exchange(world.server.node(), request).status
}

fn world(config: &Path) -> World {
    World::with(&["--config", config.to_str().unwrap(), "--set", "log.level=info"])
}

#[test]
fn keys_change_under_a_session_that_goes_on() {
    let mut keys = Keys::new(&file(&[CRYPTO_1], &[NODE_1]));
    let world = world(&keys.path());
    let (mut agent, old) = world.subscriber();
    keys.change(&world, &file(&[CRYPTO_2, CRYPTO_1], &[NODE_2, NODE_1]), true);
    let new = agent.register(None);
    for (subscription, text) in [(&old, "to the old URL"), (&new, "to the new URL")] {
        assert_eq!(world.post(subscription, 60, text).status, 201);
        let note = agent.note();
        assert_eq!((note.text(), &note.channel), (text, &subscription.channel));
        agent.ack([&note]);
    }
    for (key, allowed) in [(NODE_1, true), (NODE_2, true), ("another-node-key-0123456789", false)] {
        assert_eq!(notify(&world, &agent.uaid, key) != 401, allowed, "{key}");
    }

    keys.change(&world, &file(&[CRYPTO_2], &[NODE_2]), true);
    assert_eq!(world.post(&old, 60, "x").refusal(), (404, 102), "the key of the old URL is gone");
    assert_eq!(world.post(&new, 60, "still the same session").status, 201);
    assert_eq!(agent.note().text(), "still the same session");
    assert_eq!(notify(&world, &agent.uaid, NODE_1), 401);
    assert_ne!(notify(&world, &agent.uaid, NODE_2), 401);
}

#[test]
fn a_list_that_is_refused_changes_nothing() {
    let mut keys = Keys::new(&file(&[CRYPTO_1], &[NODE_1]));
    let mut world = world(&keys.path());
    let (mut agent, subscription) = world.subscriber();
    for bad in [
        file(&[CRYPTO_1, "not-a-fernet-key-at-all"], &[NODE_1]),
        file(&[CRYPTO_1], &["short"]),
        file(&[], &[NODE_1]),
        "[endpoint\n".to_owned(),
        "[endpoint]\ncrypto_kyes = []\n".to_owned(),
    ] {
        keys.change(&world, &bad, false);
        assert_eq!(world.post(&subscription, 60, "unchanged").status, 201, "{bad}");
        let note = agent.note();
        assert_eq!(note.text(), "unchanged");
        agent.ack([&note]);
        assert_ne!(notify(&world, &agent.uaid, NODE_1), 401);
    }
    std::fs::remove_file(keys.path()).unwrap();
    let log = world.server.log();
    for secret in [CRYPTO_1, NODE_1, "not-a-fernet-key-at-all"] {
        assert!(!log.contains(secret), "a secret is in the log: {log}");
    }
    assert!(log.contains("endpoint.crypto_keys"), "the sentence names the setting: {log}");
    assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
}

#[test]
fn the_level_of_the_log_is_taken_and_what_waits_for_a_restart_is_named() {
    let keys = |more: &str| format!("{}{more}", file(&[CRYPTO_1], &[NODE_1]));
    let mut changes = Keys::new(&keys("[log]\nlevel = \"info\"\n"));
    let world = World::with(&["--config", changes.path().to_str().unwrap()]);
    let upgrades = || world.server.log().matches("WebSocket upgraded").count();
    let (_first, _) = world.subscriber();
    let debug = "[log]\nlevel = \"debug\"\n[delivery]\nwindow = 9\n[hello]\nreconcile = true\n";
    changes.change(&world, &keys(debug), true);
    assert!(world.server.log().contains("waiting=\"delivery.window,hello.reconcile\""), "{}", world.server.log());
    let (_second, _) = world.subscriber();
    let begin = Instant::now();
    while upgrades() == 0 {
        assert!(begin.elapsed() < PATIENCE, "events of clients are not logged: {}", world.server.log());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(upgrades(), 1, "the first one was before");
    changes.change(&world, &keys("[log]\nlevel = \"info\"\n"), true);
    let (_third, _) = world.subscriber();
    changes.change(&world, &keys("[log]\nlevel = \"info\"\n"), true);
    assert_eq!(upgrades(), 1, "{}", world.server.log());
    let named = world.server.log().matches("waiting=").count();
    assert_eq!(named, 1, "what is as it was at the start waits for nothing: {}", world.server.log());
}
