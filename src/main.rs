//! The binary `murre`: parse arguments, run one command, exit with its status.

use std::process::ExitCode;

/// Keys and tokens pass through libraries that free them as they are.
#[global_allocator]
static ALLOCATOR: wipe::Wiping = wipe::Wiping;

fn main() -> ExitCode {
    // It reads keys and tokens, and makes those that are missing.
    wipe::this_thread();
    murre::commands::run()
}
