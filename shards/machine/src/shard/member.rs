//! Mail between the home of a relay and the owners of its members (`relay`).

use crate::ids::{EmissionId, ShardId};
use crate::limits;

use super::command::{CloseReason, Hello, SessionCommand, SessionEvent};
use super::slab::SlabKey;

/// One relay connection of this process. The value is never reused in a boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RelayId {
    pub(super) home: ShardId,
    pub(super) at: SlabKey,
}

impl RelayId {
    /// Returns the shard of its socket.
    pub fn home(self) -> ShardId {
        self.home
    }
}

/// One attachment of one member to one relay; the next attachment of the same member is another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VirtualConnId {
    pub relay: RelayId,
    /// `attachments of this relay before it << PLACE_BITS | place among its members`.
    pub(super) number: u64,
}

impl VirtualConnId {
    /// Returns the place at which a walk over the virtual connections of this relay continues.
    pub(super) fn next(self) -> VirtualConnId {
        VirtualConnId { number: self.number + 1, ..self }
    }

    pub(super) fn place(self) -> usize {
        self.number as usize & (limits::RELAY_MEMBERS_MAX - 1)
    }
}

/// Messages of the home to the owner of a member.
#[derive(Debug)]
pub enum MemberRequest {
    /// Take a virtual connection and handle this hello. Answered by `Said` of a hello or `Ended`, then `Ready`; or by
    /// `Stranger`.
    Attach { vconn: VirtualConnId, hello: Box<Hello> },
    /// A command of an attached member. `Ready` follows, or `Ended`.
    For { vconn: VirtualConnId, command: Box<SessionCommand> },
    /// The socket took nothing of this notification's frame.
    Unsent {
        vconn: VirtualConnId,
        /// Lowest `EMISSION_BITS` bits of its name.
        emission: EmissionId,
        /// Wakes of the socket up to its first refusal of this round. At a wake it takes bytes again.
        wakes: u64,
    },
    /// The member has left the relay.
    Leave { vconn: VirtualConnId },
    /// The socket of the relay takes bytes again: refused frames may be sent.
    Writable {
        relay: RelayId,
        /// Wakes of the socket so far, this one included.
        wakes: u64,
    },
    /// The relay is gone, and all its members with it.
    Gone { relay: RelayId },
}

impl MemberRequest {
    /// Returns the relay that it concerns.
    pub fn relay(&self) -> RelayId {
        match self {
            MemberRequest::Attach { vconn, .. }
            | MemberRequest::For { vconn, .. }
            | MemberRequest::Unsent { vconn, .. }
            | MemberRequest::Leave { vconn } => vconn.relay,
            MemberRequest::Writable { relay, .. } | MemberRequest::Gone { relay } => *relay,
        }
    }
}

/// Messages of the owner of a member to the home of its relay.
#[derive(Debug)]
pub enum MemberEvent {
    /// Write this event.
    Emit {
        vconn: VirtualConnId,
        /// Number that increases whenever the owner begins again after a refusal.
        round: u64,
        event: SessionEvent,
    },
    /// The command of this member has ended.
    Ready { vconn: VirtualConnId },
    /// No user has the UAID of this hello: the home mints a fresh one in its own slice.
    UnknownUaid {
        /// Virtual connection that is free again.
        vconn: VirtualConnId,
        hello: Box<Hello>,
    },
    /// The session has ended on the owner's side, or could not begin.
    Ended { vconn: VirtualConnId, reason: CloseReason },
}

impl MemberEvent {
    /// Returns the virtual connection that it concerns.
    pub fn vconn(&self) -> VirtualConnId {
        match self {
            MemberEvent::Emit { vconn, .. }
            | MemberEvent::Ready { vconn }
            | MemberEvent::UnknownUaid { vconn, .. }
            | MemberEvent::Ended { vconn, .. } => *vconn,
        }
    }
}

/// Reply to both messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberReply {
    /// Done, or the virtual connection or relay has ended, which another mail reports.
    Taken,
    /// The socket takes no bytes.
    Refused {
        /// Name of the notification that was not written; any other event was written.
        emission: Option<EmissionId>,
        /// Wakes of the socket up to its first refusal of this round. At a wake it takes bytes again.
        wakes: u64,
    },
}

/// Bits of a virtual connection's number that are a place among the members of its relay.
pub(super) const PLACE_BITS: u32 = limits::RELAY_MEMBERS_MAX.trailing_zeros();

const _: () = assert!(limits::RELAY_MEMBERS_MAX.is_power_of_two());
