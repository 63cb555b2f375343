//! Hosts described by files and by the results of trials, and the findings on each.

mod plane;

use std::fs;
use std::path::Path;

use runtime::ring::ProbeError;

use super::{Demand, Facts, Finding, Needs, Verdict, judge, runs_here, sysctls};
use config::{Config, PlaneChoice, Sources};

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
    Facts::read(root.path())
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

/// A host for a million connections on rings, with default settings otherwise.
fn million() -> Needs {
    Needs { connections: 1_000_000, ..needs(&["shards.plane=io_uring"]) }
}

fn needs(settings: &[&str]) -> Needs {
    let sets = settings.iter().map(|text| (*text).to_owned()).collect();
    Needs::of(&Config::load(&Sources { sets, ..Sources::default() }).unwrap())
}

fn examined(changes: &[(&str, &str)]) -> Vec<Finding> {
    judge(&host(changes), million())
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
    assert!(findings.iter().all(|f| f.verdict == Verdict::Good), "{findings:?}");
    assert_eq!(about(&findings, "cores").found, "5");
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
    let judged_for_few = |facts: &Facts| judge(facts, Needs { connections: 1_000, ..million() });
    judged(&judged_for_few(&facts), "io_uring", Verdict::Warn, "not tried", "tuning/seccomp.json");
    // EPERM and ENOSYS, as filters answer.
    for refused in [ProbeError::Forbidden, ProbeError::NotBuiltIn] {
        facts.ring = Some(Err(refused));
        let findings = judged_for_few(&facts);
        judged(&findings, "io_uring", Verdict::Fail, "container profiles", "seccomp=tuning/seccomp.json");
        let sentence = about(&findings, "io_uring").sentence();
        assert!(sentence.starts_with("io_uring: refused by a seccomp filter: default container"), "{sentence}");
    }
    // A kernel that was built without is not let off by another profile.
    facts.io_uring_disabled = None;
    judged(&judged_for_few(&facts), "io_uring", Verdict::Fail, "CONFIG_IO_URING", "reboot");
    facts.ring = Some(Ok(()));
    assert_eq!(about(&judged_for_few(&facts), "io_uring").verdict, Verdict::Good);
}

