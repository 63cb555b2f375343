//! `murre maintain`: replay ledgers, salvage a damaged store, back up, look after a shared store.

use std::collections::BTreeMap;
use std::future::pending;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use store::embedded::{Copied, Progress};
use store::scylla::operator::Operator;
use store::shared::census::{AGES, Census, Purge, Space};
use store::shared::error::DatabaseError;
use tokio::signal::unix::{SignalKind, signal};

use super::{ConfigArgs, fail, status};
use config::{Config, Secret};
use server::{BackupCopy, NodeError, is_backup_name};

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    task: Task,
}

/// Maintenance tasks.
#[derive(Subcommand, Debug)]
enum Task {
    /// Save the messages in the ledger logs of a node that will not start again to its store
    Replay {
        /// Data directory of the node
        dir: PathBuf,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Make a new data directory from the readable part of a damaged one, which is only read
    Salvage {
        /// Damaged data directory
        dir: PathBuf,
        /// New data directory
        dest: PathBuf,
    },
    /// Copy keys and store to backups/NAME in the data directory, also while the server runs
    Backup {
        /// Name of the backup; default: the seconds since 1970
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        config: ConfigArgs,
    },
    /// Print the contents and size of a shared store, and drop users that are gone
    Shared {
        /// Drop users that have been offline for at least DAYS days, and the leftover rows of deleted users
        #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u16).range(1..))]
        purge_idle: Option<u16>,
        #[command(flatten)]
        config: ConfigArgs,
    },
}

/// Runs the task.
pub fn run(args: Args) -> ExitCode {
    match args.task {
        Task::Replay { dir, config } => with_config(config.load(), |mut config| {
            config.data_dir = dir;
            let messages = server::replay_ledgers(&config)?;
            Ok(format!("saved {messages} messages to storage; the ledger logs are removed"))
        }),
        Task::Salvage { dir, dest } => match server::salvage(&dir, &dest, &mut show) {
            Ok(copy) => salvaged(&dir, &copy),
            Err(fault) => fail(fault.status(), &fault),
        },
        Task::Shared { purge_idle, config } => with_config(config.load(), |config| {
            let span = |days: u16| Purge::Idle(Duration::from_secs(u64::from(days) * 86_400));
            look_after(&config, purge_idle.map_or(Purge::Nobody, span))
        }),
        Task::Backup { name, config } => with_config(config.load(), |config| {
            if name.as_ref().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit())) {
                return Err(NodeError::Backup("a name of digits alone stands for a time: add a letter to it"));
            }
            let name = name.unwrap_or_else(seconds_now);
            if !is_backup_name(&name) {
                return Err(NodeError::Backup("the name of a backup has 1 to 64 letters, digits, - or _"));
            }
            match server::backup_unused(&config, &name) {
                Err(NodeError::InUse { .. }) => ask_server(&config, &name),
                other => other.map(|copy| format!("{}: {}", copy.path.display(), rows(&copy))),
            }
        }),
    }
}

/// Returns the report on a shared store, one line for each figure.
fn look_after(config: &Config, purge: Purge) -> Result<String, NodeError> {
    let fault = |fault: DatabaseError| NodeError::of_database(fault.to_string(), fault.passes());
    let operator = Operator::connect(&config.store.scylla).map_err(fault)?;
    let stop = Arc::new(AtomicBool::new(false));
    if !matches!(purge, Purge::Nobody) {
        // A user is dropped in two steps, and a user that comes back between them depends on the second.
        stop_at_signals(&stop).map_err(|error| NodeError::Host { what: "a signal handler", error })?;
    }
    let (census, spaces) = operator.look_after(purge, &stop).map_err(fault)?;
    Ok(told(&census, &spaces))
}

/// Makes SIGINT and SIGTERM set `stop` instead of killing the process.
fn stop_at_signals(stop: &Arc<AtomicBool>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let stop = Arc::clone(stop);
        let mut heard = runtime.block_on(async { signal(kind) })?;
        runtime.spawn(async move {
            while heard.recv().await.is_some() {
                stop.store(true, Ordering::Relaxed);
            }
        });
    }
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(pending::<()>()))?;
    Ok(())
}

fn told(census: &Census, spaces: &BTreeMap<&'static str, Space>) -> String {
    let Census { users, idle, leftovers, channels, presences, purged, passed_by } = census;
    let ages: Vec<String> = AGES.iter().zip(idle).map(|(days, users)| format!("{users} within {days} days")).collect();
    let mut lines = vec![
        format!("users: {users}, last seen: {}", ages.join(", ")),
        format!("channels: {channels}, rows of presence: {presences}"),
        format!("users that are gone and left rows behind: {leftovers}; dropped: {purged}"),
        format!("not seen for so long, and kept because a node says that they are connected: {passed_by}"),
    ];
    for (table, space) in spaces {
        let Space { nodes, partitions, bytes, .. } = space;
        let tombstones = match (space.tombstones_p99, space.tombstones_max) {
            (Some(p99), Some(max)) => format!("a read passes {p99} tombstones at p99, {max} at most"),
            _ => "how many tombstones reads pass is in the metrics of the database".to_owned(),
        };
        lines.push(format!("{table}: about {bytes} bytes in {partitions} partitions on {nodes} nodes; {tombstones}"));
    }
    lines.join("\n")
}

