//! Errors of opening or using the embedded store, each as one sentence that says what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use machine::message::Message;

use crate::fault::FaultKind;

/// A store that cannot be opened, backed up or salvaged. Lives on the starting thread; fatal.
#[derive(Debug)]
pub struct StoreOpenError {
    path: PathBuf,
    cause: Cause,
}

#[derive(Debug)]
pub(super) enum Cause {
    /// Another process holds the lock.
    InUse,
    Io(&'static str, io::Error),
    /// A directory with something else in it.
    NotAStore,
    /// Written by another version.
    Version(String),
    Damaged(String),
    /// The destination of a copy is not empty.
    NotEmpty,
    /// The committer has ended.
    Closed,
}

impl StoreOpenError {
    pub(super) fn new(path: &Path, cause: Cause) -> StoreOpenError {
        StoreOpenError { path: path.into(), cause }
    }

    pub(super) fn io(path: &Path, action: &'static str, error: io::Error) -> StoreOpenError {
        StoreOpenError::new(path, Cause::Io(action, error))
    }

    pub(super) fn database(path: &Path, error: fjall::Error) -> StoreOpenError {
        let cause = match error {
            fjall::Error::Locked => Cause::InUse,
            fjall::Error::Io(e) | fjall::Error::Storage(fjall::LsmError::Io(e)) if is_operational(&e) => {
                Cause::Io("use", e)
            }
            // A thread of the database met an error of the host, and kept it to itself. Its files are whole.
            fjall::Error::Poisoned => Cause::Io("use", io::Error::other("an earlier write failed")),
            fjall::Error::InvalidVersion(Some(version)) => Cause::Version(format!("fjall {version:?}")),
            other => Cause::Damaged(other.to_string()),
        };
        StoreOpenError::new(path, cause)
    }

    /// The file or directory it is about.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Kind of the fault.
    pub fn kind(&self) -> FaultKind {
        match &self.cause {
            Cause::Io(_, error) => FaultKind::of(error),
            Cause::InUse | Cause::NotAStore => FaultKind::Denied,
            Cause::Damaged(_) => FaultKind::Damaged,
            Cause::Closed => FaultKind::Passing,
            Cause::Version(_) | Cause::NotEmpty => FaultKind::Lasting,
        }
    }

    pub(super) fn is_other_format(&self) -> bool {
        matches!(self.cause, Cause::Version(_))
    }

    /// Returns true if `murre maintain salvage` can help.
    pub fn is_damage(&self) -> bool {
        matches!(self.cause, Cause::Damaged(_))
    }
}

/// Errors of the host, as opposed to those that a damaged file causes: of those, a file that is missing or no file.
fn is_operational(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, IsADirectory, NotADirectory, NotFound};
    let is_of_host = error.raw_os_error().is_some() || FaultKind::of(error) == FaultKind::Full;
    is_of_host && !matches!(error.kind(), NotFound | NotADirectory | IsADirectory | InvalidInput)
}

impl fmt::Display for StoreOpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.cause {
            Cause::InUse => write!(
                f,
                "the store {path} is in use by another murre process: stop that one, or give this one another data directory"
            ),
            Cause::Io(action, error) => {
                write!(f, "cannot {action} {path} ({error}){}", FaultKind::of(error).advice())
            }
            Cause::NotAStore => write!(
                f,
                "the directory {path} holds files that are not a murre store: name an empty directory or the right one"
            ),
            Cause::Version(found) => write!(
                f,
                "the store file {path} is of another format ({found}): run the version of murre that wrote it"
            ),
            Cause::Damaged(what) => write!(
                f,
                "the store file {path} is damaged ({what}): `murre maintain salvage` keeps the files and restores what is readable"
            ),
            Cause::NotEmpty => write!(f, "the directory {path} is not empty: name a new one"),
            Cause::Closed => write!(f, "the store {path} has been closed"),
        }
    }
}

impl std::error::Error for StoreOpenError {}

/// Messages of a ledger that could not be saved, at least one, and the reason of the first.
pub struct Unsaved {
    /// They are in no row; only the ledger logs have them.
    pub messages: Vec<Arc<Message>>,
    /// One clause for the operator.
    pub reason: String,
}

impl Unsaved {
    /// Adds a message to what may be none so far; `why` gives the reason of the first.
    pub(super) fn add(unsaved: &mut Option<Unsaved>, message: &Arc<Message>, why: impl FnOnce() -> String) {
        let all = unsaved.get_or_insert_with(|| Unsaved { messages: Vec::new(), reason: why() });
        all.messages.push(Arc::clone(message));
    }
}

impl fmt::Debug for Unsaved {
    /// Their number: messages carry UAIDs and bodies.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unsaved").field("messages", &self.messages.len()).field("reason", &self.reason).finish()
    }
}
