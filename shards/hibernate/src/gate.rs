//! The gate: holds the segments of connections that are frozen or set apart until their shard decides.
//!
//! ```text
//!    kernel            reader thread                 shard                 grace thread
//!      |                     |                         |                        |
//!      |                     |<- set apart: a batch ---|                        |
//!      |                     |---------------- queue is empty: a batch -------->|
//!      |                     |                         |<-- grace is over ------| waits 10 ms or more
//!      |-- segment --------->|                         | checks, freezes        |
//!      |                     |-- segment of a name --->|                        |
//!      |<------------------------------ verdict -------| thaws before           |
//! ```
//! The reader thread owns the table of names, so nobody locks it. A segment whose tuple is not in the table is accepted
//! by the reader. A batch is in the table before its grace period begins, and the check follows the grace period, so no
//! segment reaches a connection between its check and its close.
//!
//! The reader passes a batch on only when it has found the queue empty: a full queue drops, and every drop costs a peer
//! a retransmission timeout (report 0011).
//!
//! Lives on: the reader and the grace period have one thread each; a [`ShardGate`] is on the thread of its shard.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam::queue::SegQueue;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::news::{GateStats, News};
use crate::queue::{Queue, Segment, Verdicts, Waiting};
use crate::rules::{Ports, Rules};
use crate::sys;
use crate::table::{ConnName, Table};
use crate::tuple::Tuple;

/// Segments that the reader judges before it looks at the batches of the shards.
const SEGMENTS_PER_TURN: usize = 1_024;

/// Segments and grace periods that one shard has not taken yet, at most. Beyond them the reader drops segments, and
/// their peers send them again.
const NEWS_MAX: usize = 65_536;

/// Longest sleep of the reader: connections that went live leave its table after this at the latest.
const READER_SLEEP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Interval at which a reader that waits for the shards looks whether the gate is closed.
const START_SLEEP: std::time::Duration = std::time::Duration::from_millis(100);

/// Order of a shard to the reader.
enum Order {
    SetApart { shard: u16, batch: Vec<(Tuple, ConnName)> },
    Live { shard: u16, tuple: Tuple, conn: ConnName },
    Attached { shard: u16, held: Vec<(Tuple, ConnName)> },
}

type Wake = Box<dyn Fn() + Send + Sync>;

/// Lane from the gate to one shard.
#[derive(Default)]
struct Lane {
    news: SegQueue<News>,
    wake: OnceLock<Wake>,
}

impl Lane {
    /// Returns false if the lane is full.
    fn push(&self, news: News) -> bool {
        let has_room = self.news.len() < NEWS_MAX;
        if has_room {
            self.news.push(news);
        }
        has_room
    }

    fn wake(&self) {
        if let Some(wake) = self.wake.get() {
            wake();
        }
    }
}

struct Shared {
    queue: Queue,
    lanes: Vec<Lane>,
    stats: GateStats,
    /// Wakes the reader.
    event: OwnedFd,
    is_over: AtomicBool,
    /// The process ends, and another one will accept.
    is_ending: AtomicBool,
}

/// The open gate. Dropping it ends its threads; the packet rules go, unless they persist.
pub struct Gate {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    rules: Option<Rules>,
}

impl Gate {
    /// Opens the gate for segments with these TCP ports in the network namespace of the calling thread, with one handle
    /// per shard. No segment is judged before every shard has attached. With `persist` the rules outlive the process.
    ///
    /// # Errors
    /// As [`Queue::open`] and [`Rules::install`].
    pub fn open(ports: Ports<'_>, queue: u16, shards: u16, persist: bool) -> io::Result<(Gate, Vec<ShardGate>)> {
        Gate::open_with_grace(ports, queue, shards, persist, sys::grace_period)
    }

