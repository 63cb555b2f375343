//! The radio of a phone: a model that counts its wake-ups.
//!
//! A radio that carries a frame, in either direction, stays awake for a time behind it (the inactivity timer of the
//! network). A *wake-up* is the first frame after a silence that is longer than this time. Both the energy of a phone
//! and the signalling of its network go with the number of wake-ups, not with the number of frames.

use std::time::{Duration, Instant};

/// Sender and purpose of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cause {
    /// The phone pings, or its ping is answered.
    ClientPing,
    /// The server pings.
    ServerPing,
    /// A notification comes, and is acked at once.
    Notification,
}

/// All causes, in the order of [`Wakeups`].
pub(super) const CAUSES: [(Cause, &str); 3] = [
    (Cause::ClientPing, "by own ping"),
    (Cause::ServerPing, "by ping of the server"),
    (Cause::Notification, "by notification"),
];

/// Wake-ups by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Wakeups([u64; CAUSES.len()]);

impl Wakeups {
    pub fn of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The radios of some phones. All are awake at first.
#[derive(Debug)]
pub(super) struct Radios {
    /// Time from a frame to the sleep of the radio.
    tail: Duration,
    /// Time of the last frame of each phone.
    last: Vec<Instant>,
    wakeups: Vec<Wakeups>,
}

impl Radios {
    pub fn new(phones: usize, tail: Duration, begin: Instant) -> Radios {
        Radios { tail, last: vec![begin; phones], wakeups: vec![Wakeups::default(); phones] }
    }

    /// Counts a frame of this phone at this time. True when its radio slept.
    pub fn frame(&mut self, phone: usize, at: Instant, cause: Cause) -> bool {
        // Events of one turn may be handed out in another order than that of their times.
        let slept = at.saturating_duration_since(self.last[phone]) > self.tail;
        self.last[phone] = self.last[phone].max(at);
        self.wakeups[phone].0[cause as usize] += u64::from(slept);
        slept
    }

    /// The sum over the phones of which `chosen` is true.
    pub fn sum(&self, chosen: impl Fn(usize) -> bool) -> Wakeups {
        let mut sum = Wakeups::default();
        for (_, wakeups) in self.wakeups.iter().enumerate().filter(|(phone, _)| chosen(*phone)) {
            sum.0.iter_mut().zip(wakeups.0).for_each(|(sum, one)| *sum += one);
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: Duration = Duration::from_secs(10);

    #[test]
    fn a_wakeup_is_a_frame_after_a_silence_longer_than_the_tail() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut radios = Radios::new(2, TAIL, begin);
        assert!(!radios.frame(0, at(10_000), Cause::Notification), "the radio is awake at first, and up to its tail");
        assert!(!radios.frame(0, at(20_000), Cause::ClientPing), "each frame prolongs the time awake");
        assert!(radios.frame(0, at(30_001), Cause::Notification));
        assert!(!radios.frame(0, at(30_001), Cause::ServerPing), "the second of two frames wakes nothing");
        assert!(!radios.frame(0, at(30_500), Cause::Notification));
        assert!(radios.frame(1, at(60_000), Cause::ServerPing), "each phone has a radio of its own");
        let all = radios.sum(|_| true);
        let counts = CAUSES.map(|(cause, _)| all.of(cause));
        assert_eq!((counts, all.sum()), ([0, 1, 1], 2));
        assert_eq!(radios.sum(|phone| phone == 0).sum(), 1);
    }

    #[test]
    fn an_older_frame_does_not_shorten_the_time_awake() {
        let begin = Instant::now();
        let mut radios = Radios::new(1, TAIL, begin);
        let at = |secs| begin + Duration::from_secs(secs);
        assert!(radios.frame(0, at(40), Cause::ClientPing));
        assert!(!radios.frame(0, at(39), Cause::Notification));
        assert!(!radios.frame(0, at(50), Cause::Notification), "10 s behind the later frame");
    }

    #[test]
    fn pings_within_the_tail_keep_a_radio_awake_and_those_beyond_it_wake_it_each_time() {
        let begin = Instant::now();
        for (interval, expected) in [(9, 0), (60, 59)] {
            let mut radios = Radios::new(1, TAIL, begin);
            for second in (0..3_600).step_by(interval) {
                radios.frame(0, begin + Duration::from_secs(second), Cause::ClientPing);
            }
            assert_eq!(radios.sum(|_| true).of(Cause::ClientPing), expected);
        }
    }
}
