//! The commands of the binary (README.md). Each submodule has `Args` and `run(args) -> ExitCode`.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use config::{Config, ConfigError, Sources};
pub use server::status;

pub mod serve;

pub mod keygen;

pub mod endpoint;

pub mod probe;

pub mod doctor;

pub mod maintain;

pub mod schema;

pub mod import;

pub mod export;

/// The command line of `murre`.
#[derive(Parser, Debug)]
#[command(name = "murre", about = "A push connection server: a million idle WebSockets on one host")]
#[command(version = version::build().line, long_version = version::build().long)]
pub struct Cli {
    /// Command to run.
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
    /// Check this host: kernel, io_uring, limits, sysctls; print what is missing and how to fix it.
    Doctor(doctor::Args),
    /// Look after a data directory: replay ledgers, salvage a damaged store, back up.
    Maintain(maintain::Args),
    /// Look after the tables of a shared store: print, create, migrate, check.
    Schema(schema::Args),
    /// Take over users, channels and messages of another service, or of an export, from JSON lines.
    Import(import::Args),
    /// Write the users, channels and messages of a store as JSON lines, which import reads.
    Export(export::Args),
}

/// Sources of the configuration for commands other than `serve`: the file, environment and settings of the server.
#[derive(clap::Args, Default, Debug)]
pub struct ConfigArgs {
    /// TOML file (also MURRE_CONFIG)
    #[arg(long, value_name = "FILE", env = "MURRE_CONFIG")]
    pub config: Option<PathBuf>,
    /// Set any key; may be repeated
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub sets: Vec<String>,
    /// Data directory (key data_dir)
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<String>,
}

impl ConfigArgs {
    /// Loads the configuration of these arguments, the file and the environment.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load(&self) -> Result<Config, ConfigError> {
        self.load_with([])
    }

    /// As [`ConfigArgs::load`], with flags of the command's own: flag, key, value.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(
        &self,
        flags: impl IntoIterator<Item = (String, &'static str, String)>,
    ) -> Result<Config, ConfigError> {
        let data_dir = self.data_dir.iter().map(|dir| ("--data-dir".to_owned(), "data_dir", dir.clone()));
        Config::load(&Sources {
            file: self.config.clone(),
            flags: data_dir.chain(flags).collect(),
            sets: self.sets.clone(),
            ..Sources::from_env()
        })
    }
}

/// Prints the reason for the end of a command and returns its exit status.
pub fn fail(status: u8, reason: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("murre: {reason}");
    ExitCode::from(status)
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
        Command::Schema(args) => schema::run(args),
        Command::Import(args) => import::run(args),
        Command::Export(args) => export::run(args),
    }
}
