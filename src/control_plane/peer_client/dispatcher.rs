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
use super::node::{PeerNode, RETRY_CALLS_MAX};
use super::queue::{PeerCall, TrustRoots};
use super::retry_queue::PendingNotify;
use super::stats::PeerStats;
use super::wire::{self, CallError, Called, PeerCodec};
use crate::control_plane::http_client::{HttpClient, HttpClientError};
use crate::control_plane::jitter::jitter;

/// State that the calls of all nodes share. Lives on the control plane.
pub(super) struct Dispatcher {
    pub calls: PeerCalls,
    client: Arc<HttpClient>,
    /// Number of the last change of keys and trust that was taken over (`Peers::credentials_since`).
    credentials_version: u64,
    codec: Option<PeerCodec>,
    /// Calls, probes and looks under way.
    pub tasks: JoinSet<TaskResult>,
    pub stats: PeerStats,
    /// Time that answered calls took, of all nodes.
    pub call_times: Histogram,
    warned_at: Option<Instant>,
}

/// A task that has ended. Nodes are named by their URLs.
pub(super) enum TaskResult {
    Called { url: Box<str>, call: PeerCall, is_retry: bool, called: Called },
    Probed { url: Box<str>, called: Called },
    Looked { url: Box<str>, boots: Vec<u64>, row: Option<NodeRow>, buried: bool },
}

/// Outcome of a call.
enum CallOutcome {
    /// The node answered with this reply.
    Settled(PeerReply),
    /// The node answered, and did not do it.
    NotTaken,
    /// There was no answer: the reply for the shard, and the reason.
    Failed(PeerReply, HttpClientError),
}

impl Dispatcher {
    pub fn new(calls: PeerCalls) -> Dispatcher {
        let TrustRoots(client) = calls.trust.clone();
        Dispatcher {
            calls,
            client,
            credentials_version: 0,
            codec: None,
            tasks: JoinSet::new(),
            stats: PeerStats::default(),
            call_times: Histogram::default(),
            warned_at: None,
        }
    }

    /// Takes over changed keys and trust.
    pub fn reload_credentials(&mut self) {
        if let Some((credentials_version, credentials)) = self.calls.peers.credentials_since(self.credentials_version) {
            (self.credentials_version, self.codec) = (credentials_version, PeerCodec::new(&credentials.keys));
            if let Some(TrustRoots(client)) = credentials.trust {
                self.client = client;
            }
        }
    }

    /// Sends the reply to the shard.
    pub fn reply(&mut self, call: PeerCall, reply: PeerReply) {
        self.calls.peers.lane.unsettled.fetch_sub(1, Ordering::SeqCst);
        match call.back {
            Some((reply_queue, ticket)) => {
                self.stats.replied(&call.op, reply);
                reply_queue.push(ticket, reply);
            }
            None => self.stats.peer_owed_answered += u64::from(matches!(reply, PeerReply::Done | PeerReply::NotHere)),
        }
    }

    /// As [`Dispatcher::fail`], for a call that was never sent.
    pub fn unreachable(&mut self, node: &mut PeerNode, call: PeerCall, now: Instant) {
        node.call_stats.unreachable();
        self.fail(node, call, PeerReply::Unreachable, now);
    }

    /// Tells the shard that the call failed; a notification stays owed.
    fn fail(&mut self, node: &mut PeerNode, call: PeerCall, reply: PeerReply, now: Instant) {
        if let Some(pending) = PendingNotify::of(&call.op) {
            let before = node.retry_queue.len();
            let forgotten = node.retry_queue.insert(pending);
            self.stats.peer_owed_dropped += u64::from(forgotten.is_some());
            self.calls.peers.lane.unsettled.fetch_add(node.retry_queue.len() - before, Ordering::SeqCst);
            if node.retry_queue.is_due(now) {
                node.retry_queue.failed(now, jitter());
            }
        }
        self.reply(call, reply);
    }

