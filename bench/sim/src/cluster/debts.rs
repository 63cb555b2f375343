//! The clients of the calls (`machine::peers`, as in the server), and the table of debts in the store.

use std::sync::Arc;

use machine::peers::{BootRow, CallEnd, DEBT_INTERVAL, DebtRow, DebtTime, PeerAction, PeerCall, PeerNote};
use machine::time::Instant;
use machine::{Input, NodeId, PeerOp, PeerReply};

use super::keeper::{BURY_TIME, SILENT_US};
use super::parts::{Breakage, Burial, DebtWrite, Node, Waiter};
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

impl Cluster {
    /// A machine, or the start of a boot, calls another node.
    pub(super) fn asks(&mut self, from: usize, back: Option<Waiter>, op: PeerOp) {
        let told = match &op {
            PeerOp::Push { message, .. } => Some(message.uaid),
            PeerOp::Notify { uaid, .. } => Some(*uaid),
            PeerOp::Leave { .. } => None,
        };
        for post in self.posts.iter_mut().filter(|post| Some(post.to.uaid) == told && post.landed == from) {
            post.holder_told |= !post.holders.is_empty();
        }
        let call = PeerCall { op, back, since: Instant(self.now), is_retry: false };
        self.nodes[from].client.submit(call, Instant(self.now));
    }

    /// The client of a node does what is due.
    pub(super) fn tends_calls(&mut self, n: usize) -> Verdict {
        let now = Instant(self.now);
        self.nodes[n].client.tick(now);
        self.carry_out_calls(n)?;
        let Node { client, unwritten, .. } = &mut self.nodes[n];
        unwritten.retain(|url| client.is_unwritten(url, now));
        Ok(())
    }

    /// Carries out what the client of a node has decided.
    pub(super) fn carry_out_calls(&mut self, n: usize) -> Verdict {
        while let Some(action) = self.nodes[n].client.next_action() {
            self.log(Some(n), format_args!("{action:?}"));
            let now = Instant(self.now);
            match action {
                PeerAction::Call { url, call } if call.is_retry && self.breakage == Some(Breakage::NothingIsOwed) => {
                    let end = CallEnd::Answered(Some(PeerReply::Done));
                    self.nodes[n].client.called(&url, call, end, now);
                }
                PeerAction::Call { call, .. } => self.call(n, call),
                PeerAction::Reply { call, reply, .. } => {
                    let reply = self.reply_broken(&call.op, reply);
                    if reply == PeerReply::NoAnswer {
                        self.marks.hit("call: no answer");
                    }
                    if let Some((shard, ticket)) = call.back {
                        self.step(n, shard, Input::Peer { ticket, reply })?;
                    }
                }
                PeerAction::Probe { url } => {
                    let to = number(&url);
                    let answers = self.awake(to) && self.reaches(n, to);
                    self.nodes[n].client.probed(&url, answers, now);
                }
                PeerAction::Look { url, boots } => {
                    let row = self.has_store(n).then(|| self.row_of_node(n, number(&url)));
                    self.nodes[n].client.looked(&url, boots, row, now);
                }
                PeerAction::Bury { url, boots, row } => {
                    let at = self.now + self.rng.faults.below(BURY_TIME);
                    let (by, node) = ((n, self.nodes[n].id.boot), number(&url));
                    self.burials.push(Burial { at, by, node, boot: row.boot, asked: Some((url, boots, row)) });
                }
                PeerAction::WriteDebt { url, id, time } => self.write_debt(n, url, id, Some(time)),
                PeerAction::ClearDebt { url, id } => self.write_debt(n, url, id, None),
                PeerAction::Note { note: PeerNote::Over { .. }, .. } => self.marks.hit("owed: to a boot that is over"),
                PeerAction::Note { .. } => {}
            }
        }
        Ok(())
    }

    /// The row of a node, as another one judges it.
    fn row_of_node(&self, n: usize, other: usize) -> BootRow {
        let (boot, left) = self.table[other];
        let silent = self.time(n).unix_us.saturating_sub(self.seen[other]);
        BootRow { boot, left, lapsed: silent >= SILENT_US && !self.nodes[n].clock_stopped }
    }

