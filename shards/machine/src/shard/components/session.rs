//! One identified connection while it is idle: what a million of them cost.

use crate::ids::{ConnId, Uaid};
use crate::message::Urgency;
use crate::simplepush::{Contact, Mode};

use super::broadcasts::Subscription;
use super::keepalive;
use super::refresh::Refreshed;

/// An identified WebSocket. Owner shard only, from the answer to hello until the socket is gone.
pub(in crate::shard) struct Session {
    pub uaid: Uaid,
    pub conn: ConnId,
    pub connected_at: ConnectedAt,
    pub channels: ChannelSet,
    pub broadcasts: Subscription,
    pub keepalive: keepalive::PerSession,
    /// Index of what is under way (ledger, drain, command); `NONE` while idle.
    pub active: u32,
    pub refreshed: Refreshed,
    pub stored: InStorage,
    pub link: Link,
}

impl Session {
    /// Returns true if the next register writes everything of the user: it is the first one, or the end of an earlier
    /// session may have dropped the user, which has no channel.
    pub fn registers_user(&self) -> bool {
        self.stored.is_unplaced() || self.channels.as_slice().is_empty()
    }
}

const _: () = assert!(size_of::<Option<Session>>() == 80, "a million idle sessions: 80 MB");

/// The part of a session and its user that is in storage. One byte of flags.
#[derive(Clone, Copy)]
pub(in crate::shard) struct InStorage(u8);

/// Nothing of this user is in storage yet: the record is written with its first channel (PROTOCOL.md 1.5).
const UNSAVED: u8 = 1;
/// The row that says where it is rides with each register until storage has surely taken it: the user is new.
const UNPLACED: u8 = 2;
/// A register or unregister failed: storage may list a channel that this session does not.
const UNSURE: u8 = 4;
/// The record is of an older version: the user is reset when nothing is left to deliver (PROTOCOL.md 1.10).
const OLD_RECORD: u8 = 8;
/// Its presence row is being written: it may not look at storage yet.
const ENTERING: u8 = 16;

impl InStorage {
    /// A new user, of whom nothing is written.
    pub fn nothing() -> InStorage {
        InStorage(UNSAVED | UNPLACED)
    }

    /// A user whose record was read; `old` when it is of an older version.
    pub fn record(old: bool) -> InStorage {
        InStorage(if old { OLD_RECORD } else { 0 })
    }

    /// Returns true if storage has the record of the user, or may have it.
    pub fn has_user(self) -> bool {
        self.0 & UNSAVED == 0
    }

    /// Returns true if each register carries the row that says where the session is.
    pub fn is_unplaced(self) -> bool {
        self.0 & UNPLACED != 0
    }

    /// Returns true if storage may list a channel that the session does not.
    pub fn is_unsure(self) -> bool {
        self.0 & UNSURE != 0
    }

    /// Returns true if the record is of an older version.
    pub fn is_old(self) -> bool {
        self.0 & OLD_RECORD != 0
    }

    /// Returns true if the presence row is being written.
    pub fn is_entering(self) -> bool {
        self.0 & ENTERING != 0
    }

    /// Storage has answered a register. After an error it may have taken effect, and an unregister must then reach
    /// storage.
    pub fn registered(&mut self, done: bool) {
        self.0 &= !UNSAVED;
        if done {
            self.0 &= !UNPLACED;
        } else {
            self.0 |= UNSURE;
        }
    }

    /// Storage has answered an unregister, or the list of channels after it, with an error.
    pub fn mark_unsure(&mut self) {
        self.0 |= UNSURE;
    }

    /// The presence row is written from now on, until [`InStorage::entered`].
    pub fn enter(&mut self) {
        self.0 |= ENTERING;
    }

    /// The presence row is written.
    pub fn entered(&mut self) {
        self.0 &= !ENTERING;
    }
}

/// The socket of a session, and the mode and the minimum urgency of its user agent. One byte of flags.
#[derive(Clone, Copy)]
pub(in crate::shard) struct Link(u8);

/// The socket takes no bytes.
const BLOCKED: u8 = 1;
/// The user agent is in SimplePush mode.
const SIMPLE: u8 = 2;
/// The number of the minimum (`Contact::minimum_number`) takes three bits from here on.
const MINIMUM_SHIFT: u8 = 2;
const MINIMUM: u8 = 7 << MINIMUM_SHIFT;
/// Storage may have messages below the minimum.
const HOLDS: u8 = 32;

impl Link {
    /// A socket that takes bytes.
    pub fn new(contact: &Contact) -> Link {
        let simple = contact.mode == Mode::Simple;
        Link(if simple { SIMPLE } else { contact.minimum_number() << MINIMUM_SHIFT })
    }

    /// Minimum urgency that the user agent has named, on this connection or before; `None` if it never did.
    pub fn named_minimum(self) -> Option<Urgency> {
        Contact::minimum_of((self.0 & MINIMUM) >> MINIMUM_SHIFT)
    }

    /// Urgency below which messages are held.
    pub fn minimum(self) -> Urgency {
        self.named_minimum().unwrap_or(Urgency::VeryLow)
    }

    /// The user agent has named a minimum.
    pub fn set_minimum(&mut self, minimum: Urgency) {
        let contact = Contact { minimum: Some(minimum), ..Contact::default() };
        self.0 = (self.0 & !MINIMUM) | (contact.minimum_number() << MINIMUM_SHIFT);
    }

