//! One pinned thread per shard: start them, talk to them, end them.
//!
//! [`start`] returns when every shard has its rings, its edge and its store; only then do they accept. A shard
//! that panics takes the process with it: its ledgers are in the mapped log, and half a server is worse than a
//! restart.

use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use crate::mailbox::{Mailbox, Waker, mesh};
use crate::ports::{Edge, Hibernation, Ledger, Listening, Peers, Store, Upstreams, Wake};
use crate::process_clock::ProcessClock;
use crate::reactor::{CallerRules, ControlMessage, ControlQueue, Machine, Parts, PlaneLimits, Reactor, ring_uses};
use crate::ring::{Fence, PlaneKind, ProbeError, raise_limits};
use crate::tls::Tls;
use machine::ids::ShardId;
use machine::stats::Board;
use machine::{MachineConfig, ShardMachine};

/// Parts of one shard. The closures run on the shard's thread.
pub struct ShardSetup<E: Edge> {
    pub machine: MachineConfig,
    /// The core it is pinned to; several shards may share one. `None`: wherever the kernel likes.
    pub core: Option<usize>,
    /// The time of the process; all shards have the same one.
    pub clock: Arc<ProcessClock>,
    pub limits: PlaneLimits,
    pub listeners: Vec<Listening>,
    pub tls: Box<dyn FnOnce() -> Box<dyn Tls> + Send>,
    pub callers: CallerRules,
    /// `None`: sessions are never frozen.
    pub hibernation: Option<Hibernation>,
    pub edge: Box<dyn FnOnce() -> E + Send>,
    /// Makes its handle to storage. The waker is rung when a reply can be collected.
    pub store: Box<dyn FnOnce(Arc<Waker>) -> Box<dyn Store> + Send>,
    /// Makes its handle to other nodes. The waker is rung as that of the store.
    pub peers: Box<dyn FnOnce(Arc<Waker>) -> Box<dyn Peers> + Send>,
    /// Makes its handle to the services of bridged users. The waker is rung as that of the store.
    pub upstreams: Box<dyn FnOnce(Arc<Waker>) -> Box<dyn Upstreams> + Send>,
    pub ledger: Box<dyn FnOnce() -> Box<dyn Ledger> + Send>,
    /// Hands wake-up calls to the part of the process that makes them.
    pub wake: Wake,
}

/// Reason for a failed start of the shards; one sentence that says what to do.
#[derive(Debug)]
pub enum StartError {
    Kernel(ProbeError),
    /// The core does not exist or is not allowed.
    Core(usize, String),
    /// The last step before the shards begin has failed.
    Preparation(String),
    /// The thread of this shard could not be made, or ended at once.
    Thread(ShardId, String),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Kernel(error) => error.fmt(f),
            StartError::Core(core, error) => {
                write!(f, "no shard can be pinned to core {core} ({error}): choose shards.cores from /proc/cpuinfo")
            }
            StartError::Preparation(error) => f.write_str(error),
            StartError::Thread(shard, error) => write!(f, "shard {} could not start: {error}", shard.0),
        }
    }
}

impl std::error::Error for StartError {}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> StartError {
        StartError::Kernel(ProbeError::of(&error))
    }
}

/// Result of one shard.
#[derive(Clone, Copy, Debug)]
pub struct ShardReport {
    pub shard: ShardId,
    /// Its drain was complete: every session told, every ledger saved.
    pub drained: bool,
    /// Connections that were still there.
    pub connections: u32,
}

/// The running shards.
pub struct Shards<E: Edge> {
    handle: ShardsHandle<E>,
    threads: Vec<(ShardId, JoinHandle<u32>)>,
}

/// Talks to the running shards, from any thread but theirs.
pub struct ShardsHandle<E: Edge> {
    lanes: Arc<[Arc<ControlQueue<E>>]>,
    boards: Arc<[Arc<Board>]>,
    drain: Arc<DrainDeadline>,
}

impl<E: Edge> Clone for ShardsHandle<E> {
    fn clone(&self) -> ShardsHandle<E> {
        ShardsHandle {
            lanes: Arc::clone(&self.lanes),
            boards: Arc::clone(&self.boards),
            drain: Arc::clone(&self.drain),
        }
    }
}

/// Deadline of a drain, once there is one.
#[derive(Default)]
struct DrainDeadline {
    deadline: Mutex<Option<Instant>>,
    begun: Condvar,
}