    fn write_debt(&mut self, n: usize, url: Arc<str>, id: u64, time: Option<DebtTime>) {
        let at = self.now + self.rng.store.below(self.plan.delay.min(3 * SECOND) + 1);
        self.debt_writes.push(DebtWrite { by: (n, self.nodes[n].id.boot), url, id, time, at });
    }

    /// Returns true if something can become of a write of a debt now.
    pub(super) fn debt_moves(&self, at: usize) -> bool {
        let write = &self.debt_writes[at];
        write.at <= self.now && self.awake(write.by.0)
    }

    /// A write of a debt takes effect, or fails.
    pub(super) fn debt_lands(&mut self, at: usize) -> Verdict {
        let write = self.debt_writes.remove(at);
        let n = write.by.0;
        let done = self.has_store(n) && !self.rng.store.permille(self.plan.faults.store_error);
        if done {
            self.debt_takes_effect(&write);
        }
        // An answer that is lost leaves the row.
        let done = done && !self.rng.store.permille(self.plan.faults.store_reply_lost);
        let now = Instant(self.now);
        match write.time {
            Some(time) => {
                if !done {
                    self.nodes[n].unwritten.insert(Arc::clone(&write.url));
                }
                self.nodes[n].client.debt_written(&write.url, write.id, time, done, now);
            }
            None => self.nodes[n].client.debt_cleared(&write.url, now),
        }
        self.carry_out_calls(n)
    }

    fn debt_takes_effect(&mut self, write: &DebtWrite) {
        let (key, is_loss) = ((number(&write.url), write.id), !write.id.is_multiple_of(1_000_000));
        match self.breakage {
            Some(Breakage::DebtsUnwritten) => return,
            Some(Breakage::LossUntold) if is_loss => return,
            _ => {}
        }
        self.debts_written += 1;
        match write.time {
            Some(time) => {
                self.marks.hit(match (time, is_loss) {
                    (DebtTime::Now, _) => "debt: written",
                    (DebtTime::Ended, true) => "debt: words are lost",
                    (DebtTime::Ended, false) => "debt: left at an end",
                });
                let said_us = if time == DebtTime::Now { self.time(write.by.0).unix_us } else { 0 };
                self.debts.insert(key, DebtRow { id: write.id, said_us, version: self.debts_written });
            }
            None => {
                self.debts.remove(&key);
            }
        }
    }

    /// Returns true if the node owes another one something that is neither in the store nor in its data directory.
    pub(super) fn owes_unwritten(&self, n: usize) -> bool {
        let Node { client, unwritten, .. } = &self.nodes[n];
        client.unwritten(Instant(self.now)).any(|url| !unwritten.contains(url))
    }

    /// A node is gone: of its writes of debts some take effect.
    pub(super) fn debts_cut(&mut self, n: usize) {
        let (cut, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.debt_writes).into_iter().partition(|write| write.by.0 == n);
        self.debt_writes = rest;
        for write in cut {
            if self.has_store(n) && self.rng.store.permille(500) {
                self.debt_takes_effect(&write);
            }
        }
    }

    /// A node looks for what it is owed by boots that have ended (`src/control_plane/debt_watch.rs`).
    pub(super) fn looks_for_debts(&mut self, n: usize) -> Verdict {
        if !self.awake(n) || !self.has_store(n) || self.nodes[n].looks_at > self.now {
            return Ok(());
        }
        self.nodes[n].looks_at = self.now + DEBT_INTERVAL.0;
        let now_us = if self.nodes[n].clock_stopped { 0 } else { self.time(n).unix_us };
        let rows = self.debts.iter().filter(|((to, _), row)| *to == n && row.is_left(now_us));
        let left: Vec<(usize, u64)> = rows.map(|(key, _)| *key).collect();
        if left.is_empty() {
            return Ok(());
        }
        self.marks.hit("debt: every session reads storage");
        for s in 0..self.nodes[n].shards.len() {
            if self.breakage != Some(Breakage::DebtUnread) {
                self.step(n, s, Input::ReadStorage)?;
            }
        }
        self.debts.retain(|key, _| !left.contains(key));
        Ok(())
    }
}

/// The number of the node at this URL.
fn number(url: &str) -> usize {
    Cluster::node_of(&NodeId { url: url.into(), boot: 0 })
}
