//! App servers: POSTs and cancels that land on any node.

use std::sync::Arc;

use machine::ids::{Chid, ConnId, Stamp, Uaid};
use machine::message::{Message, Topic, Urgency};
use machine::simplepush::Update;
use machine::{Cancel, Command, Disposition, Event, Input, Publish, Published, SenderCommand, SenderEvent};

use super::parts::{Pending, Post};
use super::phones::{BROKEN, Handed};
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

const LASTING: u32 = 2_000_000;
/// Longest time of a request, without standstills: the operations of storage behind each other, and calls.
const REQUEST_MAX: u64 = 120 * SECOND;

impl Cluster {
    /// The world around does something.
    pub(super) fn act(&mut self, idle: bool) -> Verdict {
        self.weather()?;
        if self.plan.bridges.phones > 0 && self.rng.clients.permille(400) {
            return self.phones_act();
        }
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
        self.lands(n, (uaid, chid), (ttl, topic), None)
    }

    /// A POST lands on this node; `handed`: of a bridged user.
    pub(super) fn lands(
        &mut self,
        n: usize,
        (uaid, chid): (Uaid, Chid),
        (ttl, topic): (u32, Option<Topic>),
        handed: Option<Handed>,
    ) -> Result<usize, String> {
        let s = self.rng.clients.index(self.nodes[n].shards.len());
        let now = self.time(n).unix();
        let index = self.posts.len();
        let channel = self.channels.get(&(uaid, chid)).cloned().unwrap_or_default();
        let urgencies = self.plan.minimums > 0 && !self.calm;
        let urgency = urgencies.then(|| Urgency::of(self.rng.clients.below(4) as u8)).flatten().unwrap_or_default();
        let mut payload = (index as u64).to_be_bytes().to_vec();
        payload.resize(8 + self.rng.clients.index(100), 0);
        let mut message = Message {
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
        let simple = self.agents.iter().any(|agent| agent.simple && agent.uaid == Some(uaid));
        if simple {
            // Mostly rising versions; some are the same or lower.
            let version = (1_000 + self.steps - self.rng.clients.below(100)) / 8;
            message = Update { version, data: &index.to_string() }.to_message(uaid, chid, now, ttl);
        }
        let boot = self.nodes[n].id.boot;
        let is_broken = handed.as_ref().is_some_and(|handed| handed.refused);
        // A version that is not higher than an acked one is not delivered (PROTOCOL.md, WS-SIMPLE-5).
        let acked = self.acked_versions.get(&(uaid, chid)).copied().filter(|_| simple);
        let ack_odd = acked >= message.simple_version() && acked.is_some();
        self.posts.push(Post { handed, ack_odd, ..Post::new(&message, channel, self.steps + 1, (n, boot)) });
        self.log(None, format_args!("message {index} is POSTed to node {n}"));
        let message = if is_broken { Err(BROKEN) } else { Ok(Arc::new(message)) };
        let publish = SenderCommand::Publish(Box::new(Publish { uaid, chid, message }));
        self.request((n, s), Pending::Post(index), publish.into())?;
        Ok(index)
    }

    /// A request over HTTP reaches this shard of a node.
    pub(super) fn request(&mut self, (n, s): (usize, usize), pending: Pending, command: Command) -> Verdict {
        let conn = self.fresh_conn();
        self.pending.insert((n, s, conn.slot), (pending, self.now + REQUEST_MAX));
        self.step(n, s, Input::Command { conn, command })
    }

    /// Time passes in which a request may have waited for nothing.
    pub(super) fn stands_still(&mut self, span: u64) {
        self.pending.values_mut().for_each(|(_, due)| *due += span);
    }

    /// Every request is answered within its bound.
    pub(super) fn in_time(&self) -> Verdict {
        let late = |(pending, due): &&(Pending, u64)| *due < self.now && !matches!(pending, Pending::Call(_));
        match self.pending.values().find(late) {
            Some((request, _)) => Err(format!("no answer within {} s: {request:?}", REQUEST_MAX / SECOND)),
            None => Ok(()),
        }
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
        self.request((n, s), Pending::Cancel, SenderCommand::Cancel(Box::new(cancel)).into())
    }

    /// A machine answers a request over HTTP.
    pub(super) fn answered(&mut self, n: usize, s: usize, conn: ConnId, event: &Event) -> Verdict {
        let Some((pending, _)) = self.pending.remove(&(n, s, conn.slot)) else {
            return Err(format!("an answer that nobody waits for: {event:?}"));
        };
        match (pending, event) {
            (Pending::Post(post), Event::Sender(SenderEvent::Published(published))) => self.published(post, *published),
            (Pending::Cancel, Event::Sender(SenderEvent::Cancelled(_))) => Ok(()),
            (Pending::Call(id), Event::Node(answer)) => self.call_answered(id, *answer),
            (Pending::Phone(request), Event::Registration(answer)) => self.registered(&request, answer),
            (pending, event) => Err(format!("{pending:?} was answered {event:?}")),
        }
    }

    fn published(&mut self, index: usize, published: Published) -> Verdict {
        if let Some(handed) = self.posts[index].handed.clone() {
            return self.handed_over(index, &handed, published);
        }
        let post = &self.posts[index];
        let now = self.channels.get(&(post.to.uaid, post.to.chid)).cloned().unwrap_or_default();
        let same = now.version == post.channel.version;
        match published {
            Published::Accepted { stamp, disposition } => {
                self.marks.hit(match disposition {
                    Disposition::Direct => "publish: direct",
                    Disposition::Stored => "publish: stored",
                    Disposition::Dropped => "publish: dropped",
                    Disposition::Bridged => {
                        return Err(format!("message {index} went to a bridge, and its user has none"));
                    }
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
