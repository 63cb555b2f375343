//! Runs the scenarios that a prediction needs, each as a process of its own, so that it measures exactly what an
//! operator would.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Measured;
use crate::result::Outcome;

/// Holds, pushes, pings; the results.
pub(super) fn run(measured: &Measured) -> io::Result<Vec<Outcome>> {
    let pid = measured.pid.ok_or_else(|| {
        io::Error::other(
            "give results with --from, or the process id of a running server with --pid, so that it can be measured",
        )
    })?;
    let temporary = tempfile::tempdir()?;
    let directory = measured.keep.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(directory)?;
    let count = measured.measure_sessions;
    // Where the line is fitted; the first half warms the server up.
    let counts = format!("{},{},{},{}", count / 2, count / 8 * 5, count / 4 * 3, count / 8 * 7);
    // Pages of the ledgers are the process's own until they are written back, which takes half a minute unless it is
    // told to.
    let _ = Command::new("sync").stdin(Stdio::null()).status();
    let scenarios: [(&str, &[&str]); 3] = [
        // Without channels: a session keeps four of them in its slot at no cost, and what the store buffers of two
        // million registrations would hide what sessions take.
        ("hold", &["--channels", "0", "--at", &counts]),
        ("push", &["--rate", "1000", "--seconds", "15"]),
        ("ping", &[]),
    ];
    scenarios.iter().map(|(name, more)| scenario(measured, pid, directory, name, more)).collect()
}

fn scenario(measured: &Measured, pid: u32, directory: &Path, name: &str, more: &[&str]) -> io::Result<Outcome> {
    let file = directory.join(format!("{name}.json"));
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(name).args(["--ws", &measured.ws.to_string(), "--endpoint", &measured.endpoint.to_string()]);
    command.args(["--pid", &pid.to_string(), "--sessions", &measured.measure_sessions.to_string()]);
    if let Some(admin) = measured.admin {
        command.args(["--admin", &admin.to_string()]);
    }
    command.arg("--json").arg(&file).args(more).stdin(Stdio::null());
    println!("measuring: {name} with {} sessions", measured.measure_sessions);
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!(
            "`murre-bench {name}` failed ({status}): what it says above must be mended first"
        )));
    }
    Outcome::read(&file)
}
