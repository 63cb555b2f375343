//! Circuit breaker of one profile. Open: calls are refused at once, but for one probe at a time.

use std::time::Duration;

use hashbrown::HashMap;
use machine::ids::Uaid;
use tokio::time::Instant;

use super::recent::RecentCounts;

/// Meaning of one call for the breaker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sign {
    /// The service works.
    Well,
    /// No answer in time, no connection, or a status 5xx.
    Failure,
    /// A quota is used up for this time. It may be that of one device.
    Quota(Duration),
    /// The call says nothing about the service.
    None,
}

/// Decision on a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Pass,
    /// The call is the probe: its sign must be recorded as one.
    Probe,
    /// The call is refused; this is left until the next probe.
    Shed(Duration),
}

/// Change of the breaker by a sign.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    None,
    Opened,
    Closed,
}

pub(super) struct Breaker {
    /// Calls, failures and used-up quotas.
    recent: RecentCounts<3>,
    /// Users whose used-up quota was counted, and the time of that.
    quotas: HashMap<Uaid, Instant>,
    /// Failures in a row.
    failures: u32,
    open: Option<Open>,
}

struct Open {
    until: Instant,
    span: Duration,
    is_probing: bool,
}

impl Breaker {
    pub fn new() -> Breaker {
        Breaker { recent: RecentCounts::over(SPAN), quotas: HashMap::new(), failures: 0, open: None }
    }

    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Decides on a call that would be made now.
    pub fn admit(&mut self, now: Instant) -> Admission {
        match &mut self.open {
            None => Admission::Pass,
            Some(open) if now < open.until => Admission::Shed(open.until - now),
            Some(open) if open.is_probing => Admission::Shed(Duration::ZERO),
            Some(open) => {
                open.is_probing = true;
                Admission::Probe
            }
        }
    }

    /// Returns the time for which calls are refused, if they are. No call becomes the probe.
    pub fn refuses(&self, now: Instant) -> Option<Duration> {
        let open = self.open.as_ref()?;
        (now < open.until || open.is_probing).then(|| open.until.saturating_duration_since(now))
    }

    /// Returns the sign of a call for this user as the breaker counts it: a quota once for each user and span, because
    /// it may be that of one device, whose sender must not close the service to others.
    pub fn of_user(&mut self, now: Instant, uaid: Uaid, sign: Sign) -> Sign {
        if !matches!(sign, Sign::Quota(_)) {
            return sign;
        }
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < SPAN;
        if self.quotas.get(&uaid).is_some_and(is_recent) {
            return Sign::None;
        }
        if self.quotas.len() >= QUOTA_USERS_MAX {
            self.quotas.retain(|_, at| is_recent(at));
        }
        if self.quotas.len() < QUOTA_USERS_MAX {
            self.quotas.insert(uaid, now);
        }
        sign
    }

    /// Notes the sign of a call. `jitter` from 0 to 1 lengthens the time until a probe by up to a fifth.
    pub fn record(&mut self, now: Instant, sign: Sign, is_probe: bool, jitter: f64) -> Change {
        if self.open.is_some() {
            return if is_probe { self.probed(now, sign, jitter) } else { Change::None };
        }
        let (is_failure, is_quota) = (sign == Sign::Failure, matches!(sign, Sign::Quota(_)));
        if sign == Sign::None {
            return Change::None;
        }
        self.recent.add(now, [true, is_failure, is_quota]);
        self.failures = if is_failure { self.failures + 1 } else { 0 };
        let [calls, failures, quotas] = self.recent.sums(now);
        let half = |count: u32| calls >= CALLS_MIN && count >= calls.div_ceil(2);
        match sign {
            Sign::Failure if self.failures >= FAILURES_MAX || half(failures) => {
                self.open(now, SPAN_MIN, jitter);
                Change::Opened
            }
            Sign::Quota(span) if half(quotas) => {
                self.open(now, span, jitter);
                Change::Opened
            }
            _ => Change::None,
        }
    }

    fn probed(&mut self, now: Instant, sign: Sign, jitter: f64) -> Change {
        let span = self.open.as_ref().map_or(SPAN_MIN, |open| open.span);
        match sign {
            Sign::Failure => self.open(now, (span * 2).clamp(SPAN_MIN, SPAN_MAX), jitter),
            Sign::Quota(asked) => self.open(now, asked, jitter),
            // A probe that said nothing: the next call is one.
            Sign::None => {
                if let Some(open) = &mut self.open {
                    open.is_probing = false;
                }
            }
            Sign::Well => {
                self.open = None;
                self.failures = 0;
                self.recent.clear();
                return Change::Closed;
            }
        }
        Change::None
    }

