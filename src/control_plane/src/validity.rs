//! Times between which a certificate is good (RFC 5280 section 4.1.2.5), and its mark as that of an authority (section
//! 4.2.1.9).

use std::time::{Duration, SystemTime};

use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

/// Returns true if this DER is a certificate that is marked as that of an authority: clients refuse it as that of a
/// server, also where they trust it.
pub fn is_of_authority(certificate: &[u8]) -> bool {
    parse_x509_certificate(certificate).is_ok_and(|(_, certificate)| certificate.is_ca())
}

/// First and last second of a certificate. Ordered by the last one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Validity {
    until: ASN1Time,
    from: ASN1Time,
}

impl Validity {
    /// Reads the DER of a certificate; `None` if it is no certificate.
    pub fn of(certificate: &[u8]) -> Option<Validity> {
        let (_, certificate) = parse_x509_certificate(certificate).ok()?;
        let validity = certificate.validity();
        Some(Validity { until: validity.not_after, from: validity.not_before })
    }

    /// As `2027-01-31`.
    pub fn last_day(&self) -> String {
        self.until.to_datetime().date().to_string()
    }

    /// Returns true if it lies in the past of the host clock.
    pub fn is_over(&self) -> bool {
        self.seconds_left(SystemTime::now()) < 0
    }

    /// Seconds from `now` to the end; negative after it.
    pub fn seconds_left(&self, now: SystemTime) -> i64 {
        let since = |earlier: SystemTime, later: SystemTime| later.duration_since(earlier).ok();
        let now = since(SystemTime::UNIX_EPOCH, now).map_or(0, |since| since.as_secs());
        self.until.timestamp().saturating_sub_unsigned(now)
    }

    /// First second; 1970 for anything before.
    pub fn from(&self) -> SystemTime {
        at(self.from)
    }

    /// Last second; 1970 for anything before.
    pub fn until(&self) -> SystemTime {
        at(self.until)
    }
}

fn at(time: ASN1Time) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or(0))
}

#[cfg(test)]
pub(crate) mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    /// From 2020 to this day.
    pub(crate) fn until(year: i32, month: u8, day: u8) -> Validity {
        let mut params = CertificateParams::new(vec!["n.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
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
    fn time_that_is_left_is_counted_from_a_clock_and_negative_afterwards() {
        let validity = until(2024, 3, 1);
        assert_eq!(validity.until(), SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_251_200));
        assert_eq!(validity.seconds_left(validity.until() - Duration::from_secs(60)), 60);
        assert_eq!(validity.seconds_left(validity.until() + Duration::from_secs(60)), -60);
        assert!(validity.from() < validity.until());
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
