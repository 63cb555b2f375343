//! The binary `murre`: parse arguments, run one command, exit with its status.

use std::process::ExitCode;

use version::Build;

/// Keys and tokens pass through libraries that free them as they are.
#[global_allocator]
static ALLOCATOR: wipe::Wiping = wipe::Wiping;

/// The commit of this binary, and its Cargo features (`build.rs`).
const BUILD: Build = Build {
    commit: env!("BUILD_COMMIT"),
    tree: env!("BUILD_TREE"),
    name: env!("BUILD_NAME"),
    line: concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("BUILD_COMMIT"), ", tree ", env!("BUILD_TREE"), ")"),
    long: concat!(
        env!("CARGO_PKG_VERSION"),
        " (commit ",
        env!("BUILD_COMMIT"),
        ", tree ",
        env!("BUILD_TREE"),
        ")\nfeatures: ",
        env!("BUILD_FEATURES"),
        "\nplanes: io_uring, poll (murre doctor says which one shards.plane = auto takes here)"
    ),
};

fn main() -> ExitCode {
    // It reads keys and tokens, and makes those that are missing.
    wipe::this_thread();
    version::name(BUILD);
    commands::run()
}
