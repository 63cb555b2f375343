//! Relays at their home, with their members, and what is left to do for the virtual connections of this shard's own
//! users.

mod relay;

use std::collections::{BTreeSet, VecDeque};

use crate::ids::{ConnId, ShardId};
use crate::time::Instant;

use super::super::command::Hello;
use super::super::member::{RelayId, VirtualConnId};
use super::super::slab::{Slab, SlabKey};

use relay::Relay;
pub(in crate::shard) use relay::{Detached, Visit};

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
        Some((relay.conn(), relay.owners()))
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

    // --- work for virtual connections --------------------------------------------------------------------

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
                relay.set_wakes(wakes.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Uaid;
    use crate::time::TimeSpan;

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
