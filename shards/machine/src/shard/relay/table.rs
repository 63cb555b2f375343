//! Relays and their members at their home.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{ConnId, ShardId, Uaid};
use crate::limits;
use crate::time::Instant;

use super::super::command::Hello;
use super::super::member::{PLACE_BITS, RelayId, SeatId};
use super::super::slab::Slab;

/// Relays of this home shard, and the pending work for the seats of its own users.
pub(in crate::shard) struct Relays {
    pub(super) table: Slab<Box<Relay>>,
    /// Number of members of all relays.
    pub(super) members: usize,
    /// Earliest time at which a ping or its pong is due.
    pub(super) due: Option<Instant>,
    /// Ended relays: the next seat of the walk over the seats of each.
    pub(super) ending: VecDeque<SeatId>,
    /// Relays that take bytes again: the next seat of each, and the count of wakes.
    pub(super) waking: VecDeque<(SeatId, u64)>,
    /// Seats whose last answer has come since.
    pub(super) resuming: VecDeque<ConnId>,
    /// Seats whose events found too many waiting for credit, and whose sessions have not ended yet.
    pub(super) choked: VecDeque<ConnId>,
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

    /// Returns true if nothing is left to do for seats.
    pub fn idle(&self) -> bool {
        let told = self.ending.is_empty() && self.waking.is_empty() && self.resuming.is_empty();
        told && self.choked.is_empty()
    }

    /// Returns the time at which `relay_turn` is due.
    pub fn due(&self) -> Option<Instant> {
        if self.idle() { self.due } else { Some(Instant(0)) }
    }
}

#[cfg(test)]
impl Relays {
    /// Sets the count of wakes of all relays, as if their sockets had taken bytes again this often.
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

/// A connection that speaks for several user agents. Home shard only.
pub(super) struct Relay {
    pub conn: ConnId,
    /// Members by place; `members.len() - free.len()` are attached.
    pub members: Vec<Option<Member>>,
    free: Vec<usize>,
    pub by_uaid: BTreeMap<Uaid, SeatId>,
    /// Number of attachments so far: no two seats have the same number.
    attachments: u64,
    /// Member with a command under way; one at a time, as on any connection.
    pub awaited: Option<SeatId>,
    /// True while the socket takes no bytes.
    pub blocked: bool,
    /// Wakes of the socket so far: how often it has taken bytes again.
    pub wakes: u64,
    /// Owners with a refused notification, to notify when the socket takes bytes.
    pub refused: BTreeSet<ShardId>,
    pub ping_due: Option<Instant>,
    pub pong_due: Option<Instant>,
    /// Time at which the last `{}` was answered.
    pub client_ping: Option<Instant>,
}

/// A user agent of a relay.
pub(super) struct Member {
    pub seat: SeatId,
    pub owner: ShardId,
    /// Requested UAID until its hello is answered, then the granted one.
    pub uaid: Uaid,
    /// True if the relay knows the member by that UAID.
    pub named: bool,
    /// Round of the last event that was written.
    pub round: u64,
    /// Refused round, and `Relay::wakes` at its first refusal.
    pub refused: Option<(u64, u64)>,
}

impl Member {
    /// Refuses this round from here on. Returns the `wakes` that all its refusals carry.
    pub fn refuse(&mut self, round: u64, wakes: u64) -> u64 {
        match self.refused {
            Some((refused, since)) if refused == round => since,
            _ => {
                self.refused = Some((round, wakes));
                wakes
            }
        }
    }

    pub fn refuses(&self, round: u64) -> bool {
        self.refused.is_some_and(|(refused, _)| refused == round)
    }
}

impl Relay {
    pub fn new(conn: ConnId, ping_due: Option<Instant>) -> Relay {
        Relay {
            conn,
            members: Vec::new(),
            free: Vec::new(),
            by_uaid: BTreeMap::new(),
            attachments: 0,
            awaited: None,
            blocked: false,
            wakes: 0,
            refused: BTreeSet::new(),
            ping_due,
            pong_due: None,
            client_ping: None,
        }
    }

    pub fn attached(&self) -> usize {
        self.members.len() - self.free.len()
    }

    pub fn add(&mut self, relay: RelayId, owner: ShardId, hello: &Hello) -> SeatId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        assert!(place < limits::RELAY_MEMBERS_MAX, "the configuration keeps members within their places");
        self.attachments += 1;
        let seat = SeatId { relay, number: (self.attachments << PLACE_BITS) | place as u64 };
        let uaid = hello.uaid.unwrap_or(hello.fresh);
        let named = hello.uaid.is_some();
        self.members[place] = Some(Member { seat, owner, uaid, named, round: 0, refused: None });
        self.by_uaid.insert(uaid, seat);
        seat
    }

    pub fn member(&mut self, seat: SeatId) -> Option<&mut Member> {
        self.members.get_mut(seat.place())?.as_mut().filter(|member| member.seat == seat)
    }

    /// Returns an attached member.
    ///
    /// # Panics
    /// If it has left.
    pub fn live_member(&mut self, seat: SeatId) -> &mut Member {
        // Invariant: the caller has the seat from the index of members, or has asked for it in this step.
        self.member(seat).expect("a member that is there")
    }

    pub fn remove(&mut self, seat: SeatId) -> Option<Member> {
        self.member(seat)?;
        let member = self.members[seat.place()].take()?;
        self.free.push(seat.place());
        self.by_uaid.remove(&member.uaid);
        Some(member)
    }

    /// Sets the UAID of a member after its hello was answered.
    pub fn rename(&mut self, seat: SeatId, uaid: Uaid) {
        let member = self.live_member(seat);
        let before = std::mem::replace(&mut member.uaid, uaid);
        member.named = true;
        self.by_uaid.remove(&before);
        self.by_uaid.insert(uaid, seat);
    }

    /// Returns the time of its next visit.
    pub fn due(&self) -> Option<Instant> {
        self.pong_due.or(self.ping_due)
    }
}
