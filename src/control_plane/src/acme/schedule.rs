//! Times of orders. Pure: clock and chance are arguments.

use std::time::{Duration, SystemTime};

use crate::Validity;

/// Returns the time of the next order for a certificate: a point of the window that the authority suggests (RFC 9773
/// section 4.2), else one behind two thirds of its lifetime. `draw`, from 0 to 1, selects the point, so that servers
/// that were started together do not renew together. No window is believed that begins after its end, nor beyond eleven
/// twelfths of the lifetime.
pub(super) fn renewal(validity: &Validity, window: Option<(SystemTime, SystemTime)>, draw: f64) -> SystemTime {
    let from = validity.from();
    let lifetime = validity.until().duration_since(from).unwrap_or_default();
    let suggested = window.and_then(|(start, end)| Some((start, end.duration_since(start).ok()?)));
    let (start, width) = suggested.unwrap_or((from + lifetime / 3 * 2, lifetime / 12));
    let point = start + width.mul_f64(draw.clamp(0.0, 1.0));
    point.min(from + lifetime / 12 * 11)
}

/// Returns the pause after this many failed orders in a row: 5 minutes, doubled with each further one, and up to a
/// tenth more by `draw`, from 0 to 1; at most 12 hours.
pub(super) fn back_off(failures: u32, draw: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let pause = BACK_OFF_MIN * (1 << doublings);
    pause.mul_f64(1.0 + draw.clamp(0.0, 1.0) / 10.0).min(BACK_OFF_MAX)
}

/// Returns the pause until the authority is asked again for its window: what it says, from a minute to a day (RFC 9773
/// section 4.3.2).
pub(super) fn ask_again(suggested: Duration) -> Duration {
    suggested.clamp(ASK_MIN, ASK_MAX)
}

/// Pauses after the first failed order, and after many.
pub(super) const BACK_OFF_MIN: Duration = Duration::from_secs(5 * 60);
pub(super) const BACK_OFF_MAX: Duration = Duration::from_secs(12 * 3_600);
/// Pauses between two questions for the window of a certificate.
const ASK_MIN: Duration = Duration::from_secs(60);
const ASK_MAX: Duration = Duration::from_secs(24 * 3_600);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::validity::tests::until;

    proptest! {
        #[test]
        fn a_renewal_lies_in_the_last_third_of_any_lifetime_and_leaves_a_twelfth(
            day in 2..28u8, month in 1..13u8, draw in 0.0..1.0f64,
        ) {
            let validity = until(2020, month, day);
            let lifetime = validity.until().duration_since(validity.from()).unwrap();
            let at = renewal(&validity, None, draw).duration_since(validity.from()).unwrap();
            prop_assert!(at >= lifetime / 3 * 2 && at <= lifetime / 12 * 11, "{at:?} of {lifetime:?}");
        }

        #[test]
        fn a_window_is_followed_and_never_beyond_its_certificate(
            start in 0..400u64, width in 0..400u64, draw in 0.0..1.0f64,
        ) {
            let validity = until(2021, 1, 1);
            let day = |day: u64| validity.from() + Duration::from_secs(day * 86_400);
            let (start, end) = (day(start), day(start + width));
            let at = renewal(&validity, Some((start, end)), draw);
            prop_assert!(at <= end && (at >= start || start > day(335)), "{at:?}");
            prop_assert!(at < validity.until());
            if start < end {
                prop_assert_eq!(renewal(&validity, Some((end, start)), draw), renewal(&validity, None, draw));
            }
        }

        #[test]
        fn pauses_double_from_five_minutes_to_twelve_hours(failures in 1..20u32, draw in 0.0..1.0f64) {
            let pause = back_off(failures, draw);
            prop_assert!((BACK_OFF_MIN..=BACK_OFF_MAX).contains(&pause));
            let next = back_off(failures + 1, draw);
            // Each pause is rounded to a nanosecond.
            prop_assert!(next == BACK_OFF_MAX || next.abs_diff(pause * 2).as_nanos() <= 1, "{pause:?} {next:?}");
            prop_assert_eq!(back_off(u32::MAX, draw), BACK_OFF_MAX);
        }
    }

    #[test]
    fn the_pauses_of_a_night_without_the_authority() {
        let minutes: Vec<u64> = (1..11).map(|failures| back_off(failures, 0.0).as_secs() / 60).collect();
        assert_eq!(minutes, [5, 10, 20, 40, 80, 160, 320, 640, 720, 720]);
    }

    #[test]
    fn the_authority_is_asked_at_least_daily_and_never_without_a_pause() {
        for (says, wanted) in [(0, 60), (61, 61), (6 * 3_600, 6 * 3_600), (u64::MAX, 86_400)] {
            assert_eq!(ask_again(Duration::from_secs(says)).as_secs(), wanted);
        }
    }
}
