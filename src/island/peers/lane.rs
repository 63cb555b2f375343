//! The lane between the shards and the island: calls one way, replies the other. A push never waits.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crossbeam::queue::{ArrayQueue, SegQueue};
use machine::ids::{StoreTicket, Uaid};
use machine::{NodeId, PeerOp, PeerReply};
use tls::Certificate;

use crate::edge::EdgeKeys;
use crate::island::client::Client;

/// Queue of calls. Every shard pushes, one task of the island pops.
pub struct Peers {
    queue: ArrayQueue<Job>,
    /// Notifications that found no place at all.
    pub(super) dropped: AtomicU64,
    /// Calls without a reply, and notifications owed.
    pub(super) unsettled: AtomicUsize,
    said: Mutex<Said>,
    /// Counts the changes of `said`.
    changes: AtomicU64,
    /// The island found nothing and listens for the bell.
    waits: AtomicBool,
    bell: UnixStream,
    pub(super) ear: UnixStream,
}

/// Settings that an operator may change while calls go on.
#[derive(Clone)]
pub(super) struct Said {
    pub keys: EdgeKeys,
    /// `None`: as at the start.
    pub trust: Option<Trust>,
}

/// Authorities that calls over TLS trust: `node.ca`, or those of this host. With the certificate of this node, if it
/// has one for nodes that ask.
#[derive(Clone)]
pub struct Trust(pub(super) Arc<Client>);

impl Trust {
    /// Reads `node.ca`.
    ///
    /// # Errors
    /// If it cannot be read, or holds no certificate.
    pub fn read(ca: Option<&Path>) -> io::Result<Trust> {
        Trust::showing(ca, None)
    }

    /// As [`Trust::read`]. Calls show this certificate to a node that asks for one.
    ///
    /// # Errors
    /// As [`Trust::read`].
    pub fn showing(ca: Option<&Path>, own: Option<&Certificate>) -> io::Result<Trust> {
        let client = match (ca, own) {
            (None, None) => Client::new(),
            (Some(ca), None) => Client::trusting_file(ca)?,
            (ca, Some(own)) => Client::showing(ca, own)?,
        };
        Ok(Trust(Arc::new(client)))
    }
}

/// One call, and the shard that waits for its reply.
pub(super) struct Job {
    pub op: PeerOp,
    /// `None` for a notification that is only owed.
    pub back: Option<(Arc<Outbox>, StoreTicket)>,
    /// Time of submission.
    pub since: Instant,
}

