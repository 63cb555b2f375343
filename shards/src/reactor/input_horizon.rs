//! Input horizon: the instant up to which the shard has processed all socket input. Silences are measured against it.
//!
//! A shard that was not let run, or that has more to read than one turn takes, finds deadlines passed while the answers
//! wait in its sockets. Then the shard is late, not the peer. So it keeps the instant until which all input that had
//! arrived has been told to the machine. The machine ([`Input::HorizonAdvanced`]) and [`super::http_timeouts`] end no
//! connection for a silence beyond it.
//!
//! It is found in rounds of about two turns, one after the other without a gap: what is readable when a round begins is
//! reaped, received, and decoded, then it is over. Every step of a round waits for a number that was counted before, so
//! that a shard which is never idle ends its rounds, too. Input that waits behind a connection's own command is not
//! heard: the machine knows of that. Nor are TLS handshakes in line: their time counts from the accept, read or not.
//!
//! [`Input::HorizonAdvanced`]: machine::Input::HorizonAdvanced

use machine::time::{Instant, TimeSpan};

/// The round that is under way, and the result of the last one.
pub(super) struct InputHorizon {
    /// Start of the round: input that had arrived by then is heard when the round is over.
    since: Instant,
    step: HorizonPhase,
    /// Horizon that the last round has reached.
    until: Instant,
    /// Horizon that the machine was told last.
    told: Option<Instant>,
    /// The shard slept; nothing waits, and the round begins anew.
    slept: bool,
}

/// State of the rings after a submission.
#[derive(Clone, Copy)]
pub(super) struct SubmitResult {
    /// Completions that wait to be handled.
    pub ready: usize,
    /// The kernel has more for us.
    pub more: bool,
    pub connections: u32,
}

/// The event that a round waits for.
#[derive(Clone, Copy)]
enum HorizonPhase {
    /// Submissions; holds the number made so far. They reap the sockets that had become readable, the oldest first.
    Reap(u32),
    /// Completions left to be handled: their receives are staged, or in line for a span.
    Readable(usize),
    /// Connections left to be read: in line for a span, sessions, and newcomers.
    Feed([usize; 3]),
    /// The next submission: it receives.
    Receive,
    /// Completions left to be handled: bytes are decoded or in line for it.
    Received(usize),
    /// Connections left to be decoded.
    Decode(usize),
}

/// Pieces of a ring's deferred work, which post completions, that the kernel does at least with each submission (20
/// since 6.13, all of them before). It leaves the rest to the next.
const REAPED_AT_LEAST: u32 = 16;

/// A round that takes longer is told at once: pings that were written within it have only now been sent.
pub(super) const LATE: TimeSpan = TimeSpan::from_ms(200);

impl InputHorizon {
    pub(super) fn new(now: Instant) -> InputHorizon {
        InputHorizon { since: now, step: HorizonPhase::Reap(0), until: now, told: None, slept: false }
    }

    /// The shard slept, and would not have if anything had waited.
    pub(super) fn slept(&mut self) {
        self.slept = true;
    }

    /// Instant up to which all input was read: no silence beyond it is judged.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Returns true if the next submission must say whether the kernel has more.
    pub(super) fn reaps(&self) -> bool {
        self.slept || matches!(self.step, HorizonPhase::Reap(_))
    }

    /// A submission of the turn that began at `now`.
    pub(super) fn entered(&mut self, now: Instant, found: SubmitResult) {
        if std::mem::take(&mut self.slept) {
            (self.since, self.step) = (now, HorizonPhase::Reap(0));
        }
        match &mut self.step {
            // A ring that is flagged all the time has been worked off in the end: each connection polls once.
            HorizonPhase::Reap(turns) if found.more && *turns < found.connections / REAPED_AT_LEAST => *turns += 1,
            HorizonPhase::Reap(_) => self.step = HorizonPhase::Readable(found.ready),
            HorizonPhase::Receive => self.step = HorizonPhase::Received(found.ready),
            _ => {}
        }
    }

