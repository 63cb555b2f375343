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

use crate::control_plane::http_client::HttpClient;
use crate::edge::EdgeKeys;

/// Queue of calls. Every shard pushes, one task of the control plane pops.
pub struct PeerQueue {
    queue: ArrayQueue<PeerCall>,
    /// Notifications that found no place at all.
    pub(super) dropped: AtomicU64,
    /// Calls without a reply, and notifications owed.
    pub(super) unsettled: AtomicUsize,
    credentials: Mutex<Credentials>,
    /// Counts the changes of `said`.
    changes: AtomicU64,
    /// The control plane found nothing and waits for a byte of `wake_tx`.
    waits: AtomicBool,
    wake_tx: UnixStream,
    pub(super) wake_rx: UnixStream,
}

/// Settings that an operator may change while calls go on.
#[derive(Clone)]
pub(super) struct Credentials {
    pub keys: EdgeKeys,
    /// `None`: as at the start.
    pub trust: Option<TrustRoots>,
}

/// Authorities that calls over TLS trust: `node.ca`, or those of this host. With the certificate of this node, if it
/// has one for nodes that ask.
#[derive(Clone)]
pub struct TrustRoots(pub(super) Arc<HttpClient>);

impl TrustRoots {
    /// Reads `node.ca`.
    ///
    /// # Errors
    /// If it cannot be read, or holds no certificate.
    pub fn read(ca: Option<&Path>) -> io::Result<TrustRoots> {
        TrustRoots::showing(ca, None)
    }

    /// As [`TrustRoots::read`]. Calls show this certificate to a node that asks for one.
    ///
    /// # Errors
    /// As [`TrustRoots::read`].
    pub fn showing(ca: Option<&Path>, own: Option<&Certificate>) -> io::Result<TrustRoots> {
        let client = match (ca, own) {
            (None, None) => HttpClient::new(),
            (Some(ca), None) => HttpClient::trusting_file(ca)?,
            (ca, Some(own)) => HttpClient::showing(ca, own)?,
        };
        Ok(TrustRoots(Arc::new(client)))
    }
}

/// One call, and the shard that waits for its reply.
pub(super) struct PeerCall {
    pub op: PeerOp,
    /// `None` for a notification that is only owed.
    pub back: Option<(Arc<ReplyQueue>, StoreTicket)>,
    /// Time of submission.
    pub since: Instant,
}

/// Replies on their way to one shard, and how to wake it. Bounded by the calls its lane lets out.
pub(super) struct ReplyQueue {
    replies: SegQueue<(StoreTicket, PeerReply)>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl ReplyQueue {
    /// Leaves a reply and wakes the shard.
    pub fn push(&self, ticket: StoreTicket, reply: PeerReply) {
        self.replies.push((ticket, reply));
        (self.waker)();
    }
}

impl PeerQueue {
    /// An empty lane; `keys` open message ids and other nodes.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new(keys: EdgeKeys) -> io::Result<PeerQueue> {
        let (wake_tx, wake_rx) = UnixStream::pair()?;
        wake_tx.set_nonblocking(true)?;
        wake_rx.set_nonblocking(true)?;
        Ok(PeerQueue {
            queue: ArrayQueue::new(CALLS_MAX),
            dropped: AtomicU64::new(0),
            unsettled: AtomicUsize::new(0),
            credentials: Mutex::new(Credentials { keys, trust: None }),
            changes: AtomicU64::new(1),
            waits: AtomicBool::new(false),
            wake_tx,
            wake_rx,
        })
    }

