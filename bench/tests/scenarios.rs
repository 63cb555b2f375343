//! Every load scenario at a size for tests, against the server itself. The tests do not judge the figures; they check
//! only that the figures are there.

use std::net::Ipv4Addr;

use murre_bench::result::names;
use murre_bench::scenario::{bridged, churn, hold, mixed, ping, push, store, storm};
use upstream::{Service, Upstream};

use crate::common::World;
use crate::common::scenario::{in_place_of, run};

#[test]
fn hold_reads_memory_at_each_count_and_everybody_answers() {
    let world = World::start();
    let words = ["--sessions", "120", "--at", "40,80", "--quiet", "1", "--stay", "1", "--answer", "--release"];
    let words = [&words[..], &["--release-wait", "3", "--channels", "1"]].concat();
    let outcome = run(&world.server, true, &words, hold::run).good();
    let counts: Vec<f64> = outcome.series(names::USER_BYTES).unwrap().points.iter().map(|point| point[0]).collect();
    assert_eq!(counts, [0.0, 40.0, 80.0, 120.0]);
    assert_eq!(outcome.figure("sessions that answered at the end"), Some(120.0));
    assert!(outcome.figure(names::USER_SLOPE).is_some() && outcome.figure(names::CPU_IDLE).is_some());
    assert!(outcome.figure("user memory after all left").is_some());
}

#[test]
fn hold_tells_hello_from_register() {
    let world = World::start();
    let words = ["--sessions", "60", "--quiet", "1", "--channels", "2", "--split", "--ramp-rate", "200"];
    let outcome = run(&world.server, true, &words, hold::run).good();
    assert!(outcome.figure(names::CPU_HELLO).is_some() && outcome.figure(names::CPU_REGISTER).is_some());
}

#[test]
fn hold_knows_its_users_again() {
    let world = World::start();
    let file = world.data_dir().with_file_name("uaids");
    let words = ["--sessions", "30", "--quiet", "0", "--uaids", file.to_str().unwrap()];
    run(&world.server, true, &words, hold::run).good();
    let again = run(&world.server, true, &words, hold::run).good();
    assert_eq!(again.figure("sessions whose UAID was not known"), Some(0.0));
    let other = World::start();
    let strange = run(&other.server, true, &words, hold::run);
    assert_eq!(strange.failed(), ["sessions whose UAID was not known"]);
}

#[test]
fn push_at_a_rate_with_every_size_of_body() {
    let world = World::start();
    let words = ["--sessions", "50", "--rate", "300", "--seconds", "2", "--warmup", "0.5", "--body", "0,200,1000,4000"];
    let outcome = run(&world.server, true, &words, push::run).good();
    assert!(outcome.histogram(names::TO_FRAME).unwrap().count >= 590, "an open loop posts all that is due");
    assert!(outcome.series("POST to frame p99").unwrap().points.len() >= 2);
}

#[test]
fn push_with_vapid_as_fast_as_it_goes() {
    let world = World::start();
    for vapid in ["--vapid", "--fresh-tokens"] {
        let words = ["--sessions", "20", "--seconds", "1", "--warmup", "0", vapid];
        let outcome = run(&world.server, false, &words, push::run).good();
        assert!(outcome.figure(names::CPU_NOTIFICATION).is_some());
    }
}

#[test]
fn push_in_rounds_by_the_clock_on_the_wall() {
    let world = World::start();
    let words = ["--sessions", "10", "--rate", "100", "--warmup", "0.2", "--seconds", "0.5", "--rounds", "2"];
    let words = [&words[..], &["--period", "2", "--offset", "0.5"]].concat();
    let outcome = run(&world.server, false, &words, push::run).good();
    assert_eq!(outcome.series("p99 by round").unwrap().points.len(), 2);
    assert!(outcome.figure("median of rounds: p99").unwrap() > 0.0);
}

