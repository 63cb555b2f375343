//! The binary `murre-bench`: one scenario against a running server or the crash test.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use murre::commands::{schema, serve};
use murre_bench::scenario::{backlog, crash, drill, hold, push, sim, storm};
use murre_bench::{capacity, html, reference};

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
    /// Push direct notifications and say what each costs.
    Push(push::Options),
    /// All sessions leave and return at once; stored messages; strangers.
    Storm(storm::Options),
    /// Drain a long backlog of one user and measure what its neighbours notice.
    Backlog(backlog::Options),
    /// Break connections and the server itself, and count what comes back.
    Crash(crash::Options),
    /// Run a small server of the same protocol, one task per connection, to compare with.
    Reference(reference::Options),
    /// Make one HTML file of results, with plots.
    Report(html::Options),
    /// Predict from a small run what a host for many sessions needs.
    Capacity(capacity::Options),
    /// Break nodes, lines and the database of a cluster, and count what arrives all the same.
    Drill(drill::Options),
    /// Run the deterministic simulator over a range of seeds.
    Sim(sim::Options),
    /// Run the server itself, exactly as `murre serve` does: what tests and the crash scenario start.
    Serve(serve::Args),
    /// The same, with a wall clock that is so many milliseconds ahead of the host's: what the drill of clocks starts.
    ServeAhead(ServeAhead),
    /// The tables of a shared store, exactly as `murre schema` does.
    Schema(schema::Args),
}

/// Arguments of `serve-ahead`.
#[derive(clap::Args, Debug)]
struct ServeAhead {
    /// How far ahead.
    milliseconds: u64,
    #[command(flatten)]
    serve: serve::Args,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Hold(options) => hold::run(&options),
        Command::Push(options) => push::run(&options),
        Command::Storm(options) => storm::run(&options),
        Command::Backlog(options) => backlog::run(&options),
        Command::Crash(options) => crash::run(&options),
        Command::Reference(options) => reference::run(&options),
        Command::Report(options) => html::run(&options),
        Command::Capacity(options) => capacity::run(&options),
        Command::Drill(options) => drill::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Serve(args) => return serve::run(args),
        Command::ServeAhead(ahead) => return serve::run_ahead(ahead.serve, Duration::from_millis(ahead.milliseconds)),
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
