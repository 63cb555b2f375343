//! `murre maintain`: replay ledgers, salvage a damaged store, back up.

use std::process::ExitCode;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
