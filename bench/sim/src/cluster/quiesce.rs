//! The end of every cluster: faults off, every node up, every user agent connects, reads and acks. Then nothing may be
//! missing.

use std::collections::BTreeSet;

use machine::ids::{Chid, Uaid};
use machine::limits;
use machine::{Presence, StoreOp};

use super::parts::Post;
use super::plan::Faults;
use super::sock::{Channel, Place, SockId};
use super::world::Cluster;
use crate::shared::Verdict;

/// Turns in which a cluster without faults comes to rest.
const TURNS_MAX: u32 = 100_000;

impl Cluster {
    /// Runs the calm part and the last checks.
    pub(super) fn quiesce(&mut self) -> Verdict {
        self.weather_clears()?;
        // Long enough for a Ping to find sockets that do not answer, for each word that is owed to be said, and for
        // those that were left to be found.
        self.settle(self.plan.ping_interval.0 / 1_000_000_000 * 2 + 400)?;
        self.phones_are_reached()?;
        let lost = self.word_lost;
        let misled = self.misled.clone();
        let (untold, of_users) = (self.untold, self.untold_users.clone());
        let excused = |post: &Post| {
            let of_user = of_users.get(&post.to.uaid).copied().unwrap_or_default();
            post.start <= untold.max(of_user) || misled.contains(&post.to.uaid)
        };
        self.conserved("beside its session", excused)?;
        self.cleared(lost)?;
        let stale = self.post_everywhere()?;
        self.settle(120)?;
        self.all_gone(&stale)?;
        let left = self.left_without_pings();
        let held = |post: &Post| post.sent == 0 && left.contains(&post.to.uaid);
        self.conserved("every session got one more message", |post| excused(post) || held(post))?;
        self.all_placed(&misled)?;
        self.doubts_place(&misled)?;
        self.interval_passes()?;
        self.conserved("every session was refreshed", |_| false)?;
        self.all_placed(&BTreeSet::new())?;
        let mut over = Vec::new();
        for index in 0..self.agents.len() {
            over.extend(self.row_of(index));
            self.leave(index);
        }
        self.settle(200)?;
        self.all_gone(&over)?;
        self.conserved("every user came back", |_| false)?;
        self.at_rest()?;
        self.count_fates();
        (0..self.nodes.len()).for_each(|n| self.count_machines(n));
        Ok(())
    }

    /// Every live session is refreshed. Then the copies of presence rows that were there before expire: each is a
    /// tombstone of its version, which wins a tie.
    fn interval_passes(&mut self) -> Verdict {
        let users = self.agents.iter().filter_map(|agent| agent.uaid);
        let rows = users.filter_map(|uaid| Some((uaid, self.store.user(uaid)?.row().presence)));
        let first: Vec<_> = rows.collect();
        self.now += limits::REFRESH_INTERVAL_SECONDS * 1_000_000_000;
        // Rounds of a sweep that comes by for refreshes only, a look at storage, and the Pings of a week at once.
        self.refreshing = true;
        self.settle(600)?;
        self.refreshing = false;
        for (uaid, rows) in first {
            for presence in rows {
                let _ = self.effect(&StoreOp::ClearPresence { uaid, presence })?;
            }
        }
        Ok(())
    }

    fn weather_clears(&mut self) -> Verdict {
        self.log(None, format_args!("calm"));
        self.plan.faults = Faults::default();
        self.calm = true;
        self.twins.clear();
        let soon = self.now + 3_000_000_000;
        self.agents.iter_mut().for_each(|agent| agent.retry_at = agent.retry_at.min(soon));
        for id in self.agents.iter().filter_map(|agent| agent.sock).collect::<Vec<_>>() {
            self.acks(id, true);
            self.lowers_when_calm(id);
        }
        self.service_recovers();
        self.cuts.clear();
        self.rolling.clear();
        for node in &mut self.nodes {
            (node.paused_until, node.store_cut_until, node.kept_at) = (0, 0, 0);
        }
        for n in (0..self.nodes.len()).filter(|n| self.nodes[*n].runs_away).collect::<Vec<_>>() {
            self.set_clock_right(n);
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
            if self.plan.minimums > 0 && self.plan.release_on_activity.0 > 0 {
                self.speaks();
            }
            let idle = self.works.is_empty() && self.calls.is_empty() && self.bridges.calls.is_empty();
            if self.now >= until && idle && self.enabled().is_empty() {
                return Ok(());
            }
            self.turn()?;
        }
        Err(format!("still busy after {TURNS_MAX} turns without faults"))
    }

