//! Ticks: tenths of a second in 32 bits, for times that each session stores.

use crate::time::{Instant, TimeSpan};

/// Returns tenths of a second since the process started, never 0. They wrap after 13 years, and are compared with
/// [`has_come`].
pub(super) fn ticks(at: Instant) -> u32 {
    ((at.0 / 100_000_000) as u32).wrapping_add(1).max(1)
}

/// Returns a span in the same unit, rounded up; at most a quarter of a round (3 years).
pub(super) fn span_ticks(span: TimeSpan) -> u32 {
    span.0.div_ceil(100_000_000).min(1 << 30) as u32
}

/// Returns true if the tick `due` is not after `now`. They are less than half a round (6 years) apart.
pub(super) fn has_come(due: u32, now: u32) -> bool {
    now.wrapping_sub(due) <= u32::MAX / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_never_zero_and_compare_across_their_wrap_around() {
        assert_eq!((ticks(Instant(0)), ticks(Instant(99_999_999)), ticks(Instant(100_000_000))), (1, 1, 2));
        assert_eq!(span_ticks(TimeSpan(1)), 1);
        assert!(has_come(7, 7) && has_come(7, 8) && !has_come(8, 7));
        assert!(has_come(u32::MAX, 3) && !has_come(3, u32::MAX));
    }
}
