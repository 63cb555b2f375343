//! The lane of one shard: what it asked for, user by user in order, with so many requests in flight.
//!
//! Operations of one user take effect in the order of submission: the next begins when the one before is answered, but
//! for those that do not see each other. Reads do not see reads, and messages that are stored beside each other do not
//! see each other. A read of a user that waits is shared by whoever asks for the same behind it; one that was sent is
//! not, because it may have been answered before a write that the later one must see.
//!
//! Lives on: the store's runtime, one task for each shard and one for each operation that was begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use shards::ids::{StoreTicket, Uaid};
use shards::machine::{StoreError, StoreOp, StoreReply};
use shards::message::Message;
use shards::simple::Mode;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Client, Hand};
use super::known::Known;
use super::ops;
use super::port::{Answer, Job, Outbox};
use super::stats::count;

/// From submission to reply, whatever happens: below the 30 s in which a message must be written or refused.
const OPERATION_TIME_MAX: Duration = Duration::from_secs(25);
/// How far back a read looks for one to share.
const SHARE_WITHIN: usize = 64;

/// What every operation of a lane has in common.
pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    pub(super) permits: Semaphore,
    pub(super) known: Known,
    pub(super) outbox: Arc<Outbox>,
}

/// Which operations of one user may run beside each other: those of one class that is not `Alone`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Read,
    Store,
    Alone,
}

impl Class {
    fn of(op: &StoreOp) -> Class {
        match op {
            StoreOp::LoadUser { .. } | StoreOp::Topics { .. } | StoreOp::Messages { .. } | StoreOp::Read { .. } => {
                Class::Read
            }
            StoreOp::Publish { message, .. } if Message::mode(message) == Mode::WebPush => Class::Store,
            _ => Class::Alone,
        }
    }
}

/// An operation that waits, and who else waits for its answer.
struct Waiting {
    job: Job,
    class: Class,
    also: Vec<StoreTicket>,
}

/// The operations of one user.
struct Queue {
    running: usize,
    class: Class,
    waiting: VecDeque<Waiting>,
    /// It stands in `Lane::ready`.
    listed: bool,
}

impl Queue {
    fn may_begin(&self) -> bool {
        let beside = |front: &Waiting| self.class == front.class && front.class != Class::Alone;
        self.waiting.front().is_some_and(|front| self.running == 0 || beside(front))
    }
}

