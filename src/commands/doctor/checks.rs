//! Judges the facts: one pure function per subject. Each finding names the commands that fix it.

mod network;

use shards::ring::{MEMLOCK_MIN, ProbeError};

use super::facts::Facts;
pub use super::finding::{Finding, Sysctl, Verdict, Wanted};
use super::finding::{dotted, good, number, unknown};
use crate::config::MAX_CONNECTIONS_MAX;
use crate::node;
use network::{
    conntrack, conntrack_max, device_backlog, port_range, ports, somaxconn, steering, syn_backlog, tcp_memory,
};

/// Judges every kernel setting that the scripts of `tuning/` change. [`examine`] uses the same judgements; three of
/// these matter to a server only through what [`examine`] tries out, or not at all below a load.
pub fn sysctls(facts: &Facts, wanted: Wanted) -> Vec<Sysctl> {
    vec![
        io_uring_disabled(facts),
        files_of_a_process(facts, wanted),
        files_of_the_host(facts, wanted),
        somaxconn(facts, wanted),
        syn_backlog(facts, wanted),
        device_backlog(facts),
        tcp_memory(facts, wanted),
        ports(facts),
        conntrack_max(facts, wanted),
    ]
}

/// The lowest kernel that runs murre, and the one that has everything it uses (ring/RULES.md).
const KERNEL_FLOOR: (u32, u32) = (6, 1);
const KERNEL_FULL: (u32, u32) = (6, 4);

/// io_uring features and the kernel that brought each. The last of them sets the floor.
const FEATURES: &[(&str, (u32, u32))] = &[
    ("POLL_ADD multishot", (5, 13)),
    ("direct descriptors", (5, 15)),
    ("CQE_SKIP_SUCCESS", (5, 17)),
    ("ACCEPT into a direct descriptor that the kernel chooses", (5, 19)),
    ("COOP_TASKRUN and TASKRUN_FLAG", (5, 19)),
    ("MSG_RING SEND_FD", (6, 0)),
    ("SINGLE_ISSUER", (6, 0)),
    ("DEFER_TASKRUN", (6, 1)),
    ("TIMEOUT multishot", (6, 4)),
];

/// glommio registers its buffers only above this.
const MEMLOCK_GOOD: u64 = 64 << 20;
/// CAP_IPC_LOCK is bit 14 of the capability sets.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// User and kernel bytes of one idle connection (docs/CAPACITY.md), and what the process needs besides.
const CONNECTION_BYTES: u64 = 4_500;
const PROCESS_BYTES: u64 = 256 << 20;
/// LimitNOFILE of tuning/murre.service: no host needs a lower limit.
const FILES_OF_THE_UNIT: u64 = 1_100_000;
/// Descriptors for everything that is no connection.
const OTHER_FILES: u64 = 4_096;
/// The most that `max_connections` takes.
const CONNECTIONS_MAX: u64 = MAX_CONNECTIONS_MAX as u64;

/// Checks everything, in the order of importance.
pub fn examine(facts: &Facts, wanted: Wanted) -> Vec<Finding> {
    let mut findings = vec![
        kernel(facts),
        io_uring(facts),
        locked_memory(facts),
        open_files(facts, wanted),
        files_of_the_host(facts, wanted).finding(),
        somaxconn(facts, wanted).finding(),
        syn_backlog(facts, wanted).finding(),
        port_range(facts),
        conntrack(facts, wanted),
        tcp_memory(facts, wanted).finding(),
        memory(facts, wanted),
        cores(facts),
    ];
    findings.extend(steering(facts, wanted));
    findings
}

