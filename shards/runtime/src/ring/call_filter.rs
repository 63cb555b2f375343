//! Filter of system calls: refuses some of them to the whole process, for good.

use std::io;

use libc::{sock_filter, sock_fprog};

/// Forbids this process to make rings: io_uring_setup answers EPERM. Those that it has stay as they are.
///
/// # Errors
/// As [`refuse_calls`].
pub fn forbid_rings() -> io::Result<()> {
    refuse_calls(&[SETUP], libc::EPERM)
}

/// io_uring_setup, on x86-64 and aarch64.
const SETUP: u32 = 425;

/// Bit of the calls of the x32 ABI, which have the numbers of other ABIs from 424 on.
const X32: u32 = 0x4000_0000;

/// Makes the calls with these numbers answer `errno` on every thread of this process, on its later ones and in its
/// children. The filter also denies privileges that a program file would add to a child (no_new_privs).
///
/// # Errors
/// The kernel refuses the filter, or a thread has a filter that this one does not have. Then nothing is refused.
pub fn refuse_calls(calls: &[u32], errno: i32) -> io::Result<()> {
    // Linux before 5.16 slows filtered threads down against speculation unless the filter allows it: this filter keeps
    // no secret from its process.
    install(calls, errno, libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW)
}

/// Installs the filter for this thread, and with the flag TSYNC for all threads.
pub(super) fn install(calls: &[u32], errno: i32, flags: libc::c_ulong) -> io::Result<()> {
    let end = |verdict| step(libc::BPF_RET | libc::BPF_K, verdict, 0);
    // The number of the call is the first word of what a filter sees.
    let mut steps = vec![
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, !X32, 0),
    ];
    // Each match jumps over the matches behind it and over ALLOW.
    let behind = (0..calls.len() as u8).rev();
    let matches = calls.iter().zip(behind);
    steps.extend(matches.map(|(call, behind)| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call, behind + 1)));
    steps.extend([end(libc::SECCOMP_RET_ALLOW), end(libc::SECCOMP_RET_ERRNO | errno as u32)]);
    let program = sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (on, off): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: no pointers are passed.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, off, off, off) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the program and its steps outlive the call.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!("thread {thread} has another filter"))),
    }
}

fn step(code: u32, k: u32, yes: u8) -> sock_filter {
    sock_filter { code: code as u16, jt: yes, jf: 0, k }
}
