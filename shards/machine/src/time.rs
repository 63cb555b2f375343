//! Time as the machine knows it: handed in with every input, never read.
//!
//! A [`Now`] is made by `runtime::process_clock::ProcessClock`, the only code that reads the host's clock.

/// Monotonic nanoseconds since the process started. Orders deadlines; never compared between processes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// This instant and `span` later, saturating.
    pub fn after(self, span: TimeSpan) -> Instant {
        Instant(self.0.saturating_add(span.0))
    }

    /// The next multiple of `step`, or this instant when it is one.
    pub fn rounded_up(self, step: TimeSpan) -> Instant {
        Instant(self.0.div_ceil(step.0.max(1)).saturating_mul(step.0.max(1)))
    }

    /// Time since `earlier`; zero when that lies ahead.
    pub fn since(self, earlier: Instant) -> TimeSpan {
        TimeSpan(self.0.saturating_sub(earlier.0))
    }

    /// Whole seconds since the process started: what idle sessions keep (4 bytes, 136 years).
    pub fn seconds(self) -> u32 {
        (self.0 / 1_000_000_000) as u32
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct TimeSpan(pub u64);

impl TimeSpan {
    pub const fn from_ms(ms: u64) -> TimeSpan {
        TimeSpan(ms * 1_000_000)
    }

    pub const fn from_secs(s: u64) -> TimeSpan {
        TimeSpan(s * 1_000_000_000)
    }

    pub const fn seconds_ceil(self) -> u32 {
        self.0.div_ceil(1_000_000_000) as u32
    }

    /// Whole microseconds.
    pub const fn micros(self) -> u64 {
        self.0 / 1_000
    }
}

/// The two times of one input: the monotonic one for deadlines, the wall for TTLs and stamps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Never goes back.
    pub mono: Instant,
    /// Microseconds since the Unix epoch: at monotonic speed, but that it may jump either way when the host's clock was
    /// set and that was found to be right (`wall::Wall`).
    pub unix_us: u64,
}

impl Now {
    /// Wall time in whole seconds, the unit of TTLs.
    pub fn unix(self) -> UnixSeconds {
        UnixSeconds(self.unix_us / 1_000_000)
    }
}

/// Seconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct UnixSeconds(pub u64);