    /// Makes as many of the calls that wait as there are connections for.
    pub fn start_queued_calls(&mut self, url: &str, node: &mut PeerNode, now: Instant) {
        while !node.is_open() && node.in_flight < self.calls.connections_max {
            let room = RETRY_CALLS_MAX.min(self.calls.connections_max.div_ceil(2));
            if node.retry_queue.is_due(now) && node.retries_in_flight < room {
                let Some(pending) = node.retry_queue.take() else { return };
                let call = PeerCall { op: pending.to_op(), back: None, since: std::time::Instant::now() };
                self.start(url, node, call, true, now);
                continue;
            }
            let Some(call) = node.waiting.pop_front() else { return };
            self.start(url, node, call, false, now);
        }
    }

    fn start(&mut self, url: &str, node: &mut PeerNode, call: PeerCall, is_retry: bool, now: Instant) {
        let request = self.codec.as_ref().and_then(|codec| codec.request(&call.op, &node.base));
        let Some(request) = request else {
            // The machine then stores the message, as any that cannot be handed over; a notification stays owed until
            // there are keys.
            return self.unreachable(node, call, now);
        };
        let kept = node.take_idle();
        self.stats.peer_connects += u64::from(kept.is_none());
        let within = (self.calls.connect_timeout, self.calls.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&node.base), url.into());
        node.in_flight += 1;
        node.retries_in_flight += usize::from(is_retry);
        self.tasks.spawn(async move {
            let called = wire::call(client, base, request, kept, within).await;
            TaskResult::Called { url, call, is_retry, called }
        });
    }

    /// Handles the end of a call: replies to the shard, and gives up a node that too often has not answered.
    pub fn called(
        &mut self,
        url: &str,
        node: &mut PeerNode,
        call: PeerCall,
        result: Result<wire::PeerResponse, CallError>,
        now: Instant,
    ) {
        match self.outcome(url, node, &call, result, now) {
            CallOutcome::Settled(reply) => self.settled(node, call, reply, now),
            CallOutcome::NotTaken => self.fail(node, call, PeerReply::Unreachable, now),
            CallOutcome::Failed(reply, why) => {
                self.fail(node, call, reply, now);
                self.count_failure(url, node, &why, now);
            }
        }
    }

    /// Reads the result of a call, and notes what it says of the node.
    fn outcome(
        &mut self,
        url: &str,
        node: &mut PeerNode,
        call: &PeerCall,
        result: Result<wire::PeerResponse, CallError>,
        now: Instant,
    ) -> CallOutcome {
        let answer = match result {
            Ok(answer) => answer,
            Err(CallError::Connect(trouble)) => {
                node.call_stats.unreachable();
                self.stats.peer_connects_failed += 1;
                self.stats.peer_connects_untrusted += u64::from(matches!(trouble, HttpClientError::Untrusted(_)));
                return CallOutcome::Failed(PeerReply::Unreachable, trouble);
            }
            Err(CallError::NoAnswer(why)) => {
                node.call_stats.no_answer();
                return CallOutcome::Failed(PeerReply::NoAnswer, HttpClientError::Connect(why.to_owned()));
            }
        };
        let (status, took) = (answer.status.as_u16(), call.since.elapsed());
        self.stats.answered(took);
        self.call_times.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        node.call_stats.answered(status, took);
        node.answered(now);
        match answer.reply(&call.op) {
            Some(PeerReply::Unreachable) => CallOutcome::NotTaken,
            Some(reply) => CallOutcome::Settled(reply),
            None => {
                self.stats.peer_refused += 1;
                self.warn_limited(url, status, now);
                CallOutcome::NotTaken
            }
        }
    }

    /// Sends the node's reply to the shard, and removes the call from those that are owed.
    fn settled(&mut self, node: &mut PeerNode, call: PeerCall, reply: PeerReply, now: Instant) {
        if let Some(pending) = PendingNotify::of(&call.op) {
            let owed = usize::from(node.retry_queue.remove(&pending));
            self.calls.peers.lane.unsettled.fetch_sub(owed, Ordering::SeqCst);
            node.retry_queue.answered(now);
        }
        self.reply(call, reply);
    }

    /// Counts a failure. One too many opens the circuit and fails the calls that wait for the node.
    fn count_failure(&mut self, url: &str, node: &mut PeerNode, why: &HttpClientError, now: Instant) {
        if !node.failed(now) {
            return;
        }
        self.stats.peer_circuits_opened += 1;
        tracing::warn!(node = %url, reason = %why, "peer circuit opened");
        for call in std::mem::take(&mut node.waiting) {
            self.unreachable(node, call, now);
        }
    }

    /// Logs an unexpected status, at most one line a minute.
    fn warn_limited(&mut self, url: &str, status: u16, now: Instant) {
        if self.warned_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            self.warned_at = Some(now);
            let why = match status {
                401 => "the first of our node.keys is none of its",
                400 => "it cannot read what we say: endpoint.crypto_keys or versions differ",
                _ => "node.url does not lead to a node of this cluster, or versions differ",
            };
            tracing::error!(node = %url, status, reason = why, "peer call refused");
        }
    }

    /// Ends what has waited for a connection for too long.
    pub fn expire(&mut self, node: &mut PeerNode, now: Instant) {
        while node.waiting.front().is_some_and(|call| call.since.elapsed() >= self.calls.request_timeout) {
            let Some(call) = node.waiting.pop_front() else { return };
            self.unreachable(node, call, now);
        }
    }

    pub fn probe(&mut self, url: &str, node: &mut PeerNode) {
        let within = (self.calls.connect_timeout, self.calls.request_timeout);
        let (client, base, url) = (Arc::clone(&self.client), Arc::clone(&node.base), url.into());
        let Some(request) = wire::probe(&base) else { return };
        self.tasks.spawn(async move {
            let called = wire::call(client, base, request, None, within).await;
            TaskResult::Probed { url, called }
        });
    }

    /// Looks up which boot of the node is the last. Only of boots that are known by now can it say that they are over.
    pub fn look(&mut self, url: &str, node: &PeerNode) {
        let mut boots: Vec<u64> = node.retry_queue.boots().chain([node.boot]).collect();
        boots.sort_unstable();
        boots.dedup();
        let (row, url) = (self.calls.nodes.read(url), Box::from(url));
        self.tasks.spawn(async move {
            let row = timeout(LOOK_TIME_MAX, row).await.ok().flatten();
            TaskResult::Looked { url, boots, row, buried: false }
        });
    }

    /// Writes that the boot of this row is over. Only then it counts as over: the boot itself must be able to see it.
    pub fn bury(&mut self, url: &str, boots: Vec<u64>, row: Option<NodeRow>) {
        let Some(row) = row else { return };
        let buried = self.calls.nodes.bury(&NodeId { url: url.into(), boot: row.boot });
        let url = Box::from(url);
        self.tasks.spawn(async move {
            let done = timeout(BURY_TIME_MAX, buried).await.unwrap_or(false);
            let row = done.then_some(NodeRow { left: true, ..row });
            TaskResult::Looked { url, boots, row, buried: done }
        });
    }

    pub fn looked(&mut self, node: &mut PeerNode, boots: &[u64], row: NodeRow) {
        boots.iter().filter(|boot| row.is_over(**boot)).for_each(|boot| node.note_ended(*boot));
        let gone = node.retry_queue.forget(|boot| boots.contains(&boot) && row.is_over(boot));
        self.stats.peer_owed_over += gone as u64;
        self.calls.peers.lane.unsettled.fetch_sub(gone, Ordering::SeqCst);
        if gone > 0 {
            tracing::info!(node = %node.base, owed = gone, "notifications of an ended boot dropped; they are stored");
        }
    }
}

/// For one look at a node's row.
const LOOK_TIME_MAX: Duration = Duration::from_secs(3);
/// For a write to a node's row.
const BURY_TIME_MAX: Duration = Duration::from_secs(20);
/// Shortest time between two lines.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
