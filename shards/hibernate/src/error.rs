//! Reasons why this host cannot hibernate.

use std::fmt;
use std::io;

/// Reason why this host cannot hibernate: one sentence that says what to do.
#[derive(Debug)]
pub enum Unfit {
    /// The kernel refused a step of the self-test.
    Step(&'static str, io::Error),
    /// The kernel lacks this.
    Kernel(&'static str),
    /// Another process reads the packet queue with this number.
    QueueTaken(u16),
    /// A thawed connection differs from the one that was frozen, or is silent.
    Differs(&'static str),
}

impl Unfit {
    /// Reads an error of [`crate::Gate::open`].
    pub fn of_gate(queue: u16, error: io::Error) -> Unfit {
        match error.raw_os_error() {
            Some(libc::EBUSY) => Unfit::QueueTaken(queue),
            _ => Unfit::Step("installing the packet rules and the queue", error),
        }
    }

    #[cfg(feature = "gate")]
    pub(crate) fn at(step: &'static str) -> impl FnOnce(io::Error) -> Unfit {
        move |error| Unfit::Step(step, error)
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::Step(step, error) => {
                let advice = match error.raw_os_error() {
                    Some(libc::EPERM | libc::EACCES) => {
                        "give the process CAP_NET_ADMIN in the user namespace of its network namespace"
                    }
                    Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => {
                        "the kernel needs nf_tables with inet tables, the socket expression, and the NFQUEUE target"
                    }
                    Some(libc::EMFILE | libc::ENFILE) => "no file descriptor is left: raise LimitNOFILE",
                    _ => "set hibernate.after to 0 if this host should not hibernate",
                };
                write!(f, "connections cannot be frozen here: {step}: {error} ({advice})")
            }
            Unfit::Kernel(what) => write!(f, "connections cannot be frozen here: {what}; run on Linux 6.8 or newer"),
            Unfit::QueueTaken(number) => {
                write!(f, "another process reads packet queue {number}: set hibernate.queue to a free number")
            }
            Unfit::Differs(what) => {
                write!(f, "a connection that was frozen and thawed here differs: {what}; set hibernate.after to 0")
            }
        }
    }
}

impl std::error::Error for Unfit {}
