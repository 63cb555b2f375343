//! Pings and pong deadlines of idle sessions: what a session keeps, and a FIFO of the pings that are out. No timer
//! per connection. A silence is judged up to the input horizon: what waits in a socket until the shard comes to it is
//! in time.

use std::collections::VecDeque;

use crate::time::{Instant, TimeSpan};

use super::super::config::MachineConfig;
use super::super::slab::SlabKey;
use super::super::ticks::{has_come, span_ticks, ticks};
use super::queue::give_back;

/// The pings of one shard.
pub(in crate::shard) struct Keepalive {
    ping_interval: TimeSpan,
    pong_timeout: TimeSpan,
    ping_min_interval: TimeSpan,
    /// Pings that are out, in the order in which their pongs are due.
    pings: VecDeque<Ping>,
    /// Instant up to which the shard has processed all socket input.
    input_horizon: Instant,
}

/// A ping that is out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct Ping {
    due: Instant,
    session: SlabKey,
    odd: bool,
}

impl Ping {
    pub fn session(&self) -> SlabKey {
        self.session
    }
}

/// Ping state of one session: 10 bytes.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
pub(in crate::shard) struct PerSession {
    /// Time at which the next WebSocket Ping is due, in ticks.
    ping_due: u32,
    /// Time of the last answer to `{}`, in ticks; 0 is never.
    client_ping: u32,
    /// A WebSocket Ping is out.
    awaits_pong: bool,
    /// Every second ping: tells the deadline of one from that of the next.
    odd: bool,
}

const _: () = assert!(size_of::<PerSession>() == 10);

impl PerSession {
    /// A Pong came.
    pub fn pong(&mut self) {
        self.awaits_pong = false;
    }

    /// Returns true if the pong of exactly this ping is still to come. A shard that is late finds the deadline of a
    /// ping whose pong came beside that of the next.
    pub fn awaits(&self, ping: Ping) -> bool {
        self.awaits_pong && self.odd == ping.odd
    }
}

/// The session of a ping whose pong is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum PongState {
    /// The pong came, or the session has ended.
    Settled,
    /// A command waits for storage, and no input is taken until it is answered.
    Busy,
    /// Nothing came.
    Silent,
}

/// Decision on a pong that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum Verdict {
    /// Not judged before the input horizon has passed it; nor are those behind it.
    Wait,
    Stays,
    Ends,
}

/// Pongs that a shard which was held up gives more time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) struct HeldUp {
    /// Those that were due at this instant or later,
    pub since: Instant,
    /// are due at this one at the earliest.
    pub due: Instant,
}

impl Keepalive {
    pub fn new(config: &MachineConfig) -> Keepalive {
        Keepalive {
            ping_interval: config.ping_interval,
            pong_timeout: config.pong_timeout,
            ping_min_interval: config.ping_min_interval,
            pings: VecDeque::new(),
            input_horizon: Instant(u64::MAX),
        }
    }

    /// A new session. The first ping is jittered over the second half of the interval by the low bits of `hash`.
    pub fn begin(&self, now: Instant, hash: u64) -> PerSession {
        let interval = u64::from(span_ticks(self.ping_interval));
        let share = hash & 0xffff;
        let wait = interval - interval * share / 0x2_0000;
        let ping_due = ticks(now).wrapping_add(wait as u32);
        PerSession { ping_due, client_ping: 0, awaits_pong: false, odd: false }
    }

    /// Any frame of the user agent shows that it is there: the next ping is due an interval later.
    pub fn postpone(&self, now: Instant, session: &mut PerSession) {
        session.ping_due = ticks(now).wrapping_add(span_ticks(self.ping_interval));
    }

    /// Begins a ping of the session if one is due. The caller sends it.
    pub fn ping(&mut self, now: Instant, at: SlabKey, session: &mut PerSession) -> bool {
        let (now_ticks, interval) = (ticks(now), span_ticks(self.ping_interval));
        if interval == 0 || session.awaits_pong || !has_come(session.ping_due, now_ticks) {
            return false;
        }
        session.ping_due = now_ticks.wrapping_add(interval);
        session.awaits_pong = true;
        session.odd = !session.odd;
        self.pings.push_back(Ping { due: now.after(self.pong_timeout), session: at, odd: session.odd });
        true
    }

