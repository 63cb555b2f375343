//! Pace of one session: number of notifications that may go out now (decision 0020).
//!
//! Two rules. **Out**: at most [`BURST_MESSAGES`] are sent and unacked; a second without a send and without an ack
//! allows as many more. So a user agent that acks what it has read never has more than one burst to read, and a session
//! does not wait for one that acks rarely. **Fresh**: of the unacked ones, at most [`BURST_MESSAGES`] were sent since
//! the last second without a frame. So an ack of a hundred old ones does not let a hundred new ones out at once: a user
//! agent in use closes its connection at 64 frames that it has not read.
//!
//! Lives in the entry of a session that has something under way: an idle session has none.

use crate::limits::BURST_MESSAGES;
use crate::time::{Instant, TimeSpan};

/// Time without an ack that allows another burst.
const PAUSE: TimeSpan = TimeSpan::from_secs(1);

/// The pace of one session. Owner shard only.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    /// Number of notifications that are sent and unacked.
    out: u16,
    /// Number of messages beyond one burst that may be out.
    more: u16,
    /// Number of those out that were sent in this burst.
    fresh: u16,
    /// Number of this burst; wraps.
    burst: u16,
    /// Time of the last notification.
    sent: Instant,
    /// Time of the last ack.
    acked: Instant,
}

impl Pace {
    /// Returns the number that may go out now. Depends only on the unacked messages and the time.
    pub fn room(&self, now: Instant) -> u16 {
        self.allowed(now).saturating_sub(self.out).min(self.room_again(now))
    }

    /// Returns the number of unacked messages that may be sent again now.
    pub fn room_again(&self, now: Instant) -> u16 {
        if now >= self.sent.after(PAUSE) { BURST_MESSAGES } else { BURST_MESSAGES.saturating_sub(self.fresh) }
    }

    /// Returns the latest time at which there is room without a further ack.
    pub fn due(&self) -> Instant {
        self.sent.max(self.acked).after(PAUSE)
    }

    /// Returns the number of messages that are sent and unacked.
    pub fn out(&self) -> u16 {
        self.out
    }

    /// Counts a sent notification. Returns the burst that it belongs to, which its entry keeps.
    pub fn send(&mut self, now: Instant) -> u16 {
        self.more = self.allowed(now) - BURST_MESSAGES;
        self.out += 1;
        self.count_fresh(now)
    }

    /// Counts an unacked notification that is sent again. Returns the burst that it belongs to from now on.
    pub fn send_again(&mut self, now: Instant, burst: u16) -> u16 {
        if burst == self.burst {
            self.fresh = self.fresh.saturating_sub(1);
        }
        self.count_fresh(now)
    }

    fn count_fresh(&mut self, now: Instant) -> u16 {
        if now >= self.sent.after(PAUSE) {
            self.burst = self.burst.wrapping_add(1);
            self.fresh = 0;
        }
        self.fresh += 1;
        self.sent = now;
        self.burst
    }

    /// Removes one of this burst that ended, or that the socket did not take.
    pub fn take(&mut self, burst: u16) {
        self.out = self.out.saturating_sub(1);
        if burst == self.burst {
            self.fresh = self.fresh.saturating_sub(1);
        }
    }

    /// Counts an ack. `out_before` is the number of messages that were out before it. The ack makes room at once for as
    /// many messages as it ended, and no more: unused room of earlier silence is given back.
    pub fn ack(&mut self, now: Instant, out_before: u16) {
        self.acked = now;
        self.more = self.more.min(out_before.saturating_sub(BURST_MESSAGES));
    }

    /// Notes that the socket takes bytes again: the time in which it took none was no silence of the user agent.
    pub fn resume(&mut self, now: Instant) {
        self.sent = self.sent.max(now);
    }

