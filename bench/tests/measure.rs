//! `bench/measure` at a hundredth of its counts, with the binary of this build: it starts servers and generators,
//! writes results, and leaves nothing running.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use murre_bench::result::{Outcome, names};

fn measure(arguments: &[&str], binaries: &Path) -> Output {
    prepared(arguments, binaries).output().unwrap()
}

fn prepared(arguments: &[&str], binaries: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("measure");
    // Loopback addresses that no other server of the tests has; these run beside each other.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let process = std::process::id();
    let net = format!("127.{}.{}", 200 + (process / 256 + count) % 50, process % 256);
    let mut command = Command::new(script);
    command.args(arguments).envs([("SMALL", "1"), ("SHARDS", "2"), ("MEASURE_NET", &net)]).env("MEASURE_BIN", binaries);
    command
}

/// The generator of this build alone: a `murre` beside it may be of another build, and the script would take it.
fn binaries() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_murre-bench"), directory.path().join("murre-bench")).unwrap();
    directory
}

fn read(directory: &Path, name: &str) -> Outcome {
    Outcome::read(&directory.join(name).with_extension("json")).unwrap()
}

#[test]
fn two_generators_take_turns_and_a_killed_server_comes_again() {
    let (directory, binaries) = (tempfile::tempdir().unwrap(), binaries());
    let out = directory.path().join("out");
    let output = measure(&["latency", "capacity", "restart", "--out", out.to_str().unwrap()], binaries.path());
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    assert!(text.contains("p99 into 10000 sessions to p99 into 100"), "{text}");
    for name in ["latency-many", "latency-few"] {
        let outcome = read(&out, name);
        assert_eq!(outcome.series("p99 by round").unwrap().points.len(), 2, "{name}");
        assert!(outcome.all_held(), "{name}");
    }
    let restart = read(&out, "restart");
    assert_eq!(restart.figure("restart: sessions"), Some(10_000.0));
    // The server that came in the place of the killed one is the one that is read.
    assert!(restart.figure("restart: user memory with all back").is_some_and(|bytes| bytes > 1e6));
    let (many, ping) = (read(&out, "latency-many"), read(&out, "capacity-ping"));
    assert!(many.figure(names::PING_RATE).is_some() && many.figure(names::CORES).is_some_and(|cores| cores > 0.0));
    assert!(many.option(names::OPTION_MAX_CONNECTIONS).is_some_and(|most| (11_500.0..11_510.0).contains(&most)));
    assert!(ping.figure(names::PING_RATE).is_some_and(|rate| rate > 100.0), "the server pings every six seconds");
    let model = std::fs::read_to_string(out.join("capacity.txt")).unwrap();
    assert!(model.contains("CPU for 10000 sessions"), "{model}");
    // A thousand sessions may be too few for a line through their memory; then the command says so.
    assert!(model.contains("memory for 10000 sessions") || text.contains("does not grow with the sessions"), "{text}");
    assert!(out.join("report.html").exists());
    let left: Vec<_> = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("work.")), "{left:?}");
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_node_on_cassandra_stands_beside_one_on_the_embedded_store() {
    let (directory, binaries) = (tempfile::tempdir().unwrap(), binaries());
    let out = directory.path().join("out");
    let mut command = prepared(&["cassandra", "--out", out.to_str().unwrap()], binaries.path());
    let output = command.env("TEST_CQL", cassandra::shared()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // The placement of a thousand users is chance: the check of moves may fail once in a long time, and nothing else.
    assert!(output.status.success() || text.contains("moves more than 10 % off"), "{text}");
    for line in ["server CPU per stored notification", "server CPU per returning hello", "statements per operation"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(read(&out, "on-cassandra-storm").figure("stored: accepted and lost"), Some(0.0));
    assert_eq!(read(&out, "on-cassandra-store").figure("UAIDs changed"), Some(0.0));
    let statements = read(&out, "on-cassandra-statements");
    assert_eq!(statements.figure("statements per direct to a session of the node itself"), Some(0.0));
}

#[test]
fn what_it_cannot_do_it_says() {
    let (nowhere, binaries) = (tempfile::tempdir().unwrap(), binaries());
    let refused = |arguments: &[&str], binaries: &Path, wanted: &str| {
        let output = measure(arguments, binaries);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(wanted), "{text}");
    };
    refused(&["milion"], binaries.path(), "there are: million latency capacity");
    refused(&[], binaries.path(), "which figure?");
    refused(&["push"], nowhere.path(), "cargo build --release");
    assert!(measure(&["--help"], binaries.path()).status.success());
}

/// The command at the top of docs/CAPACITY.md, typed right behind the one that starts the server. The command waits for
/// the server, and it measures as many pings per second as the sessions that it predicts would send.
#[test]
fn a_server_that_has_just_been_started_is_measured_at_the_rates_that_are_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let (keep, ip) = (directory.path().join("keep"), murre_bench::process::own_address());
    let at = |port: u16| format!("{ip}:{port}");
    let program = || Command::new(env!("CARGO_BIN_EXE_murre-bench"));
    let mut serve = program();
    serve.args(["serve", "--shards", "2", "--max-connections", "2000", "--endpoint-url", "http://push.test"]);
    serve.args(["--websocket", &at(8080), "--node", &at(8081), "--endpoint", &at(8082), "--admin", &at(8083)]);
    serve.arg("--data-dir").arg(directory.path().join("data"));
    let mut server = Stopped(serve.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let mut capacity = program();
    capacity.args(["capacity", "--ws", &at(8080), "--endpoint", &at(8082), "--admin", &at(8083)]);
    capacity.args(["--pid", &server.0.id().to_string(), "--seconds", "4", "--measure-sessions", "500"]);
    // 20,000 sessions are pinged 66.7 times a second, and get 40 of 50 notifications a second.
    capacity.args(["--sessions", "20000", "--push-rate", "50", "--keep"]).arg(&keep);
    let output = capacity.stdin(Stdio::null()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let [hold, push, ping] = ["hold", "push", "ping"].map(|name| read(&keep, name));
    assert_eq!(hold.option(names::OPTION_SESSIONS), Some(1_000.0), "twice as many, of which the second half is read");
    assert_eq!((push.option("rate"), push.option(names::OPTION_SESSIONS)), (Some(40.0), Some(500.0)));
    assert_eq!((ping.option(names::OPTION_SESSIONS), ping.option(names::OPTION_SHARDS)), (Some(200.0), None));
    // Half and twice are near enough for a promise.
    let rate = ping.figure(names::PING_RATE).unwrap();
    assert!((34.0..133.0).contains(&rate), "{rate}: {text}");
    let line = text.lines().find(|line| line.trim_start().starts_with("ping  ")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.ends_with("measured with 200 sessions"), "{text}");
    assert!(text.contains("are promised within 20 %"), "{text}");
    // A thousand sessions may be too few for a line through their memory; then the forecast names its source.
    assert!(output.status.success() && text.contains("Give the host"), "{text}");
    assert!(text.contains("Promised within 5 %") || text.contains("a documented constant"), "{text}");
    assert!(server.0.try_wait().unwrap().is_none(), "the server that was measured runs on");
    let left = std::fs::read_dir(&keep).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| !name.to_string_lossy().ends_with(".json")).count(), 0, "data of the other server");
}

/// A child process that is killed at the end of the test, also after a panic.
struct Stopped(std::process::Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