    /// The message `{}`: the first is always answered, the next not before the minimum interval. False when it came
    /// too soon.
    pub fn client_ping(&self, now: Instant, session: &mut PerSession) -> bool {
        let (now_ticks, last) = (ticks(now), session.client_ping);
        if last != 0 && now_ticks.wrapping_sub(last) < span_ticks(self.ping_min_interval) {
            return false;
        }
        session.client_ping = now_ticks;
        true
    }

    /// Returns when the next pong is due.
    pub fn due(&self) -> Option<Instant> {
        self.pings.front().map(|ping| ping.due)
    }

    /// Returns the first ping whose pong is due by now. [`Keepalive::judge`] must follow.
    pub fn overdue(&self, now: Instant) -> Option<Ping> {
        self.pings.front().copied().filter(|ping| ping.due <= now)
    }

    /// Judges the ping that [`Keepalive::overdue`] returned, and takes it out unless it has to wait.
    pub fn judge(&mut self, now: Instant, ping: Ping, state: PongState) -> Verdict {
        if state != PongState::Settled && ping.due > self.input_horizon {
            return Verdict::Wait;
        }
        let first = self.pings.pop_front();
        assert!(first == Some(ping), "the first ping is judged");
        match state {
            PongState::Settled => Verdict::Stays,
            PongState::Busy => {
                // Storage answers every command, so this ends.
                self.pings.push_back(Ping { due: now.after(self.pong_timeout), ..ping });
                Verdict::Stays
            }
            PongState::Silent => Verdict::Ends,
        }
    }

    /// Gives back what a burst made the queue grow to.
    pub fn give_back(&mut self) {
        give_back(&mut self.pings);
    }

    /// Moves the input horizon. A shard that was held up before it came to its input gives the pongs since then more
    /// time: `HeldUp` says which, for pings that are kept elsewhere.
    pub fn horizon_advanced(&mut self, now: Instant, until: Instant, late: bool) -> Option<HeldUp> {
        self.input_horizon = until;
        if !late {
            return None;
        }
        // A nanosecond before the pongs of pings that are written now: the next delay, which begins now, postpones
        // those and not these. A shard that is always late would postpone them for ever.
        let due = Instant(now.after(self.pong_timeout).0 - 1);
        let held_up = HeldUp { since: until.after(self.pong_timeout), due };
        for ping in self.pings.iter_mut().rev().take_while(|ping| ping.due >= held_up.since) {
            ping.due = ping.due.max(held_up.due);
        }
        Some(held_up)
    }

