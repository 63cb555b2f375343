//! The self-test passes on this host, and says why where it cannot.

use std::io;
use std::time::Instant;

use hibernate::{Gate, Unfit, self_test};

/// Queue numbers of these tests, which other programs hardly use.
const QUEUES: [u16; 2] = [41_001, 41_002];

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
    let result = self_test(QUEUES[0]);
    if !is_unprivileged(&result) {
        result.unwrap();
        eprintln!("the self-test took {:?}", begin.elapsed());
        self_test(QUEUES[0]).expect("rules and queue of the first test are gone");
    }
}

#[test]
fn a_queue_that_another_reads_is_named() {
    let first = match Gate::open(&[9], QUEUES[1], 1) {
        Ok(first) => first,
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            return eprintln!("not run: packet queues need CAP_NET_ADMIN");
        }
    };
    let refused = self_test(QUEUES[1]).unwrap_err();
    assert!(matches!(refused, Unfit::QueueTaken(_)), "{refused}");
    drop(first);
    self_test(QUEUES[1]).expect("the queue is free again");
}
