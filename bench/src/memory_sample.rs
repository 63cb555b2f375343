//! Memory at a number of sessions, and the growth between such readings: bytes for each session of the process and of
//! the kernel.

use std::collections::BTreeSet;
use std::io;

use crate::host::Memory;
use crate::metrics::Metrics;
use crate::report::Report;
use crate::result::names;
use crate::slab::{self, Share, Slabs};
use crate::target::Target;

/// One reading.
#[derive(Clone, Debug)]
pub struct MemorySample {
    sessions: usize,
    memory: Option<Memory>,
    slabs: Option<Slabs>,
    metrics: Option<Metrics>,
}

/// Caches that hold less than this for each session are left out.
const SHOWN_BYTES_MIN: f64 = 4.0;

impl MemorySample {
    /// Reads everything while `sessions` sessions are connected.
    pub fn take(target: &Target, sessions: usize) -> io::Result<MemorySample> {
        Ok(MemorySample {
            sessions,
            memory: (!target.pids.is_empty()).then(|| Memory::of(&target.pids)).transpose()?,
            slabs: slab::read(),
            metrics: target.admin.map(Metrics::read).transpose()?,
        })
    }

    fn sessions_since(&self, earlier: &MemorySample) -> f64 {
        self.sessions.saturating_sub(earlier.sessions).max(1) as f64
    }
}

/// Shows all readings, the first of which is without sessions: each step, and the whole from the first with sessions.
pub fn show(report: &mut Report, readings: &[MemorySample]) {
    let Some(none) = readings.first() else { return };
    for reading in readings {
        let sessions = reading.sessions as f64;
        if let Some(memory) = &reading.memory {
            report.add(format!("user memory at {} sessions", reading.sessions), memory.anonymous(), "B");
            report.point(names::USER_BYTES, "sessions", "B", sessions, memory.anonymous() as f64);
        }
        if let (Some(before), Some(now)) = (&none.slabs, &reading.slabs) {
            let (both, server) = kernel(before, now, sessions);
            report.point(names::KERNEL_BYTES, "sessions", "B", sessions, server);
            report.point(names::KERNEL_BYTES_BOTH_ENDS, "sessions", "B", sessions, both);
        }
        if let Some(metrics) = &reading.metrics {
            report.tables(metrics, reading.sessions);
        }
        if let Some(bytes) = reading.metrics.as_ref().and_then(store_bytes) {
            report.point(names::STORE_BYTES, "sessions", "B", sessions, bytes);
        }
    }
    for pair in readings.windows(2) {
        let [low, high] = pair else { continue };
        show_user(report, low, high, &format!("{} to {}", low.sessions, high.sessions));
    }
    let (Some(low), Some(high)) = (readings.get(1), readings.last()) else { return };
    let low = if readings.len() == 2 { none } else { low };
    show_slope(report, low, high);
    show_kernel(report, low, high);
    if let Some(metrics) = &high.metrics {
        report.shards(metrics);
    }
}

/// Bytes that the server's store holds in memory by its own metrics: the block cache and the write buffers. `None` for
/// a server without these metrics.
fn store_bytes(metrics: &Metrics) -> Option<f64> {
    let parts = ["murre_store_cache_bytes", "murre_store_buffer_bytes"];
    let mut told = parts.iter().flat_map(|name| metrics.named(name)).map(|(_, value)| value).peekable();
    told.peek().is_some().then(|| told.sum())
}

/// Growth of the kernel's caches while `sessions` sessions connected: of both ends, and of the server's.
fn kernel(before: &Slabs, now: &Slabs, sessions: f64) -> (f64, f64) {
    let grown = |(name, bytes): (&String, &u64)| {
        let grown = *bytes as f64 - before.get(name).copied().unwrap_or(0) as f64;
        let both = if slab::share(name) == Share::Other { 0.0 } else { grown };
        (both, slab::server_part(name, grown, sessions))
    };
    now.iter().map(grown).fold((0.0, 0.0), |sums, one| (sums.0 + one.0, sums.1 + one.1))
}

fn show_user(report: &mut Report, low: &MemorySample, high: &MemorySample, when: &str) {
    if let (Some(at_low), Some(at_high)) = (&low.memory, &high.memory) {
        let slope = (at_high.anonymous() as f64 - at_low.anonymous() as f64) / high.sessions_since(low);
        report.add(format!("user memory per session, {when}"), slope, "B");
    }
}

