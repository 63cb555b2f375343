//! The configured backend, as assembly needs it.

use std::path::Path;
use std::sync::Arc;

use machine::StoreOp;
use machine::ids::Clock;
use machine::message::Message;
use machine::stats::Board;
use runtime::ports::Store;
use runtime::process_clock::ProcessClock;
use store::embedded::{Copied, Embedded, Options};
use store::fault::FaultKind;
use store::latencies::LatencyHistograms;
use store::model::Model;
use store::nodes::NodeTable;
use store::scylla::{Access, Scylla};
use store::shared::opening::ConnectOptions;
use store::transfer::{Transfer, TransferFault};

use super::error::NodeError;
use crate::status;
use config::{Config, StoreKind};

/// An open backend. Shared by the starting thread and the shards, each of which has a port into it.
pub(super) enum Storage {
    /// `store.kind = embedded`.
    Embedded(Embedded),
    /// `store.kind = memory`.
    Memory(Model),
    /// `store.kind = scylla`.
    Scylla(Scylla),
}

impl Storage {
    /// Opens the configured backend. `wall` is the clock of the process.
    ///
    /// # Errors
    /// [`NodeError::Store`], and of a database [`NodeError::StoreAway`] and [`NodeError::StoreRefused`].
    pub(super) fn open(config: &Config, dir: &Path, process_clock: &Arc<ProcessClock>) -> Result<Storage, NodeError> {
        let store = &config.store;
        let bytes_max = if store.max_bytes == 0 { u64::MAX } else { store.max_bytes };
        Ok(match store.kind {
            StoreKind::Memory => Storage::Memory(Model::new(bytes_max)),
            StoreKind::Scylla => {
                let surroundings = ConnectOptions { process_clock: Arc::clone(process_clock) };
                let (options, faults) = (&store.scylla, config::shared_store_faults(config));
                let opened = Scylla::open(options, store.max_skew, faults, surroundings);
                Storage::Scylla(opened.map_err(|fault| NodeError::of_database(fault.said, fault.passes))?)
            }
            StoreKind::Embedded => {
                let options = Options {
                    cache_bytes: store.cache,
                    bytes_max,
                    process_clock: Arc::clone(process_clock),
                    fatal: Arc::new(|reason| {
                        tracing::error!(%reason, status = status::STORAGE, "store failed");
                        std::process::exit(status::STORAGE.into());
                    }),
                    ..Options::default()
                };
                Storage::Embedded(Embedded::open(dir, options).map_err(NodeError::Store)?)
            }
        })
    }

    /// Reads the login and the certificates of a shared store again; `None` for another store.
    ///
    /// # Errors
    /// [`NodeError::StoreRefused`]: a file cannot be used.
    pub(super) fn read_access(&self, config: &Config) -> Result<Option<Access>, NodeError> {
        match self {
            Storage::Embedded(_) | Storage::Memory(_) => Ok(None),
            Storage::Scylla(_) => {
                let read = Access::read(&config.store.scylla);
                read.map(Some).map_err(|fault| NodeError::StoreRefused(fault.to_string()))
            }
        }
    }

    /// Takes them for the connections that are made from now on.
    pub(super) fn renew_access(&self, new: Option<Access>) {
        if let (Storage::Scylla(store), Some(new)) = (self, new) {
            store.renew_access(&new);
        }
    }