impl DrainDeadline {
    fn deadline(&self) -> MutexGuard<'_, Option<Instant>> {
        // Nothing that holds it can panic between two states.
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Interval between checks of a drain.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Channels of a starting shard: its result, the permission to go on, and the end of the start.
struct StartupSync {
    ready: SyncSender<Result<(), StartError>>,
    go: Receiver<()>,
    over: Arc<Barrier>,
}

/// Starts one thread per setup, in the order of their shard ids. Raises the soft limits on descriptors
/// and locked memory to the hard ones. Calls `ready` with the fence of the rings when every shard is ready: no ring is
/// made after that, and no shard has begun.
pub fn start<E: Edge>(
    setups: Vec<ShardSetup<E>>,
    ready: impl FnOnce(Fence) -> io::Result<()>,
) -> Result<Shards<E>, StartError> {
    start_with(setups, ready, ShardMachine::new)
}

/// As [`start`], with machines made by `make`.
pub(crate) fn start_with<E: Edge, M: Machine>(
    setups: Vec<ShardSetup<E>>,
    ready: impl FnOnce(Fence) -> io::Result<()>,
    make: impl FnOnce(MachineConfig) -> M + Clone + Send + 'static,
) -> Result<Shards<E>, StartError> {
    raise_limits();
    let fence = fence(&setups);
    let over = Arc::new(Barrier::new(setups.len()));
    let mailboxes = mesh(setups.len() as u16)?;
    let (mut lanes, mut boards, mut starting) = (Vec::new(), Vec::new(), Vec::new());
    for (setup, mailbox) in setups.into_iter().zip(mailboxes) {
        let shard = mailbox.shard();
        assert!(setup.machine.shard == shard, "setups come in the order of their shards");
        let lane = Arc::new(ControlQueue::new(Arc::clone(mailbox.waker())));
        let board = Arc::new(Reactor::<E, M>::board());
        let (ready, is_ready) = sync_channel(1);
        let (say_go, go) = sync_channel(1);
        let handshake = StartupSync { ready, go, over: Arc::clone(&over) };
        let life = ShardThread { setup, mailbox, control: Arc::clone(&lane), board: Arc::clone(&board), handshake };
        let make = make.clone();
        let thread = std::thread::Builder::new().name(format!("shard{}", shard.0)).spawn(move || life.live(make));
        let thread = thread.map_err(|error| StartError::Thread(shard, error.to_string()))?;
        lanes.push(lane);
        boards.push(board);
        starting.push((shard, thread, is_ready, say_go));
    }
    let mut threads = Vec::with_capacity(starting.len());
    let mut goes = Vec::with_capacity(starting.len());
    for (shard, thread, is_ready, say_go) in starting {
        let ended = |_| StartError::Thread(shard, "its thread ended at once".to_owned());
        is_ready.recv().map_err(ended)??;
        threads.push((shard, thread));
        goes.push(say_go);
    }
    ready(fence).map_err(|error| StartError::Preparation(error.to_string()))?;
    for go in goes {
        // A shard that is gone has aborted the process.
        let _ = go.send(());
    }
    let handle = ShardsHandle { lanes: lanes.into(), boards: boards.into(), drain: Arc::default() };
    Ok(Shards { handle, threads })
}

/// Returns the fence of the rings of these shards, each of which has the same uses for them.
fn fence<E: Edge>(setups: &[ShardSetup<E>]) -> Fence {
    let of_shard = |setup: &ShardSetup<E>| setup.limits.fence(ring_uses(&setup.callers, setup.hibernation.as_ref()));
    let both = |a: Fence, b: Fence| Fence { rings: a.rings + b.rings, ..b };
    setups.iter().map(of_shard).reduce(both).unwrap_or_default()
}

/// Pins this thread to a core.
fn pin(core: usize) -> Result<(), StartError> {
    let refused = |error: &dyn fmt::Display| StartError::Core(core, error.to_string());
    if core >= CpuSet::MAX_CPU {
        return Err(refused(&format_args!("cores are numbered below {}", CpuSet::MAX_CPU)));
    }
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).map_err(|error| refused(&error))
}

/// All that a shard's thread needs.
struct ShardThread<E: Edge> {
    setup: ShardSetup<E>,
    mailbox: Mailbox,
    control: Arc<ControlQueue<E>>,
    board: Arc<Board>,
    handshake: StartupSync,
}

