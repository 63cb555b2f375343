//! Nodes that share the storage, and the calls between them.

use std::sync::Arc;

use super::{Mesh, config};
use crate::ids::{Clock, Origin, Uaid};
use crate::model::Model;
use crate::shard::*;

/// Fate of the calls to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Line {
    /// Carried out and answered.
    Up,
    /// Carried out; the answer is lost.
    Mute,
    /// Not carried out.
    Down,
    /// Under way.
    Held,
}

impl Mesh {
    /// Nodes of one shard each that share the storage.
    pub fn nodes(count: usize, tune: impl Fn(&mut MachineConfig)) -> Mesh {
        let mut mesh = Mesh::with(1, |_| {});
        mesh.machines.clear();
        mesh.store.model = Model::shared();
        for n in 0..count {
            let mut config = MachineConfig { origin: Origin(1_000 + n as u32), ..config(0, mesh.placement) };
            config.node = Some(Arc::new(node_id(n, 1)));
            tune(&mut config);
            mesh.machines.push(ShardMachine::new(config));
            mesh.lines.push(Line::Up);
        }
        mesh
    }

    /// Kills one node and starts it again as another boot: the contents of its ledger are saved.
    pub fn restart_node(&mut self, n: usize, boot: u64) {
        let config = MachineConfig {
            origin: Origin(2_000 + n as u32),
            clock_floor: Clock(self.now.unix_us),
            node: Some(Arc::new(node_id(n, boot))),
            ..self.machines[n].config.clone()
        };
        self.machines[n] = ShardMachine::new(config);
        let records: Vec<_> = self.ledger.keys().filter(|(shard, _)| *shard == n).copied().collect();
        for record in records {
            let message = self.ledger.remove(&record).expect("listed just now");
            self.store.save(message);
        }
        // Tickets of the dead boot mean something else in the next one.
        self.store.replies.retain(|(shard, ..)| *shard != n);
        self.store.held.retain(|(shard, ..)| *shard != n);
        self.calls.retain(|(from, ..)| *from != n);
    }

    /// Carries one call of a node to another; false if there is no call to carry.
    pub(super) fn deliver_call(&mut self) -> bool {
        let Some(at) = self.calls.iter().position(|(_, _, op)| self.lines[target(op).0] != Line::Held) else {
            return false;
        };
        let (from, ticket, op) = self.calls.remove(at).expect("found just now");
        let to = target(&op).0;
        let reply = match self.lines[to] {
            Line::Up => self.carry(&op),
            Line::Mute => {
                self.carry(&op);
                PeerReply::NoAnswer
            }
            Line::Down => PeerReply::Unreachable,
            Line::Held => unreachable!("held calls are not carried"),
        };
        if matches!((&op, reply), (PeerOp::Notify { .. }, PeerReply::NoAnswer | PeerReply::Unreachable)) {
            self.owed.push(op);
        }
        self.step(from, Input::Peer { ticket, reply });
        true
    }

    /// Carries a call out on the node it is for.
    fn carry(&mut self, op: &PeerOp) -> PeerReply {
        let (to, boot) = target(op);
        if self.machines[to].config.node.as_ref().is_none_or(|node| node.boot != boot) {
            return PeerReply::NotHere;
        }
        let command = match op.clone() {
            PeerOp::Push { message, stored, .. } => NodeCommand::Push(Box::new(NodePush { message, stored })),
            PeerOp::Notify { uaid, unsure, .. } => NodeCommand::Notify(Box::new(NodeNotify { uaid, unsure })),
            PeerOp::Leave { uaid, connected_at, .. } => {
                NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid, connected_at }))
            }
        };
        let conn = self.conn();
        self.step(to, Input::Command { conn, command: command.into() });
        match self.answers.get(&(to, conn.slot)).map(String::as_str) {
            Some("Done" | "Noted") => PeerReply::Done,
            Some("NotHere") => PeerReply::NotHere,
            Some("Busy") => PeerReply::Busy,
            Some("Held") => PeerReply::Held,
            other => panic!("a call was answered {other:?}"),
        }
    }

    /// Makes the owed calls to nodes that answer.
    pub fn call_again(&mut self) {
        for op in std::mem::take(&mut self.owed) {
            if self.lines[target(&op).0] == Line::Up {
                self.carry(&op);
            } else {
                self.owed.push(op);
            }
        }
        self.run();
    }
}

/// Call of another node that has stored a message.
pub fn notify(uaid: Uaid) -> NodeCommand {
    NodeCommand::Notify(Box::new(NodeNotify { uaid, unsure: None }))
}

/// Returns a boot of the `n`th node.
pub fn node_id(n: usize, boot: u64) -> NodeId {
    NodeId { url: format!("http://node/{n}").into(), boot }
}

/// Returns the node that a call is for, and its boot.
fn target(op: &PeerOp) -> (usize, u64) {
    let (PeerOp::Push { to, .. } | PeerOp::Notify { to, .. } | PeerOp::Leave { to, .. }) = op;
    let n = to.url.rsplit('/').next().and_then(|n| n.parse().ok());
    (n.expect("nodes of tests are numbered"), to.boot)
}
