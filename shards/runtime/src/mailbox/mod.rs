//! Bounded lanes between shards, and the wake of a parked shard.
//!
//! A [`Mailbox`] is a shard's end of the [`mesh`]: it reads its own lanes and writes those of the others. The sender of
//! a mail is part of the mailbox, not of the call, so that ends cannot be mixed up. Pushes never fail: requests and
//! replies are paid for with credit, arrivals with a granted place (ARCHITECTURE.md 8.2).
//!
//! Lives on: the shard's thread; a [`Waker`] is also held by the threads that work for the shard.

#![allow(unsafe_code)]

mod waker;

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam::queue::ArrayQueue;

use crate::ring::{Origin, TableAddress};
use machine::ids::ShardId;
use machine::limits;
use machine::{Carried, Mail};

pub use waker::Waker;

/// Mails of one shard's lanes if every one were full.
const fn lane_bytes_max() -> usize {
    (2 * limits::LANE_MAILS_TOTAL + limits::GRANTS_MAX) * (size_of::<Mail>() + size_of::<usize>())
}

const _: () = assert!(lane_bytes_max() <= 1 << 20, "the lanes of a shard take at most 1 MiB");

/// A lane of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Replies, read first: they free credit.
    Replies,
    /// Outcomes of the sockets that were granted.
    Arrivals,
    /// Requests, read last: they cause work.
    Requests,
}

impl Lane {
    /// All of them, in the order they are read.
    pub const ALL: [Lane; 3] = [Lane::Replies, Lane::Arrivals, Lane::Requests];
}

/// The part of a shard that the others see.
struct ShardInbox {
    requests: ArrayQueue<Mail>,
    replies: ArrayQueue<Mail>,
    arrivals: ArrayQueue<Mail>,
    waker: Arc<Waker>,
    /// Its rings, hub first; set once, before any shard reads its lanes.
    rings: OnceLock<Box<[TableAddress]>>,
    /// The ring that has most room, where descriptors should go.
    target_ring: AtomicU32,
    /// Endpoint and node connections there or on their way there.
    assigned: AtomicU32,
    /// State of connections that are being handed over to it, at most [`HAND_OVERS_MAX`].
    handed_over: Mutex<HashMap<Origin, Carried>>,
}

/// Connections of app servers that are on their way to one shard at once, at most. Others stay.
const HAND_OVERS_MAX: usize = 256;

/// One shard's end of the mesh.
pub struct Mailbox {
    me: ShardId,
    inboxes: Arc<[ShardInbox]>,
}

/// The mailboxes of a process, in the order of their shards.
pub fn mesh(shards: u16) -> io::Result<Vec<Mailbox>> {
    assert!((1..=limits::SHARDS_MAX).contains(&shards), "1 to {} shards", limits::SHARDS_MAX);
    let credit = limits::reply_credit(shards) * usize::from(shards.max(2) - 1);
    assert!(credit <= limits::LANE_MAILS_TOTAL, "the credit of all peers fits into one lane");
    let inbox = || {
        Ok(ShardInbox {
            requests: ArrayQueue::new(credit),
            replies: ArrayQueue::new(credit),
            arrivals: ArrayQueue::new(limits::GRANTS_MAX),
            waker: Arc::new(Waker::new()?),
            rings: OnceLock::new(),
            target_ring: AtomicU32::new(0),
            assigned: AtomicU32::new(0),
            handed_over: Mutex::default(),
        })
    };
    let inboxes: Arc<[ShardInbox]> = (0..shards).map(|_| inbox()).collect::<io::Result<Vec<_>>>()?.into();
    Ok((0..shards).map(|shard| Mailbox { me: ShardId(shard), inboxes: Arc::clone(&inboxes) }).collect())
}

impl Mailbox {
    pub fn shard(&self) -> ShardId {
        self.me
    }

    /// Returns the number of shards of the mesh.
    pub fn shard_count(&self) -> u16 {
        self.inboxes.len() as u16
    }