    /// Goes on until every request is answered.
    pub(super) fn answers(&mut self) -> Verdict {
        for _ in 0..TURNS_MAX {
            if self.pending.is_empty() {
                return Ok(());
            }
            self.turn()?;
        }
        Err(format!("{:?} waits although nothing fails", self.pending.values().next()))
    }

    /// Channels that are certainly registered and whose user agent knows so.
    fn sure_channels(&self) -> Vec<(Uaid, Chid)> {
        // The others were registered by a socket that was left, perhaps behind the hello of the session of now.
        let told = |(uaid, chid): (Uaid, Chid), channel: &Channel| {
            let agent = self.agents.iter().find(|agent| agent.uaid == Some(uaid) && agent.channels.contains(&chid));
            let sock = agent.and_then(|agent| agent.sock);
            let before = |(id, step): (SockId, u64)| sock.is_some_and(|now| id == now || step < self.socks[now].since);
            channel.registered == Some(true) && channel.registered_on.is_some_and(before)
        };
        let sure = self.channels.iter().filter(|(key, channel)| told(**key, channel));
        sure.map(|(key, _)| *key).collect()
    }

    /// One message to every channel of these: all are accepted. Returns the rows that their nodes find out to lead
    /// nowhere.
    fn post_everywhere(&mut self) -> Result<Vec<(Uaid, Presence)>, String> {
        let mut stale = Vec::new();
        for (uaid, chid) in self.sure_channels() {
            let rows = self.stale_rows(uaid);
            let posted = self.posts(uaid, chid, 2_000_000, None)?;
            let at = posted.map(|post| self.posts[post].landed);
            if at.is_some_and(|node| !self.has_session(node, uaid)) {
                stale.extend(rows.into_iter().map(|row| (uaid, row)));
            }
            self.answers()?;
            if posted.is_none_or(|post| self.posts[post].seen.is_none()) {
                return Err(format!("{posted:?} was not accepted although nothing fails"));
            }
        }
        Ok(stale)
    }

    /// The row of the session that a user agent is connected to.
    fn row_of(&self, index: usize) -> Option<(Uaid, Presence)> {
        let agent = &self.agents[index];
        let (uaid, sock) = (agent.uaid?, &self.socks[agent.sock?]);
        let rows = self.store.user(uaid)?.row().presence;
        let here = &self.nodes[sock.node].id;
        rows.into_iter().find(|row| row.node == *here && matches!(sock.place, Place::At(_))).map(|row| (uaid, row))
    }

    /// Rows of a user without a session there that are newer than the row of the session: a POST elsewhere asks there
    /// first.
    fn stale_rows(&self, uaid: Uaid) -> Vec<Presence> {
        let index = self.agents.iter().position(|agent| agent.uaid == Some(uaid));
        let Some((_, mine)) = index.and_then(|index| self.row_of(index)) else { return Vec::new() };
        let rows = self.store.user(uaid).map(|user| user.row().presence).unwrap_or_default();
        let newer =
            rows.into_iter().filter(|row| row.connected_at > mine.connected_at && row.node.url != mine.node.url);
        newer.filter(|row| !self.has_session(Cluster::node_of(&row.node), uaid)).collect()
    }

    fn has_session(&self, node: usize, uaid: Uaid) -> bool {
        self.nodes[node].shards.iter().any(|shard| shard.machine.is_resident(uaid))
    }

    /// These rows were cleared, each in its version.
    fn all_gone(&self, rows: &[(Uaid, Presence)]) -> Verdict {
        let is_there = |uaid, row| self.store.user(uaid).is_some_and(|user| user.row().presence.contains(row));
        match rows.iter().find(|(uaid, row)| is_there(*uaid, row)) {
            Some((uaid, row)) => Err(format!("{row:?} of {uaid:?} leads nowhere and stays")),
            None => Ok(()),
        }
    }

    /// Returns true if the channel of a message is registered only because its last unregister failed.
    fn is_left(&self, post: &Post) -> bool {
        let channel = self.channels.get(&(post.to.uaid, post.to.chid));
        channel.is_some_and(|channel| channel.unregistered > channel.registered_on.map(|(_, step)| step))
    }

