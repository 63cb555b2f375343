//! Events of an edge-triggered epoll, and the tray. The rest of the plane is tested with the rings, in `ring/tests` and
//! `reactor/tests`.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use machine::ids::ConnId;

use super::PollPlane;
use crate::ring::tests::{Kit, PATIENCE, ending};
use crate::ring::{Completion, Plane, PlaneConfig, SpanSize, eventfd};

/// Polls this connection, then receives once. Returns the result.
fn receive(kit: &mut Kit<PollPlane>, conn: ConnId, size: SpanSize) -> i32 {
    kit.plane.poll_in(conn);
    kit.until("poll", |completion| matches!(completion, Completion::Readable(_)).then_some(()));
    receive_now(kit, conn, size)
}

fn receive_now(kit: &mut Kit<PollPlane>, conn: ConnId, size: SpanSize) -> i32 {
    assert!(kit.plane.recv(conn, size));
    let (span, result) = kit.until("bytes", |completion| match completion {
        Completion::Received { span, result, .. } => Some((span, result)),
        _ => None,
    });
    kit.plane.arena().free(span);
    result
}

/// Returns true if no armed poll completes within 20 turns.
fn stays_silent(kit: &mut Kit<PollPlane>) -> bool {
    (0..20).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        kit.plane.enter();
        std::iter::from_fn(|| kit.plane.next()).all(|completion| !matches!(completion, Completion::Readable(_)))
    })
}

#[test]
fn a_poll_behind_a_receive_that_took_all_waits_for_more() {
    let mut kit = Kit::<PollPlane>::new(1, 8);
    let (mut client, conn) = kit.connect();
    for _ in 0..3 {
        client.write_all(b"some bytes").unwrap();
        assert_eq!(receive(&mut kit, conn, SpanSize::Small), 10);
        kit.plane.poll_in(conn);
        assert!(stays_silent(&mut kit), "the poll is over and nothing came");
    }
    client.write_all(b"more").unwrap();
    kit.until("poll", |completion| matches!(completion, Completion::Readable(_)).then_some(()));
}

/// A receive that fills its span does not prove that the socket is empty: the poll completes at once.
#[test]
fn a_poll_behind_a_full_span_is_over_at_once() {
    let mut kit = Kit::<PollPlane>::new(1, 8);
    let (mut client, conn) = kit.connect();
    client.write_all(&[b'x'; 2_048 + 10]).unwrap();
    kit.eventually("all is there", |kit| {
        kit.plane.enter();
        while kit.plane.next().is_some() {}
        std::thread::sleep(Duration::from_millis(20));
        true
    });
    assert_eq!(receive(&mut kit, conn, SpanSize::Small), 2_048);
    assert_eq!(receive(&mut kit, conn, SpanSize::Small), 10);
    client.write_all(&[b'x'; 2_048]).unwrap();
    assert_eq!(receive(&mut kit, conn, SpanSize::Small), 2_048);
    assert_eq!(receive(&mut kit, conn, SpanSize::Small), -libc::EAGAIN);
    kit.plane.poll_in(conn);
    assert!(stays_silent(&mut kit));
}

/// The kernel reports the end of the stream together with the bytes before it, as one change.
#[test]
fn the_end_of_a_stream_is_found_behind_its_last_bytes() {
    let mut kit = Kit::<PollPlane>::new(1, 8);
    let (mut client, conn) = kit.connect();
    client.write_all(b"last").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(receive(&mut kit, conn, SpanSize::Small), 4);
    assert_eq!(receive(&mut kit, conn, SpanSize::Small), 0);
}

#[test]
fn a_reset_ends_both_polls() {
    let mut kit = Kit::<PollPlane>::new(1, 8);
    let (client, conn) = kit.connect();
    kit.plane.poll_in(conn);
    kit.plane.enter();
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
    drop(client);
    kit.until("poll", |completion| matches!(completion, Completion::Readable(_)).then_some(()));
    kit.plane.poll_out(conn);
    kit.until("room", |completion| matches!(completion, Completion::Writable(_)).then_some(()));
    assert_eq!(receive_now(&mut kit, conn, SpanSize::Small), -libc::ECONNRESET);
}

/// The plane that had a socket gets no event of it after the move.
#[test]
fn a_moved_socket_reports_to_its_new_plane_alone() {
    let mut kit = Kit::<PollPlane>::new(1, 8);
    let event = eventfd().unwrap();
    let config = PlaneConfig { rings: 2, table: 4, sq: 8, cq: 16 };
    let mut other = PollPlane::new(config, std::os::fd::AsFd::as_fd(&event)).unwrap();
    let (mut client, conn) = kit.connect();
    kit.plane.poll_in(conn);
    kit.plane.enter();
    kit.plane.move_dealt(conn, other.address(1), 3);
    let mut order = Vec::new();
    kit.until("moved and closed", |completion| {
        match completion {
            Completion::Moved { result, .. } => order.push(("moved", result)),
            Completion::Closed { result, .. } => order.push(("closed", result)),
            _ => {}
        }
        (order.len() == 2).then_some(())
    });
    assert_eq!(order, [("moved", 0), ("closed", 0)]);
    // A socket in the tray keeps the target from sleeping.
    assert!(!other.wait(false), "it would sleep over a socket that was left");
    assert!(other.enter());
    let arrived = std::iter::from_fn(|| other.next()).find_map(|completion| match completion {
        Completion::Dealt { kind, ring, result } => Some((kind, ring, result)),
        _ => None,
    });
    assert_eq!(arrived, Some((3, 1, 0)));
    client.write_all(b"there").unwrap();
    assert!(stays_silent(&mut kit));
    drop(other);
    // The kernel resets a socket that is closed with unread bytes.
    assert!(ending(&mut client, PATIENCE).is_some(), "a plane that goes closes its sockets");
}

/// A plane that is gone and a table that is full return the socket, and its slot stays as it was.
#[test]
fn a_socket_that_is_not_taken_stays() {
    let mut kit = Kit::<PollPlane>::new(1, 8);
    let event = eventfd().unwrap();
    let config = PlaneConfig { rings: 1, table: 1, sq: 8, cq: 16 };
    let other = PollPlane::new(config, std::os::fd::AsFd::as_fd(&event)).unwrap();
    let address = other.address(0);
    let (_filling, first) = kit.connect();
    let (mut client, conn) = kit.connect();
    kit.plane.move_dealt(first, address.clone(), 0);
    kit.plane.enter();
    for (errno, gone) in [(libc::ENFILE, None), (libc::EOWNERDEAD, Some(other))] {
        drop(gone);
        kit.plane.move_dealt(conn, address.clone(), 0);
        let result = kit.until("moved", |completion| match completion {
            Completion::Moved { done, result } if done.slot == conn.slot => Some(result),
            _ => None,
        });
        assert_eq!(result, -errno);
        client.write_all(b"here").unwrap();
        assert_eq!(receive(&mut kit, conn, SpanSize::Small), 4);
    }
}