fn show_slope(report: &mut Report, low: &MemorySample, high: &MemorySample) {
    let sessions = high.sessions_since(low);
    let slope = |low: u64, high: u64| (high as f64 - low as f64) / sessions;
    if let (Some(at_low), Some(at_high)) = (&low.memory, &high.memory) {
        report.add(names::USER_SLOPE, slope(at_low.anonymous(), at_high.anonymous()), "B");
        let store = |reading: &MemorySample| reading.metrics.as_ref().and_then(store_bytes);
        if let (Some(before), Some(now)) = (store(low), store(high)) {
            report.add("  of it the store's cache and write buffers", (now - before) / sessions, "B");
        }
        let names: BTreeSet<&String> = at_low.by_mapping.keys().chain(at_high.by_mapping.keys()).collect();
        for name in names {
            let bytes = |memory: &Memory| memory.by_mapping.get(name).copied().unwrap_or(0);
            if bytes(at_low) != bytes(at_high) {
                report.add(format!("  {name}"), slope(bytes(at_low), bytes(at_high)), "B");
            }
        }
        report.add("  (not in it) Shared_Dirty", slope(at_low.shared_dirty, at_high.shared_dirty), "B");
        report.add("host Slab per session, both ends", slope(at_low.host_slab, at_high.host_slab), "B");
        let buffers = slope(at_low.host_socket_buffers, at_high.host_socket_buffers);
        report.add("host socket buffers per session, both ends", buffers, "B");
        report.add("huge pages of the server at the end", at_high.huge, "B");
    }
    if let (Some(before), Some(after)) = (&low.metrics, &high.metrics) {
        for (name, change) in after.since(before).matching("bytes") {
            report.add(format!("  {name}, per session"), change / sessions, "B");
        }
    }
}

/// The kernel's object caches, largest first: both ends, and the server's by the rule of [`slab`].
fn show_kernel(report: &mut Report, low: &MemorySample, high: &MemorySample) {
    let (Some(at_low), Some(at_high)) = (&low.slabs, &high.slabs) else {
        report.add("kernel object caches", "not readable: run as root for /proc/slabinfo", "");
        return;
    };
    let sessions = high.sessions_since(low);
    let grown = |(name, bytes): (&String, &u64)| {
        let each = (*bytes as f64 - at_low.get(name).copied().unwrap_or(0) as f64) / sessions;
        (each.abs() >= SHOWN_BYTES_MIN).then(|| (name.clone(), each))
    };
    let mut caches: Vec<(String, f64)> = at_high.iter().filter_map(grown).collect();
    caches.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (both, server) = kernel(at_low, at_high, sessions);
    report.add("kernel memory per session, both ends", both / sessions, "B");
    report.add(names::KERNEL_SLOPE, server / sessions, "B");
    for (name, each) in caches {
        let whose = match slab::share(&name) {
            Share::Half => "both ends, half is the server's",
            Share::Client => "the client's",
            Share::Polls => "both ends, one of each client",
            Share::Server => "the server's",
            Share::Ports => "the server's, but for one of each client",
            Share::Other => "not of sockets, left out",
        };
        report.add(format!("  {name} per session ({whose})"), each, "B");
    }
}

/// Shows the memory that remains after all sessions have ended.
pub fn show_release(report: &mut Report, readings: &[MemorySample], after: &MemorySample) {
    let (Some(none), Some(full)) = (readings.first(), readings.last()) else { return };
    if let (Some(none), Some(full), Some(after)) = (&none.memory, &full.memory, &after.memory) {
        report.add("user memory after all left", after.anonymous(), "B");
        let grown = full.anonymous().saturating_sub(none.anonymous()).max(1) as f64;
        let back = full.anonymous().saturating_sub(after.anonymous()) as f64;
        report.add("share of the user memory that came back", back / grown * 100.0, "%");
        let grown = full.host_slab.saturating_sub(none.host_slab).max(1) as f64;
        let back = full.host_slab.saturating_sub(after.host_slab) as f64;
        report.add("share of the kernel memory that came back", back / grown * 100.0, "%");
    }
}

/// Shows the growth of the process between two readings at the same number of sessions.
pub fn show_growth(report: &mut Report, before: &MemorySample, after: &MemorySample) {
    if let (Some(before), Some(now)) = (&before.memory, &after.memory) {
        report.add("user memory before", before.anonymous(), "B");
        report.add("user memory after", now.anonymous(), "B");
        let grown = now.anonymous() as f64 - before.anonymous() as f64;
        report.add("growth per session", grown / after.sessions.max(1) as f64, "B");
    }
}
