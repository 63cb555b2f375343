//! Meaning of a 201 over all nodes: the message is held by storage or by the ledger of a node, dead or alive, until it
//! has ended by a rule; and as long as no node took with it what it owed, it does not wait for the next hello.

use std::collections::BTreeSet;
use std::sync::Arc;

use machine::ids::{Clock, Stamp, Uaid};
use machine::message::Message;
use machine::{Disposition, RowKey, StoreOp};

use super::parts::{Breakage, Post, Reply, Work};
use super::sock::Place;
use super::world::Cluster;
use crate::shared::{Recipient, Verdict};

/// Time, in nanoseconds, for which a boot remembers which messages of other nodes ended there or were refused.
pub(super) const REMEMBERS: u64 = 90_000_000_000;
/// Time, in microseconds, for which low water stays behind the right time at least: 30 s of a write and the skew of its
/// clock, less what a clock drifts between two questions.
const VOUCH_LAG_US: u64 = 40_000_000;
/// `delivery.attempts_max`.
const ATTEMPTS_MAX: u32 = 10;

impl Cluster {
    /// Index of the POST that a message is from.
    pub(super) fn identify(&self, message: &Message) -> Result<usize, String> {
        let number = match message.update() {
            Some(update) => update.data.parse().ok(),
            None => message.payload.get(..8).and_then(|head| head.try_into().ok()).map(u64::from_be_bytes),
        };
        let index = number.map_or(usize::MAX, |number| number as usize);
        let post = self.posts.get(index).ok_or_else(|| format!("nobody POSTed {message:?}"))?;
        let same = (post.to.uaid, post.to.chid, post.topic, post.ttl)
            == (message.uaid, message.chid, message.topic, message.ttl);
        if same { Ok(index) } else { Err(format!("{message:?} is not as it was POSTed")) }
    }

    /// A stamped message passes by. Its stamp may change until it has been accepted or sent, to a later one only: a
    /// copy of a push that arrives late has the stamp from before.
    pub(super) fn sighted(&mut self, message: &Message) -> Result<usize, String> {
        let index = self.identify(message)?;
        if message.stamp == Stamp::default() {
            return Ok(index);
        }
        let post = &mut self.posts[index];
        if post.seen.is_none() && post.stamp.is_none_or(|stamp| stamp.clock <= message.stamp.clock) {
            // Its time begins when it is stamped, by the clock of that node.
            (post.stamp, post.expires) = (Some(message.stamp), message.expires().0);
        }
        match self.by_stamp.insert(message.stamp, index) {
            Some(other) if other != index => {
                Err(format!("{:?} names two messages, {other} and {index}", message.stamp))
            }
            _ => Ok(index),
        }
    }

    /// A 201.
    pub(super) fn accepted(&mut self, index: usize, stamp: Stamp, disposition: Disposition) -> Verdict {
        let post = &mut self.posts[index];
        post.seen = Some(self.steps);
        post.stamp = Some(stamp);
        self.by_stamp.insert(stamp, index);
        if disposition == Disposition::Dropped && post.ttl > 0 {
            return Err(format!("message {index} was dropped although its TTL is {}", post.ttl));
        }
        let post = &self.posts[index];
        if post.below {
            return Err(format!("message {index} is accepted below low water and was not saved again: {post:?}"));
        }
        // Where storage answers every question, the look behind the second write finds the nodes that must be told.
        let rows = self.store.user(post.to.uaid).map(|user| user.row().presence).unwrap_or_default();
        if self.plan.press.slow_store > 0 && !post.holders.is_empty() {
            if !post.holder_told && post.holders.iter().any(|row| rows.contains(row)) {
                return Err(format!("message {index} was saved again, and its holder is not told: {post:?}"));
            }
            self.marks.hit("low water: saved again, and its holder is told");
        }
        let post = &self.posts[index];
        if post.sent_as.is_some_and(|sent| sent != stamp) && !post.pushed_twice {
            return Err(format!("message {index} was sent under another id than its 201 says: {post:?}"));
        }
        // Stamps of two nodes do not say which was first where clocks differ, or one starts ahead of its floor.
        let one_time = self.one_time && self.boots == self.nodes.len() as u64;
        if one_time && post.refused_behind.is_some_and(|sent| sent.clock >= stamp.clock) {
            return Err(format!("message {index} was refused and is in front of what was sent before: {post:?}"));
        }
        let behind = |p: &Post| {
            (p.boot, p.to.uaid) == (post.boot, post.to.uaid)
                && p.seen.is_some_and(|seen| seen < post.start)
                && p.stamp > post.stamp
        };
        if self.posts.iter().any(behind) {
            return Err(format!("message {index} is older than an earlier 201 of its user and node"));
        }
        self.all_held(post.to.uaid, "at its 201")
    }

