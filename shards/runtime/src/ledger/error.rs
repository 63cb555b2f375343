//! Errors of a ledger log, each as one sentence that says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A ledger log that cannot be made or read. Lives on the starting thread; fatal.
#[derive(Debug)]
pub struct LedgerError {
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    Size(u64),
    Io(&'static str, io::Error),
    Header(&'static str),
}

impl LedgerError {
    pub(super) fn size(path: &Path, log_bytes: u64) -> LedgerError {
        LedgerError { path: path.into(), cause: Cause::Size(log_bytes) }
    }

    pub(super) fn io(path: &Path, action: &'static str, error: io::Error) -> LedgerError {
        LedgerError { path: path.into(), cause: Cause::Io(action, error) }
    }

    pub(super) fn header(path: &Path, what: &'static str) -> LedgerError {
        LedgerError { path: path.into(), cause: Cause::Header(what) }
    }

    /// The error of the host, if it is one.
    pub fn host_error(&self) -> Option<&io::Error> {
        match &self.cause {
            Cause::Io(_, error) => Some(error),
            Cause::Size(_) | Cause::Header(_) => None,
        }
    }

    /// Returns true if a file is not what it must be.
    pub fn is_damage(&self) -> bool {
        matches!(self.cause, Cause::Header(_))
    }

    /// The file or directory it is about.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.cause {
            Cause::Size(bytes) => write!(
                f,
                "a ledger log of {bytes} bytes in {path} is not possible: give each shard between 1 MiB and 16 GiB"
            ),
            Cause::Io(action, error) => {
                let advice = match error.kind() {
                    io::ErrorKind::StorageFull => ": free disk space there, or make the ledger logs smaller",
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                        ": make the data directory writable for the user that runs murre"
                    }
                    _ => "",
                };
                write!(f, "cannot {action} the ledger log {path} ({error}){advice}")
            }
            Cause::Header(what) => write!(
                f,
                "the ledger log {path} cannot be read ({what}): unsaved notifications may be in it, \
                 so move it out of the directory to start without them"
            ),
        }
    }
}

impl std::error::Error for LedgerError {}
