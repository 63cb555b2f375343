//! The lane between the shards and the calls of other nodes.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use machine::ids::{StoreTicket, Uaid};
use machine::peers::NODES_MAX;
use machine::{NodeId, PeerOp, PeerReply};
use tls::Certificate;

use crate::http_client::HttpClient;
use crate::lane::{Call, Lane, ReplyQueue, ShardEnd};
use edge::EdgeKeys;

/// Queue of calls. Every shard pushes, one task of the control plane pops.
pub struct PeerQueue {
    /// Calls without a reply are those that are not settled.
    pub(super) lane: Lane<PeerOp, PeerReply>,
    /// Notifications that are owed. Written before the reply to the call that leaves a debt.
    pub(super) owed: AtomicUsize,
    /// Notifications that found no place at all, and the nodes that they were for, of which each reads storage.
    pub(super) dropped: AtomicU64,
    lost: Mutex<BTreeSet<Box<str>>>,
    /// The node ends: what is owed is left to the nodes that it is owed to.
    ending: AtomicBool,
    credentials: Mutex<Credentials>,
    /// Counts the changes of `said`.
    changes: AtomicU64,
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

/// One call, and the shard that waits for its reply; no shard waits for a notification that is only owed.
pub(super) type QueuedCall = Call<PeerOp, PeerReply>;

/// The shard that waits for a reply, and its ticket.
pub(super) type ReplyTo = (Arc<ReplyQueue<PeerReply>>, StoreTicket);

impl PeerQueue {
    /// An empty lane; `keys` open message ids and other nodes.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new(keys: EdgeKeys) -> io::Result<PeerQueue> {
        Ok(PeerQueue {
            lane: Lane::new(CALLS_MAX)?,
            owed: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            lost: Mutex::default(),
            ending: AtomicBool::new(false),
            credentials: Mutex::new(Credentials { keys, trust: None }),
            changes: AtomicU64::new(1),
        })
    }

    /// A shard's handle to the other nodes, made on the shard's thread. `waker` is called when there are replies.
    pub fn lane(self: &Arc<PeerQueue>, waker: Arc<dyn Fn() + Send + Sync>) -> Box<dyn runtime::ports::Peers> {
        Box::new(PeerPort { peers: Arc::clone(self), end: ShardEnd::new(waker) })
    }

    /// Tells this session to read storage, now or when its node can be reached. From any thread.
    pub fn tell(&self, to: Arc<NodeId>, uaid: Uaid) {
        self.push(PeerOp::Notify { to, uaid, unsure: None }, None);
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
        let calls = self.lane.unsettled();
        calls + self.owed()
    }

    /// Leaves what is owed to the nodes that it is owed to: it is written down for them. [`PeerQueue::unsettled`] then
    /// falls to zero, unless the database does not take it.
    pub fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    /// Returns the number of notifications without an answer that are not written down for their nodes.
    pub fn owed(&self) -> usize {
        self.owed.load(Ordering::SeqCst)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Returns the nodes for which notifications found no place since the last call.
    pub(super) fn take_lost(&self) -> BTreeSet<Box<str>> {
        std::mem::take(&mut *self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns false if there is no room.
    fn push(&self, op: PeerOp, back: Option<(Arc<ReplyQueue<PeerReply>>, StoreTicket)>) -> bool {
        // A notification that finds no place costs its node a read for each session, so half of the room is for them.
        let is_notify = matches!(op, PeerOp::Notify { .. });
        if !is_notify && self.lane.len() >= CALLS_MAX / 2 {
            return false;
        }
        let to = if let PeerOp::Notify { to, .. } = &op { Some(Arc::clone(to)) } else { None };
        let pushed = self.lane.push(op, back);
        if let Some(to) = to.filter(|_| !pushed) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if lost.len() < NODES_MAX {
                lost.insert(to.url.clone());
            }
        }
        pushed
    }
}

/// Calls between the shards and the control plane: 16,384 x 150 B = 2.4 MB. Refuse: `Unreachable` for all but
/// notifications at half of it, for those at the end, counted.
const CALLS_MAX: usize = 16_384;
/// Calls of one shard without a reply. Refuse: `Unreachable`.
const LANE_CALLS_MAX: usize = 16_384;

/// One shard's handle. Lives on its thread.
struct PeerPort {
    peers: Arc<PeerQueue>,
    end: ShardEnd<PeerReply>,
}

impl runtime::ports::Peers for PeerPort {
    fn submit(&mut self, ticket: StoreTicket, op: PeerOp) {
        self.end.submit(ticket, LANE_CALLS_MAX, |back| self.peers.push(op, Some(back)));
    }

    fn collect(&mut self) -> Option<(StoreTicket, PeerReply)> {
        self.end.collect(PeerReply::Unreachable)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

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
        assert_eq!(peers.take_lost(), BTreeSet::from(["http://127.0.0.1:1".into()]));
        assert!(peers.take_lost().is_empty());
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
        let (reply_queue, came) = peers.lane.try_pop().unwrap().back.unwrap();
        reply_queue.push(came, PeerReply::Busy);
        assert_eq!((lane.collect(), lane.collect()), (Some((ticket, PeerReply::Busy)), None));
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }
}
