//! The metrics of the process.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::super::process::Process;

/// The metrics that every process has, with the names that the client libraries of Prometheus give them.
#[derive(Debug)]
pub(super) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let process = Process::read();
        let open = "Number of open file descriptors, without the sockets in the rings.";
        gauge("process_resident_memory_bytes", "Resident memory size in bytes.", process.resident_bytes, &mut encoder)?;
        gauge("process_threads", "Number of OS threads in the process.", process.threads, &mut encoder)?;
        gauge("process_open_fds", open, process.open_fds, &mut encoder)?;
        gauge("process_max_fds", "Maximum number of open file descriptors.", process.max_fds, &mut encoder)?;
        let started = ConstGauge::new(process.started_seconds);
        let help = "Start time of the process since the Unix epoch in seconds.";
        started.encode(encoder.encode_descriptor("process_start_time_seconds", help, None, MetricType::Gauge)?)?;
        let help = "Total user and system CPU time spent in seconds.";
        let cpu = ConstCounter::new(process.cpu_seconds);
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)
    }
}

/// Memory of this process alone, which has no standard name.
#[derive(Debug)]
pub(super) struct PrivateMemory;

impl Collector for PrivateMemory {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let help = "Memory that nobody shares and that was written.";
        gauge("process_private_bytes", help, Process::read().private_bytes, &mut encoder)
    }
}

fn gauge(name: &str, help: &str, value: u64, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}
