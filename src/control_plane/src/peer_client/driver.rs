//! The one task that calls other nodes: takes what the shards ask, gives it to the [`PeerClient`], and carries out what
//! that decides.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use machine::peers::{CallEnd, PeerAction, PeerCall, PeerClient, PeerConfig, PeerNote};
use machine::stats::{Board, Counters as _, Histogram};
use machine::time::{Instant, TimeSpan};
use machine::{PeerOp, PeerReply};
use store::nodes::NodeRow;
use tokio::time::{MissedTickBehavior, timeout};

use super::calls::PeerCalls;
use super::connections::Connections;
use super::queue::{QueuedCall, ReplyTo};
use super::stats::{CALL_TIMES, PeerSnapshot, PeerSnapshots, PeerStats};
use super::tasks::{TaskResult, Tasks};
use super::unwritten::Unwritten;
use super::wire::{CallError, Called};
use protocol::wire::url::HttpUrl;

/// Task that makes the calls. Lives on the control plane.
pub(crate) struct PeerDriver {
    client: PeerClient<ReplyTo>,
    connections: Connections,
    calls: PeerCalls,
    tasks: Tasks,
    unwritten: Unwritten,
    stats: PeerStats,
    /// Time that answered calls took, of all nodes.
    call_times: Histogram,
    started: std::time::Instant,
    warned_at: Option<Instant>,
    is_ending: bool,
    board: Arc<Board>,
    snapshots: Arc<PeerSnapshots>,
}