    /// As [`Gate::open`], with `grace` in the place of the grace period: it returns when no receive path of the kernel
    /// that began before the call goes on.
    ///
    /// # Errors
    /// As [`Gate::open`].
    pub fn open_with_grace(
        ports: Ports<'_>,
        queue: u16,
        shards: u16,
        persist: bool,
        grace: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> io::Result<(Gate, Vec<ShardGate>)> {
        let (number, queue) = (queue, Queue::open(queue)?);
        let shared = Arc::new(Shared::new(queue, shards)?);
        let (orders, inbox) = channel();
        let (to_grace, batches) = channel();
        let gates = (0..shards).map(|shard| ShardGate {
            shard,
            shared: Arc::clone(&shared),
            orders: orders.clone(),
            verdicts: Verdicts::default(),
        });
        let gates = gates.collect();
        let reader = Reader::new(&shared, inbox, to_grace);
        let waiting = Arc::clone(&shared);
        let threads = vec![
            thread::Builder::new().name("gate-reader".to_owned()).spawn(move || reader.run())?,
            thread::Builder::new()
                .name("gate-grace".to_owned())
                .spawn(move || wait_for_grace(&waiting, &batches, grace))?,
        ];
        // The queue is there: from now on the kernel does not drop.
        let mut gate = Gate { shared, threads, rules: None };
        gate.rules = Some(Rules::install(ports, number, persist)?);
        Ok((gate, gates))
    }

    /// Removes the rules, also if they would persist: no next process takes the frozen connections over. Rules that
    /// persist make the kernel drop what comes to these ports until then.
    pub fn remove_rules(mut self) {
        if let Some(rules) = self.rules.take() {
            rules.remove();
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.ring();
        for thread in self.threads.drain(..) {
            // Both end without a panic, or have aborted the process.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn new(queue: Queue, shards: u16) -> io::Result<Shared> {
        Ok(Shared {
            queue,
            lanes: (0..shards).map(|_| Lane::default()).collect(),
            stats: GateStats::default(),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            is_over: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
        })
    }

    /// Wakes the reader.
    fn ring(&self) {
        // It fails when 2^64 wakes wait: the reader wakes anyway.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }
}

/// The gate as a shard sees it.
pub struct ShardGate {
    shard: u16,
    shared: Arc<Shared>,
    orders: Sender<Order>,
    verdicts: Verdicts,
}

impl ShardGate {
    /// Calls `wake` whenever there is news, on a thread of the gate. Once, before the first batch. Segments of the
    /// connections in `held`, which an earlier process has frozen, are held from the first one on.
    pub fn attach(&self, held: Vec<(Tuple, ConnName)>, wake: impl Fn() + Send + Sync + 'static) {
        let attached = self.lane().wake.set(Box::new(wake));
        assert!(attached.is_ok(), "a shard attaches once");
        self.order(Order::Attached { shard: self.shard, held });
    }

    fn lane(&self) -> &Lane {
        &self.shared.lanes[usize::from(self.shard)]
    }

    /// Takes the next piece of news.
    pub fn next(&self) -> Option<News> {
        self.lane().news.pop()
    }

    /// Returns the counts of the gate, over all shards.
    pub fn stats(&self) -> &GateStats {
        &self.shared.stats
    }

    /// Returns true if there is news.
    pub fn has_news(&self) -> bool {
        !self.lane().news.is_empty()
    }

    /// Holds the segments of these connections from now on. Their sockets have no live mark any more. A shard has one
    /// batch at a time: until [`News::GraceOver`].
    pub fn set_apart(&self, batch: Vec<(Tuple, ConnName)>) {
        self.order(Order::SetApart { shard: self.shard, batch });
        self.shared.ring();
    }

    /// Holds the segments of this connection no more: it has a live socket again, or has ended.
    pub fn live(&self, tuple: Tuple, conn: ConnName) {
        self.order(Order::Live { shard: self.shard, tuple, conn });
    }

    fn order(&self, order: Order) {
        // The reader is gone: so is every frozen connection.
        let _ = self.orders.send(order);
    }

    /// Lets a segment in with the next [`ShardGate::send_verdicts`].
    pub fn accept(&mut self, segment: Segment) {
        self.shared.queue.accept(segment.id, &mut self.verdicts);
        self.send_if_full();
    }

    /// Drops a segment with the next [`ShardGate::send_verdicts`]; the peer sends it again.
    pub fn drop(&mut self, segment: Segment) {
        self.shared.queue.drop(segment.id, &mut self.verdicts);
        self.send_if_full();
    }

    fn send_if_full(&mut self) {
        if self.verdicts.is_full() {
            self.send_verdicts();
        }
    }

    /// Keeps new connections waiting for the next process from now on: their SYNs are dropped, and sent again.
    pub fn accept_no_more(&self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
    }

    /// Sends the verdicts. When it returns, the sockets have the accepted segments.
    pub fn send_verdicts(&mut self) {
        self.shared.send(&mut self.verdicts);
    }
}

impl Shared {
    fn send(&self, verdicts: &mut Verdicts) {
        // It fails for want of memory only: the verdicts are sent with the next ones.
        let _ = self.queue.send(verdicts);
    }
}

struct Reader {
    shared: Arc<Shared>,
    table: Table,
    inbox: Receiver<Order>,
    /// Shards whose batch may wait for its grace period.
    to_grace: Sender<u16>,
    /// Shards whose batch is in the table, and the queue was not empty since.
    waiting: Vec<u16>,
    /// Shards that have attached.
    attached: usize,
}

impl Reader {
    fn new(shared: &Arc<Shared>, inbox: Receiver<Order>, to_grace: Sender<u16>) -> Reader {
        let (table, waiting) = (Table::default(), Vec::new());
        Reader { shared: Arc::clone(shared), table, inbox, to_grace, waiting, attached: 0 }
    }

    fn run(mut self) {
        let mut buffer = vec![0; 1 << 14];
        let mut verdicts = Verdicts::default();
        let shared = Arc::clone(&self.shared);
        // An error would be a socket that is no socket.
        let mut next =
            || shared.queue.next(&mut buffer).unwrap_or_else(|error| panic!("the packet queue failed: {error}"));
        // Segments that came before wait in the queue of the kernel.
        while self.attached < self.shared.lanes.len() && !self.shared.is_over.load(Ordering::Acquire) {
            if let Ok(order) = self.inbox.recv_timeout(START_SLEEP) {
                self.obey(order);
            }
        }
        while !self.shared.is_over.load(Ordering::Acquire) {
            if self.turn(&mut verdicts, &mut next) {
                self.sleep();
            }
        }
    }

    /// Judges segments, reads the orders of the shards, and passes their batches on if the queue was empty. Returns
    /// true if it was.
    fn turn(&mut self, verdicts: &mut Verdicts, next: &mut impl FnMut() -> Waiting) -> bool {
        let was_empty = self.judge(verdicts, next);
        self.shared.send(verdicts);
        self.read_orders();
        if was_empty {
            for shard in self.waiting.drain(..) {
                // The grace thread ends after this one.
                let _ = self.to_grace.send(shard);
            }
        }
        was_empty
    }

    /// Judges a number of segments. Returns true if no more wait.
    fn judge(&mut self, verdicts: &mut Verdicts, next: &mut impl FnMut() -> Waiting) -> bool {
        let Reader { shared, table, .. } = self;
        // One bit for each of 256 shards.
        let mut to_wake = [0u64; 4];
        let mut is_empty = false;
        for _ in 0..SEGMENTS_PER_TURN {
            let count = |counter: &AtomicU64| {
                counter.fetch_add(1, Ordering::Relaxed);
            };
            let id = match next() {
                Waiting::Nothing => {
                    is_empty = true;
                    break;
                }
                Waiting::Segment(segment) => match table.find(segment.tuple) {
                    None => {
                        count(&shared.stats.judged);
                        count(&shared.stats.unknown);
                        let begins = segment.syn && segment.acknowledged.is_none();
                        if begins && shared.is_ending.load(Ordering::Relaxed) {
                            shared.queue.drop(segment.id, verdicts);
                        } else {
                            shared.queue.accept(segment.id, verdicts);
                        }
                        continue;
                    }
                    Some((shard, conn)) => {
                        let lane = &shared.lanes[usize::from(shard)];
                        if lane.push(News::Segment(conn, segment, Instant::now())) {
                            count(&shared.stats.judged);
                            to_wake[usize::from(shard) / 64] |= 1 << (shard % 64);
                            continue;
                        }
                        segment.id
                    }
                },
                Waiting::Unreadable(id) => id,
            };
            count(&shared.stats.judged);
            count(&shared.stats.dropped);
            shared.queue.drop(id, verdicts);
        }
        for (at, lane) in shared.lanes.iter().enumerate() {
            if to_wake[at / 64] & 1 << (at % 64) != 0 {
                lane.wake();
            }
        }
        is_empty
    }

    fn read_orders(&mut self) {
        while let Ok(order) = self.inbox.try_recv() {
            self.obey(order);
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::SetApart { shard, batch } => {
                self.hold(shard, batch);
                self.waiting.push(shard);
            }
            Order::Live { shard, tuple, conn } => self.table.remove(shard, tuple, conn),
            Order::Attached { shard, held } => {
                self.hold(shard, held);
                self.attached += 1;
            }
        }
    }

    fn hold(&mut self, shard: u16, conns: Vec<(Tuple, ConnName)>) {
        for (tuple, conn) in conns {
            self.table.insert(shard, tuple, conn);
        }
    }

    /// Sleeps until a segment comes, or an order.
    fn sleep(&self) {
        if !self.waiting.is_empty() {
            return;
        }
        let queue = self.shared.queue.socket().as_fd();
        let mut fds = [PollFd::from_borrowed_fd(queue, PollFlags::IN), PollFd::new(&self.shared.event, PollFlags::IN)];
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&READER_SLEEP));
        let _ = rustix::io::read(&self.shared.event, &mut [0; 8]);
    }
}

/// Waits for one grace period after the other while there are batches. Ends with the reader.
fn wait_for_grace(shared: &Shared, batches: &Receiver<u16>, mut grace: impl FnMut() -> io::Result<()>) {
    while let Ok(first) = batches.recv() {
        let shards: Vec<u16> = std::iter::once(first).chain(batches.try_iter()).collect();
        // The self-test has waited for one: it takes no argument that could be wrong.
        grace().unwrap_or_else(|error| panic!("membarrier failed: {error}"));
        for shard in shards {
            let lane = &shared.lanes[usize::from(shard)];
            // Not bounded: a shard has one batch.
            lane.news.push(News::GraceOver);
            lane.wake();
        }
    }
}
