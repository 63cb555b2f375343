//! Nodes: start, death, pause, orderly stop, and what else happens to them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use machine::ids::{Clock, Origin, ShardId, Uaid};
use machine::message::Message;
use machine::peers::{PeerClient, PeerConfig};
use machine::time::{Instant, TimeSpan};
use machine::{Input, MachineConfig, NodeId, PeerOp, ShardMachine, StoreOp};

use super::keeper::GONE_TIME;
use super::parts::{Node, Pending, Shard, Waiter};
use super::sock::Place;
use super::wire::PATIENCE;
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

/// Longest wait of a node that leaves for its calls, and for the store to take what it owes.
const SETTLE_TIME: u64 = 5 * SECOND;

impl Cluster {
    pub(super) fn add_node(&mut self, n: usize) -> Verdict {
        let skew = self.plan.skew_us;
        self.nodes.push(Node {
            up: false,
            returns_at: 0,
            id: node_id(n, 0),
            shards: Vec::new(),
            left: Vec::new(),
            floor: Clock(0),
            client: self.client(0),
            unwritten: BTreeSet::new(),
            tells: (Vec::new(), 0),
            looks_at: 0,
            leaves_at: None,
            paused_until: 0,
            store_cut_until: 0,
            stopping: None,
            offset_us: self.rng.faults.between(0, 2 * skew) as i64 - skew as i64,
            drift: self.rng.faults.between(0, 2 * self.plan.faults.drift) as i64 - self.plan.faults.drift as i64,
            drift_since: self.now,
            runs_away: false,
            clock_stopped: false,
            righted_at: 0,
            kept_at: 0,
            silent_since: BTreeMap::new(),
        });
        if self.plan.press.slow_store > 0 {
            self.nodes[n].offset_us = if n == 0 { -(skew as i64) } else { skew as i64 };
        }
        if n == 0 && self.plan.faults.runaway > 0 {
            let by = self.plan.faults.runaway as i64;
            self.nodes[n].drift = if self.rng.faults.permille(500) { by } else { -by };
            self.nodes[n].runs_away = true;
        }
        self.table.push((0, false));
        self.seen.push(0);
        self.boot(n)
    }

    /// Starts a boot of a node: saves what its ledgers held before it serves, and tells the nodes that have these
    /// users.
    pub(super) fn boot(&mut self, n: usize) -> Verdict {
        self.boots += 1;
        let boot = self.boots;
        self.log(Some(n), format_args!("starts as boot {boot}"));
        if self.nodes[n].clock_stopped {
            // A node whose clock is that wrong does not start.
            self.set_clock_right(n);
        }
        let mut of_user: BTreeMap<Uaid, Vec<Arc<Message>>> = BTreeMap::new();
        for message in self.nodes[n].left.clone() {
            of_user.entry(message.uaid).or_default().push(message);
        }
        for (uaid, mut messages) in of_user.clone() {
            messages.sort_by_key(|message| message.stamp);
            let _ = self.effect(&StoreOp::Save { messages })?;
            self.marks.hit("start: user of a ledger saved");
            // The record is gone only now.
            self.nodes[n].left.retain(|message| message.uaid != uaid);
        }
        self.table[n] = (boot, false);
        let shards = (0..self.plan.shards).map(|s| self.open_shard(n, s, boot)).collect();
        let mut client = self.client(boot);
        for url in &self.nodes[n].unwritten {
            self.marks.hit("debt: left to the next boot");
            client.lose(url);
        }
        let node = &mut self.nodes[n];
        (node.up, node.id, node.shards) = (true, node_id(n, boot), shards);
        (node.client, node.stopping, node.paused_until) = (client, None, 0);
        (node.clock_stopped, node.kept_at, node.looks_at, node.leaves_at) = (false, self.now, self.now, None);
        node.silent_since.clear();
        self.seen[n] = self.time(n).unix_us;
        self.nodes[n].tells = (of_user.keys().copied().collect(), self.now + 60 * SECOND);
        for uaid in of_user.into_keys() {
            let rows = self.store.user(uaid).map(|user| user.row().presence).unwrap_or_default();
            let here = self.nodes[n].id.url.clone();
            for row in rows.into_iter().filter(|row| row.node.url != here) {
                self.asks(n, None, PeerOp::Notify { to: row.node, uaid, unsure: None });
            }
        }
        Ok(())
    }

    /// Client of the calls of a boot.
    fn client(&self, boot: u64) -> PeerClient<Waiter> {
        PeerClient::new(PeerConfig {
            id: boot * 1_000_000,
            connections_max: 4,
            request_timeout: TimeSpan(PATIENCE),
            gone_time: TimeSpan(GONE_TIME),
            retry_queue_max: self.plan.retry_queue_max,
        })
    }

