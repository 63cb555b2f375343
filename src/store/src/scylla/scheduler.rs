//! The lane of one shard: its operations, in order for each user, with a bound on requests in flight.
//!
//! Operations of one user take effect in the order of submission: the next begins when the one before is answered,
//! except for those that do not see each other. Reads do not see reads, and messages that are stored beside each other
//! do not see each other. A read of a user that waits is shared by equal reads behind it. One that was sent is not,
//! because it may have been answered before a write that the later one must see.
//!
//! A refresh comes last: when nothing else may begin, few at a time, and behind all other operations of its user. No
//! client waits for it, and it writes nothing that another operation would have to see.
//!
//! Lives on: the store's runtime, one task for each shard and one for each operation that was begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use machine::ids::{StoreTicket, Uaid};
use machine::message::Message;
use machine::simplepush::Mode;
use machine::{StoreError, StoreOp, StoreReply};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::client::{Client, StatementContext};
use super::ops;
use super::port::{Answer, ReplyQueue, SubmittedOp};
use super::stats::count;
use super::user_cache::UserCache;

/// Time from submission to reply, in every case: below the 30 s in which a message must be written or refused.
const OPERATION_TIME_MAX: Duration = Duration::from_secs(25);
/// Number of waiting operations among which a read looks for one to share.
const SHARE_WITHIN: usize = 64;
/// Refreshes that run at once; the shard submits a few more.
const LAST_MAX: usize = 4;

/// State that all operations of a lane share.
pub(super) struct Shared {
    pub(super) client: Arc<Client>,
    /// Statements in flight. Operations begin by `Client::limit`, and one of them sends a few statements at once.
    pub(super) permits: Semaphore,
    pub(super) known: UserCache,
    pub(super) reply_queue: Arc<ReplyQueue>,
}

/// Class of an operation. Operations of one user in one class, `Read` or `Store`, may run beside each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OpClass {
    Read,
    Store,
    Alone,
    /// Alone, and behind everything else.
    Last,
}

impl OpClass {
    fn of(op: &StoreOp) -> OpClass {
        match op {
            op if op.is_read() => OpClass::Read,
            StoreOp::Publish { message, .. } if Message::mode(message) == Mode::WebPush => OpClass::Store,
            StoreOp::Touch { .. } => OpClass::Last,
            _ => OpClass::Alone,
        }
    }
}

/// An operation that waits, and the operations that share its answer.
struct QueuedOp {
    submitted: SubmittedOp,
    class: OpClass,
    also: Vec<StoreTicket>,
}

/// The operations of one user.
struct Queue {
    running: usize,
    class: OpClass,
    waiting: VecDeque<QueuedOp>,
    /// Refreshes of it that wait, behind `waiting`.
    last: VecDeque<QueuedOp>,
    /// It stands in `OpScheduler::ready`.
    listed: bool,
    /// It stands in `OpScheduler::last`.
    listed_last: bool,
}

impl Queue {
    fn may_begin(&self) -> bool {
        let beside =
            |front: &QueuedOp| self.class == front.class && matches!(front.class, OpClass::Read | OpClass::Store);
        self.waiting.front().is_some_and(|front| self.running == 0 || beside(front))
    }

    fn may_begin_last(&self) -> bool {
        self.running == 0 && self.waiting.is_empty() && !self.last.is_empty()
    }
}

/// The task of a lane.
pub(super) struct OpScheduler {
    shared: Arc<Shared>,
    inbox: UnboundedReceiver<SubmittedOp>,
    users: HashMap<Uaid, Queue>,
    /// Users with something that may begin, each once, in turn.
    ready: VecDeque<Uaid>,
    /// Users with a refresh that may begin, each once, in turn.
    last: VecDeque<Uaid>,
    running: JoinSet<(Uaid, OpClass)>,
    running_last: usize,
}

impl OpScheduler {
    pub(super) fn new(shared: Arc<Shared>, inbox: UnboundedReceiver<SubmittedOp>) -> OpScheduler {
        let (ready, last) = (VecDeque::new(), VecDeque::new());
        OpScheduler { shared, inbox, users: HashMap::new(), ready, last, running: JoinSet::new(), running_last: 0 }
    }

    /// Works until the port is gone and every operation is answered.
    pub(super) async fn run(mut self) {
        let mut circuit = self.shared.client.breaker.watch();
        let mut open = true;
        while open || !self.running.is_empty() {
            tokio::select! {
                biased;
                Some(done) = self.running.join_next() => {
                    // Invariant: an operation that panics ends the process (panic = abort).
                    let (uaid, class) = done.expect("operations do not panic");
                    self.done(uaid, class);
                }
                Ok(()) = circuit.changed() => {
                    if *circuit.borrow_and_update() {
                        self.refuse_waiting();
                    }
                }
                submitted = self.inbox.recv(), if open => match submitted {
                    Some(submitted) => {
                        self.take(submitted);
                        while let Ok(submitted) = self.inbox.try_recv() {
                            self.take(submitted);
                        }
                    }
                    None => open = false,
                },
            }
            self.begin();
        }
    }

