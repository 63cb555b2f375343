//! One relay with its members: refused notifications while its socket takes no bytes, and pings.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ConnId, ShardId, Uaid};
use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::super::command::Hello;
use super::super::super::member::{PLACE_BITS, RelayId, VirtualConnId};

/// A connection that speaks for several user agents. Home shard only.
pub(in crate::shard) struct Relay {
    conn: ConnId,
    /// Members by place; `members.len() - free.len()` are attached.
    members: Vec<Option<Member>>,
    free: Vec<usize>,
    by_uaid: BTreeMap<Uaid, VirtualConnId>,
    /// Number of attachments so far: no two virtual connections have the same number.
    attachments: u64,
    /// Member with a command under way; one at a time, as on any connection.
    awaited: Option<VirtualConnId>,
    /// True while the socket takes no bytes.
    blocked: bool,
    /// Wakes of the socket so far: how often it has taken bytes again.
    wakes: u64,
    /// Owners with a refused notification, to notify when the socket takes bytes.
    refused: BTreeSet<ShardId>,
    ping_due: Option<Instant>,
    pong_due: Option<Instant>,
    /// Time at which the last `{}` was answered.
    client_ping: Option<Instant>,
}

/// A user agent of a relay.
struct Member {
    vconn: VirtualConnId,
    owner: ShardId,
    /// Requested UAID until its hello is answered, then the granted one.
    uaid: Uaid,
    /// True if the relay knows the member by that UAID.
    named: bool,
    /// Round of the last event that was written.
    round: u64,
    /// Refused round, and `Relay::wakes` at its first refusal.
    refused: Option<(u64, u64)>,
}

/// Leftovers of a member that ended.
pub(in crate::shard) struct Detached {
    pub conn: ConnId,
    pub owner: ShardId,
    /// Its UAID, if the relay knows it.
    pub uaid: Option<Uaid>,
    /// Its command was under way.
    pub awaited: bool,
}

/// Result of a visit for pings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Visit {
    Nothing,
    /// A ping is due, and counts as sent.
    Ping,
    /// No pong came in time.
    Silent,
}

impl Member {
    /// Refuses this round from here on. Returns the `wakes` that all its refusals carry.
    fn refuse(&mut self, round: u64, wakes: u64) -> u64 {
        match self.refused {
            Some((refused, since)) if refused == round => since,
            _ => {
                self.refused = Some((round, wakes));
                wakes
            }
        }
    }