#[test]
fn a_refused_ring_is_explained_by_its_cause() {
    let mut facts = host(&[]);
    let mut refuse = |refused| {
        facts.ring = Some(Err(refused));
        judge(&facts, Needs { connections: 1_000, ..million() })
    };
    judged(&refuse(ProbeError::Forbidden), "io_uring", Verdict::Fail, "security module", "journalctl");
    judged(&refuse(ProbeError::NotBuiltIn), "io_uring", Verdict::Fail, "CONFIG_IO_URING", "reboot");
    judged(&refuse(ProbeError::TooOld("accept")), "io_uring", Verdict::Fail, "since 6.1", "reboot");
    judged(
        &refuse(ProbeError::Memlock { limit: 65_536 }),
        "io_uring",
        Verdict::Fail,
        "locked memory",
        "ulimit -l unlimited",
    );
    judged(&refuse(ProbeError::NoDescriptors), "io_uring", Verdict::Fail, "RLIMIT_NOFILE", "ulimit -n");
    judged(
        &refuse(ProbeError::Other("Input/output error".into())),
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
}

/// One ring is 200 KiB; the kernel was measured to refuse it below that limit, and to take it from there on.
#[test]
fn locked_memory_is_judged_by_the_rings_of_all_shards() {
    let newer = ("proc/sys/kernel/osrelease", "6.18.44\n");
    let with = |kilobytes: u64, changes: &[(&str, &str)]| {
        let limits = format!(
            "Max open files            1024                 2000000              files     \n\
             Max locked memory         1                    {:<20} bytes     \n",
            kilobytes << 10
        );
        let files = [&[newer, ("proc/self/limits", limits.as_str())], changes].concat();
        about(&judge(&host(&files), Needs { shards: Some(2), ..million() }), "locked memory").clone()
    };
    for (kilobytes, verdict) in
        [(0, Verdict::Fail), (463, Verdict::Fail), (464, Verdict::Warn), (928, Verdict::Good), (8_192, Verdict::Good)]
    {
        assert_eq!(with(kilobytes, &[]).verdict, verdict, "{kilobytes}");
    }
    let none = with(0, &[]);
    assert!(none.why.contains("this server are 464 KiB") && none.mend[0].contains("LimitMEMLOCK=infinity"), "{none:?}");
    let capable = ("proc/self/status", "CapEff:\t0000000000004000\nSeccomp:\t0\nCpus_allowed_list:\t0\n");
    assert_eq!(with(0, &[capable]).verdict, Verdict::Good);
    assert_eq!(with(0, &[("proc/sys/kernel/osrelease", "6.12.0\n")]).found, "not counted");
    assert!(judge(&host(&[newer]), needs(&[])).iter().all(|finding| finding.verdict == Verdict::Good));
}

/// Kernels, settings, and the verdict on each feature that a setting needs.
#[test]
fn each_feature_is_judged_by_the_settings_that_need_it() {
    use Verdict::{Fail, Good, Warn};
    let public = &["public.domain=push.example", "tls.cert=c", "tls.key=k"][..];
    let frozen = &["hibernate.after=60"][..];
    let left = &["hibernate.after=60", "hibernate.dir=/dev/shm/murre"][..];
    for (kernel, settings, what, verdict) in [
        ("6.1.0", &[][..], "addresses of callers", None),
        ("6.1.0", public, "addresses of callers", Some(Warn)),
        ("6.6.0", public, "addresses of callers", Some(Warn)),
        ("6.7.0", public, "addresses of callers", Some(Good)),
        ("6.1.0", &["strangers.registers=1"], "addresses of callers", Some(Fail)),
        ("6.6.0", &["strangers.connections=1"], "addresses of callers", Some(Fail)),
        ("6.6.0", &["proxy.trusted=::1", "proxy.protocol=on"], "addresses of callers", Some(Fail)),
        ("6.6.0", &["proxy.trusted=::1", "proxy.header=forwarded"], "addresses of callers", Some(Fail)),
        ("6.8.0", &["strangers.connections=1"], "addresses of callers", Some(Good)),
        ("6.6.0", &["hibernate.dir=/dev/shm/murre"], "hibernate.dir", None),
        ("6.1.0", frozen, "hibernate.after", Some(Warn)),
        ("6.7.0", frozen, "hibernate.after", Some(Warn)),
        ("6.8.0", frozen, "hibernate.after", Some(Good)),
        ("6.8.0", left, "hibernate.after", Some(Good)),
        ("6.8.0", left, "hibernate.dir", Some(Warn)),
        ("6.9.0", left, "hibernate.dir", Some(Good)),
        ("6.1.0", &["shards.steer=cpu"], "shards.steer", Some(Warn)),
        ("6.2.0", &["shards.steer=cpu"], "shards.steer", Some(Good)),
        ("10.0.0", &["shards.steer=cpu"], "shards.steer", Some(Good)),
    ] {
        let findings = judge(&host(&[("proc/sys/kernel/osrelease", kernel)]), needs(settings));
        let found = findings.iter().find(|finding| finding.what == what);
        assert_eq!(found.map(|finding| finding.verdict), verdict, "{kernel} {settings:?} {what}");
        assert!(found.is_none_or(|finding| finding.why.is_empty() == (finding.verdict == Good)), "{found:?}");
        assert_eq!(runs_here(&findings), verdict != Some(Fail), "{kernel} {settings:?}");
    }
}

#[test]
fn a_trial_outweighs_the_version() {
    let mut facts = host(&[("proc/sys/kernel/osrelease", "5.14.0-503.el9\n")]);
    assert!(!runs_here(&judge(&facts, million())));
    facts.ring = Some(Ok(()));
    facts.tells_peers = Some(true);
    let findings = judge(&facts, needs(&["strangers.connections=1"]));
    assert!(runs_here(&findings), "{findings:?}");
    assert_eq!(about(&findings, "addresses").verdict, Verdict::Good);
    let mut newer = host(&[]);
    (newer.tells_peers, newer.takes_sockets_out) = (Some(false), Some(false));
    let findings = judge(&newer, needs(&["strangers.connections=1", "hibernate.after=60"]));
    assert_eq!(about(&findings, "addresses").verdict, Verdict::Fail);
    assert_eq!(about(&findings, "hibernate.after").verdict, Verdict::Warn);
}

#[test]
fn a_namespace_without_settings_of_the_host_is_not_blamed_for_them() {
    let hidden = host(&[("proc/sys/net/ipv4/tcp_mem", "")]);
    let finding = about(&judge(&hidden, million()), "net.ipv4.tcp_mem").clone();
    assert_eq!((finding.verdict, &*finding.found), (Verdict::Good, "not to be seen in this network namespace"));
    let lines = sysctls(&hidden, million());
    let line = |name: &str| lines.iter().find(|line| line.name.starts_with(name)).unwrap();
    assert!(line("net.ipv4.tcp_mem").good && line("net.core.netdev_max_backlog").good, "{lines:?}");
    // Unreadable beside one of the others is a fault of /proc.
    let garbled = host(&[("proc/sys/net/ipv4/tcp_mem", ""), ("proc/sys/net/core/netdev_max_backlog", "1000\n")]);
    judged(&judge(&garbled, million()), "net.ipv4.tcp_mem", Verdict::Warn, "tcp_mem", "cat /proc/sys/net/ipv4/tcp_mem");
}

#[test]
fn a_host_without_ipv6_serves_by_defaults_and_refuses_settings_that_need_it() {
    let judge_with = |ipv6, settings: &[&str]| {
        let facts = Facts { ipv6: Some(ipv6), ..host(&[]) };
        about(&judge(&facts, needs(settings)), "IPv6").clone()
    };
    let by_domain = ["public.domain=push.example", "tls.cert=c", "tls.key=k"];
    assert_eq!(judge_with(true, &["websocket.listen=[::]:8080"]).verdict, Verdict::Good);
    let without = judge_with(false, &by_domain);
    assert_eq!((without.verdict, &*without.found), (Verdict::Good, "not there"));
    for (setting, named) in [
        ("websocket.listen=[::]:8080", "websocket.listen = [::]:8080"),
        ("public.listen=0.0.0.0:443,[::]:443", "public.listen = [::]:443"),
        ("admin.listen=[::1]:8083", "admin.listen = [::1]:8083"),
    ] {
        let refused = judge_with(false, &[&by_domain[..], &[setting]].concat());
        assert_eq!((refused.verdict, &*refused.wanted), (Verdict::Fail, named));
        assert!(refused.mend.iter().any(|command| command.contains("AF_INET6")), "{refused:?}");
    }
}

#[test]
fn a_data_directory_in_memory_is_warned_of_where_something_would_be_lost() {
    let facts = Facts { data_in_memory: Some("tmpfs"), ..host(&[]) };
    let findings = judge(&facts, needs(&[]));
    assert!(runs_here(&findings));
    judged(&findings, "data_dir", Verdict::Warn, "gone when this host restarts", "--data-dir /var/lib/murre");
    assert_eq!(about(&findings, "data_dir").found, "on a tmpfs, in memory");
    let has_row = |settings: &[&str]| judge(&facts, needs(settings)).iter().any(|finding| finding.what == "data_dir");
    let shared = ["store.kind=scylla", "store.scylla.nodes=127.0.0.1:9042"];
    assert!(!has_row(&["store.kind=memory"]) && !has_row(&shared));
    assert!(has_row(&[&shared[..], &["delivery.durable=true"]].concat()));
    assert!(judge(&host(&[]), needs(&[])).iter().all(|finding| finding.what != "data_dir"));
}

/// `/dev/shm` is one on every host of these tests; a directory that is not there yet has the file system of its parent.
#[test]
fn the_file_system_of_a_directory_is_found_before_it_is_made() {
    let facts = Facts::here(Path::new("/dev/shm/murre-that-is/not/there"), PlaneChoice::Poll);
    assert_eq!(facts.data_in_memory, Some("tmpfs"));
    assert_eq!(Facts::here(Path::new("/proc/murre"), PlaneChoice::Poll).data_in_memory, None);
}

#[test]
fn the_limit_of_descriptors_is_one_rings_and_so_one_shards() {
    let limit = |files: &str| {
        format!(
            "Max open files            1024                 {files}                files     \n\
             Max locked memory         unlimited            unlimited            bytes     \n"
        )
    };
    let limited = |files: &str, shards| {
        let host = host(&[("proc/self/limits", &limit(files))]);
        about(&judge(&host, Needs { shards, ..million() }), "RLIMIT_NOFILE").clone()
    };
    // Eight shards of a million: 127,500 each, a thirteenth for the ports of senders and nodes, a twentieth for
    // goodbyes, and room for a burst of two listeners.
    assert_eq!(limited("152589", Some(8)).verdict, Verdict::Good);
    let short = limited("152588", Some(8));
    assert_eq!(short.verdict, Verdict::Warn);
    assert!(short.wanted.starts_with(">= 152589, a ring of 1000000 connections on 8 shards"), "{short:?}");
    assert!(short.why.contains("2 rings in place of 1"), "{short:?}");
    assert_eq!(
        limited("650000", Some(1)).verdict,
        Verdict::Good,
        "no ring takes a million: two are opened in any case"
    );
    assert!(limited("500000", Some(1)).why.contains("3 rings in place of 2"));
    assert!(limited("200000", None).wanted.contains("on 5 shards"), "as many as there are CPUs");
    let few = Needs { connections: 10, shards: Some(8), ..million() };
    assert_eq!(about(&judge(&host(&[("proc/self/limits", &limit("1024"))]), few), "RLIMIT").verdict, Verdict::Warn);
    let absurd = Needs { connections: u64::MAX / 2, backlog: u64::MAX, shards: Some(1), ..million() };
    assert_eq!(about(&judge(&host(&[("proc/self/limits", &limit("1"))]), absurd), "RLIMIT").verdict, Verdict::Warn);
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
    let longer = Needs { backlog: 65_535, ..million() };
    let one_less =
        host(&[("proc/sys/net/core/somaxconn", "65534\n"), ("proc/sys/net/ipv4/tcp_max_syn_backlog", "4096\n")]);
    let findings = judge(&one_less, longer);
    judged(&findings, "net.core.somaxconn", Verdict::Warn, "shards.backlog", "net.core.somaxconn=65535");
    judged(&findings, "net.ipv4.tcp_max_syn", Verdict::Warn, "SYN", "tcp_max_syn_backlog=65535");
    assert_eq!(about(&judge(&host(&[]), longer), "net.core.somaxconn").verdict, Verdict::Good);
    let shorter = Needs { backlog: 128, ..million() };
    let small = host(&[("proc/sys/net/core/somaxconn", "128\n")]);
    assert_eq!(about(&judge(&small, shorter), "net.core.somaxconn").verdict, Verdict::Good);
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
    let findings = judge(&Facts::read(empty.path()), Needs { connections: 1_000, ..million() });
    assert!(runs_here(&findings));
    judged(&findings, "kernel", Verdict::Warn, "osrelease", "cat /proc");
    let garbage: Vec<(&str, &str)> = HOST.iter().map(|(path, _)| (*path, "\u{1}not a number -1 ::: \n")).collect();
    assert!(runs_here(&examined(&garbage)));
}

#[test]
fn this_host_is_understood() {
    let facts = Facts::here(Path::new("/"), PlaneChoice::Auto);
    assert!(facts.kernel.is_some() && facts.cpus.is_some() && facts.files_hard.is_some(), "{facts:?}");
    assert!(facts.ring.is_some());
    let polls = Facts::here(Path::new("/"), PlaneChoice::Poll);
    assert!(polls.kernel == facts.kernel && polls.ring.is_none(), "an explicit poll tries no ring");
}

#[test]
fn the_configuration_says_what_is_needed() {
    let all = needs(&["shards.backlog=8192", "shards.steer=cpu", "max_connections=7"]);
    assert_eq!((all.connections, all.backlog, all.shards, all.steer), (7, 8_192, None, true));
    assert_eq!((all.callers, all.hibernation, all.takeover, all.ipv6), (Demand::Off, false, false, None));
    assert_eq!(needs(&["shards.count=3"]).shards, Some(3));
    assert_eq!(needs(&["shards.cores=0-1,7"]).shards, Some(3));
    assert_eq!(needs(&["shards.cores=0-1", "shards.count=6"]).shards, Some(6));
}
