//! Scenarios run in this process against a server that was started for it: murre, or the reference server.

use std::io;

use clap::{Args, Command};
use murre_bench::process::{Options, Server};
use murre_bench::result::Outcome;
use tempfile::TempDir;

use super::PATIENCE;

/// A reference server with these faults.
pub struct Reference {
    pub server: Server,
    _directory: TempDir,
}

impl Reference {
    pub fn with(faults: &[&str]) -> Reference {
        let directory = tempfile::tempdir().unwrap();
        let command = vec![env!("CARGO_BIN_EXE_murre-bench").to_owned(), "reference".into()];
        let arguments = faults.iter().map(|text| (*text).to_owned()).collect();
        let options = Options { command, arguments, patience: PATIENCE };
        let server = Server::start(options, &directory.path().join("data")).unwrap();
        Reference { server, _directory: directory }
    }
}

/// The shell command of a server in the place of `server`: these leading words, its addresses, more arguments.
pub fn in_place_of(server: &Server, command: &str, more: &str) -> String {
    format!(
        "{} {command} --websocket {} --endpoint {} --node {} --admin {} --endpoint-url {} {more}",
        env!("CARGO_BIN_EXE_murre-bench"),
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

/// Runs a scenario with these words of its command line. Murre's counters are read if `admin` is true.
pub fn run<O: Args>(server: &Server, admin: bool, words: &[&str], run: fn(&O) -> io::Result<bool>) -> Verdict {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("result.json");
    let mut line: Vec<String> = vec!["scenario".into(), "--json".into()];
    line.push(json.to_str().unwrap().into());
    for (flag, address) in [("--ws", server.websocket()), ("--endpoint", server.endpoint())] {
        line.extend([flag.to_owned(), address.to_string()]);
    }
    if admin {
        line.extend(["--admin".to_owned(), server.admin().to_string()]);
        line.extend(["--admin-token".to_owned(), server.admin_token_file().display().to_string()]);
    }
    // A test that replaces the server says so itself.
    line.extend(["--pid".to_owned(), server.pid().to_string()]);
    line.extend(words.iter().map(|word| (*word).to_owned()));
    let matches = O::augment_args(Command::new("scenario")).try_get_matches_from(line).unwrap();
    let options = O::from_arg_matches(&matches).unwrap();
    let held = run(&options).unwrap();
    Verdict { held, outcome: Outcome::read(&json).unwrap() }
}
