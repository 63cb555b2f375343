//! Relay sessions: one connection that speaks for several user agents (PROTOCOL.md 13).
//!
//! The socket of a relay stays on the shard where it was opened, its *home*. Whom it speaks for are its *members*. The
//! session of a member lives with the owner of its UAID as any session does, on a *seat*: a connection by name only.
//! [`home`] is what is done where the socket is, to relays and members as in [`table`], [`pings`] of the connection
//! beside it; [`owner`] is what is done for seats, [`seats`] their table.
//!
//! Home and owner talk by mail under reply credit, also when they are one shard: then without the mail.
//! [`MemberRequest`] causes [`MemberEvent`]s and its reply, a `MemberEvent` causes its reply only.
//!
//! **A notification that the socket refuses.** The home refuses everything of that member's *round* from there on,
//! also what is still on its way, so nothing overtakes what was refused. It counts how often its socket took bytes
//! again and tells every owner it refused; a refusal carries the count at the first of its round. The owner begins
//! its next round when it has heard of a greater count and each notification it sent is answered: then it knows all
//! that was refused, and sends it in order.

mod home;
mod owner;
mod pings;
mod seats;
mod table;

use std::collections::VecDeque;

use crate::ids::{ConnId, EmissionId, ShardId, Uaid};
use crate::limits;
use crate::time::Instant;

use super::command::{CloseReason, Command, Event, Hello};
use super::slab::{Ref, Slab};

pub(super) use seats::{Seats, is_seat};
use table::Relay;

/// What a relay asks of its home.
#[derive(Debug)]
pub enum RelayCommand {
    /// The first message of its WebSocket: "I speak for others". [`RelayEvent::Opened`] answers.
    Open,
    /// One more user agent. [`Event::Hello`] in [`RelayEvent::Of`] answers, or [`RelayEvent::Bye`].
    Attach(Box<Hello>),
    /// What a member asks; answered as for a session of its own.
    For {
        /// Which member.
        uaid: Uaid,
        /// Register, unregister, ack, nack or broadcast_subscribe.
        command: Box<Command>,
    },
    /// The relay speaks for this user agent no more. [`RelayEvent::Bye`] answers, also when it did not.
    Bye(Uaid),
}

/// What is written on the socket of a relay.
#[derive(Debug)]
pub enum RelayEvent {
    /// It is a relay from now on.
    Opened {
        /// How many members it may have at a time.
        members: u16,
    },
    /// As it would be written on a session of this member's own.
    Of {
        /// Which member.
        uaid: Uaid,
        /// The reply to hello, register or unregister, a notification, or a broadcast.
        event: Event,
    },
    /// This user agent is no member any more, or could not become one.
    Bye {
        /// Which; `None` when a hello without a UAID failed.
        uaid: Option<Uaid>,
        /// Why; `PeerClosed` when the relay asked for it.
        reason: CloseReason,
    },
}

/// One relay connection of this process, never reused in a boot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RelayId {
    home: ShardId,
    at: Ref,
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
    /// Which relay.
    pub relay: RelayId,
    /// `attachments of this relay before it << PLACE_BITS | place among its members`.
    number: u64,
}

impl SeatId {
    /// Where a walk over the seats of this relay goes on.
    fn next(self) -> SeatId {
        SeatId { number: self.number + 1, ..self }
    }

    fn place(self) -> usize {
        self.number as usize & (limits::RELAY_MEMBERS_MAX - 1)
    }
}

/// What the home says to the owner of a member.
#[derive(Debug)]
pub enum MemberRequest {
    /// Take a seat and work on this hello. Answered by `Said` of a hello or `Ended`, then `Ready`; or by `Stranger`.
    Attach {
        /// The new seat.
        seat: SeatId,
        /// What the user agent said.
        hello: Box<Hello>,
    },
    /// A command of an attached member. `Ready` follows, or `Ended`.
    For {
        /// Whose.
        seat: SeatId,
        /// What it asks.
        command: Box<Command>,
    },
    /// The socket took nothing of this notification's frame.
    Unsent {
        /// Whose notification.
        seat: SeatId,
        /// Which, its lowest `EMISSION_BITS` bits.
        emission: EmissionId,
        /// How often the socket had taken bytes again when it refused the first of this round.
        wakes: u64,
    },
    /// The member is no member any more.
    Leave {
        /// Which.
        seat: SeatId,
    },
    /// The relay's socket takes bytes again: what was refused may be sent.
    Writable {
        /// Which relay.
        relay: RelayId,
        /// How often, with this time.
        wakes: u64,
    },
    /// The relay is gone, and all its members with it.
    Gone {
        /// Which relay.
        relay: RelayId,
    },
}

