//! Certificates in use, and a log line for each that ends soon.
//! Lives on: the control plane.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::validity::Validity;

/// Certificates that TLS listeners show. The thread that reads them replaces them; metrics and [`watch`] read them.
#[derive(Default, Debug)]
pub struct CertificatesInUse(Mutex<Vec<InUse>>);

/// One certificate.
#[derive(Clone, Debug)]
pub struct InUse {
    /// Host names, or the file of a certificate without any. Never empty.
    pub names: Vec<String>,
    pub validity: Validity,
    /// Level of [`notice`] that was logged.
    logged: u8,
}

impl InUse {
    /// A certificate that was just read.
    pub fn new(names: Vec<String>, validity: Validity) -> InUse {
        InUse { names, validity, logged: 0 }
    }
}

impl CertificatesInUse {
    /// Replaces the list. A certificate that was in it is not announced a second time.
    pub fn set(&self, mut list: Vec<InUse>) {
        let mut former = self.lock();
        for one in &mut list {
            let same = former.iter().find(|old| old.names == one.names && old.validity == one.validity);
            one.logged = same.map_or(0, |old| old.logged);
        }
        *former = list;
    }

    /// Seconds that are left for each name, of the certificate that ends first; negative for one that is over.
    pub(super) fn seconds_left(&self, now: SystemTime) -> BTreeMap<String, i64> {
        let mut left = BTreeMap::new();
        for one in self.lock().iter() {
            let seconds = one.validity.seconds_left(now);
            for name in &one.names {
                let least = left.entry(name.clone()).or_insert(seconds);
                *least = seconds.min(*least);
            }
        }
        left
    }

    /// Says which of them clients refuse by its dates, if there is one.
    pub fn trouble(&self, now: SystemTime) -> Option<String> {
        let list = self.lock();
        let is_bad = |one: &&InUse| one.validity.seconds_left(now) < 0 || one.validity.from() > now;
        let InUse { names, validity, .. } = list.iter().find(is_bad)?;
        let names = names.join(",");
        Some(match validity.from() > now {
            true => format!("the certificate of {names} is not valid yet"),
            false => format!("the certificate of {names} ended on {}", validity.last_day()),
        })
    }

    /// True if there is no certificate.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Certificates that have come nearer to their end than [`notice`] allows since they were last taken here.
    fn take_notices(&self, now: SystemTime) -> Vec<InUse> {
        let mut noticed = Vec::new();
        for one in self.lock().iter_mut() {
            let level = notice(&one.validity, now);
            if level > one.logged {
                noticed.push(one.clone());
            }
            // Lower again after the host clock was ahead: the limits that it passed then still count.
            one.logged = level;
        }
        noticed
    }

    fn lock(&self) -> MutexGuard<'_, Vec<InUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of the time limits in [`NOTICE_DAYS`] that a certificate has passed. Limits beyond a third of its lifetime do
/// not count, because a certificate is renewed then at the earliest.
fn notice(validity: &Validity, now: SystemTime) -> u8 {
    let left = validity.seconds_left(now);
    let lifetime = validity.seconds_left(validity.from());
    let passed = |days: &&i64| left <= *days * DAY && lifetime >= 3 * *days * DAY;
    NOTICE_DAYS.iter().filter(passed).count() as u8
}

/// Logs each certificate 21 and 7 days before its end, for ever.
pub(super) async fn watch(certificates: Arc<CertificatesInUse>) {
    let mut tick = tokio::time::interval(LOOK_INTERVAL);
    loop {
        tick.tick().await;
        let now = SystemTime::now();
        for InUse { names, validity, .. } in certificates.take_notices(now) {
            let (names, last_day) = (names.join(","), validity.last_day());
            let days_left = validity.seconds_left(now).div_euclid(DAY);
            tracing::warn!(names, last_day, days_left, "certificate ends soon; renew it");
        }
    }
}

/// Days before the end of a certificate at which it is logged.
const NOTICE_DAYS: [i64; 2] = [21, 7];
const DAY: i64 = 86_400;
/// Interval between two looks at the certificates.
const LOOK_INTERVAL: Duration = Duration::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validity::tests::until;

    #[test]
    fn a_certificate_that_clients_refuse_by_its_dates_is_a_trouble() {
        let certificates = CertificatesInUse::default();
        let (short, long) = (until(2030, 6, 1), until(2031, 6, 1));
        certificates.set(vec![InUse::new(vec!["a".to_owned()], long), InUse::new(vec!["b".to_owned()], short)]);
        let at = |validity: Validity, seconds| certificates.trouble(validity.until() + Duration::from_secs(seconds));
        assert_eq!(certificates.trouble(short.until()), None);
        assert_eq!(at(short, 1).as_deref(), Some("the certificate of b ended on 2030-06-01"));
        assert_eq!(at(long, 1).as_deref(), Some("the certificate of a ended on 2031-06-01"));
        let before = certificates.trouble(short.from() - Duration::from_secs(1));
        assert_eq!(before.as_deref(), Some("the certificate of a is not valid yet"));
    }

    fn names(list: &[InUse]) -> Vec<String> {
        list.iter().flat_map(|one| one.names.clone()).collect()
    }

    #[test]
    fn each_certificate_is_announced_once_at_each_limit_also_across_a_reload() {
        let (soon, later) = (until(2030, 6, 1), until(2031, 6, 1));
        let list = || vec![InUse::new(vec!["a".to_owned()], soon), InUse::new(vec!["b".to_owned()], later)];
        let certificates = CertificatesInUse::default();
        certificates.set(list());
        let days_before = |days: u64| soon.until() - Duration::from_secs(days * 86_400);
        for (days, wanted) in [(22, 0), (21, 1), (20, 0), (8, 0), (7, 1), (1, 0), (0, 0)] {
            let noticed = certificates.take_notices(days_before(days));
            assert_eq!(noticed.len(), wanted, "{days}");
            assert!(names(&noticed).iter().all(|name| name == "a"));
            certificates.set(list());
        }
        certificates.set(vec![InUse::new(vec!["a".to_owned()], later)]);
        assert!(certificates.take_notices(days_before(0)).is_empty(), "it was renewed");
        certificates.set(list());
        assert_eq!(names(&certificates.take_notices(days_before(3))), ["a"], "one line for both limits");
    }

    #[test]
    fn a_clock_that_was_ahead_silences_no_later_line() {
        let soon = until(2030, 6, 1);
        let certificates = CertificatesInUse::default();
        certificates.set(vec![InUse::new(vec!["a".to_owned()], soon)]);
        for (days, wanted) in [(3, 1), (30, 0), (21, 1), (20, 0), (7, 1)] {
            let now = soon.until() - Duration::from_secs(days * 86_400);
            assert_eq!(certificates.take_notices(now).len(), wanted, "{days}");
        }
    }

    #[test]
    fn a_certificate_that_lives_shortly_is_not_announced_at_its_birth() {
        let short = until(2020, 1, 7);
        assert_eq!(notice(&short, short.from()), 0);
        let month = until(2020, 2, 15);
        assert_eq!(notice(&month, month.until()), 1, "45 days: only the last seven");
    }

    #[test]
    fn a_name_of_two_certificates_has_the_time_of_the_one_that_ends_first() {
        let certificates = CertificatesInUse::default();
        let both = ["a", "b"].map(str::to_owned).to_vec();
        certificates.set(vec![InUse::new(both, until(2031, 1, 1)), InUse::new(vec!["b".into()], until(2030, 1, 1))]);
        let left = certificates.seconds_left(until(2030, 1, 2).until());
        assert_eq!((left["a"], left["b"]), (364 * 86_400, -86_400));
    }
}
