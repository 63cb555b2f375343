//! Calls of the services of bridged users, and what waits for each reply.

use std::collections::BTreeMap;

use crate::ids::{StoreTicket, Uaid};
use crate::limits;

use super::super::slab::{Slab, SlabKey};

/// Calls of one shard that are under way. `W` is the work that a ticket stands for.
pub(in crate::shard) struct UpstreamCalls<W> {
    open: Slab<(W, Uaid)>,
    /// Number of the calls of each user that has some.
    users: BTreeMap<Uaid, usize>,
}

impl<W> UpstreamCalls<W> {
    pub fn new() -> UpstreamCalls<W> {
        UpstreamCalls { open: Slab::new(), users: BTreeMap::new() }
    }

    /// Returns true if one more call for this user may begin.
    pub fn has_room(&self, user: Uaid) -> bool {
        let of_user = self.users.get(&user).copied().unwrap_or(0);
        self.open.len() < limits::UPSTREAM_CALLS_MAX && of_user < limits::UPSTREAM_CALLS_OF_USER_MAX
    }

    /// Returns the ticket of a call that begins.
    pub fn begin(&mut self, user: Uaid, work: W) -> StoreTicket {
        assert!(self.has_room(user), "the caller has asked for room");
        *self.users.entry(user).or_default() += 1;
        let at = self.open.insert((work, user));
        StoreTicket { index: at.index, generation: at.generation }
    }

    /// Takes back the ticket that a reply names. `None` if it is not out.
    pub fn end(&mut self, ticket: StoreTicket) -> Option<W> {
        let (work, user) = self.open.remove(SlabKey { index: ticket.index, generation: ticket.generation })?;
        if let Some(calls) = self.users.get_mut(&user) {
            *calls -= 1;
            if *calls == 0 {
                self.users.remove(&user);
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
        let user = |number: usize| Uaid([(number / limits::UPSTREAM_CALLS_OF_USER_MAX) as u8; 16]);
        let first = calls.begin(user(0), 0);
        for number in 1..limits::UPSTREAM_CALLS_MAX {
            assert!(calls.has_room(user(number)));
            calls.begin(user(number), number);
        }
        let other = Uaid([0xff; 16]);
        assert!(!calls.has_room(other));
        assert_eq!((calls.end(first), calls.end(first), calls.has_room(other)), (Some(0), None, true));
        let next = calls.begin(other, 9);
        assert_eq!((calls.end(first), calls.end(next)), (None, Some(9)));
        assert_eq!((calls.len(), calls.idle()), (limits::UPSTREAM_CALLS_MAX - 1, false));
    }

    #[test]
    fn one_user_leaves_room_for_others() {
        let (mut calls, [hot, other]) = (UpstreamCalls::new(), [1, 2].map(|n| Uaid([n; 16])));
        let tickets: Vec<_> = (0..limits::UPSTREAM_CALLS_OF_USER_MAX).map(|number| calls.begin(hot, number)).collect();
        assert!(!calls.has_room(hot) && calls.has_room(other));
        calls.end(tickets[0]);
        assert!(calls.has_room(hot));
        assert_eq!(
            tickets.into_iter().filter_map(|ticket| calls.end(ticket)).count(),
            limits::UPSTREAM_CALLS_OF_USER_MAX - 1
        );
        assert!(calls.idle() && calls.users.is_empty());
    }
}