    /// Storage gives rows to a node. It cannot know of an ack that another boot has taken and not brought to storage.
    pub(super) fn given(&mut self, node: usize, messages: &[Arc<Message>]) -> Verdict {
        let boot = self.nodes[node].id.boot;
        for message in messages {
            let Ok(index) = self.identify(message) else { continue };
            let acker = self.posts[index].acked_by;
            if acker.is_none_or(|acker| acker != boot && self.settles(acker, message.uaid)) {
                self.posts[index].read_by.insert(boot);
            }
            let post = &self.posts[index];
            let deletes = post.settled_by.is_none_or(|boot| self.settles(boot, message.uaid));
            if post.told && !deletes && !self.settle_failed {
                return Err(format!(
                    "message {index} is read although a node that settled it was told of it: {post:?}"
                ));
            }
        }
        Ok(())
    }

    /// A boot has been told that there may be a row behind a push without an answer. When it has settled that message,
    /// it deletes the row.
    pub(super) fn told(&mut self, node: usize, row: &RowKey) {
        let boot = self.nodes[node].id.boot;
        let Some(index) = self.by_stamp.get(&row.stamp).copied() else { return };
        let post = &mut self.posts[index];
        let knows = post.acked_at.is_some_and(|at| self.now - at < REMEMBERS);
        if post.settled_by == Some(boot) && !post.pushed_twice {
            self.marks.hit(if knows {
                "unsure: told of a row that was settled"
            } else {
                "unsure: told of a row too late"
            });
            post.told |= knows;
            post.told_late |= !knows;
        }
    }

    /// Returns true if deletes of a user are on their way from this boot to storage. They wait in the boot behind each
    /// operation of that user that is tried again, also one that was put off once more when an earlier delete went.
    fn settles(&self, boot: u64, uaid: Uaid) -> bool {
        let Some(node) = self.nodes.iter().position(|node| node.id.boot == boot) else { return false };
        let asks =
            |work: &Work| work.node == node && matches!(work.op, StoreOp::Settle { .. }) && work.op.uaid() == uaid;
        // The next are sent when this is answered.
        let answered = |reply: &Reply| reply.node == node && reply.settles && reply.uaid == uaid;
        self.nodes[node].shards.iter().any(|shard| shard.machine.defers(uaid))
            || self.works.iter().any(asks)
            || self.replies.iter().any(answered)
    }

    /// Returns true if a message that was acked may be sent once more by this boot.
    pub(super) fn comes_again(&mut self, index: usize, boot: u64) -> bool {
        let post = &self.posts[index];
        let unknown = post.acked_by != Some(boot) && post.read_by.contains(&boot);
        if unknown {
            self.marks.hit("again: its delete was on its way from another node");
        }
        // Its node does not remember the ack for longer.
        let forgotten = post.turned_up && post.acked_at.is_some_and(|at| self.now - at >= REMEMBERS);
        unknown || forgotten || self.disorder || post.pushed_twice
    }

    /// The newest stamp that the sessions of a user on a node have been sent.
    pub(super) fn sent_up_to(&self, node: usize, uaid: Uaid) -> Option<Stamp> {
        let here = self.socks.iter().filter(|sock| sock.node == node && matches!(sock.place, Place::At(_)));
        here.filter(|sock| sock.served == Some(uaid)).filter_map(|sock| sock.sent_up_to).max()
    }

    /// A push was refused, and its node knows: the message must come behind what the session had been sent.
    pub(super) fn refused(&mut self, message: &Message, behind: Option<Stamp>) {
        let Ok(index) = self.identify(message) else { return };
        let post = &mut self.posts[index];
        if message.ttl > 0 && !post.pushed_twice {
            post.refused_behind = behind.filter(|newest| *newest > message.stamp);
        }
    }

    /// A node takes a direct. A push that it has refused stays refused: its POST may fail, and a message that it would
    /// replace was accepted.
    pub(super) fn taken(&self, node: usize, index: usize, stamp: Stamp) -> Verdict {
        let (post, boot) = (&self.posts[index], self.nodes[node].id.boot);
        // Its node stamps the message again.
        let copy = |(by, at, of): (u64, u64, Stamp)| by == boot && stamp <= of && self.now - at < REMEMBERS;
        if post.refused_by.is_some_and(copy) {
            return Err(format!("message {index} is taken from a late copy of a push that was refused: {post:?}"));
        }
        Ok(())
    }

