//! The self-test passes on this host, and says why where it cannot.

use std::io;
use std::time::Instant;

use hibernate::{Gate, Ports, Unfit, self_test};

/// Number of a queue that other programs hardly use.
const QUEUE: u16 = 41_002;

/// Returns true if this process may not freeze connections: the test does not run then, and says so.
fn is_unprivileged(result: &Result<(), Unfit>) -> bool {
    let refused = match result {
        Err(Unfit::Step(_, error)) => error.kind() == io::ErrorKind::PermissionDenied,
        _ => false,
    };
    if refused {
        eprintln!("not run: freezing connections needs CAP_NET_ADMIN");
    }
    refused
}

#[test]
fn a_connection_is_frozen_woken_and_thawed() {
    let begin = Instant::now();
    let result = self_test();
    if !is_unprivileged(&result) {
        result.unwrap();
        eprintln!("the self-test took {:?}", begin.elapsed());
        self_test().expect("rules and queue of the first test are gone");
    }
}

#[test]
fn a_queue_that_another_reads_is_named() {
    let first = match Gate::open(Ports::To(&[9]), QUEUE, 1, false) {
        Ok(first) => first,
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            return eprintln!("not run: packet queues need CAP_NET_ADMIN");
        }
    };
    let error = Gate::open(Ports::To(&[10]), QUEUE, 1, false).map(|_| ()).unwrap_err();
    let refused = Unfit::of_gate(QUEUE, error).to_string();
    assert!(refused.contains("another process reads packet queue 41002"), "{refused}");
    drop(first);
    drop(Gate::open(Ports::To(&[9]), QUEUE, 1, false).expect("the queue is free again"));
}