fn kernel(facts: &Facts) -> Finding {
    let what = "kernel";
    let wanted = format!(">= {}, best >= {}", dotted(KERNEL_FLOOR), dotted(KERNEL_FULL));
    let Some(version) = facts.kernel else { return unknown(what, wanted, "/proc/sys/kernel/osrelease") };
    let found = facts.release.clone().unwrap_or_else(|| dotted(version));
    let lacking: Vec<String> = FEATURES
        .iter()
        .filter(|(_, since)| version < *since)
        .map(|(name, since)| format!("{name} (since {})", dotted(*since)))
        .collect();
    let install =
        vec!["apt-get install linux-image-amd64   # or your distribution's newest kernel; then reboot".into()];
    if version < KERNEL_FLOOR {
        let why = format!("io_uring lacks {}; murre does not start", lacking.join(", "));
        return Finding { what, found, wanted, verdict: Verdict::Fail, why, mend: install };
    }
    if version < KERNEL_FULL {
        let why = format!("io_uring lacks {}; murre arms one-shot ticks instead, at more CPU", lacking.join(", "));
        return Finding { what, found, wanted, verdict: Verdict::Warn, why, mend: install };
    }
    good(what, found, wanted)
}

fn io_uring(facts: &Facts) -> Finding {
    if let Some(finding) = io_uring_switched_off(facts) {
        return finding;
    }
    let filtered = facts.seccomp == Some(2);
    match &facts.ring {
        Some(Ok(())) => good(IO_URING, "rings as a shard needs them were set up".into(), ALLOWED.into()),
        Some(Err(refusal)) => io_uring_refused(refusal, filtered),
        None if filtered => Finding {
            verdict: Verdict::Warn,
            why: "a seccomp filter is on; whether it lets io_uring through was not tried".into(),
            mend: vec![SECCOMP_PROFILE.into()],
            ..good(IO_URING, "not tried".into(), ALLOWED.into())
        },
        None => good(IO_URING, "not forbidden".into(), ALLOWED.into()),
    }
}

/// The sysctl that came with 6.6.
fn io_uring_switched_off(facts: &Facts) -> Option<Finding> {
    match facts.io_uring_disabled {
        Some(2) => Some(no_io_uring(
            "kernel.io_uring_disabled=2",
            "the kernel is told to refuse io_uring to everyone (a setting since 6.6)",
            "sysctl -w kernel.io_uring_disabled=0",
        )),
        Some(1) if facts.ring != Some(Ok(())) => Some(no_io_uring(
            "kernel.io_uring_disabled=1",
            "io_uring is for CAP_SYS_ADMIN and the group kernel.io_uring_group only (a setting since 6.6)",
            "sysctl -w kernel.io_uring_group=$(id -g murre)   # or kernel.io_uring_disabled=0",
        )),
        _ => None,
    }
}

fn io_uring_disabled(facts: &Facts) -> Sysctl {
    Sysctl {
        name: "kernel.io_uring_disabled",
        found: facts.io_uring_disabled.map(number),
        wanted: "0".into(),
        good: facts.io_uring_disabled == Some(0),
        value: "0".into(),
        why: "every socket lives in an io_uring ring",
    }
}

fn io_uring_refused(refusal: &ProbeError, filtered: bool) -> Finding {
    match refusal {
        ProbeError::Forbidden | ProbeError::NotBuiltIn if filtered => no_io_uring(
            "refused by a seccomp filter",
            "default container profiles forbid io_uring_setup, io_uring_enter and io_uring_register",
            SECCOMP_PROFILE,
        ),
        ProbeError::Forbidden => no_io_uring(
            "refused",
            "a security module forbids io_uring_setup to this user",
            "journalctl -k --grep denied   # then allow it in the policy that denied it",
        ),
        ProbeError::NotBuiltIn => no_io_uring(
            "not in this kernel",
            "the kernel was built without io_uring (CONFIG_IO_URING)",
            "apt-get install linux-image-amd64   # a kernel with CONFIG_IO_URING=y; then reboot",
        ),
        ProbeError::TooOld(lacking) => no_io_uring(
            &format!("lacks {lacking}"),
            "this kernel's io_uring cannot do what a shard needs (everything is there since 6.1)",
            "apt-get install linux-image-amd64   # or your distribution's newest kernel; then reboot",
        ),
        ProbeError::Memlock { .. } => no_io_uring(
            "refused: no memory to lock",
            "locked memory or the memory of the control group is used up",
            "ulimit -l unlimited   # LimitMEMLOCK=infinity in a unit, --ulimit memlock=-1 for a container",
        ),
        ProbeError::NoDescriptors => no_io_uring(
            "refused: no descriptor left",
            "this process has none left under RLIMIT_NOFILE",
            "ulimit -n 1048576   # LimitNOFILE= in a unit, --ulimit nofile= for a container",
        ),
        ProbeError::Other(error) => no_io_uring(
            &format!("refused: {error}"),
            "io_uring_setup failed for a reason that nobody foresaw",
            "strace -e io_uring_setup,io_uring_register murre doctor",
        ),
    }
}

