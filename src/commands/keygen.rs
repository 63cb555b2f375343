//! `murre keygen`: fresh secrets for a configuration.

use std::process::ExitCode;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
