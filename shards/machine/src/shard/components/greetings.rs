//! Hellos in flight: those that this shard, the owner, works on, the claims that brought some of them, and those that
//! wait for a place.
//!
//! A greeting of another shard's socket is found by its claim. Once it is granted, descriptor and mail of the socket
//! come in either order, and the greeting is complete when both are there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Chid, Claim, ConnId, Uaid};
use crate::limits;
use crate::time::{Instant, Span};

use super::super::command::Hello;
use super::super::mail::{Arrival, Carried, ClaimReply};
use super::super::slab::{Ref, Slab};
use super::super::store::UserRow;
use super::queue::give_back;
use super::requests::Caller;

/// The greetings of one shard.
pub(in crate::shard) struct Greetings {
    greetings: Slab<Greeting>,
    /// Greetings of other shards' sockets by claim.
    claims: BTreeMap<Claim, Ref>,
    /// Claims that were granted here and whose mail has not come, also when their greetings are over; at most
    /// `GRANTS_MAX`.
    grants: BTreeSet<Claim>,
    /// Greetings that hold a reserved place.
    granted: usize,
    deadlines: VecDeque<(Instant, Ref)>,
    /// Own hellos and claims in flight; `<= HELLOS_IN_FLIGHT_MAX` but for claims of other shards.
    in_flight: usize,
    waiting: VecDeque<(ConnId, Box<Hello>)>,
}

/// A hello that this shard, the owner, works on.
struct Greeting {
    uaid: Uaid,
    from: From,
    phase: Phase,
    /// A message came meanwhile: the session starts with a check of storage.
    nudged: bool,
}

/// Origin of a hello: a socket of this shard, or a claim of another.
pub(in crate::shard) enum From {
    Local { conn: ConnId, hello: Box<Hello> },
    Remote { caller: Caller<ClaimReply>, claim: Claim, channels: Option<Box<[Chid]>>, arrived: Arrived },
}

/// Parts of a granted socket that have come.
#[derive(Default)]
pub(in crate::shard) struct Arrived {
    hello: Option<Box<Hello>>,
    bytes: Carried,
    conn: Option<ConnId>,
}

impl Arrived {
    /// The socket's name on this shard, once its descriptor has come.
    pub fn conn(&self) -> Option<ConnId> {
        self.conn
    }
}

/// Progress of a greeting.
enum Phase {
    /// The directs that the previous session left are being saved.
    AwaitingSave,
    Loading,
    /// The other shard was told to move the socket; a place is reserved for it.
    Granted(Box<UserRow>),
}

/// A greeting that is over. The composer takes its user out of the index of residents.
pub(in crate::shard) struct Ended {
    pub index: u32,
    pub uaid: Uaid,
    pub from: From,
    pub nudged: bool,
    /// The other shard was told to move the socket.
    pub granted: bool,
}

/// A granted greeting that is over because its socket is here, with its descriptor and its mail.
pub(in crate::shard) struct Pair {
    pub index: u32,
    pub uaid: Uaid,
    pub nudged: bool,
    pub conn: ConnId,
    pub hello: Box<Hello>,
    pub bytes: Carried,
    pub user: Box<UserRow>,
}

/// Decision on a greeting whose user is known.
pub(in crate::shard) enum Grant {
    /// Its socket is here: the greeting can end in a session.
    Local(Box<UserRow>),
    /// A place is reserved; this is the shard to tell.
    Granted(Caller<ClaimReply>),
    /// Too many granted sockets have not arrived.
    Full,
}

