//! Limits and resources: descriptors, locked memory, memory, CPUs, the data directory.

use super::facts::Facts;
use super::finding::{Finding, Sysctl, Verdict, dotted, good, number, unknown};
use super::needs::Needs;
use config::MAX_CONNECTIONS_MAX;

/// CAP_IPC_LOCK is bit 14 of the capability sets.
const CAP_IPC_LOCK: u64 = 1 << 14;
/// First kernel since 5.12 that counts the rings of a user without CAP_IPC_LOCK against RLIMIT_MEMLOCK.
const KERNEL_COUNTS_RINGS: (u32, u32) = (6, 14);
/// Bytes that the trials of a start and their rings may hold for a moment.
const TRIAL_BYTES: u64 = 64 << 10;
/// User and kernel bytes of one idle connection (docs/CAPACITY.md), and what the process needs besides.
const CONNECTION_BYTES: u64 = 4_500;
const PROCESS_BYTES: u64 = 256 << 20;
/// LimitNOFILE of tuning/murre.service: no host needs a lower limit.
const FILES_OF_THE_UNIT: u64 = 1_100_000;
/// Descriptors for everything that is no connection.
const OTHER_FILES: u64 = 4_096;
/// The most that `max_connections` takes.
const CONNECTIONS_MAX: u64 = MAX_CONNECTIONS_MAX as u64;

/// Connections of one shard. Users fall on shards by chance, so each may hold a little more than its share.
pub fn share(max_connections: u32, shard_count: u16) -> u32 {
    let share = max_connections.div_ceil(u32::from(shard_count));
    if shard_count == 1 { share } else { share + share / 50 }
}

/// Number of shards, at least one.
fn shards(facts: &Facts, needs: Needs) -> u64 {
    needs.shards.or(facts.cpus).unwrap_or(1).clamp(1, u64::from(machine::limits::SHARDS_MAX))
}

/// Rings of one shard, and the descriptors of each, under this limit of descriptors.
fn rings(facts: &Facts, needs: Needs, limit: u64) -> (u16, u32) {
    let most = needs.connections.min(CONNECTIONS_MAX) as u32;
    // Both casts are within bounds. A limit of a few descriptors opens no ring at all.
    let (table_max, backlog) = (limit.clamp(OTHER_FILES, 1 << 31) as u32, needs.backlog.min(65_535) as u16);
    runtime::ring::tables(share(most, shards(facts, needs) as u16), table_max, backlog)
}

/// Judges the limit against the rings of all shards. The kernel counts those of all processes of a user together, so
/// that a server which starts while another one ends needs twice as much.
pub(super) fn locked_memory(facts: &Facts, needs: Needs, polls: bool) -> Finding {
    let what = "locked memory (hard)";
    if polls {
        return good(what, "not counted".into(), "any without rings".into());
    }
    let shards = shards(facts, needs);
    let (rings, _) = rings(facts, needs, facts.files_hard.unwrap_or(u64::MAX));
    let least = shards * u64::from(rings) * runtime::ring::RING_BYTES + TRIAL_BYTES;
    let wanted = format!(">= {}, the rings of {shards} shards twice", bytes(least * 2));
    let Some(version) = facts.kernel else { return unknown(what, wanted, "/proc/sys/kernel/osrelease") };
    if version < KERNEL_COUNTS_RINGS {
        return good(what, "not counted".into(), format!("any before Linux {}", dotted(KERNEL_COUNTS_RINGS)));
    }
    if facts.capabilities.is_some_and(|c| c & CAP_IPC_LOCK != 0) {
        return good(what, "CAP_IPC_LOCK".into(), wanted);
    }
    let Some(limit) = facts.memlock_hard else { return unknown(what, wanted, "/proc/self/limits") };
    if limit >= least * 2 {
        return good(what, bytes(limit), wanted);
    }
    let (verdict, why) = if limit < least {
        (
            Verdict::Fail,
            format!("the kernel counts rings as locked memory, and those of this server are {}", bytes(least)),
        )
    } else {
        (
            Verdict::Warn,
            "a server that starts while another one of this user ends lacks memory for its rings".to_owned(),
        )
    };
    let mend = vec![
        "systemctl edit murre   # [Service] LimitMEMLOCK=infinity".into(),
        "docker run --ulimit memlock=-1 ...".into(),
    ];
    Finding { what, found: bytes(limit), wanted, verdict, why, mend }
}