#[test]
fn store_and_drain_with_topics_and_with_messages_that_expire() {
    let world = World::start();
    let words = ["--sessions", "40", "--messages", "800", "--topics", "20", "--expiring", "10", "--expiring-ttl", "1"];
    let outcome = run(&world.server, true, &words, store::run).good();
    assert!(outcome.figure(names::CPU_STORE).is_some() && outcome.figure(names::CPU_DRAIN).is_some());
    // 80 expired; of 160 with a topic one for each user is left.
    let drained = outcome.figure("messages drained").unwrap();
    assert!((560.0..=640.0).contains(&drained), "{drained}");
}

#[test]
fn a_storm_within_a_second() {
    let world = World::start();
    let words = ["--sessions", "300", "--within", "1", "--stored", "30"];
    let outcome = run(&world.server, false, &words, storm::run).good();
    assert_eq!(outcome.histogram(names::TO_HELLO).unwrap().count, 300);
    assert!(outcome.figure(names::CPU_RETURN).is_some());
}

#[test]
fn a_server_that_is_killed_loses_nobody_and_nothing() {
    let world = World::start();
    let server = &world.server;
    let serve = in_place_of(server, &world.data_dir());
    let pid = server.pid().to_string();
    let words = ["--sessions", "100", "--kill", &pid, "--serve", &serve, "--back-off", "0.05", "--patience", "60"];
    let outcome = run(server, false, &words, storm::run).good();
    assert_eq!(outcome.figure("restart: sessions"), Some(100.0));
    assert_eq!(outcome.figure("restart: accepted and lost"), Some(0.0));
    assert!(outcome.figure("restart: until all were back").unwrap() > 0.0);
    // Of the process that came, not of the one that was killed.
    assert!(outcome.figure("restart: user memory with all back").unwrap() > 0.0);
    assert!(outcome.figure("restart: server CPU per session, its start counted in").unwrap() > 0.0);
}

/// Another server comes in the place of the killed one: the checks must report what it does not know.
#[test]
fn a_server_that_comes_back_without_its_data_is_found_out() {
    let world = World::start();
    let (server, empty) = (&world.server, tempfile::tempdir().unwrap());
    let (serve, pid) = (in_place_of(server, &empty.path().join("data")), server.pid().to_string());
    let words = ["--sessions", "30", "--kill", &pid, "--serve", &serve, "--back-off", "0.05", "--patience", "20"];
    let storm = run(server, false, &words, storm::run);
    for name in ["restart: UAIDs lost", "restart: accepted and lost"] {
        assert!(storm.failed().contains(&name), "{name}: {:?}", storm.failed());
    }
}

#[test]
fn impatient_user_agents_come_back_from_a_drain() {
    let settings = ["--set", "drain.rate=60"];
    let world = World::with(&settings);
    let server = &world.server;
    let serve = in_place_of(server, &world.data_dir());
    let pid = server.pid().to_string();
    let words = ["--sessions", "120", "--kill", &pid, "--serve", &serve, "--drain", "--retry", "0.05,0.2"];
    let outcome = run(server, false, &[&words[..], &["--patience", "60"]].concat(), storm::run).good();
    assert_eq!(outcome.figure("restart: UAIDs lost"), Some(0.0));
    assert_eq!(outcome.figure("restart: accepted and lost"), Some(0.0));
    assert!(outcome.figure("restart: attempts").unwrap() >= 120.0);
    assert!(outcome.figure("restart: sessions that ended in one second, at most").unwrap() > 0.0);
    assert!(outcome.histogram("restart: hello to answer").unwrap().count >= 120);
}

#[test]
fn churn_with_newcomers() {
    let world = World::start();
    let words = ["--sessions", "60", "--percent", "1500", "--new", "20", "--away", "0.3", "--seconds", "3"];
    let outcome = run(&world.server, false, &words, churn::run).good();
    assert!(outcome.figure("sessions that left").unwrap() >= 40.0);
    assert!(outcome.figure("of them for good").unwrap() >= 5.0);
}

#[test]
fn the_mix_of_the_peers_load_test() {
    let world = World::start();
    let words = ["--sessions", "200", "--wait", "1", "--seconds", "4", "--offline", "20", "--vapid"];
    let outcome = run(&world.server, false, &words, mixed::run).good();
    for task in ["Send", "Read", "Subscribe", "Unsubscribe"] {
        assert!(outcome.figure(&format!("tasks: {task}")).unwrap() > 0.0, "{task}");
    }
}

