//! Facts about this host: read from kernel files below a root directory, and found by trials. Every fact can be
//! missing: old kernels and containers hide some, and there are no trials for another host.

use std::fs;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use runtime::ring::{self, ProbeError};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};

use config::PlaneChoice;

/// Everything by which a host is judged.
#[derive(Debug, Default)]
pub struct Facts {
    /// `/proc/sys/kernel/osrelease`, unparsed.
    pub release: Option<String>,
    /// The first two numbers of the release.
    pub kernel: Option<(u32, u32)>,
    /// `kernel.io_uring_disabled` (since 6.6): 0 allows every process, 1 a group, 2 none.
    pub io_uring_disabled: Option<u64>,
    /// Result of setting up a ring as a shard does; `None` when it was not tried. The same of the other trials.
    pub ring: Option<Result<(), ProbeError>>,
    /// The kernel tells the address of a direct descriptor's peer.
    pub tells_peers: Option<bool>,
    /// The kernel gives an ordinary descriptor of a direct one.
    pub takes_sockets_out: Option<bool>,
    /// A socket can be bound to `[::]`.
    pub ipv6: Option<bool>,
    /// Name of the file system in memory that has the data directory; `None`: another one, or it is not known.
    pub data_in_memory: Option<&'static str>,
    /// `Seccomp` of `/proc/self/status`: 0 off, 1 strict, 2 filter.
    pub seccomp: Option<u64>,
    /// `CapEff` of `/proc/self/status`.
    pub capabilities: Option<u64>,
    /// Number of CPUs this process may run on.
    pub cpus: Option<u64>,
    /// CPUs the control group grants, in hundredths.
    pub cpu_quota_hundredths: Option<u64>,
    /// Hard limit of open files; `u64::MAX` is unlimited.
    pub files_hard: Option<u64>,
    /// Hard limit of locked memory in bytes; `u64::MAX` is unlimited.
    pub memlock_hard: Option<u64>,
    /// `fs.nr_open`.
    pub nr_open: Option<u64>,
    /// `fs.file-max`.
    pub file_max: Option<u64>,
    /// `net.core.somaxconn`.
    pub somaxconn: Option<u64>,
    /// `net.ipv4.tcp_max_syn_backlog`.
    pub syn_backlog: Option<u64>,
    /// `net.core.netdev_max_backlog`.
    pub device_backlog: Option<u64>,
    /// `net.ipv4.ip_local_port_range`.
    pub port_range: Option<(u64, u64)>,
    /// `net.ipv4.ip_local_reserved_ports`, unparsed.
    pub reserved_ports: String,
    /// The three values of `net.ipv4.tcp_mem`, in pages.
    pub tcp_mem_pages: Option<[u64; 3]>,
    /// `net.netfilter.nf_conntrack_max`; `None` when connections are not tracked.
    pub conntrack_max: Option<u64>,
    /// `MemTotal` in bytes.
    pub memory: Option<u64>,
    /// The smallest memory limit of the control groups above this process, in bytes.
    pub memory_limit: Option<u64>,
}

impl Facts {
    /// Reads the facts about the host of this process, and tries what only a trial shows. `data_dir` may not be there
    /// yet. With an explicit poll no ring is tried: a filter may kill the process for it.
    pub fn here(data_dir: &Path, plane: PlaneChoice) -> Facts {
        let ring = (plane != PlaneChoice::Poll).then(ring::probe);
        let is_there = ring == Some(Ok(()));
        let tried = |trial: fn() -> Result<bool, ProbeError>| is_there.then(|| trial().ok()).flatten();
        Facts {
            tells_peers: tried(ring::tells_peers),
            takes_sockets_out: tried(ring::takes_sockets_out),
            ring,
            ipv6: Some(has_ipv6()),
            data_in_memory: memory_file_system(data_dir),
            ..Facts::read(Path::new("/"))
        }
    }

