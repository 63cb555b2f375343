//! `murre serve`: run the server until a signal stops it.

use std::process::ExitCode;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
