//! A process that has forbidden itself rings keeps those that it has, and gets no other on any thread.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::process::Command;
use std::sync::mpsc::channel;

use io_uring::IoUring;

use crate::ring::call_filter::{forbid_rings, install};
use crate::ring::fence::RingUses;
use crate::ring::uring::Ring;
use crate::ring::{PlaneConfig, ProbeError, probe};

/// Returns false in a process of its own, in which this test runs; the caller has nothing to do then. Its filter stays
/// with that process.
fn runs_elsewhere(name: &str) -> bool {
    if std::env::var_os("IN_ITS_OWN_PROCESS").is_some() {
        return false;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let name = format!("ring::tests::call_filter::{name}");
    let ended = alone.args(["--exact", &name, "--nocapture"]).env("IN_ITS_OWN_PROCESS", "1").output().unwrap();
    let said = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    true
}

fn refusal_of_a_ring() -> Option<i32> {
    IoUring::new(8).err().map(|error| error.raw_os_error().unwrap())
}

/// Returns the modes of the filters of all threads: 0 is none, 2 is a filter.
fn modes() -> Vec<String> {
    let of_thread = |thread: io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        status.lines().find_map(|line| line.strip_prefix("Seccomp:\t")).unwrap().to_owned()
    };
    fs::read_dir("/proc/self/task").unwrap().map(of_thread).collect()
}

#[test]
fn every_thread_is_refused_a_further_ring_and_those_made_before_work() {
    if runs_elsewhere("every_thread_is_refused_a_further_ring_and_those_made_before_work") {
        return;
    }
    let config = PlaneConfig { rings: 1, table: 8, sq: 8, cq: 16 };
    let mut ring = Ring::new(0, config, RingUses::default(), None).unwrap();
    let (say_try, is_to_try) = channel();
    let earlier = std::thread::spawn(move || {
        is_to_try.recv().unwrap();
        refusal_of_a_ring()
    });
    assert_eq!(refusal_of_a_ring(), None);
    forbid_rings().unwrap();
    let modes = modes();
    assert!(modes.len() >= 3 && modes.iter().all(|mode| mode == "2"), "{modes:?}");
    say_try.send(()).unwrap();
    assert_eq!(earlier.join().unwrap(), Some(libc::EPERM));
    assert_eq!(std::thread::spawn(refusal_of_a_ring).join().unwrap(), Some(libc::EPERM));
    assert_eq!(refusal_of_a_ring(), Some(libc::EPERM));
    assert_eq!(probe(), Err(ProbeError::Forbidden));
    ring.kick();
    let mut ready = VecDeque::new();
    while ready.is_empty() {
        ring.enter(&mut ready);
    }
    forbid_rings().unwrap();
}

#[test]
fn a_thread_with_another_filter_is_named_and_nothing_is_forbidden() {
    if runs_elsewhere("a_thread_with_another_filter_is_named_and_nothing_is_forbidden") {
        return;
    }
    let (say_installed, is_installed) = channel();
    let (say_end, is_to_end) = channel::<()>();
    let other = std::thread::spawn(move || {
        // vhangup, which nothing here calls.
        install(&[libc::SYS_vhangup as u32], libc::EPERM, 0).unwrap();
        say_installed.send(()).unwrap();
        is_to_end.recv().unwrap();
    });
    is_installed.recv().unwrap();
    let error = forbid_rings().unwrap_err().to_string();
    assert!(error.contains("has another filter"), "{error}");
    assert_eq!(refusal_of_a_ring(), None);
    say_end.send(()).unwrap();
    other.join().unwrap();
}
