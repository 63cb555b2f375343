//! Lanes between the shards and the control plane: calls one way, replies the other. A push never waits.
//!
//! [`WakingQueue`] carries values to one task of the control plane; [`Lane`] adds calls with a reply: each shard has a
//! [`ShardEnd`], which bounds its calls without a reply.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crossbeam::queue::{ArrayQueue, SegQueue};
use machine::ids::StoreTicket;

/// Bounded queue that many threads push to and one task of the control plane pops from.
pub(super) struct WakingQueue<T> {
    queue: ArrayQueue<T>,
    /// The control plane found nothing and waits for a byte of `wake_tx`.
    waits: AtomicBool,
    wake_tx: UnixStream,
    wake_rx: UnixStream,
}

impl<T> WakingQueue<T> {
    /// An empty queue with this many places.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new(places: usize) -> io::Result<WakingQueue<T>> {
        let (wake_tx, wake_rx) = UnixStream::pair()?;
        wake_tx.set_nonblocking(true)?;
        wake_rx.set_nonblocking(true)?;
        Ok(WakingQueue { queue: ArrayQueue::new(places), waits: AtomicBool::new(false), wake_tx, wake_rx })
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns false if there is no room. Takes no lock and never waits. One system call when the control plane sleeps.
    pub fn push(&self, value: T) -> bool {
        if self.queue.push(value).is_err() {
            return false;
        }
        if self.waits.swap(false, Ordering::SeqCst) {
            // A full socket is rung already.
            let _ = (&self.wake_tx).write(&[1]);
        }
        true
    }

    /// The socket for [`WakingQueue::pop`].
    ///
    /// # Errors
    /// If the operating system refuses to listen for the bell.
    pub fn bell(&self) -> io::Result<tokio::net::UnixStream> {
        tokio::net::UnixStream::from_std(self.wake_rx.try_clone()?)
    }

    /// The oldest, if there is one.
    pub fn try_pop(&self) -> Option<T> {
        self.queue.pop()
    }

    /// The oldest. May be cancelled anywhere without losing one.
    pub async fn pop(&self, bell: &tokio::net::UnixStream) -> io::Result<T> {
        loop {
            if let Some(value) = self.queue.pop() {
                return Ok(value);
            }
            self.waits.store(true, Ordering::SeqCst);
            // A push before that store did not ring; a push after it does.
            if let Some(value) = self.queue.pop() {
                return Ok(value);
            }
            bell.readable().await?;
            // The bytes mean nothing, and an empty read means only that an earlier read took the ring.
            let _ = bell.try_read(&mut [0; 64]);
        }
    }
}

/// Calls of the shards to one task of the control plane.
pub(super) struct Lane<Op, Reply> {
    queue: WakingQueue<Call<Op, Reply>>,
    /// Calls that are not settled.
    pub unsettled: AtomicUsize,
}

/// One call, and the shard that waits for its reply.
pub(super) struct Call<Op, Reply> {
    pub op: Op,
    /// `None`: the caller waits for no reply.
    pub back: Option<(Arc<ReplyQueue<Reply>>, StoreTicket)>,
    /// Time of submission.
    pub since: Instant,
}

/// Replies on their way to one shard, and how to wake it. Bounded by the calls of its [`ShardEnd`].
pub(super) struct ReplyQueue<Reply> {
    replies: SegQueue<(StoreTicket, Reply)>,
    waker: Arc<dyn Fn() + Send + Sync>,
    /// Replies were left since the last wake-up.
    is_due: AtomicBool,
}

impl<Reply> ReplyQueue<Reply> {
    /// Leaves a reply and wakes the shard.
    pub fn push(&self, ticket: StoreTicket, reply: Reply) {
        self.replies.push((ticket, reply));
        (self.waker)();
    }

    /// Leaves a reply, which the shard reads after [`ReplyQueue::wake_if_due`]: several replies share a wake-up.
    pub fn leave(&self, ticket: StoreTicket, reply: Reply) {
        self.replies.push((ticket, reply));
        self.is_due.store(true, Ordering::Release);
    }

    /// Wakes the shard if a reply was left for it.
    pub fn wake_if_due(&self) {
        if self.is_due.swap(false, Ordering::AcqRel) {
            (self.waker)();
        }
    }
}