    /// Returns a port for a shard, made on the shard's thread. `waker` is called when there are replies to collect.
    pub(super) fn port(&self, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Store> {
        match self {
            Storage::Embedded(store) => store.port(waker),
            Storage::Memory(store) => store.port(waker),
            Storage::Scylla(store) => store.port(waker),
        }
    }

    /// Returns true if the store is in the data directory and has users: a key of the directory sealed their endpoint
    /// URLs. The keys of a shared store are in the configuration.
    ///
    /// # Errors
    /// [`NodeError::Store`].
    pub(super) fn has_users_of_its_own(&self) -> Result<bool, NodeError> {
        match self {
            Storage::Embedded(store) => store.has_users().map_err(NodeError::Store),
            Storage::Memory(_) | Storage::Scylla(_) => Ok(false),
        }
    }

    /// Clock above which every shard's clock must start.
    pub(super) fn clock_floor(&self) -> Clock {
        match self {
            Storage::Embedded(store) => store.clock_floor(),
            // A shared store is read before a write on a user; the ledgers say where this node's clocks were.
            Storage::Memory(_) | Storage::Scylla(_) => Clock::default(),
        }
    }

    /// Returns the counters; memory has none.
    pub(super) fn board(&self) -> Option<Arc<Board>> {
        match self {
            Storage::Embedded(store) => Some(store.board()),
            Storage::Memory(_) => None,
            Storage::Scylla(store) => Some(store.board()),
        }
    }

    /// Returns the durations of statements, if the backend has statements.
    pub(super) fn latencies(&self) -> Option<Arc<LatencyHistograms>> {
        match self {
            Storage::Embedded(_) | Storage::Memory(_) => None,
            Storage::Scylla(store) => Some(store.latencies()),
        }
    }

    /// Returns the table of nodes of a shared store.
    pub(super) fn nodes(&self) -> Option<Arc<dyn NodeTable>> {
        match self {
            Storage::Embedded(_) | Storage::Memory(_) => None,
            Storage::Scylla(store) => Some(store.nodes()),
        }
    }

    /// Saves the messages that ledgers kept over a restart. The saved ones are durable when it returns.
    ///
    /// # Errors
    /// [`NodeError::Replay`] when a message could not be saved; the logs must stay.
    pub(super) fn save_all(&self, messages: &[Arc<Message>]) -> Result<(), NodeError> {
        let of = messages.len();
        let lost = |unsaved: usize, reason: String| {
            tracing::error!(unsaved, total = of, reason, "ledger messages not saved");
            NodeError::Replay { unsaved, of, reason }
        };
        match self {
            Storage::Embedded(store) => {
                store.save_all(messages).map_err(|unsaved| lost(unsaved.messages.len(), unsaved.reason))
            }
            Storage::Scylla(store) => store.save_all(messages).map_err(|(unsaved, reason)| lost(unsaved, reason)),
            Storage::Memory(store) => {
                let mut port = store.port(Arc::new(|| {}));
                let mut unsaved = 0;
                for message in messages {
                    let ticket = machine::ids::StoreTicket { index: 0, generation: 0 };
                    port.submit(ticket, StoreOp::Save { messages: vec![Arc::clone(message)] });
                    let saved = port.collect().is_some_and(|(_, answer)| answer.is_ok());
                    unsaved += usize::from(!saved);
                }
                if unsaved == 0 { Ok(()) } else { Err(lost(unsaved, "the bound on memory is reached".to_owned())) }
            }
        }
    }

    /// Copies the store as it is now to a new directory, while it stays in use.
    ///
    /// # Errors
    /// [`NodeError::Store`], and [`NodeError::Backup`] for a store that keeps nothing.
    pub(super) fn backup(&self, dest: &Path) -> Result<Copied, NodeError> {
        match self {
            Storage::Embedded(store) => store.backup(dest).map_err(NodeError::Store),
            Storage::Scylla(_) => {
                Err(NodeError::Backup("store.kind = scylla is backed up with the tools of the database"))
            }
            Storage::Memory(_) => Err(NodeError::Backup("store.kind = memory keeps nothing that could be backed up")),
        }
    }

    /// Returns access to whole users.
    ///
    /// # Errors
    /// [`NodeError::Transfer`] for a store that keeps nothing.
    pub(super) fn transfer(&self) -> Result<Box<dyn Transfer + '_>, NodeError> {
        match self {
            Storage::Embedded(store) => Ok(store.transfer()),
            Storage::Scylla(store) => Ok(store.transfer()),
            Storage::Memory(_) => {
                let said = "store.kind = memory keeps nothing: set one that does";
                Err(NodeError::Transfer(TransferFault::new(said, FaultKind::Lasting)))
            }
        }
    }

    /// Answers everything submitted, syncs, and ends the threads of the store.
    pub(super) fn close(self) {
        match self {
            Storage::Embedded(store) => store.close(),
            Storage::Scylla(store) => store.close(),
            Storage::Memory(_) => {}
        }
    }
}
