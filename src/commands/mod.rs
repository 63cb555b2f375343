//! The commands of the binary (DESIGN.md 11). Each submodule has `Args` and `run(args) -> ExitCode`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod serve;

pub mod keygen;

pub mod endpoint;

pub mod probe;

pub mod doctor;

pub mod maintain;

/// The command line of `murre`.
#[derive(Parser, Debug)]
#[command(name = "murre", version, about = "A push connection server: a million idle WebSockets on one host")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Every command that exists.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run the server.
    Serve(serve::Args),
    /// Print fresh secrets for a configuration.
    Keygen(keygen::Args),
    /// Look at endpoint URLs.
    Endpoint(endpoint::Args),
    /// Check a running server from end to end: connect, register, POST, receive, decrypt, ack.
    Probe(probe::Args),
    /// Check this host: kernel, io_uring, limits, sysctls; say what is missing and what mends it.
    Doctor(doctor::Args),
    /// Look after a data directory: replay ledgers, salvage a damaged store, back up.
    Maintain(maintain::Args),
}

/// Parses the arguments of the process and runs one command. Wrong usage exits with 2.
pub fn run() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Keygen(args) => keygen::run(args),
        Command::Endpoint(args) => endpoint::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Maintain(args) => maintain::run(args),
    }
}