    fn open_shard(&mut self, n: usize, shard: u16, boot: u64) -> Shard {
        let plan = &self.plan;
        let config = MachineConfig {
            origin: Origin(self.rng.network.bits() as u32),
            clock_floor: self.nodes[n].floor,
            window: plan.window,
            durable: plan.durable,
            spill_after: plan.spill_after,
            retry_after: plan.retry_after,
            release_on_activity: plan.release_on_activity,
            wake_timeout: plan.wake_timeout,
            ping_interval: plan.ping_interval,
            ledger_bytes_max: plan.ledger_bytes_max,
            node: Some(node_id(n, boot)),
            ..MachineConfig::new(ShardId(shard), self.placement)
        };
        Shard {
            machine: ShardMachine::new(config),
            ledger: BTreeMap::new(),
            lanes: <[VecDeque<_>; 3]>::default(),
            conns: BTreeMap::new(),
            moves: Vec::new(),
            drained: false,
        }
    }

    /// The boot ends between any two of its effects. Its disk stays.
    pub(super) fn kill(&mut self, n: usize) -> Verdict {
        self.log(Some(n), format_args!("kill -9"));
        // Deletes that wait to be tried again are not tried.
        self.settle_failed = true;
        self.marks.hit("node: killed");
        self.disorder = true;
        self.word_lost = self.steps;
        // What it was about to say, or owes and could not write down, is found by the refreshes. A clock that runs away
        // makes others take what it owes for left before that is so.
        if self.owes_unwritten(n) || self.plan.faults.runaway > 0 {
            self.marks.hit("node: killed with debts that are not written down");
            self.untold = self.steps;
        } else if self.nodes[n].client.owed() > 0 {
            self.marks.hit("node: killed with debts");
        }
        for uaid in self.agents.iter().filter_map(|agent| agent.uaid).collect::<Vec<_>>() {
            let (of_ledgers, until) = &self.nodes[n].tells;
            let told = of_ledgers.contains(&uaid) && self.now < *until;
            if told || self.nodes[n].shards.iter().any(|shard| shard.machine.notifies(uaid)) {
                self.untold_users.insert(uaid, self.steps);
            }
        }
        self.end_run(n)
    }

    fn end_run(&mut self, n: usize) -> Verdict {
        self.count_machines(n);
        let node = &mut self.nodes[n];
        node.up = false;
        node.stopping = None;
        node.returns_at = self.now + self.rng.faults.below(60 * SECOND);
        let shards = std::mem::take(&mut node.shards);
        node.left.extend(shards.into_iter().flat_map(|shard| shard.ledger.into_values()));
        for id in 0..self.socks.len() {
            if self.socks[id].node == n && self.socks[id].place != Place::Ended {
                self.socks[id].place = Place::Ended;
                self.socks[id].outbox.clear();
                self.lost(id);
            }
        }
        let (cut, rest) = std::mem::take(&mut self.pending).into_iter().partition(|((at, _, _), _)| *at == n);
        self.pending = rest;
        for (pending, _) in BTreeMap::into_values(cut) {
            if let Pending::Phone(request) = pending {
                self.unanswered(&request);
            }
        }
        self.bridges.calls.retain(|call| call.at.0 != n);
        self.calls_cut(n);
        self.debts_cut(n);
        self.works_cut(n)
    }

    /// SIGTERM.
    pub(super) fn stop(&mut self, n: usize) -> Verdict {
        if self.nodes[n].stopping.is_some() || !self.awake(n) {
            return Ok(());
        }
        self.marks.hit("node: told to stop");
        self.nodes[n].stopping = Some(self.now + 60 * SECOND);
        let rate = self.rng.faults.pick(&[20, 100, 1_000]) as u32;
        for s in 0..self.nodes[n].shards.len() {
            self.step(n, s, Input::Drain { rate })?;
        }
        Ok(())
    }

    /// Ends boots that are drained, or whose patience is over; goes on with a rolling restart.
    pub(super) fn stops_end(&mut self) -> Verdict {
        for n in 0..self.nodes.len() {
            let Some(deadline) = self.nodes[n].stopping else { continue };
            let drained = self.nodes[n].shards.iter().all(|shard| shard.drained);
            let idle = !self.works.iter().any(|work| work.node == n) && !self.replies.iter().any(|r| r.node == n);
            if drained && idle && self.leaves(n)? {
                if let Some(message) = self.nodes[n].shards.iter().flat_map(|shard| shard.ledger.values()).next() {
                    return Err(format!("node {n} says Drained with {message:?} in a ledger"));
                }
                let left = |pending: &Pending| !matches!(pending, Pending::Call(_));
                let mut pending = self.pending.iter().filter(|((at, _, _), (pending, _))| *at == n && left(pending));
                if let Some((_, request)) = pending.next() {
                    return Err(format!("node {n} says Drained and has not answered {request:?}"));
                }
                self.marks.hit("node: stopped in order");
                if self.has_store(n) {
                    self.table[n].1 = true;
                }
                let (owes, left) = (self.nodes[n].client.owed() > 0, self.nodes[n].client.counts.handed_over > 0);
                if owes {
                    self.marks.hit("node: stopped in order, and the store did not take what it owed");
                    // A write that has no answer yet is in no file.
                    if self.owes_unwritten(n) {
                        self.untold = self.steps;
                    }
                } else if left {
                    self.marks.hit("node: stopped in order with debts");
                }
                if owes || left {
                    self.word_lost = self.steps;
                }
                self.end_run(n)?;
            } else if self.now >= deadline && self.nodes[n].leaves_at.is_none() {
                self.kill(n)?;
            }
        }
        if let Some(n) = self.rolling.front().copied()
            && self.nodes[n].stopping.is_none()
            && self.nodes.iter().all(|node| node.up)
        {
            self.rolling.pop_front();
            self.stop(n)?;
        }
        Ok(())
    }

