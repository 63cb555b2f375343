//! Contents of the user_data of a submission, as they are read back from its completion.
//!
//! ```text
//! 63 kind 56 | 55 aux 44 | 43 generation 28 | 27 slot 0
//! ```
//! Kind 0 is special: the whole word is a claim (RULES.md), whose top byte is zero because shard ids are below 256. Its
//! bit 47 says that the connection speaks TLS.

use std::io;
use std::os::fd::OwnedFd;

use machine::ids::{Claim, ConnId, ShardId};
use machine::limits;

/// Kind of operation of a completion. The top byte of user_data; 0 is taken by claims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Accept; slot = listener, aux = how often it was armed.
    Accept = 1,
    /// One-shot poll for input.
    PollIn = 2,
    /// One-shot poll for room.
    PollOut = 3,
    /// Receive; aux = arena span.
    Recv = 4,
    /// Send; aux = index of the outbox in the submission.
    Send = 5,
    Shutdown = 6,
    /// Close of the slot.
    Close = 7,
    /// The source's side of a moving descriptor.
    SendFd = 8,
    /// A connection that another shard dealt to us; slot = kind of its listener.
    Dealt = 9,
    /// The hub's timeout; aux = which one.
    Timeout = 10,
    /// Another shard's wake by MSG_RING.
    Bell = 11,
    /// No reader: removals, cancels, bells that found no ring.
    Ignored = 12,
    /// The hub's multishot poll of the shard's eventfd.
    Event = 13,
    /// Address of the peer; aux = arena span.
    Peer = 14,
    /// A connection of an app server that another shard handed over; aux = that shard and if it speaks TLS, slot = that
    /// which it had there.
    HandedOver = 15,
    /// Ordinary descriptor of a connection that may be frozen.
    TakenOut = 16,
}

const SLOT_BITS: u32 = 28;
const GENERATION_BITS: u32 = 16;
const AUX_BITS: u32 = 12;

/// Number of values that fit beside a slot and its generation: spans of an arena, sends of one submission.
pub(crate) const AUX_MAX: usize = 1 << AUX_BITS;

const _: () = assert!(limits::SESSIONS_MAX <= 1 << SLOT_BITS);
const _: () = assert!(limits::SHARDS_MAX as u32 <= 256);

/// The user_data of an operation on a connection.
pub(crate) fn encode_conn(kind: Kind, aux: usize, conn: ConnId) -> u64 {
    debug_assert!(aux < AUX_MAX && conn.slot < 1 << SLOT_BITS);
    let generation = u64::from(conn.generation as u16);
    (kind as u64) << 56 | (aux as u64) << (SLOT_BITS + GENERATION_BITS) | generation << SLOT_BITS | u64::from(conn.slot)
}

/// The user_data of an operation on no connection.
pub(crate) fn encode_plain(kind: Kind, aux: usize, number: u32) -> u64 {
    encode_conn(kind, aux, ConnId { slot: number, generation: 0 })
}

/// The user_data of a moved connection at its target.
pub(crate) fn claimed(claim: Claim, tls: bool) -> u64 {
    debug_assert!(claim.0 & TLS_CLAIM == 0, "claims are counted below this bit");
    claim.0 | if tls { TLS_CLAIM } else { 0 }
}

/// The user_data of a dealt connection at its target.
pub(crate) fn dealt(kind: u32) -> u64 {
    encode_plain(Kind::Dealt, 0, kind)
}

/// The claim in that word, and true if the connection speaks TLS.
pub(crate) fn unclaimed(word: u64) -> (Claim, bool) {
    (Claim(word & !TLS_CLAIM), word & TLS_CLAIM != 0)
}

const TLS_CLAIM: u64 = 1 << 47;

/// Place that a connection of an app server had before it was handed over, and if it speaks TLS.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Origin {
    pub shard: ShardId,
    pub slot: u32,
    pub tls: bool,
}

impl Origin {
    const TLS: usize = 1 << 8;

    /// The user_data of the connection at its target.
    pub(crate) fn word(self) -> u64 {
        encode_plain(Kind::HandedOver, usize::from(self.shard.0) | if self.tls { Origin::TLS } else { 0 }, self.slot)
    }

    pub(crate) fn of_completion(aux: usize, slot: u32) -> Origin {
        Origin { shard: ShardId((aux % Origin::TLS) as u16), slot, tls: aux & Origin::TLS != 0 }
    }
}

/// Names a connection as a completion does: its slot and the low bits of its generation. The slab tells
/// whether that is still the one in the slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CompletionKey {
    pub slot: u32,
    /// Low 16 bits of the generation. Enough: a slot is reused only after its Close completed, so no operation
    /// outlives 65,536 uses.
    pub generation: u16,
}

