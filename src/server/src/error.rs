//! Faults that keep a node from starting or from stopping in order: one sentence each that says what to do.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use runtime::ledger::LedgerError;
use store::embedded::StoreOpenError;
use store::fault::FaultKind;
use store::transfer::TransferFault;
use tls::Unusable;

use crate::status;

/// Reason why there is no running node. Made on the starting thread; fatal.
#[derive(Debug)]
pub enum NodeError {
    /// Something in the data directory cannot be made, read or written.
    DataDir {
        path: PathBuf,
        /// "create", "write" and so on.
        verb: &'static str,
        error: io::Error,
    },
    /// Another process has the data directory.
    InUse { path: PathBuf },
    /// A key file that is not one.
    Key { path: PathBuf },
    /// A key that was configured and is not any more, and no key file to fall back to.
    NoKey { path: PathBuf },
    /// The key file of endpoint URLs is gone and the store has users who have such URLs.
    LostKey { path: PathBuf },
    /// A listen address that cannot be bound.
    Address {
        /// Name of the setting.
        key: &'static str,
        address: SocketAddr,
        error: io::Error,
    },
    /// Another node answers at `node.url`.
    UrlTaken {
        url: String,
        /// Description of the answer at the URL.
        who: String,
    },
    /// A CPU of `shards.cores` that this process may not run on, with any affinity.
    Core {
        core: u32,
        /// The CPUs that it may run on, as the kernel writes them.
        allowed: String,
    },
    /// `shards.steer = cpu` with shards that share a CPU.
    Steer {
        /// Number of shards.
        shards: u16,
        /// Number of CPUs.
        cores: usize,
    },
    /// The host lacks what the server needs: a sentence for each lack.
    Unfit(String),
    /// The store cannot be opened, copied or salvaged.
    Store(StoreOpenError),
    /// The database does not answer, or cannot serve now; it may later.
    StoreAway(String),
    /// The database answers, and does not match the configuration.
    StoreRefused(String),
    /// A signal stopped the node while it waited for the database.
    Stopped {
        /// Messages of earlier runs that are still in the ledger logs.
        messages: usize,
    },
    /// An earlier process has left packet rules, and this process may neither take them over nor remove them.
    LeftRules {
        /// Name of their table.
        table: String,
        ports: Vec<u16>,
        /// File of the data directory in which they are written down.
        note: PathBuf,
    },
    /// A ledger log cannot be made or read.
    Ledger(LedgerError),
    /// Some of what the ledgers held could not be saved to storage; the rest is saved.
    Replay {
        /// Number of messages that are not saved.
        unsaved: usize,
        /// Number of messages in all.
        of: usize,
        /// Cause of the first failure.
        reason: String,
    },
    /// A certificate, key or authority that cannot be used.
    Certificate(Unusable),
    /// Keys or URL that the edge does not take.
    Edge(String),
    /// A profile of a mobile bridge that cannot be used.
    Bridge(String),
    /// A backup or salvage that is impossible as requested.
    Backup(&'static str),
    /// The server that has the data directory cannot be reached for a backup.
    NoServer {
        data: PathBuf,
        /// Admin address of the server.
        address: SocketAddr,
        error: io::Error,
    },
    /// The server that has the data directory made no backup.
    NoBackup {
        reason: String,
        /// Exit status that its answer means.
        status: u8,
    },
    /// An import or a copy of a store that cannot go on.
    Transfer(TransferFault),
    /// A shard does not start.
    Shards(String),
    /// The host refuses a thread, a runtime or a signal handler.
    Host {
        /// Name of the refused resource.
        what: &'static str,
        error: io::Error,
    },
}

impl NodeError {
    /// A fault of a shared store; `passes`: it may be gone at the next try.
    pub fn of_database(said: String, passes: bool) -> NodeError {
        if passes { NodeError::StoreAway(said) } else { NodeError::StoreRefused(said) }
    }

