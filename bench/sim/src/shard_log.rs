//! The ledger log of one shard: the server's own code on memory, beside a list of what must be in it.

use std::collections::BTreeMap;

use machine::ids::{Clock, ShardId};
use machine::message::Message;
use runtime::ledger::{Log, Medium, read_log};

use crate::memory::Memory;

/// The log of one shard of this boot.
pub(crate) struct ShardLog {
    pub(crate) log: Log<Memory>,
    /// Live records by slot: the POST, and the bytes that the machine reserved for it.
    pub(crate) live: BTreeMap<u32, (usize, u64)>,
    pub(crate) reserved: u64,
}

impl ShardLog {
    /// An empty log.
    pub(crate) fn new(bytes: usize, shard: u16, salt: u64, floor: Clock) -> ShardLog {
        let mut log = Log::on(Memory::new(bytes, salt), ShardId(shard), floor);
        log.medium().sync();
        ShardLog { log, live: BTreeMap::new(), reserved: 0 }
    }

    /// POSTs that it holds.
    pub(crate) fn posts(&self) -> impl Iterator<Item = usize> + '_ {
        self.live.values().map(|(post, _)| *post)
    }

    pub(crate) fn read(&mut self) -> Result<(Vec<Message>, Clock), &'static str> {
        read_log(self.log.medium().bytes())
    }
}

/// The smallest log of a world: every message of a world is shorter than a fiftieth of it.
pub(crate) const LOG_BYTES_MIN: usize = HEADER_BYTES + 20 * 1024;

pub(crate) const HEADER_BYTES: usize = 4096;
