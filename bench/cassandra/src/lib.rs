//! A real database for tests and measurements: `bench/cassandra/cassandra` as an object.
//!
//! A test that needs any database shares one ([`shared`]) and makes a keyspace of its own ([`keyspace`]). A test that
//! needs passwords, TLS, three nodes or their faults starts one ([`Database::start`]). The database ends with the
//! process that started it, however that process ends: the command stops the database when its standard input ends.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Nodes of Cassandra that were started here and stop here.
pub struct Database {
    child: Child,
    nodes: String,
    dir: PathBuf,
    /// Words in front of each command.
    at: Vec<String>,
}

impl Database {
    /// Starts one node, or the nodes that the options of the command ask for, on loopback addresses of its own. Takes
    /// some ten seconds a node.
    ///
    /// # Errors
    /// Output of the command: Java or Maven is missing, or the database does not start.
    pub fn start(options: &[&str]) -> io::Result<Database> {
        let (count, process) = (STARTED.fetch_add(1, Ordering::Relaxed), std::process::id());
        // Of the last number three in a row are used.
        let address = format!("127.{}.{}.{}", 100 + count % 100, process % 256, 4 + process / 256 % 240);
        Database::start_at(&address, Vec::new(), options)
    }

    /// As [`Database::start`] on this address and the two behind it; `at` stands before each command, and selects the
    /// network namespace.
    ///
    /// # Errors
    /// As [`Database::start`].
    pub fn start_at(address: &str, at: Vec<String>, options: &[&str]) -> io::Result<Database> {
        refuse_unmarked();
        let (count, process) = (STARTED.fetch_add(1, Ordering::Relaxed), std::process::id());
        let dir = repository().join(format!("target/cassandra/run-{process}-{count}"));
        let mut child = command(&at)
            .args(["run", "--address", address, "--dir"])
            .arg(&dir)
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        // Invariant: it was spawned with a pipe.
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        stdout.read_line(&mut said)?;
        match said.trim_end().strip_prefix("ready ") {
            Some(nodes) => Ok(Database { child, nodes: nodes.to_owned(), dir, at }),
            None => {
                let output = child.wait_with_output()?;
                let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
                Err(io::Error::other(format!("no Cassandra: {said}")))
            }
        }
    }

    /// Contact points, as `--scylla` takes them.
    pub fn nodes(&self) -> &str {
        &self.nodes
    }

    /// A file below its directory, for example `tls/ca.pem`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Does something to one node, counted from 1: `kill`, `revive`, `pause` or `resume`.
    ///
    /// # Errors
    /// Output of the command.
    pub fn node(&self, verb: &str, number: u8) -> io::Result<()> {
        let output = command(&self.at).args([verb, &number.to_string(), "--dir"]).arg(&self.dir).output()?;
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        if output.status.success() { Ok(()) } else { Err(io::Error::other(format!("{verb} {number}: {said}"))) }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Contact points of a database without passwords that all tests share: that of `TEST_CQL`, else one that this
/// process starts.
///
/// # Panics
/// It does not start: a test that needs a database fails without.
pub fn shared() -> &'static str {
    static SHARED: OnceLock<(Option<Database>, String)> = OnceLock::new();
    refuse_unmarked();
    let (_, nodes) = SHARED.get_or_init(|| match std::env::var("TEST_CQL") {
        Ok(nodes) if !nodes.is_empty() => (None, nodes),
        _ => {
            let started = Database::start(&[])
                .unwrap_or_else(|error| panic!("{error}; `bench/check test` runs this test beside a database"));
            let nodes = started.nodes().to_owned();
            (Some(started), nodes)
        }
    });
    nodes
}

/// Panics in a run without a database (`TEST_CQL=none`): such a run includes no test that is marked to need one.
fn refuse_unmarked() {
    assert!(
        std::env::var_os("TEST_CQL").is_none_or(|nodes| nodes != "none"),
        "this test needs a database, and TEST_CQL is none; mark the test as ignored with the reason \
         \"needs Cassandra: bench/check test\""
    );
}

/// A keyspace for one caller alone.
pub fn keyspace() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    let count = STARTED.fetch_add(1, Ordering::Relaxed);
    format!("t{since:x}_{}_{count}", std::process::id())
}

static STARTED: AtomicU32 = AtomicU32::new(0);

fn command(at: &[String]) -> Command {
    let script = repository().join(COMMAND);
    let Some((first, rest)) = at.split_first() else { return Command::new(script) };
    let mut command = Command::new(first);
    command.args(rest).arg(script);
    command
}

const COMMAND: &str = "bench/cassandra/cassandra";

/// The root of the repository.
fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
