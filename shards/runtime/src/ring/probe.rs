//! Check of this kernel and its limits; each error is one sentence that says what to do.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use io_uring::{IoUring, Probe, opcode, types};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::fence::{self, RingUses};
use super::hub::eventfd;
use super::peer::{self, Family};

/// The missing kernel feature or limit.
#[derive(Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// io_uring_setup: EPERM or EACCES.
    Forbidden,
    /// io_uring_setup: ENOSYS.
    NotBuiltIn,
    /// A needed flag or operation; the kernel release and what is missing.
    TooOld(&'static str),
    /// ENOMEM of io_uring_setup or a registration. The kernel counts rings against the limit on locked memory (Linux
    /// 6.14), unless the process has CAP_IPC_LOCK.
    Memlock {
        /// `RLIMIT_MEMLOCK` in bytes; `u64::MAX` is no limit.
        limit: u64,
    },
    NoDescriptors,
    /// Any other error, in its own words.
    Other(String),
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProbeError::Forbidden => f.write_str("io_uring is forbidden here; see `murre doctor`"),
            ProbeError::NotBuiltIn => f.write_str("io_uring is not here; see `murre doctor`"),
            ProbeError::TooOld(what) => {
                write!(f, "io_uring lacks {what} here: run on Linux 6.1 or newer (6.4 has everything)")
            }
            ProbeError::Memlock { limit: u64::MAX } => {
                f.write_str("no memory is left for an io_uring ring; raise the memory limit of the control group")
            }
            ProbeError::Memlock { limit } => write!(
                f,
                "no memory is left for an io_uring ring: locked memory is limited to {} KiB, which all processes of a \
                 user share; set LimitMEMLOCK=infinity (ulimit -l unlimited)",
                limit >> 10
            ),
            ProbeError::NoDescriptors => f.write_str("no file descriptor is left: raise LimitNOFILE (ulimit -n)"),
            ProbeError::Other(error) => write!(f, "cannot set up io_uring: {error}; try `murre doctor`"),
        }
    }
}

impl std::error::Error for ProbeError {}

impl ProbeError {
    /// Reads an errno of io_uring_setup or of a registration.
    pub(crate) fn of(error: &io::Error) -> ProbeError {
        match error.raw_os_error().unwrap_or(0) {
            libc::EPERM | libc::EACCES => ProbeError::Forbidden,
            libc::ENOSYS => ProbeError::NotBuiltIn,
            libc::EINVAL => ProbeError::TooOld("SINGLE_ISSUER with DEFER_TASKRUN"),
            libc::ENOMEM => ProbeError::Memlock { limit: getrlimit(Resource::Memlock).maximum.unwrap_or(u64::MAX) },
            libc::EMFILE | libc::ENFILE => ProbeError::NoDescriptors,
            _ => ProbeError::Other(error.to_string()),
        }
    }

    /// As [`ProbeError::of`], of a registration without which the kernel lacks `what`.
    fn of_registration(error: &io::Error, what: &'static str) -> ProbeError {
        match ProbeError::of(error) {
            ProbeError::TooOld(_) => ProbeError::TooOld(what),
            other => other,
        }
    }
}

/// Tries what the rings need: setup flags, a sparse table, an eventfd, every operation, and the fence.
pub fn probe() -> Result<(), ProbeError> {
    let ring = fence::open(8, 16).map_err(|error| ProbeError::of(&error))?;
    let submitter = ring.submitter();
    let lacks = |what| move |error| ProbeError::of_registration(&error, what);
    submitter.register_files_sparse(8).map_err(lacks("sparse descriptor tables"))?;
    let event = eventfd().map_err(|error| ProbeError::of(&error))?;
    submitter.register_eventfd(event.as_raw_fd()).map_err(|error| ProbeError::of(&error))?;
    let mut operations = Probe::new();
    submitter.register_probe(&mut operations).map_err(|error| ProbeError::of(&error))?;
    let uses = RingUses::default();
    if let Some(lacking) = fence::operations(uses).find(|operation| !operations.is_supported(operation.code)) {
        return Err(ProbeError::TooOld(lacking.name));
    }
    fence::close(&ring, uses).map_err(lacks("restrictions of a ring"))
}

