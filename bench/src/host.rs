//! Facts of the host about a process: CPU time, memory, limits. All of it read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use procfs::process::{MMapPath, MemoryMaps, Process};
use procfs::{CpuInfo, Current as _, Meminfo, ProcResult};

use crate::result::Machine;

/// Reads facts of the process `pid`.
pub fn of_process<T>(pid: u32, read: impl FnOnce(&Process) -> ProcResult<T>) -> io::Result<T> {
    Process::new(pid as i32).and_then(|process| read(&process)).map_err(io::Error::other)
}

/// CPU time of a process and all its descendants, in nanoseconds since each of them started.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Time on a core, from the scheduler (`schedstat`); exact to the nanosecond.
    pub run_ns: u64,
    /// User time, from the accounting ticks (10 ms each on most kernels).
    pub user_ns: u64,
    /// System time, from the same ticks.
    pub system_ns: u64,
}

impl CpuTime {
    /// Sums every live thread of `pid` and of its descendants. A thread that ended in between is missing from `run_ns`.
    pub fn read(pid: u32) -> io::Result<CpuTime> {
        CpuTime::of(&[pid])
    }

    /// The same for several processes; one that descends from another counts once.
    pub fn of(pids: &[u32]) -> io::Result<CpuTime> {
        let mut sum = CpuTime::default();
        for pid in families(pids)? {
            match sum.add_process(pid) {
                // A descendant may end while the others are read.
                Err(error) if pids.contains(&pid) => return Err(error),
                _ => {}
            }
        }
        Ok(sum)
    }

    /// CPU time of this process alone: servers that it started are not the generator.
    pub fn own() -> io::Result<CpuTime> {
        let mut sum = CpuTime::default();
        sum.add_process(std::process::id())?;
        Ok(sum)
    }

    fn add_process(&mut self, pid: u32) -> io::Result<()> {
        let (tasks, stat) = of_process(pid, |process| Ok((process.tasks()?, process.stat()?)))?;
        // A thread may end while the directory is read: it is left out.
        let run_ns = tasks.flatten().filter_map(|task| task.schedstat().ok()).map(|time| time.sum_exec_runtime);
        self.run_ns += run_ns.sum::<u64>();
        let tick_ns = 1_000_000_000 / procfs::ticks_per_second();
        self.user_ns += stat.utime * tick_ns;
        self.system_ns += stat.stime * tick_ns;
        Ok(())
    }

    /// Returns the time used since `earlier`.
    pub fn since(self, earlier: CpuTime) -> CpuTime {
        CpuTime {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
        }
    }
}

/// These processes and all their descendants, each once. One of `pids` that is not there is an error.
fn families(pids: &[u32]) -> io::Result<Vec<u32>> {
    let mut found = pids.to_vec();
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        let tasks = match of_process(pid, Process::tasks) {
            Ok(tasks) => tasks,
            Err(error) if pids.contains(&pid) => {
                return Err(io::Error::other(format!("no process {pid}, named by --pid: {error}")));
            }
            // A descendant may end while its siblings are read.
            Err(_) => continue,
        };
        found.extend(tasks.flatten().filter_map(|task| task.children().ok()).flatten());
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Memory of a server in bytes.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// `Private_Dirty` of `smaps_rollup`: pages that the process alone made dirty and still holds.
    pub private_dirty: u64,
    /// `Shared_Dirty`: among others, pages of a shared file mapping that are not written back.
    pub shared_dirty: u64,
    pub resident: u64,
    pub huge: u64,
    /// `Private_Dirty` by mapping: `[heap]`, `[stack]`, `anonymous`, or the last part of a file's name.
    pub by_mapping: BTreeMap<String, u64>,
    /// `Slab` of the whole host, both ends of every local connection included.
    pub host_slab: u64,
    /// Memory of all socket buffers of the host (`/proc/net/sockstat`).
    pub host_socket_buffers: u64,
}

impl Memory {
    /// Reads it all for `pid` and its descendants. Walks their page tables: milliseconds for a large process.
    pub fn read(pid: u32) -> io::Result<Memory> {
        Memory::of(&[pid])
    }

    /// The same for several processes; one that descends from another counts once.
    pub fn of(pids: &[u32]) -> io::Result<Memory> {
        let mut memory = Memory {
            host_slab: Meminfo::current().map_err(io::Error::other)?.slab,
            host_socket_buffers: socket_buffers(&fs::read_to_string("/proc/net/sockstat")?),
            ..Memory::default()
        };
        for pid in families(pids)? {
            let read = |process: &Process| Ok((process.smaps_rollup()?.memory_map_rollup, process.smaps()?));
            let (rollup, maps) = match of_process(pid, read) {
                Ok(maps) => maps,
                Err(error) if pids.contains(&pid) => return Err(error),
                Err(_) => continue,
            };
            memory.private_dirty += sum(&rollup, "Private_Dirty");
            memory.shared_dirty += sum(&rollup, "Shared_Dirty");
            memory.resident += sum(&rollup, "Rss");
            memory.huge += sum(&rollup, "AnonHugePages");
            memory.add_mappings(&maps);
        }
        Ok(memory)
    }

