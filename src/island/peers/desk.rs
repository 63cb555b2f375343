//! Dispatcher of the calls of one node at a time: decides by the state of the node, spawns one task for each call under
//! way, and answers the shards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use machine::stats::Histogram;
use machine::{NodeId, PeerReply};
use store::nodes::NodeRow;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::calls::PeerCalls;
use super::lane::{Job, Trust};
use super::node::{Node, OWED_CALLS_MAX};
use super::numbers::PeerNumbers;
use super::owed::Debt;
use super::wire::{self, Called, Failure, Speech};
use crate::island::client::{Client, Trouble};
use crate::island::megaphone::random_part;

/// State that the calls of all nodes share. Lives on the island.
pub(super) struct Desk {
    pub calls: PeerCalls,
    client: Arc<Client>,
    /// Number of the last change of keys and trust that was taken over (`Peers::said_since`).
    heard: u64,
    speech: Option<Speech>,
    /// Calls, probes and looks under way.
    pub tasks: JoinSet<Ended>,
    pub numbers: PeerNumbers,
    /// Time that answered calls took, of all nodes.
    pub call_times: Histogram,
    complained: Option<Instant>,
}

/// A task that has ended. Nodes are named by their URLs.
pub(super) enum Ended {
    Called { url: Box<str>, job: Job, owed: bool, called: Called },
    Probed { url: Box<str>, called: Called },
    Looked { url: Box<str>, boots: Vec<u64>, row: Option<NodeRow>, buried: bool },
}

/// Outcome of a call.
enum Outcome {
    /// The node answered with this reply.
    Settled(PeerReply),
    /// The node answered, and did not do it.
    NotTaken,
    /// There was no answer: the reply for the shard, and the reason.
    Failed(PeerReply, Trouble),
}

impl Desk {
    pub fn new(calls: PeerCalls) -> Desk {
        let Trust(client) = calls.trust.clone();
        Desk {
            calls,
            client,
            heard: 0,
            speech: None,
            tasks: JoinSet::new(),
            numbers: PeerNumbers::default(),
            call_times: Histogram::default(),
            complained: None,
        }
    }

    /// Takes over changed keys and trust.
    pub fn listen(&mut self) {
        if let Some((heard, said)) = self.calls.peers.said_since(self.heard) {
            (self.heard, self.speech) = (heard, Speech::new(&said.keys));
            if let Some(Trust(client)) = said.trust {
                self.client = client;
            }
        }
    }

