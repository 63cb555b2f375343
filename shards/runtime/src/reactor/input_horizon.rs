//! Input horizon: the instant up to which the shard has processed all socket input. Silences are measured against it.
//!
//! A shard that was not let run, or that has more to read than one turn takes, finds deadlines passed while the answers
//! wait in its sockets. Then the shard is late, not the peer. So it keeps the instant until which all input that had
//! arrived has been told to the machine. The machine ([`Input::HorizonAdvanced`]) and [`super::http_timeouts`] end no
//! connection for a silence beyond it.
//!
//! It is found in rounds of about two turns, one after the other without a gap: what is readable when a round begins is
//! reaped, received, and decoded, then it is over. Every step of a round waits for a number that was counted before, so
//! that a shard which is never idle ends its rounds, too. Input that waits behind a connection's own command, or behind
//! its own requests that were answered in the round, is not heard: the machine knows of the former, and the latter end
//! a silence. Nor are TLS handshakes in line that have not begun: their time counts from the accept, read or not.
//!
//! [`Input::HorizonAdvanced`]: machine::Input::HorizonAdvanced

use machine::time::{Instant, TimeSpan};

use super::lines::{InLine, LINES, Line};

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
    /// Connections left to be read: in line for a span, and in each line.
    Feed(usize, [usize; LINES]),
    /// The next submission: it receives.
    Receive,
    /// Completions left to be handled: bytes are in line to be decoded.
    Received(usize),
    /// Connections left to be decoded, in each line.
    Decode([usize; LINES]),
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

    /// Counts handled completions. `starved` connections are in line for a span.
    pub(super) fn handled(&mut self, completions: usize, starved: usize, in_line: InLine) {
        match &mut self.step {
            HorizonPhase::Readable(left) => {
                *left = left.saturating_sub(completions);
                if *left == 0 {
                    self.step = HorizonPhase::Feed(starved, in_line.waiting);
                    self.fed_all();
                }
            }
            HorizonPhase::Received(left) => {
                *left = left.saturating_sub(completions);
                if *left == 0 {
                    self.step = HorizonPhase::Decode(in_line.received);
                }
            }
            _ => {}
        }
    }

    /// A connection of this line was taken from those that wait in it.
    pub(super) fn fed(&mut self, line: Line) {
        if let HorizonPhase::Feed(_, left) = &mut self.step {
            let left = &mut left[line as usize];
            *left = left.saturating_sub(1);
            self.fed_all();
        }
    }

    /// Counts connections that were taken from the line for a span.
    pub(super) fn fed_starved(&mut self, connections: usize) {
        if let HorizonPhase::Feed(left, _) = &mut self.step {
            *left = left.saturating_sub(connections);
            self.fed_all();
        }
    }

    fn fed_all(&mut self) {
        if matches!(self.step, HorizonPhase::Feed(0, left) if left == [0; LINES]) {
            self.step = HorizonPhase::Receive;
        }
    }

    /// A connection that is taken from its line finds no span: it is in line for one now. [`InputHorizon::fed`]
    /// follows.
    pub(super) fn starved(&mut self) {
        if let HorizonPhase::Feed(left, _) = &mut self.step {
            *left += 1;
        }
    }

    /// The bytes of a connection of this line are decoded.
    pub(super) fn decoded(&mut self, line: Line) {
        if let HorizonPhase::Decode(left) = &mut self.step {
            let left = &mut left[line as usize];
            *left = left.saturating_sub(1);
        }
    }

    /// The lines had their turn, which began at `now`. Returns the new horizon if the shard was late.
    pub(super) fn served(&mut self, now: Instant) -> Option<Instant> {
        if !matches!(self.step, HorizonPhase::Decode(left) if left == [0; LINES]) {
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

    fn in_line(line: Line, waiting: usize, received: usize) -> InLine {
        let mut in_line = InLine::default();
        in_line.waiting[line as usize] = waiting;
        in_line.received[line as usize] = received;
        in_line
    }

    fn nothing() -> InLine {
        InLine::default()
    }

    #[test]
    fn a_round_is_over_when_what_had_arrived_is_decoded() {
        let mut input_horizon = InputHorizon::new(ms(0));
        assert_eq!(input_horizon.news(), Some(ms(0)));
        enter(&mut input_horizon, 1, 3);
        input_horizon.handled(2, 0, nothing());
        assert_eq!(input_horizon.served(ms(1)), None);
        enter(&mut input_horizon, 2, 9);
        input_horizon.handled(1, 0, nothing());
        // Input that became readable meanwhile belongs to another round.
        enter(&mut input_horizon, 3, 2);
        input_horizon.handled(2, 0, in_line(Line::Sessions, 7, 2));
        input_horizon.decoded(Line::Sessions);
        input_horizon.decoded(Line::Senders);
        assert_eq!((input_horizon.served(ms(3)), input_horizon.news()), (None, None), "one is still in line");
        enter(&mut input_horizon, 4, 0);
        input_horizon.handled(0, 0, in_line(Line::Sessions, 7, 5));
        input_horizon.decoded(Line::Sessions);
        assert_eq!(input_horizon.served(ms(4)), None, "in time: told when it is asked for");
        assert_eq!(input_horizon.news(), None, "it was told of that instant");
        for turn in [5, 6] {
            enter(&mut input_horizon, turn, 0);
            input_horizon.handled(0, 0, nothing());
            assert_eq!(input_horizon.served(ms(turn)), None);
        }
        assert_eq!(input_horizon.news(), Some(ms(4)), "the next began when the first was over");
    }

    #[test]
    fn what_the_kernel_keeps_back_is_waited_for_but_not_for_ever() {
        for (turns, more) in [(3, false), (100 / REAPED_AT_LEAST as u64, true)] {
            let mut input_horizon = InputHorizon::new(ms(0));
            for turn in 0..turns {
                input_horizon.entered(ms(turn), SubmitResult { ready: 0, more: true, connections: 100 });
                input_horizon.handled(usize::MAX, 0, nothing());
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
        input_horizon.handled(9, 0, in_line(Line::Sessions, 2, 0));
        input_horizon.fed(Line::Sessions);
        input_horizon.starved();
        input_horizon.fed(Line::Sessions);
        assert!(matches!(input_horizon.step, HorizonPhase::Feed(1, left) if left == [0; LINES]));
        input_horizon.fed_starved(1);
        assert!(matches!(input_horizon.step, HorizonPhase::Receive));
    }

    #[test]
    fn who_waits_for_a_span_is_waited_for() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 9);
        input_horizon.handled(9, 5, nothing());
        input_horizon.fed_starved(4);
        enter(&mut input_horizon, 2, 4);
        input_horizon.handled(4, 1, nothing());
        assert_eq!(input_horizon.served(ms(2)), None);
        input_horizon.fed_starved(1);
        enter(&mut input_horizon, 3, 1);
        input_horizon.handled(1, 0, nothing());
        input_horizon.served(ms(3));
        enter(&mut input_horizon, 4, 0);
        input_horizon.handled(0, 0, nothing());
        enter(&mut input_horizon, 5, 0);
        input_horizon.handled(0, 0, nothing());
        input_horizon.served(ms(5));
        assert_eq!(input_horizon.news(), Some(ms(3)), "the first ended with the last of them");
    }

    #[test]
    fn a_round_waits_for_newcomers_that_were_readable_when_it_began() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 9);
        input_horizon.handled(9, 1, in_line(Line::Newcomers, 5, 0));
        input_horizon.fed_starved(1);
        (0..4).for_each(|_| input_horizon.fed(Line::Newcomers));
        for turn in [2, 3] {
            enter(&mut input_horizon, turn, 0);
            input_horizon.handled(0, 0, in_line(Line::Newcomers, 7, 0));
            assert_eq!(input_horizon.served(ms(turn)), None);
        }
        input_horizon.fed(Line::Newcomers);
        enter(&mut input_horizon, 4, 1);
        input_horizon.handled(1, 0, in_line(Line::Newcomers, 6, 0));
        input_horizon.served(ms(4));
        assert_eq!((input_horizon.until, input_horizon.since), (ms(0), ms(4)), "the round is over");
    }

    #[test]
    fn a_round_that_took_long_is_told_at_once_and_a_sleep_is_none() {
        let mut input_horizon = InputHorizon::new(ms(0));
        enter(&mut input_horizon, 1, 0);
        input_horizon.handled(0, 0, nothing());
        enter(&mut input_horizon, 3_000, 1);
        input_horizon.handled(1, 0, nothing());
        assert_eq!(input_horizon.served(ms(3_000)), Some(ms(0)));
        input_horizon.slept();
        for at in [9_000, 9_001] {
            enter(&mut input_horizon, at, 0);
            input_horizon.handled(0, 0, nothing());
            assert_eq!(input_horizon.served(ms(at)), None);
        }
        assert_eq!(input_horizon.news(), Some(ms(9_000)));
    }
}
