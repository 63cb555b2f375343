//! Facts of the kernel in RULES.md.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use crate::poll::PollPlane;
use crate::ring::{Completion, Plane, PlaneConfig, RingPlane, RingUses, SpanSize, eventfd, nofile_limit, raise_limits};
use machine::limits::BACKLOG_DEFAULT;
use machine::time::{Instant, TimeSpan};

use super::{Kit, TestPlane};

/// Returns the number of signals of the eventfd since it was last read.
fn signals(kit: &Kit) -> u64 {
    let mut poll = libc::pollfd { fd: kit.event.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that outlives the call.
    if unsafe { libc::poll(&raw mut poll, 1, 0) } == 0 {
        return 0;
    }
    let mut count = [0; 8];
    std::fs::File::from(kit.event.as_fd().try_clone_to_owned().unwrap()).read_exact(&mut count).unwrap();
    u64::from_ne_bytes(count)
}

/// A table larger than the soft limit on descriptors is refused; that is why the limit is raised, and why a
/// shard may need several rings.
#[test]
fn a_table_is_capped_by_the_descriptor_limit() {
    const NAME: &str = "ring::tests::facts::a_table_is_capped_by_the_descriptor_limit";
    if std::env::var_os("LOW_LIMIT").is_none() {
        // A process of its own: no cap can be seen below a high limit.
        let me = std::env::current_exe().unwrap();
        let limited = "ulimit -n 4096 && exec \"$0\" --exact \"$1\" --nocapture";
        let mut alone = std::process::Command::new("sh");
        let ended = alone.args(["-c", limited]).arg(me).arg(NAME).env("LOW_LIMIT", "1").output().unwrap();
        let said = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let limit = raise_limits();
    assert_eq!((limit, nofile_limit()), (4_096, 4_096));
    let event = eventfd().unwrap();
    let config = PlaneConfig { rings: 1, table: limit as u32 + 1, sq: 8, cq: 16 };
    let error = RingPlane::new(config, RingUses::default(), event.as_fd()).map(|_| ()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE));
    let fitting = PlaneConfig::sized(limit as u32 * 3, limit as u32, BACKLOG_DEFAULT);
    assert!(fitting.rings > 3);
    assert!(
        RingPlane::new(fitting, RingUses::default(), event.as_fd()).is_ok(),
        "several tables of that size in one process"
    );
}

/// While the shard works, completions signal nothing; once it announces, the next one does; and what came in
/// between is seen before it would sleep.
#[test]
fn completions_are_announced_only_while_parked() {
    let mut kit = Kit::<RingPlane>::new(2, 16);
    kit.arm_next(1);
    let (mut client, conn) = kit.connect_in(1);
    kit.plane.poll_in(conn);
    kit.plane.enter();
    signals(&kit);

    client.write_all(b"while working").unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(signals(&kit), 0, "a busy shard is signalled");
    kit.eventually("it would sleep although a completion waits", |kit| {
        let quiet = kit.plane.announce();
        kit.plane.awake();
        !quiet
    });
    // Of one that came while it would have slept.
    signals(&kit);
    kit.until("poll", |completion| matches!(completion, Completion::Readable(_)).then_some(()));
    assert_eq!(signals(&kit), 0, "reaping signalled");

    assert!(kit.plane.recv(conn, SpanSize::Small));
    let (span, _) = kit.until("bytes", |completion| match completion {
        Completion::Received { span, result, .. } => Some((span, result)),
        _ => None,
    });
    assert_eq!(kit.plane.arena().bytes(&span, 13), b"while working");
    kit.plane.arena().free(span);
    kit.plane.poll_in(conn);
    kit.plane.enter();
    assert!(kit.plane.announce());
    assert_eq!(signals(&kit), 0);
    client.write_all(b"while parked").unwrap();
    kit.eventually("a parked shard is not signalled", |kit| signals(kit) > 0);
    kit.plane.awake();
    kit.until("poll", |completion| matches!(completion, Completion::Readable(_)).then_some(()));
}

/// A RECV with MSG_DONTWAIT is over when the submission returns, also when there is nothing to receive.
#[test]
fn a_receive_is_over_when_its_submission_returns() {
    received::<RingPlane>();
    received::<PollPlane>();
}

fn received<P: TestPlane>() {
    let mut kit = Kit::<P>::new(1, 16);
    let (mut client, conn) = kit.connect();
    for (text, expected) in [(&b""[..], -libc::EAGAIN), (b"bytes", 5)] {
        client.write_all(text).unwrap();
        if !text.is_empty() {
            kit.plane.poll_in(conn);
            kit.until("it is there", |completion| matches!(completion, Completion::Readable(_)).then_some(()));
        }
        assert!(kit.plane.recv(conn, SpanSize::Large));
        kit.plane.enter();
        let Some(Completion::Received { span, result, .. }) = kit.plane.next() else { panic!("not over") };
        assert_eq!(result, expected);
        kit.plane.arena().free(span);
    }
}

/// A thread that blocks in the hub hears of every ring, of writes to the eventfd and of the timeout.
#[test]
fn every_ring_the_eventfd_and_the_timeout_wake_the_shard() {
    wakes::<RingPlane>();
    wakes::<PollPlane>();
}

fn wakes<P: TestPlane>() {
    let mut kit = Kit::<P>::new(3, 16);
    // If a wake is lost, a minute passes and the wait that is asserted fails.
    let lost = Instant(0).after(TimeSpan::from_secs(60));
    let sleep = |kit: &mut Kit<P>, until: Instant| {
        kit.plane.wake_at(Instant(0), until);
        kit.eventually("it never sleeps", |kit| {
            kit.plane.enter();
            while kit.plane.next().is_some() {}
            kit.plane.watch() && kit.plane.wait(false)
        });
    };
    for ring in 1..3 {
        kit.arm_next(ring);
        let address = kit.address;
        let client = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            std::net::TcpStream::connect(address).unwrap()
        });
        sleep(&mut kit, lost);
        let accepted = kit.until("accept", |completion| match completion {
            Completion::Accepted { ring, result, .. } if result >= 0 => Some(ring),
            _ => None,
        });
        assert_eq!(accepted, ring);
        kit.plane.accept(ring, 1, 0, kit.listener.as_fd());
        drop(client.join().unwrap());
    }
    let mut event = std::fs::File::from(kit.event.try_clone().unwrap());
    let waker = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        event.write_all(&1u64.to_ne_bytes()).unwrap();
    });
    sleep(&mut kit, lost);
    assert!(matches!(kit.plane.next(), Some(Completion::Woken)));
    waker.join().unwrap();
    sleep(&mut kit, Instant(0).after(TimeSpan::from_ms(20)));
    kit.until("timeout", |completion| matches!(completion, Completion::Woken).then_some(()));
}