    fn take(&mut self, submitted: SubmittedOp) {
        let (uaid, class) = (submitted.op.uaid(), OpClass::of(&submitted.op));
        let queue = self.users.entry(uaid).or_insert_with(|| Queue {
            running: 0,
            class: OpClass::Alone,
            waiting: VecDeque::new(),
            last: VecDeque::new(),
            listed: false,
            listed_last: false,
        });
        if matches!(submitted.op, StoreOp::LoadUser { .. } | StoreOp::Locate { .. }) {
            let reads = queue.waiting.iter_mut().rev().take(SHARE_WITHIN).take_while(|w| w.class == OpClass::Read);
            let mut same = reads.filter(|waiting| same_read(&waiting.submitted.op, &submitted.op));
            if let Some(waiting) = same.next() {
                waiting.also.push(submitted.ticket);
                count(&self.shared.client.stats.others.coalesced);
                return;
            }
        }
        self.shared.client.stats.others.queue.fetch_add(1, Ordering::Relaxed);
        let queued = if class == OpClass::Last { &mut queue.last } else { &mut queue.waiting };
        queued.push_back(QueuedOp { submitted, class, also: Vec::new() });
        self.list(uaid);
    }

    /// Lists a user as ready, when it has something that may begin.
    fn list(&mut self, uaid: Uaid) {
        let Some(queue) = self.users.get_mut(&uaid) else { return };
        if !queue.listed && queue.may_begin() {
            queue.listed = true;
            self.ready.push_back(uaid);
        }
        if !queue.listed_last && queue.may_begin_last() {
            queue.listed_last = true;
            self.last.push_back(uaid);
        }
    }

    /// Begins what may begin, refreshes behind everything else.
    fn begin(&mut self) {
        while self.running.len() < self.shared.client.limit.get() {
            let Some(next) = self.next().or_else(|| self.next_last()) else { break };
            let (uaid, class) = (next.submitted.op.uaid(), next.class);
            self.running_last += usize::from(class == OpClass::Last);
            self.list(uaid);
            self.shared.client.stats.others.queue.fetch_sub(1, Ordering::Relaxed);
            let shared = Arc::clone(&self.shared);
            self.running.spawn(async move {
                carry_out(&shared, next).await;
                (uaid, class)
            });
        }
        self.shared.client.limit.used(self.running.len());
    }

    /// The operation that begins next.
    fn next(&mut self) -> Option<QueuedOp> {
        while let Some(uaid) = self.ready.pop_front() {
            let Some(queue) = self.users.get_mut(&uaid) else { continue };
            queue.listed = false;
            if queue.may_begin()
                && let Some(next) = queue.waiting.pop_front()
            {
                queue.running += 1;
                queue.class = next.class;
                return Some(next);
            }
        }
        None
    }

    /// The refresh that begins next.
    fn next_last(&mut self) -> Option<QueuedOp> {
        while self.running_last < LAST_MAX {
            let uaid = self.last.pop_front()?;
            let Some(queue) = self.users.get_mut(&uaid) else { continue };
            queue.listed_last = false;
            if queue.may_begin_last()
                && let Some(next) = queue.last.pop_front()
            {
                queue.running += 1;
                queue.class = next.class;
                return Some(next);
            }
        }
        None
    }

    fn done(&mut self, uaid: Uaid, class: OpClass) {
        self.running_last -= usize::from(class == OpClass::Last);
        let Some(queue) = self.users.get_mut(&uaid) else { return };
        queue.running -= 1;
        if queue.running == 0 && queue.waiting.is_empty() && queue.last.is_empty() {
            self.users.remove(&uaid);
        } else {
            self.list(uaid);
        }
    }

    /// Refuses everything that waits, because the circuit is open.
    fn refuse_waiting(&mut self) {
        self.ready.clear();
        self.last.clear();
        for queue in self.users.values_mut() {
            (queue.listed, queue.listed_last) = (false, false);
            for waiting in queue.waiting.drain(..).chain(queue.last.drain(..)) {
                self.shared.client.stats.others.queue.fetch_sub(1, Ordering::Relaxed);
                answer(&self.shared, &waiting, Err(StoreError::Transient));
            }
        }
        self.users.retain(|_, queue| queue.running > 0);
    }
}

/// Returns true when one answer serves both.
fn same_read(one: &StoreOp, other: &StoreOp) -> bool {
    match (one, other) {
        (StoreOp::LoadUser { .. }, StoreOp::LoadUser { .. }) => true,
        (StoreOp::Locate { chid: one, .. }, StoreOp::Locate { chid: other, .. }) => one == other,
        _ => false,
    }
}

/// Does one operation and answers it.
async fn carry_out(shared: &Shared, waiting: QueuedOp) {
    let until = waiting.submitted.arrived + OPERATION_TIME_MAX;
    let late = shared.client.breaker.is_open() || Instant::now() >= until;
    let found = if late {
        Err(StoreError::Transient)
    } else {
        let context = StatementContext { client: &shared.client, permits: &shared.permits, until };
        // The limit of each statement ends before this one, except for operations with many statements.
        let done = tokio::time::timeout_at(until, ops::carry_out(&context, &shared.known, &waiting.submitted.op)).await;
        done.unwrap_or(Err(StoreError::Transient))
    };
    answer(shared, &waiting, found);
}

/// Answers an operation, and those that share it.
fn answer(shared: &Shared, waiting: &QueuedOp, found: Answer) {
    if found.is_err() {
        shared.client.stats.others.transient.fetch_add(1 + waiting.also.len() as u64, Ordering::Relaxed);
    }
    for ticket in &waiting.also {
        let copy = match &found {
            Ok(StoreReply::User(user)) => Ok(StoreReply::User(user.clone())),
            Ok(_) | Err(_) => Err(StoreError::Transient),
        };
        shared.reply_queue.push(*ticket, copy);
    }
    shared.reply_queue.push(waiting.submitted.ticket, found);
}
