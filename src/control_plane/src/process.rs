//! Memory, time and threads of this process. Read from /proc; a field that is not there is zero.

use std::fs::read_to_string;

/// Memory, time and descriptors of this process.
#[derive(Clone, Copy, Default, Debug)]
pub struct Process {
    /// Physical memory mapped, in bytes.
    pub resident_bytes: u64,
    /// Memory that is not shared and was written (`Private_Dirty`), in bytes.
    pub private_bytes: u64,
    /// User and system time, in seconds.
    pub cpu_seconds: f64,
    pub threads: u64,
    /// Open file descriptors; sockets of the shards live in their rings and are not among them.
    pub open_fds: u64,
    /// The soft limit on open file descriptors.
    pub max_fds: u64,
    /// Start of the process in seconds since the Unix epoch, by the host's clock.
    pub started_seconds: f64,
}

impl Process {
    /// Reads them now. `smaps_rollup` walks the page tables: about 1 ms per GiB, so not for every scrape of many.
    pub fn read() -> Process {
        let status = read_to_string("/proc/self/status").unwrap_or_default();
        let rollup = read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
        let fds = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
        let stat = read_to_string("/proc/self/stat").unwrap_or_default();
        let host = read_to_string("/proc/stat").unwrap_or_default();
        Process {
            resident_bytes: field(&status, "VmRSS:") * 1024,
            private_bytes: field(&rollup, "Private_Dirty:") * 1024,
            cpu_seconds: cpu_seconds(&stat),
            threads: field(&status, "Threads:"),
            open_fds: fds,
            max_fds: runtime::ring::nofile_limit(),
            started_seconds: field(&host, "btime") as f64 + started_seconds(&stat),
        }
    }
}

/// The number behind `name` at the beginning of a line.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Fields 14 and 15 of /proc/pid/stat, counted behind the name in parentheses, which may hold anything.
fn cpu_seconds(stat: &str) -> f64 {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 = behind_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    ticks as f64 / TICKS_PER_SECOND
}

/// Field 22 of /proc/pid/stat: seconds from the boot of the host to the start of the process.
fn started_seconds(stat: &str) -> f64 {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = behind_name.split_whitespace().nth(19).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    ticks as f64 / TICKS_PER_SECOND
}

/// `USER_HZ`, fixed by the kernel's ABI on every architecture we run on.
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        assert_eq!(field("VmPeak:\t  9 kB\nVmRSS:\t  12 kB\n", "VmRSS:"), 12);
        assert_eq!(field("VmPeak: 9 kB\n", "VmRSS:"), 0);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 5";
        assert!((cpu_seconds(stat) - 3.0).abs() < 1e-9);
        assert!((started_seconds(stat) - 0.05).abs() < 1e-9);
    }

    #[test]
    fn this_process_has_memory_threads_and_descriptors() {
        let read = Process::read();
        assert!(read.resident_bytes > 1 << 20 && read.private_bytes > 1 << 16, "{read:?}");
        assert!(read.threads >= 1 && read.open_fds >= 3 && read.max_fds >= read.open_fds, "{read:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        assert!(read.started_seconds > 1e9 && read.started_seconds <= now + 1.0, "{read:?} at {now}");
    }
}
