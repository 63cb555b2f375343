//! `Retry-After` of a service (RFC 9110 section 10.2.3), as it is passed on to senders.

use std::time::SystemTime;

use hyper::header::{HeaderMap, RETRY_AFTER};

/// Returns the seconds of the field, or those until its date, as far as senders should believe it; `otherwise` without
/// a field that can be read.
pub(super) fn retry_after(headers: &HeaderMap, now: SystemTime, otherwise: u32) -> u32 {
    let text = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::trim);
    let seconds = text.and_then(|text| {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(text.parse().unwrap_or(u64::MAX));
        }
        let date = httpdate::parse_http_date(text).ok()?;
        Some(date.duration_since(now).map_or(0, |span| span.as_secs()))
    });
    match seconds {
        Some(seconds) => seconds.clamp(SECONDS_MIN, SECONDS_MAX) as u32,
        None => otherwise,
    }
}

const SECONDS_MIN: u64 = 10;
const SECONDS_MAX: u64 = 3_600;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn seconds_and_dates_are_taken_between_ten_seconds_and_an_hour() {
        // Sun, 06 Nov 1994 08:49:37 GMT.
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (said, taken) in [
            ("0", 10),
            ("11", 11),
            ("3601", 3_600),
            ("99999999999999999999999", 3_600),
            ("Sun, 06 Nov 1994 08:51:17 GMT", 100),
            ("Sun, 06 Nov 1994 08:00:00 GMT", 10),
            ("Sat, 06 Nov 2094 08:00:00 GMT", 3_600),
            ("", 77),
            ("-1", 77),
            ("soon", 77),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, said.parse().unwrap());
            assert_eq!(retry_after(&headers, now, 77), taken, "{said}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now, 77), 77);
    }
}
