//! The binary `murre-bench`: the scenarios, the reports of their results, and the server itself as tests and crash
//! scenarios start it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use commands::{schema, serve};
use murre_bench::scenario::{
    backlog, bridged, churn, crash, drill, flood, hibernate, hold, kills, mixed, ping, push, sim, statements, store,
    storm,
};
use murre_bench::{capacity, conformance, html, interrupt, without_rings};
use server::HostClock;

/// As in the binary `murre`, since this one serves too.
#[global_allocator]
static ALLOCATOR: wipe::Wiping = wipe::Wiping;

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "murre-bench", version, about = "Drives murre from outside: load, crashes, simulation")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Hold idle sessions and say what each costs.
    Hold(hold::Options),
    /// Hold sessions that are frozen at both ends, wake some of them, and say what each costs.
    Hibernate(hibernate::Options),
    /// Push direct notifications and say what each costs.
    Push(push::Options),
    /// Notify phones through a bridge to a stand-in of FCM or APNs and say what each costs.
    Bridged(bridged::Options),
    /// Store messages for users who are away, then let them come and get them.
    Store(store::Options),
    /// Count the statements that each operation costs a shared store.
    Statements(statements::Options),
    /// All sessions leave and return at once; stored messages; strangers; a server that is killed under them.
    Storm(storm::Options),
    /// Sessions leave and return all the time while the others are notified.
    Churn(churn::Options),
    /// The traffic mix of the peer's load test.
    Mixed(mixed::Options),
    /// Pings of user agents and of the server.
    Ping(ping::Options),
    /// Drain a long backlog of one user and measure what its neighbours notice.
    Backlog(backlog::Options),
    /// Push beside strangers who send as much as the server takes.
    Flood(flood::Options),
    /// Break connections and the server itself, and count what comes back.
    Crash(crash::Options),
    /// Kill the server in the middle of traffic with topics, reconnects and slow user agents.
    Kills(kills::Options),
    /// Make one HTML file of results, with plots.
    Report(html::Options),
    /// Predict from a small run what a host for many sessions needs.
    Capacity(capacity::Options),
    /// Break nodes, lines and the database of a cluster, and count what arrives all the same.
    Drill(drill::Options),
    /// Ask a server of this kind, requirement by requirement, for the RFCs and the protocol that clients rely on.
    Conformance(conformance::Options),
    /// Run the deterministic simulator over a range of seeds.
    Sim(sim::Options),
    /// Run the server itself, exactly as `murre serve` does, for tests and the crash scenario.
    Serve(serve::Args),
    /// The same, with a clock that is ahead of the host's, for the drill of clocks.
    ServeAhead(ServeAhead),
    /// Run a program to which a seccomp filter refuses io_uring, for tests.
    WithoutRings(without_rings::Options),
    /// The tables of a shared store, exactly as `murre schema` does.
    Schema(schema::Args),
}

/// Arguments of `serve-ahead`.
#[derive(clap::Args, Debug)]
struct ServeAhead {
    /// File that holds the offset in milliseconds; read again ten times a second.
    file: PathBuf,
    #[command(flatten)]
    serve: serve::Args,
}

/// Serves, and looks at the file until the process ends.
fn serve_ahead(ahead: ServeAhead) -> ExitCode {
    let clock = HostClock::default();
    let read = move || std::fs::read_to_string(&ahead.file).ok()?.trim().parse::<i64>().ok();
    let Some(milliseconds) = read() else {
        eprintln!("murre-bench: serve-ahead: the file does not say how far");
        return ExitCode::FAILURE;
    };
    clock.set_off(milliseconds.saturating_mul(1_000));
    let follows = clock.clone();
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(100));
            // A file that is being written says nothing for a moment.
            if let Some(milliseconds) = read() {
                follows.set_off(milliseconds.saturating_mul(1_000));
            }
        }
    });
    serve::run_by(ahead.serve, clock)
}

/// The others end at once, as any program does.
fn looks_for_interrupts(command: &Command) -> bool {
    use Command::{Backlog, Bridged, Churn, Flood, Hibernate, Hold, Mixed, Ping, Push, Statements, Store, Storm};
    matches!(
        command,
        Hold(_)
            | Hibernate(_)
            | Push(_)
            | Bridged(_)
            | Store(_)
            | Statements(_)
            | Storm(_)
            | Churn(_)
            | Mixed(_)
            | Ping(_)
            | Backlog(_)
            | Flood(_)
    )
}

fn main() -> ExitCode {
    wipe::this_thread();
    let command = Cli::parse().command;
    if looks_for_interrupts(&command)
        && let Err(error) = interrupt::install()
    {
        eprintln!("murre-bench: signals are not caught: {error}");
    }
    let outcome = match command {
        Command::Hold(options) => hold::run(&options),
        Command::Hibernate(options) => hibernate::run(&options),
        Command::Push(options) => push::run(&options),
        Command::Bridged(options) => bridged::run(&options),
        Command::Store(options) => store::run(&options),
        Command::Statements(options) => statements::run(&options),
        Command::Storm(options) => storm::run(&options),
        Command::Churn(options) => churn::run(&options),
        Command::Mixed(options) => mixed::run(&options),
        Command::Ping(options) => ping::run(&options),
        Command::Backlog(options) => backlog::run(&options),
        Command::Flood(options) => flood::run(&options),
        Command::Crash(options) => crash::run(&options),
        Command::Kills(options) => kills::run(&options),
        Command::Report(options) => html::run(&options),
        Command::Capacity(options) => capacity::run(&options),
        Command::Drill(options) => drill::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::WithoutRings(options) => without_rings::run(&options),
        Command::Conformance(options) => return conformance::run(&options),
        Command::Serve(args) => return serve::run(args),
        Command::ServeAhead(ahead) => return serve_ahead(ahead),
        Command::Schema(args) => return schema::run(args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("murre-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_command_line_can_be_built() {
        <super::Cli as clap::CommandFactory>::command().debug_assert();
    }
}
