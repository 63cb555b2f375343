//! Rest: nothing fails any more, everything under way ends, and every phone registers a new token and is reached.

use super::parts::{Asked, Mood};
use super::plan::Faults;
use super::world::Bridges;
use crate::shared::Verdict;

impl Bridges {
    pub(super) fn quiesce(&mut self) -> Verdict {
        self.log(None, format_args!("calm"));
        self.plan.faults = Faults::default();
        self.plan.whims = 0;
        self.calm = true;
        self.guard_until = self.now;
        self.devices.iter_mut().for_each(|device| device.mood = Mood::Fine);
        self.settle()?;
        self.settled = true;
        for phone in 0..self.phones.len() {
            let device = self.new_device();
            self.asks(phone, Asked::Update(device))?;
            self.settle()?;
            if self.phones[phone].uaid.is_none() {
                self.registers(phone)?;
                self.settle()?;
            }
            let Some(uaid) = self.phones[phone].uaid else { return Err("a phone could not register".to_owned()) };
            let chid = machine::ids::Chid(self.rng.clients.bytes16());
            self.asks(phone, Asked::Subscribe(chid))?;
            self.settle()?;
            self.posts(phone, (uaid, chid))?;
            self.settle()?;
        }
        for n in 0..self.nodes.len() {
            if !self.nodes[n].shards.iter().all(|shard| shard.machine.is_quiet()) {
                return Err(format!("node {n} has something under way at rest"));
            }
            self.count_machines(n);
        }
        Ok(())
    }

    /// Goes on until nothing is under way.
    fn settle(&mut self) -> Verdict {
        for _ in 0..100_000 {
            let lanes = || self.nodes.iter().flat_map(|node| &node.shards).flat_map(|shard| &shard.lanes);
            let nodes = self.nodes.iter().all(|node| node.up && node.stopping.is_none());
            let storage = self.works.is_empty() && self.replies.is_empty() && self.late.is_empty();
            let idle = self.requests.is_empty() && self.calls.is_empty() && lanes().all(|lane| lane.is_empty());
            if nodes && storage && idle {
                return Ok(());
            }
            self.turn()?;
        }
        Err("the world is still busy".to_owned())
    }
}
