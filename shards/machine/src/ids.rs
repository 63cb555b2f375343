//! Identities. Newtypes only, so that two of them cannot be mixed up.
//!
//! Lives on: every shard and every edge; all of them are plain copies.

use std::fmt;
use std::num::NonZeroU64;

/// User agent id: 16 bytes, issued by us, the sharding key (PROTOCOL.md, identifiers).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uaid(pub [u8; 16]);

/// Channel id: one subscription of one user agent, 16 bytes (PROTOCOL.md, identifiers).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Chid(pub [u8; 16]);

/// SHA-256 of the 65 bytes of a VAPID public key (PROTOCOL.md 2.2).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyDigest(pub [u8; 32]);

/// One pinned thread with its rings and its slice of the UAIDs. `0 <= id < shard count`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ShardId(pub u16);

/// A socket of this shard: its place in the connection plane and the use count of that place. The receiver ignores a
/// value of an earlier generation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ConnId {
    /// `ring * slots per ring + direct descriptor`.
    pub slot: u32,
    /// Counts the uses of the slot, so that late completions and replies match no connection.
    pub generation: u32,
}

/// One attempt to move a socket to its owner (ARCHITECTURE.md 4): `source shard << 48 | count`, with bit 47
/// left to the ring. Never reused in a boot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Claim(pub u64);

impl Claim {
    /// The claim number `count` of `source`.
    pub fn new(source: ShardId, count: u64) -> Claim {
        assert!(count < 1 << 47, "a shard makes fewer than 2^47 claims in a boot");
        Claim((u64::from(source.0) << 48) | count)
    }

    /// The shard that asked, where the socket is until it moves.
    pub fn source(self) -> ShardId {
        ShardId((self.0 >> 48) as u16)
    }
}

/// Ties a `StoreReply` to the state that asked. Owner shard only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StoreTicket {
    /// Index into the machine's table of pending storage work.
    pub index: u32,
    /// Counts the uses of that index.
    pub generation: u32,
}

/// Ties a mail reply to the request that asked. Meaningful to the shard that sent the request only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RequestId {
    /// Index into the sender's table of outstanding requests.
    pub index: u32,
    /// Counts the uses of that index.
    pub generation: u32,
}

/// A record of the shard's ledger log, by the machine's own numbering (dense, reused after `Dead`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LedgerSlot(pub u32);

/// Names one emission of one notification on one session, so that a frame the socket refused can be
/// sent again when it takes bytes (ring/RULES.md rule 6). Counts up per session, wraps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmissionId(pub u32);

/// The hybrid clock (ARCHITECTURE.md 8.3): microseconds since the Unix epoch, strictly increasing per shard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Clock(pub u64);

/// Random per boot and shard; makes a clock value unique among all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Origin(pub u32);

/// The identity of one accepted message for its whole life, and its place in the order of its channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Stamp {
    /// Time at which the owner accepted it.
    pub clock: Clock,
    /// Boot and shard of that owner.
    pub origin: Origin,
}

/// The address of a caller, as a number that no other IPv4 /32 or IPv6 /64 has. In memory only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CallerAddress(pub NonZeroU64);

/// A keyed digest of the address from which a user was made (`Placement::address`). Stored with the user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressDigest(pub NonZeroU64);

impl fmt::Debug for CallerAddress {
    /// An address can locate a person.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallerAddress(..)")
    }
}

impl fmt::Debug for AddressDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressDigest({:04x}..)", self.0.get() >> 48)
    }
}

impl fmt::Debug for Uaid {
    /// A UAID is a bearer secret: a client that knows it can take over the session. Only a prefix is ever shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uaid({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl fmt::Debug for Chid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chid({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyDigest({:02x}{:02x}..)", self.0[0], self.0[1])
    }
}