    /// Counts handled completions. `unread` connections are in line for a span, as sessions, and as newcomers,
    /// `undecoded` ones for being decoded.
    pub(super) fn handled(&mut self, completions: usize, unread: [usize; 3], undecoded: usize) {
        match &mut self.step {
            HorizonPhase::Readable(left) => {
                *left = left.saturating_sub(completions);
                if *left == 0 {
                    self.step = if unread == [0; 3] { HorizonPhase::Receive } else { HorizonPhase::Feed(unread) };
                }
            }
            HorizonPhase::Received(left) => {
                *left = left.saturating_sub(completions);
                if *left == 0 {
                    self.step = HorizonPhase::Decode(undecoded);
                }
            }
            _ => {}
        }
    }

    /// Counts connections that were taken from the lines of [`InputHorizon::handled`].
    pub(super) fn fed(&mut self, connections: [usize; 3]) {
        let HorizonPhase::Feed(left) = &mut self.step else { return };
        left.iter_mut().zip(connections).for_each(|(left, fed)| *left = left.saturating_sub(fed));
        if *left == [0; 3] {
            self.step = HorizonPhase::Receive;
        }
    }

    /// Counts connections that were taken from another line and found no span: they are in line for one now.
    pub(super) fn starved(&mut self, connections: usize) {
        if let HorizonPhase::Feed(left) = &mut self.step {
            left[0] += connections;
        }
    }

    /// Counts connections of the line that were decoded in the turn that began at `now`. Returns the new horizon if the
    /// shard was late.
    pub(super) fn decoded(&mut self, now: Instant, connections: usize) -> Option<Instant> {
        let HorizonPhase::Decode(left) = &mut self.step else { return None };
        *left = left.saturating_sub(connections);
        if *left > 0 {
            return None;
        }
        self.until = self.since;
        (self.since, self.step) = (now, HorizonPhase::Reap(0));
        (now.since(self.until) >= LATE).then_some(self.until)
    }