    /// Wakes this shard when it is parked.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.mine().waker
    }

    fn mine(&self) -> &ShardInbox {
        &self.inboxes[usize::from(self.me.0)]
    }

    fn inbox(&self, shard: ShardId) -> &ShardInbox {
        &self.inboxes[usize::from(shard.0)]
    }

    /// Puts a mail into its lane at `to`. Returns true if that shard is parked and no other caller has to wake it: this
    /// one must, with its next submission.
    #[must_use]
    pub fn send(&self, to: ShardId, mail: Mail) -> bool {
        assert!(to != self.me, "a shard does not write to itself");
        if let Mail::Request { from, .. } = &mail {
            assert!(*from == self.me, "a request names the shard that gets the reply");
        }
        let inbox = self.inbox(to);
        let lane = match &mail {
            Mail::Request { .. } => &inbox.requests,
            Mail::Reply { .. } => &inbox.replies,
            Mail::Arrive(_) | Mail::Stayed(_) => &inbox.arrivals,
        };
        assert!(lane.push(mail).is_ok(), "credit and grants keep lanes from overflowing");
        inbox.waker.claim()
    }

    /// The next mail of one of this shard's lanes.
    pub fn receive(&self, lane: Lane) -> Option<Mail> {
        let inbox = self.mine();
        match lane {
            Lane::Replies => inbox.replies.pop(),
            Lane::Arrivals => inbox.arrivals.pop(),
            Lane::Requests => inbox.requests.pop(),
        }
    }

    pub fn has_mail(&self) -> bool {
        let inbox = self.mine();
        !(inbox.replies.is_empty() && inbox.arrivals.is_empty() && inbox.requests.is_empty())
    }

    /// Tells the others where this shard's rings are. Once, before any of them runs.
    pub(crate) fn publish_rings(&self, rings: Box<[TableAddress]>) {
        assert!(!rings.is_empty(), "a shard has at least its hub");
        assert!(self.mine().rings.set(rings).is_ok(), "rings are published once");
    }

    /// The ring where `shard` waits.
    pub(crate) fn hub_of(&self, shard: ShardId) -> Option<&TableAddress> {
        self.inbox(shard).rings.get().map(|rings| &rings[0])
    }

    /// The ring of `shard` that descriptors should go to.
    pub(crate) fn target_ring_of(&self, shard: ShardId) -> Option<TableAddress> {
        let inbox = self.inbox(shard);
        let target_ring = inbox.target_ring.load(Ordering::Relaxed) as usize;
        inbox.rings.get().and_then(|rings| rings.get(target_ring)).cloned()
    }

    /// Says which of this shard's rings has most room.
    pub(crate) fn set_target_ring(&self, ring: u16) {
        self.mine().target_ring.store(u32::from(ring), Ordering::Relaxed);
    }

    /// One endpoint connection more or less at `shard`.
    pub(crate) fn count_assigned(&self, shard: ShardId, more: bool) {
        let assigned = &self.inbox(shard).assigned;
        if more {
            assigned.fetch_add(1, Ordering::Relaxed)
        } else {
            assigned.fetch_sub(1, Ordering::Relaxed)
        };
    }

    /// Returns the least loaded shard if this one has more than twice as many endpoint and node connections as the
    /// others in the mean, and two more than that one.
    pub(crate) fn relief(&self) -> Option<ShardId> {
        let load = |inbox: &ShardInbox| u64::from(inbox.assigned.load(Ordering::Relaxed));
        let (all, mine): (u64, u64) = (self.inboxes.iter().map(load).sum(), load(self.mine()));
        let to = self.least_loaded();
        let others = self.inboxes.len() as u64 - 1;
        (mine * others > 2 * (all - mine) && mine >= load(self.inbox(to)) + 2).then_some(to)
    }

    /// Leaves the state of a connection for the shard that it is handed over to, and counts it there. Returns false,
    /// and does not ask for the state, if too many are on their way.
    pub(crate) fn hand_over(&self, to: ShardId, from: Origin, state: impl FnOnce() -> Carried) -> bool {
        let mut on_their_way = self.inbox(to).handed_over.lock().unwrap_or_else(PoisonError::into_inner);
        // The shard has not taken what came from the same slot before.
        if on_their_way.len() >= HAND_OVERS_MAX || on_their_way.contains_key(&from) {
            return false;
        }
        on_their_way.insert(from, state());
        self.count_assigned(to, true);
        true
    }

    /// Takes the state of a connection that was handed over to `to`: for that shard, or for its source if the
    /// descriptor could not be moved.
    pub(crate) fn take_handed_over(&self, to: ShardId, from: Origin) -> Option<Carried> {
        self.inbox(to).handed_over.lock().unwrap_or_else(PoisonError::into_inner).remove(&from)
    }

    /// Chooses the shard for a new endpoint connection: the least loaded one; this one when that is no better.
    pub(crate) fn least_loaded(&self) -> ShardId {
        let load = |shard: u16| self.inboxes[usize::from(shard)].assigned.load(Ordering::Relaxed);
        let mut best = self.me.0;
        for shard in 0..self.shard_count() {
            if load(shard) < load(best) {
                best = shard;
            }
        }
        ShardId(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::ids::{Claim, RequestId, Uaid};
    use machine::{ClaimReply, ClaimRequest, Reply, Request};

    fn request(from: u16, index: u32) -> Mail {
        let claim = Claim::new(ShardId(from), u64::from(index));
        let request = Request::Claim(Box::new(ClaimRequest { uaid: Uaid([0; 16]), claim, channels: None }));
        Mail::Request { from: ShardId(from), id: RequestId { index, generation: 0 }, request }
    }

    fn reply(index: u32) -> Mail {
        Mail::Reply { id: RequestId { index, generation: 0 }, reply: Reply::Claim(ClaimReply::Refused) }
    }

    #[test]
    fn every_peer_can_use_all_of_its_credit_both_ways() {
        for shards in [2, 3, 9, 256] {
            let boxes = mesh(shards).unwrap();
            let credit = limits::reply_credit(shards) as u32;
            for (from, mailbox) in boxes.iter().enumerate().skip(1) {
                for index in 0..credit {
                    let _ = mailbox.send(ShardId(0), request(from as u16, index));
                    let _ = mailbox.send(ShardId(0), reply(index));
                }
            }
            let received = |lane| std::iter::from_fn(|| boxes[0].receive(lane)).count() as u32;
            assert_eq!(received(Lane::Requests), credit * u32::from(shards - 1));
            assert_eq!(received(Lane::Replies), credit * u32::from(shards - 1));
            assert!(!boxes[0].has_mail());
        }
    }

    #[test]
    #[should_panic(expected = "a request names the shard that gets the reply")]
    fn a_request_in_the_name_of_another_is_refused() {
        let boxes = mesh(3).unwrap();
        let _ = boxes[1].send(ShardId(0), request(2, 0));
    }

    #[test]
    fn mails_of_one_sender_keep_their_order() {
        let boxes = mesh(2).unwrap();
        for index in 0..100 {
            let _ = boxes[1].send(ShardId(0), request(1, index));
        }
        for expected in 0..100 {
            let Some(Mail::Request { id, .. }) = boxes[0].receive(Lane::Requests) else { panic!("a request") };
            assert_eq!(id.index, expected);
        }
    }

    #[test]
    fn connections_are_dealt_to_the_least_loaded() {
        let boxes = mesh(3).unwrap();
        let mut served = [0; 3];
        for _ in 0..30 {
            let to = boxes[1].least_loaded();
            boxes[1].count_assigned(to, true);
            served[usize::from(to.0)] += 1;
        }
        assert_eq!(served, [10, 10, 10]);
        boxes[0].count_assigned(ShardId(0), false);
        assert_eq!(boxes[2].least_loaded(), ShardId(0));
    }

    /// A receiver that parks as the reactor does gets every mail, however the sender races with its parking.
    #[test]
    fn no_wake_is_lost() {
        const MAILS: u32 = 200_000;
        let mut boxes = mesh(2).unwrap();
        let (sender, receiver) = (boxes.pop().unwrap(), boxes.pop().unwrap());
        let waker = Arc::clone(receiver.waker());
        let parks = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&parks);
        let receiving = std::thread::spawn(move || {
            let mut got = 0;
            while got < MAILS {
                while receiver.receive(Lane::Replies).is_some() {
                    got += 1;
                }
                receiver.waker().park();
                if !receiver.has_mail() && got < MAILS {
                    counted.fetch_add(1, Ordering::Relaxed);
                    assert!(receiver.waker().wait_for_test(), "a wake was lost after {got} mails");
                }
                receiver.waker().unpark();
            }
        });
        for index in 0..MAILS {
            while sender.inboxes[0].replies.is_full() {
                std::thread::yield_now();
            }
            let before = parks.load(Ordering::Relaxed);
            if sender.send(ShardId(0), reply(index)) {
                waker.ring();
            }
            if index % 64 == 0 {
                std::thread::yield_now();
            }
            // However busy the host is, the receiver is let park now and then, so that the next mail has to wake it.
            while index % 10_000 == 5_000 && parks.load(Ordering::Relaxed) == before && !receiving.is_finished() {
                std::thread::yield_now();
            }
        }
        receiving.join().unwrap();
        assert!(parks.load(Ordering::Relaxed) >= 20, "the receiver never parked: nothing was tested");
    }
}
