//! The binary `murre`: parse arguments, run one command, exit with its status.

use std::process::ExitCode;

fn main() -> ExitCode {
    murre::commands::run()
}
