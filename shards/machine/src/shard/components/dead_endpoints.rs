//! Endpoints that storage has said are dead: a sender that goes on posting to one costs no storage read each time.
//!
//! An entry is made only from storage's own `NoSubscription`, never from an error, and lives for a minute. A register
//! of the channel removes it. Registers and unregisters move an epoch: a reply of storage to a question of an earlier
//! epoch says nothing about the channel of now, neither that it is dead nor that it is there. Owner shard only.

use crate::ids::{Chid, Uaid};
use crate::limits;
use crate::lru::Lru;
use crate::time::{Instant, TimeSpan};

/// A channel of a user.
type Subscription = (Uaid, Chid);

/// The dead endpoints of one shard.
pub(in crate::shard) struct DeadEndpoints {
    until: Lru<Subscription, Instant>,
    /// Number of registers and unregisters that were begun or answered, by the top bits of the subscription's name
    /// (`Placement::subscription`). Two subscriptions that share one cost each other an entry now and then.
    epochs: Box<[u32; EPOCHS]>,
}

/// Time at which storage was asked about a subscription, in registers and unregisters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Epoch(u32);

impl DeadEndpoints {
    pub fn new() -> DeadEndpoints {
        DeadEndpoints { until: Lru::new(limits::DEAD_ENDPOINTS_MAX), epochs: Box::new([0; EPOCHS]) }
    }

    /// Registers and unregisters of a subscription of this name until now.
    pub fn epoch(&self, name: u64) -> Epoch {
        Epoch(self.epochs[epoch_of(name)])
    }

    /// Storage answered a question of `asked` with `NoSubscription`.
    pub fn died(&mut self, now: Instant, subscription: Subscription, name: u64, asked: Epoch) {
        if self.epoch(name) == asked {
            self.until.insert(subscription, now.after(KEPT));
        }
    }

    /// A register of it was begun, or answered in any way.
    pub fn registering(&mut self, subscription: Subscription, name: u64) {
        self.unregistering(name);
        self.until.remove(&subscription);
    }

    /// An unregister of a subscription of this name was begun, or answered in any way.
    pub fn unregistering(&mut self, name: u64) {
        let epoch = &mut self.epochs[epoch_of(name)];
        *epoch = epoch.wrapping_add(1);
    }

    /// Returns true if storage has said within the last minute that there is no such subscription.
    pub fn contains(&mut self, now: Instant, subscription: Subscription) -> bool {
        match self.until.get(&subscription) {
            Some(until) if *until > now => true,
            Some(_) => {
                self.until.remove(&subscription);
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

    const CHANNEL: Subscription = (Uaid([1; 16]), Chid([7; 16]));

    #[test]
    fn an_entry_lives_for_a_minute_and_ends_with_a_register() {
        let mut dead = DeadEndpoints::new();
        let (now, later) = (Instant(1), Instant(1).after(KEPT));
        dead.died(now, CHANNEL, 7, dead.epoch(7));
        let namesake = (CHANNEL.0, Chid([8; 16]));
        assert!(dead.contains(now, CHANNEL) && !dead.contains(now, namesake));
        assert!(!dead.contains(later, CHANNEL));
        dead.died(now, CHANNEL, 7, dead.epoch(7));
        dead.registering(CHANNEL, 7);
        assert!(!dead.contains(now, CHANNEL));
    }

    #[test]
    fn an_answer_that_is_older_than_a_register_says_nothing() {
        let mut dead = DeadEndpoints::new();
        let asked = dead.epoch(7);
        dead.registering(CHANNEL, 7);
        dead.died(Instant(1), CHANNEL, 7, asked);
        assert!(!dead.contains(Instant(1), CHANNEL));
    }
}
