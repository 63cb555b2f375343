//! Hosts described by files, and the findings of `doctor` on each.

use std::fs;
use std::path::Path;

use shards::ring::ProbeError;

use super::checks::{Finding, Verdict, Wanted, examine};
use super::facts::Facts;
use super::{runs_here, to_json, to_table};

/// A tuned host with two million descriptors.
const HOST: &[(&str, &str)] = &[
    ("proc/sys/kernel/osrelease", "6.12.48+deb13-amd64\n"),
    ("proc/sys/kernel/io_uring_disabled", "0\n"),
    ("proc/sys/fs/nr_open", "2147483584\n"),
    ("proc/sys/fs/file-max", "9223372036854775807\n"),
    ("proc/sys/net/core/somaxconn", "65535\n"),
    ("proc/sys/net/ipv4/tcp_max_syn_backlog", "65535\n"),
    ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
    ("proc/sys/net/ipv4/ip_local_reserved_ports", "\n"),
    ("proc/sys/net/ipv4/tcp_mem", "1000000 2000000\t3000000\n"),
    ("proc/meminfo", "MemTotal:       24689552 kB\nMemFree:  1 kB\n"),
    ("proc/self/cgroup", "0::/system.slice/murre.service\n"),
    ("sys/fs/cgroup/system.slice/murre.service/memory.max", "max\n"),
    ("sys/fs/cgroup/system.slice/murre.service/cpu.max", "max 100000\n"),
    ("proc/self/status", "Name:\tmurre\nCapEff:\t0000000000000000\nSeccomp:\t0\nCpus_allowed_list:\t0-3,8\n"),
    (
        "proc/self/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n\
         Max open files            1024                 2000000              files     \n\
         Max locked memory         unlimited            unlimited            bytes     \n",
    ),
];

