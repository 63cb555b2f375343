//! The metrics of mobile bridges. Labels are the bridge and the name of the profile, both of the configuration.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::super::bridges::{ProfileSnapshot, ProfileSnapshots, SECONDS};

/// State of the profiles; `None`: no bridge is configured.
pub(super) struct BridgeStats(pub Option<Arc<ProfileSnapshots>>);

impl fmt::Debug for BridgeStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BridgeStats")
    }
}

/// Value of a gauge; `None`: the profile has none.
type Gauge = fn(&ProfileSnapshot) -> Option<i64>;

const GAUGES: [(&str, &str, Gauge); 7] = [
    gauge("bridge_in_flight", "Notifications that a service has not answered.", |of| count(of.in_flight)),
    gauge("bridge_waiting", "Notifications that wait for bridge.max_in_flight.", |of| count(of.waiting)),
    gauge("bridge_waiting_bytes", "Bytes of the notifications that wait.", |of| count(of.waiting_bytes)),
    gauge("bridge_breaker", "1 while the circuit breaker is open.", |of| Some(of.is_breaker_open as i64)),
    gauge("bridge_guard_active", "1 while refused device tokens are not believed.", |of| {
        Some(of.is_guard_active as i64)
    }),
    gauge("bridge_token_age_seconds", "Age of the access or provider token.", |of| {
        of.ages.token.map(|age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX))
    }),
    gauge("bridge_certificate_expires_seconds", "Time until the client certificate expires.", |of| {
        let left = of.ages.certificate_expires?.duration_since(SystemTime::now());
        Some(left.map_or_else(|past| -(past.duration().as_secs() as i64), |left| left.as_secs() as i64))
    }),
];

/// A gauge with its meaning. The rules of the repository look for its name in this call.
const fn gauge(name: &'static str, help: &'static str, value: Gauge) -> (&'static str, &'static str, Gauge) {
    (name, help, value)
}

fn count(number: usize) -> Option<i64> {
    Some(i64::try_from(number).unwrap_or(i64::MAX))
}

impl Collector for BridgeStats {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(profiles) = &self.0 else { return Ok(()) };
        let profiles = profiles.look().clone();
        let labels = |profile: &ProfileSnapshot| {
            [("bridge", profile.name.kind().to_owned()), ("app", profile.name.app.to_string())]
        };
        let help = "Notifications that a service took.";
        let mut family = encoder.encode_descriptor("bridge_sent", help, None, MetricType::Counter)?;
        for profile in &profiles {
            ConstCounter::new(profile.stats.sent).encode(family.encode_family(&labels(profile))?)?;
        }
        let help = "Notifications that a service did not take, by reason.";
        let mut family = encoder.encode_descriptor("bridge_errors", help, None, MetricType::Counter)?;
        for profile in &profiles {
            for (reason, number) in &profile.stats.errors {
                let [bridge, app] = labels(profile);
                let labels = [bridge, app, ("reason", reason.to_string())];
                ConstCounter::new(*number).encode(family.encode_family(&labels)?)?;
            }
        }
        let help = "Second attempts after answers that say that the notification was not taken.";
        let mut family = encoder.encode_descriptor("bridge_retries", help, None, MetricType::Counter)?;
        for profile in &profiles {
            ConstCounter::new(profile.stats.retries).encode(family.encode_family(&labels(profile))?)?;
        }
        let help = "Time from the submission of a notification to its outcome.";
        let mut family = encoder.encode_descriptor("bridge_seconds", help, None, MetricType::Histogram)?;
        for profile in &profiles {
            let times = profile.stats.times;
            let bounds = SECONDS.into_iter().chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(times).collect();
            let labels = labels(profile);
            let mut encoder = family.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabelSet>(profile.stats.seconds, times.iter().sum(), &buckets, None)?;
        }
        for (name, help, value) in GAUGES {
            let values: Vec<_> = profiles.iter().filter_map(|of| Some((labels(of), value(of)?))).collect();
            if values.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (labels, value) in values {
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::MetricSources;
    use super::super::super::bridges::tests::snapshots;
    use super::super::super::own::Own;
    use super::super::{Format, Metrics};
    use super::*;

    #[test]
    fn numbers_of_a_profile_have_its_name_as_labels() {
        let text = |profiles| {
            let own = Own { profiles, ..Own::default() };
            Metrics::new(Arc::new(MetricSources::default()), &own).encode(Format::Text).unwrap()
        };
        assert!(!text(None).contains("bridge"), "a bridge that is not configured has no metrics");
        let text = text(Some(snapshots()));
        for line in [
            "murre_bridge_sent_total{bridge=\"fcm\",app=\"firefox\"} 1",
            "murre_bridge_errors_total{bridge=\"fcm\",app=\"firefox\",reason=\"quota\"} 1",
            "murre_bridge_errors_total{bridge=\"fcm\",app=\"firefox\",reason=\"upstream_418\"} 1",
            "murre_bridge_retries_total{bridge=\"fcm\",app=\"firefox\"} 0",
            "murre_bridge_seconds_bucket{le=\"0.025\",bridge=\"fcm\",app=\"firefox\"} 3",
            "murre_bridge_seconds_count{bridge=\"fcm\",app=\"firefox\"} 3",
            "murre_bridge_in_flight{bridge=\"fcm\",app=\"firefox\"} 4",
            "murre_bridge_breaker{bridge=\"fcm\",app=\"firefox\"} 1",
            "murre_bridge_token_age_seconds{bridge=\"fcm\",app=\"firefox\"} 5",
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
        assert!(!text.contains("certificate_expires"), "a profile without a certificate has no such number");
    }
}
