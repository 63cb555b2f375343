//! How many WebSockets are welcome on this process, so that a load balancer spreads them again after a rolling restart
//! (`websocket.welcome`). Those that are there stay; `max_connections` is the bound that protects memory.
//!
//! Shared by the edges of all shards and the island, which counts once a second what the shards hold; upgrades since
//! then are added by who makes them. WebSockets that ended since then still count, so a gate that is not full never
//! lets in more than the limit by more than what came in while the count was on its way, a second or two.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A limit and a count. Any thread.
#[derive(Default)]
pub struct Gate {
    /// 0: no limit.
    limit: AtomicU32,
    held: AtomicU64,
    stopping: AtomicBool,
}

impl Gate {
    /// With this limit; 0 is none.
    pub fn new(limit: u32) -> Gate {
        Gate { limit: AtomicU32::new(limit), held: AtomicU64::new(0), stopping: AtomicBool::new(false) }
    }

    /// From now on no WebSocket is welcome, and health pages say so: the node is about to stop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// True if the node is about to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Another limit from now on.
    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// So many are there.
    pub fn set_held(&self, held: u64) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// One more came in.
    pub fn enter(&self) {
        // Nobody reads it without a limit.
        if self.limit.load(Ordering::Relaxed) > 0 {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the next one is to go elsewhere.
    pub fn is_full(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit > 0 && self.held.load(Ordering::Relaxed) >= u64::from(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_full_at_its_limit_and_never_without_one() {
        let gate = Gate::new(2);
        gate.enter();
        assert!(!gate.is_full());
        gate.enter();
        assert!(gate.is_full());
        gate.set_held(1);
        assert!(!gate.is_full());
        gate.set_limit(1);
        assert!(gate.is_full());
        gate.set_limit(0);
        gate.set_held(1 << 40);
        assert!(!gate.is_full());
    }
}
