//! Stores that are opened for commands other than serve: import and export.

use std::sync::Arc;

use runtime::ledger;
use runtime::process_clock::ProcessClock;
use store::transfer::{Transfer, TransferFault};

use super::data_dir::DataDir;
use super::error::NodeError;
use super::storage::Storage;
use config::{Config, StoreKind};

/// Gives `task` the store of this configuration. No other process uses a store in the data directory meanwhile; other
/// processes can use a shared store.
///
/// # Errors
/// [`NodeError::InUse`] when a server has the directory, [`NodeError::DataDir`], [`NodeError::Store`], and those of
/// `task`.
pub fn with_store<T>(
    config: &Config,
    task: impl FnOnce(&mut dyn Transfer) -> Result<T, TransferFault>,
) -> Result<T, NodeError> {
    let opened = OpenStore::open(config)?;
    let done = opened.storage.transfer().and_then(|mut store| task(&mut *store).map_err(NodeError::Transfer));
    opened.storage.close();
    done
}

/// Gives `task` the store of this configuration to read. First saves the messages in the ledgers beside the store to
/// it, as the next start of its server would do; `task` gets their number.
///
/// # Errors
/// As [`with_store`], [`NodeError::Ledger`] and [`NodeError::Replay`].
pub fn with_source<T>(
    config: &Config,
    task: impl FnOnce(usize, &mut dyn Transfer) -> Result<T, TransferFault>,
) -> Result<T, NodeError> {
    let opened = OpenStore::open(config)?;
    let saved = opened.save_ledgers()?;
    let done = opened.storage.transfer().and_then(|mut store| task(saved, &mut *store).map_err(NodeError::Transfer));
    opened.storage.close();
    done
}

/// A store and, for an embedded one, its locked data directory.
struct OpenStore {
    data: Option<DataDir>,
    storage: Storage,
}

impl OpenStore {
    fn open(config: &Config) -> Result<OpenStore, NodeError> {
        let data = match config.store.kind {
            StoreKind::Embedded => Some(DataDir::open(&config.data_dir)?),
            StoreKind::Memory | StoreKind::Scylla => None,
        };
        let dir = data.as_ref().map_or_else(|| config.data_dir.join("store"), DataDir::store);
        Ok(OpenStore { storage: Storage::open(config, &dir, &Arc::new(ProcessClock::start()))?, data })
    }

    /// Saves the messages in the ledgers beside the store to it, and returns their number.
    fn save_ledgers(&self) -> Result<usize, NodeError> {
        let Some(data) = &self.data else { return Ok(0) };
        let replay = ledger::replay(&data.ledger()).map_err(NodeError::Ledger)?;
        self.storage.save_all(&replay.messages)?;
        let saved = replay.messages.len();
        replay.discard().map_err(NodeError::Ledger)?;
        Ok(saved)
    }
}