/// A raw completion, as reaped: user_data, result, whether more will come, and of which ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cqe {
    pub word: u64,
    pub result: i32,
    pub more: bool,
    pub ring: u16,
}

/// A completion as the reactor handles it. Results are as the kernel says them: negative is an errno.
#[derive(Debug)]
pub(crate) enum Completion {
    /// A new connection in `direct` of `ring`, or an errno.
    Accepted { listener: u32, ring: u16, result: i32 },
    /// Input, hang-up, or the poll was removed.
    Readable(CompletionKey),
    /// Room, hang-up, or the poll was removed.
    Writable(CompletionKey),
    /// Bytes in the span, 0 at the end of the stream, or an errno. The span must be freed.
    Received { done: CompletionKey, span: super::ArenaSpan, result: i32 },
    /// Address of the peer in the span ([`super::peer_address`]), or an errno. The span must be freed.
    Peer { done: CompletionKey, span: super::ArenaSpan, result: i32 },
    /// Shutdown(WR) is over.
    ShutDown { done: CompletionKey, result: i32 },
    /// The slot was closed.
    Closed { done: CompletionKey, result: i32 },
    /// A descriptor was moved, or could not be.
    Moved { done: CompletionKey, result: i32 },
    /// The descriptor of a claim arrived in `direct` of `ring`.
    Arrived { claim: Claim, tls: bool, ring: u16, result: i32 },
    /// Another shard dealt us the connection in `direct` of `ring`, of listener kind `kind`.
    Dealt { kind: u32, ring: u16, result: i32 },
    /// Another shard handed over the connection in `direct` of `ring`; `from` names its state in the mailbox.
    HandedOver { from: Origin, ring: u16, result: i32 },
    /// The ordinary descriptor of a connection ([`super::Plane::take_out`]).
    TakenOut { done: CompletionKey, socket: io::Result<OwnedFd> },
    /// Something that only woke us.
    Woken,
}

impl Completion {
    /// Reads the word of a socket that another shard has moved to this one. `None` for every other word.
    pub(crate) fn arrival(word: u64, ring: u16, result: i32) -> Option<Completion> {
        const DEALT: u8 = Kind::Dealt as u8;
        const HANDED_OVER: u8 = Kind::HandedOver as u8;
        Some(match decode(word) {
            None => {
                let (claim, tls) = unclaimed(word);
                Completion::Arrived { claim, tls, ring, result }
            }
            Some((DEALT, _, done)) => Completion::Dealt { kind: done.slot, ring, result },
            Some((HANDED_OVER, aux, done)) => {
                Completion::HandedOver { from: Origin::of_completion(aux, done.slot), ring, result }
            }
            Some(_) => return None,
        })
    }
}

/// The fields of a word; `None` for a claim.
pub(crate) fn decode(word: u64) -> Option<(u8, usize, CompletionKey)> {
    let kind = (word >> 56) as u8;
    if kind == 0 {
        return None;
    }
    let aux = (word >> (SLOT_BITS + GENERATION_BITS)) as usize & (AUX_MAX - 1);
    let done = CompletionKey { slot: word as u32 & ((1 << SLOT_BITS) - 1), generation: (word >> SLOT_BITS) as u16 };
    Some((kind, aux, done))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_is_read_back_as_it_was_made(slot in 0u32..1 << 28, generation: u32, aux in 0usize..AUX_MAX) {
            let word = encode_conn(Kind::Recv, aux, ConnId { slot, generation });
            let done = CompletionKey { slot, generation: generation as u16 };
            prop_assert_eq!(decode(word), Some((Kind::Recv as u8, aux, done)));
        }

        #[test]
        fn an_origin_is_read_back_as_it_was_made(shard in 0u16..256, slot in 0u32..1 << 28, tls: bool) {
            let origin = Origin { shard: ShardId(shard), slot, tls };
            let (kind, aux, done) = decode(origin.word()).unwrap();
            prop_assert_eq!((kind, Origin::of_completion(aux, done.slot)), (Kind::HandedOver as u8, origin));
        }

        #[test]
        fn a_claim_is_never_taken_for_an_operation(source in 0u16..256, count in 0u64..1 << 47, tls: bool) {
            let claim = Claim::new(ShardId(source), count);
            prop_assert_eq!(decode(claimed(claim, tls)), None);
            prop_assert_eq!(unclaimed(claimed(claim, tls)), (claim, tls));
        }
    }
}