impl<E: Edge> ShardThread<E> {
    /// Returns the number of connections that were left.
    fn live<M: Machine>(self, make: impl FnOnce(MachineConfig) -> M) -> u32 {
        let _doom = AbortOnPanic(self.mailbox.shard());
        let ShardThread { setup, mailbox, control, board, handshake } = self;
        if let Err(error) = setup.core.map_or(Ok(()), pin) {
            let _ = handshake.ready.send(Err(error));
            return 0;
        }
        let waker = Arc::clone(mailbox.waker());
        let (shard, kind) = (mailbox.shard(), setup.limits.kind);
        let uses = ring_uses(&setup.callers, setup.hibernation.as_ref());
        let reactor = Reactor::new(Parts {
            edge: (setup.edge)(),
            machine: make(setup.machine),
            store: (setup.store)(Arc::clone(&waker)),
            peers: (setup.peers)(Arc::clone(&waker)),
            upstreams: (setup.upstreams)(waker),
            ledger: (setup.ledger)(),
            wake: setup.wake,
            mailbox,
            control,
            listeners: setup.listeners,
            tls: (setup.tls)(),
            callers: setup.callers,
            hibernation: setup.hibernation,
            limits: setup.limits,
            uses,
            board,
            clock: setup.clock,
        });
        let mut reactor = match reactor {
            Ok(reactor) => reactor,
            Err(error) => {
                let error = match kind {
                    PlaneKind::Rings => error.into(),
                    PlaneKind::Poll => {
                        StartError::Thread(shard, format!("epoll is refused ({error}); see `murre doctor`"))
                    }
                };
                let _ = handshake.ready.send(Err(error));
                return 0;
            }
        };
        let _ = handshake.ready.send(Ok(()));
        if handshake.go.recv().is_err() {
            // Another shard could not start.
            return 0;
        }
        reactor.run();
        // No ring goes before every shard has stopped sending to it.
        handshake.over.wait();
        reactor.connections()
    }
}

/// Ends the process when the shard panics.
struct AbortOnPanic(ShardId);

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("shard {} has failed: the process ends, and what was accepted is in its ledger", self.0.0);
            std::process::abort();
        }
    }
}

impl<E: Edge> ShardsHandle<E> {
    /// Tells every shard. Waits while a lane is full.
    pub fn control(&self, control: ControlMessage<E>) {
        for lane in self.lanes.iter() {
            lane.send(control.clone());
        }
    }

    /// Begins the drain: `rate` sessions per second are ended on all shards together, and [`Shards::wait`] returns
    /// after `within` at the latest.
    pub fn drain(&self, rate: u32, within: Duration) {
        *self.drain.deadline() = Some(Instant::now() + within);
        self.control(ControlMessage::Drain { rate });
        self.drain.begun.notify_all();
    }

    pub fn boards(&self) -> &[Arc<Board>] {
        &self.boards
    }

    fn is_drained(&self) -> bool {
        self.lanes.iter().all(|lane| lane.is_drained())
    }
}

impl<E: Edge> Shards<E> {
    /// Talks to them from other threads.
    pub fn handle(&self) -> ShardsHandle<E> {
        self.handle.clone()
    }

    /// As [`ShardsHandle::control`].
    pub fn control(&self, control: ControlMessage<E>) {
        self.handle.control(control);
    }

    /// As [`ShardsHandle::drain`].
    pub fn drain(&self, rate: u32, within: Duration) {
        self.handle.drain(rate, within);
    }

    pub fn boards(&self) -> &[Arc<Board>] {
        self.handle.boards()
    }

    /// Begins to freeze every session that can be, so that it goes on in the next process. Nothing is accepted from
    /// then on. [`ShardsHandle::drain`] follows.
    pub fn hibernate(&self) {
        self.control(ControlMessage::Hibernate);
    }

    /// Returns true if every shard has said that it can freeze no more.
    pub fn is_hibernated(&self) -> bool {
        self.handle.lanes.iter().all(|lane| lane.is_hibernated())
    }

    /// Waits for a drain to begin, until every shard has said that it is complete or its time is over; then
    /// ends the shards.
    pub fn wait(self) -> Vec<ShardReport> {
        let mut deadline = self.handle.drain.deadline();
        while !deadline.is_some_and(|at| Instant::now() >= at || self.handle.is_drained()) {
            let begun = &self.handle.drain.begun;
            deadline = match *deadline {
                None => begun.wait(deadline).unwrap_or_else(PoisonError::into_inner),
                Some(_) => begun.wait_timeout(deadline, DRAIN_LOOK).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        drop(deadline);
        self.handle.control(ControlMessage::Stop);
        let lanes = self.handle.lanes;
        let ended = self.threads.into_iter().zip(lanes.iter()).map(|((shard, thread), lane)| ShardReport {
            shard,
            drained: lane.is_drained(),
            // A shard that panicked has aborted the process already.
            connections: thread.join().unwrap_or(0),
        });
        ended.collect()
    }
}
