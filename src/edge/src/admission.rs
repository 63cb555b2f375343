//! Limit on the WebSockets of this process, so that a load balancer spreads them again after a rolling restart
//! (`websocket.welcome`). Present WebSockets stay; `max_connections` is the bound that protects memory.
//!
//! The edges of all shards and the control plane share the gate. Once a second the control plane counts the WebSockets
//! of the shards. An edge adds each upgrade since then. WebSockets that ended since then still count. The gate can
//! therefore exceed its limit only by the upgrades of the second or two that the count is on its way.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::health::Health;

/// Limit and count of WebSockets. Any thread.
#[derive(Default)]
pub struct AdmissionGate {
    /// 0: no limit.
    limit: AtomicU32,
    held: AtomicU64,
    stopping: AtomicBool,
    /// A [`Health`], as of about a second ago.
    health: AtomicU8,
}

impl AdmissionGate {
    /// Creates a gate with this limit; 0 means no limit.
    pub fn new(limit: u32) -> AdmissionGate {
        AdmissionGate { limit: AtomicU32::new(limit), ..AdmissionGate::default() }
    }

    /// Refuses every further WebSocket, also on health pages: the node is about to stop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Takes the health of the node, which health pages report.
    pub fn set_health(&self, health: Health) {
        self.health.store(health as u8, Ordering::Relaxed);
    }

    pub fn health(&self) -> Health {
        Health::ALL[usize::from(self.health.load(Ordering::Relaxed)) % Health::ALL.len()]
    }

    pub fn set_limit(&self, limit: u32) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Sets the count of WebSockets.
    pub fn set_held(&self, held: u64) {
        self.held.store(held, Ordering::Relaxed);
    }

    /// Adds a WebSocket to the count.
    pub fn enter(&self) {
        // Without a limit the count is not read.
        if self.limit.load(Ordering::Relaxed) > 0 {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns true if the next WebSocket must go to another node.
    pub fn is_full(&self) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        limit > 0 && self.held.load(Ordering::Relaxed) >= u64::from(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_has_the_health_that_it_was_told() {
        let gate = AdmissionGate::default();
        assert_eq!(gate.health(), Health::Good);
        for health in [Health::Degraded, Health::Unready, Health::Broken, Health::Good] {
            gate.set_health(health);
            assert_eq!(gate.health(), health);
        }
    }

    #[test]
    fn a_gate_is_full_at_its_limit_and_never_without_one() {
        let gate = AdmissionGate::new(2);
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
