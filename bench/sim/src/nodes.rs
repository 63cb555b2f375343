//! Another node: pushes messages that it has stamped, stores what is refused, asks for a check, ends a session.

use std::sync::Arc;

use machine::ids::{Clock, Origin, Stamp, Uaid};
use machine::message::{Message, Urgency};
use machine::{Mail, NodeAnswer, NodeCommand, NodeDisconnect, NodeNotify, NodePush, Request, StoreOp};

use crate::oracle::Post;
use crate::parts::Pending;
use crate::shared::Verdict;
use crate::world::World;

impl World {
    /// The poster speaks for another node of a cluster.
    pub(crate) fn node_acts(&mut self, index: usize) -> Verdict {
        match self.rng.clients.below(10) {
            0 => self.node_ends_session(index),
            1 | 2 => self.node_repeats(index),
            _ => self.node_pushes(index),
        }
    }

    /// `PUT /push/{uaid}` of a fresh message to a user agent's channel.
    fn node_pushes(&mut self, index: usize) -> Verdict {
        let agent = &self.agents[self.rng.clients.index(self.agents.len())];
        let (Some(uaid), Some(chid)) = (agent.uaid, agent.channels.first().copied()) else { return Ok(()) };
        let ahead = self.rng.clients.permille(50);
        let newest = self.oracle.posts.iter().filter(|post| post.to.uaid == uaid).filter_map(|post| post.stamp).max();
        let floor = newest.map_or(0, |stamp| stamp.clock.0);
        // A node has read the user's clock; one that is hours ahead must be refused.
        let clock = self.time().unix_us.max(floor) + if ahead { 36_000_000_000 } else { 1 };
        if ahead && clock < (self.oracle.wall_max + 30_000) * 1_000_000 {
            // Time was set back that far: the clock is not ahead of that of any node.
            return Ok(());
        }
        let stamp = Stamp { clock: Clock(clock), origin: Origin(self.rng.clients.bits() as u32) };
        let post = self.oracle.posts.len();
        let mut fresh = Post::new((uaid, chid), None, 2_000_000, Urgency::Normal, self.steps + 1);
        fresh.expires = self.time().unix().0 + 2_000_000;
        fresh.foreign = true;
        fresh.too_far_ahead = ahead;
        fresh.stamp = Some(stamp);
        self.oracle.posts.push(fresh);
        self.oracle.by_stamp.insert(stamp, post);
        self.push_post(index, post)
    }

    /// The same message again: its first answer may have been lost.
    fn node_repeats(&mut self, index: usize) -> Verdict {
        let lately = self.now.saturating_sub(20_000_000_000);
        match self.oracle.posts.iter().rposition(|post| post.pushed.is_some_and(|at| at > lately)) {
            Some(post) => {
                self.marks.hit("node: pushes again");
                self.push_post(index, post)
            }
            None => Ok(()),
        }
    }

    fn push_post(&mut self, index: usize, post: usize) -> Verdict {
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        let message = self.foreign_message(post);
        self.posters[index].pending = Some(Pending::NodePush { post, since: self.now });
        self.marks.hit("node: pushes");
        self.log(None, format_args!("node {index} pushes message {post}"));
        let push = NodePush { message: Arc::new(message), stored: false };
        self.request(id, shard, NodeCommand::Push(Box::new(push)))
    }

    /// A push that took longer than what was settled is remembered (60 s) is a new message to its owner.
    pub(crate) fn before_mail(&mut self, mail: &Mail) {
        let Mail::Request { request: Request::Node(NodeCommand::Push(push)), .. } = mail else { return };
        let index = self.oracle.identify(&push.message).ok();
        if let Some(index) = index {
            let post = &mut self.oracle.posts[index];
            post.end_lost |= post.acked.is_some() && self.now > post.acked_at + 55_000_000_000;
        }
    }

    fn foreign_message(&self, index: usize) -> Message {
        let post = &self.oracle.posts[index];
        Message {
            uaid: post.to.uaid,
            chid: post.to.chid,
            stamp: post.stamp.unwrap_or_default(),
            ttl: post.ttl,
            accepted: machine::time::UnixSeconds(post.expires - u64::from(post.ttl)),
            urgency: post.urgency,
            topic: post.topic,
            receipt: false,
            tries: Default::default(),
            payload: (index as u64).to_be_bytes().into(),
        }
    }

    /// The answer to a push. A refused message is stored by the other node, which then asks for a check.
    pub(crate) fn node_pushed(&mut self, index: usize, (post, since): (usize, u64), answer: NodeAnswer) -> Verdict {
        self.marks.hit(match answer {
            NodeAnswer::Done => "node: push done",
            NodeAnswer::Noted => return Err("a push was answered 202".to_owned()),
            NodeAnswer::NotHere => "node: push met nobody",
            NodeAnswer::Busy | NodeAnswer::Held => "node: push refused",
        });
        let (step, target) = (self.steps, &mut self.oracle.posts[post]);
        let uaid = target.to.uaid;
        if target.too_far_ahead {
            return match answer {
                NodeAnswer::Done => Err(format!("message {post} was accepted hours ahead of the clock")),
                _ => Ok(()),
            };
        }
        if answer == NodeAnswer::Done {
            target.seen.get_or_insert(step);
            target.pushed.get_or_insert(self.now);
            return Ok(());
        }
        // A node promises no message whose write may come behind low water.
        if target.seen.is_none() && self.now < since + WRITE_TIMEOUT {
            let message = Arc::new(self.foreign_message(post));
            if self.store.foreign(StoreOp::Publish { message, checked: false }) {
                let target = &mut self.oracle.posts[post];
                target.seen = Some(step);
                target.held = true;
            }
        }
        self.posters[index].notify = Some(uaid);
        Ok(())
    }

    /// `PUT /notif/{uaid}`.
    pub(crate) fn node_notifies(&mut self, index: usize, uaid: Uaid) -> Verdict {
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        self.posters[index].notify = None;
        self.posters[index].pending = Some(Pending::NodeOther);
        self.marks.hit("node: asks for a check");
        self.request(id, shard, NodeCommand::Notify(Box::new(NodeNotify { uaid, unsure: None })))
    }

    /// `DELETE /notif/{uaid}/{connected_at}` of a session that is here, sometimes with another time.
    fn node_ends_session(&mut self, index: usize) -> Verdict {
        let count = self.oracle.resident.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.clients.index(count);
        let Some((uaid, socket)) = self.oracle.resident.iter().nth(at).map(|(uaid, socket)| (*uaid, *socket)) else {
            return Ok(());
        };
        let connected_at = self.sockets[socket].session.connected_at + self.rng.clients.below(2);
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        self.posters[index].pending = Some(Pending::NodeOther);
        self.marks.hit("node: ends a session");
        self.request(id, shard, NodeCommand::Disconnect(Box::new(NodeDisconnect { uaid, connected_at })))
    }
}

/// Longest time from the clock of a message to its 201 on another node, nanoseconds.
const WRITE_TIMEOUT: u64 = 30_000_000_000;