/// Returns true if this kernel tells the address of a direct descriptor's peer (Linux 6.7). Settings that need the
/// addresses of callers need it.
///
/// # Errors
/// No ring could be set up.
pub fn tells_peers() -> Result<bool, ProbeError> {
    let ask = || {
        let (ours, _theirs) = UnixStream::pair()?;
        let mut ring = IoUring::new(8)?;
        ring.submitter().register_files(&[ours.as_raw_fd()])?;
        let mut address = [0; size_of::<libc::sockaddr_in>()];
        let entry = peer::entry(types::Fixed(0), Family::V4, address.as_mut_ptr());
        // SAFETY: the address outlives the ring's last call, and the operation is over when that returns.
        let pushed = unsafe { ring.submission().push(&entry) };
        assert!(pushed.is_ok(), "the queue is empty");
        ring.submit_and_wait(1)?;
        Ok(ring.completion().next().map(|completion| completion.result()))
    };
    // A socket without a name is refused by a kernel that knows the question.
    let told = ask().map_err(|error: io::Error| ProbeError::of(&error))?;
    Ok(told.is_some_and(|result| result >= 0 || result == -libc::EINVAL))
}

/// Returns true if this kernel gives an ordinary descriptor of a direct one, without which nothing can be frozen
/// (FIXED_FD_INSTALL, Linux 6.8).
///
/// # Errors
/// No ring could be set up.
pub fn takes_sockets_out() -> Result<bool, ProbeError> {
    let ask = || {
        let ring = IoUring::new(8)?;
        let mut operations = Probe::new();
        ring.submitter().register_probe(&mut operations)?;
        Ok(operations.is_supported(opcode::FixedFdInstall::CODE))
    };
    ask().map_err(|error: io::Error| ProbeError::of(&error))
}

/// The soft limit on descriptors: what one table may hold.
pub fn nofile_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limits to the hard ones: that on descriptors caps every table, and that on locked memory the rings.
/// Returns the limit on descriptors.
pub fn raise_limits() -> u64 {
    for resource in [Resource::Nofile, Resource::Memlock] {
        let limit = getrlimit(resource);
        // A refusal leaves the limit as it was.
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    }
    nofile_limit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_what_the_rings_need() {
        assert_eq!(probe(), Ok(()));
    }

    #[test]
    fn this_kernel_tells_the_addresses_of_peers() {
        assert_eq!(tells_peers(), Ok(true));
    }

    #[test]
    fn this_kernel_takes_sockets_out() {
        assert_eq!(takes_sockets_out(), Ok(true));
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        let cases = [
            (libc::EPERM, "murre doctor"),
            (libc::ENOSYS, "murre doctor"),
            (libc::EINVAL, "Linux 6.1"),
            (libc::EMFILE, "LimitNOFILE"),
            (libc::EIO, "murre doctor"),
        ];
        for (errno, remedy) in cases {
            let text = ProbeError::of(&io::Error::from_raw_os_error(errno)).to_string();
            assert!(text.contains(remedy) && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_limit_on_locked_memory_is_named_and_no_error_is_a_success() {
        let text = ProbeError::Memlock { limit: 64 << 10 }.to_string();
        assert!(text.contains("locked memory is limited to 64 KiB"), "{text}");
        assert!(text.contains("LimitMEMLOCK"), "{text}");
        let text = ProbeError::Memlock { limit: u64::MAX }.to_string();
        assert!(text.contains("no memory is left") && !text.contains("limited to"), "{text}");
        let text = ProbeError::of(&io::Error::other("words of its own")).to_string();
        assert!(text.contains("words of its own"), "{text}");
    }
}
