//! Plane of a server by its host, and the findings that depend on the plane.

use runtime::ring::{PlaneKind, ProbeError};

use super::super::{Facts, Needs, Plane, Verdict, fitting_in_files, judge, plane, runs_here};
use super::{about, host, judged, needs};

#[test]
fn the_plane_is_rings_where_they_work_and_epoll_where_they_do_not() {
    let auto = needs(&[]);
    let mut facts = host(&[]);
    facts.ring = Some(Ok(()));
    let chosen = |facts: &Facts, needs| {
        let Plane { kind, why } = plane(facts, needs);
        (kind, why)
    };
    assert_eq!(chosen(&facts, auto), (PlaneKind::Rings, "io_uring works here".to_owned()));
    let poll = needs(&["shards.plane=poll"]);
    assert_eq!(chosen(&facts, poll), (PlaneKind::Poll, "shards.plane = poll".to_owned()));
    for refusal in [ProbeError::Forbidden, ProbeError::NotBuiltIn, ProbeError::TooOld("accept")] {
        facts.ring = Some(Err(refusal));
        let (kind, why) = chosen(&facts, auto);
        assert!(kind == PlaneKind::Poll && why.contains("cannot use io_uring ("), "{why}");
        let findings = judge(&facts, auto);
        assert!(runs_here(&findings), "{findings:?}");
        judged(&findings, "io_uring", Verdict::Warn, "the server polls its sockets", "");
        assert!(about(&findings, "plane").found.starts_with("poll: "));
        // A setting that needs rings rules out epoll.
        for needing in [needs(&["hibernate.after=60"]), auto.with_frozen(true)] {
            let findings = judge(&facts, needing);
            assert_eq!(plane(&facts, needing).kind, PlaneKind::Rings);
            judged(&findings, "io_uring", Verdict::Fail, " needs it", "shards.plane=poll");
        }
        assert!(!runs_here(&judge(&facts, needs(&["shards.plane=io_uring"]))));
        // An explicit poll needs no ring, and no finding warns of a missing one.
        let findings = judge(&facts, poll.with_frozen(true));
        assert_eq!(about(&findings, "io_uring").verdict, Verdict::Good);
    }
}

#[test]
fn an_old_kernel_polls() {
    for (release, runs) in [("5.10.0-30-amd64\n", true), ("4.18.0-553.el8\n", true), ("4.9.0\n", false)] {
        let facts = host(&[("proc/sys/kernel/osrelease", release)]);
        let callers = needs(&["strangers.connections=5"]);
        assert_eq!(plane(&facts, callers).kind, PlaneKind::Poll, "{release}");
        let findings = judge(&facts, callers);
        assert_eq!(runs_here(&findings), runs, "{release}: {findings:?}");
        assert_eq!(about(&findings, "addresses of callers").verdict, Verdict::Good);
        assert_eq!(about(&findings, "locked memory").verdict, Verdict::Good);
    }
}

#[test]
fn a_limit_on_descriptors_bounds_the_connections_of_a_server_that_polls() {
    let poll = Needs { connections: 20_000, ..needs(&["shards.plane=poll"]) };
    let limits = |files: u64| {
        let limits = format!("Max open files            1024                 {files}              files     \n");
        judge(&host(&[("proc/self/limits", &limits)]), poll)
    };
    judged(&limits(20_000), "RLIMIT_NOFILE", Verdict::Warn, "max_connections is lowered to 15140", "LimitNOFILE");
    assert_eq!(about(&limits(25_096), "RLIMIT_NOFILE").verdict, Verdict::Good);
    assert_eq!(fitting_in_files(25_096), 20_000);
    assert_eq!((fitting_in_files(1_024), fitting_in_files(0)), (720, 0));
}

#[test]
fn too_little_locked_memory_for_all_rings_is_a_reason_to_poll() {
    let limits = "Max open files            1024                 2000000              files     \n\
                  Max locked memory         0                    0                    bytes     \n";
    let mut facts = host(&[("proc/sys/kernel/osrelease", "6.18.44\n"), ("proc/self/limits", limits)]);
    // A trial makes one small ring.
    facts.ring = Some(Ok(()));
    let Plane { kind, why } = plane(&facts, needs(&[]));
    assert!(kind == PlaneKind::Poll && why.contains("counts rings as locked memory"), "{why}");
    assert!(runs_here(&judge(&facts, needs(&[]))));
    assert!(!runs_here(&judge(&facts, needs(&["hibernate.after=60"]))));
}