impl Greetings {
    pub fn new() -> Greetings {
        Greetings {
            greetings: Slab::new(),
            claims: BTreeMap::new(),
            grants: BTreeSet::new(),
            granted: 0,
            deadlines: VecDeque::new(),
            in_flight: 0,
            waiting: VecDeque::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.greetings.is_empty()
    }

    /// Number of greetings that hold a reserved place.
    pub fn granted(&self) -> usize {
        self.granted
    }

    // --- places for hellos ---------------------------------------------------------------------------------

    /// Returns true if one more own hello may begin.
    pub fn may_begin(&self) -> bool {
        self.in_flight < limits::HELLOS_IN_FLIGHT_MAX
    }

    /// Has a hello wait for a place. False when too many wait.
    pub fn wait(&mut self, conn: ConnId, hello: Box<Hello>) -> bool {
        let room = self.waiting.len() < limits::HELLOS_WAITING_MAX;
        if room {
            self.waiting.push_back((conn, hello));
        }
        room
    }

    /// The next hello that waits, while there is a place. Its socket may be gone.
    pub fn next_waiting(&mut self) -> Option<(ConnId, Box<Hello>)> {
        if self.may_begin() { self.waiting.pop_front() } else { None }
    }

    /// A hello of this shard is claimed at its owner.
    pub fn begin_claim(&mut self) {
        self.in_flight += 1;
    }

    /// The owner has decided on a claim of this shard.
    pub fn end_claim(&mut self) {
        assert!(self.in_flight > 0, "a decision answers a claim in flight");
        self.in_flight -= 1;
    }

    // --- one greeting --------------------------------------------------------------------------------------

    /// Begins a greeting. The composer adds its user to the index of residents.
    pub fn begin(&mut self, now: Instant, uaid: Uaid, from: From) -> Ref {
        let claim = match &from {
            From::Local { .. } => None,
            From::Remote { claim, .. } => Some(*claim),
        };
        let at = self.greetings.insert(Greeting { uaid, from, phase: Phase::Loading, nudged: false });
        if let Some(claim) = claim {
            self.claims.insert(claim, at);
        }
        self.in_flight += 1;
        self.deadlines.push_back((now.after(GREETING_TIMEOUT), at));
        at
    }

    /// The greeting at an index.
    pub fn at(&self, index: u32) -> Option<Ref> {
        self.greetings.at(index).map(|(at, _)| at)
    }

    /// User of the greeting at an index.
    pub fn uaid_at(&self, index: u32) -> Option<Uaid> {
        self.greetings.at(index).map(|(_, greeting)| greeting.uaid)
    }

    /// User of a greeting, while it lasts.
    pub fn uaid(&self, at: Ref) -> Option<Uaid> {
        self.greetings.get(at).map(|greeting| greeting.uaid)
    }

    /// The channels that the hello of a greeting named.
    pub fn channels(&self, at: Ref) -> Option<&[Chid]> {
        match &self.greetings.get(at)?.from {
            From::Local { hello, .. } => hello.channels.as_deref(),
            From::Remote { channels, .. } => channels.as_deref(),
        }
    }

    /// A message came for the user of this greeting: its session starts with a check of storage.
    pub fn nudge(&mut self, index: u32) {
        if let Some(at) = self.at(index) {
            self.greetings.live_mut(at).nudged = true;
        }
    }

    /// A greeting waits until what the last session left is saved.
    pub fn await_save(&mut self, at: Ref) {
        self.greetings.live_mut(at).phase = Phase::AwaitingSave;
    }

    /// Returns the greeting at an index if it waits as above.
    pub fn awaits_save(&self, index: u32) -> Option<Ref> {
        let (at, greeting) = self.greetings.at(index)?;
        matches!(greeting.phase, Phase::AwaitingSave).then_some(at)
    }

    /// The user of a greeting is read.
    pub fn load(&mut self, at: Ref) {
        self.greetings.live_mut(at).phase = Phase::Loading;
    }

    /// The user of a greeting is known.
    pub fn grant(&mut self, at: Ref, user: Box<UserRow>) -> Grant {
        let greeting = self.greetings.live_mut(at);
        let From::Remote { caller, claim, .. } = greeting.from else { return Grant::Local(user) };
        if self.grants.len() >= limits::GRANTS_MAX {
            return Grant::Full;
        }
        greeting.phase = Phase::Granted(user);
        self.grants.insert(claim);
        self.granted += 1;
        Grant::Granted(caller)
    }

    /// Ends a greeting: it is in no table any more.
    pub fn end(&mut self, at: Ref) -> Option<Ended> {
        let Greeting { uaid, from, phase, nudged } = self.take(at)?;
        let granted = matches!(phase, Phase::Granted(_));
        Some(Ended { index: at.index, uaid, from, nudged, granted })
    }

    fn take(&mut self, at: Ref) -> Option<Greeting> {
        let greeting = self.greetings.remove(at)?;
        if let From::Remote { claim, .. } = greeting.from {
            self.claims.remove(&claim);
        }
        if matches!(greeting.phase, Phase::Granted(_)) {
            self.granted -= 1;
        }
        self.in_flight -= 1;
        Some(greeting)
    }

    // --- claims --------------------------------------------------------------------------------------------

    /// The greeting of a claim of another shard, while it lasts.
    pub fn of_claim(&self, claim: Claim) -> Option<Ref> {
        self.claims.get(&claim).copied()
    }

    /// The mail of a grant has come: its socket arrives, or stays.
    pub fn end_grant(&mut self, claim: Claim) {
        self.grants.remove(&claim);
    }

    /// The descriptor of a moved socket is here. Returns its greeting, if that still stands.
    pub fn socket_arrived(&mut self, claim: Claim, socket: ConnId) -> Option<Ref> {
        let at = self.of_claim(claim)?;
        let From::Remote { arrived, .. } = &mut self.greetings.live_mut(at).from else { return None };
        arrived.conn = Some(socket);
        Some(at)
    }

    /// Hello and bytes of a moved socket are here. Returns their greeting, if that still stands.
    pub fn mail_arrived(&mut self, arrival: Arrival) -> Option<Ref> {
        let at = self.of_claim(arrival.claim)?;
        let From::Remote { arrived, .. } = &mut self.greetings.live_mut(at).from else { return None };
        (arrived.hello, arrived.bytes) = (Some(arrival.hello), arrival.bytes);
        Some(at)
    }

    /// Ends a granted greeting once its descriptor and its mail are here. `None` while one of them is missing.
    pub fn pair(&mut self, at: Ref) -> Option<Pair> {
        let complete = matches!(
            self.greetings.get(at)?,
            Greeting {
                from: From::Remote { arrived: Arrived { hello: Some(_), conn: Some(_), .. }, .. },
                phase: Phase::Granted(_),
                ..
            }
        );
        if !complete {
            return None;
        }
        match self.take(at)? {
            Greeting {
                uaid,
                from: From::Remote { arrived: Arrived { hello: Some(hello), bytes, conn: Some(conn) }, .. },
                phase: Phase::Granted(user),
                nudged,
            } => Some(Pair { index: at.index, uaid, nudged, conn, hello, bytes, user }),
            _ => unreachable!("a complete pair was taken"),
        }
    }

    // --- time ----------------------------------------------------------------------------------------------

    /// Returns when the oldest greeting has taken too long.
    pub fn due(&self) -> Option<Instant> {
        self.deadlines.front().map(|(due, _)| *due)
    }

    /// Takes the next greeting that has taken too long; true if it was granted: a half pair.
    pub fn next_overdue(&mut self, now: Instant) -> Option<(Ref, bool)> {
        while let Some((due, at)) = self.deadlines.front().copied()
            && due <= now
        {
            self.deadlines.pop_front();
            if let Some(greeting) = self.greetings.get(at) {
                return Some((at, matches!(greeting.phase, Phase::Granted(_))));
            }
        }
        None
    }

    /// Gives back what a storm made the queue of deadlines grow to.
    pub fn give_back(&mut self) {
        give_back(&mut self.deadlines);
    }
}

#[cfg(test)]
impl Greetings {
    /// No claim was granted whose mail has not come.
    pub fn has_no_grant(&self) -> bool {
        self.grants.is_empty()
    }
}

/// Time that a hello may take at the owner: a half pair or a silent store ends then.
pub(in crate::shard) const GREETING_TIMEOUT: Span = Span::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Clock, RequestId, ShardId};
    use crate::simple::Contact;
    use crate::time::UnixSeconds;
    use proptest::prelude::*;

    fn hello() -> Box<Hello> {
        Box::new(Hello::new(None, Uaid([9; 16])))
    }

    fn user() -> Box<UserRow> {
        Box::new(UserRow {
            record_version: 0,
            seen: UnixSeconds(0),
            low_water: Clock::default(),
            user_clock: Clock::default(),
            may_have_messages: false,
            contact: Contact::default(),
            channels: Vec::new(),
            presence: Vec::new(),
        })
    }

    fn claim(n: u64) -> Claim {
        Claim::new(ShardId(1), n)
    }

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 1 }
    }

    fn remote(n: u64) -> From {
        let caller = Caller::new(ShardId(1), RequestId { index: n as u32, generation: 0 });
        From::Remote { caller, claim: claim(n), channels: None, arrived: Arrived::default() }
    }

    fn arrival(n: u64) -> Arrival {
        Arrival { claim: claim(n), hello: hello(), bytes: Carried(Box::new([n as u8])) }
    }

    proptest! {
        /// After inputs of any kind in any order places are counted, and a pair is made of both halves of one grant.
        #[test]
        fn counts_follow_the_greetings(ops in prop::collection::vec((0u8..6, 0u64..4), 0..60)) {
            let mut greetings = Greetings::new();
            let mut open: BTreeMap<u64, (Ref, bool, bool, bool)> = BTreeMap::new();
            for (n, (op, which)) in ops.into_iter().enumerate() {
                match (op, open.get_mut(&which)) {
                    (0, None) => {
                        let at = greetings.begin(Instant(n as u64), Uaid([which as u8; 16]), remote(which));
                        open.insert(which, (at, false, false, false));
                    }
                    (1, Some((at, granted, ..))) if !*granted => {
                        prop_assert!(matches!(greetings.grant(*at, user()), Grant::Granted(_)));
                        *granted = true;
                    }
                    (2, Some((at, _, socket, _))) => {
                        prop_assert_eq!(greetings.socket_arrived(claim(which), conn(which as u32)), Some(*at));
                        *socket = true;
                    }
                    (3, Some((at, _, _, mail))) => {
                        greetings.end_grant(claim(which));
                        prop_assert_eq!(greetings.mail_arrived(arrival(which)), Some(*at));
                        *mail = true;
                    }
                    (4, Some((at, granted, ..))) => {
                        prop_assert_eq!(greetings.end(*at).map(|ended| ended.granted), Some(*granted));
                        open.remove(&which);
                    }
                    (5, Some((at, granted, socket, mail))) => {
                        let pair = greetings.pair(*at);
                        prop_assert_eq!(pair.is_some(), *granted && *socket && *mail);
                        if let Some(pair) = pair {
                            prop_assert_eq!((pair.conn, &*pair.bytes.0), (conn(which as u32), &[which as u8][..]));
                            open.remove(&which);
                        }
                    }
                    (_, None) => {
                        prop_assert_eq!(greetings.of_claim(claim(which)), None);
                        prop_assert_eq!(greetings.socket_arrived(claim(which), conn(0)), None);
                    }
                    _ => {}
                }
                prop_assert_eq!(greetings.in_flight, open.len());
                prop_assert_eq!(greetings.granted(), open.values().filter(|(_, granted, ..)| *granted).count());
                prop_assert_eq!(greetings.is_empty(), open.is_empty());
            }
        }
    }

    #[test]
    fn a_greeting_that_takes_too_long_is_found_once() {
        let mut greetings = Greetings::new();
        let over = greetings.begin(Instant(0), Uaid([1; 16]), remote(1));
        let late = greetings.begin(Instant(1), Uaid([2; 16]), remote(2));
        let half = greetings.begin(Instant(1), Uaid([3; 16]), remote(3));
        greetings.grant(half, user());
        greetings.end(over);
        let now = Instant(1).after(GREETING_TIMEOUT);
        assert_eq!(greetings.next_overdue(now), Some((late, false)));
        assert_eq!(greetings.next_overdue(now), Some((half, true)));
        assert_eq!((greetings.next_overdue(now), greetings.due()), (None, None));
    }

    #[test]
    fn hellos_beyond_the_places_wait_and_too_many_are_refused() {
        let mut greetings = Greetings::new();
        for _ in 0..limits::HELLOS_IN_FLIGHT_MAX {
            assert!(greetings.may_begin());
            greetings.begin_claim();
        }
        for n in 0..limits::HELLOS_WAITING_MAX as u32 {
            assert!(greetings.wait(conn(n), hello()));
        }
        assert!(!greetings.wait(conn(7), hello()) && greetings.next_waiting().is_none());
        greetings.end_claim();
        assert_eq!(greetings.next_waiting().map(|(conn, _)| conn), Some(conn(0)));
    }
}
