//! Launcher of tests: runs a program to which a seccomp filter refuses io_uring, as the default profiles of containers
//! do.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use runtime::ring::refuse_calls;

/// Arguments of `without-rings`.
#[derive(clap::Args, Debug)]
pub struct Options {
    /// Error that the calls of io_uring return: EPERM as Docker has it, ENOSYS as a kernel without io_uring
    #[arg(long, default_value = "EPERM", value_parser = ["EPERM", "ENOSYS"])]
    errno: String,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Numbers of io_uring_setup, io_uring_enter and io_uring_register, on every architecture.
const CALLS: [u32; 3] = [425, 426, 427];

/// Becomes the program.
///
/// # Errors
/// The kernel refuses the filter, or there is no such program.
pub fn run(options: &Options) -> io::Result<bool> {
    let errno = if options.errno == "ENOSYS" { libc::ENOSYS } else { libc::EPERM };
    refuse_calls(&CALLS, errno)?;
    let Some((program, arguments)) = options.command.split_first() else { return Ok(false) };
    Err(Command::new(program).args(arguments).exec())
}
