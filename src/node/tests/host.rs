//! The host of a node, judged when it starts.

use shards::ring::ProbeError;

use super::*;

#[test]
fn a_kernel_without_io_uring_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let look_at_host =
        |data: &Path| Facts { ring: Some(Err(ProbeError::NotBuiltIn)), seccomp: Some(2), ..Facts::here(data) };
    let surroundings = Environment { look_at_host, ..Environment::default() };
    let fault = start_with(&config(dir.path(), &[]), surroundings).err().expect("must be refused");
    let said = fault.to_string();
    assert!(said.starts_with("cannot run on this host: io_uring: refused by a seccomp filter: default "), "{said}");
    assert_eq!(fault.status(), status::UNAVAILABLE);
    assert!(!dir.path().join("lock").exists(), "nothing was touched");
}

/// `/dev/shm` is a tmpfs on every host of these tests.
#[test]
fn a_data_directory_in_memory_is_warned_of() {
    for (parent, is_warned_of) in [("/dev/shm", true), (concat!(env!("CARGO_MANIFEST_DIR"), "/target"), false)] {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let log = events::Log::default();
        log.of("warn", || start(&config(dir.path(), &[])).unwrap()).stop().unwrap();
        let text = log.text();
        let is_said =
            text.lines().any(|line| line.contains("host not as recommended") && line.contains("what=\"data_dir\""));
        assert_eq!(is_said, is_warned_of, "{text}");
    }
}