    /// A shard's handle to the other nodes, made on the shard's thread. `waker` is called when there are replies.
    pub fn lane(self: &Arc<PeerQueue>, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn shards::ports::Peers> {
        let reply_queue = Arc::new(ReplyQueue { replies: SegQueue::new(), waker });
        Box::new(PeerPort { peers: Arc::clone(self), reply_queue, outstanding: 0, refused: VecDeque::new() })
    }

    /// Tells this session to read storage, now or when its node can be reached. From any thread.
    pub fn tell(&self, to: Arc<NodeId>, uaid: Uaid) {
        self.push(PeerCall { op: PeerOp::Notify { to, uaid, unsure: None }, back: None, since: Instant::now() });
    }

    /// Takes other keys from now on, and trusts others. Connections that are there go on.
    pub fn renew(&self, keys: EdgeKeys, trust: TrustRoots) {
        *self.credentials.lock().unwrap_or_else(PoisonError::into_inner) = Credentials { keys, trust: Some(trust) };
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the settings and their change number if that is not `known`.
    pub(super) fn credentials_since(&self, known: u64) -> Option<(u64, Credentials)> {
        let changes = self.changes.load(Ordering::SeqCst);
        (changes != known).then(|| (changes, self.credentials.lock().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    /// Returns the number of calls without a reply and of notifications without an answer.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// Returns false if there is no room. Takes no lock and never waits. One system call when the control plane sleeps.
    fn push(&self, job: PeerCall) -> bool {
        // A notification has no second chance but the next message, so that half of the room is for them alone.
        let is_notify = matches!(job.op, PeerOp::Notify { .. });
        if !is_notify && self.queue.len() >= CALLS_MAX / 2 {
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
            let _ = (&self.wake_tx).write(&[1]);
        }
        true
    }

    /// The oldest, if there is one.
    pub(super) fn try_pop(&self) -> Option<PeerCall> {
        self.queue.pop()
    }

    /// The oldest. May be cancelled anywhere without losing one.
    pub(super) async fn pop(&self, wake_rx: &tokio::net::UnixStream) -> io::Result<PeerCall> {
        loop {
            if let Some(job) = self.queue.pop() {
                return Ok(job);
            }
            self.waits.store(true, Ordering::SeqCst);
            // A push before that store did not ring; a push after it does.
            if let Some(job) = self.queue.pop() {
                return Ok(job);
            }
            wake_rx.readable().await?;
            // The bytes mean nothing, and an empty read means only that an earlier read took the ring.
            let _ = wake_rx.try_read(&mut [0; 64]);
        }
    }
}

/// Calls between the shards and the island: 16,384 x 150 B = 2.4 MB. Refuse: `Unreachable` for all but notifications at
/// half of it, for those at the end, counted.
const CALLS_MAX: usize = 16_384;
/// Calls of one shard without a reply. Refuse: `Unreachable`.
const LANE_CALLS_MAX: usize = 16_384;

/// One shard's handle. Lives on its thread.
struct PeerPort {
    peers: Arc<PeerQueue>,
    reply_queue: Arc<ReplyQueue>,
    outstanding: usize,
    refused: VecDeque<StoreTicket>,
}

impl shards::ports::Peers for PeerPort {
    fn submit(&mut self, ticket: StoreTicket, op: PeerOp) {
        let job = PeerCall { op, back: Some((Arc::clone(&self.reply_queue), ticket)), since: Instant::now() };
        if self.outstanding >= LANE_CALLS_MAX || !self.peers.push(job) {
            return self.refused.push_back(ticket);
        }
        self.outstanding += 1;
    }

    fn collect(&mut self) -> Option<(StoreTicket, PeerReply)> {
        if let Some(ticket) = self.refused.pop_front() {
            return Some((ticket, PeerReply::Unreachable));
        }
        let reply = self.reply_queue.replies.pop()?;
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
        let peers = Arc::new(PeerQueue::new(EdgeKeys::default()).unwrap());
        let mut lanes = [peers.lane(Arc::new(|| {})), peers.lane(Arc::new(|| {}))];
        for n in 0..CALLS_MAX as u32 / 2 {
            let (ticket, op) = push(n);
            lanes[0].submit(ticket, op);
        }
        assert!(lanes[0].collect().is_none());
        let (ticket, op) = push(7);
        lanes[1].submit(ticket, op);
        assert_eq!(lanes[1].collect(), Some((ticket, PeerReply::Unreachable)));
        for n in 0..CALLS_MAX as u32 / 2 {
            let (ticket, op) = notify(n);
            lanes[1].submit(ticket, op);
        }
        assert!(lanes[1].collect().is_none());
        assert_eq!(peers.dropped.load(Ordering::Relaxed), 0);
        let (ticket, op) = notify(8);
        lanes[1].submit(ticket, op);
        assert_eq!(lanes[1].collect(), Some((ticket, PeerReply::Unreachable)));
        assert_eq!((peers.dropped.load(Ordering::Relaxed), peers.unsettled()), (1, CALLS_MAX));
    }

    #[test]
    fn a_reply_goes_to_the_shard_that_asked_and_wakes_it() {
        let peers = Arc::new(PeerQueue::new(EdgeKeys::default()).unwrap());
        let woken = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&woken);
        let mut lane = peers.lane(Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let (ticket, op) = push(3);
        lane.submit(ticket, op);
        let (reply_queue, came) = peers.try_pop().unwrap().back.unwrap();
        reply_queue.push(came, PeerReply::Busy);
        assert_eq!((lane.collect(), lane.collect()), (Some((ticket, PeerReply::Busy)), None));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }
}