    fn refuses(&self, round: u64) -> bool {
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

    pub fn conn(&self) -> ConnId {
        self.conn
    }

    pub fn attached(&self) -> usize {
        self.members.len() - self.free.len()
    }

    /// Owners of the members.
    pub fn owners(&self) -> BTreeSet<ShardId> {
        self.members.iter().flatten().map(|member| member.owner).collect()
    }

    pub fn seat_of(&self, uaid: &Uaid) -> Option<VirtualConnId> {
        self.by_uaid.get(uaid).copied()
    }

    pub fn add(&mut self, relay: RelayId, owner: ShardId, hello: &Hello) -> VirtualConnId {
        let place = self.free.pop().unwrap_or_else(|| {
            self.members.push(None);
            self.members.len() - 1
        });
        assert!(place < limits::RELAY_MEMBERS_MAX, "the configuration keeps members within their places");
        self.attachments += 1;
        let vconn = VirtualConnId { relay, number: (self.attachments << PLACE_BITS) | place as u64 };
        let uaid = hello.uaid.unwrap_or(hello.fresh);
        let named = hello.uaid.is_some();
        self.members[place] = Some(Member { vconn, owner, uaid, named, round: 0, refused: None });
        self.by_uaid.insert(uaid, vconn);
        self.awaited = Some(vconn);
        vconn
    }

    fn member(&mut self, vconn: VirtualConnId) -> Option<&mut Member> {
        self.members.get_mut(vconn.place())?.as_mut().filter(|member| member.vconn == vconn)
    }

    /// Returns an attached member.
    ///
    /// # Panics
    /// If it has left.
    fn live_member(&mut self, vconn: VirtualConnId) -> &mut Member {
        // Invariant: the caller has the virtual connection from the index of members, or has asked for it in this step.
        self.member(vconn).expect("a member that is there")
    }

    pub fn has(&self, vconn: VirtualConnId) -> bool {
        self.members.get(vconn.place()).is_some_and(|place| place.as_ref().is_some_and(|member| member.vconn == vconn))
    }

    pub fn remove(&mut self, vconn: VirtualConnId) -> Option<Detached> {
        self.member(vconn)?;
        let member = self.members[vconn.place()].take()?;
        self.free.push(vconn.place());
        self.by_uaid.remove(&member.uaid);
        let awaited = self.answered(vconn);
        let uaid = member.named.then_some(member.uaid);
        Some(Detached { conn: self.conn, owner: member.owner, uaid, awaited })
    }

    /// Sets the UAID of a member after its hello was answered.
    pub fn rename(&mut self, vconn: VirtualConnId, uaid: Uaid) {
        let member = self.live_member(vconn);
        let before = std::mem::replace(&mut member.uaid, uaid);
        member.named = true;
        self.by_uaid.remove(&before);
        self.by_uaid.insert(uaid, vconn);
    }

    /// UAID of a member that is there.
    pub fn uaid_of(&mut self, vconn: VirtualConnId) -> Uaid {
        self.live_member(vconn).uaid
    }

    /// Gives a member another owner. Returns false if it has left.
    pub fn hand_over(&mut self, vconn: VirtualConnId, owner: ShardId) -> bool {
        let Some(member) = self.member(vconn) else { return false };
        member.owner = owner;
        true
    }

    /// A command of a member that is there goes to its owner, which is returned.
    pub fn ask(&mut self, vconn: VirtualConnId) -> ShardId {
        self.awaited = Some(vconn);
        self.live_member(vconn).owner
    }

    /// The owner has answered this member. Returns true if its command was under way.
    pub fn answered(&mut self, vconn: VirtualConnId) -> bool {
        let awaited = self.awaited == Some(vconn);
        if awaited {
            self.awaited = None;
        }
        awaited
    }

    // --- a socket that takes no bytes --------------------------------------------------------------------

    pub fn block(&mut self) {
        self.blocked = true;
    }

    /// The socket takes bytes again. Returns how often it has by now, and the owners to notify.
    pub fn unblock(&mut self) -> (u64, BTreeSet<ShardId>) {
        self.blocked = false;
        self.wakes += 1;
        (self.wakes, std::mem::take(&mut self.refused))
    }

    /// Takes a notification of this round for a member that is there. Returns the `wakes` of its refusal if the socket
    /// takes none, or the round is refused.
    pub fn refuse_notification(&mut self, vconn: VirtualConnId, round: u64) -> Option<u64> {
        if self.blocked || self.live_member(vconn).refuses(round) {
            return Some(self.refuse(vconn, round));
        }
        let member = self.live_member(vconn);
        (member.round, member.refused) = (round, None);
        None
    }

    /// Takes a broadcast for a member that is there: it is written in any case, and a socket that takes no bytes
    /// refuses what follows. Returns the `wakes` of that refusal.
    pub fn refuse_after_broadcast(&mut self, vconn: VirtualConnId, round: u64) -> Option<u64> {
        self.blocked.then(|| self.refuse(vconn, round))
    }

    /// The socket took nothing of a frame of the member at this place. Returns its virtual connection, its owner and
    /// the `wakes` of the refusal; `None` if it has left.
    pub fn refuse_unsent(&mut self, place: usize) -> Option<(VirtualConnId, ShardId, u64)> {
        let member = self.members.get(place)?.as_ref()?;
        let (vconn, owner, round) = (member.vconn, member.owner, member.round);
        Some((vconn, owner, self.refuse(vconn, round)))
    }

    fn refuse(&mut self, vconn: VirtualConnId, round: u64) -> u64 {
        let wakes = self.wakes;
        let member = self.live_member(vconn);
        let (owner, wakes) = (member.owner, member.refuse(round, wakes));
        self.refused.insert(owner);
        wakes
    }

    // --- pings -------------------------------------------------------------------------------------------

    /// Takes a `{}` of the relay. Returns false if it comes too soon after the last one.
    pub fn take_client_ping(&mut self, now: Instant, min_interval: TimeSpan) -> bool {
        if self.client_ping.is_some_and(|at| now.since(at) < min_interval) {
            return false;
        }
        self.client_ping = Some(now);
        true
    }

    pub fn pong(&mut self) {
        self.pong_due = None;
    }

    /// Postpones the next ping to `due`, if there is one.
    pub fn postpone_ping(&mut self, due: Instant) {
        self.ping_due = self.ping_due.map(|_| due);
    }

    /// Postpones a pong that was due at `since` or later to `due`.
    pub fn postpone_pong(&mut self, since: Instant, due: Instant) {
        if self.pong_due.is_some_and(|at| at >= since) {
            self.pong_due = self.pong_due.max(Some(due));
        }
    }

    /// Looks for a ping or a pong that is due. A silence counts only after the shard has read its sockets, which it has
    /// up to `input_horizon`.
    pub fn visit(&mut self, now: Instant, input_horizon: Instant, (interval, timeout): (TimeSpan, TimeSpan)) -> Visit {
        if self.pong_due.is_some_and(|at| at <= now && at <= input_horizon) {
            return Visit::Silent;
        }
        if self.pong_due.is_none() && self.ping_due.is_some_and(|at| at <= now) {
            self.ping_due = Some(now.after(interval));
            self.pong_due = Some(now.after(timeout));
            return Visit::Ping;
        }
        Visit::Nothing
    }

    /// Returns the time of its next visit.
    pub fn due(&self) -> Option<Instant> {
        self.pong_due.or(self.ping_due)
    }
}

#[cfg(test)]
impl Relay {
    pub fn set_wakes(&mut self, wakes: u64) {
        self.wakes = wakes;
    }
}
