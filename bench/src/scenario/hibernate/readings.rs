//! Facts of the host that other scenarios do not read: kernel memory beside the object caches, and what packet queues
//! dropped.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use procfs::process::Process;
use procfs::{Current as _, Meminfo};

use crate::host::{Memory, of_process, sum};
use crate::report::Report;
use crate::slab::{self, Share, Slabs};
use crate::target::Target;

/// Growth of a cache that is shown, in bytes for each session.
const SHOWN_BYTES_MIN: f64 = 0.5;

/// Memory of the server and of the kernel.
pub struct Reading {
    server: Memory,
    /// `Pss` and `VmPTE` of the server's processes.
    pss: u64,
    page_tables: u64,
    kernel: BTreeMap<&'static str, u64>,
    slabs: Option<Slabs>,
}

impl Reading {
    /// Reads all of it.
    pub fn take(target: &Target) -> io::Result<Reading> {
        let (mut pss, mut page_tables) = (0, 0);
        for pid in &target.pids {
            let read = |process: &Process| Ok((process.smaps_rollup()?, process.status()?));
            let Ok((rollup, status)) = of_process(*pid, read) else { continue };
            pss += sum(&rollup.memory_map_rollup, "Pss");
            page_tables += status.vmpte.unwrap_or(0) * 1024;
        }
        let host = Meminfo::current().map_err(io::Error::other)?;
        let kernel = [
            ("Slab", Some(host.slab)),
            ("KernelStack", host.kernel_stack),
            ("PageTables", host.page_tables),
            ("SecPageTables", host.secondary_page_tables),
            ("Percpu", host.per_cpu),
            ("VmallocUsed", Some(host.vmalloc_used)),
        ];
        let kernel = kernel.into_iter().map(|(name, bytes)| (name, bytes.unwrap_or(0))).collect();
        Ok(Reading { server: Memory::of(&target.pids)?, pss, page_tables, kernel, slabs: slab::read() })
    }

    /// Shows the growth since `empty`, for each of `sessions`.
    pub fn show(&self, empty: &Reading, sessions: u32, report: &mut Report) {
        let each = |now: u64, before: u64| (now as f64 - before as f64) / f64::from(sessions.max(1));
        let user = each(self.server.anonymous(), empty.server.anonymous());
        report.add("server user memory per session (anonymous, private)", user, "B");
        report.add("  RSS per session", each(self.server.resident, empty.server.resident), "B");
        report.add("  PSS per session", each(self.pss, empty.pss), "B");
        report.add("  page tables of the server per session", each(self.page_tables, empty.page_tables), "B");
        report.add("server user memory, empty", empty.server.anonymous(), "B");
        report.add("server user memory, all frozen", self.server.anonymous(), "B");
        for (name, now) in &self.server.by_mapping {
            let before = empty.server.by_mapping.get(name).copied().unwrap_or(0);
            if each(*now, before).abs() >= SHOWN_BYTES_MIN {
                report.add(format!("  {name} per session"), each(*now, before), "B");
            }
        }
        let mut all = 0.0;
        for (key, now) in &self.kernel {
            let grown = each(*now, empty.kernel.get(key).copied().unwrap_or(0));
            all += grown;
            report.add(format!("host {key} per session, whole host"), grown, "B");
        }
        report.add("kernel memory per session, whole host, both ends", all, "B");
        let (Some(now), Some(before)) = (&self.slabs, &empty.slabs) else { return };
        let mut of_sockets = 0.0;
        for (name, bytes) in now {
            let grown = each(*bytes, before.get(name).copied().unwrap_or(0));
            let is_of_sockets = slab::share(name) != Share::Other;
            of_sockets += if is_of_sockets { grown } else { 0.0 };
            if grown.abs() >= SHOWN_BYTES_MIN {
                let whose = if is_of_sockets { "" } else { " (not of sockets)" };
                report.add(format!("  {name} per session{whose}"), grown, "B");
            }
        }
        report.add("objects of sockets in the kernel per session, both ends", of_sockets, "B");
    }
}

/// Packets that the queues of a process's network namespace dropped because they were full.
pub fn dropped_by_queue(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/net/netfilter/nfnetlink_queue")).unwrap_or_default();
    // number port waiting copy_mode copy_range dropped user_dropped id 1
    let dropped = |line: &str| {
        let words: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        Some(words.get(5)? + words.get(6)?)
    };
    text.lines().filter_map(dropped).sum()
}
