//! The time in which a hello must come: sockets that are silent for longer are looked for a few times per timeout.
//!
//! There is no clock per socket, since a queue of clocks would grow with every storm.

use crate::time::{Instant, TimeSpan};

use super::super::ticks::{span_ticks, ticks};

/// The timer of one shard.
pub(in crate::shard) struct HelloTimer {
    timeout: TimeSpan,
    /// The longest timeout that can be told, in ticks.
    ticks_max: u32,
    /// Time at which sockets without a hello are looked for next.
    due: Option<Instant>,
}

impl HelloTimer {
    /// A hello must come within `timeout`, or `ticks_max` if that is shorter.
    pub fn new(timeout: TimeSpan, ticks_max: u32) -> HelloTimer {
        HelloTimer { timeout, ticks_max, due: None }
    }

    /// A socket was opened.
    pub fn arm(&mut self, now: Instant) {
        if self.due.is_none() {
            self.due = Some(now.after(self.timeout));
        }
    }

    /// Returns when sockets are looked for next.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the tick at or before which a socket that is silent now was opened too long ago, when it is time to
    /// look. [`HelloTimer::looked`] must follow. A hello that waits in its socket for a shard that is late is in
    /// time.
    pub fn overdue(&self, now: Instant, input_horizon: Instant) -> Option<u32> {
        self.due.filter(|due| *due <= now && *due <= input_horizon)?;
        let timeout = span_ticks(self.timeout).min(self.ticks_max);
        Some(ticks(now.min(input_horizon)).wrapping_sub(timeout))
    }

    /// The silent sockets were closed; `left` are open without a hello.
    pub fn looked(&mut self, now: Instant, left: usize) {
        let pause = TimeSpan((self.timeout.0 / 8).max(TimeSpan::from_ms(50).0));
        self.due = (left > 0).then(|| now.after(pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_looked_for_while_there_are_any_and_not_beyond_the_input_horizon() {
        let mut timer = HelloTimer::new(TimeSpan::from_secs(8), 1_000);
        let second = |seconds| Instant(0).after(TimeSpan::from_secs(seconds));
        timer.arm(second(2));
        timer.arm(second(5));
        assert_eq!((timer.due(), timer.overdue(second(9), second(99))), (Some(second(10)), None));
        assert_eq!(timer.overdue(second(12), second(9)), None);
        assert_eq!(timer.overdue(second(12), second(11)), Some(ticks(second(11)) - 80));
        timer.looked(second(12), 1);
        assert_eq!(timer.due(), Some(second(13)));
        timer.looked(second(13), 0);
        assert_eq!(timer.due(), None);
    }
}
