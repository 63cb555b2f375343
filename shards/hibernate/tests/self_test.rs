//! The self-test passes on this host, and says why where it cannot.

use std::time::{Duration, Instant};

use hibernate::{Gate, Ports, Unfit, self_test, sys};

/// Number of a queue that other programs hardly use.
const QUEUE: u16 = 41_002;

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_connection_is_frozen_woken_and_thawed() {
    let begin = Instant::now();
    self_test().unwrap();
    eprintln!("the self-test took {:?}", begin.elapsed());
    self_test().expect("rules and queue of the first test are gone");
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_queue_that_another_reads_is_named() {
    let first = Gate::open(Ports::To(&[9]), QUEUE, 1, false).unwrap();
    let error = Gate::open(Ports::To(&[10]), QUEUE, 1, false).map(|_| ()).unwrap_err();
    let refused = Unfit::of_gate(QUEUE, error).to_string();
    assert!(refused.contains("another process reads packet queue 41002"), "{refused}");
    drop(first);
    drop(Gate::open(Ports::To(&[9]), QUEUE, 1, false).expect("the queue is free again"));
}

/// The kernel waits for every CPU, which takes far longer than a call that does nothing.
#[test]
#[ignore = "needs two CPUs: bench/check test"]
fn a_grace_period_takes_time() {
    let shortest = (0..3).map(|_| {
        let begin = Instant::now();
        sys::grace_period().unwrap();
        begin.elapsed()
    });
    let shortest = shortest.min().unwrap();
    assert!(shortest > Duration::from_micros(20), "{shortest:?}");
}
