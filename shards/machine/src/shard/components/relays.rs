//! Relays at their home, with their members, and what is left to do for the virtual connections of this shard's own
//! users.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{ConnId, ShardId, Uaid};
use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::command::Hello;
use super::super::member::{PLACE_BITS, RelayId, VirtualConnId};
use super::super::slab::{Slab, SlabKey};

/// Relays of this home shard, and the pending work for the virtual connections of its own users.
pub(in crate::shard) struct Relays {
    table: Slab<Box<Relay>>,
    /// Number of members of all relays.
    members: usize,
    /// Earliest time at which a ping or its pong is due.
    due: Option<Instant>,
    /// Ended relays: the next virtual connection of the walk over the virtual connections of each.
    ending: VecDeque<VirtualConnId>,
    /// Relays that take bytes again: the next virtual connection of each, and the count of wakes.
    waking: VecDeque<(VirtualConnId, u64)>,
    /// Virtual connections whose last answer has come since.
    resuming: VecDeque<ConnId>,
    /// Virtual connections whose events found too many waiting for credit, and whose sessions have not ended yet.
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

    /// Returns true if nothing is left to do for virtual connections.
    pub fn idle(&self) -> bool {
        let told = self.ending.is_empty() && self.waking.is_empty() && self.resuming.is_empty();
        told && self.choked.is_empty()
    }

    /// Returns the time at which `relay_turn` is due.
    pub fn due(&self) -> Option<Instant> {
        if self.idle() { self.due } else { Some(Instant(0)) }
    }

    // --- the table ---------------------------------------------------------------------------------------

    pub fn open(&mut self, conn: ConnId, ping_due: Option<Instant>) -> SlabKey {
        self.due = [self.due, ping_due].into_iter().flatten().min();
        self.table.insert(Box::new(Relay::new(conn, ping_due)))
    }

    /// The relay at an index, if there is one.
    pub fn at(&self, index: u32) -> Option<(SlabKey, &Relay)> {
        self.table.at(index).map(|(at, relay)| (at, &**relay))
    }

    pub fn get_mut(&mut self, at: SlabKey) -> Option<&mut Relay> {
        self.table.get_mut(at).map(|relay| &mut **relay)
    }

    pub fn get(&self, at: SlabKey) -> Option<&Relay> {
        self.table.get(at).map(|relay| &**relay)
    }

    /// A relay that has not ended.
    ///
    /// # Panics
    /// It has.
    pub fn live(&mut self, at: SlabKey) -> &mut Relay {
        self.table.live_mut(at)
    }

    /// Indexes below this one may have a relay.
    pub fn end(&self) -> u32 {
        self.table.end()
    }

    /// Adds a member, whose hello is the command under way.
    pub fn attach(&mut self, relay: RelayId, owner: ShardId, hello: &Hello) -> VirtualConnId {
        self.members += 1;
        self.live(relay.at).add(relay, owner, hello)
    }

    /// Forgets a member that is there.
    pub fn detach(&mut self, vconn: VirtualConnId) -> Option<Detached> {
        let detached = self.get_mut(vconn.relay.at)?.remove(vconn)?;
        self.members -= 1;
        Some(detached)
    }

    /// Forgets a relay with its members. Returns its connection, and the owners of the members.
    pub fn remove(&mut self, at: SlabKey) -> Option<(ConnId, BTreeSet<ShardId>)> {
        let relay = self.table.remove(at)?;
        self.members -= relay.attached();
        Some((relay.conn, relay.members.iter().flatten().map(|member| member.owner).collect()))
    }

    // --- pings -------------------------------------------------------------------------------------------

