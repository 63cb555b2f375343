//! Rule 2: a send is over when the submission that carries it returns, and what was refused is known by then.

use std::io::Read;
use std::time::Duration;

use crate::poll::PollPlane;
use crate::ring::{PendingOutput, RingPlane, Sent};
use machine::ids::ConnId;

use super::{Kit, PATIENCE, TestPlane};

fn output(byte: u8, len: usize) -> PendingOutput {
    let mut out = PendingOutput::default();
    out.push(&vec![byte; len]);
    out
}

/// Sends until the socket refuses, also after a while in which the kernel may have handed on what it had; returns the
/// number of bytes that it took and the outbox that came back last.
fn fill<P: TestPlane>(kit: &mut Kit<P>, conn: ConnId) -> (usize, Sent) {
    let (mut taken, mut refusals) = (0, 0);
    loop {
        assert!(taken < 64 << 20, "no socket takes that much");
        kit.plane.send(conn, output(b'a', 6_000));
        kit.plane.enter();
        let sent = kit.plane.next_sent().expect("it is over when enter returns");
        assert!(kit.plane.next_sent().is_none());
        match sent.refused {
            None => (taken, refusals) = (taken + 6_000, 0),
            Some(result) => {
                let part = usize::try_from(result).unwrap_or(0);
                (taken, refusals) = (taken + part, if part == 0 { refusals + 1 } else { 0 });
                if refusals == 4 {
                    return (taken, sent);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// The refusal is known from the same `enter`, on the first and on every later try; the bytes of an outbox that
/// came back may be overwritten at once without the peer seeing anything of it.
#[test]
fn rule_2_refused_sends_are_known_before_more_is_staged() {
    refused_sends::<RingPlane>();
    refused_sends::<PollPlane>();
}

fn refused_sends<P: TestPlane>() {
    let mut kit = Kit::<P>::new(1, 8);
    let (mut client, conn) = kit.connect();
    let (taken, sent) = fill(&mut kit, conn);
    assert!(sent.conn == conn && sent.output.len() == 6_000);
    let mut output = sent.output;
    output.clear();
    output.push(&[b'X'; 6_000]);
    for _ in 0..3 {
        kit.plane.send(conn, output);
        kit.plane.enter();
        let again = kit.plane.next_sent().expect("over");
        assert_eq!(again.refused, Some(-libc::EAGAIN));
        output = again.output;
    }
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut heard = vec![0; taken];
    client.read_exact(&mut heard).unwrap();
    assert!(heard.iter().all(|byte| *byte == b'a'), "bytes of an outbox that was given back were sent");
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert!(client.read(&mut [0; 1]).is_err(), "more was sent than was said");
}

/// A submission of many sends: each outbox comes back with its own result.
#[test]
fn rule_2_every_outbox_of_a_submission_comes_back_with_its_result() {
    every_outbox::<RingPlane>();
    every_outbox::<PollPlane>();
}

fn every_outbox<P: TestPlane>() {
    let mut kit = Kit::<P>::new(2, 64);
    let peers: Vec<_> = (0..40).map(|_| kit.connect()).collect();
    let (_, full) = (0, fill(&mut kit, peers[7].1));
    drop(full);
    for (_, conn) in &peers {
        kit.plane.send(*conn, output(b'b', 100));
    }
    kit.plane.enter();
    let mut refused = Vec::new();
    let mut count = 0;
    while let Some(sent) = kit.plane.next_sent() {
        count += 1;
        if sent.refused.is_some() {
            refused.push(sent.conn);
        }
    }
    assert_eq!((count, refused), (40, vec![peers[7].1]));
}

/// More sends than the submission queue has entries: it is submitted in between, and nothing is lost.
#[test]
fn rule_2_a_full_submission_queue_is_submitted_in_between() {
    full_queue::<RingPlane>();
    full_queue::<PollPlane>();
}

fn full_queue<P: TestPlane>() {
    let mut kit = Kit::<P>::new(1, 256);
    let mut peers: Vec<_> = (0..150).map(|_| kit.connect()).collect();
    for (_, conn) in &peers {
        kit.plane.send(*conn, output(b'c', 10));
    }
    kit.plane.enter();
    let back = std::iter::from_fn(|| kit.plane.next_sent()).filter(|sent| sent.refused.is_none()).count();
    assert_eq!(back, 150);
    for (client, _) in &mut peers {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut heard = [0; 10];
        client.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, &[b'c'; 10]);
    }
}