fn with_config(
    config: Result<Config, config::ConfigError>,
    task: impl FnOnce(Config) -> Result<String, NodeError>,
) -> ExitCode {
    match config {
        Ok(config) => finish(task(config)),
        Err(error) => fail(status::CONFIG, &error),
    }
}

fn finish(result: Result<String, NodeError>) -> ExitCode {
    match result {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(fault) => fail(fault.status(), &fault),
    }
}

fn seconds_now() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).to_string()
}

fn rows(copy: &BackupCopy) -> String {
    let copied = &copy.copied;
    format!("{} users, {} messages, {} topic messages", copied.users, copied.messages, copied.topics)
}

/// Prints the progress of a salvage on standard error.
fn show(progress: Progress) {
    let Progress { keyspace, tables, rows } = progress;
    eprintln!("murre: {keyspace}: {rows} rows of {tables} tables and the journals");
}

/// Prints the result of a salvage, and fails when something was lost.
fn salvaged(dir: &Path, copy: &BackupCopy) -> ExitCode {
    println!("{}: {}", copy.path.display(), rows(copy));
    match lost(dir, copy) {
        Some(lost) => fail(status::DAMAGED, &lost),
        None => ExitCode::SUCCESS,
    }
}

/// Names the parts that a salvage could not read, in one sentence.
fn lost(dir: &Path, copy: &BackupCopy) -> Option<String> {
    let Copied { lost_rows, unreadable_blocks, unreadable_tables, damaged_journals, damaged_manifests, .. } =
        copy.copied;
    let (dir, dest) = (dir.display(), copy.path.display());
    let unknown = match damaged_manifests {
        0 => String::new(),
        some => format!(", and with {some} manifests unreadable it is not known which other tables are missing"),
    };
    let sentence = || {
        format!(
            "cannot read all of {dir}: at most {lost_rows} rows in {unreadable_blocks} blocks, \
             all of {unreadable_tables} tables and parts of {damaged_journals} journals are damaged{unknown}; \
             start on {dest}, which has the rest, or restore a backup"
        )
    };
    (!copy.copied.is_whole()).then(sentence)
}

/// The server that has the data directory makes the backup itself, through its admin listener.
fn ask_server(config: &Config, name: &str) -> Result<String, NodeError> {
    let Some(address) = config.admin.listen.first() else {
        return Err(NodeError::Backup("the server that runs has no admin.listen, through which it could be asked"));
    };
    // Only who may read the data directory may ask.
    let token = server::admin_token(&config.data_dir)?;
    let no_server = |error| NodeError::NoServer { data: config.data_dir.clone(), address: *address, error };
    let answer = put_backup(*address, &token, name).map_err(no_server)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.split(' ').nth(1) {
        Some("201") => Ok(format!("made by the running server: {body}")),
        code => {
            let reason = format!("{} {body}", head.lines().next().unwrap_or_default());
            // As the admin server answers a disk that is full (RFC 4918 section 11.5).
            let status = if code == Some("507") { status::STORAGE } else { status::FAILED };
            Err(NodeError::NoBackup { reason, status })
        }
    }
}

/// Requests a backup from the admin server at this address and returns its response.
fn put_backup(address: SocketAddr, token: &Secret, name: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIME_MAX)?;
    stream.set_read_timeout(Some(BACKUP_TIME_MAX))?;
    let token = token.reveal();
    let head = format!(
        "PUT /backups/{name} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

const BACKUP_TIME_MAX: Duration = Duration::from_secs(3_600);
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use config::Sources;

    #[test]
    fn a_salvage_that_lost_something_says_how_much() {
        let copied = Copied { users: 9, ..Copied::default() };
        let copy = |copied| BackupCopy { path: PathBuf::from("new"), copied };
        assert_eq!(lost(Path::new("old"), &copy(copied.clone())), None);
        let damaged = Copied { lost_rows: 12, unreadable_blocks: 2, unreadable_tables: 1, ..copied };
        let said = lost(Path::new("old"), &copy(damaged)).expect("something was lost");
        assert!(said.starts_with("cannot read all of old: at most 12 rows in 2 blocks, all of 1 tables"), "{said}");
        assert!(said.contains("start on new") && !said.contains("manifest"), "{said}");
        let said = lost(Path::new("old"), &copy(Copied { damaged_manifests: 2, ..Copied::default() }));
        assert!(said.is_some_and(|said| said.contains("with 2 manifests unreadable")), "it cannot be known");
    }

    #[test]
    fn a_server_that_cannot_be_asked_for_a_backup_is_said_to_be_unreachable() {
        let dir = tempfile::tempdir().unwrap();
        let sets = vec!["admin.listen=127.0.0.1:1".to_owned(), format!("data_dir={}", dir.path().display())];
        let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
        let said = ask_server(&config, "one").unwrap_err().to_string();
        assert!(said.contains("keys/admin") && said.contains("make data_dir writable"), "no token: {said}");
        std::fs::create_dir(dir.path().join("keys")).unwrap();
        std::fs::write(dir.path().join("keys/admin"), "a-token-of-the-operator\n").unwrap();
        let fault = ask_server(&config, "one").unwrap_err();
        let said = fault.to_string();
        let dir = dir.path().display();
        let start =
            format!("cannot ask the server that has {dir} for a backup: no answer at admin.listen = 127.0.0.1:1: ");
        assert!(said.starts_with(&start) && said.contains("Connection refused"), "{said}");
        assert!(said.contains("--config") && said.ends_with("or stop the server"), "{said}");
        assert_eq!(fault.status(), status::FAILED);
    }
}
