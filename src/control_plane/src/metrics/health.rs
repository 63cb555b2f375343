//! The metrics of the conditions of the node.

use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

use super::super::Conditions;

/// Every condition, by name.
#[derive(Debug)]
pub(super) struct HealthStats(pub Arc<Conditions>);

impl Collector for HealthStats {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let states = self.0.look();
        if states.is_empty() {
            return Ok(());
        }
        let help = "Health of a condition: 0 good, 1 degraded, 2 another node does better, 3 a restart heals it.";
        let mut family = encoder.encode_descriptor("health_condition", help, None, MetricType::Gauge)?;
        for state in &states {
            ConstGauge::new(i64::from(state.health as u8))
                .encode(family.encode_family(&[("condition", state.name)])?)?;
        }
        let help = "Unix time of the last change of a condition, in seconds.";
        let mut family =
            encoder.encode_descriptor("health_condition_changed_timestamp_seconds", help, None, MetricType::Gauge)?;
        for state in &states {
            let since = i64::try_from(state.since_unix()).unwrap_or(i64::MAX);
            ConstGauge::new(since).encode(family.encode_family(&[("condition", state.name)])?)?;
        }
        Ok(())
    }
}
