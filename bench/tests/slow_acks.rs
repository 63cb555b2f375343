//! A user agent that acks in one batch every half minute receives a burst and a backlog within seconds, and never more
//! at once than it can take (PROTOCOL, DEL-PACE-1).
//!
//! The one promise of the suite that is a time, so the tests here measure one. Each takes half a minute, in which it
//! mostly sleeps.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use client::agent::Received;
use common::{Note, Subscription, UserAgent, World};
use serde_json::json;

/// Time between two acks of the user agent.
const ACK_EVERY: Duration = Duration::from_secs(30);
/// Longest wait for a burst or a backlog of [`BURST`] messages, as promised.
const PROMISED: Duration = Duration::from_secs(8);
/// Messages of one burst or backlog.
const BURST: usize = 300;
/// Frames that a client in use leaves unread before it closes its connection.
const FRAMES_MAX: usize = 64;
/// The span in which no more than these may come unacked.
const SPAN: Duration = Duration::from_millis(500);

/// A thread that notices when the host runs no thread: messages from before and after such a moment seem to come at
/// once.
struct Witness {
    stalls: Arc<Mutex<Vec<(Instant, Instant)>>>,
    stop: Arc<AtomicBool>,
}

impl Witness {
    /// A stall that is short enough to keep two bursts, a second apart, out of one span.
    const SHORT: Duration = Duration::from_millis(200);

