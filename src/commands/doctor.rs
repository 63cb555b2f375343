//! `murre doctor`: what this host lacks, since which kernel, and what mends it.

use std::process::ExitCode;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Runs it.
pub fn run(_args: Args) -> ExitCode {
    ExitCode::SUCCESS
}