#[test]
fn pings_of_both_sides_are_answered_and_haste_is_not() {
    // Far apart, so that a busy host makes neither pongs nor timers late.
    let settings = ["--set", "websocket.auto_ping_interval=6s", "--set", "websocket.auto_ping_timeout=5s"];
    let world = World::with(&settings);
    let words = ["--sessions", "40", "--every", "100", "--seconds", "15", "--server-interval", "1", "--too-soon", "3"];
    let outcome = run(&world.server, false, &words, ping::run).good();
    assert!(outcome.figure("pings of the server, all answered").unwrap() >= 40.0);
    assert_eq!(outcome.figure("sessions closed for asking too soon"), Some(3.0));
    // A promise that this server does not keep.
    let words = ["--sessions", "5", "--every", "100", "--seconds", "15", "--server-interval", "60"];
    let failed = run(&world.server, false, &words, ping::run);
    assert_eq!(failed.failed(), ["pings of the server that came too early"]);
}

#[test]
fn websocket_pings_of_user_agents_are_answered() {
    let world = World::start();
    let words = ["--sessions", "40", "--frames", "--every", "2", "--seconds", "4"];
    let outcome = run(&world.server, false, &words, ping::run).good();
    assert!(outcome.figure("pings of user agents answered").unwrap() >= 40.0);
}

#[test]
fn phones_of_both_services_are_notified_and_a_silent_service_is_told_apart() {
    let (runtime, papers) = (tokio::runtime::Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let upstream = runtime.block_on(Upstream::start(Ipv4Addr::LOCALHOST.into(), papers.path())).unwrap();
    let file = |name: &str| papers.path().join(name).display().to_string();
    let settings = [
        "bridge.auth_keys=key-of-the-scenarios".to_owned(),
        format!("bridge.ca_file={}", file(upstream::CA)),
        format!("bridge.fcm.base_url=https://localhost:{}", upstream.google.port()),
        format!("bridge.fcm.credentials={}", file(upstream::FCM_CREDENTIALS)),
        format!("bridge.apns.channels={}", file(upstream::APNS_CHANNELS)),
        "bridge.apns.timeout=2".to_owned(),
    ];
    let settings: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting.as_str()]).collect();
    let (world, control) = (World::with(&settings), upstream.control.to_string());
    let words = ["--upstream", &control, "--rate", "100", "--idle", "0.2", "--warmup", "0", "--settle", "0.1"];
    let run = |more: &[&str]| run(&world.server, false, &[&words[..], more].concat(), bridged::run).good();
    let notified = run(&["--bridge", "fcm", "--sessions", "10", "--seconds", "1"]);
    let sent = notified.figure("service answers: answers 201").unwrap();
    assert!(sent > 0.0 && upstream.state.count(Service::Fcm) as f64 >= sent);
    let (cpu, memory) =
        ("service answers: server CPU per POST without that of the idle server", "resident memory after");
    assert!(notified.figure(cpu).is_some() && notified.figure(memory).is_some_and(|bytes| bytes > 1e6));
    let registered = run(&["--bridge", "fcm", "--sessions", "1", "--seconds", "0.5", "--registrations"]);
    assert!(registered.figure("service answers: answers 200").unwrap() > 0.0);
    // Later, the stand-in would count streams that it left without an answer and that the server has reset.
    assert!(upstream.state.violations().is_empty(), "{:?}", upstream.state.violations());
    let silent = ["--bridge", "apns", "--sessions", "10", "--seconds", "0.5", "--stall", "4", "--recovery", "0.5"];
    let silent = run(&silent);
    assert!(silent.figure("service answers: answers 201").unwrap() > 0.0);
    assert!(silent.figure("service silent: answers 502").unwrap() > 0.0, "by the deadline of the server");
    // The service answers the calls that wait when it comes back: none is older than the deadline, 2 of the 4 seconds.
    assert!(silent.figure("service silent: answers 201").unwrap_or(0.0) <= 200.0);
}