    /// Returns the horizon if the machine was not told.
    pub(super) fn news(&mut self) -> Option<Instant> {
        let news = (self.told != Some(self.until)).then_some(self.until);
        self.told = Some(self.until);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Instant {
        Instant(ms * 1_000_000)
    }

    fn enter(input_horizon: &mut InputHorizon, at: u64, ready: usize) {
        input_horizon.entered(ms(at), SubmitResult { ready, more: false, connections: 100 });
    }

    #[test]
    fn a_round_is_over_when_what_had_arrived_is_decoded() {
        let mut input_horizon = InputHorizon::new(ms(0));
        assert_eq!(input_horizon.news(), Some(ms(0)));
        enter(&mut input_horizon, 1, 3);
        input_horizon.handled(2, [0, 0, 0], 0);
        assert_eq!(input_horizon.decoded(ms(1), 0), None);
        enter(&mut input_horizon, 2, 9);
        input_horizon.handled(1, [0, 0, 0], 0);
        // Input that became readable meanwhile belongs to another round.
        enter(&mut input_horizon, 3, 2);
        input_horizon.handled(2, [0, 0, 0], 2);
        assert_eq!((input_horizon.decoded(ms(3), 1), input_horizon.news()), (None, None), "one is still in line");
        enter(&mut input_horizon, 4, 0);
        input_horizon.handled(0, [0, 0, 0], 5);
        assert_eq!(input_horizon.decoded(ms(4), 1), None, "in time: told when it is asked for");
        assert_eq!(input_horizon.news(), None, "it was told of that instant");
        for turn in [5, 6] {
            enter(&mut input_horizon, turn, 0);
            input_horizon.handled(0, [0, 0, 0], 0);
            assert_eq!(input_horizon.decoded(ms(turn), 0), None);
        }
        assert_eq!(input_horizon.news(), Some(ms(4)), "the next began when the first was over");
    }

    #[test]
    fn what_the_kernel_keeps_back_is_waited_for_but_not_for_ever() {
        for (turns, more) in [(3, false), (100 / REAPED_AT_LEAST as u64, true)] {
            let mut input_horizon = InputHorizon::new(ms(0));
            for turn in 0..turns {
                input_horizon.entered(ms(turn), SubmitResult { ready: 0, more: true, connections: 100 });
                input_horizon.handled(usize::MAX, [0, 0, 0], 0);
                assert!(matches!(input_horizon.step, HorizonPhase::Reap(_)), "turn {turn}");
            }
            input_horizon.entered(ms(9), SubmitResult { ready: 4, more, connections: 100 });
            assert!(matches!(input_horizon.step, HorizonPhase::Readable(4)));
        }
    }

    #[test]
    fn a_session_that_finds_no_span_is_waited_for_in_the_line_for_one() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 9);
        input_horizon.handled(9, [0, 2, 0], 0);
        input_horizon.starved(1);
        input_horizon.fed([0, 2, 0]);
        assert!(matches!(input_horizon.step, HorizonPhase::Feed([1, 0, 0])));
        input_horizon.fed([1, 0, 0]);
        assert!(matches!(input_horizon.step, HorizonPhase::Receive));
    }

    #[test]
    fn who_waits_for_a_span_is_waited_for() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 9);
        input_horizon.handled(9, [5, 0, 0], 0);
        input_horizon.fed([4, 0, 0]);
        enter(&mut input_horizon, 2, 4);
        input_horizon.handled(4, [1, 0, 0], 0);
        assert_eq!(input_horizon.decoded(ms(2), 0), None);
        input_horizon.fed([1, 0, 0]);
        enter(&mut input_horizon, 3, 1);
        input_horizon.handled(1, [0, 0, 0], 0);
        input_horizon.decoded(ms(3), 0);
        enter(&mut input_horizon, 4, 0);
        input_horizon.handled(0, [0, 0, 0], 0);
        enter(&mut input_horizon, 5, 0);
        input_horizon.handled(0, [0, 0, 0], 0);
        input_horizon.decoded(ms(5), 0);
        assert_eq!(input_horizon.news(), Some(ms(3)), "the first ended with the last of them");
    }

    #[test]
    fn a_round_waits_for_newcomers_that_were_readable_when_it_began() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 9);
        input_horizon.handled(9, [1, 0, 5], 0);
        input_horizon.fed([1, 0, 0]);
        input_horizon.fed([0, 0, 4]);
        for turn in [2, 3] {
            enter(&mut input_horizon, turn, 0);
            input_horizon.handled(0, [0, 0, 7], 0);
            assert_eq!(input_horizon.decoded(ms(turn), 0), None);
        }
        input_horizon.fed([0, 0, 1]);
        enter(&mut input_horizon, 4, 1);
        input_horizon.handled(1, [0, 0, 6], 0);
        input_horizon.decoded(ms(4), 0);
        assert_eq!((input_horizon.until, input_horizon.since), (ms(0), ms(4)), "the round is over");
    }

    #[test]
    fn a_round_that_took_long_is_told_at_once_and_a_sleep_is_none() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 0);
        input_horizon.handled(0, [0, 0, 0], 0);
        enter(&mut input_horizon, 3_000, 1);
        input_horizon.handled(1, [0, 0, 0], 0);
        assert_eq!(input_horizon.decoded(ms(3_000), 0), Some(ms(0)));
        input_horizon.slept();
        for at in [9_000, 9_001] {
            enter(&mut input_horizon, at, 0);
            input_horizon.handled(0, [0, 0, 0], 0);
            assert_eq!(input_horizon.decoded(ms(at), 0), None);
        }
        assert_eq!(input_horizon.news(), Some(ms(9_000)));
    }
}