impl<Op, Reply> Lane<Op, Reply> {
    /// An empty lane with places for this many calls.
    ///
    /// # Errors
    /// If the operating system refuses a pair of sockets.
    pub fn new(places: usize) -> io::Result<Lane<Op, Reply>> {
        Ok(Lane { queue: WakingQueue::new(places)?, unsettled: AtomicUsize::new(0) })
    }

    /// Returns the number of calls that wait in the lane.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the number of calls that are not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled.load(Ordering::SeqCst)
    }

    /// Returns false if there is no room, as [`WakingQueue::push`].
    pub fn push(&self, op: Op, back: Option<(Arc<ReplyQueue<Reply>>, StoreTicket)>) -> bool {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        let pushed = self.queue.push(Call { op, back, since: Instant::now() });
        if !pushed {
            self.unsettled.fetch_sub(1, Ordering::SeqCst);
        }
        pushed
    }

    /// As [`WakingQueue::bell`].
    pub fn bell(&self) -> io::Result<tokio::net::UnixStream> {
        self.queue.bell()
    }

    /// The oldest call, if there is one.
    pub fn try_pop(&self) -> Option<Call<Op, Reply>> {
        self.queue.try_pop()
    }

    /// The oldest call, as [`WakingQueue::pop`].
    pub async fn pop(&self, bell: &tokio::net::UnixStream) -> io::Result<Call<Op, Reply>> {
        self.queue.pop(bell).await
    }
}

/// A shard's end of a lane: its replies, and the number of its calls without one. Lives on the thread of the shard.
pub(super) struct ShardEnd<Reply> {
    replies: Arc<ReplyQueue<Reply>>,
    outstanding: usize,
    refused: VecDeque<StoreTicket>,
}

impl<Reply> ShardEnd<Reply> {
    /// `waker` is called when there are replies.
    pub fn new(waker: Arc<dyn Fn() + Send + Sync>) -> ShardEnd<Reply> {
        let replies = Arc::new(ReplyQueue { replies: SegQueue::new(), waker, is_due: AtomicBool::new(false) });
        ShardEnd { replies, outstanding: 0, refused: VecDeque::new() }
    }

    /// Returns the queue of its replies.
    pub fn replies(&self) -> Arc<ReplyQueue<Reply>> {
        Arc::clone(&self.replies)
    }

    /// Makes a call with `push`, which returns false if there is no room. It is refused beyond `most` calls without a
    /// reply, too.
    pub fn submit(
        &mut self,
        ticket: StoreTicket,
        most: usize,
        push: impl FnOnce((Arc<ReplyQueue<Reply>>, StoreTicket)) -> bool,
    ) {
        if self.outstanding >= most || !push((Arc::clone(&self.replies), ticket)) {
            return self.refused.push_back(ticket);
        }
        self.outstanding += 1;
    }

    /// The next reply; `refusal` for a call that was refused.
    pub fn collect(&mut self, refusal: Reply) -> Option<(StoreTicket, Reply)> {
        if let Some(ticket) = self.refused.pop_front() {
            return Some((ticket, refusal));
        }
        let reply = self.replies.replies.pop()?;
        assert!(self.outstanding > 0, "a reply answers a call");
        self.outstanding -= 1;
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_are_left_share_a_wake_up() {
        let wakes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&wakes);
        let waker = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let mut end: ShardEnd<u8> = ShardEnd::new(waker);
        let replies = end.replies();
        let tickets = [1, 2].map(|index| StoreTicket { index, generation: 0 });
        tickets.iter().for_each(|ticket| end.submit(*ticket, 2, |_| true));
        replies.wake_if_due();
        assert_eq!(wakes.load(Ordering::SeqCst), 0, "nothing was left");
        tickets.iter().for_each(|ticket| replies.leave(*ticket, 7));
        assert_eq!(wakes.load(Ordering::SeqCst), 0);
        replies.wake_if_due();
        replies.wake_if_due();
        assert_eq!(wakes.load(Ordering::SeqCst), 1);
        assert_eq!(
            [end.collect(0), end.collect(0), end.collect(0)],
            [Some((tickets[0], 7)), Some((tickets[1], 7)), None]
        );
    }
}