/// The task of a lane.
pub(super) struct Lane {
    shared: Arc<Shared>,
    inbox: UnboundedReceiver<Job>,
    users: HashMap<Uaid, Queue>,
    /// Users with something that may begin, each once, in turn.
    ready: VecDeque<Uaid>,
    running: JoinSet<Uaid>,
    running_max: usize,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, inbox: UnboundedReceiver<Job>, running_max: usize) -> Lane {
        Lane { shared, inbox, users: HashMap::new(), ready: VecDeque::new(), running: JoinSet::new(), running_max }
    }

    /// Works until the port is gone and everything is answered.
    pub(super) async fn run(mut self) {
        let mut circuit = self.shared.client.breaker.watch();
        let mut open = true;
        while open || !self.running.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.running.join_next() => {
                    // Invariant: an operation that panics ends the process (panic = abort).
                    self.done(done.expect("operations do not panic"));
                }
                Ok(()) = circuit.changed() => {
                    if *circuit.borrow_and_update() {
                        self.refuse_waiting();
                    }
                }
                job = self.inbox.recv(), if open => match job {
                    Some(job) => {
                        self.take(job);
                        while let Ok(job) = self.inbox.try_recv() {
                            self.take(job);
                        }
                    }
                    None => open = false,
                },
            }
            self.begin();
        }
    }

    fn take(&mut self, job: Job) {
        let (uaid, class) = (job.op.uaid(), Class::of(&job.op));
        let queue = self.users.entry(uaid).or_insert_with(|| Queue {
            running: 0,
            class: Class::Alone,
            waiting: VecDeque::new(),
            listed: false,
        });
        if matches!(job.op, StoreOp::LoadUser { .. }) {
            let reads = queue.waiting.iter_mut().rev().take(SHARE_WITHIN).take_while(|w| w.class == Class::Read);
            let mut same = reads.filter(|waiting| matches!(waiting.job.op, StoreOp::LoadUser { .. }));
            if let Some(waiting) = same.next() {
                waiting.also.push(job.ticket);
                count(&self.shared.client.numbers.others.coalesced);
                return;
            }
        }
        self.shared.client.numbers.others.queue.fetch_add(1, Ordering::Relaxed);
        queue.waiting.push_back(Waiting { job, class, also: Vec::new() });
        list(&mut self.ready, uaid, queue);
    }

    /// Begins what may begin.
    fn begin(&mut self) {
        while self.running.len() < self.running_max {
            let Some(uaid) = self.ready.pop_front() else { return };
            let Some(queue) = self.users.get_mut(&uaid) else { continue };
            queue.listed = false;
            if !queue.may_begin() {
                continue;
            }
            let Some(next) = queue.waiting.pop_front() else { continue };
            queue.running += 1;
            queue.class = next.class;
            list(&mut self.ready, uaid, queue);
            self.shared.client.numbers.others.queue.fetch_sub(1, Ordering::Relaxed);
            let shared = Arc::clone(&self.shared);
            self.running.spawn(async move {
                carry_out(&shared, next).await;
                uaid
            });
        }
    }

    fn done(&mut self, uaid: Uaid) {
        let Some(queue) = self.users.get_mut(&uaid) else { return };
        queue.running -= 1;
        if queue.running == 0 && queue.waiting.is_empty() {
            self.users.remove(&uaid);
        } else {
            list(&mut self.ready, uaid, queue);
        }
    }

    /// The circuit is open: nothing that waits will be done.
    fn refuse_waiting(&mut self) {
        self.ready.clear();
        for queue in self.users.values_mut() {
            queue.listed = false;
            for waiting in queue.waiting.drain(..) {
                self.shared.client.numbers.others.queue.fetch_sub(1, Ordering::Relaxed);
                answer(&self.shared, &waiting, Err(StoreError::Transient));
            }
        }
        self.users.retain(|_, queue| queue.running > 0);
    }
}

/// Puts a user among those with something that may begin, when it has.
fn list(ready: &mut VecDeque<Uaid>, uaid: Uaid, queue: &mut Queue) {
    if !queue.listed && queue.may_begin() {
        queue.listed = true;
        ready.push_back(uaid);
    }
}

/// Does one operation and answers it.
async fn carry_out(shared: &Shared, waiting: Waiting) {
    let until = waiting.job.arrived + OPERATION_TIME_MAX;
    let late = shared.client.breaker.is_open() || Instant::now() >= until;
    let found = if late {
        Err(StoreError::Transient)
    } else {
        let hand = Hand { client: &shared.client, permits: &shared.permits, until };
        // The limit of each statement is before this one, but for what has many of them.
        let done = tokio::time::timeout_at(until, ops::carry_out(&hand, &shared.known, &waiting.job.op)).await;
        done.unwrap_or(Err(StoreError::Transient))
    };
    answer(shared, &waiting, found);
}

/// Answers an operation, and those that share it.
fn answer(shared: &Shared, waiting: &Waiting, found: Answer) {
    if found.is_err() {
        shared.client.numbers.others.transient.fetch_add(1 + waiting.also.len() as u64, Ordering::Relaxed);
    }
    for ticket in &waiting.also {
        let copy = match &found {
            Ok(StoreReply::User(user)) => Ok(StoreReply::User(user.clone())),
            Ok(_) | Err(_) => Err(StoreError::Transient),
        };
        shared.outbox.push(*ticket, copy);
    }
    shared.outbox.push(waiting.job.ticket, found);
}
