//! Calls of servers that are not of this cluster, and what waits for each reply.

use crate::ids::StoreTicket;
use crate::limits;

use super::super::slab::{Slab, SlabKey};

/// Calls of one shard that are under way. `W` is the work that a ticket stands for.
pub(in crate::shard) struct UpstreamCalls<W> {
    open: Slab<W>,
}

impl<W> UpstreamCalls<W> {
    pub fn new() -> UpstreamCalls<W> {
        UpstreamCalls { open: Slab::new() }
    }

    /// Returns true if one more call may begin.
    pub fn has_room(&self) -> bool {
        self.open.len() < limits::UPSTREAM_CALLS_MAX
    }

    /// Returns the ticket of a call that begins.
    pub fn begin(&mut self, work: W) -> StoreTicket {
        assert!(self.has_room(), "the caller has asked for room");
        let at = self.open.insert(work);
        StoreTicket { index: at.index, generation: at.generation }
    }

    /// Takes back the ticket that a reply names. `None` if it is not out.
    pub fn end(&mut self, ticket: StoreTicket) -> Option<W> {
        self.open.remove(SlabKey { index: ticket.index, generation: ticket.generation })
    }

    /// Returns the number of calls that are under way.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns true if no call is under way.
    pub fn idle(&self) -> bool {
        self.open.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_answered_once_and_their_number_is_bounded() {
        let mut calls = UpstreamCalls::new();
        let first = calls.begin(0);
        for number in 1..limits::UPSTREAM_CALLS_MAX {
            assert!(calls.has_room());
            calls.begin(number);
        }
        assert!(!calls.has_room());
        assert_eq!((calls.end(first), calls.end(first), calls.has_room()), (Some(0), None, true));
        let next = calls.begin(9);
        assert_eq!((calls.end(first), calls.end(next)), (None, Some(9)));
        assert_eq!((calls.len(), calls.idle()), (limits::UPSTREAM_CALLS_MAX - 1, false));
    }
}