    /// No row of a message that was acked is left in storage: it would come again. That holds for a POST that was
    /// refused, too, because a push of it may have been carried out. A node that died may have taken with it what would
    /// have ended the rows of messages that were POSTed before. A row that came long after the ack is not known to be
    /// settled, and neither is one of a refused POST whose push arrived when its node had been asked about it.
    fn cleared(&self, lost: u64) -> Verdict {
        for (index, post) in self.posts.iter().enumerate() {
            let acked = post.acked.is_some() && !post.cancelled && !post.pushed_twice && !post.written_late;
            // Its row landed late, too: the node that the push reached was not told to look for it.
            let acked = acked && (post.seen.is_some() || !post.pushed_late);
            let acked = acked && !self.misled.contains(&post.to.uaid);
            // A session whose unregister failed has the channel no more, and leaves such a row to the next one.
            let acked = acked && !(post.told_late && self.is_left(post));
            if acked && post.start > lost && self.wall_max < post.expires && self.stored(post) {
                return Err(format!("message {index} was acked and is stored still: {post:?}"));
            }
        }
        Ok(())
    }

    /// A session whose row was cleared by mistake writes it again when something stays unacked.
    fn doubts_place(&mut self, misled: &BTreeSet<Uaid>) -> Verdict {
        let mut unacked = BTreeSet::new();
        for (uaid, chid) in self.sure_channels() {
            let sock = self.agents.iter().find(|agent| agent.uaid == Some(uaid)).and_then(|agent| agent.sock);
            let Some(sock) = sock.map(|id| &self.socks[id]).filter(|sock| matches!(sock.place, Place::At(_))) else {
                continue;
            };
            if misled.contains(&uaid) && !self.has_row(uaid, sock.node) && unacked.insert(uaid) {
                self.marks.hit("presence: cleared by mistake");
                let _ = self.posts_at(sock.node, (uaid, chid), 2_000_000, None)?;
            }
        }
        if unacked.is_empty() {
            return Ok(());
        }
        self.withholds = true;
        self.settle(90)?;
        self.withholds = false;
        for id in self.agents.iter().filter_map(|agent| agent.sock).collect::<Vec<_>>() {
            self.acks(id, true);
        }
        self.settle(10)?;
        self.all_placed(&misled.difference(&unacked).copied().collect())
    }

    fn has_row(&self, uaid: Uaid, node: usize) -> bool {
        let here = &self.nodes[node].id;
        self.store.user(uaid).is_some_and(|user| user.row().presence.iter().any(|row| row.node == *here))
    }

    /// Users whose session on another node is that of a socket that they left unseen. Without Pings only a message that
    /// is sent and stays unacked shows it, and what the minimum urgency of that session holds is not sent. The refresh
    /// of the other session finds such a message.
    fn left_without_pings(&self) -> BTreeSet<Uaid> {
        if self.plan.ping_interval.0 > 0 || self.plan.minimums == 0 {
            return BTreeSet::new();
        }
        let served = self.agents.iter().filter_map(|agent| Some((agent.uaid?, self.socks[agent.sock?].node)));
        served
            .filter(|(uaid, here)| (0..self.nodes.len()).any(|n| n != *here && self.has_session(n, *uaid)))
            .map(|(uaid, _)| uaid)
            .collect()
    }

    /// Every session of a user whom storage knows has its row there, so that other nodes find it.
    fn all_placed(&self, but: &BTreeSet<Uaid>) -> Verdict {
        for (index, agent) in self.agents.iter().enumerate() {
            let served = agent.sock.map(|id| &self.socks[id]).filter(|sock| matches!(sock.place, Place::At(_)));
            let Some((sock, uaid)) = served.zip(agent.uaid) else { continue };
            if self.store.user(uaid).is_some() && !but.contains(&uaid) && !self.has_row(uaid, sock.node) {
                return Err(format!("agent {index} is on node {} and no row says so", sock.node));
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
            if node.client.owed() > 0 {
                return Err(format!("node {n} owes a word at rest"));
            }
            if let Some(message) = node.shards.iter().flat_map(|shard| shard.ledger.values()).chain(&node.left).next() {
                return Err(format!("node {n} has {message:?} in a ledger at rest"));
            }
        }
        if let Some((to, row)) = self.debts.first_key_value() {
            return Err(format!("{row:?} to {to:?} stays"));
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
            // Without Pings an idle session whose user agent has left unseen stays.
            let pings = self.plan.ping_interval.0 > 0;
            if pings && elsewhere.flat_map(|(_, node)| &node.shards).any(|shard| shard.machine.is_resident(uaid)) {
                return Err(format!("agent {index} has a session on two nodes at rest"));
            }
        }
        Ok(())
    }
}
