//! The network between nodes, and their node APIs (`src/edge/node.rs`): a call that is not answered in time may still
//! be carried out.

use std::sync::Arc;

use machine::peers::{CallEnd, PeerCall};
use machine::time::Instant;
use machine::{NodeAnswer, NodeCommand, NodeDisconnect, NodeNotify, NodePush, PeerOp, PeerReply};

use super::parts::{Call, Pending, Stage, Waiter};
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

/// `node.request_timeout`.
pub(super) const PATIENCE: u64 = 3 * SECOND;

impl Cluster {
    /// Calls another node, as its client asks for it.
    pub(super) fn call(&mut self, from: usize, asked: PeerCall<Waiter>) {
        let (to, _) = Cluster::target(&asked.op);
        if asked.is_retry {
            self.marks.hit("owed: again");
        }
        let op = self.call_broken(asked.op.clone());
        let faults = &self.plan.faults;
        let (lost, slow, twice) = (faults.call_lost, faults.call_late, faults.push_twice);
        let again = asked.is_retry && self.rng.network.permille(faults.call_twice);
        let delay = self.rng.network.below(self.plan.delay + 1);
        let stage = if !self.nodes[to].up || !self.reaches(from, to) {
            self.marks.hit("call: no connection");
            Stage::Refused { at: self.now + delay.min(SECOND) }
        } else if self.rng.network.permille(lost) {
            self.disorder = true;
            self.marks.hit("call: lost");
            Stage::Out { at: u64::MAX }
        } else if self.rng.network.permille(slow) {
            self.disorder = true;
            self.marks.hit("call: late");
            Stage::Out { at: self.now + PATIENCE + self.rng.network.below(60 * SECOND) }
        } else {
            Stage::Out { at: self.now + delay }
        };
        self.calls_made += 1;
        let (id, from_boot) = (self.calls_made, self.nodes[from].id.boot);
        let gives_up_at = self.now + PATIENCE;
        let asked = Some(asked);
        let call = Call { id, from, from_boot, asked, op, stage, gives_up_at, given_at: 0, behind: None };
        if let (PeerOp::Push { message, .. }, Stage::Out { .. }) = (&call.op, stage)
            && self.rng.network.permille(twice)
        {
            self.marks.hit("call: push, twice");
            let post = self.identify(message);
            post.into_iter().for_each(|post| self.posts[post].pushed_twice = true);
            let slow = self.rng.network.permille(200);
            let within = if slow { 60 * SECOND } else { self.plan.delay + 1 };
            self.call_arrives_twice(&call, within);
        }
        if again {
            self.marks.hit("owed: said twice");
            self.call_arrives_twice(&call, 60 * SECOND);
        }
        self.calls.push(call);
    }

    /// A copy of a call, which nobody waits for, arrives within this time.
    fn call_arrives_twice(&mut self, call: &Call, within: u64) {
        self.calls_made += 1;
        let stage = Stage::Out { at: self.now + self.rng.network.below(within) };
        self.calls.push(Call { id: self.calls_made, asked: None, op: call.op.clone(), stage, ..*call });
    }

    /// Returns true if something can become of a call now.
    pub(super) fn call_moves(&self, at: usize) -> bool {
        let call = &self.calls[at];
        let (to, _) = Cluster::target(&call.op);
        let waited = call.asked.is_some();
        if waited && call.gives_up_at <= self.now && self.awake(call.from) {
            return true;
        }
        match call.stage {
            Stage::Refused { at } | Stage::Back { at, .. } => at <= self.now && (!waited || self.awake(call.from)),
            Stage::Out { at } => at <= self.now && (self.awake(to) || !self.nodes[to].up),
            Stage::There => false,
        }
    }

    /// A call goes on.
    pub(super) fn call_goes_on(&mut self, at: usize) -> Verdict {
        let call = &self.calls[at];
        let waited = call.asked.is_some();
        match call.stage {
            Stage::Refused { at: when } if when <= self.now => self.call_ends(at, CallEnd::NotConnected),
            Stage::Back { at: when, reply } if when <= self.now => self.call_ends(at, CallEnd::Answered(Some(reply))),
            _ if waited && call.gives_up_at <= self.now => {
                self.disorder = true;
                self.call_ends(at, CallEnd::NoAnswer)
            }
            Stage::Out { .. } => self.call_arrives(at),
            Stage::Refused { .. } | Stage::Back { .. } | Stage::There => Ok(()),
        }
    }

