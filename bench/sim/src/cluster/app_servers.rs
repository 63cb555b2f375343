//! App servers: POSTs and cancels that land on any node.

use std::sync::Arc;

use machine::ids::{Chid, ConnId, Stamp, Uaid};
use machine::message::{Message, Topic, Urgency};
use machine::{Cancel, Disposition, Event, Input, Publish, Published, SenderCommand, SenderEvent};

use super::parts::{Pending, Post};
use super::world::Cluster;
use crate::shared::Verdict;

const LASTING: u32 = 2_000_000;

impl Cluster {
    /// The world around does something.
    pub(super) fn act(&mut self, idle: bool) -> Verdict {
        self.weather()?;
        match self.rng.clients.below(10) {
            0..4 => {
                self.agent_acts();
                Ok(())
            }
            4..7 => self.poster_acts(),
            _ if idle => {
                self.pass_time();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn poster_acts(&mut self) -> Verdict {
        if self.rng.clients.permille(self.plan.cancels) {
            return self.cancels();
        }
        let agent = &self.agents[self.rng.clients.index(self.agents.len())];
        let Some(uaid) = agent.uaid else { return Ok(()) };
        let at = self.rng.clients.index(agent.channels.len().max(1));
        let Some(chid) = agent.channels.iter().nth(at).copied() else { return Ok(()) };
        let ttl = match self.rng.clients.below(1_000) {
            draw if draw < self.plan.ttl_zero => 0,
            draw if draw < self.plan.ttl_zero + self.plan.ttl_short => self.rng.clients.between(1, 20) as u32,
            _ => LASTING,
        };
        let topical = if self.plan.press.topical > 0 { self.plan.press.topical } else { 300 };
        let topic = (self.plan.topics > 0 && self.rng.clients.permille(topical))
            .then(|| self.rng.clients.below(self.plan.topics) as u8 + b'a')
            .and_then(|letter| Topic::new(&[letter]));
        self.posts(uaid, chid, ttl, topic).map(drop)
    }

    /// POSTs one message to some node; `None` when that one does not serve now.
    pub(super) fn posts(
        &mut self,
        uaid: Uaid,
        chid: Chid,
        ttl: u32,
        topic: Option<Topic>,
    ) -> Result<Option<usize>, String> {
        match self.some_node() {
            Some(n) => self.posts_at(n, (uaid, chid), ttl, topic).map(Some),
            None => Ok(None),
        }
    }

    /// POSTs one message to this node.
    pub(super) fn posts_at(
        &mut self,
        n: usize,
        (uaid, chid): (Uaid, Chid),
        ttl: u32,
        topic: Option<Topic>,
    ) -> Result<usize, String> {
        let s = self.rng.clients.index(self.nodes[n].shards.len());
        let now = self.time(n).unix();
        let index = self.posts.len();
        let channel = self.channels.get(&(uaid, chid)).cloned().unwrap_or_default();
        let urgencies = self.plan.minimums > 0 && !self.calm;
        let urgency = urgencies.then(|| Urgency::of(self.rng.clients.below(4) as u8)).flatten().unwrap_or_default();
        let mut payload = (index as u64).to_be_bytes().to_vec();
        payload.resize(8 + self.rng.clients.index(100), 0);
        let message = Message {
            uaid,
            chid,
            stamp: Stamp::default(),
            ttl,
            accepted: now,
            urgency,
            topic,
            receipt: false,
            tries: Default::default(),
            payload: payload.into_boxed_slice(),
        };
        let boot = self.nodes[n].id.boot;
        self.posts.push(Post::new(&message, channel, self.steps + 1, (n, boot)));
        self.log(None, format_args!("message {index} is POSTed to node {n}"));
        let conn = self.fresh_conn();
        self.pending.insert((n, s, conn.slot), Pending::Post(index));
        let publish = Publish { uaid, chid, message: Ok(Arc::new(message)) };
        self.step(n, s, Input::Command { conn, command: SenderCommand::Publish(Box::new(publish)).into() })?;
        Ok(index)
    }

    fn cancels(&mut self) -> Verdict {
        let recent = self.posts.len().saturating_sub(8);
        let Some(n) = self.some_node() else { return Ok(()) };
        if recent == self.posts.len() {
            return Ok(());
        }
        let at = recent + self.rng.clients.index(self.posts.len() - recent);
        let post = &mut self.posts[at];
        let (Some(stamp), Some(_)) = (post.stamp, post.seen) else { return Ok(()) };
        post.cancelled = true;
        let cancel = Cancel { uaid: post.to.uaid, chid: post.to.chid, stamp, topic: post.topic };
        let s = self.rng.clients.index(self.nodes[n].shards.len());
        let conn = self.fresh_conn();
        self.pending.insert((n, s, conn.slot), Pending::Cancel);
        self.step(n, s, Input::Command { conn, command: SenderCommand::Cancel(Box::new(cancel)).into() })
    }

    /// A machine answers a request over HTTP.
    pub(super) fn answered(&mut self, n: usize, s: usize, conn: ConnId, event: &Event) -> Verdict {
        let Some(pending) = self.pending.remove(&(n, s, conn.slot)) else {
            return Err(format!("an answer that nobody waits for: {event:?}"));
        };
        match (pending, event) {
            (Pending::Post(post), Event::Sender(SenderEvent::Published(published))) => self.published(post, *published),
            (Pending::Cancel, Event::Sender(SenderEvent::Cancelled(_))) => Ok(()),
            (Pending::Call(id), Event::Node(answer)) => self.call_answered(id, *answer),
            (pending, event) => Err(format!("{pending:?} was answered {event:?}")),
        }
    }

    fn published(&mut self, index: usize, published: Published) -> Verdict {
        let post = &self.posts[index];
        let now = self.channels.get(&(post.to.uaid, post.to.chid)).cloned().unwrap_or_default();
        let same = now.version == post.channel.version;
        match published {
            Published::Accepted { stamp, disposition } => {
                self.marks.hit(match disposition {
                    Disposition::Direct => "publish: direct",
                    Disposition::Stored => "publish: stored",
                    Disposition::Dropped => "publish: dropped",
                    Disposition::Bridged => return Err("a message went to a bridge, and no user has one".to_owned()),
                });
                self.accepted(index, stamp, disposition)
            }
            Published::NoSubscription if post.channel.registered == Some(true) && same => {
                Err(format!("message {index} met no subscription, its channel is registered"))
            }
            Published::NoSubscription => {
                self.marks.hit("publish: no subscription");
                Ok(())
            }
            Published::Unavailable => {
                self.marks.hit("publish: unavailable");
                Ok(())
            }
            other => Err(format!("message {index} was answered {other:?}")),
        }
    }
}
