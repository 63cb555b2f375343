//! Endpoints that storage has said are dead: a sender that goes on posting to one costs no storage read each time.
//!
//! An entry is made only from storage's own `NoSubscription`, never from an error, and lives for a minute. A register
//! of the channel removes it, and so that no older reply of storage brings it back, every register moves an epoch: a
//! reply to a question of an earlier epoch leaves no entry. Owner shard only.

use crate::limits;
use crate::lru::Lru;
use crate::time::{Instant, TimeSpan};

/// The dead endpoints of one shard, by `Placement::subscription`.
pub(in crate::shard) struct DeadEndpoints {
    until: Lru<u64, Instant>,
    /// Number of registers that were begun or answered, by the top bits of the subscription's name. Two subscriptions
    /// that share one cost each other an entry now and then.
    epochs: Box<[u32; EPOCHS]>,
}

/// Time at which storage was asked about a subscription, in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Epoch(u32);

impl DeadEndpoints {
    pub fn new() -> DeadEndpoints {
        DeadEndpoints { until: Lru::new(limits::DEAD_ENDPOINTS_MAX), epochs: Box::new([0; EPOCHS]) }
    }

    /// Registers of a subscription until now.
    pub fn epoch(&self, name: u64) -> Epoch {
        Epoch(self.epochs[epoch_of(name)])
    }

    /// Storage answered a question of `asked` with `NoSubscription`.
    pub fn died(&mut self, now: Instant, name: u64, asked: Epoch) {
        if self.epoch(name) == asked {
            self.until.insert(name, now.after(KEPT));
        }
    }

    /// A register of it was begun, or answered in any way.
    pub fn registering(&mut self, name: u64) {
        let epoch = &mut self.epochs[epoch_of(name)];
        *epoch = epoch.wrapping_add(1);
        self.until.remove(&name);
    }

    /// Returns true if storage has said within the last minute that there is no such subscription.
    pub fn contains(&mut self, now: Instant, name: u64) -> bool {
        match self.until.get(&name) {
            Some(until) if *until > now => true,
            Some(_) => {
                self.until.remove(&name);
                false
            }
            None => false,
        }
    }
}

fn epoch_of(name: u64) -> usize {
    (name >> (64 - EPOCHS.trailing_zeros())) as usize
}

/// A register on another node of a shared store is not seen here: it may be denied for this long.
const KEPT: TimeSpan = TimeSpan::from_secs(60);
const EPOCHS: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_lives_for_a_minute_and_ends_with_a_register() {
        let mut dead = DeadEndpoints::new();
        let (now, later) = (Instant(1), Instant(1).after(KEPT));
        dead.died(now, 7, dead.epoch(7));
        assert!(dead.contains(now, 7) && !dead.contains(now, 8));
        assert!(!dead.contains(later, 7));
        dead.died(now, 7, dead.epoch(7));
        dead.registering(7);
        assert!(!dead.contains(now, 7));
    }

    #[test]
    fn an_answer_that_is_older_than_a_register_says_nothing() {
        let mut dead = DeadEndpoints::new();
        let asked = dead.epoch(7);
        dead.registering(7);
        dead.died(Instant(1), 7, asked);
        assert!(!dead.contains(Instant(1), 7));
    }
}
