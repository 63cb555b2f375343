//! Hellos in flight: those that this shard, the owner, works on, the claims that brought some of them, and those that
//! wait for a place.
//!
//! A pending hello of another shard's socket is found by its claim. Once it is granted, descriptor and mail of the
//! socket come in either order, and the pending hello is complete when both are there.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::ids::{Chid, Claim, ConnId, Uaid};
use crate::limits;
use crate::time::{Instant, TimeSpan};

use super::super::command::Hello;
use super::super::mail::{Arrival, Carried, ClaimReply};
use super::super::slab::{Slab, SlabKey};
use super::super::store::UserRow;
use super::queue::give_back;
use super::requests::Caller;

/// The pending hellos of one shard.
pub(in crate::shard) struct PendingHellos {
    pending_hellos: Slab<PendingHello>,
    /// Greetings of other shards' sockets by claim.
    claims: BTreeMap<Claim, SlabKey>,
    /// Claims that were granted here and whose mail has not come, also when their pending hellos are over; at most
    /// `GRANTS_MAX`.
    grants: BTreeSet<Claim>,
    /// Greetings that hold a reserved place.
    granted: usize,
    deadlines: VecDeque<(Instant, SlabKey)>,
    /// Own hellos and claims in flight; `<= HELLOS_IN_FLIGHT_MAX` but for claims of other shards.
    in_flight: usize,
    waiting: VecDeque<(ConnId, Box<Hello>)>,
}

/// A hello that this shard, the owner, works on.
struct PendingHello {
    uaid: Uaid,
    from: HelloOrigin,
    phase: Phase,
    /// A message came meanwhile: the session starts with a check of storage.
    nudged: bool,
}