/// The tuned host with some files replaced; an empty text removes the file.
fn host(changes: &[(&str, &str)]) -> Facts {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in HOST.iter().chain(changes) {
        write(root.path(), path, text);
    }
    Facts::read(root.path(), false)
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    if text.is_empty() {
        fs::remove_file(path).unwrap();
        return;
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// A host for a million connections with default settings.
fn million() -> Wanted {
    Wanted { connections: 1_000_000, backlog: 4_096, shards: None, steer: false }
}

fn examined(changes: &[(&str, &str)]) -> Vec<Finding> {
    examine(&host(changes), million())
}

fn about<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    findings.iter().find(|f| f.what.starts_with(what)).unwrap()
}

/// Asserts verdict and reason of a subject, and a command that fixes it.
fn judged(findings: &[Finding], what: &str, verdict: Verdict, why: &str, mend: &str) {
    let f = about(findings, what);
    assert_eq!(f.verdict, verdict, "{f:?}");
    assert!(f.why.contains(why), "{f:?}");
    assert!(f.mend.iter().any(|m| m.contains(mend)), "{f:?}");
}

#[test]
fn a_tuned_host_has_nothing_to_mend() {
    let findings = examined(&[]);
    assert!(findings.iter().all(|f| f.verdict == Verdict::Good), "{}", to_table(&findings));
    assert_eq!(about(&findings, "cores").found, "5");
    assert!(to_table(&findings).ends_with("murre runs here, nothing to mend.\n"));
}

#[test]
fn a_kernel_below_the_floor_is_refused_with_the_features_it_lacks() {
    let findings = examined(&[("proc/sys/kernel/osrelease", "5.15.0-100-generic\n")]);
    assert!(!runs_here(&findings));
    judged(&findings, "kernel", Verdict::Fail, "DEFER_TASKRUN (since 6.1)", "reboot");
    let why = &about(&findings, "kernel").why;
    assert!(why.contains("MSG_RING SEND_FD (since 6.0)") && !why.contains("direct descriptors"), "{why}");
}

#[test]
fn a_kernel_without_the_multishot_timeout_runs_with_advice() {
    let findings = examined(&[("proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")]);
    assert!(runs_here(&findings));
    judged(&findings, "kernel", Verdict::Warn, "TIMEOUT multishot (since 6.4)", "apt-get");
    assert!(!about(&findings, "kernel").why.contains("DEFER_TASKRUN"));
}

#[test]
fn io_uring_that_is_switched_off_is_refused_with_the_sysctl() {
    let off = examined(&[("proc/sys/kernel/io_uring_disabled", "2\n")]);
    assert!(!runs_here(&off));
    judged(&off, "io_uring", Verdict::Fail, "everyone", "sysctl -w kernel.io_uring_disabled=0");
    let group = examined(&[("proc/sys/kernel/io_uring_disabled", "1\n")]);
    judged(&group, "io_uring", Verdict::Fail, "CAP_SYS_ADMIN", "kernel.io_uring_group");
}

#[test]
fn a_container_that_forbids_io_uring_is_told_of_the_profile() {
    let filtered = ("proc/self/status", "CapEff:\t0\nSeccomp:\t2\nCpus_allowed_list:\t0\n");
    let mut facts = host(&[filtered]);
    let judge = |facts: &Facts| examine(facts, Wanted { connections: 1_000, ..million() });
    judged(&judge(&facts), "io_uring", Verdict::Warn, "not tried", "tuning/seccomp.json");
    for refused in [ProbeError::Forbidden, ProbeError::NotBuiltIn] {
        facts.ring = Some(Err(refused));
        judged(&judge(&facts), "io_uring", Verdict::Fail, "container profiles", "seccomp=tuning/seccomp.json");
    }
    facts.ring = Some(Ok(()));
    assert_eq!(about(&judge(&facts), "io_uring").verdict, Verdict::Good);
}

#[test]
fn a_refused_ring_is_explained_by_its_cause() {
    let mut facts = host(&[]);
    let mut judge = |refused| {
        facts.ring = Some(Err(refused));
        examine(&facts, Wanted { connections: 1_000, ..million() })
    };
    judged(&judge(ProbeError::Forbidden), "io_uring", Verdict::Fail, "security module", "journalctl");
    judged(&judge(ProbeError::NotBuiltIn), "io_uring", Verdict::Fail, "CONFIG_IO_URING", "reboot");
    judged(&judge(ProbeError::TooOld("accept")), "io_uring", Verdict::Fail, "since 6.1", "reboot");
    judged(
        &judge(ProbeError::Memlock { limit: 65_536 }),
        "io_uring",
        Verdict::Fail,
        "locked memory",
        "ulimit -l unlimited",
    );
    judged(&judge(ProbeError::NoDescriptors), "io_uring", Verdict::Fail, "RLIMIT_NOFILE", "ulimit -n");
    judged(
        &judge(ProbeError::Other("Input/output error".into())),
        "io_uring",
        Verdict::Fail,
        "nobody foresaw",
        "strace",
    );
}

#[test]
fn small_limits_are_found_with_the_numbers_to_set() {
    let limits = "Max open files            1024                 20000                files     \n\
                  Max locked memory         8388608              8388608              bytes     \n";
    let findings = examined(&[("proc/self/limits", limits), ("proc/sys/fs/nr_open", "1048576\n")]);
    assert!(runs_here(&findings));
    judged(&findings, "RLIMIT_NOFILE", Verdict::Warn, "14 rings in place of 1", "LimitNOFILE=1100000");
    judged(&findings, "RLIMIT_NOFILE", Verdict::Warn, "visiting", "fs.nr_open=1100000");
    judged(&findings, "locked memory", Verdict::Warn, "register", "LimitMEMLOCK=infinity");
    let tiny = limits.replace("8388608", "65536");
    judged(&examined(&[("proc/self/limits", &tiny)]), "locked memory", Verdict::Fail, "512 KiB", "memlock=-1");
    let capable = ("proc/self/status", "CapEff:\t0000000000004000\nSeccomp:\t0\nCpus_allowed_list:\t0\n");
    assert_eq!(about(&examined(&[("proc/self/limits", limits), capable]), "locked memory").verdict, Verdict::Good);
    // No capability helps below what an executor starts with.
    judged(&examined(&[("proc/self/limits", &tiny), capable]), "locked memory", Verdict::Fail, "512 KiB", "memlock=-1");
}

#[test]
fn the_limit_of_descriptors_is_one_rings_and_so_one_shards() {
    let limit = |files: &str| {
        format!(
            "Max open files            1024                 {files}                files     \n\
             Max locked memory         unlimited            unlimited            bytes     \n"
        )
    };
    let judge = |files: &str, shards| {
        let host = host(&[("proc/self/limits", &limit(files))]);
        about(&examine(&host, Wanted { shards, ..million() }), "RLIMIT_NOFILE").clone()
    };
    // Eight shards of a million: 127,500 each, a thirteenth for the ports of senders and nodes, a twentieth for
    // goodbyes, and room for a burst of two listeners.
    assert_eq!(judge("152589", Some(8)).verdict, Verdict::Good);
    let short = judge("152588", Some(8));
    assert_eq!(short.verdict, Verdict::Warn);
    assert!(short.wanted.starts_with(">= 152589, a ring of 1000000 connections on 8 shards"), "{short:?}");
    assert!(short.why.contains("2 rings in place of 1"), "{short:?}");
    assert_eq!(judge("650000", Some(1)).verdict, Verdict::Good, "no ring takes a million: two are opened in any case");
    assert!(judge("500000", Some(1)).why.contains("3 rings in place of 2"));
    assert!(judge("200000", None).wanted.contains("on 5 shards"), "as many as there are CPUs");
    let few = Wanted { connections: 10, shards: Some(8), ..million() };
    assert_eq!(about(&examine(&host(&[("proc/self/limits", &limit("1024"))]), few), "RLIMIT").verdict, Verdict::Warn);
    let absurd = Wanted { connections: u64::MAX / 2, backlog: u64::MAX, shards: Some(1), ..million() };
    assert_eq!(about(&examine(&host(&[("proc/self/limits", &limit("1"))]), absurd), "RLIMIT").verdict, Verdict::Warn);
}

#[test]
fn small_sysctls_are_found_with_the_commands() {
    let findings = examined(&[
        ("proc/sys/net/core/somaxconn", "128\n"),
        ("proc/sys/net/ipv4/tcp_max_syn_backlog", "512\n"),
        ("proc/sys/fs/file-max", "65536\n"),
        ("proc/sys/net/ipv4/tcp_mem", "1 2 3\n"),
        ("proc/sys/net/netfilter/nf_conntrack_max", "262144\n"),
        ("proc/sys/net/ipv4/ip_local_port_range", "1024 65535\n"),
    ]);
    judged(&findings, "net.core.somaxconn", Verdict::Warn, "caps shards.backlog", "net.core.somaxconn=4096");
    judged(&findings, "net.ipv4.tcp_max_syn", Verdict::Warn, "SYN", "tcp_max_syn_backlog=4096");
    judged(&findings, "fs.file-max", Verdict::Warn, "ENFILE", "fs.file-max=1054096");
    judged(&findings, "net.ipv4.tcp_mem", Verdict::Warn, "segments", "tcp_mem=\"133333 266666 400000\"");
    judged(&findings, "net.netfilter", Verdict::Warn, "stateful", "notrack");
    judged(&findings, "net.ipv4.ip_local", Verdict::Warn, "in use", "ip_local_reserved_ports=8080-8083");
    let others = [
        ("proc/sys/net/ipv4/ip_local_port_range", "1024 65535\n"),
        ("proc/sys/net/ipv4/ip_local_reserved_ports", "9042\n"),
        ("proc/sys/net/ipv4/tcp_mem", "200000 3 4\n"),
    ];
    let others = examined(&others);
    judged(&others, "net.ipv4.ip_local", Verdict::Warn, "in use", "ip_local_reserved_ports=9042,8080-8083");
    judged(&others, "net.ipv4.tcp_mem", Verdict::Warn, "segments", "tcp_mem=\"200000 266666 400000\"");
    let reserved = [
        ("proc/sys/net/ipv4/ip_local_port_range", "1024 65535\n"),
        ("proc/sys/net/ipv4/ip_local_reserved_ports", "80,8000-8100\n"),
    ];
    assert_eq!(about(&examined(&reserved), "net.ipv4.ip_local").verdict, Verdict::Good);
}

#[test]
fn queues_are_judged_by_what_is_configured() {
    let longer = Wanted { backlog: 65_535, ..million() };
    let one_less =
        host(&[("proc/sys/net/core/somaxconn", "65534\n"), ("proc/sys/net/ipv4/tcp_max_syn_backlog", "4096\n")]);
    let findings = examine(&one_less, longer);
    judged(&findings, "net.core.somaxconn", Verdict::Warn, "shards.backlog", "net.core.somaxconn=65535");
    judged(&findings, "net.ipv4.tcp_max_syn", Verdict::Warn, "SYN", "tcp_max_syn_backlog=65535");
    assert_eq!(about(&examine(&host(&[]), longer), "net.core.somaxconn").verdict, Verdict::Good);
    let shorter = Wanted { backlog: 128, ..million() };
    let small = host(&[("proc/sys/net/core/somaxconn", "128\n")]);
    assert_eq!(about(&examine(&small, shorter), "net.core.somaxconn").verdict, Verdict::Good);
}

#[test]
fn steering_wants_a_kernel_that_steers() {
    let steered = Wanted { steer: true, ..million() };
    assert!(examined(&[]).iter().all(|f| f.what != "shards.steer"), "nobody asked");
    assert_eq!(about(&examine(&host(&[]), steered), "shards.steer").verdict, Verdict::Good);
    let older = host(&[("proc/sys/kernel/osrelease", "6.1.0-40-amd64\n")]);
    judged(&examine(&older, steered), "shards.steer", Verdict::Warn, "ignores SO_INCOMING_CPU", "shards.steer=off");
}

#[test]
fn the_smallest_limit_of_the_control_groups_counts() {
    let findings = examined(&[
        ("sys/fs/cgroup/system.slice/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/system.slice/murre.service/memory.max", "8589934592\n"),
        ("sys/fs/cgroup/system.slice/murre.service/cpu.max", "150000 100000\n"),
    ]);
    judged(&findings, "memory", Verdict::Warn, "control group", "MemoryMax=4768435456");
    assert!(about(&findings, "memory").found.contains("1024 MiB (control group)"));
    judged(&findings, "cores", Verdict::Warn, "quota", "CPUQuota=");
    assert_eq!(about(&findings, "cores").found, "5, quota 1.50");
}

#[test]
fn the_older_control_groups_are_understood() {
    let unlimited = "9223372036854771712\n";
    let groups = ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/box/one\n0::/\n");
    let file = "sys/fs/cgroup/memory/box/one/memory.limit_in_bytes";
    assert_eq!(host(&[groups, (file, unlimited)]).memory_limit, None);
    assert_eq!(host(&[groups, (file, "1048576\n")]).memory_limit, Some(1_048_576));
}

#[test]
fn too_little_memory_names_the_number_that_fits() {
    let findings = examined(&[("proc/meminfo", "MemTotal:       1048576 kB\n")]);
    judged(&findings, "memory", Verdict::Warn, "killed", "murre serve --max-connections 178956");
}

#[test]
fn facts_that_cannot_be_read_are_said_and_keep_nobody_from_starting() {
    let empty = tempfile::tempdir().unwrap();
    let findings = examine(&Facts::read(empty.path(), false), Wanted { connections: 1_000, ..million() });
    assert!(runs_here(&findings));
    judged(&findings, "kernel", Verdict::Warn, "osrelease", "cat /proc");
    let garbage: Vec<(&str, &str)> = HOST.iter().map(|(path, _)| (*path, "\u{1}not a number -1 ::: \n")).collect();
    assert!(runs_here(&examined(&garbage)));
}

#[test]
fn json_says_the_same() {
    let findings = examined(&[("proc/sys/kernel/io_uring_disabled", "2\n")]);
    let value: serde_json::Value = serde_json::from_str(&to_json(&findings)).unwrap();
    assert_eq!(value["runs_here"], false);
    assert_eq!(value["findings"].as_array().unwrap().len(), findings.len());
    assert_eq!(value["findings"][1]["mend"][0], "sysctl -w kernel.io_uring_disabled=0");
}

#[test]
fn this_host_is_understood() {
    let facts = Facts::read(Path::new("/"), true);
    assert!(facts.kernel.is_some() && facts.cpus.is_some() && facts.files_hard.is_some(), "{facts:?}");
    assert!(facts.ring.is_some());
}

#[test]
fn the_configuration_says_what_is_wanted() {
    let sets = ["shards.backlog=8192", "shards.steer=cpu"].map(str::to_owned).to_vec();
    let config = crate::config::Config::load(&crate::config::Sources { sets, ..Default::default() }).unwrap();
    let wanted = super::wanted(7, &config);
    assert_eq!((wanted.connections, wanted.backlog, wanted.shards, wanted.steer), (7, 8_192, None, true));
    let shards = |sets: &[&str]| {
        let sets = sets.iter().map(|&set| set.to_owned()).collect();
        let config = crate::config::Config::load(&crate::config::Sources { sets, ..Default::default() }).unwrap();
        super::wanted(7, &config).shards
    };
    assert_eq!(shards(&["shards.count=3"]), Some(3));
    assert_eq!(shards(&["shards.cores=0-1,7"]), Some(3));
    assert_eq!(shards(&["shards.cores=0-1", "shards.count=6"]), Some(6));
}

#[test]
fn a_shared_store_that_is_not_there_keeps_murre_from_running() {
    let sets = ["store.kind=scylla", "store.scylla.nodes=127.255.255.254:9042", "store.scylla.connect_timeout=1"];
    let sets = sets.map(str::to_owned).to_vec();
    let config = crate::config::Config::load(&crate::config::Sources { sets, ..Default::default() }).unwrap();
    let findings = super::shared_store(&config);
    let said: Vec<&str> = findings.iter().map(|finding| finding.why.as_str()).collect();
    assert!(!runs_here(&findings) && said.len() == 3, "{said:?}");
    assert!(said[0].contains("endpoint.crypto_keys") && said[2].contains("Connection refused"), "{said:?}");
    assert!(to_table(&findings).contains("murre schema check"));
}