    /// Kind of a fault of the data directory or the store; others are [`FaultKind::Lasting`].
    pub(super) fn kind(&self) -> FaultKind {
        match self {
            NodeError::DataDir { error, .. } => FaultKind::of(error),
            NodeError::Store(fault) => fault.kind(),
            NodeError::Certificate(unusable) => of_file(unusable),
            NodeError::Ledger(fault) => of_ledger(fault),
            NodeError::Transfer(fault) => fault.kind(),
            NodeError::InUse { .. } => FaultKind::Denied,
            NodeError::Key { .. } => FaultKind::Damaged,
            NodeError::StoreAway(_) => FaultKind::Passing,
            _ => FaultKind::Lasting,
        }
    }

    /// Returns the exit status of a process that ends with this fault.
    pub fn status(&self) -> u8 {
        match self {
            // Something that does not pass is in the way of the command, not of a server.
            NodeError::Transfer(fault) if fault.kind() == FaultKind::Lasting => status::FAILED,
            NodeError::DataDir { .. }
            | NodeError::InUse { .. }
            | NodeError::Key { .. }
            | NodeError::Store(_)
            | NodeError::Ledger(_)
            | NodeError::Certificate(_)
            | NodeError::Transfer(_) => status::of(self.kind()),
            NodeError::NoBackup { status, .. } => *status,
            NodeError::LeftRules { .. } => status::UNAVAILABLE,
            NodeError::Address { .. } | NodeError::UrlTaken { .. } => status::ADDRESS,
            NodeError::Backup(_) | NodeError::NoServer { .. } => status::FAILED,
            NodeError::Core { .. }
            | NodeError::Steer { .. }
            | NodeError::Edge(_)
            | NodeError::Bridge(_)
            | NodeError::StoreRefused(_) => status::CONFIG,
            NodeError::NoKey { .. } | NodeError::LostKey { .. } => status::CONFIG,
            NodeError::StoreAway(_) => status::STORAGE,
            NodeError::Stopped { messages: 0 } => status::DONE,
            NodeError::Stopped { .. } => status::LEDGER_LEFT,
            NodeError::Unfit(_) | NodeError::Shards(_) | NodeError::Host { .. } => status::UNAVAILABLE,
            NodeError::Replay { .. } => status::LEDGER_LEFT,
        }
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::DataDir { path, verb, error } => {
                let path = path.display();
                let advice = match FaultKind::of(error) {
                    FaultKind::Full => "; free disk space there",
                    FaultKind::Denied => "; make data_dir writable for this user, or set another with --data-dir",
                    FaultKind::Damaged | FaultKind::Passing | FaultKind::Lasting => "",
                };
                write!(f, "cannot {verb} {path}: {error}{advice}")
            }
            NodeError::InUse { path } => {
                let path = path.display();
                write!(
                    f,
                    "the data directory {path} is in use by another process; stop it, or set another with --data-dir"
                )
            }
            NodeError::Key { .. } | NodeError::NoKey { .. } | NodeError::LostKey { .. } => self.of_keys(f),
            NodeError::Address { key, address, error } if error.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{key}: {address} is in use by another process; stop it, or set another address")
            }
            NodeError::Address { key, address, error } => {
                write!(
                    f,
                    "{key}: cannot listen on {address}: {error}; set an address of this host that this user may bind"
                )
            }
            NodeError::UrlTaken { url, who } => write!(
                f,
                "cannot take {url} as node.url: {who}; stop that node, or set a node.url that leads to this node alone, \
                 not to a load balancer"
            ),
            NodeError::Core { core, allowed } => {
                write!(
                    f,
                    "shards.cores: this process may not run on CPU {core}: it is offline or outside the cpuset of its \
                     control group (AllowedCPUs=, --cpuset-cpus); it may on {allowed}"
                )
            }
            NodeError::Steer { shards, cores } => write!(
                f,
                "shards.steer = cpu requires a separate CPU for each shard, and {shards} shards share {cores}; \
                 set shards.count to {cores} or fewer, or shards.steer to off"
            ),
            NodeError::Unfit(sentence) => write!(f, "cannot run on this host: {sentence}; see `murre doctor`"),
            NodeError::StoreAway(sentence)
            | NodeError::StoreRefused(sentence)
            | NodeError::Edge(sentence)
            | NodeError::Shards(sentence) => f.write_str(sentence),
            NodeError::Store(fault) => fault.fmt(f),
            NodeError::Certificate(unusable) => unusable.fmt(f),
            NodeError::Ledger(fault) => fault.fmt(f),
            NodeError::Transfer(fault) => fault.fmt(f),
            NodeError::Bridge(reason) => {
                write!(f, "cannot use the mobile bridges: {reason}; mend bridge.* and start or reload again")
            }
            NodeError::Replay { .. }
            | NodeError::LeftRules { .. }
            | NodeError::NoServer { .. }
            | NodeError::NoBackup { .. } => self.of_others(f),
            NodeError::Backup(sentence) => f.write_str(sentence),
            NodeError::Stopped { messages } => stopped(*messages, f),
            NodeError::Host { what, error } => write!(f, "this host refuses {what}: {error}; see `murre doctor`"),
        }
    }
}