    fn start() -> Witness {
        let (stalls, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (found, over) = (stalls.clone(), stop.clone());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                std::thread::sleep(Duration::from_millis(10));
                if begun.elapsed() > Witness::SHORT {
                    found.lock().unwrap().push((begun, Instant::now()));
                }
            }
        });
        Witness { stalls, stop }
    }

    /// Returns true if the host stood still at some time from `from` to `to`.
    fn saw_a_stall(&self, from: Instant, to: Instant) -> bool {
        self.stalls.lock().unwrap().iter().any(|(begun, ended)| *begun <= to && from <= *ended)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One notification, with the times of its arrival and its ack.
struct Heard {
    note: Note,
    came: Instant,
    acked: Option<Instant>,
}

/// A user agent with a clock of its own, by which it acks all that it has received.
struct SlowAcker {
    agent: UserAgent,
    heard: Vec<Heard>,
    next_ack: Instant,
}

impl SlowAcker {
    fn new(agent: UserAgent) -> SlowAcker {
        SlowAcker { agent, heard: Vec::new(), next_ack: Instant::now() + ACK_EVERY }
    }

    /// Listens until `count` notifications have come in all, and no longer than until `end`.
    fn listen(&mut self, count: usize, end: Instant) {
        while self.heard.len() < count && Instant::now() < end {
            let until = self.next_ack.min(end);
            match self.agent.receive(until.saturating_duration_since(Instant::now())) {
                Received::Message(message) => self.hear(message),
                Received::Nothing if Instant::now() >= self.next_ack => {
                    self.next_ack += ACK_EVERY;
                    self.ack();
                }
                Received::Nothing => {}
                end => panic!("waited for a notification, got {end:?}"),
            }
        }
    }

    fn hear(&mut self, message: serde_json::Value) {
        self.heard.push(Heard { note: Note::read(message).unwrap(), came: Instant::now(), acked: None });
    }

    /// Acks all that is unacked, in one message.
    fn ack(&mut self) {
        let now = Instant::now();
        let unacked = self.heard.iter_mut().filter(|heard| heard.acked.is_none());
        let update = |heard: &mut Heard| {
            heard.acked = Some(now);
            json!({"channelID": heard.note.channel, "version": heard.note.version, "code": 100})
        };
        let updates: Vec<serde_json::Value> = unacked.map(update).collect();
        self.agent.send(json!({"messageType": "ack", "updates": updates}));
    }

    /// Checks that these ids came, in this order and each once, and the last within the promised time of `begun`.
    fn check(&self, what: &str, first: usize, ids: &[String], begun: Instant) {
        let heard: Vec<&String> = self.heard[first..].iter().map(|heard| &heard.note.version).collect();
        assert_eq!(heard, ids.iter().collect::<Vec<_>>(), "{what}: all of them, in order, once");
        let last = self.heard.last().unwrap().came.saturating_duration_since(begun);
        println!("{what}: the last of {} came after {:.2} s", ids.len(), last.as_secs_f64());
        assert!(last <= PROMISED, "{what}: {last:?}");
    }

    /// The most frames that came within a span and were unacked when the last of them came.
    fn most_at_once(&self, witness: &Witness) -> usize {
        let at_once = |(place, last): (usize, &Heard)| {
            let from = last.came - SPAN;
            let recent = |heard: &&Heard| heard.came > from && heard.acked.is_none_or(|acked| acked > last.came);
            let count = self.heard[..=place].iter().filter(recent).count();
            if witness.saw_a_stall(from - SPAN, last.came) { count.min(FRAMES_MAX) } else { count }
        };
        self.heard.iter().enumerate().map(at_once).max().unwrap_or(0)
    }
}

/// POSTs a burst, one behind the other; returns the ids in their order and the time at which the last was accepted.
fn post(world: &World, to: &Subscription) -> (Vec<String>, Instant) {
    let mut ids = Vec::with_capacity(BURST);
    for _ in 0..BURST {
        ids.push(world.send(to.request(600)).id());
    }
    (ids, Instant::now())
}

/// POSTs a burst while its user agent listens.
fn post_to(world: &World, to: &Subscription, listen: impl FnOnce()) -> (Vec<String>, Instant) {
    std::thread::scope(|scope| {
        let posting = scope.spawn(|| post(world, to));
        listen();
        posting.join().unwrap()
    })
}

#[test]
fn one_that_acks_every_half_minute_hears_each_live_burst_within_eight_seconds() {
    let world = World::start();
    let witness = Witness::start();
    let mut agent = world.agent(None);
    let subscription = agent.register(None);
    let uaid = agent.uaid.clone();
    let mut slow = SlowAcker::new(agent);
    let ack = slow.next_ack;
    let far = Instant::now() + common::PATIENCE;
    let (ids, posted) = post_to(&world, &subscription, || slow.listen(BURST, far));
    slow.check("first burst", 0, &ids, posted);
    assert!(slow.heard.iter().all(|heard| heard.acked.is_none()), "none is acked yet");
    // The ack of the first burst comes into the second.
    slow.listen(usize::MAX, ack - Duration::from_secs(2));
    assert_eq!(slow.heard.len(), BURST, "nothing comes twice");
    let far = Instant::now() + common::PATIENCE;
    let (ids, posted) = post_to(&world, &subscription, || slow.listen(2 * BURST, far));
    slow.check("second burst", BURST, &ids, posted);
    assert!(slow.heard[..BURST].iter().all(|heard| heard.acked.is_some()), "the first burst is acked");
    let most = slow.most_at_once(&witness);
    assert!((20..=FRAMES_MAX).contains(&most), "{most} unacked within half a second");
    slow.ack();
    slow.agent.barrier();
    slow.agent.leave();
    world.agent(Some(&uaid)).silence();
}

#[test]
fn one_that_acks_every_half_minute_hears_a_backlog_within_eight_seconds() {
    let world = World::start();
    let witness = Witness::start();
    let mut agent = world.agent(None);
    let subscription = agent.register(None);
    let uaid = agent.uaid.clone();
    agent.leave();
    let (ids, _) = post(&world, &subscription);
    let begun = Instant::now();
    let mut slow = SlowAcker::new(world.agent(Some(&uaid)));
    let ack = slow.next_ack;
    slow.listen(BURST, Instant::now() + common::PATIENCE);
    slow.check("backlog", 0, &ids, begun);
    slow.listen(usize::MAX, ack + Duration::from_secs(1));
    assert_eq!(slow.heard.len(), BURST, "nothing comes twice");
    assert!(slow.heard.iter().all(|heard| heard.acked.is_some()), "all are acked in one batch");
    let most = slow.most_at_once(&witness);
    assert!((20..=FRAMES_MAX).contains(&most), "{most} unacked within half a second");
    slow.agent.barrier();
    slow.agent.leave();
    std::thread::sleep(Duration::from_millis(10));
    world.agent(Some(&uaid)).silence();
}
