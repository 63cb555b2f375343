//! The one task that calls other nodes: takes what the shards ask, finds out of which node, and tells the [`Desk`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use machine::stats::{Board, Counters as _};
use machine::{NodeId, PeerOp, PeerReply};
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::calls::PeerCalls;
use super::desk::{Desk, Ended};
use super::lane::Job;
use super::node::{NODES_MAX, Node, WAITING_MAX};
use super::numbers::{CALL_TIMES, PeerNumbers, Showcase, Shown};
use super::owed::Debt;
use protocol::wire::url::HttpUrl;

/// Task that makes the calls. Lives on the island.
pub(in crate::island) struct Caller {
    nodes: HashMap<Box<str>, Node>,
    desk: Desk,
    board: Arc<Board>,
    showcase: Arc<Showcase>,
}

impl Caller {
    pub fn new(calls: PeerCalls) -> Caller {
        let desk = Desk::new(calls);
        let board = Arc::new(Board::new(&[PeerNumbers::MEANINGS]).with_histograms(&[CALL_TIMES]));
        Caller { nodes: HashMap::new(), desk, board, showcase: Arc::default() }
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Returns the state of each node, for operators.
    pub fn showcase(&self) -> Arc<Showcase> {
        Arc::clone(&self.showcase)
    }

    /// Makes calls for ever.
    ///
    /// # Errors
    /// If the operating system refuses to listen for the bell.
    pub async fn run(mut self) -> io::Result<()> {
        let peers = Arc::clone(&self.desk.calls.peers);
        let ear = tokio::net::UnixStream::from_std(peers.ear.try_clone()?)?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                job = peers.pop(&ear) => {
                    self.desk.listen();
                    self.take(job?);
                    for _ in 1..JOBS_AT_ONCE {
                        let Some(job) = peers.try_pop() else { break };
                        self.take(job);
                    }
                }
                // A task is never cancelled, and a panic ends the process.
                Some(Ok(ended)) = self.desk.tasks.join_next() => {
                    self.ended(ended);
                    for _ in 1..JOBS_AT_ONCE {
                        let Some(Ok(ended)) = self.desk.tasks.try_join_next() else { break };
                        self.ended(ended);
                    }
                }
                _ = tick.tick() => self.tick(),
            }
        }
    }

    /// Takes a call of a shard, or a notification that is owed from the start.
    fn take(&mut self, job: Job) {
        let now = Instant::now();
        let to = Arc::clone(to_of(&job.op));
        if !self.nodes.contains_key(&to.url) {
            self.meet(&to, now);
        }
        let Some(node) = self.nodes.get_mut(&to.url) else {
            self.desk.numbers.peer_owed_dropped += u64::from(Debt::of(&job.op).is_some());
            return self.desk.reply(job, PeerReply::Unreachable);
        };
        (node.wanted, node.boot) = (now, to.boot);
        if node.is_over(to.boot) {
            self.desk.reply(job, PeerReply::NotHere);
        } else if node.is_open() || node.waiting.len() >= WAITING_MAX {
            self.desk.unreachable(node, job, now);
        } else {
            node.waiting.push_back(job);
            self.desk.pump(&to.url, node, now);
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
            let silent = self.nodes.iter().filter(|(_, node)| node.is_open() && node.under_way == 0);
            let Some(url) = silent.min_by_key(|(_, node)| node.wanted).map(|(url, _)| url.clone()) else { return };
            let owed = self.nodes.remove(&url).map_or(0, |node| node.owed.len());
            self.desk.numbers.peer_owed_dropped += owed as u64;
            self.desk.calls.peers.unsettled.fetch_sub(owed, Ordering::SeqCst);
            tracing::warn!(node = %url, owed, "unreachable peer forgotten; too many peers are known");
        }
        self.nodes.insert(to.url.clone(), Node::new(base, to.boot, now));
    }

    fn ended(&mut self, ended: Ended) {
        let now = Instant::now();
        let (Ended::Called { url, .. } | Ended::Probed { url, .. } | Ended::Looked { url, .. }) = &ended;
        let url = url.clone();
        let Some(node) = self.nodes.get_mut(&url) else { return };
        match ended {
            Ended::Called { job, owed, called: (conn, result), .. } => {
                node.ended(conn, now);
                node.owed_under_way -= usize::from(owed);
                self.desk.called(&url, node, job, result, now);
            }
            Ended::Probed { called: (_, Ok(_)), .. } => {
                if node.answered(now) {
                    tracing::info!(node = %url, owed = node.owed.len(), "peer circuit closed");
                }
            }
            Ended::Probed { .. } => node.circuit.probe_failed(now),
            Ended::Looked { boots, row, buried, .. } => {
                node.looking = false;
                if node.seems_gone(row, self.desk.calls.gone_time, now) {
                    node.looking = true;
                    self.desk.bury(&url, boots, row);
                } else if let Some(row) = row {
                    if buried {
                        self.desk.numbers.peer_runs_gone += 1;
                        tracing::warn!(node = %url, "boot of a silent peer declared over");
                    }
                    self.desk.looked(node, &boots, row);
                }
            }
        }
        self.desk.pump(&url, node, now);
    }

    fn tick(&mut self) {
        let now = Instant::now();
        self.desk.listen();
        for (url, node) in &mut self.nodes {
            self.desk.expire(node, now);
            node.close_idle(now);
            if node.begin_probe(now) {
                self.desk.probe(url, node);
            }
            if node.begin_look(now) {
                self.desk.look(url, node);
            }
            self.desk.pump(url, node, now);
        }
        self.nodes.retain(|_, node| !node.is_forgotten(now));
        self.show();
    }

    fn show(&mut self) {
        let (desk, nodes) = (&mut self.desk, &self.nodes);
        let numbers = &mut desk.numbers;
        numbers.peer_nodes = nodes.len() as u64;
        numbers.peer_circuits_open = nodes.values().filter(|node| node.is_open()).count() as u64;
        numbers.peer_owed = nodes.values().map(|node| (node.owed.len() + node.owed_under_way) as u64).sum();
        numbers.peer_calls_under_way = nodes.values().map(|node| node.under_way as u64).sum();
        numbers.peer_calls_waiting = nodes.values().map(|node| node.waiting.len() as u64).sum();
        let lost = desk.calls.peers.dropped.swap(0, Ordering::Relaxed);
        numbers.peer_owed_dropped += lost;
        numbers.write_to(&self.board, 0);
        self.board.set_histogram(0, &desk.call_times);
        let now = Instant::now();
        let mut all: Vec<Shown> = self.nodes.iter_mut().map(|(url, node)| node.show(url, now)).collect();
        all.sort_by(|a, b| a.state.cmp(&b.state).then_with(|| a.url.cmp(&b.url)));
        *self.showcase.look() = all;
    }
}

/// Makes the calls that are in the lane, for a caller without an island, until all are settled or `within` is over;
/// returns the number of those that are not. Waits; not for a thread that is inside a runtime.
///
/// # Errors
/// If the operating system refuses a runtime.
pub fn settle(calls: PeerCalls, within: Duration) -> io::Result<usize> {
    let peers = Arc::clone(&calls.peers);
    let caller = Caller::new(calls);
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
const JOBS_AT_ONCE: usize = 64;
/// Interval between checks of waits and probes.
const TICK: Duration = Duration::from_millis(100);
