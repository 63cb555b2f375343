//! Calls of one profile that wait for a place, shared between users.
//!
//! Each user has a line of its own, and the lines take turns. A user has at most a share of the places in flight and of
//! those that wait. When all places are taken, the newest call of the user with the most makes room for a user with
//! fewer. A flood for one device therefore delays and refuses calls of that device.

use std::collections::VecDeque;

use hashbrown::HashMap;
use machine::ids::Uaid;
use tokio::time::Instant;

/// Facts of a call that its place depends on.
pub(super) trait UserCall {
    /// Returns the user of its notification.
    fn uaid(&self) -> Uaid;

    /// Returns the bytes that it holds while it waits.
    fn bytes(&self) -> usize;

    /// Returns the time at which it is over.
    fn deadline(&self) -> Instant;
}

/// Part of the places that one user can have: those in flight, and those that wait.
pub(super) const SHARES: usize = 8;

/// Returns the places of one user among `places`.
pub(super) fn share_of(places: usize) -> usize {
    (places / SHARES).max(1)
}

/// Lines of the users of one profile, and the numbers of their calls in flight.
pub(super) struct Waiting<C> {
    users: HashMap<Uaid, User<C>>,
    /// Users with calls that wait, each once: the first has its turn next.
    turns: VecDeque<Uaid>,
    calls: usize,
    bytes: usize,
}

/// Calls of one user. It is there while it has some.
struct User<C> {
    line: VecDeque<C>,
    bytes: usize,
    in_flight: usize,
}

impl<C> User<C> {
    fn new() -> User<C> {
        User { line: VecDeque::new(), bytes: 0, in_flight: 0 }
    }
}

impl<C: UserCall> Waiting<C> {
    pub fn new() -> Waiting<C> {
        Waiting { users: HashMap::new(), turns: VecDeque::new(), calls: 0, bytes: 0 }
    }

    /// Returns the number of calls that wait.
    pub fn len(&self) -> usize {
        self.calls
    }

    pub fn is_empty(&self) -> bool {
        self.calls == 0
    }

    /// Returns the bytes of the calls that wait.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of calls of this user that wait.
    pub fn of(&self, uaid: Uaid) -> usize {
        self.users.get(&uaid).map_or(0, |user| user.line.len())
    }

    /// Returns the number of calls of this user in flight.
    pub fn in_flight_of(&self, uaid: Uaid) -> usize {
        self.users.get(&uaid).map_or(0, |user| user.in_flight)
    }

    /// A call of this user is in flight from now on.
    pub fn began(&mut self, uaid: Uaid) {
        self.users.entry(uaid).or_insert_with(User::new).in_flight += 1;
    }

    /// A call of this user is over.
    pub fn ended(&mut self, uaid: Uaid) {
        // Invariant: a call that ends has begun, and its user stays until then.
        self.users.get_mut(&uaid).expect("a call that is over has begun").in_flight -= 1;
        self.forget_if_idle(uaid);
    }

    /// Puts a call at the end of the line of its user.
    pub fn push(&mut self, call: C) {
        let (uaid, bytes) = (call.uaid(), call.bytes());
        let user = self.users.entry(uaid).or_insert_with(User::new);
        if user.line.is_empty() {
            self.turns.push_back(uaid);
        }
        user.line.push_back(call);
        user.bytes += bytes;
        (self.calls, self.bytes) = (self.calls + 1, self.bytes + bytes);
    }

    /// Takes the first call of the next user that has fewer than `in_flight_max` calls in flight.
    pub fn next(&mut self, in_flight_max: usize) -> Option<C> {
        for _ in 0..self.turns.len() {
            let uaid = self.turns.pop_front()?;
            let is_next = self.in_flight_of(uaid) < in_flight_max;
            let call = if is_next { self.take(uaid, VecDeque::pop_front) } else { None };
            if self.of(uaid) > 0 {
                self.turns.push_back(uaid);
            }
            if call.is_some() {
                self.forget_if_idle(uaid);
                return call;
            }
        }
        None
    }

    /// Takes the newest call of the user with the most calls, if these are more than one more than those of `uaid`.
    pub fn make_place(&mut self, uaid: Uaid) -> Option<C> {
        let own = self.of(uaid);
        self.make_room(own + 1, |user| user.line.len())
    }

    /// Takes the newest call of the user with the most bytes, if these are more than those of `uaid` with `bytes` more.
    pub fn make_bytes(&mut self, uaid: Uaid, bytes: usize) -> Option<C> {
        let own = self.users.get(&uaid).map_or(0, |user| user.bytes);
        self.make_room(own + bytes, |user| user.bytes)
    }

    fn make_room(&mut self, beyond: usize, held: impl Fn(&User<C>) -> usize) -> Option<C> {
        let (uaid, most) = self.users.iter().map(|(uaid, user)| (*uaid, held(user))).max_by_key(|(_, held)| *held)?;
        if most <= beyond {
            return None;
        }
        let call = self.take(uaid, VecDeque::pop_back);
        self.leave_turns_if_idle(uaid);
        call
    }

