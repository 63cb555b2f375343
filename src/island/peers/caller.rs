//! The one task that calls other nodes. Takes what the shards ask, decides by what is known of the node, spawns one
//! task for each call under way, and answers the shards.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hashbrown::HashMap;
use shards::machine::{NodeId, PeerOp, PeerReply};
use shards::stats::{Board, Counters as _};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, timeout};

use super::PeerCalls;
use super::lane::{Job, Trust};
use super::node::{NODES_MAX, Node, OWED_CALLS_MAX, WAITING_MAX};
use super::numbers::{PeerNumbers, Showcase, Shown};
use super::owed::Debt;
use super::wire::{self, Called, Failure, Speech};
use crate::island::client::{Client, Trouble};
use crate::island::megaphone::random_part;
use crate::store::nodes::NodeRow;
use crate::wire::url::HttpUrl;

/// Who makes the calls. Lives on the island.
pub(in crate::island) struct Caller {
    nodes: HashMap<Box<str>, Node>,
    desk: Desk,
    board: Arc<Board>,
    showcase: Arc<Showcase>,
}

/// Everything of it that is not about one node.
struct Desk {
    calls: PeerCalls,
    client: Arc<Client>,
    /// What number the keys had when they were looked at last, and what they are good for.
    heard: u64,
    speech: Option<Speech>,
    tasks: JoinSet<Ended>,
    numbers: PeerNumbers,
    complained: Option<Instant>,
}

/// A task that has ended. Nodes are named by their URLs.
enum Ended {
    Called { url: Box<str>, job: Job, owed: bool, called: Called },
    Probed { url: Box<str>, called: Called },
    Looked { url: Box<str>, boots: Vec<u64>, row: Option<NodeRow> },
}

impl Caller {
    /// With nothing under way.
    pub fn new(calls: PeerCalls) -> Caller {
        let Trust(client) = calls.trust.clone();
        let desk = Desk {
            calls,
            client,
            heard: 0,
            speech: None,
            tasks: JoinSet::new(),
            numbers: PeerNumbers::default(),
            complained: None,
        };
        let board = Arc::new(Board::new(&[PeerNumbers::MEANINGS]));
        Caller { nodes: HashMap::new(), desk, board, showcase: Arc::default() }
    }

    /// Its numbers.
    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// What it knows of each node.
    pub fn showcase(&self) -> Arc<Showcase> {
        Arc::clone(&self.showcase)
    }

    /// Makes calls for ever.
    ///
    /// # Errors
    /// When the operating system refuses to listen for the bell.
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
                // Nobody cancels a task, and a panic ends the process.
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

    /// A call of a shard, or word that is owed from the start.
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

    /// Gets to know a node, if it has a URL that can be called and there is room. Those that nobody needs make room;
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
            tracing::warn!(node = %url, owed, "a node that does not answer is forgotten, since there are too many");
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
                    tracing::info!(node = %url, owed = node.owed.len(), "a node answers again");
                }
            }
            Ended::Probed { .. } => node.probe_failed(now),
            Ended::Looked { boots, row, .. } => {
                node.looking = false;
                if let Some(row) = row {
                    self.desk.looked(node, &boots, row);
                }
            }
        }
        self.desk.pump(&url, node, now);
    }

    /// What time brings about.
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
        let now = Instant::now();
        let mut all: Vec<Shown> = self.nodes.iter_mut().map(|(url, node)| node.show(url, now)).collect();
        all.sort_by(|a, b| a.state.cmp(&b.state).then_with(|| a.url.cmp(&b.url)));
        *self.showcase.look() = all;
    }
}

impl Desk {
    fn listen(&mut self) {
        if let Some((heard, said)) = self.calls.peers.said_since(self.heard) {
            (self.heard, self.speech) = (heard, Speech::new(&said.keys));
            if let Some(Trust(client)) = said.trust {
                self.client = client;
            }
        }
    }

    /// Tells who asked.
    fn reply(&mut self, job: Job, reply: PeerReply) {
        self.calls.peers.unsettled.fetch_sub(1, Ordering::SeqCst);
        match job.back {
            Some((outbox, ticket)) => {
                self.numbers.replied(&job.op, reply);
                outbox.push(ticket, reply);
            }
            None => self.numbers.peer_owed_answered += u64::from(matches!(reply, PeerReply::Done | PeerReply::NotHere)),
        }
    }

    /// As [`Desk::fail`], for a call that was never sent.
    fn unreachable(&mut self, node: &mut Node, job: Job, now: Instant) {
        node.tally.unreachable();
        self.fail(node, job, PeerReply::Unreachable, now);
    }

    /// Tells who asked that nobody answered; a notification stays owed.
    fn fail(&mut self, node: &mut Node, job: Job, reply: PeerReply, now: Instant) {
        if let Some(debt) = Debt::of(&job.op) {
            let before = node.owed.len();
            let forgotten = node.owed.insert(debt);
            self.numbers.peer_owed_dropped += u64::from(forgotten.is_some());
            self.calls.peers.unsettled.fetch_add(node.owed.len() - before, Ordering::SeqCst);
            if node.owed.is_due(now) {
                node.owed.failed(now, random_part());
            }
        }
        self.reply(job, reply);
    }

    /// Makes as many of the calls that wait as there are connections for.
    fn pump(&mut self, url: &str, node: &mut Node, now: Instant) {
        while !node.is_open() && node.under_way < self.calls.connections_max {
            let room = OWED_CALLS_MAX.min(self.calls.connections_max.div_ceil(2));
            if node.owed.is_due(now) && node.owed_under_way < room {
                let Some(debt) = node.owed.take() else { return };
                let job = Job { op: debt.to_op(), back: None, since: std::time::Instant::now() };
                self.start(url, node, job, true, now);
                continue;
            }
            let Some(job) = node.waiting.pop_front() else { return };
            self.start(url, node, job, false, now);
        }
    }