impl MemberRequest {
    /// Which relay it is about.
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

/// What the owner of a member says to the home of its relay.
#[derive(Debug)]
pub enum MemberEvent {
    /// Write this.
    Say {
        /// Whose words.
        seat: SeatId,
        /// Counts up whenever the owner begins again after a refusal.
        round: u64,
        /// What to write.
        event: Event,
    },
    /// The command of this member is done with.
    Ready {
        /// Whose.
        seat: SeatId,
    },
    /// Nobody has the UAID of this hello: the home mints a fresh one in its own slice.
    Stranger {
        /// The seat that is free again.
        seat: SeatId,
        /// What the user agent said.
        hello: Box<Hello>,
    },
    /// The session has ended on the owner's side, or could not begin.
    Ended {
        /// Whose.
        seat: SeatId,
        /// Why.
        reason: CloseReason,
    },
}

impl MemberEvent {
    /// Whose seat it is about.
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
        /// How often the socket had taken bytes again when it refused the first of this round.
        wakes: u64,
    },
}

/// Relays of which this shard is the home, and what it still has to do for seats it owns.
pub(super) struct Relays {
    table: Slab<Box<Relay>>,
    /// Members of all of them.
    members: usize,
    /// When a ping or its pong is due, at the earliest.
    due: Option<Instant>,
    /// Relays that are gone: where the walk over the seats of each is.
    ending: VecDeque<SeatId>,
    /// Relays that take bytes again, likewise, and how often they have.
    waking: VecDeque<(SeatId, u64)>,
    /// Seats whose last answer has come since.
    resuming: VecDeque<ConnId>,
    /// Seats whose words found too many waiting for credit, and whose sessions have not ended yet.
    choked: VecDeque<ConnId>,
}

impl Relays {
    pub fn new() -> Relays {
        Relays {
            table: Slab::new(),
            members: 0,
            due: None,
            ending: VecDeque::new(),
            waking: VecDeque::new(),
            resuming: VecDeque::new(),
            choked: VecDeque::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn members(&self) -> usize {
        self.members
    }

    /// Nothing is left to do for seats.
    pub fn idle(&self) -> bool {
        let told = self.ending.is_empty() && self.waking.is_empty() && self.resuming.is_empty();
        told && self.choked.is_empty()
    }

    /// When `relay_turn` is due.
    pub fn due(&self) -> Option<Instant> {
        if self.idle() { self.due } else { Some(Instant(0)) }
    }
}

#[cfg(test)]
impl Relays {
    /// As if the sockets of all relays had taken bytes again this often.
    pub fn set_wakes(&mut self, wakes: u32) {
        for index in 0..self.table.end() {
            if let Some((at, _)) = self.table.at(index)
                && let Some(relay) = self.table.get_mut(at)
            {
                relay.wakes = wakes.into();
            }
        }
    }
}

/// An emission on a relay's socket: the member's place above, the lowest bits of the session's own emission below. A
/// window holds far fewer than `2^EMISSION_BITS`.
fn pack(place: usize, emission: EmissionId) -> EmissionId {
    EmissionId(((place as u32) << EMISSION_BITS) | (emission.0 & EMISSION_MASK))
}

/// Whether a socket that was handed `ours` names it by `theirs`: on a seat only the lowest bits come back.
pub(super) fn same_emission(conn: ConnId, ours: EmissionId, theirs: EmissionId) -> bool {
    if is_seat(conn) { (ours.0 ^ theirs.0) & EMISSION_MASK == 0 } else { ours == theirs }
}

const PLACE_BITS: u32 = limits::RELAY_MEMBERS_MAX.trailing_zeros();
const EMISSION_BITS: u32 = 32 - PLACE_BITS;
const EMISSION_MASK: u32 = (1 << EMISSION_BITS) - 1;

const _: () = assert!(limits::RELAY_MEMBERS_MAX.is_power_of_two());
const _: () = assert!(limits::WINDOW_MAX as u32 * 16 < EMISSION_MASK);