    /// Rows behind an unsure push, and rows that a ledger leaves, have one place each: one delete ends such a row.
    pub(super) fn written(&mut self, message: &Message, saved: bool) -> Verdict {
        let index = self.identify(message)?;
        self.posts[index].below &= !saved;
        // A node that stood still between its push and the write behind it.
        let late = self.posts[index].acked_at.is_some_and(|at| self.now - at >= REMEMBERS);
        if late && !self.posts[index].written_late {
            self.marks.hit("store: written long after its ack");
            self.posts[index].written_late = true;
        }
        if message.topic.is_some() || message.ttl == 0 || self.posts[index].pushed_twice {
            return Ok(());
        }
        let low_water = self.store.user(message.uaid).map(|user| user.low_water).unwrap_or_default();
        // Low water covers the one form, and shows the other.
        let covered = message.stamp.clock <= low_water;
        let lies = self.store.user(message.uaid).is_some_and(|user| user.messages().any(|m| m.stamp == message.stamp));
        let forms = self.forms.entry(message.stamp).or_default();
        if lies && !covered && (if saved { forms.plain } else { forms.saved }) {
            return Err(format!("message {index} lies in two places of storage"));
        }
        forms.plain |= !saved && !covered;
        forms.saved |= saved || covered;
        Ok(())
    }

    /// A node tells storage that every message row up to this clock is settled. Another node may still write rows of
    /// the time that low water stays behind the right one: a write takes 30 s, and its clock may be wrong, too.
    pub(super) fn vouches(&self, node: usize, low_water: Clock) -> Verdict {
        let ahead = (low_water.0 + VOUCH_LAG_US).saturating_sub(self.right_us());
        // The world of that breakage goes on, to show what is lost.
        if ahead > 0 && self.breakage != Some(Breakage::ClockUnasked) {
            return Err(format!("node {node} vouches for {low_water:?}, {ahead} us too late"));
        }
        Ok(())
    }