/// Origin of a hello: a socket of this shard, or a claim of another.
pub(in crate::shard) enum HelloOrigin {
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

/// Progress of a pending hello.
enum Phase {
    /// The directs that the previous session left are being saved.
    AwaitingSave,
    Loading,
    /// The other shard was told to move the socket; a place is reserved for it.
    Granted(Option<Box<UserRow>>),
}

/// A pending hello that is over. The composer takes its user out of the index of residents.
pub(in crate::shard) struct EndedHello {
    pub index: u32,
    pub uaid: Uaid,
    pub from: HelloOrigin,
    pub nudged: bool,
    /// The other shard was told to move the socket.
    pub granted: bool,
}

/// A granted pending hello that is over because its socket is here, with its descriptor and its mail.
pub(in crate::shard) struct Pair {
    pub index: u32,
    pub uaid: Uaid,
    pub nudged: bool,
    pub conn: ConnId,
    pub hello: Box<Hello>,
    pub bytes: Carried,
    pub user: Option<Box<UserRow>>,
}

/// Decision on a pending hello that keeps its UAID.
pub(in crate::shard) enum Grant {
    /// Its socket is here: the pending hello can end in a session.
    Local(Option<Box<UserRow>>),
    /// A place is reserved; this is the shard to tell.
    Granted(Caller<ClaimReply>),
    /// Too many granted sockets have not arrived.
    Full,
}

impl PendingHellos {
    pub fn new() -> PendingHellos {
        PendingHellos {
            pending_hellos: Slab::new(),
            claims: BTreeMap::new(),
            grants: BTreeSet::new(),
            granted: 0,
            deadlines: VecDeque::new(),
            in_flight: 0,
            waiting: VecDeque::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.pending_hellos.is_empty()
    }

    /// Number of pending hellos that hold a reserved place.
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

    // --- one pending hello --------------------------------------------------------------------------------------

    /// Begins a pending hello. The composer adds its user to the index of residents.
    pub fn begin(&mut self, now: Instant, uaid: Uaid, from: HelloOrigin) -> SlabKey {
        let claim = match &from {
            HelloOrigin::Local { .. } => None,
            HelloOrigin::Remote { claim, .. } => Some(*claim),
        };
        let at = self.pending_hellos.insert(PendingHello { uaid, from, phase: Phase::Loading, nudged: false });
        if let Some(claim) = claim {
            self.claims.insert(claim, at);
        }
        self.in_flight += 1;
        self.deadlines.push_back((now.after(GREETING_TIMEOUT), at));
        at
    }

    /// The pending hello at an index.
    pub fn at(&self, index: u32) -> Option<SlabKey> {
        self.pending_hellos.at(index).map(|(at, _)| at)
    }

    /// User of the pending hello at an index.
    pub fn uaid_at(&self, index: u32) -> Option<Uaid> {
        self.pending_hellos.at(index).map(|(_, pending_hello)| pending_hello.uaid)
    }

    /// User of a pending hello, while it lasts.
    pub fn uaid(&self, at: SlabKey) -> Option<Uaid> {
        self.pending_hellos.get(at).map(|pending_hello| pending_hello.uaid)
    }

    /// The channels that the hello of a pending hello named.
    pub fn channels(&self, at: SlabKey) -> Option<&[Chid]> {
        match &self.pending_hellos.get(at)?.from {
            HelloOrigin::Local { hello, .. } => hello.channels.as_deref(),
            HelloOrigin::Remote { channels, .. } => channels.as_deref(),
        }
    }

    /// A message came for the user of this pending hello: its session starts with a check of storage.
    pub fn nudge(&mut self, index: u32) {
        if let Some(at) = self.at(index) {
            self.pending_hellos.live_mut(at).nudged = true;
        }
    }

    /// A pending hello waits until what the last session left is saved.
    pub fn await_save(&mut self, at: SlabKey) {
        self.pending_hellos.live_mut(at).phase = Phase::AwaitingSave;
    }

    /// Returns the pending hello at an index if it waits as above.
    pub fn awaits_save(&self, index: u32) -> Option<SlabKey> {
        let (at, pending_hello) = self.pending_hellos.at(index)?;
        matches!(pending_hello.phase, Phase::AwaitingSave).then_some(at)
    }

    /// The user of a pending hello is read.
    pub fn load(&mut self, at: SlabKey) {
        self.pending_hellos.live_mut(at).phase = Phase::Loading;
    }

    /// The user of a pending hello keeps its UAID: it is known, or was dropped without a channel.
    pub fn grant(&mut self, at: SlabKey, user: Option<Box<UserRow>>) -> Grant {
        let pending_hello = self.pending_hellos.live_mut(at);
        let HelloOrigin::Remote { caller, claim, .. } = pending_hello.from else { return Grant::Local(user) };
        if self.grants.len() >= limits::GRANTS_MAX {
            return Grant::Full;
        }
        pending_hello.phase = Phase::Granted(user);
        self.grants.insert(claim);
        self.granted += 1;
        Grant::Granted(caller)
    }

    /// Ends a pending hello: it is in no table any more.
    pub fn end(&mut self, at: SlabKey) -> Option<EndedHello> {
        let PendingHello { uaid, from, phase, nudged } = self.take(at)?;
        let granted = matches!(phase, Phase::Granted(_));
        Some(EndedHello { index: at.index, uaid, from, nudged, granted })
    }

    fn take(&mut self, at: SlabKey) -> Option<PendingHello> {
        let pending_hello = self.pending_hellos.remove(at)?;
        if let HelloOrigin::Remote { claim, .. } = pending_hello.from {
            self.claims.remove(&claim);
        }
        if matches!(pending_hello.phase, Phase::Granted(_)) {
            self.granted -= 1;
        }
        self.in_flight -= 1;
        Some(pending_hello)
    }

    // --- claims --------------------------------------------------------------------------------------------

    /// The pending hello of a claim of another shard, while it lasts.
    pub fn of_claim(&self, claim: Claim) -> Option<SlabKey> {
        self.claims.get(&claim).copied()
    }

    /// The mail of a grant has come: its socket arrives, or stays.
    pub fn end_grant(&mut self, claim: Claim) {
        self.grants.remove(&claim);
    }

    /// The descriptor of a moved socket is here. Returns its pending hello, if that still stands.
    pub fn socket_arrived(&mut self, claim: Claim, socket: ConnId) -> Option<SlabKey> {
        let at = self.of_claim(claim)?;
        let HelloOrigin::Remote { arrived, .. } = &mut self.pending_hellos.live_mut(at).from else { return None };
        arrived.conn = Some(socket);
        Some(at)
    }

    /// Hello and bytes of a moved socket are here. Returns their pending hello, if that still stands.
    pub fn mail_arrived(&mut self, arrival: Arrival) -> Option<SlabKey> {
        let at = self.of_claim(arrival.claim)?;
        let HelloOrigin::Remote { arrived, .. } = &mut self.pending_hellos.live_mut(at).from else { return None };
        (arrived.hello, arrived.bytes) = (Some(arrival.hello), arrival.bytes);
        Some(at)
    }

    /// Ends a granted pending hello once its descriptor and its mail are here. `None` while one of them is missing.
    pub fn pair(&mut self, at: SlabKey) -> Option<Pair> {
        let complete = matches!(
            self.pending_hellos.get(at)?,
            PendingHello {
                from: HelloOrigin::Remote { arrived: Arrived { hello: Some(_), conn: Some(_), .. }, .. },
                phase: Phase::Granted(_),
                ..
            }
        );
        if !complete {
            return None;
        }
        match self.take(at)? {
            PendingHello {
                uaid,
                from: HelloOrigin::Remote { arrived: Arrived { hello: Some(hello), bytes, conn: Some(conn) }, .. },
                phase: Phase::Granted(user),
                nudged,
            } => Some(Pair { index: at.index, uaid, nudged, conn, hello, bytes, user }),
            _ => unreachable!("a complete pair was taken"),
        }
    }

    // --- time ----------------------------------------------------------------------------------------------

    /// Returns when the oldest pending hello has taken too long.
    pub fn due(&self) -> Option<Instant> {
        self.deadlines.front().map(|(due, _)| *due)
    }

    /// Takes the next pending hello that has taken too long; true if it was granted: a half pair.
    pub fn next_overdue(&mut self, now: Instant) -> Option<(SlabKey, bool)> {
        while let Some((due, at)) = self.deadlines.front().copied()
            && due <= now
        {
            self.deadlines.pop_front();
            if let Some(pending_hello) = self.pending_hellos.get(at) {
                return Some((at, matches!(pending_hello.phase, Phase::Granted(_))));
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
impl PendingHellos {
    /// No claim was granted whose mail has not come.
    pub fn has_no_grant(&self) -> bool {
        self.grants.is_empty()
    }
}

/// Time that a hello may take at the owner: a half pair or a silent store ends then.
pub(in crate::shard) const GREETING_TIMEOUT: TimeSpan = TimeSpan::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Clock, RequestId, ShardId};
    use crate::simplepush::Contact;
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

    fn remote(n: u64) -> HelloOrigin {
        let caller = Caller::new(ShardId(1), RequestId { index: n as u32, generation: 0 });
        HelloOrigin::Remote { caller, claim: claim(n), channels: None, arrived: Arrived::default() }
    }

    fn arrival(n: u64) -> Arrival {
        Arrival { claim: claim(n), hello: hello(), bytes: Carried(Box::new([n as u8])) }
    }

    proptest! {
        /// After inputs of any kind in any order places are counted, and a pair is made of both halves of one grant.
        #[test]
        fn counts_follow_the_greetings(ops in prop::collection::vec((0u8..6, 0u64..4), 0..60)) {
            let mut pending_hellos = PendingHellos::new();
            let mut open: BTreeMap<u64, (SlabKey, bool, bool, bool)> = BTreeMap::new();
            for (n, (op, which)) in ops.into_iter().enumerate() {
                match (op, open.get_mut(&which)) {
                    (0, None) => {
                        let at = pending_hellos.begin(Instant(n as u64), Uaid([which as u8; 16]), remote(which));
                        open.insert(which, (at, false, false, false));
                    }
                    (1, Some((at, granted, ..))) if !*granted => {
                        prop_assert!(matches!(pending_hellos.grant(*at, Some(user())), Grant::Granted(_)));
                        *granted = true;
                    }
                    (2, Some((at, _, socket, _))) => {
                        prop_assert_eq!(pending_hellos.socket_arrived(claim(which), conn(which as u32)), Some(*at));
                        *socket = true;
                    }
                    (3, Some((at, _, _, mail))) => {
                        pending_hellos.end_grant(claim(which));
                        prop_assert_eq!(pending_hellos.mail_arrived(arrival(which)), Some(*at));
                        *mail = true;
                    }
                    (4, Some((at, granted, ..))) => {
                        prop_assert_eq!(pending_hellos.end(*at).map(|ended| ended.granted), Some(*granted));
                        open.remove(&which);
                    }
                    (5, Some((at, granted, socket, mail))) => {
                        let pair = pending_hellos.pair(*at);
                        prop_assert_eq!(pair.is_some(), *granted && *socket && *mail);
                        if let Some(pair) = pair {
                            prop_assert_eq!((pair.conn, &*pair.bytes.0), (conn(which as u32), &[which as u8][..]));
                            open.remove(&which);
                        }
                    }
                    (_, None) => {
                        prop_assert_eq!(pending_hellos.of_claim(claim(which)), None);
                        prop_assert_eq!(pending_hellos.socket_arrived(claim(which), conn(0)), None);
                    }
                    _ => {}
                }
                prop_assert_eq!(pending_hellos.in_flight, open.len());
                prop_assert_eq!(pending_hellos.granted(), open.values().filter(|(_, granted, ..)| *granted).count());
                prop_assert_eq!(pending_hellos.is_empty(), open.is_empty());
            }
        }
    }

    #[test]
    fn a_greeting_that_takes_too_long_is_found_once() {
        let mut pending_hellos = PendingHellos::new();
        let over = pending_hellos.begin(Instant(0), Uaid([1; 16]), remote(1));
        let late = pending_hellos.begin(Instant(1), Uaid([2; 16]), remote(2));
        let half = pending_hellos.begin(Instant(1), Uaid([3; 16]), remote(3));
        pending_hellos.grant(half, Some(user()));
        pending_hellos.end(over);
        let now = Instant(1).after(GREETING_TIMEOUT);
        assert_eq!(pending_hellos.next_overdue(now), Some((late, false)));
        assert_eq!(pending_hellos.next_overdue(now), Some((half, true)));
        assert_eq!((pending_hellos.next_overdue(now), pending_hellos.due()), (None, None));
    }

    #[test]
    fn hellos_beyond_the_places_wait_and_too_many_are_refused() {
        let mut pending_hellos = PendingHellos::new();
        for _ in 0..limits::HELLOS_IN_FLIGHT_MAX {
            assert!(pending_hellos.may_begin());
            pending_hellos.begin_claim();
        }
        for n in 0..limits::HELLOS_WAITING_MAX as u32 {
            assert!(pending_hellos.wait(conn(n), hello()));
        }
        assert!(!pending_hellos.wait(conn(7), hello()) && pending_hellos.next_waiting().is_none());
        pending_hellos.end_claim();
        assert_eq!(pending_hellos.next_waiting().map(|(conn, _)| conn), Some(conn(0)));
    }
}
