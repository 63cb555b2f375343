//! Rule 3: every close is PollRemove, then Close, and the slot is free when Close completes.

use std::io::{ErrorKind, Write};
use std::time::Duration;

use crate::poll::PollPlane;
use crate::ring::{Plane, RingPlane};

use super::{Completion, Kit, PATIENCE, TestPlane, ending};

/// A pending poll pins the file: without its removal the peer never sees the end. That is why.
#[test]
fn rule_3_a_close_with_an_armed_poll_reaches_the_peer() {
    let mut kit = Kit::<RingPlane>::new(1, 8);
    let (mut pinned, conn) = kit.connect();
    kit.plane.poll_in(conn);
    kit.plane.close(conn, false, false);
    kit.closed(conn);
    assert_eq!(ending(&mut pinned, Duration::from_millis(100)), None, "the kernel does not pin the file any more");

    let (mut removed, conn) = kit.connect();
    kit.plane.poll_in(conn);
    kit.plane.enter();
    kit.plane.close(conn, true, false);
    kit.closed(conn);
    assert_eq!(ending(&mut removed, PATIENCE), Some(Ok(())));

    let (mut blocked, conn) = kit.connect();
    kit.plane.poll_out(conn);
    kit.plane.poll_in(conn);
    kit.plane.close(conn, true, true);
    kit.closed(conn);
    assert_eq!(ending(&mut blocked, PATIENCE), Some(Ok(())));
}

/// Removing a poll that has fired already does no harm.
#[test]
fn rule_3_a_close_whose_poll_has_fired_reaches_the_peer() {
    fired_poll::<RingPlane>();
    fired_poll::<PollPlane>();
}

fn fired_poll<P: TestPlane>() {
    let mut kit = Kit::<P>::new(1, 8);
    let (mut client, conn) = kit.connect();
    kit.plane.poll_in(conn);
    kit.plane.enter();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(10));
    kit.plane.close(conn, true, false);
    kit.closed(conn);
    assert_eq!(ending(&mut client, PATIENCE), Some(Ok(())));
}

/// With a table of one slot, a second connection gets it only after the Close, whose completion was staged last.
#[test]
fn rule_3_a_slot_is_reused_after_its_close() {
    reused_slot::<RingPlane>();
    reused_slot::<PollPlane>();
}

fn reused_slot<P: TestPlane>() {
    let mut kit = Kit::<P>::new(1, 1);
    let (_first, conn) = kit.connect();
    kit.plane.poll_in(conn);
    kit.plane.enter();
    let second = std::net::TcpStream::connect(kit.address).unwrap();
    // The full table ends the accept, and a ring closes what found no slot: the reason for rule 5.
    let result = kit.until("refusal", |completion| match completion {
        Completion::Accepted { result, .. } => Some(result),
        _ => None,
    });
    assert_eq!(result, -libc::ENFILE);
    drop(second);
    kit.plane.close(conn, true, false);
    kit.closed(conn);
    kit.plane.accept(0, 0, 1, std::os::fd::AsFd::as_fd(&kit.listener));
    let (_third, again) = kit.connect();
    assert_eq!(again.slot, conn.slot);
}

/// Reason for rule 4: a Close with unread input resets the connection, and the bytes that were sent before may be lost.
#[test]
fn closing_with_unread_input_resets() {
    unread_input::<RingPlane>();
    unread_input::<PollPlane>();
}

fn unread_input<P: TestPlane>() {
    let mut kit = Kit::<P>::new(1, 8);
    let (mut client, conn) = kit.connect();
    client.write_all(b"unread").unwrap();
    std::thread::sleep(Duration::from_millis(10));
    kit.plane.close(conn, false, false);
    kit.closed(conn);
    assert_eq!(ending(&mut client, PATIENCE), Some(Err(ErrorKind::ConnectionReset)));
}
