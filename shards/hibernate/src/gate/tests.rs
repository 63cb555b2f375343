//! Batches: when they are passed on, and when their connections may be checked.

use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use super::*;

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: ConnName = ConnName { slot: 7, generation: 1 };

fn tuple(port: u16) -> Tuple {
    Tuple::new(([10, 0, 0, 1], 443).into(), ([10, 0, 0, 2], port).into())
}

fn segment(port: u16) -> Waiting {
    let acknowledged = Some(0);
    Waiting::Segment(Segment { id: 1, tuple: tuple(port), position: 0, acknowledged, syn: false, is_bare: false })
}

/// A full queue drops, and each drop costs a peer a retransmission timeout (decision 0033, 5).
#[test]
fn a_batch_waits_until_the_queue_was_found_empty() {
    let shared = Arc::new(Shared::new(Queue::unbound().unwrap(), 1).unwrap());
    let ((orders, inbox), (to_grace, batches)) = (channel(), channel());
    let mut reader = Reader::new(&shared, inbox, to_grace);
    let mut verdicts = Verdicts::default();
    orders.send(Order::SetApart { shard: 0, batch: vec![(tuple(1), NAME)] }).unwrap();
    let mut waiting = 2 * SEGMENTS_PER_TURN + 1;
    let mut next = || {
        let found = if waiting > 0 { segment(2) } else { Waiting::Nothing };
        waiting = waiting.saturating_sub(1);
        found
    };
    for turn in 0..2 {
        assert!(!reader.turn(&mut verdicts, &mut next), "turn {turn}: segments wait");
        assert_eq!(batches.try_recv(), Err(TryRecvError::Empty), "turn {turn}");
    }
    assert!(reader.turn(&mut verdicts, &mut next));
    assert_eq!((batches.try_recv(), batches.try_recv()), (Ok(0), Err(TryRecvError::Empty)));
    // Its segments are held since the order was read.
    let mut held = Some(segment(1));
    reader.turn(&mut verdicts, &mut || held.take().unwrap_or(Waiting::Nothing));
    assert!(matches!(shared.lanes[0].news.pop(), Some(News::Segment(NAME, ..))));
}

#[test]
fn a_batch_may_be_checked_when_its_grace_period_is_over_and_not_before() {
    let shared = Arc::new(Shared::new(Queue::unbound().unwrap(), 1).unwrap());
    let (to_grace, batches) = channel();
    let ((begun, has_begun), (end, ended)) = (channel(), channel());
    let waiting = Arc::clone(&shared);
    let grace = thread::spawn(move || {
        wait_for_grace(&waiting, &batches, || {
            begun.send(()).unwrap();
            ended.recv().map_err(io::Error::other)
        });
    });
    to_grace.send(0).unwrap();
    has_begun.recv_timeout(PATIENCE).unwrap();
    assert!(shared.lanes[0].news.is_empty(), "within the grace period");
    // The second batch came within the period of the first: it needs one of its own.
    to_grace.send(0).unwrap();
    end.send(()).unwrap();
    has_begun.recv_timeout(PATIENCE).unwrap();
    assert_eq!(shared.lanes[0].news.len(), 1);
    end.send(()).unwrap();
    drop(to_grace);
    grace.join().unwrap();
    assert_eq!(shared.lanes[0].news.len(), 2);
}