    /// Sends the reply to the shard.
    pub fn reply(&mut self, job: Job, reply: PeerReply) {
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
    pub fn unreachable(&mut self, node: &mut Node, job: Job, now: Instant) {
        node.tally.unreachable();
        self.fail(node, job, PeerReply::Unreachable, now);
    }

    /// Tells the shard that the call failed; a notification stays owed.
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
    pub fn pump(&mut self, url: &str, node: &mut Node, now: Instant) {
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
            // The machine then stores the message, as any that cannot be handed over; a notification stays owed until
            // there are keys.
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

    /// Handles the end of a call: replies to the shard, and gives up a node that too often has not answered.
    pub fn called(
        &mut self,
        url: &str,
        node: &mut Node,
        job: Job,
        result: Result<wire::Answer, Failure>,
        now: Instant,
    ) {
        match self.outcome(url, node, &job, result, now) {
            Outcome::Settled(reply) => self.settled(node, job, reply, now),
            Outcome::NotTaken => self.fail(node, job, PeerReply::Unreachable, now),
            Outcome::Failed(reply, why) => {
                self.fail(node, job, reply, now);
                self.count_failure(url, node, &why, now);
            }
        }
    }

    /// Reads the result of a call, and notes what it says of the node.
    fn outcome(
        &mut self,
        url: &str,
        node: &mut Node,
        job: &Job,
        result: Result<wire::Answer, Failure>,
        now: Instant,
    ) -> Outcome {
        let answer = match result {
            Ok(answer) => answer,
            Err(Failure::Connect(trouble)) => {
                node.tally.unreachable();
                self.numbers.peer_connects_failed += 1;
                self.numbers.peer_connects_untrusted += u64::from(matches!(trouble, Trouble::Untrusted(_)));
                return Outcome::Failed(PeerReply::Unreachable, trouble);
            }
            Err(Failure::NoAnswer(why)) => {
                node.tally.no_answer();
                return Outcome::Failed(PeerReply::NoAnswer, Trouble::Connect(why.to_owned()));
            }
        };
        let (status, took) = (answer.status.as_u16(), job.since.elapsed());
        self.numbers.answered(took);
        self.call_times.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        node.tally.answered(status, took);
        node.answered(now);
        match answer.reply(&job.op) {
            Some(PeerReply::Unreachable) => Outcome::NotTaken,
            Some(reply) => Outcome::Settled(reply),
            None => {
                self.numbers.peer_refused += 1;
                self.complain(url, status, now);
                Outcome::NotTaken
            }
        }
    }

    /// Sends the node's reply to the shard, and removes the call from those that are owed.
    fn settled(&mut self, node: &mut Node, job: Job, reply: PeerReply, now: Instant) {
        if let Some(debt) = Debt::of(&job.op) {
            let owed = usize::from(node.owed.remove(&debt));
            self.calls.peers.unsettled.fetch_sub(owed, Ordering::SeqCst);
            node.owed.answered(now);
        }
        self.reply(job, reply);
    }

    /// Counts a failure. One too many opens the circuit and fails the calls that wait for the node.
    fn count_failure(&mut self, url: &str, node: &mut Node, why: &Trouble, now: Instant) {
        if !node.failed(now) {
            return;
        }
        self.numbers.peer_circuits_opened += 1;
        tracing::warn!(node = %url, reason = %why, "peer circuit opened");
        for job in std::mem::take(&mut node.waiting) {
            self.unreachable(node, job, now);
        }
    }

    /// Logs an unexpected status, at most one line a minute.
    fn complain(&mut self, url: &str, status: u16, now: Instant) {
        if self.complained.is_none_or(|at| now.duration_since(at) >= QUIET) {
            self.complained = Some(now);
            let why = match status {
                401 => "the first of our node.keys is none of its",
                400 => "it cannot read what we say: endpoint.crypto_keys or versions differ",
                _ => "node.url does not lead to a node of this cluster, or versions differ",
            };
            tracing::error!(node = %url, status, reason = why, "peer call refused");
        }
    }

    /// Ends what has waited for a connection for too long.
    pub fn expire(&mut self, node: &mut Node, now: Instant) {
        while node.waiting.front().is_some_and(|job| job.since.elapsed() >= self.calls.request_timeout) {
            let Some(job) = node.waiting.pop_front() else { return };
            self.unreachable(node, job, now);
        }
    }

    pub fn probe(&mut self, url: &str, node: &mut Node) {
        let within = (self.calls.connect_timeout, self.calls.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&node.base), url.into());
        let Some(request) = wire::probe(&base) else { return };
        self.tasks.spawn(async move {
            let called = wire::call(client, base, request, None, within).await;
            Ended::Probed { url, called }
        });
    }

    /// Looks up which run of the node is the last. Only of runs that are known by now can it say that they are over.
    pub fn look(&mut self, url: &str, node: &Node) {
        let mut boots: Vec<u64> = node.owed.boots().chain([node.boot]).collect();
        boots.sort_unstable();
        boots.dedup();
        let (row, url) = (self.calls.nodes.look(url), Box::from(url));
        self.tasks.spawn(async move {
            let row = timeout(LOOK_TIME_MAX, row).await.ok().flatten();
            Ended::Looked { url, boots, row, buried: false }
        });
    }

    /// Writes that the run of this row is over. Only then it counts as over: the run itself must be able to see it.
    pub fn bury(&mut self, url: &str, boots: Vec<u64>, row: Option<NodeRow>) {
        let Some(row) = row else { return };
        let buried = self.calls.nodes.bury(&NodeId { url: url.into(), boot: row.boot });
        let url = Box::from(url);
        self.tasks.spawn(async move {
            let done = timeout(BURY_TIME_MAX, buried).await.unwrap_or(false);
            let row = done.then_some(NodeRow { left: true, ..row });
            Ended::Looked { url, boots, row, buried: done }
        });
    }

    pub fn looked(&mut self, node: &mut Node, boots: &[u64], row: NodeRow) {
        boots.iter().filter(|boot| row.is_over(**boot)).for_each(|boot| node.set_over(*boot));
        let gone = node.owed.forget(|boot| boots.contains(&boot) && row.is_over(boot));
        self.numbers.peer_owed_over += gone as u64;
        self.calls.peers.unsettled.fetch_sub(gone, Ordering::SeqCst);
        if gone > 0 {
            tracing::info!(node = %node.base, owed = gone, "notifications of an ended boot dropped; they are stored");
        }
    }
}

/// For one look at a node's row.
const LOOK_TIME_MAX: Duration = Duration::from_secs(3);
/// For a write to a node's row.
const BURY_TIME_MAX: Duration = Duration::from_secs(20);
/// After a complaint.
const QUIET: Duration = Duration::from_secs(60);
