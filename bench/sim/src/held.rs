//! The promise of a 201, checked at one instant: were everything to die now, is every accepted message held?
//!
//! A message is held by storage or by exactly one ledger, or it has ended by a rule. A message that was replaced is
//! excused only while the one that replaced it is held, or has itself ended by a rule.

use std::collections::BTreeMap;

use machine::ids::{Chid, Uaid};
use machine::message::{Rank, Topic};

use crate::oracle::Post;
use crate::shared::Verdict;
use crate::world::World;

/// A topic slot.
type Slot = (Uaid, Chid, Topic);

impl World {
    /// Returns true if storage has it, as a kill would leave storage.
    fn stored(&self, post: &Post) -> bool {
        post.row().is_some_and(|row| self.store.durable().row(&row).is_some())
    }

    /// Every accepted message is held. `ledgered` says how many ledgers hold each POST.
    pub(crate) fn all_held(&self, ledgered: &BTreeMap<usize, usize>, when: &str) -> Verdict {
        if let Some((post, count)) = ledgered.iter().find(|(_, count)| **count > 1) {
            return Err(format!("message {post} is in {count} ledgers ({when})"));
        }
        let held = |index: usize, post: &Post| ledgered.contains_key(&index) || self.stored(post);
        let posts = || self.oracle.posts.iter().enumerate();
        let mut newest: BTreeMap<Slot, Rank> = BTreeMap::new();
        for (index, post) in posts().filter(|(_, post)| post.took_slot()) {
            let (Some(slot), Some(rank)) = (slot_of(post), post.rank()) else { continue };
            if held(index, post) || self.oracle.ended(post).is_some() {
                let best = newest.entry(slot).or_insert(rank);
                *best = rank.max(*best);
            }
        }
        for (index, post) in posts().filter(|(_, post)| post.seen.is_some() && post.ttl > 0) {
            let replaced =
                slot_of(post).and_then(|slot| newest.get(&slot)).is_some_and(|best| Some(*best) > post.rank());
            if !replaced && self.oracle.ended(post).is_none() && !held(index, post) {
                return Err(format!("message {index} is lost ({when}): {post:?}"));
            }
        }
        Ok(())
    }

    /// Number of ledgers that hold each POST.
    pub(crate) fn ledgered(&self) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for post in self.shards.iter().flat_map(|shard| shard.log.posts()) {
            *counts.entry(post).or_insert(0) += 1;
        }
        counts
    }

    /// One message that its ledger no longer holds.
    pub(crate) fn still_held(&self, index: usize, when: &str) -> Verdict {
        let post = &self.oracle.posts[index];
        if post.seen.is_none() || self.oracle.ended(post).is_some() || self.stored(post) {
            return Ok(());
        }
        let ledgered = || self.shards.iter().flat_map(|shard| shard.log.posts());
        let replaces = |(other, newer): (usize, &Post)| {
            let newer_of_slot = newer.took_slot() && slot_of(newer) == slot_of(post) && newer.rank() > post.rank();
            newer_of_slot
                && (self.stored(newer) || self.oracle.ended(newer).is_some() || ledgered().any(|held| held == other))
        };
        if post.topic.is_some() && self.oracle.posts.iter().enumerate().any(replaces) {
            return Ok(());
        }
        Err(format!("message {index} is lost ({when}): {post:?}"))
    }

    /// End of an accepted message; `None` when it has none yet.
    pub(crate) fn fate(&self, index: usize) -> Option<&'static str> {
        let post = &self.oracle.posts[index];
        let ended = self.oracle.ended(post);
        if ended.is_some() || post.topic.is_none() {
            return ended;
        }
        let replaced = |newer: &Post| {
            newer.took_slot()
                && slot_of(newer) == slot_of(post)
                && newer.rank() > post.rank()
                && (self.stored(newer) || self.oracle.ended(newer).is_some())
        };
        self.oracle.posts.iter().any(replaced).then_some("fate: replaced by topic")
    }
}

fn slot_of(post: &Post) -> Option<Slot> {
    post.topic.map(|topic| (post.to.uaid, post.to.chid, topic))
}
