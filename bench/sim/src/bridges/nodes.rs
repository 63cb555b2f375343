//! Nodes: start, death, orderly stop, and what else happens to them.

use std::sync::Arc;

use machine::ids::{Clock, Origin, ShardId};
use machine::{Input, MachineConfig, NodeId, ShardMachine};

use super::parts::{Node, Shard};
use super::world::Bridges;
use crate::shared::{SECOND, Verdict};

impl Bridges {
    pub(super) fn add_node(&mut self, n: usize) {
        let offset_us = self.draw_offset();
        let node = Node { up: false, returns_at: 0, shards: Vec::new(), floor: Clock(0), offset_us, stopping: None };
        self.nodes.push(node);
        self.boot(n);
    }

    pub(super) fn boot(&mut self, n: usize) {
        self.boots += 1;
        let boot = self.boots;
        self.log(Some(n), format_args!("boots"));
        let id = (self.plan.nodes > 1).then(|| Arc::new(NodeId { url: format!("http://node/{n}").into(), boot }));
        let shards = (0..self.plan.shards).map(|shard| {
            let config = MachineConfig {
                origin: Origin(self.rng.schedule.bits() as u32),
                clock_floor: self.nodes[n].floor,
                node: id.clone(),
                ..MachineConfig::new(ShardId(shard), self.placement)
            };
            let machine = ShardMachine::new(config);
            Shard { machine, lanes: Default::default(), stalled_until: 0, drained: false }
        });
        let shards = shards.collect();
        let node = &mut self.nodes[n];
        (node.up, node.shards, node.stopping) = (true, shards, None);
    }

    /// The process ends between any two inputs. What storage has stays.
    fn kill(&mut self, n: usize) -> Verdict {
        self.log(Some(n), format_args!("kill -9"));
        self.marks.hit("node: killed");
        self.end_boot(n)
    }

    fn end_boot(&mut self, n: usize) -> Verdict {
        self.count_machines(n);
        let node = &mut self.nodes[n];
        (node.up, node.stopping) = (false, None);
        node.returns_at = self.now + self.rng.faults.below(20 * SECOND);
        node.shards.clear();
        self.calls.retain(|call| call.at.0 != n);
        let (cut, rest) = std::mem::take(&mut self.requests).into_iter().partition(|(at, _)| at.0 == n);
        self.requests = rest;
        for request in std::collections::BTreeMap::into_values(cut) {
            self.unanswered(&request);
        }
        self.works_cut(n)
    }

    /// SIGTERM.
    fn stop(&mut self, n: usize) -> Verdict {
        if self.nodes[n].stopping.is_some() || !self.nodes[n].up {
            return Ok(());
        }
        self.marks.hit("node: told to stop");
        self.nodes[n].stopping = Some(self.now + 60 * SECOND);
        (0..self.nodes[n].shards.len()).try_for_each(|s| self.step(n, s, Input::Drain { rate: 100 }))
    }

    /// Ends boots that are drained.
    pub(super) fn stops_end(&mut self) -> Verdict {
        for n in 0..self.nodes.len() {
            let Some(deadline) = self.nodes[n].stopping else { continue };
            let idle = !self.works.iter().any(|work| work.at.0 == n) && !self.replies.iter().any(|r| r.at.0 == n);
            if self.nodes[n].shards.iter().all(|shard| shard.drained) && idle {
                if let Some(request) = self.requests.iter().find(|(at, _)| at.0 == n) {
                    return Err(format!("node {n} says Drained and has not answered {request:?}"));
                }
                self.marks.hit("node: stopped in order");
                self.end_boot(n)?;
            } else if self.now >= deadline {
                return Err(format!("node {n} is not drained after a minute"));
            }
        }
        Ok(())
    }

    /// One of the faults of the surroundings, perhaps.
    pub(super) fn weather(&mut self) -> Verdict {
        let faults = self.plan.faults.clone();
        let n = self.rng.faults.index(self.nodes.len());
        if self.rng.faults.permille(faults.clock_set) {
            self.marks.hit("node: clock set");
            self.nodes[n].offset_us = self.draw_offset();
        }
        if self.rng.faults.permille(faults.guard) {
            self.marks.hit("guard: active");
            self.guard_until = self.now + self.rng.faults.below(900 * SECOND);
        } else if self.rng.faults.permille(faults.guard) {
            self.guard_until = self.now;
        }
        if self.rng.faults.permille(faults.stall) && self.nodes[n].up {
            self.marks.hit("node: shard stalls");
            let shard = self.rng.faults.index(self.nodes[n].shards.len());
            self.nodes[n].shards[shard].stalled_until = self.now + self.rng.faults.below(5 * SECOND);
        }
        if self.rng.faults.permille(faults.kill) && self.nodes[n].up {
            return self.kill(n);
        }
        if self.rng.faults.permille(faults.stop) { self.stop(n) } else { Ok(()) }
    }

    fn draw_offset(&mut self) -> i64 {
        let skew = self.plan.skew_us;
        self.rng.faults.between(0, 2 * skew) as i64 - skew as i64
    }

    /// Adds what the machines of this boot counted to the marks.
    pub(super) fn count_machines(&mut self, n: usize) {
        self.marks.count_machines(self.nodes[n].shards.iter_mut().map(|shard| &mut shard.machine));
    }
}