/// Replies on their way to one shard, and how to wake it. Bounded by the calls its lane lets out.
pub(super) struct Outbox {
    replies: SegQueue<(StoreTicket, PeerReply)>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl Outbox {
    /// Leaves a reply and wakes the shard.
    pub fn push(&self, ticket: StoreTicket, reply: PeerReply) {
        self.replies.push((ticket, reply));
        (self.waker)();
    }
}

impl Peers {
    /// An empty lane; `keys` open message ids and other nodes.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new(keys: EdgeKeys) -> io::Result<Peers> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok(Peers {
            queue: ArrayQueue::new(JOBS_MAX),
            dropped: AtomicU64::new(0),
            unsettled: AtomicUsize::new(0),
            said: Mutex::new(Said { keys, trust: None }),
            changes: AtomicU64::new(1),
            waits: AtomicBool::new(false),
            bell,
            ear,
        })
    }

    /// A shard's hand to the other nodes, made on the shard's thread. `waker` is called when there are replies.
    pub fn lane(self: &Arc<Peers>, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn shards::ports::Peers> {
        let outbox = Arc::new(Outbox { replies: SegQueue::new(), waker });
        Box::new(Lane { peers: Arc::clone(self), outbox, outstanding: 0, refused: VecDeque::new() })
    }

    /// Tells this session to read storage, now or when its node can be reached. From any thread.
    pub fn tell(&self, to: Arc<NodeId>, uaid: Uaid) {
        self.push(Job { op: PeerOp::Notify { to, uaid, unsure: None }, back: None, since: Instant::now() });
    }

    /// Takes other keys from now on, and trusts others. Connections that are there go on.
    pub fn renew(&self, keys: EdgeKeys, trust: Trust) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Said { keys, trust: Some(trust) };
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the settings and their change number if that is not `known`.
    pub(super) fn said_since(&self, known: u64) -> Option<(u64, Said)> {
        let changes = self.changes.load(Ordering::SeqCst);
        (changes != known).then(|| (changes, self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    /// Returns the number of calls without a reply and of notifications without an answer.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// Returns false if there is no room. Takes no lock and never waits. One system call when the island sleeps.
    fn push(&self, job: Job) -> bool {
        // A notification has no second chance but the next message, so that half of the room is for them alone.
        let is_notify = matches!(job.op, PeerOp::Notify { .. });
        if !is_notify && self.queue.len() >= JOBS_MAX / 2 {
            return false;
        }
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        if self.queue.push(job).is_err() {
            self.unsettled.fetch_sub(1, Ordering::SeqCst);
            self.dropped.fetch_add(u64::from(is_notify), Ordering::Relaxed);
            return false;
        }
        if self.waits.swap(false, Ordering::SeqCst) {
            // A full socket is rung already.
            let _ = (&self.bell).write(&[1]);
        }
        true
    }

    /// The oldest, if there is one.
    pub(super) fn try_pop(&self) -> Option<Job> {
        self.queue.pop()
    }

    /// The oldest. May be cancelled anywhere without losing one.
    pub(super) async fn pop(&self, ear: &tokio::net::UnixStream) -> io::Result<Job> {
        loop {
            if let Some(job) = self.queue.pop() {
                return Ok(job);
            }
            self.waits.store(true, Ordering::SeqCst);
            // A push before that store did not ring; a push after it does.
            if let Some(job) = self.queue.pop() {
                return Ok(job);
            }
            ear.readable().await?;
            // The bytes mean nothing, and an empty read means only that an earlier read took the ring.
            let _ = ear.try_read(&mut [0; 64]);
        }
    }
}

/// Calls between the shards and the island: 16,384 x 150 B = 2.4 MB. Refuse: `Unreachable` for all but notifications at
/// half of it, for those at the end, counted.
const JOBS_MAX: usize = 16_384;
/// Calls of one shard without a reply. Refuse: `Unreachable`.
const LANE_CALLS_MAX: usize = 16_384;

/// One shard's hand. Lives on its thread.
struct Lane {
    peers: Arc<Peers>,
    outbox: Arc<Outbox>,
    outstanding: usize,
    refused: VecDeque<StoreTicket>,
}

impl shards::ports::Peers for Lane {
    fn submit(&mut self, ticket: StoreTicket, op: PeerOp) {
        let job = Job { op, back: Some((Arc::clone(&self.outbox), ticket)), since: Instant::now() };
        if self.outstanding >= LANE_CALLS_MAX || !self.peers.push(job) {
            return self.refused.push_back(ticket);
        }
        self.outstanding += 1;
    }

    fn collect(&mut self) -> Option<(StoreTicket, PeerReply)> {
        if let Some(ticket) = self.refused.pop_front() {
            return Some((ticket, PeerReply::Unreachable));
        }
        let reply = self.outbox.replies.pop()?;
        assert!(self.outstanding > 0, "a reply answers a call");
        self.outstanding -= 1;
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(n: u32) -> (StoreTicket, PeerOp) {
        let to = Arc::new(NodeId { url: "http://127.0.0.1:1".into(), boot: 1 });
        (StoreTicket { index: n, generation: 0 }, PeerOp::Leave { to, uaid: Uaid([1; 16]), connected_at: 1 })
    }

    fn notify(n: u32) -> (StoreTicket, PeerOp) {
        let to = Arc::new(NodeId { url: "http://127.0.0.1:1".into(), boot: 1 });
        (StoreTicket { index: n, generation: 0 }, PeerOp::Notify { to, uaid: Uaid([1; 16]), unsure: None })
    }

    #[test]
    fn what_does_not_fit_is_refused_and_half_of_the_room_is_for_notifications() {
        let peers = Arc::new(Peers::new(EdgeKeys::default()).unwrap());
        let mut lanes = [peers.lane(Arc::new(|| {})), peers.lane(Arc::new(|| {}))];
        for n in 0..JOBS_MAX as u32 / 2 {
            let (ticket, op) = push(n);
            lanes[0].submit(ticket, op);
        }
        assert!(lanes[0].collect().is_none());
        let (ticket, op) = push(7);
        lanes[1].submit(ticket, op);
        assert_eq!(lanes[1].collect(), Some((ticket, PeerReply::Unreachable)));
        for n in 0..JOBS_MAX as u32 / 2 {
            let (ticket, op) = notify(n);
            lanes[1].submit(ticket, op);
        }
        assert!(lanes[1].collect().is_none());
        assert_eq!(peers.dropped.load(Ordering::Relaxed), 0);
        let (ticket, op) = notify(8);
        lanes[1].submit(ticket, op);
        assert_eq!(lanes[1].collect(), Some((ticket, PeerReply::Unreachable)));
        assert_eq!((peers.dropped.load(Ordering::Relaxed), peers.unsettled()), (1, JOBS_MAX));
    }

    #[test]
    fn a_reply_goes_to_the_shard_that_asked_and_wakes_it() {
        let peers = Arc::new(Peers::new(EdgeKeys::default()).unwrap());
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let mut lane = peers.lane(Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let (ticket, op) = push(3);
        lane.submit(ticket, op);
        let (outbox, came) = peers.try_pop().unwrap().back.unwrap();
        outbox.push(came, PeerReply::Busy);
        assert_eq!((lane.collect(), lane.collect()), (Some((ticket, PeerReply::Busy)), None));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }
}
