//! The metrics of the limits and rules about callers.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use runtime::strangers::{Access, Cause, Limit, Strangers};

/// Numbers of the table of addresses. A node has one for all shards.
pub(super) struct StrangerStats(pub Option<Arc<Strangers>>);

impl fmt::Debug for StrangerStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StrangerNumbers")
    }
}

impl Collector for StrangerStats {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(strangers) = &self.0 else { return Ok(()) };
        let stats = strangers.stats();
        let help = "Connections, handshakes, hellos and registers refused because of strangers.*, by limit.";
        let mut family = encoder.encode_descriptor("strangers_refused", help, None, MetricType::Counter)?;
        for limit in Limit::ALL {
            let refused = stats.refused(Cause::Limit(limit));
            ConstCounter::new(refused).encode(family.encode_family(&[("limit", limit.name())])?)?;
        }
        let help = "Upgrades, registers and POSTs answered 401 because of access.* and endpoint.allowed_keys, by mode.";
        let mut family = encoder.encode_descriptor("access_refused", help, None, MetricType::Counter)?;
        for access in Access::ALL {
            let refused = stats.refused(Cause::Access(access));
            ConstCounter::new(refused).encode(family.encode_family(&[("mode", access.name())])?)?;
        }
        let help = "Addresses with connections, or with a rate that is not full again.";
        let gauge = ConstGauge::new(i64::try_from(stats.addresses).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor("strangers_addresses", help, None, MetricType::Gauge)?)?;
        let help = "Addresses whose counts were lost, or never made, because there were too many addresses.";
        let counter = ConstCounter::new(stats.forgotten);
        counter.encode(encoder.encode_descriptor("strangers_forgotten", help, None, MetricType::Counter)?)
    }
}

#[cfg(test)]
mod tests {
    use machine::time::Instant;
    use runtime::strangers::StrangerLimits;

    use super::super::super::MetricSources;
    use super::super::super::own::Own;
    use super::super::{Format, Metrics};
    use super::*;

    fn text(strangers: Option<Arc<Strangers>>) -> String {
        let sources = Arc::new(MetricSources { strangers, ..MetricSources::default() });
        Metrics::new(sources, &Own::default()).encode(Format::Open).unwrap()
    }

    #[test]
    fn refusals_are_shown_by_limit_and_mode_beside_the_addresses() {
        let limits = StrangerLimits { connections: 1, registers_per_hour: 1, ..StrangerLimits::default() };
        let strangers = Arc::new(Strangers::new(limits, 1));
        let stranger = strangers.enter([127, 0, 0, 1].into(), Instant(0)).unwrap().unwrap();
        assert!((0..2).all(|_| strangers.enter([127, 0, 0, 1].into(), Instant(0)).is_err()));
        assert!((0..4).filter(|_| !strangers.take(stranger, Limit::Registers, Instant(0))).count() == 3);
        strangers.refuse(Access::Vapid, 5, None);
        let text = text(Some(strangers));
        for line in [
            "murre_strangers_refused_total{limit=\"connections\"} 2",
            "murre_strangers_refused_total{limit=\"handshakes\"} 0",
            "murre_strangers_refused_total{limit=\"new_users\"} 0",
            "murre_strangers_refused_total{limit=\"registers\"} 3",
            "murre_access_refused_total{mode=\"token\"} 0",
            "murre_access_refused_total{mode=\"vapid\"} 5",
            "murre_access_refused_total{mode=\"allowed_keys\"} 0",
            "murre_strangers_addresses 1",
            "murre_strangers_forgotten_total 0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
        assert!(!super::tests::text(None).contains("strangers"));
    }
}
