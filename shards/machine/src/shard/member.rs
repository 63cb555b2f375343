//! Mail between the home of a relay and the owners of its members (`relay`).

use crate::ids::{EmissionId, ShardId};
use crate::limits;

use super::command::{CloseReason, Hello, SessionCommand, SessionEvent};
use super::slab::Ref;

/// One relay connection of this process, never reused in a boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RelayId {
    pub(super) home: ShardId,
    pub(super) at: Ref,
}

impl RelayId {
    /// The shard where its socket is.
    pub fn home(self) -> ShardId {
        self.home
    }
}

/// One attachment of one member to one relay; the next attachment of the same member is another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SeatId {
    /// The relay.
    pub relay: RelayId,
    /// `attachments of this relay before it << PLACE_BITS | place among its members`.
    pub(super) number: u64,
}

impl SeatId {
    /// Place at which a walk over the seats of this relay goes on.
    pub(super) fn next(self) -> SeatId {
        SeatId { number: self.number + 1, ..self }
    }

    pub(super) fn place(self) -> usize {
        self.number as usize & (limits::RELAY_MEMBERS_MAX - 1)
    }
}

/// Messages of the home to the owner of a member.
#[derive(Debug)]
pub enum MemberRequest {
    /// Take a seat and work on this hello. Answered by `Said` of a hello or `Ended`, then `Ready`; or by `Stranger`.
    Attach {
        /// The new seat.
        seat: SeatId,
        /// Hello of the user agent.
        hello: Box<Hello>,
    },
    /// A command of an attached member. `Ready` follows, or `Ended`.
    For {
        /// Seat of the member.
        seat: SeatId,
        /// Command of the member.
        command: Box<SessionCommand>,
    },
    /// The socket took nothing of this notification's frame.
    Unsent {
        /// Seat of the member that the notification was for.
        seat: SeatId,
        /// Lowest `EMISSION_BITS` bits of its name.
        emission: EmissionId,
        /// Number of times that the socket had taken bytes again when it refused the first of this round.
        wakes: u64,
    },
    /// The member has left the relay.
    Leave {
        /// Seat of the member.
        seat: SeatId,
    },
    /// The socket of the relay takes bytes again: refused frames may be sent.
    Writable {
        /// The relay.
        relay: RelayId,
        /// Number of times that the socket has taken bytes again, this time included.
        wakes: u64,
    },
    /// The relay is gone, and all its members with it.
    Gone {
        /// The relay.
        relay: RelayId,
    },
}

impl MemberRequest {
    /// The relay that it concerns.
    pub fn relay(&self) -> RelayId {
        match self {
            MemberRequest::Attach { seat, .. }
            | MemberRequest::For { seat, .. }
            | MemberRequest::Unsent { seat, .. }
            | MemberRequest::Leave { seat } => seat.relay,
            MemberRequest::Writable { relay, .. } | MemberRequest::Gone { relay } => *relay,
        }
    }
}

/// Messages of the owner of a member to the home of its relay.
#[derive(Debug)]
pub enum MemberEvent {
    /// Write this.
    Say {
        /// Seat of the member that the event is for.
        seat: SeatId,
        /// Counts up whenever the owner begins again after a refusal.
        round: u64,
        /// Event to write.
        event: SessionEvent,
    },
    /// The command of this member has ended.
    Ready {
        /// Seat of the member.
        seat: SeatId,
    },
    /// No user has the UAID of this hello: the home mints a fresh one in its own slice.
    Stranger {
        /// The seat that is free again.
        seat: SeatId,
        /// Hello of the user agent.
        hello: Box<Hello>,
    },
    /// The session has ended on the owner's side, or could not begin.
    Ended {
        /// Seat of the member.
        seat: SeatId,
        /// Reason of the end.
        reason: CloseReason,
    },
}

impl MemberEvent {
    /// The seat that it concerns.
    pub fn seat(&self) -> SeatId {
        match self {
            MemberEvent::Say { seat, .. }
            | MemberEvent::Ready { seat }
            | MemberEvent::Stranger { seat, .. }
            | MemberEvent::Ended { seat, .. } => *seat,
        }
    }
}

/// The reply to both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberReply {
    /// It is done, or whom it names is gone, of which another mail tells.
    Taken,
    /// The socket takes no bytes.
    Refused {
        /// The notification that was not written; anything else was.
        emission: Option<EmissionId>,
        /// Number of times that the socket had taken bytes again when it refused the first of this round.
        wakes: u64,
    },
}

/// Bits of a seat's number that are a place among the members of its relay.
pub(super) const PLACE_BITS: u32 = limits::RELAY_MEMBERS_MAX.trailing_zeros();

const _: () = assert!(limits::RELAY_MEMBERS_MAX.is_power_of_two());
