//! Relays and their members, as their home knows them.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ConnId, ShardId, Uaid};
use crate::limits;
use crate::time::Instant;

use super::super::command::Hello;
use super::{PLACE_BITS, RelayId, SeatId};

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
    /// Whether the relay knows it by that name.
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

    pub fn remove(&mut self, seat: SeatId) -> Option<Member> {
        self.member(seat)?;
        let member = self.members[seat.place()].take()?;
        self.free.push(seat.place());
        self.by_uaid.remove(&member.uaid);
        Some(member)
    }

    /// The hello of a member is answered: this is its UAID.
    pub fn rename(&mut self, seat: SeatId, uaid: Uaid) {
        let Some(member) = self.member(seat) else { return };
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