    /// Reads the facts below `root`, which may be a copy of another host's files. Tries nothing.
    pub fn read(root: &Path) -> Facts {
        let files = Files { root };
        let release = files.text("proc/sys/kernel/osrelease");
        let status = files.text("proc/self/status").unwrap_or_default();
        let limits = files.text("proc/self/limits").unwrap_or_default();
        let groups = Groups::read(&files);
        Facts {
            kernel: release.as_deref().and_then(version),
            release,
            io_uring_disabled: files.number("proc/sys/kernel/io_uring_disabled"),
            seccomp: field(&status, "Seccomp").and_then(|v| v.parse().ok()),
            capabilities: field(&status, "CapEff").and_then(|v| u64::from_str_radix(v, 16).ok()),
            cpus: field(&status, "Cpus_allowed_list").and_then(count_list),
            cpu_quota_hundredths: groups.cpu_quota_hundredths(&files),
            files_hard: hard_limit(&limits, "Max open files"),
            memlock_hard: hard_limit(&limits, "Max locked memory"),
            nr_open: files.number("proc/sys/fs/nr_open"),
            file_max: files.number("proc/sys/fs/file-max"),
            somaxconn: files.number("proc/sys/net/core/somaxconn"),
            syn_backlog: files.number("proc/sys/net/ipv4/tcp_max_syn_backlog"),
            device_backlog: files.number("proc/sys/net/core/netdev_max_backlog"),
            port_range: files.text("proc/sys/net/ipv4/ip_local_port_range").and_then(|t| pair(&t)),
            reserved_ports: files.text("proc/sys/net/ipv4/ip_local_reserved_ports").unwrap_or_default(),
            tcp_mem_pages: files.text("proc/sys/net/ipv4/tcp_mem").and_then(|t| {
                t.split_whitespace().map(|n| n.parse().ok()).collect::<Option<Vec<_>>>()?.try_into().ok()
            }),
            conntrack_max: files.number("proc/sys/net/netfilter/nf_conntrack_max"),
            memory: files.text("proc/meminfo").and_then(|t| kilobytes(field(&t, "MemTotal")?)),
            memory_limit: groups.memory_limit(&files),
            ..Facts::default()
        }
    }

    /// Returns true if this is a network namespace in which the settings of the whole host are not to be seen.
    pub fn hides_host_network(&self) -> bool {
        self.somaxconn.is_some() && self.tcp_mem_pages.is_none() && self.device_backlog.is_none()
    }
}

/// Returns false if this host or process has no IPv6: the kernel lacks it, or a filter refuses it.
pub fn has_ipv6() -> bool {
    let socket = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let bound = socket.and_then(|socket| bind(&socket, &any));
    // Any other fault, such as a lack of descriptors, says nothing of IPv6.
    !matches!(bound, Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// Returns the name of the file system in memory that has this path, or will have it.
fn memory_file_system(path: &Path) -> Option<&'static str> {
    let path = std::path::absolute(path).ok()?;
    let found = path.ancestors().find_map(|path| rustix::fs::statfs(path).ok())?;
    // A magic number has 32 bits; the width and sign of the field depend on the machine.
    match found.f_type as u32 {
        0x0102_1994 => Some("tmpfs"),
        0x8584_58f6 => Some("ramfs"),
        _ => None,
    }
}

/// Files below a root.
struct Files<'a> {
    root: &'a Path,
}

impl Files<'_> {
    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|t| t.trim().to_string())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }
}

/// Position of this process in the control groups.
struct Groups {
    unified: Option<String>,
    memory: Option<String>,
}

impl Groups {
    /// Lines are `number:controllers:path`; version 2 has number 0 and no controllers.
    fn read(files: &Files<'_>) -> Groups {
        let text = files.text("proc/self/cgroup").unwrap_or_default();
        let path = |wanted: fn(&str) -> bool| {
            text.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':');
                let controllers = parts.nth(1)?;
                wanted(controllers).then(|| parts.next().unwrap_or("/").to_string())
            })
        };
        Groups { unified: path(str::is_empty), memory: path(|c| c.split(',').any(|c| c == "memory")) }
    }

    /// The smallest limit from here up to the root, both versions.
    fn memory_limit(&self, files: &Files<'_>) -> Option<u64> {
        let unified = self.unified.iter().flat_map(|p| upwards("sys/fs/cgroup", p, "memory.max"));
        let legacy = self.memory.iter().flat_map(|p| upwards("sys/fs/cgroup/memory", p, "memory.limit_in_bytes"));
        // Version 1 says "no limit" as a number near 2^63.
        unified.chain(legacy).filter_map(|file| files.number(file.to_str()?)).filter(|bytes| *bytes < 1 << 62).min()
    }

    /// `cpu.max` is `quota period` in microseconds, or `max period`.
    fn cpu_quota_hundredths(&self, files: &Files<'_>) -> Option<u64> {
        let candidates = self.unified.iter().flat_map(|p| upwards("sys/fs/cgroup", p, "cpu.max"));
        candidates
            .filter_map(|file| {
                let (quota, period) = pair(&files.text(file.to_str()?)?)?;
                (quota * 100).checked_div(period)
            })
            .min()
    }
}

/// The file of this name in the group and in every group above it.
fn upwards(mount: &str, group: &str, name: &str) -> Vec<PathBuf> {
    let group = PathBuf::from(mount).join(group.trim_start_matches('/'));
    group.ancestors().take_while(|dir| dir.starts_with(mount)).map(|dir| dir.join(name)).collect()
}

/// `6.18.44-generic` -> (6, 18).
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The value of `Name:  value` in a text of such lines.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
}

fn kilobytes(value: &str) -> Option<u64> {
    value.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The hard column of `/proc/self/limits`: name, soft, hard, unit.
fn hard_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let mut numbers = text.split_whitespace().map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// `0-3,8` -> 5.
fn count_list(list: &str) -> Option<u64> {
    list.split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}
