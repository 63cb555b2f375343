//! The commands of the binary against a real server.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, World};
use clap::Parser;
use commands::probe::{Args, Step, check};
use commands::{Cli, Command, ConfigArgs, endpoint, export};
use murre_bench::metrics::Metrics;

/// Endpoint URLs of these servers begin with a name that resolves nowhere, so the probe is given the address.
fn probe(world: &World) -> (Vec<Step>, Result<(), String>) {
    let ws = format!("ws://{}/", world.server.websocket());
    let endpoint = Some(format!("http://{}", world.server.endpoint()));
    let (report, outcome) = check(&Args {
        server: None,
        ws,
        endpoint,
        ca: None,
        timeout: 20,
        quiet: true,
        quick: false,
        config: ConfigArgs::default(),
    });
    let steps = report.steps.into_iter().map(|(step, _)| step).collect();
    (steps, outcome.map_err(|(step, why)| format!("{}: {why}", step.name())))
}

#[test]
fn the_probe_finds_a_server_well_again_and_again() {
    let world = World::start();
    for _ in 0..3 {
        assert_eq!(probe(&world), (Step::ALL.to_vec(), Ok(())), "{}", world.server.log());
    }
}

/// Users in the store of a server that has stopped, as an export counts them.
fn users(world: &World) -> usize {
    let (data_dir, out) = (world.data_dir(), world.data_dir().join("users.jsonl"));
    let line = ["murre", "export", out.to_str().unwrap(), "--data-dir", data_dir.to_str().unwrap()];
    match Cli::try_parse_from(line).unwrap().command {
        Command::Export(args) => {
            assert_eq!(format!("{:?}", export::run(args)), format!("{:?}", ExitCode::SUCCESS));
        }
        other => panic!("{other:?}"),
    }
    std::fs::read_to_string(&out).unwrap().lines().count()
}

#[test]
fn fifty_probes_leave_no_user() {
    let mut world = World::start();
    let (_agent, _subscription) = world.subscriber();
    for _ in 0..50 {
        assert_eq!(probe(&world).1, Ok(()), "{}", world.server.log());
    }
    let until = Instant::now() + PATIENCE;
    let dropped = || -> f64 {
        let metrics = Metrics::read(world.server.admin()).unwrap();
        metrics.named("murre_idle_users_dropped_total").map(|(_, value)| value).sum()
    };
    while dropped() < 50.0 {
        assert!(Instant::now() < until, "{} of 50 users were dropped", dropped());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
    assert_eq!(users(&world), 1, "only the subscriber is left");
}

#[test]
fn the_probe_says_that_nobody_is_there() {
    let mut world = World::start();
    assert_eq!(probe(&world).1, Ok(()), "{}", world.server.log());
    assert_eq!(quick_probe(&world).1, Ok(()), "{}", world.server.log());
    assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
    for (probe, first) in [(probe as fn(&World) -> _, Step::Connect), (quick_probe, Step::Health)] {
        let (steps, outcome) = probe(&world);
        assert_eq!(steps, [first], "{outcome:?}");
        assert!(outcome.is_err());
    }
}

/// The address of the health route is all that a quick probe is told.
fn quick_probe(world: &World) -> (Vec<Step>, Result<(), String>) {
    let sets = vec![format!("admin.listen={}", world.server.admin())];
    let config = ConfigArgs { sets, ..ConfigArgs::default() };
    let (ws, endpoint) = (String::new(), None);
    let (report, outcome) =
        check(&Args { server: None, ws, endpoint, ca: None, timeout: 20, quiet: true, quick: true, config });
    let steps = report.steps.into_iter().map(|(step, _)| step).collect();
    (steps, outcome.map_err(|(step, why)| format!("{}: {why}", step.name())))
}

#[test]
fn quick_probes_leave_no_user_session_or_row() {
    let mut world = World::start();
    let number = |name: &str| -> f64 {
        let metrics = Metrics::read(world.server.admin()).unwrap();
        assert!(metrics.named(name).next().is_some(), "no metric {name}");
        metrics.named(name).map(|(_, value)| value).sum()
    };
    for _ in 0..20 {
        let (steps, outcome) = quick_probe(&world);
        assert_eq!(outcome, Ok(()), "{}", world.server.log());
        assert_eq!(steps, [Step::Health, Step::Connect, Step::Post]);
    }
    let until = Instant::now() + PATIENCE;
    while number("murre_upgrades_total") < 20.0 {
        assert!(Instant::now() < until, "{} of 20 upgrades were counted", number("murre_upgrades_total"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let store = ["touches", "registers", "idle_drops", "publishes"].map(|what| format!("murre_store_{what}_total"));
    for nothing in ["murre_sessions".to_owned(), "murre_hellos_total".to_owned()].into_iter().chain(store) {
        assert_eq!(number(&nothing), 0.0, "{nothing}");
    }
    assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
    assert_eq!(users(&world), 0);
}

/// The first listener is open some milliseconds before the last part of the server runs.
#[test]
fn sigterm_is_an_order_to_drain_as_soon_as_a_port_listens() {
    for _ in 0..5 {
        let mut world = World::start();
        assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
    }
}

#[test]
fn inspect_opens_what_the_server_sealed_with_the_key_in_its_data_directory() {
    let world = World::start();
    let (_agent, subscription) = world.subscriber();
    let inspect = |url: &str| {
        let data_dir = world.data_dir();
        let line = ["murre", "endpoint", "inspect", url, "--data-dir", data_dir.to_str().unwrap()];
        match Cli::try_parse_from(line).unwrap().command {
            Command::Endpoint(args) => format!("{:?}", endpoint::run(args)),
            other => panic!("{other:?}"),
        }
    };
    let url = subscription.url.clone();
    assert_eq!(inspect(&url), format!("{:?}", ExitCode::SUCCESS));
    assert_eq!(inspect(&url[..url.len() - 4]), format!("{:?}", ExitCode::FAILURE));
}
