//! Scenarios run in this process against a server that was started for it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use clap::{Args, Command};
use murre_bench::process::Server;
use murre_bench::result::Outcome;

/// The shell command of a murre in the place of `server`, with this data directory.
pub fn in_place_of(server: &Server, data: &Path) -> String {
    format!(
        "{} serve --data-dir {} --websocket {} --endpoint {} --node {} --admin {} --endpoint-url {} --shards 3 \
         --set delivery.ledger_bytes=4MiB 2>/dev/null",
        env!("CARGO_BIN_EXE_murre-bench"),
        data.display(),
        server.websocket(),
        server.endpoint(),
        server.node(),
        server.admin(),
        murre_bench::process::ENDPOINT_URL,
    )
}

/// Result of a scenario.
pub struct Verdict {
    pub held: bool,
    pub outcome: Outcome,
}

impl Verdict {
    /// The names of the checks that failed.
    pub fn failed(&self) -> Vec<&str> {
        self.outcome.checks.iter().filter(|check| !check.ok).map(|check| check.name.as_str()).collect()
    }

    /// Checks that all checks held; returns the outcome.
    pub fn good(self) -> Outcome {
        assert!(self.held, "{:?}", self.failed());
        self.outcome
    }

    /// Checks that exactly these checks failed.
    pub fn bad(self, wanted: &[&str]) {
        assert!(!self.held);
        assert_eq!(self.failed(), wanted);
    }
}

/// Runs a scenario against murre with these words of its command line. Its counters are read if `admin` is true.
pub fn run<O: Args>(server: &Server, admin: bool, words: &[&str], scenario: fn(&O) -> io::Result<bool>) -> Verdict {
    let (address, token) = (server.admin().to_string(), server.admin_token_file().display().to_string());
    // A test that replaces the server says so itself.
    let pid = server.pid().to_string();
    let mut line = vec!["--pid", &pid];
    if admin {
        line.extend(["--admin", &address, "--admin-token", &token]);
    }
    run_at(server.websocket(), server.endpoint(), &[&line[..], words].concat(), scenario)
}

/// Runs a scenario against any server with these words of its command line.
pub fn run_at<O: Args>(
    websocket: SocketAddr,
    endpoint: SocketAddr,
    words: &[&str],
    scenario: fn(&O) -> io::Result<bool>,
) -> Verdict {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("result.json");
    let (websocket, endpoint, file) = (websocket.to_string(), endpoint.to_string(), json.to_str().unwrap());
    let line = ["scenario", "--json", file, "--ws", &websocket, "--endpoint", &endpoint];
    let matches = O::augment_args(Command::new("scenario")).try_get_matches_from([&line[..], words].concat()).unwrap();
    let options = O::from_arg_matches(&matches).unwrap();
    let held = scenario(&options).unwrap();
    Verdict { held, outcome: Outcome::read(&json).unwrap() }
}
