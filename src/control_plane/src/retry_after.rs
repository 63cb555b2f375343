//! `Retry-After` of the servers that murre calls (RFC 9110 section 10.2.3): the one reader. Callers bound its result.

use std::time::{Duration, SystemTime};

use hyper::header::{DATE, HeaderMap, HeaderName, RETRY_AFTER};
use protocol::wire::text::read_digits;

/// Returns the time for which a server asks to wait: the seconds of the field, or those until its date. `None` without
/// a field that can be read.
///
/// The clock of the server made both its date and the field `Date`, so the difference of the two is right also where
/// that clock is not. `now` counts for an answer without `Date`.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Some(seconds) = read_digits(text.as_bytes()) {
        return Some(Duration::from_secs(seconds));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let now = date_of(headers, DATE).unwrap_or(now);
    Some(until.duration_since(now).unwrap_or_default())
}

/// Returns the date in a field of an answer.
fn date_of(headers: &HeaderMap, name: HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

/// Returns the seconds of [`retry_after`], as far as senders of messages should believe them.
pub(super) fn retry_seconds(headers: &HeaderMap, now: SystemTime) -> Option<u32> {
    let seconds = retry_after(headers, now)?.as_secs();
    Some(seconds.clamp(SECONDS_MIN, SECONDS_MAX) as u32)
}

/// Bounds of the `Retry-After` that is passed on to senders.
const SECONDS_MIN: u64 = 10;
const SECONDS_MAX: u64 = 3_600;

#[cfg(test)]
mod tests {
    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const NOW: Duration = Duration::from_secs(784_111_777);

    #[test]
    fn seconds_and_dates_are_taken_between_ten_seconds_and_an_hour() {
        for (said, taken) in [
            ("0", Some(10)),
            ("11", Some(11)),
            ("0011", Some(11)),
            ("3601", Some(3_600)),
            ("99999999999999999999999", Some(3_600)),
            ("Sun, 06 Nov 1994 08:51:17 GMT", Some(100)),
            ("Sunday, 06-Nov-94 08:51:17 GMT", Some(100)),
            ("Sun Nov  6 08:51:17 1994", Some(100)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(10)),
            ("Sat, 06 Nov 2094 08:00:00 GMT", Some(3_600)),
            ("", None),
            ("-1", None),
            ("+60", None),
            ("1.5", None),
            ("soon", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, said.parse().unwrap());
            assert_eq!(retry_seconds(&headers, SystemTime::UNIX_EPOCH + NOW), taken, "{said}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), SystemTime::UNIX_EPOCH), None);
    }

    #[test]
    fn a_date_is_compared_with_the_clock_of_the_server_that_wrote_it() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, "Sun, 06 Nov 1994 10:49:37 GMT".parse().unwrap());
        headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
        let two_hours = Some(Duration::from_secs(7_200));
        for ours in [NOW, NOW + Duration::from_secs(3_600), Duration::ZERO] {
            assert_eq!(retry_after(&headers, SystemTime::UNIX_EPOCH + ours), two_hours);
        }
        headers.remove(DATE);
        assert_eq!(retry_after(&headers, SystemTime::UNIX_EPOCH + NOW), two_hours);
    }
}