pub(super) fn open_files(facts: &Facts, needs: Needs, polls: bool) -> Finding {
    let what = "RLIMIT_NOFILE (hard)";
    let shards = shards(facts, needs);
    let (fewest, table) = rings(facts, needs, u64::MAX);
    let needed = if polls { needed_files(needs) } else { u64::from(table).max(OTHER_FILES) };
    let text = match polls {
        true => format!(">= {needed}, {} connections and the rest", needs.connections),
        false => format!(">= {needed}, a ring of {} connections on {shards} shards", needs.connections),
    };
    let Some(limit) = facts.files_hard else { return unknown(what, text, "/proc/self/limits") };
    if limit >= needed {
        return good(what, number(limit), text);
    }
    let highest = files_of_a_process(facts, needs);
    let limit_to_set = highest.value.clone();
    let mut mend = if highest.good || highest.found.is_none() { Vec::new() } else { highest.finding().mend };
    mend.push(format!("systemctl edit murre   # [Service] LimitNOFILE={limit_to_set}"));
    mend.push(format!("docker run --ulimit nofile={limit_to_set}:{limit_to_set} ..."));
    let why = if polls {
        format!("it caps all connections together: max_connections is lowered to {}", fitting_in_files(limit))
    } else {
        let rings = rings(facts, needs, limit).0;
        format!(
            "it caps the table of one ring: a shard then opens {rings} rings in place of {fewest} and pays for \
             visiting them"
        )
    };
    Finding { what, found: number(limit), wanted: text, verdict: Verdict::Warn, why, mend }
}

/// The bound of all limits of open files, and so of the limit of the service.
pub(super) fn files_of_a_process(facts: &Facts, needs: Needs) -> Sysctl {
    let least = needed_files(needs).max(FILES_OF_THE_UNIT);
    Sysctl::least("fs.nr_open", facts.nr_open, least, "no limit of open files can be higher")
}

pub(super) fn files_of_the_host(facts: &Facts, needs: Needs) -> Sysctl {
    let why = "sockets of io_uring count here too: accept fails with ENFILE at the limit";
    Sysctl::least("fs.file-max", facts.file_max, needed_files(needs), why)
}

pub(super) fn memory(facts: &Facts, needs: Needs) -> Finding {
    let what = "memory";
    let needed = needs.connections.saturating_mul(CONNECTION_BYTES).saturating_add(PROCESS_BYTES);
    let text = format!(">= {} for {} connections", bytes(needed), needs.connections);
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

pub(super) fn cores(facts: &Facts) -> Finding {
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

/// Returns the number of connections for which `limit` descriptors of a process suffice: the inverse of
/// [`needed_files`]. A low limit leaves a quarter to everything else.
pub fn fitting_in_files(limit: u64) -> u64 {
    let left = limit - OTHER_FILES.min(limit / 4);
    left / 21 * 20
}

/// Descriptors that hold `connections`, of all rings together: 1.05 times as many slots (ring/RULES.md) and everything
/// else.
fn needed_files(needs: Needs) -> u64 {
    needs.connections + needs.connections / 20 + OTHER_FILES
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

/// Judges the file system of the data directory, if that has more than an orderly end saves elsewhere.
pub(super) fn data_directory(facts: &Facts, needs: Needs) -> Option<Finding> {
    let file_system = facts.data_in_memory.filter(|_| needs.keeps_data)?;
    Some(Finding {
        verdict: Verdict::Warn,
        why: "the keys, users and messages in it are gone when this host restarts: every user agent begins anew".into(),
        mend: vec!["murre serve --data-dir /var/lib/murre   # or another directory on a disk".into()],
        ..good("data_dir", format!("on a {file_system}, in memory"), "on a disk".into())
    })
}
