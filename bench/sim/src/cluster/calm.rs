//! The end of every cluster: faults off, every node up, every user agent connects, reads and acks. Then nothing may be
//! missing.

use super::agents::Place;
use super::plan::Faults;
use super::world::Cluster;
use crate::world::Verdict;

/// Turns in which a cluster without faults comes to rest.
const TURNS_MAX: u32 = 100_000;

impl Cluster {
    /// Runs the calm part and the last checks.
    pub(super) fn calm_down(&mut self) -> Verdict {
        self.weather_clears()?;
        // Long enough for a Ping to find sockets that do not answer, and for each word that is owed to be said.
        self.settle(self.plan.ping_interval.0 / 1_000_000_000 * 2 + 400)?;
        let lost = self.word_lost;
        self.conserved("beside its session", |post| post.start <= lost)?;
        self.post_everywhere()?;
        self.settle(120)?;
        self.conserved("everybody got one more", |post| post.start <= lost)?;
        for index in 0..self.agents.len() {
            self.leave(index);
        }
        self.settle(200)?;
        self.conserved("everybody came back", |_| false)?;
        self.at_rest()?;
        self.count_fates();
        (0..self.nodes.len()).for_each(|n| self.count_machines(n));
        Ok(())
    }

    fn weather_clears(&mut self) -> Verdict {
        self.log(None, format_args!("calm"));
        self.plan.faults = Faults::default();
        self.calm = true;
        for id in self.agents.iter().filter_map(|agent| agent.sock).collect::<Vec<_>>() {
            self.acks(id, true);
        }
        self.cuts.clear();
        self.rolling.clear();
        for node in &mut self.nodes {
            (node.paused_until, node.store_cut_until) = (0, 0);
        }
        for _ in 0..TURNS_MAX {
            if self.nodes.iter().all(|node| node.up && node.stopping.is_none()) {
                return Ok(());
            }
            self.turn()?;
        }
        Err("a node does not start or stop although nothing fails".to_owned())
    }

    /// Lets at least `seconds` pass, and then everything happen that is still due.
    fn settle(&mut self, seconds: u64) -> Verdict {
        let until = self.now + seconds * 1_000_000_000;
        for _ in 0..TURNS_MAX {
            for index in 0..self.agents.len() {
                if self.agents[index].sock.is_none() {
                    self.connect(index);
                }
            }
            if self.now >= until && self.works.is_empty() && self.calls.is_empty() && self.enabled().is_empty() {
                return Ok(());
            }
            self.turn()?;
        }
        Err(format!("still busy after {TURNS_MAX} turns without faults"))
    }

    /// One message to every channel that is certainly registered and whose user agent knows so: all are accepted.
    fn post_everywhere(&mut self) -> Verdict {
        // The others were registered by a socket that was left, perhaps behind the hello of the session of now.
        let told = |(uaid, chid)| self.agents.iter().any(|a| a.uaid == Some(uaid) && a.channels.contains(&chid));
        let sure = self.channels.iter().filter(|(key, channel)| channel.registered == Some(true) && told(**key));
        for (uaid, chid) in sure.map(|(key, _)| *key).collect::<Vec<_>>() {
            let posted = self.posts(uaid, chid, 2_000_000, None)?;
            for _ in 0..TURNS_MAX {
                if self.pending.is_empty() {
                    break;
                }
                self.turn()?;
            }
            if posted.is_none_or(|post| self.posts[post].seen.is_none()) {
                return Err(format!("{posted:?} was not accepted although nothing fails"));
            }
        }
        Ok(())
    }

    /// Nothing is under way, nothing is owed.
    fn at_rest(&mut self) -> Verdict {
        for (n, node) in self.nodes.iter().enumerate() {
            if node.shards.iter().any(|shard| !shard.machine.is_quiet()) {
                return Err(format!("node {n} has work under way at rest"));
            }
            if !node.owed.is_empty() {
                return Err(format!("node {n} owes a word at rest"));
            }
            if let Some(message) = node.shards.iter().flat_map(|shard| shard.ledger.values()).chain(&node.left).next() {
                return Err(format!("node {n} has {message:?} in a ledger at rest"));
            }
        }
        if let Some(pending) = self.pending.values().next() {
            return Err(format!("{pending:?} waits at rest"));
        }
        for (index, agent) in self.agents.iter().enumerate() {
            let served = agent.sock.map(|id| &self.socks[id]);
            let served = served.filter(|sock| matches!(sock.place, Place::At(_)));
            let Some((sock, uaid)) = served.zip(agent.uaid) else {
                return Err(format!("agent {index} is not served at rest"));
            };
            let machine = &self.nodes[sock.node].shards[sock.shard].machine;
            if !machine.is_resident(uaid) || machine.window_len(uaid) > 0 {
                return Err(format!("agent {index} has a window of {} at rest", machine.window_len(uaid)));
            }
            let elsewhere = self.nodes.iter().enumerate().filter(|(n, _)| *n != sock.node);
            if elsewhere.flat_map(|(_, node)| &node.shards).any(|shard| shard.machine.is_resident(uaid)) {
                return Err(format!("agent {index} has a session on two nodes at rest"));
            }
        }
        Ok(())
    }
}