fn no_io_uring(found: &str, why: &str, mend: &str) -> Finding {
    Finding {
        what: IO_URING,
        found: found.into(),
        wanted: ALLOWED.into(),
        verdict: Verdict::Fail,
        why: why.into(),
        mend: vec![mend.into()],
    }
}

const IO_URING: &str = "io_uring";
const ALLOWED: &str = "allowed";
const SECCOMP_PROFILE: &str =
    "docker run --security-opt seccomp=tuning/seccomp.json ...   # or SystemCallFilter=@aio in a unit";

fn locked_memory(facts: &Facts) -> Finding {
    let what = "locked memory (hard)";
    let wanted = format!(">= {}", bytes(MEMLOCK_GOOD));
    let Some(limit) = facts.memlock_hard else { return unknown(what, wanted, "/proc/self/limits") };
    // glommio compares the limit in any case; the kernel does not charge a process that has this capability.
    if limit >= MEMLOCK_MIN && facts.capabilities.is_some_and(|c| c & CAP_IPC_LOCK != 0) {
        return good(what, "CAP_IPC_LOCK".into(), wanted);
    }
    let mend = vec![
        "systemctl edit murre   # [Service] LimitMEMLOCK=infinity".into(),
        "docker run --ulimit memlock=-1 ...".into(),
    ];
    let finding = |verdict, why: &str| Finding {
        what,
        found: bytes(limit),
        wanted: wanted.clone(),
        verdict,
        why: why.into(),
        mend: mend.clone(),
    };
    match limit {
        0..MEMLOCK_MIN => finding(Verdict::Fail, "each executor needs 512 KiB of locked memory to start"),
        MEMLOCK_MIN..MEMLOCK_GOOD => {
            finding(Verdict::Warn, "executors cannot register their buffers: more CPU per file access")
        }
        _ => good(what, bytes(limit), wanted),
    }
}

fn open_files(facts: &Facts, wanted: Wanted) -> Finding {
    let what = "RLIMIT_NOFILE (hard)";
    let shards = wanted.shards.or(facts.cpus).unwrap_or(1).clamp(1, u64::from(machine::limits::SHARDS_MAX));
    let rings = |limit: u64| {
        let most = wanted.connections.min(CONNECTIONS_MAX) as u32;
        // Both casts are within bounds. A limit of a few descriptors opens no ring at all.
        let (table_max, backlog) = (limit.clamp(OTHER_FILES, 1 << 31) as u32, wanted.backlog.min(65_535) as u16);
        shards::ring::tables(node::share(most, shards as u16), table_max, backlog)
    };
    let (fewest, table) = rings(u64::MAX);
    let needed = u64::from(table).max(OTHER_FILES);
    let text = format!(">= {needed}, a ring of {} connections on {shards} shards", wanted.connections);
    let Some(limit) = facts.files_hard else { return unknown(what, text, "/proc/self/limits") };
    if limit >= needed {
        return good(what, number(limit), text);
    }
    let highest = files_of_a_process(facts, wanted);
    let limit_to_set = highest.value.clone();
    let mut mend = if highest.good || highest.found.is_none() { Vec::new() } else { highest.finding().mend };
    mend.push(format!("systemctl edit murre   # [Service] LimitNOFILE={limit_to_set}"));
    mend.push(format!("docker run --ulimit nofile={limit_to_set}:{limit_to_set} ..."));
    let why = format!(
        "it caps the table of one ring: a shard then opens {} rings in place of {fewest} and pays for visiting them",
        rings(limit).0
    );
    Finding { what, found: number(limit), wanted: text, verdict: Verdict::Warn, why, mend }
}