    /// Returns true if storage may have messages below the minimum.
    pub fn holds(self) -> bool {
        self.0 & HOLDS != 0
    }

    /// Notes that storage may have messages below the minimum, or that it has none.
    pub fn hold(&mut self, holds: bool) {
        self.0 = if holds { self.0 | HOLDS } else { self.0 & !HOLDS };
    }

    /// Mode that the user agent understands.
    pub fn mode(self) -> Mode {
        if self.0 & SIMPLE == 0 { Mode::WebPush } else { Mode::Simple }
    }

    /// Returns true if the socket takes no bytes.
    pub fn is_blocked(self) -> bool {
        self.0 & BLOCKED != 0
    }

    /// The socket takes no more bytes.
    pub fn block(&mut self) {
        self.0 |= BLOCKED;
    }

    /// The socket takes bytes again.
    pub fn unblock(&mut self) {
        self.0 &= !BLOCKED;
    }
}

/// Time at which a session was identified: milliseconds since the epoch, or on a shared store a reading of the shard's
/// clock in microseconds, so that no two sessions of a shard have the same. It is the version of the presence row.
#[derive(Clone, Copy)]
pub(in crate::shard) struct ConnectedAt(u64);

impl ConnectedAt {
    /// A session begins.
    pub fn new(at: u64) -> ConnectedAt {
        ConnectedAt(at)
    }

    pub fn get(self) -> u64 {
        self.0
    }

    /// The presence row is written again, a version later. The version grows by one only, since it also says when the
    /// session read its channels.
    pub fn renew(&mut self) {
        self.0 += 1;
    }
}

/// No index.
pub(in crate::shard) const NONE: u32 = u32::MAX;

/// The channels of a session as keyed fingerprints: a POST for an unregistered channel is refused without a
/// storage read. Two channels of one user share a fingerprint with probability 2^-32, so a fingerprint leaves the set
/// only when no channel in storage has it. Then an unregistered one of the two still delivers, and no registered one is
/// refused.
pub(in crate::shard) enum ChannelSet {
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

    /// Keeps the fingerprints that the predicate accepts.
    pub fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let kept: Vec<u32> = self.as_slice().iter().copied().filter(|fingerprint| keep(*fingerprint)).collect();
        if kept.len() == self.as_slice().len() {
            return;
        }
        *self = if kept.len() <= INLINE_CHANNELS {
            let mut fingerprints = [0; INLINE_CHANNELS];
            fingerprints[..kept.len()].copy_from_slice(&kept);
            ChannelSet::Inline { count: kept.len() as u8, fingerprints }
        } else {
            ChannelSet::Heap(kept.into())
        };
    }
}

const INLINE_CHANNELS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_failed_register_leaves_the_session_unsure_and_a_later_one_places_it() {
        let mut stored = InStorage::nothing();
        assert!(!stored.has_user() && stored.is_unplaced() && !stored.is_unsure());
        stored.registered(false);
        assert!(stored.has_user() && stored.is_unplaced() && stored.is_unsure());
        stored.registered(true);
        assert!(!stored.is_unplaced() && stored.is_unsure() && !stored.is_old() && !stored.is_entering());
    }

    #[test]
    fn flags_of_the_socket_do_not_touch_the_mode() {
        for mode in [Mode::Simple, Mode::WebPush] {
            let mut link = Link::new(&Contact { mode, ..Contact::default() });
            assert!(!link.is_blocked() && !link.holds());
            link.block();
            link.hold(true);
            assert!(link.is_blocked() && link.holds() && link.mode() == mode && link.minimum() == Urgency::VeryLow);
            link.unblock();
            assert!(!link.is_blocked() && link.holds() && link.mode() == mode);
        }
    }

    #[test]
    fn the_minimum_is_kept_beside_the_other_flags() {
        let mut link = Link::new(&Contact { minimum: Some(Urgency::Low), ..Contact::default() });
        link.hold(true);
        for minimum in [Urgency::High, Urgency::VeryLow, Urgency::Normal, Urgency::Low] {
            link.set_minimum(minimum);
            assert!(link.named_minimum() == Some(minimum) && link.holds() && link.mode() == Mode::WebPush);
        }
        link.hold(false);
        assert!(!link.holds() && !link.is_blocked() && link.named_minimum() == Some(Urgency::Low));
        let simple = Contact { mode: Mode::Simple, minimum: Some(Urgency::High), wake: None, ..Contact::default() };
        assert_eq!(Link::new(&simple).named_minimum(), None, "updates have no urgency");
    }

    proptest! {
        #[test]
        fn a_channel_set_is_a_set(ops in prop::collection::vec((any::<bool>(), 0u32..12), 0..80)) {
            let (mut set, mut model) = (ChannelSet::new(), BTreeSet::new());
            for (add, fingerprint) in ops {
                if add {
                    set.insert(fingerprint);
                    model.insert(fingerprint);
                } else {
                    set.retain(|kept| kept != fingerprint);
                    model.remove(&fingerprint);
                }
                let seen: BTreeSet<u32> = set.as_slice().iter().copied().collect();
                prop_assert_eq!(&seen, &model);
                prop_assert_eq!(set.as_slice().len(), model.len());
            }
        }
    }
}
