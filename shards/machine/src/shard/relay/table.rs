//! Relays and their members, as their home knows them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{ConnId, ShardId, Uaid};
use crate::limits;
use crate::time::Instant;

use super::super::command::Hello;
use super::super::member::{PLACE_BITS, RelayId, SeatId};
use super::super::slab::Slab;

/// Relays of which this shard is the home, and what it still has to do for seats it owns.
pub(in crate::shard) struct Relays {
    pub(super) table: Slab<Box<Relay>>,
    /// Members of all of them.
    pub(super) members: usize,
    /// Earliest time at which a ping or its pong is due.
    pub(super) due: Option<Instant>,
    /// Relays that are gone: where the walk over the seats of each is.
    pub(super) ending: VecDeque<SeatId>,
    /// Relays that take bytes again, likewise, and how often they have.
    pub(super) waking: VecDeque<(SeatId, u64)>,
    /// Seats whose last answer has come since.
    pub(super) resuming: VecDeque<ConnId>,
    /// Seats whose words found too many waiting for credit, and whose sessions have not ended yet.
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

    /// Nothing is left to do for seats.
    pub fn idle(&self) -> bool {
        let told = self.ending.is_empty() && self.waking.is_empty() && self.resuming.is_empty();
        told && self.choked.is_empty()
    }

    /// Time at which `relay_turn` is due.
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

/// A connection that speaks for several user agents. Home shard only.
pub(super) struct Relay {
    pub conn: ConnId,
    /// By place; `members.len() - free.len()` are there.
    pub members: Vec<Option<Member>>,
    free: Vec<usize>,
    pub by_uaid: BTreeMap<Uaid, SeatId>,
    /// Attachments so far: no two seats have one number.
    attachments: u64,
    /// Whose command is under way; one at a time, as on any connection.
    pub awaited: Option<SeatId>,
    /// The socket takes no bytes.
    pub blocked: bool,
    /// How often it has taken bytes again.
    pub wakes: u64,
    /// Owners that were refused something, to be told when the socket takes bytes.
    pub refused: BTreeSet<ShardId>,
    pub ping_due: Option<Instant>,
    pub pong_due: Option<Instant>,
    /// When the last `{}` was answered.
    pub client_ping: Option<Instant>,
}

/// A user agent that a relay speaks for.
pub(super) struct Member {
    pub seat: SeatId,
    pub owner: ShardId,
    /// The UAID it asked for until its hello is answered, then the one it has.
    pub uaid: Uaid,
    /// Returns true if the relay knows it by that name.
    pub named: bool,
    /// Of what was written last.
    pub round: u64,
    /// The round that is refused, and `Relay::wakes` when its first word was.
    pub refused: Option<(u64, u64)>,
}

impl Member {
    /// Refuses this round from here on; which `wakes` all its refusals carry.
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

    /// A member that is there.
    ///
    /// # Panics
    /// It has left.
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

    /// The hello of a member is answered: this is its UAID.
    pub fn rename(&mut self, seat: SeatId, uaid: Uaid) {
        let member = self.live_member(seat);
        let before = std::mem::replace(&mut member.uaid, uaid);
        member.named = true;
        self.by_uaid.remove(&before);
        self.by_uaid.insert(uaid, seat);
    }

    /// When it must be looked at next.
    pub fn due(&self) -> Option<Instant> {
        self.pong_due.or(self.ping_due)
    }
}
