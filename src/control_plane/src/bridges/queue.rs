//! Lane from the shards to the services of bridged users.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use machine::ids::StoreTicket;
use machine::upstream::{BridgeFailure, BridgeOutcome, UpstreamOp};
use runtime::ports::Upstreams;

use super::settings::BridgeSettings;
use crate::lane::{Call, Lane, ReplyQueue, ShardEnd};

/// Queue of calls. Every shard pushes, one task of the control plane pops.
pub struct UpstreamQueue {
    pub(super) lane: Lane<UpstreamOp, BridgeOutcome>,
    /// Replies to each shard.
    shards: Mutex<Vec<Arc<ReplyQueue<BridgeOutcome>>>>,
    /// Settings to use from now on, until the task has taken them.
    settings: Mutex<Option<BridgeSettings>>,
    /// Counts the changes of `settings`.
    changes: AtomicU64,
}

pub(super) type UpstreamCall = Call<UpstreamOp, BridgeOutcome>;

impl UpstreamQueue {
    /// An empty lane.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new() -> io::Result<UpstreamQueue> {
        let lane = Lane::new(CALLS_MAX)?;
        Ok(UpstreamQueue { lane, shards: Mutex::default(), settings: Mutex::default(), changes: AtomicU64::new(0) })
    }

    /// A shard's handle, made on the shard's thread. `waker` is called when there are replies.
    pub fn port(self: &Arc<UpstreamQueue>, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn Upstreams> {
        let end = ShardEnd::new(waker);
        self.shards.lock().unwrap_or_else(PoisonError::into_inner).push(end.replies());
        Box::new(UpstreamPort { queue: Arc::clone(self), end })
    }

    /// Wakes the shards for which replies were left.
    pub(super) fn wake_shards(&self) {
        let shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        shards.iter().for_each(|replies| replies.wake_if_due());
    }

    /// Uses these settings from now on. Calls under way end with the old ones.
    pub fn reload(&self, settings: BridgeSettings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Takes new settings, if there are any.
    pub(super) fn take_settings(&self) -> Option<BridgeSettings> {
        if self.changes.swap(0, Ordering::SeqCst) == 0 {
            return None;
        }
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// One shard's handle. Lives on its thread.
struct UpstreamPort {
    queue: Arc<UpstreamQueue>,
    end: ShardEnd<BridgeOutcome>,
}

impl Upstreams for UpstreamPort {
    fn submit(&mut self, ticket: StoreTicket, op: UpstreamOp) {
        self.end.submit(ticket, CALLS_MAX, |back| self.queue.lane.push(op, Some(back)));
    }

    fn collect(&mut self) -> Option<(StoreTicket, BridgeOutcome)> {
        let busy = BridgeFailure::Unavailable { retry_after: BUSY_SECONDS };
        self.end.collect(BridgeOutcome::Failed(busy))
    }
}

/// Calls between the shards and the control plane, and calls of one shard without a reply. Refuse: `Unavailable`.
const CALLS_MAX: usize = 4_096;
/// Pause of senders when the lane is full.
const BUSY_SECONDS: u32 = 10;