    /// Takes a call whose time is over.
    pub fn next_expired(&mut self, now: Instant) -> Option<C> {
        let is_over = |user: &User<C>| user.line.front().is_some_and(|call| now >= call.deadline());
        let uaid = self.turns.iter().copied().find(|uaid| self.users.get(uaid).is_some_and(is_over))?;
        let call = self.take(uaid, VecDeque::pop_front);
        self.leave_turns_if_idle(uaid);
        call
    }

    fn take(&mut self, uaid: Uaid, end: impl FnOnce(&mut VecDeque<C>) -> Option<C>) -> Option<C> {
        let user = self.users.get_mut(&uaid)?;
        let call = end(&mut user.line)?;
        user.bytes -= call.bytes();
        (self.calls, self.bytes) = (self.calls - 1, self.bytes - call.bytes());
        Some(call)
    }

    fn leave_turns_if_idle(&mut self, uaid: Uaid) {
        if self.of(uaid) == 0 {
            self.turns.retain(|of| *of != uaid);
            self.forget_if_idle(uaid);
        }
    }

    fn forget_if_idle(&mut self, uaid: Uaid) {
        if self.users.get(&uaid).is_some_and(|user| user.line.is_empty() && user.in_flight == 0) {
            self.users.remove(&uaid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call of a user with this many bytes.
    struct TestCall(Uaid, usize, Instant);

    impl UserCall for TestCall {
        fn uaid(&self) -> Uaid {
            self.0
        }

        fn bytes(&self) -> usize {
            self.1
        }

        fn deadline(&self) -> Instant {
            self.2
        }
    }

    fn pending(uaid: Uaid, bytes: usize) -> TestCall {
        TestCall(uaid, bytes, Instant::now())
    }

    fn user(n: u8) -> Uaid {
        Uaid([n; 16])
    }

    /// The users of the calls that [`Waiting::next`] gives, each in flight from then on.
    fn started(waiting: &mut Waiting<TestCall>, in_flight_max: usize) -> Vec<u8> {
        let mut users = Vec::new();
        while let Some(call) = waiting.next(in_flight_max) {
            waiting.began(call.uaid());
            users.push(call.uaid().0[0]);
        }
        users
    }

    #[test]
    fn users_take_turns_and_wait_at_their_share_in_flight() {
        let mut waiting = Waiting::new();
        for n in [1, 1, 1, 1, 1, 2, 3, 3] {
            waiting.push(pending(user(n), 10));
        }
        assert_eq!((waiting.len(), waiting.bytes(), waiting.of(user(1))), (8, 80, 5));
        assert_eq!(started(&mut waiting, 2), [1, 2, 3, 1, 3]);
        assert_eq!((waiting.len(), waiting.bytes(), waiting.in_flight_of(user(1))), (3, 30, 2));
        waiting.push(pending(user(2), 10));
        waiting.ended(user(1));
        assert_eq!(started(&mut waiting, 2), [1, 2]);
        for n in [1, 1, 2, 2, 3, 3] {
            waiting.ended(user(n));
        }
        assert_eq!(started(&mut waiting, 2), [1, 1]);
        (0..2).for_each(|_| waiting.ended(user(1)));
        assert!(waiting.is_empty() && waiting.users.is_empty() && waiting.turns.is_empty() && waiting.bytes() == 0);
    }

    #[test]
    fn the_user_with_the_most_makes_room_for_one_with_fewer() {
        let mut waiting = Waiting::new();
        for _ in 0..3 {
            waiting.push(pending(user(1), 10));
        }
        let mut made = 0;
        // The second user gets as many places as the first one, and no more.
        while let Some(call) = waiting.make_place(user(2)) {
            assert_eq!(call.uaid(), user(1));
            waiting.push(pending(user(2), 10));
            made += 1;
        }
        assert_eq!((made, waiting.of(user(1)), waiting.of(user(2))), (1, 2, 1));
        assert!(waiting.make_place(user(1)).is_none());
        waiting.push(pending(user(3), 100));
        assert_eq!(waiting.make_bytes(user(2), 10).map(|call| call.uaid()), Some(user(3)));
        assert!(waiting.make_bytes(user(3), 100).is_none());
        assert_eq!((waiting.len(), waiting.bytes(), waiting.turns.len()), (3, 30, 2));
    }

    #[test]
    fn calls_whose_time_is_over_are_found_in_every_line() {
        let mut waiting = Waiting::new();
        for n in [1, 1, 2] {
            waiting.push(pending(user(n), 10));
        }
        let now = Instant::now();
        assert!(waiting.next_expired(now - std::time::Duration::from_secs(3_600)).is_none());
        let late = now + std::time::Duration::from_secs(3_600);
        assert_eq!(std::iter::from_fn(|| waiting.next_expired(late)).count(), 3);
        assert!(waiting.is_empty() && waiting.users.is_empty());
    }
}
