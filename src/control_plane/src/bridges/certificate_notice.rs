//! Log line of each day on which a client certificate is near its end.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// Time of the last line of one profile.
#[derive(Default)]
pub(super) struct CertificateNotice {
    last: Option<Instant>,
}

impl CertificateNotice {
    /// Returns the whole days that are left, negative behind the end, if a line is due now.
    pub fn take(&mut self, expires: Option<SystemTime>, now: Instant, clock: SystemTime) -> Option<i64> {
        let expires = expires?;
        let left = match expires.duration_since(clock) {
            Ok(left) => i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            Err(past) => -i64::try_from(past.duration().as_secs()).unwrap_or(i64::MAX),
        };
        let days = left.div_euclid(DAY.as_secs() as i64);
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= DAY);
        if days >= NOTICE_DAYS || !is_due {
            return None;
        }
        self.last = Some(now);
        Some(days)
    }
}

/// Days before the end in which there is a line a day.
const NOTICE_DAYS: i64 = 30;
const DAY: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_has_a_line_a_day_from_thirty_days_before_its_end() {
        let (mut notice, begin) = (CertificateNotice::default(), Instant::now());
        let expires = SystemTime::UNIX_EPOCH + 100 * DAY;
        let mut after = |hours: u32| {
            let span = Duration::from_secs(3_600) * hours;
            notice.take(Some(expires), begin + span, SystemTime::UNIX_EPOCH + span)
        };
        assert_eq!(after(69 * 24), None, "31 days are left");
        assert_eq!(after(70 * 24), None, "30 days are left");
        assert_eq!(after(70 * 24 + 1), Some(29));
        assert_eq!(after(71 * 24), None, "less than a day later");
        assert_eq!(after(71 * 24 + 1), Some(28));
        assert_eq!(after(101 * 24), Some(-1));
        assert_eq!(CertificateNotice::default().take(None, begin, SystemTime::UNIX_EPOCH), None);
    }
}