    fn allowed(&self, now: Instant) -> u16 {
        let allowed = BURST_MESSAGES + self.more;
        if now >= self.due() { allowed.max(self.out.saturating_add(BURST_MESSAGES)) } else { allowed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn at(ms: u64) -> Instant {
        Instant(10_000_000_000).after(TimeSpan::from_ms(ms))
    }

    /// Sends as many notifications as there is room for.
    fn fill(pace: &mut Pace, now: Instant) -> u16 {
        let room = pace.room(now);
        (0..room).for_each(|_| _ = pace.send(now));
        room
    }

    #[test]
    fn fifty_at_once_and_fifty_more_for_each_silent_second() {
        let mut pace = Pace::default();
        assert_eq!(fill(&mut pace, at(0)), 50);
        assert_eq!(fill(&mut pace, at(999)), 0);
        assert_eq!(pace.due(), at(1_000));
        for second in 1..10 {
            assert_eq!(fill(&mut pace, at(second * 1_000)), 50);
        }
        assert_eq!(pace.out(), 500);
    }

    #[test]
    fn an_ack_makes_room_at_once_and_ends_the_silence() {
        let mut pace = Pace::default();
        let burst = pace.send(at(0));
        (1..50).for_each(|_| _ = pace.send(at(0)));
        pace.take(burst);
        pace.ack(at(900), 50);
        assert_eq!(fill(&mut pace, at(900)), 1);
        assert_eq!(fill(&mut pace, at(1_899)), 0, "one that acks one a second has 50 unacked, not more");
        assert_eq!(fill(&mut pace, at(1_900)), 50);
    }

    #[test]
    fn an_ack_of_old_ones_makes_room_for_as_many_and_never_for_two_bursts_at_once() {
        let mut pace = Pace::default();
        let bursts: Vec<u16> = (0..6).flat_map(|n| (0..50).map(move |_| n)).map(|n| pace.send(at(n * 1_000))).collect();
        assert_eq!(pace.out(), 300);
        // One by one, within no time.
        let mut sent = 0;
        for burst in &bursts[..250] {
            let before = pace.out();
            pace.take(*burst);
            pace.ack(at(7_000), before);
            sent += fill(&mut pace, at(7_000));
        }
        assert_eq!(sent, 50, "not 250");
        assert_eq!(fill(&mut pace, at(8_000)), 50);
    }

    #[test]
    fn time_in_which_the_socket_took_nothing_is_no_silence() {
        let mut pace = Pace::default();
        assert_eq!(fill(&mut pace, at(0)), 50);
        pace.resume(at(30_000));
        assert_eq!(fill(&mut pace, at(30_999)), 0);
        assert_eq!(fill(&mut pace, at(31_000)), 50);
    }

    #[test]
    fn what_is_sent_again_counts_as_sent() {
        let mut pace = Pace::default();
        let first: Vec<u16> = (0..50).map(|_| pace.send(at(0))).collect();
        assert_eq!(pace.room_again(at(60_000)), 50);
        first.iter().for_each(|burst| _ = pace.send_again(at(60_000), *burst));
        assert_eq!((pace.out(), pace.room_again(at(60_000)), pace.room(at(60_900))), (50, 0, 0));
        assert_eq!(pace.room(at(61_000)), 50);
    }

    #[derive(Clone, Debug)]
    enum Act {
        Pass(u64),
        Send(u16),
        /// Number of acked messages, of the oldest or of the newest.
        Ack(usize, bool),
        Again(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            (0u64..1_500).prop_map(Act::Pass),
            (1u16..100).prop_map(Act::Send),
            (1usize..120, any::<bool>()).prop_map(|(count, old)| Act::Ack(count, old)),
            (1usize..60).prop_map(Act::Again),
        ]
    }

    proptest! {
        /// Property: within half a second at most one burst is sent and unacked, with any acks at any time.
        #[test]
        fn no_half_second_has_more_than_one_burst_unacked(acts in prop::collection::vec(act(), 1..200)) {
            let mut pace = Pace::default();
            let mut now = at(0);
            let mut out: VecDeque<(Instant, u16)> = VecDeque::new();
            for act in acts {
                match act {
                    Act::Pass(ms) => now = now.after(TimeSpan::from_ms(ms)),
                    Act::Send(most) => {
                        for _ in 0..pace.room(now).min(most) {
                            out.push_back((now, pace.send(now)));
                        }
                    }
                    Act::Ack(count, old) => {
                        let before = pace.out();
                        for _ in 0..count {
                            let Some((_, burst)) = (if old { out.pop_front() } else { out.pop_back() }) else { break };
                            pace.take(burst);
                        }
                        pace.ack(now, before);
                    }
                    Act::Again(count) => {
                        for _ in 0..count.min(usize::from(pace.room_again(now))) {
                            let Some((_, burst)) = out.pop_front() else { break };
                            out.push_back((now, pace.send_again(now, burst)));
                        }
                    }
                }
                prop_assert_eq!(usize::from(pace.out()), out.len());
                let recent = out.iter().filter(|(sent, _)| sent.after(TimeSpan::from_ms(500)) > now).count();
                prop_assert!(recent <= usize::from(BURST_MESSAGES), "{} unacked within half a second", recent);
                // It always goes on by itself.
                prop_assert!(pace.room(pace.due()) > 0);
            }
        }
    }
}