    fn start(&mut self, url: &str, node: &mut Node, job: Job, owed: bool, now: Instant) {
        let request = self.speech.as_ref().and_then(|speech| speech.request(&job.op, &node.base));
        let Some(request) = request else {
            // The machine stores it then, as it does whatever cannot be handed over; a notification stays owed until
            // there are keys to say it with.
            return self.unreachable(node, job, now);
        };
        let kept = node.take_idle();
        self.numbers.peer_connects += u64::from(kept.is_none());
        let within = (self.calls.connect_timeout, self.calls.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&node.base), url.into());
        node.under_way += 1;
        node.owed_under_way += usize::from(owed);
        self.tasks.spawn(async move {
            let called = wire::call(client, base, request, kept, within).await;
            Ended::Called { url, job, owed, called }
        });
    }

    /// What a call came to.
    fn called(&mut self, url: &str, node: &mut Node, job: Job, result: Result<wire::Answer, Failure>, now: Instant) {
        let (reply, why) = match result {
            Ok(answer) => {
                let took = job.since.elapsed();
                self.numbers.answered(took);
                node.tally.answered(answer.status.as_u16(), took);
                node.answered(now);
                let reply = answer.reply(&job.op);
                if reply.is_none() {
                    self.numbers.peer_refused += 1;
                    self.complain(url, answer.status.as_u16(), now);
                }
                match reply.unwrap_or(PeerReply::Unreachable) {
                    PeerReply::Unreachable => return self.fail(node, job, PeerReply::Unreachable, now),
                    reply => {
                        if let Some(debt) = Debt::of(&job.op) {
                            let owed = usize::from(node.owed.remove(&debt));
                            self.calls.peers.unsettled.fetch_sub(owed, Ordering::SeqCst);
                            node.owed.answered(now);
                        }
                        return self.reply(job, reply);
                    }
                }
            }
            Err(Failure::Connect(trouble)) => {
                node.tally.unreachable();
                self.numbers.peer_connects_failed += 1;
                self.numbers.peer_connects_untrusted += u64::from(matches!(trouble, Trouble::Untrusted(_)));
                (PeerReply::Unreachable, trouble)
            }
            Err(Failure::NoAnswer(why)) => {
                node.tally.no_answer();
                (PeerReply::NoAnswer, Trouble::Connect(why.to_owned()))
            }
        };
        self.fail(node, job, reply, now);
        if node.failed(now) {
            self.numbers.peer_circuits_opened += 1;
            tracing::warn!(node = %url, %why, "a node does not answer; calls of it fail until it does");
            for job in std::mem::take(&mut node.waiting) {
                self.unreachable(node, job, now);
            }
        }
    }

    /// A status that is nobody's plan: at most one line a minute.
    fn complain(&mut self, url: &str, status: u16, now: Instant) {
        if self.complained.is_none_or(|at| now.duration_since(at) >= QUIET) {
            self.complained = Some(now);
            let why = match status {
                401 => "the first of our node.keys is none of its",
                400 => "it cannot read what we say: endpoint.crypto_keys or versions differ",
                _ => "node.url does not lead to a node of this cluster, or versions differ",
            };
            tracing::error!(node = %url, status, "a node refuses our calls: {why}");
        }
    }

    /// Ends what has waited for a connection for too long.
    fn expire(&mut self, node: &mut Node, now: Instant) {
        while node.waiting.front().is_some_and(|job| job.since.elapsed() >= self.calls.request_timeout) {
            let Some(job) = node.waiting.pop_front() else { return };
            self.unreachable(node, job, now);
        }
    }

    fn probe(&mut self, url: &str, node: &mut Node) {
        let within = (self.calls.connect_timeout, self.calls.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&node.base), url.into());
        let Some(request) = wire::probe(&base) else { return };
        self.tasks.spawn(async move {
            let called = wire::call(client, base, request, None, within).await;
            Ended::Probed { url, called }
        });
    }

    /// Looks up which run of the node is the last. Only of runs that are known by now can it say that they are over.
    fn look(&mut self, url: &str, node: &Node) {
        let mut boots: Vec<u64> = node.owed.boots().chain([node.boot]).collect();
        boots.sort_unstable();
        boots.dedup();
        let (row, url) = (self.calls.nodes.look(url), Box::from(url));
        self.tasks.spawn(async move {
            let row = timeout(LOOK_TIME_MAX, row).await.ok().flatten();
            Ended::Looked { url, boots, row }
        });
    }

    fn looked(&mut self, node: &mut Node, boots: &[u64], row: NodeRow) {
        boots.iter().filter(|boot| row.is_over(**boot)).for_each(|boot| node.set_over(*boot));
        let gone = node.owed.forget(|boot| boots.contains(&boot) && row.is_over(boot));
        self.numbers.peer_owed_over += gone as u64;
        self.calls.peers.unsettled.fetch_sub(gone, Ordering::SeqCst);
        if gone > 0 {
            tracing::info!(node = %node.base, owed = gone, "a run of a node is over; what it was owed is dropped");
        }
    }
}

/// Makes the calls that are in the lane, for whoever has no island, until all are settled or `within` is over; returns
/// how many are not. Waits; not for a thread that is inside a runtime.
///
/// # Errors
/// When the operating system refuses a runtime.
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
/// How often waits and probes are looked at.
const TICK: Duration = Duration::from_millis(100);
/// For one look at a node's row.
const LOOK_TIME_MAX: Duration = Duration::from_secs(3);
/// After a complaint.
const QUIET: Duration = Duration::from_secs(60);
