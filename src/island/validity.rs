//! Last day of a certificate: its field `notAfter` (RFC 5280 section 4.1.2.5).

use std::time::{SystemTime, UNIX_EPOCH};

/// End of the validity of a certificate: year, month, day, hour, minute and second of UTC.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Validity([u32; 6]);

impl Validity {
    /// Reads the DER of a certificate; `None` if it is no certificate.
    pub fn of(certificate: &[u8]) -> Option<Validity> {
        let (_, certificate, _) = element(certificate)?;
        let (_, mut rest, _) = element(certificate)?;
        // In front of the validity: an optional version, the serial number, the algorithm, the issuer.
        if element(rest)?.0 == VERSION {
            rest = element(rest)?.2;
        }
        for _ in 0..3 {
            rest = element(rest)?.2;
        }
        let (_, validity, _) = element(rest)?;
        let (_, _, not_after) = element(validity)?;
        let (tag, text, _) = element(not_after)?;
        let text = std::str::from_utf8(text).ok()?;
        let text = match tag {
            // Two digits of the year: 1950 to 2049.
            UTC_TIME => format!("{}{text}", if text < "50" { "20" } else { "19" }),
            GENERALIZED_TIME => text.to_owned(),
            _ => return None,
        };
        let number = |from: usize, to: usize| text.get(from..to)?.parse().ok();
        let mut time = [number(0, 4)?; 6];
        for (at, part) in time.iter_mut().enumerate().skip(1) {
            *part = number(2 + 2 * at, 4 + 2 * at)?;
        }
        Some(Validity(time))
    }

    /// As `2027-01-31`.
    pub fn last_day(&self) -> String {
        let [year, month, day, ..] = self.0;
        format!("{year}-{month:02}-{day:02}")
    }

    /// Returns true if it lies in the past of the host clock.
    pub fn is_over(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        self.seconds() < now
    }

    /// Seconds since 1970. A year begins in March here, so that a leap day is its last.
    fn seconds(&self) -> u64 {
        let [year, month, day, hour, minute, second] = self.0.map(u64::from);
        let (year, month) = if month > 2 { (year, month - 3) } else { (year.saturating_sub(1), month + 9) };
        let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day;
        let since_1970 = days.saturating_sub(DAYS_TO_1970);
        ((since_1970 * 24 + hour) * 60 + minute) * 60 + second
    }
}

/// Tags of DER.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// Days from the first of March of the year 0 to the first of January 1970, and one.
const DAYS_TO_1970: u64 = 719_469;

/// The element at the front of `bytes`: its tag, its content, and the bytes behind it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn until(year: i32, month: u8, day: u8) -> Validity {
        let mut params = CertificateParams::new(vec!["n.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, month, day);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Validity::of(certificate.der()).unwrap()
    }

    #[test]
    fn last_days_of_certificates_are_read_in_both_forms() {
        for (year, month, day, shown) in
            [(2027, 1, 31, "2027-01-31"), (2049, 12, 31, "2049-12-31"), (2050, 1, 1, "2050-01-01")]
        {
            assert_eq!(until(year, month, day).last_day(), shown);
        }
        assert!(until(2020, 2, 29).is_over() && !until(2999, 3, 1).is_over());
        assert!(until(2049, 12, 31) < until(2050, 1, 1));
    }

    #[test]
    fn dates_become_seconds_as_the_calendar_has_them() {
        let seconds = |year, month, day| Validity([year, month, day, 0, 0, 0]).seconds();
        assert_eq!(seconds(1970, 1, 1), 0);
        assert_eq!(seconds(2000, 2, 29), 951_782_400);
        assert_eq!(seconds(2024, 3, 1), 1_709_251_200);
        assert_eq!(Validity([2038, 1, 19, 3, 14, 8]).seconds(), 1 << 31);
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_last_day() {
        let mut params = CertificateParams::new(vec!["n.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2027, 1, 31);
        let der = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec();
        for cut in 0..der.len() {
            let _ = Validity::of(&der[..cut]);
        }
        assert_eq!(Validity::of(&[0x30, 0x84, 1, 1, 1, 1]), None);
        assert!(Validity::of(&der).is_some());
    }
}
