//! The ledger logs of earlier boots, saved before a node serves, and the new logs of this boot.

use std::sync::Arc;

use machine::NodeId;
use machine::ids::{Clock, Origin, ShardId, Uaid};
use ring::rand::{SecureRandom as _, SystemRandom};
use runtime::ledger::{self, LedgerError, Log, Replay};
use runtime::process_clock::ProcessClock;

use super::cluster::{self, Cluster};
use super::data_dir::DataDir;
use super::error::NodeError;
use super::storage::Storage;
use config::Config;

/// Saves the messages in the ledger logs of a node that will not start again to its storage, notifies the nodes that
/// have its users now, writes that the node is gone, and removes the logs. Returns the number of messages.
///
/// # Errors
/// [`NodeError::InUse`] when the node runs, [`NodeError::Edge`], [`NodeError::Ledger`], [`NodeError::Store`],
/// [`NodeError::Replay`].
pub fn replay_ledgers(config: &Config) -> Result<usize, NodeError> {
    let trust = cluster::trust(config)?;
    let data = DataDir::open(&config.data_dir)?;
    let storage = Storage::open(config, &data.store(), &Arc::new(ProcessClock::start()))?;
    let replay = ledger::replay(&data.ledger()).map_err(no_ledger)?;
    let messages = replay.messages.len();
    storage.save_all(&replay.messages)?;
    if let Some((nodes, trust)) = storage.nodes().zip(trust) {
        let me = NodeId { url: cluster::url(&config.node, &[], &[]), boot: cluster::random_boot()? };
        let cluster = Cluster::new(config, me, data.known_keys(config)?.for_edge(), nodes)?;
        cluster.notify_holders(&storage, replay.messages.iter().map(|message| message.uaid).collect());
        cluster.retire_previous_boot(data.last_boot().as_ref(), &config.node, trust)?;
    }
    storage.close();
    replay.discard().map_err(no_ledger)?;
    Ok(messages)
}

/// The logs of earlier boots. In a cluster they stay until the node serves: the notifications to the nodes that hold
/// their users are in memory only, and a start that ends before they are sent leaves them to the next start.
pub(super) struct RecoveredLedgers {
    /// `None` after the logs are removed.
    replay: Option<Replay>,
    /// Clock above which every shard's clock must start.
    pub(super) floor: Clock,
    /// Users of the messages in the logs.
    pub(super) users: Vec<Uaid>,
}

impl RecoveredLedgers {
    /// Saves the messages in the logs.
    pub(super) fn save(data: &DataDir, storage: &Storage) -> Result<RecoveredLedgers, NodeError> {
        let mut replay = ledger::replay(&data.ledger()).map_err(no_ledger)?;
        replay.discard_empty().map_err(no_ledger)?;
        let messages = std::mem::take(&mut replay.messages);
        if !messages.is_empty() {
            tracing::info!(messages = messages.len(), "ledger messages of earlier boots found; saving them");
            storage.save_all(&messages)?;
        }
        let floor = replay.clock_floor.max(storage.clock_floor());
        Ok(RecoveredLedgers {
            replay: Some(replay),
            floor,
            users: messages.iter().map(|message| message.uaid).collect(),
        })
    }

    /// Makes new logs in shard order that carry the clock on. Called as late as possible: the new logs of a start that
    /// fails stay beside the earlier ones.
    pub(super) fn new_logs(
        &self,
        config: &Config,
        data: &DataDir,
        shard_count: u16,
    ) -> Result<Vec<ShardLedger>, NodeError> {
        let (dir, bytes, floor) = (data.ledger(), config.delivery.ledger_bytes, self.floor);
        let one = |shard| {
            let origin = random_origin()?;
            let log = Log::create(&dir, ShardId(shard), origin, bytes, floor).map_err(no_ledger)?;
            Ok(ShardLedger { log, origin, floor })
        };
        (0..shard_count).map(one).collect()
    }

    /// Removes the earlier logs, if they still exist. A second save of a message to a shared store is harmless: deleted
    /// messages stay deleted.
    pub(super) fn discard(&mut self) -> Result<(), NodeError> {
        self.replay.take().map_or(Ok(()), |replay| replay.discard().map_err(no_ledger))
    }

    /// As [`RecoveredLedgers::discard`], once the node serves: a file that cannot be removed must not end it.
    pub(super) fn discard_told(&mut self) {
        if let Err(fault) = self.discard() {
            tracing::warn!(%fault, "ledger file not removed; its messages are saved, and the next start tries again");
        }
    }
}

pub(super) fn no_ledger(error: LedgerError) -> NodeError {
    NodeError::Ledger(error)
}

/// A shard's new log and what belongs to it.
pub(super) struct ShardLedger {
    pub(super) log: Log,
    pub(super) origin: Origin,
    pub(super) floor: Clock,
}

/// Random id of this boot of one shard, different for every boot and node.
fn random_origin() -> Result<Origin, NodeError> {
    let mut bytes = [0; 4];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| NodeError::Host { what: "random bytes", error: std::io::Error::other("getrandom failed") })?;
    Ok(Origin(u32::from_le_bytes(bytes)))
}