    /// The node it is for has it, unless it is gone by now.
    fn call_arrives(&mut self, at: usize) -> Verdict {
        let (to, boot) = Cluster::target(&self.calls[at].op);
        if !self.nodes[to].up || !self.reaches(self.calls[at].from, to) {
            self.disorder = true;
            self.calls[at].stage = Stage::Out { at: u64::MAX };
            return self.drop_if_forgotten(at);
        }
        if self.nodes[to].id.boot != boot {
            self.marks.hit("call: met another boot");
            return self.called_back(at, PeerReply::NotHere);
        }
        if self.call_left_out(&self.calls[at].op) {
            return self.called_back(at, PeerReply::Done);
        }
        let misled = self.rng.network.permille(self.plan.faults.misled);
        if let (true, PeerOp::Push { message: of, .. }) = (misled, &self.calls[at].op) {
            self.misled.insert(of.uaid);
            self.disorder = true;
            self.marks.hit("call: a node that has not the user answers");
            return self.called_back(at, PeerReply::NotHere);
        }
        let command = match self.calls[at].op.clone() {
            PeerOp::Push { message, stored, .. } => {
                self.marks.hit("call: push");
                let post = self.identify(&message)?;
                self.posts[post].pushed_late |= self.posts[post].asked;
                let message = self.copy_broken(to, post, &message);
                NodeCommand::Push(Box::new(NodePush { message, stored }))
            }
            PeerOp::Notify { uaid, unsure, .. } => {
                self.marks.hit(if unsure.is_some() { "call: notify, unsure" } else { "call: notify" });
                if let Some(post) = unsure.and_then(|row| self.by_stamp.get(&row.stamp)) {
                    self.posts[*post].asked = true;
                }
                NodeCommand::Notify(Box::new(NodeNotify { uaid, unsure }))
            }
            PeerOp::Leave { uaid, connected_at, .. } => {
                self.marks.hit("call: leave");
                NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid, connected_at }))
            }
        };
        (self.calls[at].stage, self.calls[at].given_at) = (Stage::There, self.now);
        let shard = self.rng.network.index(self.nodes[to].shards.len());
        self.request((to, shard), Pending::Call(self.calls[at].id), command.into())
    }

    /// A machine has answered a call.
    pub(super) fn call_answered(&mut self, id: u64, answer: NodeAnswer) -> Verdict {
        let Some(at) = self.calls.iter().position(|call| call.id == id) else { return Ok(()) };
        let reply = match answer {
            NodeAnswer::Done | NodeAnswer::Noted => PeerReply::Done,
            NodeAnswer::NotHere => PeerReply::NotHere,
            NodeAnswer::Busy => PeerReply::Busy,
            NodeAnswer::Held => PeerReply::Held,
        };
        self.marks.hit(&format!("call: answered {reply:?}"));
        if let (PeerReply::Busy | PeerReply::Held, PeerOp::Push { to, message, stored: false }) =
            (reply, &self.calls[at].op)
        {
            let (to, post) = (Cluster::node_of(to), self.identify(message)?);
            let refusal = (self.nodes[to].id.boot, self.calls[at].given_at, message.stamp);
            self.posts[post].refused_by.get_or_insert(refusal);
            self.calls[at].behind = self.sent_up_to(to, message.uaid);
        }
        if let PeerOp::Notify { to, unsure: Some(row), .. } = &self.calls[at].op {
            let (to, row) = (Cluster::node_of(to), *row);
            self.told(to, &row);
        }
        self.called_back(at, reply)
    }

    fn called_back(&mut self, at: usize, reply: PeerReply) -> Verdict {
        let (to, _) = Cluster::target(&self.calls[at].op);
        let lost = self.rng.network.permille(self.plan.faults.answer_lost) || !self.reaches(self.calls[at].from, to);
        if lost {
            self.disorder = true;
            self.marks.hit("call: answer lost");
            self.calls[at].stage = Stage::Back { at: u64::MAX, reply };
            return self.drop_if_forgotten(at);
        }
        let delay = self.rng.network.below(self.plan.delay + 1);
        self.calls[at].stage = Stage::Back { at: self.now + delay, reply };
        self.drop_if_forgotten(at)
    }

    /// A call without a waiter is over when its node has it.
    fn drop_if_forgotten(&mut self, at: usize) -> Verdict {
        if self.calls[at].asked.is_none() {
            self.calls.remove(at);
        }
        Ok(())
    }

    /// The caller hears of it, or gives up.
    fn call_ends(&mut self, at: usize, end: CallEnd) -> Verdict {
        let call = &mut self.calls[at];
        let (from, asked, op, behind) = (call.from, call.asked.take(), call.op.clone(), call.behind);
        let alive = self.nodes[from].up && self.nodes[from].id.boot == call.from_boot;
        // A call that was given up may still be carried out.
        if !matches!(call.stage, Stage::Out { at } if at != u64::MAX) && call.stage != Stage::There {
            self.calls.remove(at);
        }
        let Some(asked) = asked.filter(|_| alive) else { return Ok(()) };
        if let (
            CallEnd::Answered(Some(PeerReply::Busy | PeerReply::Held)),
            PeerOp::Push { message, stored: false, .. },
        ) = (end, &op)
        {
            self.refused(message, behind);
        }
        let (to, _) = Cluster::target(&op);
        let url = Arc::from(&*self.nodes[to].id.url);
        self.nodes[from].client.called(&url, asked, end, Instant(self.now));
        self.carry_out_calls(from)
    }

    /// A node is gone: its callers hear nothing, and its own calls may still be carried out.
    pub(super) fn calls_cut(&mut self, n: usize) {
        for at in (0..self.calls.len()).rev() {
            let call = &mut self.calls[at];
            let (to, _) = Cluster::target(&call.op);
            if call.from == n {
                call.asked = None;
                if matches!(call.stage, Stage::Refused { .. } | Stage::Back { .. } | Stage::There) {
                    self.calls.remove(at);
                }
            } else if to == n && call.stage == Stage::There {
                call.stage = Stage::Out { at: u64::MAX };
            }
        }
        self.calls.retain(|call| call.asked.is_some() || call.stage != Stage::Out { at: u64::MAX });
    }
}
