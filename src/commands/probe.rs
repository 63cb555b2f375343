//! `murre probe`: an end-to-end self-check against a running server.

use std::process::ExitCode;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
