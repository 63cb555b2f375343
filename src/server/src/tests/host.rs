//! The host of a node, judged when it starts.

use runtime::ring::ProbeError;

use super::*;

/// A process to which a seccomp filter refuses io_uring.
fn without_rings() -> Environment {
    let look_at_host = |data: &Path, plane| Facts {
        ring: Some(Err(ProbeError::NotBuiltIn)),
        seccomp: Some(2),
        ..Facts::here(data, plane)
    };
    Environment { look_at_host, ..Environment::default() }
}

#[test]
fn a_kernel_without_io_uring_is_refused_where_a_setting_needs_it() {
    for setting in ["shards.plane=io_uring", "hibernate.after=60"] {
        let dir = tempfile::tempdir().unwrap();
        let fault = start_with(&config(dir.path(), &[setting]), without_rings()).err().expect("must be refused");
        let said = fault.to_string();
        assert!(said.starts_with("cannot run on this host: io_uring: refused by a seccomp filter: default "), "{said}");
        assert_eq!(fault.status(), status::UNAVAILABLE);
        assert!(!dir.path().join("lock").exists(), "nothing was touched");
    }
}

#[test]
fn a_node_without_io_uring_polls_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let log = fixtures::Log::default();
    let node = log.of("info", || start_with(&config(dir.path(), &[]), without_rings())).unwrap();
    let text = log.text();
    let is_told = |line: &str| line.contains("plane chosen") && line.contains("plane=\"poll\"");
    assert!(text.lines().any(|line| is_told(line) && line.contains("refused by a seccomp filter")), "{text}");
    assert_eq!(node.stop().unwrap(), StopOutcome::InOrder);
}

/// `/dev/shm` is a tmpfs on every host of these tests.
#[test]
fn a_data_directory_in_memory_is_warned_of() {
    for (parent, is_warned_of) in [("/dev/shm", true), (concat!(env!("CARGO_MANIFEST_DIR"), "/../../target"), false)] {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let log = fixtures::Log::default();
        log.of("warn", || start(&config(dir.path(), &[])).unwrap()).stop().unwrap();
        let text = log.text();
        let is_said =
            text.lines().any(|line| line.contains("host not as recommended") && line.contains("what=\"data_dir\""));
        assert_eq!(is_said, is_warned_of, "{text}");
    }
}