    /// Instant up to which the shard has processed all socket input: no silence beyond it is judged.
    pub fn input_horizon(&self) -> Instant {
        self.input_horizon
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn keepalive() -> Keepalive {
        Keepalive {
            ping_interval: TimeSpan::from_secs(300),
            pong_timeout: TimeSpan::from_secs(10),
            ping_min_interval: TimeSpan::from_secs(60),
            pings: VecDeque::new(),
            input_horizon: Instant(u64::MAX),
        }
    }

    fn at(index: u32) -> SlabKey {
        SlabKey { index, generation: 0 }
    }

    fn second(seconds: u64) -> Instant {
        Instant(0).after(TimeSpan::from_secs(seconds))
    }

    #[test]
    fn a_session_without_a_pong_ends_and_one_with_it_stays() {
        let mut keepalive = keepalive();
        let (mut silent, mut answers) = (keepalive.begin(second(0), 0), keepalive.begin(second(0), 0));
        assert!(!keepalive.ping(second(299), at(1), &mut silent));
        assert!(keepalive.ping(second(300), at(1), &mut silent));
        assert!(keepalive.ping(second(300), at(2), &mut answers));
        assert!(!keepalive.ping(second(900), at(1), &mut silent), "one ping is out");
        answers.pong();
        assert_eq!((keepalive.due(), keepalive.overdue(second(309))), (Some(second(310)), None));
        let first = keepalive.overdue(second(310)).unwrap();
        assert!(first.session() == at(1) && silent.awaits(first));
        assert_eq!(keepalive.judge(second(310), first, PongState::Silent), Verdict::Ends);
        let next = keepalive.overdue(second(310)).unwrap();
        assert!(!answers.awaits(next));
        assert_eq!(keepalive.judge(second(310), next, PongState::Settled), Verdict::Stays);
        assert_eq!(keepalive.due(), None);
    }

    #[test]
    fn a_silence_beyond_the_input_horizon_waits_and_a_busy_session_gets_more_time() {
        let mut keepalive = keepalive();
        let mut session = keepalive.begin(second(0), 0);
        assert!(keepalive.ping(second(300), at(1), &mut session));
        assert_eq!(keepalive.horizon_advanced(second(311), second(309), false), None);
        let ping = keepalive.overdue(second(311)).unwrap();
        assert_eq!(keepalive.judge(second(311), ping, PongState::Silent), Verdict::Wait);
        keepalive.horizon_advanced(second(312), second(312), false);
        assert_eq!(keepalive.judge(second(312), ping, PongState::Busy), Verdict::Stays);
        assert_eq!(keepalive.due(), Some(second(322)));
    }

    #[test]
    fn pings_that_a_late_shard_wrote_count_from_now() {
        let mut keepalive = keepalive();
        let (mut one, mut other) = (keepalive.begin(second(0), 0), keepalive.begin(second(0), 0));
        assert!(keepalive.ping(second(300), at(1), &mut one));
        assert!(keepalive.ping(second(305), at(2), &mut other));
        let held_up = keepalive.horizon_advanced(second(320), second(303), true);
        let due = Instant(second(330).0 - 1);
        assert_eq!(held_up, Some(HeldUp { since: second(313), due }));
        assert_eq!(keepalive.pings.iter().map(|ping| ping.due).collect::<Vec<_>>(), [second(310), due]);
    }

    /// A ping of the instant at which a delay ends goes out with the next turn, into which the next delay may fall.
    #[test]
    fn a_delay_postpones_a_pong_once_and_leaves_one_of_its_last_instant_to_the_next() {
        let mut keepalive = keepalive();
        let (mut one, mut other) = (keepalive.begin(second(0), 0), keepalive.begin(second(0), 0));
        assert!(keepalive.ping(second(300), at(1), &mut one));
        assert!(keepalive.ping(second(302), at(2), &mut other));
        let just_before = |at: Instant| Instant(at.0 - 1);
        let due = |keepalive: &Keepalive| keepalive.pings.iter().map(|ping| ping.due).collect::<Vec<_>>();
        keepalive.horizon_advanced(second(302), second(299), true);
        assert_eq!(due(&keepalive), [just_before(second(312)), second(312)]);
        keepalive.horizon_advanced(second(320), second(302), true);
        assert_eq!(due(&keepalive), [just_before(second(312)), just_before(second(330))]);
    }

    #[test]
    fn the_message_ping_has_a_minimum_interval() {
        let keepalive = keepalive();
        let mut session = keepalive.begin(second(5), 0);
        assert!(keepalive.client_ping(second(5), &mut session));
        assert!(!keepalive.client_ping(second(64), &mut session));
        assert!(keepalive.client_ping(second(65), &mut session));
    }

    proptest! {
        /// The first ping comes in the second half of the interval, and the deadline of a ping whose pong came ends no
        /// session, also after later pings.
        #[test]
        fn a_pong_answers_its_own_ping(hash: u64, pongs in prop::collection::vec(any::<bool>(), 1..20)) {
            let mut keepalive = keepalive();
            let mut session = keepalive.begin(second(0), hash);
            prop_assert!(!keepalive.ping(second(149), at(1), &mut session));
            let mut now = 301;
            for pong in pongs {
                prop_assert!(keepalive.ping(second(now), at(1), &mut session));
                if pong {
                    session.pong();
                }
                let ping = keepalive.pings.back().copied().unwrap();
                prop_assert_eq!(session.awaits(ping), !pong);
                prop_assert_eq!(keepalive.pings.len(), 1);
                let state = if pong { PongState::Settled } else { PongState::Silent };
                let verdict = keepalive.judge(second(now + 10), ping, state);
                prop_assert_eq!(verdict == Verdict::Ends, !pong);
                if !pong {
                    return Ok(());
                }
                now += 301;
            }
        }
    }
}
