//! What 201 means, over all nodes: the message is held by storage or by the ledger of a node, dead or alive, until it
//! has ended by a rule; and as long as no node took with it what it owed, it does not wait for the next hello.

use std::collections::BTreeSet;

use shards::ids::{Chid, Stamp, Uaid};
use shards::machine::{Disposition, RowKey};
use shards::message::{Message, Rank, Topic};

use super::agents::Channel;
use super::world::Cluster;
use crate::world::Verdict;

/// One POST. Times are steps of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub(super) uaid: Uaid,
    pub(super) chid: Chid,
    pub(super) topic: Option<Topic>,
    pub(super) ttl: u32,
    /// Its channel when it was sent.
    pub(super) channel: Channel,
    pub(super) start: u64,
    /// The run of the node where it landed.
    run: u64,
    /// When its 201 was written.
    pub(super) seen: Option<u64>,
    pub(super) stamp: Option<Stamp>,
    /// Under which identity user agents were sent it.
    pub(super) sent_as: Option<Stamp>,
    expires: u64,
    /// It was in storage or in a ledger at some time.
    pub(super) held: bool,
    pub(super) sent: u32,
    pub(super) acked: Option<u64>,
    pub(super) cancelled: bool,
}

/// `delivery.attempts_max`.
const ATTEMPTS_MAX: u32 = 10;

impl Post {
    pub(super) fn new(message: &Message, channel: Channel, start: u64, run: u64) -> Post {
        Post {
            uaid: message.uaid,
            chid: message.chid,
            topic: message.topic,
            ttl: message.ttl,
            channel,
            start,
            run,
            seen: None,
            stamp: None,
            sent_as: None,
            expires: message.expires().0,
            held: false,
            sent: 0,
            acked: None,
            cancelled: false,
        }
    }

    fn rank(&self) -> Option<Rank> {
        self.stamp.map(|stamp| Rank::new(0, stamp))
    }

    fn slot(&self) -> Option<(Uaid, Chid, Topic)> {
        self.topic.map(|topic| (self.uaid, self.chid, topic))
    }
}

impl Cluster {
    /// Which POST a message is.
    pub(super) fn identify(&self, message: &Message) -> Result<usize, String> {
        let number = message.payload.get(..8).and_then(|head| head.try_into().ok()).map(u64::from_be_bytes);
        let index = number.map_or(usize::MAX, |number| number as usize);
        let post = self.posts.get(index).ok_or_else(|| format!("nobody POSTed {message:?}"))?;
        let same =
            (post.uaid, post.chid, post.topic, post.ttl) == (message.uaid, message.chid, message.topic, message.ttl);
        if same { Ok(index) } else { Err(format!("{message:?} is not as it was POSTed")) }
    }

    /// A stamped message passes by. Its stamp may change until it has been accepted or sent.
    pub(super) fn sighted(&mut self, message: &Message) -> Result<usize, String> {
        let index = self.identify(message)?;
        if message.stamp == Stamp::default() {
            return Ok(index);
        }
        let post = &mut self.posts[index];
        if post.seen.is_none() {
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
        if post.sent_as.is_some_and(|sent| sent != stamp) {
            return Err(format!("message {index} was sent under another id than its 201 says: {post:?}"));
        }
        let behind = |p: &Post| {
            (p.run, p.uaid) == (post.run, post.uaid)
                && p.seen.is_some_and(|seen| seen < post.start)
                && p.stamp > post.stamp
        };
        if self.posts.iter().any(behind) {
            return Err(format!("message {index} is older than an earlier 201 of its user and node"));
        }
        self.all_held(post.uaid, "at its 201")
    }

    /// The rule by which a message has ended, other than by replacement.
    fn ended(&self, post: &Post) -> Option<&'static str> {
        let unregistered = self.channels.get(&(post.uaid, post.chid)).and_then(|channel| channel.unregistered);
        // An unregister whose answer nobody has seen may have taken effect, or may still.
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
        } else {
            None
        }
    }

    /// True if a reader of the store is given it.
    fn stored(&self, post: &Post) -> bool {
        let Post { uaid, chid, topic, .. } = *post;
        post.stamp.is_some_and(|stamp| self.store.row(&RowKey { uaid, chid, stamp, topic }).is_some())
    }

    fn replaced(&self, post: &Post, ledgered: &BTreeSet<usize>) -> bool {
        let replaces = |(index, newer): (usize, &Post)| {
            newer.slot() == post.slot()
                && newer.ttl > 0
                && (newer.held || newer.seen.is_some())
                && newer.rank() > post.rank()
                && (self.stored(newer) || ledgered.contains(&index) || self.ended(newer).is_some())
        };
        post.topic.is_some() && self.posts.iter().enumerate().any(replaces)
    }

    /// Every accepted message of this user is held.
    pub(super) fn all_held(&self, uaid: Uaid, when: &str) -> Verdict {
        let mut ledgered = None;
        for (index, post) in self.posts.iter().enumerate().filter(|(_, post)| post.uaid == uaid) {
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
            let over = over || !self.agents.iter().any(|agent| agent.uaid == Some(post.uaid));
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