/// The bound of all limits of open files, and so of the limit of the service.
fn files_of_a_process(facts: &Facts, wanted: Wanted) -> Sysctl {
    let least = needed_files(wanted).max(FILES_OF_THE_UNIT);
    Sysctl::least("fs.nr_open", facts.nr_open, least, "no limit of open files can be higher")
}

fn files_of_the_host(facts: &Facts, wanted: Wanted) -> Sysctl {
    let why = "sockets of io_uring count here too: accept fails with ENFILE at the limit";
    Sysctl::least("fs.file-max", facts.file_max, needed_files(wanted), why)
}

fn memory(facts: &Facts, wanted: Wanted) -> Finding {
    let what = "memory";
    let needed = wanted.connections.saturating_mul(CONNECTION_BYTES).saturating_add(PROCESS_BYTES);
    let text = format!(">= {} for {} connections", bytes(needed), wanted.connections);
    let limited = facts.memory_limit.is_some_and(|limit| facts.memory.is_none_or(|total| limit < total));
    let available = if limited { facts.memory_limit } else { facts.memory };
    let Some(available) = available else { return unknown(what, text, "/proc/meminfo") };
    let found = if limited { format!("{} (control group)", bytes(available)) } else { bytes(available) };
    if available >= needed {
        return good(what, found, text);
    }
    let why =
        "kernel memory of sockets counts against the control group: the process is killed at the limit".to_string();
    let mend = match limited {
        true => vec![
            format!("systemctl set-property murre MemoryMax={needed}"),
            format!("docker update --memory {needed} --memory-swap {needed} murre"),
        ],
        false => vec![format!("murre serve --max-connections {}", fitting_connections(available))],
    };
    Finding { what, found, wanted: text, verdict: Verdict::Warn, why, mend }
}

/// Number of connections that `available` bytes of memory hold.
fn fitting_connections(available: u64) -> u64 {
    available.saturating_sub(PROCESS_BYTES) / CONNECTION_BYTES
}

fn cores(facts: &Facts) -> Finding {
    let what = "cores";
    let wanted = ">= 1, one shard each, no quota".to_string();
    let Some(cpus) = facts.cpus else { return unknown(what, wanted, "/proc/self/status") };
    match facts.cpu_quota_hundredths {
        Some(quota) if quota < cpus * 100 => Finding {
            what,
            found: format!("{cpus}, quota {}.{:02}", quota / 100, quota % 100),
            wanted,
            verdict: Verdict::Warn,
            why: "a quota stops all shards at once in the middle of a period: latency jumps to tens of milliseconds"
                .into(),
            mend: vec![
                "systemctl set-property murre CPUQuota=   # and pin with AllowedCPUs= instead".into(),
                "docker update --cpus 0 --cpuset-cpus 0-3 murre".into(),
            ],
        },
        _ => good(what, cpus.to_string(), wanted),
    }
}

/// Descriptors that hold `connections`, of all rings together: 1.05 times as many slots (ring/RULES.md) and everything
/// else.
fn needed_files(wanted: Wanted) -> u64 {
    wanted.connections + wanted.connections / 20 + OTHER_FILES
}

/// Bytes in the unit that keeps three digits.
fn bytes(value: u64) -> String {
    match value {
        u64::MAX => "unlimited".into(),
        0..1_048_576 => format!("{} KiB", value >> 10),
        1_048_576..10_737_418_240 => format!("{} MiB", value >> 20),
        _ => format!("{} GiB", value >> 30),
    }
}
