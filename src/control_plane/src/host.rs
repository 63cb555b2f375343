//! The node that a control plane serves: what the control plane calls, and what it hands out.

use std::path::PathBuf;
use std::sync::Arc;

use machine::BroadcastVersion;
use store::fault::FaultKind;

/// Calls from the control plane to the node that it serves.
pub trait Host: Send + Sync + 'static {
    /// Tells every shard these broadcast values. Waits while a shard has too many controls unread.
    fn set_broadcasts(&self, values: Arc<[BroadcastVersion]>);

    /// Takes note of what the shards hold, and of the health of the node. Called about once a second; it takes no time.
    fn refresh(&self);

    /// Returns true if the node was told to stop.
    fn is_stopping(&self) -> bool;

    /// Makes every session read storage: notifications of another node are lost. Waits as [`Host::set_broadcasts`].
    fn read_storage(&self);

    /// Reads the certificates again and shows them, all of them or none. Called on a thread of its own.
    ///
    /// # Errors
    /// One sentence; then all stays what it was.
    fn renew_certificates(&self) -> Result<(), String>;

    /// Copies keys and store under this name. Takes its time; called on a thread of its own.
    ///
    /// # Errors
    /// One sentence, and its kind.
    fn backup(&self, name: &str) -> Result<Backup, BackupFault>;
}

/// A finished backup.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backup {
    /// The new data directory.
    pub path: PathBuf,
    pub users: u64,
    /// Stored messages in it.
    pub messages: u64,
    /// Topic messages in it.
    pub topics: u64,
}

/// A backup that was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BackupFault {
    /// One sentence.
    pub said: String,
    /// [`FaultKind::Lasting`] for a request that cannot be met as it is.
    pub kind: FaultKind,
}

/// Order to the process, from a signal or from the table of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signal {
    /// SIGTERM or SIGINT: end in order, and at the second at once.
    Stop,
    /// SIGHUP: read the keys again.
    Reload,
    /// No signal: the table of nodes says that this boot is over.
    Over,
}
