//! The kernel: its version, io_uring, and the features that settings need.

use runtime::ring::ProbeError;

use super::facts::Facts;
use super::finding::{Finding, Sysctl, Verdict, dotted, good, number, unknown};
use super::needs::{Demand, Needs};

/// The lowest kernel that runs murre, and the one that has everything it uses (ring/RULES.md).
const KERNEL_FLOOR: (u32, u32) = (6, 1);
const KERNEL_FULL: (u32, u32) = (6, 4);

/// io_uring features and the kernel that brought each. The last of them sets the floor.
const FEATURES: &[(&str, (u32, u32))] = &[
    ("restrictions of a ring", (5, 10)),
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

/// Judges the version by what came with it. A trial that went well outweighs it: distributions take features over.
pub(super) fn version(facts: &Facts) -> Finding {
    let what = "kernel";
    let wanted = format!(">= {}, best >= {}", dotted(KERNEL_FLOOR), dotted(KERNEL_FULL));
    let Some(version) = facts.kernel else { return unknown(what, wanted, "/proc/sys/kernel/osrelease") };
    let found = facts.release.clone().unwrap_or_else(|| dotted(version));
    let lacking: Vec<String> = FEATURES
        .iter()
        .filter(|(_, since)| version < *since)
        .map(|(name, since)| format!("{name} (since {})", dotted(*since)))
        .collect();
    let install = vec![NEWER_KERNEL.into()];
    if version < KERNEL_FLOOR && facts.ring != Some(Ok(())) {
        let why = format!("io_uring lacks {}; murre does not start", lacking.join(", "));
        return Finding { what, found, wanted, verdict: Verdict::Fail, why, mend: install };
    }
    if version < KERNEL_FULL {
        let why = format!("io_uring lacks {}; murre arms one-shot ticks instead, at more CPU", lacking.join(", "));
        return Finding { what, found, wanted, verdict: Verdict::Warn, why, mend: install };
    }
    good(what, found, wanted)
}

/// Lowest kernel for the poll plane.
const KERNEL_EPOLL: (u32, u32) = (4, 18);

/// Judges the version for the poll plane.
pub(super) fn version_for_epoll(facts: &Facts) -> Finding {
    let what = "kernel";
    let wanted = format!(">= {} to poll, >= {} for io_uring", dotted(KERNEL_EPOLL), dotted(KERNEL_FLOOR));
    let Some(version) = facts.kernel else { return unknown(what, wanted, "/proc/sys/kernel/osrelease") };
    let found = facts.release.clone().unwrap_or_else(|| dotted(version));
    if version < KERNEL_EPOLL {
        let why = format!("murre was written for Linux {} and newer", dotted(KERNEL_EPOLL));
        return Finding { what, found, wanted, verdict: Verdict::Fail, why, mend: vec![NEWER_KERNEL.into()] };
    }
    good(what, found, wanted)
}

pub(super) fn io_uring(facts: &Facts) -> Finding {
    if let Some(finding) = io_uring_switched_off(facts) {
        return finding;
    }
    let filtered = facts.seccomp == Some(2);
    match &facts.ring {
        Some(Ok(())) => good(IO_URING, "rings as a shard needs them were set up".into(), ALLOWED.into()),
        Some(Err(refusal)) => io_uring_refused(refusal, filtered && !is_left_out(facts)),
        None if filtered => Finding {
            verdict: Verdict::Warn,
            why: "a seccomp filter is on; whether it lets io_uring through was not tried".into(),
            mend: vec![SECCOMP_PROFILE.into()],
            ..good(IO_URING, "not tried".into(), ALLOWED.into())
        },
        None => good(IO_URING, "not forbidden".into(), ALLOWED.into()),
    }
}

/// Returns true if this kernel was built without io_uring, also if a filter refuses it: from 6.6 on, one with it has
/// the sysctl.
fn is_left_out(facts: &Facts) -> bool {
    facts.io_uring_disabled.is_none() && facts.kernel.is_some_and(|version| version >= (6, 6))
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

pub(super) fn io_uring_disabled(facts: &Facts) -> Sysctl {
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
            NEWER_KERNEL,
        ),
        ProbeError::Memlock { .. } => no_io_uring(
            "refused: no memory to lock",
            "the limit of locked memory, or the memory of the control group, is used up",
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

/// Judges each feature that a setting needs and that is not in every kernel that runs murre.
pub(super) fn features(facts: &Facts, needs: Needs, polls: bool) -> Vec<Finding> {
    // A trial outweighs the version.
    let has = |trial: Option<bool>, since| trial.or(facts.kernel.map(|version| version >= since));
    let by_switch = |is_on| if is_on { Demand::Default } else { Demand::Off };
    let rows = [
        Feature {
            what: "addresses of callers",
            demand: needs.callers,
            since: (6, 7),
            // Every kernel returns the peer addresses of ordinary descriptors.
            is_there: if polls { Some(true) } else { has(facts.tells_peers, (6, 7)) },
            why: match needs.callers {
                Demand::Set => "this kernel does not tell the addresses of callers, which strangers.* and proxy.* need",
                _ => "this kernel does not tell the addresses of callers: strangers.* stays off",
            },
        },
        Feature {
            what: "hibernate.after",
            demand: by_switch(needs.hibernation),
            since: (6, 8),
            is_there: has(facts.takes_sockets_out, (6, 8)),
            why: "io_uring cannot take sockets out: the server starts without hibernation",
        },
        Feature {
            what: "hibernate.dir",
            demand: by_switch(needs.takeover),
            since: (6, 9),
            is_there: has(None, (6, 9)),
            why: "packet rules cannot outlive their process: the server starts without hibernation",
        },
        Feature {
            what: "shards.steer",
            demand: by_switch(needs.steer),
            since: KERNEL_STEERS,
            is_there: has(None, KERNEL_STEERS),
            why: "this kernel ignores SO_INCOMING_CPU among listeners of one port: connections go to any shard",
        },
    ];
    rows.into_iter().filter(|row| row.demand != Demand::Off).map(Feature::finding).collect()
}

/// A feature that a setting needs.
struct Feature {
    what: &'static str,
    demand: Demand,
    /// Kernel that brought it.
    since: (u32, u32),
    /// `None`: not known.
    is_there: Option<bool>,
    /// Consequence of its lack.
    why: &'static str,
}

impl Feature {
    fn finding(self) -> Finding {
        let Feature { what, demand, since, is_there, why } = self;
        let wanted = format!("kernel >= {}", dotted(since));
        match is_there {
            Some(true) => good(what, "possible here".into(), wanted),
            None => unknown(what, wanted, "/proc/sys/kernel/osrelease"),
            Some(false) => Finding {
                verdict: if demand == Demand::Set { Verdict::Fail } else { Verdict::Warn },
                why: why.into(),
                mend: vec![NEWER_KERNEL.into(), without(what).into()],
                ..good(what, "not possible here".into(), wanted)
            },
        }
    }
}

/// The settings that do without a feature.
fn without(what: &str) -> &'static str {
    match what {
        "addresses of callers" => "murre serve   # without strangers.* and proxy.*; limit callers by a firewall",
        "hibernate.after" => "murre serve --set hibernate.after=0",
        "hibernate.dir" => "murre serve   # without hibernate.dir: frozen sessions end with the process",
        _ => "murre serve --set shards.steer=off",
    }
}

/// First kernel that selects a listener of one port (SO_REUSEPORT) by SO_INCOMING_CPU; earlier kernels ignore it.
const KERNEL_STEERS: (u32, u32) = (6, 2);

const NEWER_KERNEL: &str = "apt-get install linux-image-amd64   # or your distribution's newest kernel; then reboot";
const IO_URING: &str = "io_uring";
const ALLOWED: &str = "allowed";
const SECCOMP_PROFILE: &str =
    "docker run --security-opt seccomp=tuning/seccomp.json ...   # or SystemCallFilter=@aio in a unit";
