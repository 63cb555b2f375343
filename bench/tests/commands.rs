//! The commands of the binary against a real server.

use std::process::ExitCode;

use crate::common::World;
use clap::Parser;
use murre::commands::probe::{Args, Step, check};
use murre::commands::{Cli, Command, endpoint};

/// Endpoint URLs of these servers begin with a name that resolves nowhere, so the probe is given the address.
fn probe(world: &World) -> (Vec<Step>, Result<(), String>) {
    let ws = format!("ws://{}/", world.server.websocket());
    let endpoint = Some(format!("http://{}", world.server.endpoint()));
    let (report, outcome) = check(&Args { server: None, ws, endpoint, ca: None, timeout: 20, quiet: true });
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

#[test]
fn the_probe_says_that_nobody_is_there() {
    let mut world = World::start();
    assert_eq!(probe(&world).1, Ok(()), "{}", world.server.log());
    assert_eq!(world.server.terminate().unwrap(), Some(0), "{}", world.server.log());
    let (steps, outcome) = probe(&world);
    assert_eq!(steps, [Step::Connect], "{outcome:?}");
    assert!(outcome.is_err());
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
