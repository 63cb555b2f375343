//! Whether this kernel and these limits let the server run; if not, one sentence that says what to do.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, Probe, opcode};

use super::hub::eventfd;

/// What is missing.
#[derive(Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// io_uring_setup: EPERM or EACCES.
    Forbidden,
    /// io_uring_setup: ENOSYS.
    NotBuiltIn,
    /// A needed flag or operation; the kernel release and what is missing.
    TooOld(&'static str),
    /// io_uring_setup or a registration: ENOMEM.
    Memlock,
    /// No descriptor left.
    NoDescriptors,
    /// An errno that nobody foresaw.
    Other(i32),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Forbidden => f.write_str(
                "io_uring is forbidden here: set sysctl kernel.io_uring_disabled=0 and, in a container, run with \
                 the seccomp profile of tuning/ (default profiles block io_uring)",
            ),
            ProbeError::NotBuiltIn => {
                f.write_str("this kernel has no io_uring: run on Linux 6.1 or newer with CONFIG_IO_URING")
            }
            ProbeError::TooOld(what) => {
                write!(f, "this kernel's io_uring lacks {what}: run on Linux 6.1 or newer (6.4 has everything)")
            }
            ProbeError::Memlock => f.write_str(
                "the locked-memory limit is too low for io_uring: set LimitMEMLOCK=infinity (ulimit -l unlimited)",
            ),
            ProbeError::NoDescriptors => f.write_str("no file descriptor is left: raise LimitNOFILE (ulimit -n)"),
            ProbeError::Other(errno) => {
                write!(f, "io_uring cannot be set up: {} (try `murre doctor`)", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for ProbeError {}

impl ProbeError {
    /// What an errno of io_uring_setup or a registration means.
    pub(crate) fn of(error: &io::Error) -> ProbeError {
        match error.raw_os_error().unwrap_or(0) {
            libc::EPERM | libc::EACCES => ProbeError::Forbidden,
            libc::ENOSYS => ProbeError::NotBuiltIn,
            libc::EINVAL => ProbeError::TooOld("SINGLE_ISSUER with DEFER_TASKRUN"),
            libc::ENOMEM => ProbeError::Memlock,
            libc::EMFILE | libc::ENFILE => ProbeError::NoDescriptors,
            errno => ProbeError::Other(errno),
        }
    }
}

/// Tries what the rings need: setup flags, a sparse table, an eventfd, and every operation.
pub fn probe() -> Result<(), ProbeError> {
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .setup_submit_all()
        .setup_cqsize(16)
        .build(8);
    let ring: IoUring = ring.map_err(|error| ProbeError::of(&error))?;
    let submitter = ring.submitter();
    submitter.register_files_sparse(8).map_err(|error| match ProbeError::of(&error) {
        ProbeError::TooOld(_) => ProbeError::TooOld("sparse descriptor tables"),
        other => other,
    })?;
    let event = eventfd().map_err(|error| ProbeError::of(&error))?;
    submitter.register_eventfd(event.as_raw_fd()).map_err(|error| ProbeError::of(&error))?;
    let mut operations = Probe::new();
    submitter.register_probe(&mut operations).map_err(|error| ProbeError::of(&error))?;
    for (code, name) in [
        (opcode::AcceptMulti::CODE, "accept"),
        (opcode::PollAdd::CODE, "poll"),
        (opcode::PollRemove::CODE, "poll removal"),
        (opcode::Recv::CODE, "receive"),
        (opcode::Send::CODE, "send"),
        (opcode::Shutdown::CODE, "shutdown"),
        (opcode::Close::CODE, "close"),
        (opcode::AsyncCancel::CODE, "cancel"),
        (opcode::Timeout::CODE, "timeouts"),
        (opcode::MsgRingData::CODE, "messages between rings"),
    ] {
        if !operations.is_supported(code) {
            return Err(ProbeError::TooOld(name));
        }
    }
    Ok(())
}

/// The soft limit on descriptors: what one table may hold.
pub fn nofile_limit() -> u64 {
    read_limit().rlim_cur
}

/// Raises the soft limit on descriptors to the hard one, because it caps every table; returns what it is now.
pub fn raise_nofile() -> u64 {
    let mut limit = read_limit();
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` outlives the call. A refusal leaves the limit as it was.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    nofile_limit()
}

fn read_limit() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call. It cannot fail for this resource.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_what_the_rings_need() {
        assert_eq!(probe(), Ok(()));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let cases = [
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::ENOSYS, "Linux 6.1"),
            (libc::EINVAL, "Linux 6.1"),
            (libc::ENOMEM, "LimitMEMLOCK"),
            (libc::EMFILE, "LimitNOFILE"),
            (libc::EIO, "murre doctor"),
        ];
        for (errno, remedy) in cases {
            let text = ProbeError::of(&io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }
}