    /// A drained node waits for its calls, leaves what it then owes to the others, and waits for that. Returns true
    /// when it may end.
    fn leaves(&mut self, n: usize) -> Result<bool, String> {
        // A call of this very moment is not under way yet.
        self.carry_out_calls(n)?;
        let node = &mut self.nodes[n];
        let (until, left) = *node.leaves_at.get_or_insert((self.now + SETTLE_TIME, false));
        if node.client.owed() == 0 && !self.calls.iter().any(|call| call.from == n && call.asked.is_some()) {
            return Ok(true);
        }
        if self.now < until || left {
            return Ok(self.now >= until);
        }
        node.leaves_at = Some((self.now + SETTLE_TIME, true));
        node.client.end(Instant(self.now));
        self.carry_out_calls(n)?;
        Ok(false)
    }

    /// One of the faults of the surroundings, perhaps.
    pub(super) fn weather(&mut self) -> Verdict {
        let faults = self.plan.faults.clone();
        let n = self.rng.faults.index(self.nodes.len());
        let other = self.rng.faults.index(self.nodes.len());
        let rng = &mut self.rng.faults;
        let while_ns = rng.pick(&[SECOND, 10 * SECOND, 100 * SECOND]);
        let until = self.now + rng.below(while_ns);
        if rng.permille(faults.kill) && self.nodes[n].up {
            return self.kill(n);
        }
        if rng.permille(faults.stop) {
            return self.stop(n);
        }
        if rng.permille(faults.rolling) && self.rolling.is_empty() {
            self.marks.hit("nodes: rolling restart");
            self.rolling = (0..self.nodes.len()).collect();
        }
        if rng.permille(faults.long) {
            let until = self.now + rng.between(600, 1_600) * SECOND;
            return self.away_for_long(n, until);
        }
        if rng.permille(faults.pause) {
            self.marks.hit("node: paused");
            self.disorder = true;
            self.nodes[n].paused_until = until;
            self.stands_still(until - self.now);
        }
        let rng = &mut self.rng.faults;
        if rng.permille(faults.store_cut) {
            self.marks.hit("node: cut from the store");
            self.nodes[n].store_cut_until = until;
        }
        if rng.permille(faults.cut) && n != other {
            self.marks.hit("nodes: cut from each other");
            self.disorder = true;
            self.cuts.insert((n.min(other), n.max(other)), until);
        }
        if rng.permille(faults.clock_step) {
            self.marks.hit("node: clock set");
            let most = self.plan.skew_us;
            self.nodes[n].offset_us = rng.between(0, 2 * most) as i64 - most as i64;
            self.nodes[n].drift_since = self.now;
        }
        Ok(())
    }

    /// A node is dead for long, or goes on where neither the others nor the store reach it.
    fn away_for_long(&mut self, n: usize, until: u64) -> Verdict {
        if self.rng.faults.permille(500) && self.nodes[n].up {
            self.marks.hit("node: dead for long");
            self.kill(n)?;
            self.nodes[n].returns_at = until;
        } else {
            self.marks.hit("node: alone for long");
            self.disorder = true;
            self.nodes[n].store_cut_until = until;
            for other in (0..self.nodes.len()).filter(|other| *other != n) {
                self.cuts.insert((n.min(other), n.max(other)), until);
            }
        }
        Ok(())
    }

    /// Receiver of a call: the node, and its boot.
    pub(super) fn target(op: &PeerOp) -> (usize, u64) {
        let (PeerOp::Push { to, .. } | PeerOp::Notify { to, .. } | PeerOp::Leave { to, .. }) = op;
        (Cluster::node_of(to), to.boot)
    }

    /// The number of a node.
    pub(super) fn node_of(id: &NodeId) -> usize {
        id.url.bytes().last().map_or(0, |digit| usize::from(digit - b'0'))
    }

    /// Adds what the machines of this boot counted to the marks.
    pub(super) fn count_machines(&mut self, n: usize) {
        self.marks.count_machines(self.nodes[n].shards.iter_mut().map(|shard| &mut shard.machine));
    }

    /// Every record of every ledger, on disks of nodes that are down too.
    pub(super) fn ledgered(&self) -> BTreeSet<usize> {
        let live = self.nodes.iter().flat_map(|node| node.shards.iter().flat_map(|shard| shard.ledger.values()));
        let left = self.nodes.iter().flat_map(|node| &node.left);
        live.chain(left).filter_map(|message| self.identify(message).ok()).collect()
    }
}

fn node_id(n: usize, boot: u64) -> Arc<NodeId> {
    Arc::new(NodeId { url: format!("http://node/{n}").into(), boot })
}