impl PeerDriver {
    pub fn new(calls: PeerCalls) -> PeerDriver {
        let board = Arc::new(Board::new(&[PeerStats::MEANINGS]).with_histograms(&[CALL_TIMES]));
        let mut client = PeerClient::new(PeerConfig {
            id: calls.id,
            connections_max: calls.connections_max,
            request_timeout: span(calls.request_timeout),
            gone_time: span(calls.gone_time),
            retry_queue_max: calls.retry_queue_max,
        });
        // What an earlier boot on this data directory could not write.
        let unwritten = Unwritten::read(calls.unwritten.as_deref());
        unwritten.urls().for_each(|url| client.lose(url));
        calls.peers.owed.store(client.owed(), Ordering::SeqCst);
        PeerDriver {
            client,
            connections: Connections::default(),
            tasks: Tasks::new(&calls),
            unwritten,
            calls,
            stats: PeerStats::default(),
            call_times: Histogram::default(),
            started: std::time::Instant::now(),
            warned_at: None,
            is_ending: false,
            board,
            snapshots: Arc::default(),
        }
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
        let peers = Arc::clone(&self.calls.peers);
        let bell = peers.lane.bell()?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                call = peers.lane.pop(&bell) => {
                    self.tasks.reload_credentials(&self.calls);
                    self.take(call?);
                    for _ in 1..CALLS_AT_ONCE {
                        let Some(call) = peers.lane.try_pop() else { break };
                        self.take(call);
                    }
                }
                // A task is never cancelled, and a panic ends the process.
                Some(Ok(ended)) = self.tasks.running.join_next() => {
                    self.ended(ended);
                    for _ in 1..CALLS_AT_ONCE {
                        let Some(Ok(ended)) = self.tasks.running.try_join_next() else { break };
                        self.ended(ended);
                    }
                }
                _ = tick.tick() => self.tick(),
            }
        }
    }

    /// Returns the time since this was made, and a second.
    fn at(&self, time: std::time::Instant) -> Instant {
        let since = time.saturating_duration_since(self.started) + Duration::from_secs(1);
        Instant(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }

    fn now(&self) -> Instant {
        self.at(std::time::Instant::now())
    }

    /// Takes a call of a shard, or a notification that is owed from the start.
    fn take(&mut self, call: QueuedCall) {
        let call = PeerCall { op: call.op, back: call.back, since: self.at(call.since), is_retry: false };
        let url: Arc<str> = Arc::from(&*call.to().url);
        if HttpUrl::parse(&url).is_none() {
            self.calls.peers.dropped.fetch_add(u64::from(matches!(call.op, PeerOp::Notify { .. })), Ordering::Relaxed);
            return self.reply(&url, call, PeerReply::Unreachable, false);
        }
        let now = self.now();
        self.client.submit(call, now);
        self.carry_out(now);
    }

    fn ended(&mut self, ended: TaskResult) {
        let now = self.now();
        match ended {
            TaskResult::Called { url, call, called } => self.called(&url, call, called, now),
            TaskResult::Probed { url, called: (_, result) } => self.client.probed(&url, result.is_ok(), now),
            TaskResult::Looked { url, boots, row } => {
                self.client.looked(&url, boots, row.as_ref().map(NodeRow::judged), now);
            }
            TaskResult::Buried { url, boots, row, done } => self.client.buried(&url, &boots, row, done, now),
            TaskResult::DebtWritten { url, id, time, done } => {
                // Before a POST that waits for the row is answered.
                if !done {
                    self.unwritten.add(&url);
                }
                self.client.debt_written(&url, id, time, done, now);
            }
            TaskResult::DebtCleared { url } => self.client.debt_cleared(&url, now),
        }
        self.carry_out(now);
    }

    /// Reads the end of a call.
    fn called(&mut self, url: &Arc<str>, call: PeerCall<ReplyTo>, (conn, result): Called, now: Instant) {
        let peer = self.connections.peer(url);
        peer.keep(conn);
        let end = match result {
            Ok(answer) => {
                let (status, took) = (answer.status.as_u16(), Duration::from_nanos(now.since(call.since).0));
                self.stats.peer_answers += 1;
                self.call_times.record(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
                peer.stats.answered(status, took);
                let reply = answer.reply(&call.op);
                if reply.is_none() {
                    self.stats.peer_refused += 1;
                    self.warn_limited(url, status, now);
                }
                CallEnd::Answered(reply)
            }
            Err(CallError::Connect(trouble)) => {
                peer.stats.unreachable();
                self.stats.peer_connects_failed += 1;
                self.stats.peer_connects_untrusted += u64::from(trouble.is_untrusted());
                peer.trouble = trouble.to_string();
                CallEnd::NotConnected
            }
            Err(CallError::NoAnswer(why)) => {
                peer.stats.no_answer();
                why.clone_into(&mut peer.trouble);
                CallEnd::NoAnswer
            }
        };
        self.client.called(url, call, end, now);
    }

    /// Carries out what the client has decided.
    fn carry_out(&mut self, now: Instant) {
        // A call whose reply is given leaves no moment in which its debt is not counted.
        self.calls.peers.owed.store(self.client.owed(), Ordering::SeqCst);
        while let Some(action) = self.client.next_action() {
            match action {
                PeerAction::Call { url, call } => {
                    let peer = self.connections.peer(&url);
                    let kept = peer.take_idle();
                    let connects = kept.is_none();
                    if let Some(call) = self.tasks.call(&url, peer, call, kept) {
                        self.client.called(&url, call, CallEnd::Unsayable, now);
                    } else {
                        self.stats.peer_connects += u64::from(connects);
                    }
                }
                PeerAction::Reply { url, call, reply, sent } => self.reply(&url, call, reply, sent),
                PeerAction::Probe { url } => self.tasks.probe(&url, self.connections.peer(&url)),
                PeerAction::Look { url, boots } => self.tasks.look(url, boots, &self.calls),
                PeerAction::Bury { url, boots, row } => self.tasks.bury(url, boots, row, &self.calls),
                PeerAction::WriteDebt { url, id, time } => self.tasks.write_debt(url, id, time, &self.calls),
                PeerAction::ClearDebt { url, id } => self.tasks.clear_debt(url, id, &self.calls),
                PeerAction::Note { url, note } => self.note(&url, note),
            }
            self.calls.peers.owed.store(self.client.owed(), Ordering::SeqCst);
        }
    }

    /// Sends the reply to the shard.
    fn reply(&mut self, url: &Arc<str>, call: PeerCall<ReplyTo>, reply: PeerReply, sent: bool) {
        if !sent && reply == PeerReply::Unreachable && self.client.knows(url) {
            self.connections.peer(url).stats.unreachable();
        }
        self.calls.peers.lane.unsettled.fetch_sub(1, Ordering::SeqCst);
        if let Some((reply_queue, ticket)) = call.back {
            self.stats.replied(&call.op, reply);
            reply_queue.push(ticket, reply);
        }
    }

    fn note(&mut self, url: &Arc<str>, note: PeerNote) {
        match note {
            PeerNote::Opened => {
                let peer = self.connections.peer(url);
                peer.close_all();
                tracing::warn!(node = %url, reason = %peer.trouble, "peer circuit opened");
            }
            PeerNote::Closed { owed } => tracing::info!(node = %url, owed, "peer circuit closed"),
            PeerNote::Forgotten { owed } => {
                tracing::warn!(node = %url, owed, "unreachable peer forgotten; too many peers are known");
            }
            PeerNote::Over { owed } => {
                tracing::info!(node = %url, owed, "notifications of an ended boot dropped; they are stored");
            }
            PeerNote::Buried => tracing::warn!(node = %url, "boot of a silent peer declared over"),
        }
    }

    /// Logs an unexpected status, at most one line a minute.
    fn warn_limited(&mut self, url: &str, status: u16, now: Instant) {
        if self.warned_at.is_none_or(|at| now.since(at) >= LOG_INTERVAL) {
            self.warned_at = Some(now);
            let why = match status {
                401 => "the first of our node.keys is none of its",
                400 => "it cannot read what we say: endpoint.crypto_keys or versions differ",
                _ => "node.url does not lead to a node of this cluster, or versions differ",
            };
            tracing::error!(node = %url, status, reason = why, "peer call refused");
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        self.tasks.reload_credentials(&self.calls);
        for url in self.calls.peers.take_lost() {
            self.client.lose(&url);
        }
        if self.calls.peers.is_ending() && !self.is_ending {
            self.is_ending = true;
            self.client.end(now);
        }
        self.client.tick(now);
        self.carry_out(now);
        self.unwritten.retain(|url| self.client.is_unwritten(url, now));
        self.connections.close_idle(|url| self.client.knows(url));
        self.show(now);
    }

    fn show(&mut self, now: Instant) {
        let states: Vec<_> = self.client.states(now).map(|(url, state)| (Arc::clone(url), state)).collect();
        let (stats, counts) = (&mut self.stats, self.client.counts);
        stats.peer_nodes = states.len() as u64;
        stats.peer_circuits_open = states.iter().filter(|(_, state)| state.is_open).count() as u64;
        stats.peer_owed = states.iter().map(|(_, state)| state.owed as u64).sum();
        stats.peer_calls_under_way = states.iter().map(|(_, state)| state.in_flight as u64).sum();
        stats.peer_calls_waiting = states.iter().map(|(_, state)| state.waiting as u64).sum();
        stats.peer_owed_dropped = counts.dropped + self.calls.peers.dropped.load(Ordering::Relaxed);
        (stats.peer_owed_answered, stats.peer_owed_over) = (counts.answered, counts.over);
        (stats.peer_circuits_opened, stats.peer_runs_gone) = (counts.opened, counts.buried);
        (stats.peer_debts_written, stats.peer_debts_failed) = (counts.written, counts.write_failures);
        stats.write_to(&self.board, 0);
        self.board.set_histogram(0, &self.call_times);
        let connections = &mut self.connections;
        let mut all: Vec<PeerSnapshot> =
            states.iter().map(|(url, state)| connections.peer(url).show(url, state)).collect();
        all.sort_by(|a, b| a.state.cmp(&b.state).then_with(|| a.url.cmp(&b.url)));
        *self.snapshots.look() = all;
    }
}

/// Makes the calls that are in the lane, for a caller without a control plane, until all are settled or `within` is
/// over. What is owed then is left to the nodes that it is owed to. Returns the number of those that are not told.
/// Waits; not for a thread that is inside a runtime.
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
            let all = async {
                while peers.unsettled() > 0 {
                    tokio::time::sleep(TICK).await;
                }
            };
            if timeout(within, all).await.is_err() {
                peers.end();
                let until = tokio::time::Instant::now() + HAND_OVER_TIME_MAX;
                while peers.unsettled() > 0 && tokio::time::Instant::now() < until {
                    tokio::time::sleep(TICK).await;
                }
            }
        };
        tokio::select! {
            () = settled => {}
            // It ends only with an error, and what is not settled then is said below.
            _ = &mut making => {}
        }
    });
    Ok(if peers.is_ending() { peers.owed() } else { peers.unsettled() })
}

fn span(duration: Duration) -> TimeSpan {
    TimeSpan(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Longest wait of an end for the database to take what is owed.
pub const HAND_OVER_TIME_MAX: Duration = Duration::from_secs(5);
/// Calls taken from the lane before what has ended is looked at, and the reverse.
const CALLS_AT_ONCE: usize = 64;
/// Interval between checks of waits and probes.
const TICK: Duration = Duration::from_millis(100);
/// Shortest time between two lines.
const LOG_INTERVAL: TimeSpan = TimeSpan::from_secs(60);
