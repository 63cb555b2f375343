//! The metrics of the process, with the names that every process has and with those of before.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::super::process::Process;

/// The metrics of the process.
#[derive(Debug)]
pub(super) enum ProcessMetrics {
    /// With the names that the client libraries of Prometheus give every process.
    Standard,
    /// With the prefix of murre: one that has no standard name, and those of before.
    Deprecated,
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let process = Process::read();
        let mut gauge = |name: &str, help: &str, value: u64| {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        match self {
            ProcessMetrics::Standard => {
                gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes)?;
                gauge("process_threads", "Number of OS threads in the process.", process.threads)?;
                gauge(
                    "process_open_fds",
                    "Number of open file descriptors, without the sockets in the rings.",
                    process.open_fds,
                )?;
                gauge("process_max_fds", "Maximum number of open file descriptors.", process.max_fds)?;
                let started = ConstGauge::new(process.started_seconds);
                let help = "Start time of the process since the Unix epoch in seconds.";
                started.encode(encoder.encode_descriptor(
                    "process_start_time_seconds",
                    help,
                    None,
                    MetricType::Gauge,
                )?)?;
            }
            ProcessMetrics::Deprecated => {
                gauge(
                    "process_private_bytes",
                    "Memory that nobody shares and that was written.",
                    process.private_bytes,
                )?;
                let deprecated = "Deprecated: use process_resident_memory_bytes";
                gauge("process_resident_bytes", deprecated, process.resident_bytes)?;
                gauge("process_threads", "Deprecated: use process_threads", process.threads)?;
                gauge("process_open_fds", "Deprecated: use process_open_fds", process.open_fds)?;
            }
        }
        let help = match self {
            ProcessMetrics::Standard => "Total user and system CPU time spent in seconds.",
            ProcessMetrics::Deprecated => "Deprecated: use process_cpu_seconds_total",
        };
        let cpu = ConstCounter::new(process.cpu_seconds);
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)
    }
}
