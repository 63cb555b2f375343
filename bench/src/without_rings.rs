//! Launcher of tests: runs a program to which a seccomp filter refuses io_uring, as the default profiles of containers
//! do.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{sock_filter, sock_fprog};

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
    forbid(errno as u32)?;
    let Some((program, arguments)) = options.command.split_first() else { return Ok(false) };
    Err(Command::new(program).args(arguments).exec())
}

fn step(code: u32, k: u32, yes: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: 0, k }
}

/// Makes this process, and what it becomes, get `errno` from these calls.
fn forbid(errno: u32) -> io::Result<()> {
    let [setup, enter, register] = CALLS;
    let is = |call, yes| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call, yes);
    let end = |verdict| step(libc::BPF_RET | libc::BPF_K, verdict, 0);
    // The number of the call is the first word of what a filter sees.
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        is(setup, 3),
        is(enter, 2),
        is(register, 1),
        end(libc::SECCOMP_RET_ALLOW),
        end(libc::SECCOMP_RET_ERRNO | errno),
    ];
    let program = sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (on, off): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: no pointers are passed.
    let locked = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, off, off, off) };
    // SAFETY: the program and its steps outlive the call.
    let filtered = locked == 0
        && unsafe {
            let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, off, off) == 0
        };
    if filtered { Ok(()) } else { Err(io::Error::last_os_error()) }
}
