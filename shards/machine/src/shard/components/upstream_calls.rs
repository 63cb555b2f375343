//! Calls of servers that are not of this cluster, and what waits for each reply.

use std::collections::BTreeMap;

use crate::ids::{StoreTicket, Uaid};
use crate::limits;

use super::super::slab::{Slab, SlabKey};

/// Calls of one shard that are under way. `W` is the work that a ticket stands for.
pub(in crate::shard) struct UpstreamCalls<W> {
    open: Slab<(W, Option<Uaid>)>,
    /// Numbers of the calls of each user that has some.
    users: BTreeMap<Uaid, usize>,
}

impl<W> UpstreamCalls<W> {
    pub fn new() -> UpstreamCalls<W> {
        UpstreamCalls { open: Slab::new(), users: BTreeMap::new() }
    }

    /// Returns true if one more call may begin, for this user if it is of one.
    pub fn has_room(&self, user: Option<Uaid>) -> bool {
        let of_user = user.and_then(|uaid| self.users.get(&uaid)).copied().unwrap_or(0);
        self.open.len() < limits::UPSTREAM_CALLS_MAX && of_user < limits::UPSTREAM_CALLS_OF_USER_MAX
    }

    /// Returns the ticket of a call that begins.
    pub fn begin(&mut self, user: Option<Uaid>, work: W) -> StoreTicket {
        assert!(self.has_room(user), "the caller has asked for room");
        if let Some(uaid) = user {
            *self.users.entry(uaid).or_default() += 1;
        }
        let at = self.open.insert((work, user));
        StoreTicket { index: at.index, generation: at.generation }
    }

    /// Takes back the ticket that a reply names. `None` if it is not out.
    pub fn end(&mut self, ticket: StoreTicket) -> Option<W> {
        let (work, user) = self.open.remove(SlabKey { index: ticket.index, generation: ticket.generation })?;
        if let Some(uaid) = user
            && let Some(calls) = self.users.get_mut(&uaid)
        {
            *calls -= 1;
            if *calls == 0 {
                self.users.remove(&uaid);
            }
        }
        Some(work)
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
        let first = calls.begin(None, 0);
        for number in 1..limits::UPSTREAM_CALLS_MAX {
            assert!(calls.has_room(None));
            calls.begin(None, number);
        }
        assert!(!calls.has_room(None));
        assert_eq!((calls.end(first), calls.end(first), calls.has_room(None)), (Some(0), None, true));
        let next = calls.begin(None, 9);
        assert_eq!((calls.end(first), calls.end(next)), (None, Some(9)));
        assert_eq!((calls.len(), calls.idle()), (limits::UPSTREAM_CALLS_MAX - 1, false));
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        let (mut calls, [hot, other]) = (UpstreamCalls::new(), [1, 2].map(|n| Uaid([n; 16])));
        let tickets: Vec<_> =
            (0..limits::UPSTREAM_CALLS_OF_USER_MAX).map(|number| calls.begin(Some(hot), number)).collect();
        assert!(!calls.has_room(Some(hot)) && calls.has_room(Some(other)) && calls.has_room(None));
        calls.end(tickets[0]);
        assert!(calls.has_room(Some(hot)));
        assert_eq!(
            tickets.into_iter().filter_map(|ticket| calls.end(ticket)).count(),
            limits::UPSTREAM_CALLS_OF_USER_MAX - 1
        );
        assert!(calls.idle() && calls.users.is_empty());
    }
}
