//! Tickets of operations at storage and of calls to other nodes, and the operations that wait for one.
//!
//! Operations that can be refused (a hello, a POST) need a free ticket. Those that must happen (saving a ledger,
//! deleting what was acked) wait in a backlog instead and are tried again after an error.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use crate::ids::{StoreTicket, Uaid};
use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::slab::{Slab, SlabKey};
use super::super::store::StoreOp;

/// Tickets and the backlog of one shard. `W` is the work that a ticket stands for.
pub(in crate::shard) struct Tickets<W> {
    open: Slab<W>,
    /// Must-do operations without a ticket, oldest first, and when to try them. Bounded by the ledgers and
    /// windows they come from.
    deferred_ops: VecDeque<(Instant, W, StoreOp)>,
    /// Number of operations of each user in the backlog.
    waiting: BTreeMap<Uaid, u32>,
}

impl<W> Tickets<W> {
    pub fn new() -> Tickets<W> {
        Tickets { open: Slab::new(), deferred_ops: VecDeque::new(), waiting: BTreeMap::new() }
    }

    /// Returns true if an operation that can be refused may be submitted: a quarter is kept for what must happen.
    pub fn room(&self) -> bool {
        self.open.len() < limits::STORE_TICKETS_MAX / 4 * 3
    }

    /// No ticket is out, and no operation waits for one.
    pub fn idle(&self) -> bool {
        self.open.is_empty() && self.deferred_ops.is_empty()
    }

    /// Returns true if an operation with a ticket is like that.
    pub fn has(&self, is_like: impl Fn(&W) -> bool) -> bool {
        (0..self.open.end()).filter_map(|index| self.open.at(index)).any(|(_, work)| is_like(work))
    }

    /// Returns true if an operation of this user is in the backlog, so that its next ones go behind it.
    pub fn defers(&self, uaid: Uaid) -> bool {
        self.waiting.contains_key(&uaid)
    }

    /// Number of tickets that are out.
    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    /// Returns a ticket for a call to another node, or for an operation of the backlog.
    pub fn call(&mut self, work: W) -> StoreTicket {
        let at = self.open.insert(work);
        StoreTicket { index: at.index, generation: at.generation }
    }

    /// Takes back the ticket that a reply names. `None` when it is not out.
    pub fn close(&mut self, ticket: StoreTicket) -> Option<W> {
        self.open.remove(SlabKey { index: ticket.index, generation: ticket.generation })
    }

    /// Takes an operation for storage. `None` when it waits in the backlog: behind one of the same user, since
    /// operations of one UAID keep their order, or for a ticket.
    pub fn submit(&mut self, now: Instant, work: W, op: StoreOp) -> Option<(StoreTicket, StoreOp)> {
        if self.defers(op.uaid()) || self.is_out() {
            self.wait(now, work, op);
            return None;
        }
        Some((self.call(work), op))
    }

    /// Takes an operation that is tried after a pause.
    pub fn submit_later(&mut self, now: Instant, work: W, op: StoreOp) {
        self.wait(now.after(DEFERRED_PAUSE), work, op);
    }

    /// Returns when the oldest operation of the backlog is due.
    pub fn due(&self) -> Option<Instant> {
        self.deferred_ops.front().map(|(due, ..)| *due)
    }

    /// Takes the oldest operation out of the backlog, when it is due and there is a ticket for it ([`Tickets::call`]).
    pub fn next_due(&mut self, now: Instant) -> Option<(W, StoreOp)> {
        if self.is_out() || self.due()? > now {
            return None;
        }
        let (_, work, op) = self.deferred_ops.pop_front()?;
        // Invariant: an operation counts while it is in the backlog.
        let Entry::Occupied(mut count) = self.waiting.entry(op.uaid()) else { unreachable!("it was counted") };
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
        Some((work, op))
    }

    fn wait(&mut self, due: Instant, work: W, op: StoreOp) {
        *self.waiting.entry(op.uaid()).or_insert(0) += 1;
        self.deferred_ops.push_back((due, work, op));
    }

    fn is_out(&self) -> bool {
        self.open.len() >= limits::STORE_TICKETS_MAX
    }
}

/// Pause of a must-do operation after an error.
const DEFERRED_PAUSE: TimeSpan = TimeSpan::from_ms(1_000);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn op(user: u8) -> StoreOp {
        StoreOp::LoadUser { uaid: Uaid([user; 16]) }
    }

    #[test]
    fn a_ticket_is_answered_once() {
        let mut tickets = Tickets::new();
        let (ticket, _) = tickets.submit(Instant(1), 7, op(1)).expect("there is a ticket");
        assert_eq!((tickets.close(ticket), tickets.close(ticket), tickets.idle()), (Some(7), None, true));
    }

    #[test]
    fn what_can_be_refused_leaves_a_quarter_to_what_must_happen() {
        let mut tickets = Tickets::new();
        for work in 0..limits::STORE_TICKETS_MAX {
            assert_eq!(tickets.room(), work < limits::STORE_TICKETS_MAX / 4 * 3);
            assert!(tickets.submit(Instant(1), work, op(1)).is_some());
        }
        assert!(tickets.submit(Instant(1), 0, op(2)).is_none() && tickets.next_due(Instant(9)).is_none());
        assert_eq!(tickets.due(), Some(Instant(1)));
    }

    proptest! {
        #[test]
        fn operations_of_one_user_keep_their_order(
            acts in prop::collection::vec((0u8..3, any::<bool>(), 0u64..3_000), 0..200),
        ) {
            let (mut tickets, mut now, mut out) = (Tickets::new(), Instant(1), Vec::new());
            for (number, (user, later, pause)) in acts.iter().enumerate() {
                now = now.after(TimeSpan::from_ms(*pause));
                while let Some((work, op)) = tickets.next_due(now) {
                    out.push((op.uaid(), work));
                }
                if *later {
                    tickets.submit_later(now, number, op(*user));
                } else if let Some((ticket, op)) = tickets.submit(now, number, op(*user)) {
                    out.push((op.uaid(), tickets.close(ticket).expect("it is out")));
                }
            }
            while let Some((work, op)) = tickets.next_due(now.after(DEFERRED_PAUSE)) {
                out.push((op.uaid(), work));
            }
            prop_assert!(tickets.idle());
            prop_assert_eq!(out.len(), acts.len());
            for user in 0..3 {
                let of_user = out.iter().filter(|(uaid, _)| uaid.0[0] == user).map(|(_, number)| *number);
                prop_assert!(of_user.is_sorted());
            }
        }
    }
}
