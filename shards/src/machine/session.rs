//! One identified connection while it is idle: what a million of them cost.

use crate::ids::{ConnId, Uaid};

use super::components::broadcasts::Subscription;
use super::components::keepalive;
use super::components::refresh::Refreshed;

/// An identified WebSocket. Owner shard only, from the answer to hello until the socket is gone.
pub(super) struct Session {
    pub uaid: Uaid,
    pub conn: ConnId,
    /// When the session was identified: milliseconds since the epoch, or on a shared store a reading of the shard's
    /// clock in microseconds, so that no two sessions of a shard have the same.
    pub connected_at: u64,
    pub channels: ChannelSet,
    pub broadcasts: Subscription,
    pub keepalive: keepalive::PerSession,
    /// Index of what is under way (ledger, drain, command); `NONE` while idle.
    pub active: u32,
    pub refreshed: Refreshed,
    pub flags: u16,
}

const _: () = assert!(size_of::<Option<Session>>() <= 80, "a million idle sessions: 80 MB");

impl Session {
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub fn put(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

/// Nothing of this user is in storage yet: the record is written with its first channel (PROTOCOL.md
/// 1.5).
pub(super) const UNSAVED: u16 = 1;
/// The socket takes no bytes.
pub(super) const BLOCKED: u16 = 2;
/// A register or unregister failed: storage may list a channel that this session does not.
pub(super) const UNSURE: u16 = 8;
/// It is in SimplePush mode.
pub(super) const SIMPLE: u16 = 16;
/// Its presence row is being written: it may not look at storage yet.
pub(super) const ENTERING: u16 = 32;
/// The record is of an older version: the user is reset when nothing is left to deliver (PROTOCOL.md 1.10).
pub(super) const OLD_RECORD: u16 = 64;
/// The row that says where it is rides with each register until storage has surely taken it: the user is new.
pub(super) const UNPLACED: u16 = 256;

/// No index.
pub(super) const NONE: u32 = u32::MAX;

/// The channels of a session as keyed fingerprints: a POST for an unregistered channel is refused without a
/// storage read. Two channels of one user collide with probability 2^-32; then a cancelled one of them still delivers.
pub(super) enum ChannelSet {
    /// `count <= INLINE_CHANNELS`.
    Inline { count: u8, fingerprints: [u32; INLINE_CHANNELS] },
    /// More than fit inline.
    Heap(Box<[u32]>),
}

impl ChannelSet {
    pub fn new() -> ChannelSet {
        ChannelSet::Inline { count: 0, fingerprints: [0; INLINE_CHANNELS] }
    }

    pub fn as_slice(&self) -> &[u32] {
        match self {
            ChannelSet::Inline { count, fingerprints } => &fingerprints[..usize::from(*count)],
            ChannelSet::Heap(fingerprints) => fingerprints,
        }
    }

    pub fn contains(&self, fingerprint: u32) -> bool {
        self.as_slice().contains(&fingerprint)
    }

    pub fn insert(&mut self, fingerprint: u32) {
        if self.contains(fingerprint) {
            return;
        }
        match self {
            ChannelSet::Inline { count, fingerprints } if usize::from(*count) < INLINE_CHANNELS => {
                fingerprints[usize::from(*count)] = fingerprint;
                *count += 1;
            }
            ChannelSet::Inline { fingerprints, .. } => {
                *self = ChannelSet::Heap([&fingerprints[..], &[fingerprint]].concat().into());
            }
            ChannelSet::Heap(fingerprints) => *fingerprints = [&fingerprints[..], &[fingerprint]].concat().into(),
        }
    }

    pub fn remove(&mut self, fingerprint: u32) {
        let Some(at) = self.as_slice().iter().position(|f| *f == fingerprint) else { return };
        match self {
            ChannelSet::Inline { count, fingerprints } => {
                *count -= 1;
                fingerprints[at] = fingerprints[usize::from(*count)];
            }
            ChannelSet::Heap(fingerprints) => {
                let left = [&fingerprints[..at], &fingerprints[at + 1..]].concat();
                *self = match <[u32; INLINE_CHANNELS]>::try_from(&left[..]) {
                    Ok(fingerprints) => ChannelSet::Inline { count: INLINE_CHANNELS as u8, fingerprints },
                    Err(_) => ChannelSet::Heap(left.into()),
                };
            }
        }
    }
}

const INLINE_CHANNELS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_channel_set_is_a_set(ops in prop::collection::vec((any::<bool>(), 0u32..12), 0..80)) {
            let (mut set, mut model) = (ChannelSet::new(), BTreeSet::new());
            for (add, fingerprint) in ops {
                if add {
                    set.insert(fingerprint);
                    model.insert(fingerprint);
                } else {
                    set.remove(fingerprint);
                    model.remove(&fingerprint);
                }
                let seen: BTreeSet<u32> = set.as_slice().iter().copied().collect();
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(set.as_slice().len(), model.len());
            }
        }
    }
}