    /// Returns true if a visit of all relays is due, and begins it: `visited` ends it.
    pub fn begin_visit(&mut self, now: Instant) -> bool {
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            // Ends of relays call this again while owners are notified.
            self.due = None;
        }
        is_due
    }

    /// All relays were visited, and the next visit is due then.
    pub fn visited(&mut self, due: Option<Instant>) {
        self.due = due;
    }

    // --- work for virtual connections
    // ----------------------------------------------------------------------------------

    pub fn end_seats(&mut self, relay: RelayId) {
        self.ending.push_back(VirtualConnId { relay, number: 0 });
    }

    /// Takes the place where the walk over the virtual connections of an ended relay goes on; `go_on_ending` puts it
    /// back.
    pub fn next_ending(&mut self) -> Option<VirtualConnId> {
        self.ending.pop_front()
    }

    pub fn go_on_ending(&mut self, vconn: VirtualConnId) {
        self.ending.push_front(vconn);
    }

    pub fn wake_virtual_conns(&mut self, relay: RelayId, wakes: u64) {
        self.waking.push_back((VirtualConnId { relay, number: 0 }, wakes));
    }

    /// Takes the place where the walk over the virtual connections of a relay that takes bytes again goes on;
    /// `go_on_waking` puts it back.
    pub fn next_waking(&mut self) -> Option<(VirtualConnId, u64)> {
        self.waking.pop_front()
    }

    pub fn go_on_waking(&mut self, vconn: VirtualConnId, wakes: u64) {
        self.waking.push_front((vconn, wakes));
    }

    pub fn resume(&mut self, conn: ConnId) {
        self.resuming.push_back(conn);
    }

    pub fn next_resuming(&mut self) -> Option<ConnId> {
        self.resuming.pop_front()
    }

    pub fn choke(&mut self, conn: ConnId) {
        self.choked.push_back(conn);
    }

    pub fn next_choked(&mut self) -> Option<ConnId> {
        self.choked.pop_front()
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
    fn new(conn: ConnId, ping_due: Option<Instant>) -> Relay {
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

    pub fn seat_of(&self, uaid: &Uaid) -> Option<VirtualConnId> {
        self.by_uaid.get(uaid).copied()
    }

    fn add(&mut self, relay: RelayId, owner: ShardId, hello: &Hello) -> VirtualConnId {
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

    fn remove(&mut self, vconn: VirtualConnId) -> Option<Detached> {
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

    /// Postpones a pong that was due at `since` or later.
    pub fn postpone_pong(&mut self, since: Instant, due: Instant) {
        if self.pong_due.is_some_and(|at| at >= since) {
            self.pong_due = Some(due);
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
mod tests {
    use super::*;

    const CONN: ConnId = ConnId { slot: 1, generation: 1 };

    fn uaid(n: u8) -> Uaid {
        Uaid([n; 16])
    }

    /// A relay with one member for each of these owners.
    fn relay(owners: &[u16]) -> (Relays, RelayId, Vec<VirtualConnId>) {
        let mut relays = Relays::new();
        let id = RelayId { home: ShardId(0), at: relays.open(CONN, Some(Instant(100))) };
        let attach = |(n, owner): (usize, &u16)| {
            let hello = Hello::new(None, uaid(n as u8));
            relays.attach(id, ShardId(*owner), &hello)
        };
        let virtual_conns = owners.iter().enumerate().map(attach).collect();
        (relays, id, virtual_conns)
    }

    #[test]
    fn a_member_is_counted_until_it_or_its_relay_ends() {
        let (mut relays, id, virtual_conns) = relay(&[4, 5, 5]);
        assert_eq!((relays.members(), relays.live(id.at).attached()), (3, 3));
        let left = relays.detach(virtual_conns[2]).unwrap();
        // The relay has not heard of that UAID, and the hello was the last command.
        assert_eq!((left.owner, left.uaid, left.awaited), (ShardId(5), None, true));
        assert!(relays.detach(virtual_conns[2]).is_none() && !relays.live(id.at).has(virtual_conns[2]));
        let again = relays.attach(id, ShardId(5), &Hello::new(Some(uaid(9)), uaid(9)));
        assert!(
            again.place() == virtual_conns[2].place() && again != virtual_conns[2],
            "a place is taken again, a virtual connection never"
        );
        assert_eq!(relays.live(id.at).seat_of(&uaid(9)), Some(again));
        assert_eq!(relays.remove(id.at), Some((CONN, BTreeSet::from([ShardId(4), ShardId(5)]))));
        assert_eq!((relays.members(), relays.len()), (0, 0));
    }

    #[test]
    fn a_refusal_holds_for_its_round_and_carries_the_wakes_of_its_first() {
        let (mut relays, id, virtual_conns) = relay(&[4, 5]);
        let relay = relays.live(id.at);
        assert_eq!(relay.refuse_notification(virtual_conns[0], 0), None);
        relay.block();
        assert_eq!(relay.refuse_notification(virtual_conns[0], 0), Some(0));
        assert_eq!(relay.refuse_after_broadcast(virtual_conns[1], 0), Some(0));
        assert_eq!(relay.unblock(), (1, BTreeSet::from([ShardId(4), ShardId(5)])));
        // Its round goes on being refused, at the count of wakes with which that began; the next round is taken.
        assert_eq!(relay.refuse_notification(virtual_conns[0], 0), Some(0));
        assert_eq!(relay.refuse_notification(virtual_conns[0], 1), None);
        assert_eq!(relay.refuse_unsent(virtual_conns[0].place()), Some((virtual_conns[0], ShardId(4), 1)));
        assert_eq!(relay.refuse_notification(virtual_conns[0], 1), Some(1));
        assert_eq!(relay.refuse_after_broadcast(virtual_conns[0], 1), None);
    }

    #[test]
    fn a_silence_counts_after_the_shard_has_read_its_sockets() {
        let (mut relays, id, _) = relay(&[]);
        let (at, spans) = (Instant, (TimeSpan(50), TimeSpan(20)));
        assert!(!relays.begin_visit(at(99)) && relays.begin_visit(at(100)) && !relays.begin_visit(at(100)));
        let relay = relays.live(id.at);
        assert_eq!(relay.visit(at(99), at(99), spans), Visit::Nothing);
        assert_eq!(relay.visit(at(100), at(100), spans), Visit::Ping);
        assert_eq!((relay.due(), relay.visit(at(110), at(110), spans)), (Some(at(120)), Visit::Nothing));
        assert_eq!(relay.visit(at(120), at(119), spans), Visit::Nothing);
        assert_eq!(relay.visit(at(120), at(120), spans), Visit::Silent);
        relay.pong();
        assert_eq!((relay.due(), relay.visit(at(149), at(149), spans)), (Some(at(150)), Visit::Nothing));
        assert!(relay.take_client_ping(at(150), TimeSpan(10)) && !relay.take_client_ping(at(159), TimeSpan(10)));
    }
}