impl NodeError {
    /// Writes the sentences of faults with what another process has or has left; nothing for other faults.
    fn of_others(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::Replay { unsaved, of, reason } => write!(
                f,
                "cannot save {unsaved} of the {of} messages that earlier runs left in the ledger: {reason}; the ledger \
                 logs stay, mend the store (`murre maintain salvage` makes one of what is readable) and start again"
            ),
            NodeError::LeftRules { table, ports, note } => write!(
                f,
                "cannot remove the packet rules {table}, which an earlier process has left and which keep the ports \
                 {ports:?} closed: this process lacks CAP_NET_ADMIN; start once with it (tuning/hibernate.conf), or \
                 run `nft delete table inet {table}` and remove {}",
                note.display()
            ),
            NodeError::NoServer { data, address, error } => write!(
                f,
                "cannot ask the server that has {} for a backup: no answer at admin.listen = {address}: {error}; give \
                 this command the configuration of the server (--config, MURRE_ADMIN__LISTEN), or stop the server",
                data.display()
            ),
            NodeError::NoBackup { reason, .. } => {
                write!(f, "the server that has the data directory made no backup: {reason}")
            }
            _ => Ok(()),
        }
    }

    /// Writes the sentences of faults with keys; nothing for other faults.
    fn of_keys(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::Key { path } => {
                let path = path.display();
                write!(
                    f,
                    "{path} is not a key; restore it from a backup (what was made with it is lost otherwise), or remove it"
                )
            }
            NodeError::NoKey { path } => {
                let path = path.display();
                write!(
                    f,
                    "cannot reload keys: the setting of a key is gone and there is no key file {path}; set the key again"
                )
            }
            NodeError::LostKey { path } => {
                let path = path.display();
                write!(
                    f,
                    "cannot find the key {path}: the endpoint URLs of the users in the store are sealed with it; \
                     restore it from a backup, or set endpoint.crypto_keys; to make a new key, which ends all of \
                     these URLs, start with --new-keys"
                )
            }
            _ => Ok(()),
        }
    }
}

/// Kind of a file of the configuration that cannot be used. One that is not there, or is not PEM, waits for the
/// operator.
fn of_file(unusable: &Unusable) -> FaultKind {
    match unusable.host_error() {
        Some(error) if error.kind() == io::ErrorKind::NotFound => FaultKind::Lasting,
        Some(error) => FaultKind::of(error),
        None => FaultKind::Lasting,
    }
}

/// Kind of a fault of a ledger log.
fn of_ledger(fault: &LedgerError) -> FaultKind {
    match fault.host_error() {
        Some(error) => FaultKind::of(error),
        None if fault.is_damage() => FaultKind::Damaged,
        None => FaultKind::Lasting,
    }
}

fn stopped(messages: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("stopped before the database answered")?;
    match messages {
        0 => f.write_str("; nothing was taken"),
        _ => write!(f, "; {messages} messages of earlier runs stay in the ledger: start again to save them"),
    }
}

impl std::error::Error for NodeError {}