    fn open(&mut self, now: Instant, span: Duration, jitter: f64) {
        let until = now + span + span.mul_f64(jitter.clamp(0.0, 1.0) / 5.0);
        self.open = Some(Open { until, span, is_probing: false });
    }
}

/// Failures in a row that open the breaker.
const FAILURES_MAX: u32 = 20;
/// Calls within [`SPAN`] of which half open it.
const CALLS_MIN: u32 = 20;
const SPAN: Duration = Duration::from_secs(10);
/// Users whose used-up quota was counted within it. Beyond them, a quota counts each time.
const QUOTA_USERS_MAX: usize = 16_384;
/// Time until the first probe.
const SPAN_MIN: Duration = Duration::from_secs(10);
/// Longest time between two probes that fail.
const SPAN_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(breaker: &mut Breaker, now: Instant, times: u32) -> Change {
        (0..times).map(|_| breaker.record(now, Sign::Failure, false, 0.0)).last().unwrap()
    }

    #[tokio::test]
    async fn twenty_failures_in_a_row_open_it_and_probes_double_its_time() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        assert_eq!(fail(&mut breaker, now, 19), Change::None);
        assert_eq!(breaker.admit(now), Admission::Pass);
        assert_eq!(fail(&mut breaker, now, 1), Change::Opened);
        let mut at = now;
        for span in [10, 20, 40, 60, 60] {
            let span = Duration::from_secs(span);
            assert_eq!(breaker.admit(at), Admission::Shed(span));
            at += span;
            assert_eq!(breaker.refuses(at), None);
            assert_eq!(breaker.admit(at), Admission::Probe);
            assert_eq!(breaker.admit(at), Admission::Shed(Duration::ZERO), "one probe at a time");
            // A call that began before it opened says nothing.
            assert_eq!(breaker.record(at, Sign::Well, false, 0.0), Change::None);
            assert_eq!(breaker.record(at, Sign::Failure, true, 0.0), Change::None);
        }
        at += Duration::from_secs(60);
        assert_eq!(breaker.admit(at), Admission::Probe);
        assert_eq!(breaker.record(at, Sign::Well, true, 0.0), Change::Closed);
        assert_eq!(fail(&mut breaker, at, 19), Change::None, "it begins anew");
    }

    #[tokio::test]
    async fn half_of_twenty_calls_within_ten_seconds_open_it() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        for _ in 0..10 {
            assert_eq!(breaker.record(now, Sign::Well, false, 0.0), Change::None);
        }
        assert_eq!(fail(&mut breaker, now, 9), Change::None);
        assert_eq!(fail(&mut breaker, now, 1), Change::Opened);

        let mut breaker = Breaker::new();
        for second in 0..100 {
            let now = now + Duration::from_secs(second);
            let sign = if second % 2 == 0 { Sign::Failure } else { Sign::Well };
            assert_eq!(breaker.record(now, sign, false, 0.0), Change::None, "fewer than twenty in ten seconds");
        }
    }

    /// A flood for one device, which uses up the quota of that device.
    #[tokio::test]
    async fn the_quota_of_one_device_opens_it_for_no_other() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        let (quota, [hot, other]) = (Sign::Quota(Duration::from_secs(30)), [1, 2].map(|n| Uaid([n; 16])));
        assert_eq!(breaker.of_user(now, hot, quota), quota);
        for _ in 0..1_000 {
            assert_eq!(breaker.of_user(now, hot, quota), Sign::None);
        }
        assert_eq!(
            (breaker.of_user(now, hot, Sign::Failure), breaker.of_user(now, other, quota)),
            (Sign::Failure, quota)
        );
        assert_eq!(breaker.of_user(now + SPAN, hot, quota), quota);
    }

    #[tokio::test]
    async fn quotas_alone_open_it_at_half_of_twenty_and_for_their_time() {
        let (mut breaker, now) = (Breaker::new(), Instant::now());
        let quota = Sign::Quota(Duration::from_secs(30));
        for _ in 0..19 {
            assert_eq!(breaker.record(now, quota, false, 0.0), Change::None);
        }
        assert_eq!(breaker.record(now, quota, false, 0.5), Change::Opened);
        assert_eq!(breaker.admit(now), Admission::Shed(Duration::from_secs(33)), "with its jitter");
    }
}
