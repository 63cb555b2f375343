//! Refusals of a server at start: with a status of its own, one sentence, and the action that helps.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use murre_bench::process::{Options, Server};
use procfs::process::Process;

const SERVER: &str = env!("CARGO_BIN_EXE_murre-bench");

/// Serves on ports 0, so that only the subject of a test can be refused.
fn serve(data: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(SERVER);
    command.args(["serve", "--data-dir"]).arg(data).args(["--shards", "1", "--set", "delivery.ledger_bytes=4MiB"]);
    for port in ["--websocket", "--endpoint", "--node", "--admin"] {
        if !arguments.contains(&port) {
            command.args([port, "127.0.0.1:0"]);
        }
    }
    command.args(arguments).stdin(Stdio::null()).output().unwrap()
}

/// The sentence; the server must have ended by itself, with a status that is not success, and without a panic.
fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code().is_some_and(|code| code != 0 && code != 101), "{:?}\n{text}", output.status);
    assert!(!text.contains("panicked"), "{text}");
    let last = text.lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("murre: "), "no sentence of the server's own: {text}");
    last
}

/// The words that start a program with this limit of locked memory and without the capability that lifts the limit.
fn with_locked_memory(kilobytes: u64) -> Vec<String> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let is_capable = Process::myself().unwrap().status().unwrap().capeff & CAP_IPC_LOCK != 0;
    let dropping = ["setpriv".to_owned(), "--bounding-set=-ipc_lock".to_owned()];
    let limit = kilobytes << 10;
    let mut words = if is_capable { dropping.to_vec() } else { Vec::new() };
    words.extend(["prlimit".to_owned(), format!("--memlock={limit}:{limit}")]);
    words
}

/// Linux counts rings as locked memory from 6.14 on.
#[test]
fn a_server_needs_locked_memory_for_its_rings_and_names_the_limit_that_is_too_low() {
    let directory = tempfile::tempdir().unwrap();
    // A ring of 200 KiB for the one shard, and what the trials hold for a moment.
    let mut served = started_by(with_locked_memory(264), &directory.path().join("served"));
    assert!(served.running());
    assert_eq!(served.terminate().unwrap(), Some(0));

    let words = with_locked_memory(263);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args([SERVER, "serve", "--data-dir"]).arg(directory.path().join("data"));
    for port in ["--websocket", "--endpoint", "--node", "--admin"] {
        command.args([port, "127.0.0.1:0"]);
    }
    // Without this setting it polls.
    command.args(["--set", "shards.plane=io_uring"]);
    let output = command.args(["--shards", "1", "--max-connections", "1000"]).stdin(Stdio::null()).output().unwrap();
    let sentence = refused(&output);
    assert!(sentence.contains("locked memory (hard): 263 KiB: "), "{sentence}");
    assert!(sentence.contains("those of this server are 264 KiB; systemctl edit murre"), "{sentence}");
    assert_eq!(output.status.code(), Some(69), "{sentence}");
    assert!(!directory.path().join("data").exists());
}

fn started(data: &Path) -> Server {
    started_by(Vec::new(), data)
}

fn started_by(mut command: Vec<String>, data: &Path) -> Server {
    command.extend([SERVER.to_owned(), "serve".into()]);
    let sets = ["--set", "delivery.ledger_bytes=4MiB", "--set", "drain.delay=0"];
    let arguments =
        ["--shards", "1", "--max-connections", "1000"].iter().chain(&sets).map(|text| (*text).to_owned()).collect();
    Server::start(Options { command, arguments, patience: Duration::from_secs(60) }, data).unwrap()
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_name() {
    let directory = tempfile::tempdir().unwrap();
    let sentence = refused(&serve(&directory.path().join("data"), &["--set", "delivery.windw=3"]));
    assert!(sentence.contains("delivery.windw") && sentence.contains("delivery.window"), "{sentence}");
    let file = directory.path().join("murre.toml");
    std::fs::write(&file, "[websocket]\nhelo_timeout = 5\n").unwrap();
    let sentence = refused(&serve(&directory.path().join("data"), &["--config", file.to_str().unwrap()]));
    assert!(sentence.contains("helo_timeout") && sentence.contains("hello_timeout"), "{sentence}");
}

#[test]
fn a_bad_key_and_a_bad_value_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let sentence = refused(&serve(&data, &["--set", "endpoint.crypto_keys=not-a-fernet-key"]));
    assert!(sentence.contains("endpoint.crypto_keys"), "{sentence}");
    assert!(!sentence.contains("not-a-fernet-key"), "a secret is shown: {sentence}");
    let sentence = refused(&serve(&data, &["--set", "delivery.window=0"]));
    assert!(sentence.contains("delivery.window"), "{sentence}");
}

#[test]
fn a_data_directory_that_cannot_be_made_is_refused() {
    // Also root cannot make a directory below a file.
    let file = tempfile::NamedTempFile::new().unwrap();
    let sentence = refused(&serve(&file.path().join("data"), &[]));
    assert!(sentence.contains(file.path().to_str().unwrap()), "{sentence}");
}

#[test]
fn a_data_directory_in_use_is_refused_and_its_owner_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    let mut owner = started(&data);
    let sentence = refused(&serve(&data, &[]));
    assert!(sentence.contains(data.to_str().unwrap()), "{sentence}");
    assert!(owner.running());
    assert_eq!(owner.terminate().unwrap(), Some(0));
}

#[test]
fn a_port_in_use_is_refused_by_its_address() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for port in ["--websocket", "--endpoint", "--node", "--admin"] {
        let sentence = refused(&serve(&directory.path().join("data"), &[port, &address]));
        assert!(sentence.contains(&address), "{port}: {sentence}");
    }
}

#[test]
fn a_corrupt_store_is_refused_and_left_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    assert_eq!(started(&data).terminate().unwrap(), Some(0));
    let mut damaged = Vec::new();
    for entry in files_below(&data.join("store")) {
        let bytes = std::fs::read(&entry).unwrap();
        if bytes.len() > 8 {
            let flipped: Vec<u8> = bytes.iter().map(|byte| byte ^ 0x55).collect();
            std::fs::write(&entry, &flipped).unwrap();
            damaged.push((entry, flipped));
        }
    }
    assert!(!damaged.is_empty(), "nothing to damage below {}", data.display());
    let sentence = refused(&serve(&data, &[]));
    assert!(sentence.contains("store") || sentence.contains("maintain"), "{sentence}");
    for (path, bytes) in damaged {
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{} was changed", path.display());
    }
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            found.extend(files_below(&entry.path()));
        } else {
            found.push(entry.path());
        }
    }
    found
}