    fn add_mappings(&mut self, maps: &MemoryMaps) {
        for map in maps {
            let bytes = map.extension.map.get("Private_Dirty").copied().unwrap_or(0);
            if bytes == 0 {
                continue;
            }
            let name = match &map.pathname {
                MMapPath::Anonymous => "anonymous".to_owned(),
                MMapPath::Heap => "[heap]".to_owned(),
                MMapPath::Stack => "[stack]".to_owned(),
                MMapPath::Other(name) => format!("[{name}]"),
                MMapPath::Path(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                other => format!("[{other:?}]"),
            };
            *self.by_mapping.entry(name).or_default() += bytes;
        }
    }

    /// `Private_Dirty` without file mappings. Pages of a shared file mapping count as dirty only until the kernel has
    /// written them back, so that the sum falls by whole ledger logs in the middle of a run.
    pub fn anonymous(&self) -> u64 {
        let own = |name: &&String| name.starts_with('[') || *name == "anonymous";
        self.by_mapping.keys().filter(own).filter_map(|name| self.by_mapping.get(name)).sum()
    }
}

/// Resident bytes of these processes alone, from `statm`: cheap enough to read every second.
pub fn resident(pids: &[u32]) -> u64 {
    let statms = families(pids).unwrap_or_default().into_iter().filter_map(|pid| of_process(pid, Process::statm).ok());
    statms.map(|statm| statm.resident.saturating_sub(statm.shared)).sum::<u64>() * procfs::page_size()
}

/// Sum of this field of all mappings.
pub fn sum(maps: &MemoryMaps, field: &str) -> u64 {
    maps.iter().filter_map(|map| map.extension.map.get(field)).sum()
}

fn socket_buffers(text: &str) -> u64 {
    let words: Vec<&str> = text.lines().find(|line| line.starts_with("TCP:")).unwrap_or("").split(' ').collect();
    let pages = words.windows(2).find(|pair| pair[0] == "mem").and_then(|pair| pair[1].parse::<u64>().ok());
    pages.unwrap_or(0) * procfs::page_size()
}

/// Raises the soft limit of open files to the hard one and returns it.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // A failure leaves the soft limit, and the function returns that.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Kernel, processor, cores, memory of the host.
pub fn machine() -> Machine {
    let cpus = CpuInfo::current().ok();
    Machine {
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().into(),
        cpu: cpus.as_ref().and_then(|cpus| cpus.model_name(0)).unwrap_or("?").into(),
        cores: cpus.as_ref().map_or(0, CpuInfo::num_cores) as u64,
        memory_bytes: Meminfo::current().map_or(0, |memory| memory.mem_total),
    }
}

#[cfg(test)]
mod tests {
    use procfs::FromRead as _;

    use super::*;

    #[test]
    fn own_process_has_memory_and_time() {
        // Other tests of this process make and free memory between the two readings that must agree.
        let agrees = |memory: Memory| {
            assert!(memory.private_dirty > 0);
            memory.by_mapping.values().sum::<u64>() <= memory.private_dirty + (1 << 20)
        };
        assert!((0..1_000).any(|_| agrees(Memory::read(std::process::id()).unwrap())));
        let before = CpuTime::read(std::process::id()).unwrap();
        let mut sum = 0u64;
        while CpuTime::read(std::process::id()).unwrap().since(before).run_ns < 2_000_000 {
            sum = (0..100_000u64).fold(sum, |a, b| a.wrapping_mul(31) ^ b);
        }
        assert_ne!(sum, 1);
    }

    #[test]
    fn a_process_named_twice_counts_once_and_one_that_is_gone_is_an_error() {
        let own = std::process::id();
        // A process without children: those of this process come and go with other tests.
        let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = other.id();
        let (twice, once) = (families(&[pid, pid]).unwrap(), families(&[pid]).unwrap());
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(twice, once);
        assert!(resident(&[own]) > 100_000);
        let error = CpuTime::of(&[own, u32::MAX]).unwrap_err().to_string();
        assert!(error.contains("--pid"), "{error}");
    }

    #[test]
    fn children_of_a_process_are_counted_and_so_are_theirs() {
        let mut shell = std::process::Command::new("sh");
        let mut shell = shell.args(["-c", "sh -c 'sleep 60 & wait' & wait"]).spawn().unwrap();
        // Each of them has to be started by the one before.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let mut family = Vec::new();
        while family.len() < 3 && std::time::Instant::now() < deadline {
            family = families(&[shell.id()]).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // Each is reaped when its parent is gone, so the youngest go first.
        for pid in family.iter().rev().filter_map(|pid| rustix::process::Pid::from_raw(*pid as i32)) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        shell.wait().unwrap();
        assert_eq!(family.len(), 3, "the shell, its shell and its sleep");
        assert!(family.contains(&shell.id()));
    }

    #[test]
    fn smaps_are_summed_by_name() {
        let text = "55-56 rw-p 00000000 00:00 0 [heap]\nPrivate_Dirty: 8 kB\n57-58 rw-p 00000000 00:00 0 \n\
                    Private_Dirty: 4 kB\n59-60 rw-s 00000000 00:00 7 /a/b/ledger\nPrivate_Dirty: 12 kB\n";
        let mut memory = Memory::default();
        memory.add_mappings(&MemoryMaps::from_read(text.as_bytes()).unwrap());
        let sums = &memory.by_mapping;
        assert_eq!(sums.get("[heap]"), Some(&8192));
        assert_eq!(sums.get("anonymous"), Some(&4096));
        assert_eq!(sums.get("ledger"), Some(&12288));
        assert_eq!(memory.anonymous(), 12_288, "without the ledger");
    }
}
