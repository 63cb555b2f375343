//! The one task that calls other nodes: takes what the shards ask, finds out of which node, and tells the
//! [`Dispatcher`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use machine::stats::{Board, Counters as _};
use machine::{NodeId, PeerOp, PeerReply};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::calls::PeerCalls;
use super::dispatcher::{Dispatcher, TaskResult};
use super::node::{NODES_MAX, PeerNode, WAITING_MAX};
use super::queue::PeerCall;
use super::retry_queue::PendingNotify;
use super::stats::{CALL_TIMES, PeerSnapshot, PeerSnapshots, PeerStats};
use protocol::wire::url::HttpUrl;

/// Task that makes the calls. Lives on the control plane.
pub(in crate::control_plane) struct PeerDriver {
    nodes: HashMap<Box<str>, PeerNode>,
    dispatcher: Dispatcher,
    board: Arc<Board>,
    snapshots: Arc<PeerSnapshots>,
}

impl PeerDriver {
    pub fn new(calls: PeerCalls) -> PeerDriver {
        let dispatcher = Dispatcher::new(calls);
        let board = Arc::new(Board::new(&[PeerStats::MEANINGS]).with_histograms(&[CALL_TIMES]));
        PeerDriver { nodes: HashMap::new(), dispatcher, board, snapshots: Arc::default() }
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Returns the state of each node, for operators.
    pub fn snapshots(&self) -> Arc<PeerSnapshots> {
        Arc::clone(&self.snapshots)
    }

    /// Makes calls for ever.
    ///
    /// # Errors
    /// If the operating system refuses to listen for the bell.
    pub async fn run(mut self) -> io::Result<()> {
        let peers = Arc::clone(&self.dispatcher.calls.peers);
        let bell = peers.lane.bell()?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                call = peers.lane.pop(&bell) => {
                    self.dispatcher.reload_credentials();
                    self.take(call?);
                    for _ in 1..CALLS_AT_ONCE {
                        let Some(call) = peers.lane.try_pop() else { break };
                        self.take(call);
                    }
                }
                // A task is never cancelled, and a panic ends the process.
                Some(Ok(ended)) = self.dispatcher.tasks.join_next() => {
                    self.ended(ended);
                    for _ in 1..CALLS_AT_ONCE {
                        let Some(Ok(ended)) = self.dispatcher.tasks.try_join_next() else { break };
                        self.ended(ended);
                    }
                }
                _ = tick.tick() => self.tick(),
            }
        }
    }

    /// Takes a call of a shard, or a notification that is owed from the start.
    fn take(&mut self, call: PeerCall) {
        let now = Instant::now();
        let to = Arc::clone(to_of(&call.op));
        if !self.nodes.contains_key(&to.url) {
            self.meet(&to, now);
        }
        let Some(node) = self.nodes.get_mut(&to.url) else {
            self.dispatcher.stats.peer_owed_dropped += u64::from(PendingNotify::of(&call.op).is_some());
            return self.dispatcher.reply(call, PeerReply::Unreachable);
        };
        (node.last_requested, node.boot) = (now, to.boot);
        if node.is_over(to.boot) {
            self.dispatcher.reply(call, PeerReply::NotHere);
        } else if node.is_open() || node.waiting.len() >= WAITING_MAX {
            self.dispatcher.unreachable(node, call, now);
        } else {
            node.waiting.push_back(call);
            self.dispatcher.start_queued_calls(&to.url, node, now);
        }
    }

    /// Gets to know a node, if it has a URL that can be called and there is room. Nodes that are not needed make room;
    /// else the one that does not answer and was wanted longest ago, with what it is owed: a node that is gone for good
    /// and did not say so would keep its place for ever.
    fn meet(&mut self, to: &NodeId, now: Instant) {
        let Some(base) = HttpUrl::parse(&to.url) else { return };
        if self.nodes.len() >= NODES_MAX {
            self.nodes.retain(|_, node| node.is_needed());
        }
        if self.nodes.len() >= NODES_MAX {
            let silent = self.nodes.iter().filter(|(_, node)| node.is_open() && node.in_flight == 0);
            let Some(url) = silent.min_by_key(|(_, node)| node.last_requested).map(|(url, _)| url.clone()) else {
                return;
            };
            let owed = self.nodes.remove(&url).map_or(0, |node| node.retry_queue.len());
            self.dispatcher.stats.peer_owed_dropped += owed as u64;
            self.dispatcher.calls.peers.lane.unsettled.fetch_sub(owed, Ordering::SeqCst);
            tracing::warn!(node = %url, owed, "unreachable peer forgotten; too many peers are known");
        }
        self.nodes.insert(to.url.clone(), PeerNode::new(base, to.boot, now));
    }

    fn ended(&mut self, ended: TaskResult) {
        let now = Instant::now();
        let (TaskResult::Called { url, .. } | TaskResult::Probed { url, .. } | TaskResult::Looked { url, .. }) = &ended;
        let url = url.clone();
        let Some(node) = self.nodes.get_mut(&url) else { return };
        match ended {
            TaskResult::Called { call, is_retry, called: (conn, result), .. } => {
                node.ended(conn, now);
                node.retries_in_flight -= usize::from(is_retry);
                self.dispatcher.called(&url, node, call, result, now);
            }
            TaskResult::Probed { called: (_, Ok(_)), .. } => {
                if node.answered(now) {
                    tracing::info!(node = %url, owed = node.retry_queue.len(), "peer circuit closed");
                }
            }
            TaskResult::Probed { .. } => node.circuit.probe_failed(now),
            TaskResult::Looked { boots, row, buried, .. } => {
                node.lookup_running = false;
                if node.seems_gone(row, self.dispatcher.calls.gone_time, now) {
                    node.lookup_running = true;
                    self.dispatcher.bury(&url, boots, row);
                } else if let Some(row) = row {
                    if buried {
                        self.dispatcher.stats.peer_runs_gone += 1;
                        tracing::warn!(node = %url, "boot of a silent peer declared over");
                    }
                    self.dispatcher.looked(node, &boots, row);
                }
            }
        }
        self.dispatcher.start_queued_calls(&url, node, now);
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.dispatcher.reload_credentials();
        for (url, node) in &mut self.nodes {
            self.dispatcher.expire(node, now);
            node.close_idle(now);
            if node.begin_probe(now) {
                self.dispatcher.probe(url, node);
            }
            if node.begin_look(now) {
                self.dispatcher.look(url, node);
            }
            self.dispatcher.start_queued_calls(url, node, now);
        }
        self.nodes.retain(|_, node| !node.is_forgotten(now));
        self.show();
    }

    fn show(&mut self) {
        let (dispatcher, nodes) = (&mut self.dispatcher, &self.nodes);
        let stats = &mut dispatcher.stats;
        stats.peer_nodes = nodes.len() as u64;
        stats.peer_circuits_open = nodes.values().filter(|node| node.is_open()).count() as u64;
        stats.peer_owed = nodes.values().map(|node| (node.retry_queue.len() + node.retries_in_flight) as u64).sum();
        stats.peer_calls_under_way = nodes.values().map(|node| node.in_flight as u64).sum();
        stats.peer_calls_waiting = nodes.values().map(|node| node.waiting.len() as u64).sum();
        let lost = dispatcher.calls.peers.dropped.swap(0, Ordering::Relaxed);
        stats.peer_owed_dropped += lost;
        stats.write_to(&self.board, 0);
        self.board.set_histogram(0, &dispatcher.call_times);
        let now = Instant::now();
        let mut all: Vec<PeerSnapshot> = self.nodes.iter_mut().map(|(url, node)| node.show(url, now)).collect();
        all.sort_by(|a, b| a.state.cmp(&b.state).then_with(|| a.url.cmp(&b.url)));
        *self.snapshots.look() = all;
    }
}

/// Makes the calls that are in the lane, for a caller without a control plane, until all are settled or `within` is
/// over; returns the number of those that are not. Waits; not for a thread that is inside a runtime.
///
/// # Errors
/// If the operating system refuses a runtime.
pub fn settle(calls: PeerCalls, within: Duration) -> io::Result<usize> {
    let peers = Arc::clone(&calls.peers);
    let caller = PeerDriver::new(calls);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut making = tokio::spawn(caller.run());
        let settled = async {
            while peers.unsettled() > 0 {
                tokio::time::sleep(TICK).await;
            }
        };
        tokio::select! {
            _ = timeout(within, settled) => {}
            // It ends only with an error, and what is not settled then is said below.
            _ = &mut making => {}
        }
    });
    Ok(peers.unsettled())
}

fn to_of(op: &PeerOp) -> &Arc<NodeId> {
    let (PeerOp::Push { to, .. } | PeerOp::Notify { to, .. } | PeerOp::Leave { to, .. }) = op;
    to
}

/// Calls taken from the lane before what has ended is looked at, and the reverse.
const CALLS_AT_ONCE: usize = 64;
/// Interval between checks of waits and probes.
const TICK: Duration = Duration::from_millis(100);