    /// The rule by which a message has ended, other than by replacement.
    fn ended(&self, post: &Post) -> Option<&'static str> {
        let unregistered = self.channels.get(&(post.to.uaid, post.to.chid)).and_then(|channel| channel.unregistered);
        // An unregister without an answer that was read may have taken effect, or may still.
        let doubtful = post.channel.registered != Some(true) && post.channel.unregistered.is_some();
        if post.acked.is_some() {
            Some("fate: acked")
        } else if post.ttl == 0 {
            Some("fate: TTL 0")
        } else if post.cancelled {
            Some("fate: cancelled")
        } else if doubtful || unregistered.is_some_and(|until| until >= post.start) {
            Some("fate: channel unregistered")
        } else if self.wall_max >= post.expires {
            Some("fate: expired")
        } else if post.sent >= ATTEMPTS_MAX {
            Some("fate: sent in vain")
        } else if post.ack_odd {
            Some("fate: acked unseen")
        } else {
            None
        }
    }

    /// Returns true if a reader of the store is given it.
    pub(super) fn stored(&self, post: &Post) -> bool {
        let Post { to: Recipient { uaid, chid }, topic, .. } = *post;
        post.stamp.is_some_and(|stamp| self.store.row(&RowKey { uaid, chid, stamp, topic }).is_some())
    }

    fn replaced(&self, post: &Post, ledgered: &BTreeSet<usize>) -> bool {
        let replaces = |(index, newer): (usize, &Post)| {
            newer.slot() == post.slot()
                && newer.ttl > 0
                // An update that a higher version has overtaken is kept nowhere.
                && (newer.held || (newer.seen.is_some() && newer.version == 0))
                && newer.rank() > post.rank()
                && (self.stored(newer) || ledgered.contains(&index) || self.ended(newer).is_some())
        };
        post.topic.is_some() && self.posts.iter().enumerate().any(replaces)
    }

    /// Every accepted message of this user is held.
    pub(super) fn all_held(&self, uaid: Uaid, when: &str) -> Verdict {
        let mut ledgered = None;
        for (index, post) in self.posts.iter().enumerate().filter(|(_, post)| post.to.uaid == uaid) {
            if post.seen.is_none() || self.ended(post).is_some() || self.stored(post) {
                continue;
            }
            let ledgered = ledgered.get_or_insert_with(|| self.ledgered());
            if !ledgered.contains(&index) && !self.replaced(post, ledgered) {
                return Err(format!("message {index} is lost ({when}): {post:?}"));
            }
        }
        Ok(())
    }

    /// Every 201 has been kept; `excused` says for which messages the next hello is early enough.
    pub(super) fn conserved(&self, when: &str, excused: impl Fn(&Post) -> bool) -> Verdict {
        let none = BTreeSet::new();
        for (index, post) in self.posts.iter().enumerate() {
            let over = post.seen.is_none() || self.ended(post).is_some() || self.replaced(post, &none);
            // A user agent that was gone before its first register was answered has another UAID by now.
            let over = over || !self.agents.iter().any(|agent| agent.uaid == Some(post.to.uaid));
            if !over && !excused(post) {
                return Err(format!("message {index} waits ({when}): {post:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn count_fates(&mut self) {
        for index in 0..self.posts.len() {
            let post = &self.posts[index];
            if post.seen.is_some() {
                self.marks.hit(self.ended(post).unwrap_or("fate: replaced by topic"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use machine::ids::Chid;
    use machine::message::Urgency;
    use machine::placement::Placement;
    use machine::{AckUpdate, Command, SessionCommand};

    use super::*;
    use crate::cluster::plan::{Bridging, Faults, Plan, Press};
    use crate::cluster::world::ClusterEvent;
    use crate::shared::{PLACEMENT_KEY, SECOND};

    const CHID: Chid = Chid([1; 16]);

    /// One node on which nothing fails, and one user agent.
    fn calm_cluster() -> Cluster {
        let mut cluster = Cluster::new(0, (false, false), None);
        let sizes =
            Plan { nodes: 1, shards: 1, window: 8, durable: false, delay: 0, skew_us: 0, ..cluster.plan.clone() };
        let (faults, press, bridges) = (Faults::default(), Press::default(), Bridging::default());
        cluster.plan = Plan { faults, press, bridges, minimums: 0, simple: 0, ..sizes };
        cluster.agents.iter_mut().for_each(|agent| agent.simple = false);
        cluster.placement = Placement::new(PLACEMENT_KEY, 1);
        cluster.add_node(0).expect("the node boots");
        cluster
    }

    /// Lets everything happen that this admits.
    fn happens(cluster: &mut Cluster, admits: impl Fn(&ClusterEvent) -> bool) {
        while let Some(next) = cluster.enabled().into_iter().find(&admits) {
            cluster.happen(next).expect("no promise is broken");
        }
    }

    /// Gives the live session of the user agent a command, and lets everything else happen that this admits.
    fn says(cluster: &mut Cluster, command: SessionCommand, admits: impl Fn(&ClusterEvent) -> bool) {
        let id = cluster.agents[0].sock.expect("the user agent is connected");
        cluster.socks[id].inbox.push_back(Command::from(command));
        happens(cluster, admits);
    }

    fn connects(cluster: &mut Cluster) -> Uaid {
        cluster.now += 3 * SECOND;
        cluster.connect(0);
        happens(cluster, |_| true);
        cluster.agents[0].uaid.expect("the hello is answered")
    }

    /// Two messages of a user who has registered a channel and is connected: rows of storage that it was sent.
    fn two_rows(cluster: &mut Cluster) -> (Uaid, [SessionCommand; 2]) {
        let uaid = connects(cluster);
        says(cluster, SessionCommand::Register { chid: CHID, key: None, caller: None }, |_| true);
        cluster.leave(0);
        happens(cluster, |_| true);
        let posts = [(); 2].map(|()| cluster.posts_at(0, (uaid, CHID), 2_000_000, None).expect("it is POSTed"));
        happens(cluster, |_| true);
        assert_eq!(connects(cluster), uaid);
        let acks = posts.map(|post| {
            let post = &cluster.posts[post];
            assert!(post.sent == 1 && cluster.stored(post));
            let stamp = post.stamp.expect("it was accepted");
            SessionCommand::Ack(vec![AckUpdate { stamp, chid: CHID, topic: None, code: 100 }])
        });
        (uaid, acks)
    }

    /// The second delete waits behind a write that failed and was put off once more when the first delete went.
    #[test]
    fn deletes_that_are_put_off_at_different_times_are_all_on_their_way() {
        let mut cluster = calm_cluster();
        let (uaid, [first, second]) = two_rows(&mut cluster);
        let boot = cluster.nodes[0].id.boot;
        assert!(!cluster.settles(boot, uaid));
        cluster.plan.faults.store_error = 1_000;
        says(&mut cluster, SessionCommand::Urgency { minimum: Some(Urgency::Normal) }, |_| true);
        cluster.plan.faults.store_error = 0;
        says(&mut cluster, first, |_| true);
        says(&mut cluster, second, |_| true);
        says(&mut cluster, SessionCommand::Urgency { minimum: Some(Urgency::Low) }, |_| true);
        assert!(cluster.settles(boot, uaid) && cluster.works.is_empty());

        cluster.now += SECOND;
        happens(&mut cluster, |event| matches!(event, ClusterEvent::Timeout(..)));
        assert!(matches!(cluster.works[0].op, StoreOp::Settle { .. }));
        happens(&mut cluster, |_| true);
        let left = cluster.posts.iter().filter(|post| cluster.stored(post)).count();
        assert!(left == 1 && cluster.works.is_empty() && cluster.settles(boot, uaid));

        cluster.now += SECOND;
        happens(&mut cluster, |_| true);
        assert!(!cluster.settles(boot, uaid) && !cluster.posts.iter().any(|post| cluster.stored(post)));
    }
}
