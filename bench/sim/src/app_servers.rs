//! App servers: POSTs, cancels, hang-ups, and what they are answered.

use std::sync::Arc;

use machine::ids::{Chid, Stamp, Uaid};
use machine::message::{Message, Topic, Urgency};
use machine::simplepush::{Mode, Update};
use machine::{
    Cancel, Cancelled, Command, Disposition, Event, Input, Publish, Published, Refusal, SenderCommand, SenderEvent,
};

use crate::oracle::Post;
use crate::parts::{AppServer, Pending};
use crate::shared::Verdict;
use crate::socket::{Place, Socket, SocketId};
use crate::world::World;

impl World {
    /// A random app server does something.
    pub(crate) fn poster_acts(&mut self) -> Verdict {
        let index = self.rng.clients.index(self.posters.len());
        if self.posters[index].pending.is_some() {
            if self.rng.clients.permille(self.plan.faults.hang_up) {
                self.marks.hit("poster: hangs up");
                self.poster_leaves(index);
            }
            return Ok(());
        }
        let leave = self.rng.clients.permille(200);
        if leave {
            self.poster_leaves(index);
        }
        if let Some(uaid) = self.posters[index].notify {
            return self.node_notifies(index, uaid);
        }
        if self.rng.clients.permille(self.plan.nodes) {
            return self.node_acts(index);
        }
        if self.rng.clients.permille(self.plan.receipts) {
            return self.asks_receipt(index);
        }
        if self.rng.clients.permille(60) {
            return self.cancels(index);
        }
        let Some((uaid, chid)) = self.target() else { return Ok(()) };
        if self.rng.clients.permille(20) {
            return self.post_broken(index, uaid, chid);
        }
        let ttl = match self.rng.clients.below(1000) {
            draw if draw < self.plan.ttl_zero => 0,
            draw if draw < self.plan.ttl_zero + self.plan.ttl_short => self.rng.clients.between(1, 20) as u32,
            _ => 2_000_000,
        };
        self.posts(index, uaid, chid, ttl)
    }

    /// Every app server without a request under way sends to one user.
    pub(crate) fn posters_hurry(&mut self) -> Verdict {
        let to = self.agents[0].uaid.zip(self.agents[0].channels.first().copied());
        let Some((uaid, chid)) = to else { return Ok(()) };
        for index in 0..self.posters.len() {
            if self.posters[index].pending.is_none() {
                self.posts(index, uaid, chid, 2_000_000)?;
            }
        }
        Ok(())
    }

    fn target(&mut self) -> Option<(Uaid, Chid)> {
        let rng = &mut self.rng.clients;
        let channels = &self.oracle.channels;
        match rng.below(50) {
            0 => Some((Uaid(rng.bytes16()), Chid(rng.bytes16()))),
            1 if !self.oracle.users.is_empty() => {
                let at = rng.index(self.oracle.users.len());
                self.oracle.users.iter().nth(at).map(|uaid| (*uaid, Chid(rng.bytes16())))
            }
            _ if channels.is_empty() => None,
            2..20 => channels.keys().nth(rng.index(channels.len())).copied(),
            _ => {
                // Mostly the channels that a user agent uses now.
                let agent = &self.agents[rng.index(self.agents.len())];
                let uaid = agent.uaid?;
                let at = rng.index(agent.channels.len().max(1));
                agent.channels.iter().nth(at).map(|chid| (uaid, *chid))
            }
        }
    }

    /// POSTs one message.
    pub(crate) fn posts(&mut self, index: usize, uaid: Uaid, chid: Chid, ttl: u32) -> Verdict {
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        let now = self.time().unix();
        let rng = &mut self.rng.clients;
        let topic = if self.plan.topics > 0 && rng.permille(300) && !self.calm {
            Topic::new(&[b'a' + rng.below(self.plan.topics) as u8])
        } else {
            None
        };
        let urgency = match rng.below(3) {
            0 if self.plan.urgencies => Urgency::High,
            1 if self.plan.urgencies => Urgency::VeryLow,
            _ => Urgency::Normal,
        };
        let receipt = rng.permille(self.plan.receipts);
        let post = self.oracle.posts.len();
        let mut payload = (post as u64).to_be_bytes().to_vec();
        payload.resize(8 + rng.index(100), 0);
        let mut fresh = Post::new((uaid, chid), topic, ttl, urgency, self.steps + 1);
        fresh.expires = now.0 + u64::from(ttl);
        let channel = self.oracle.channels.get(&(uaid, chid));
        let registered = channel.map_or(Some(false), |channel| channel.registered);
        let version = channel.map_or(0, |channel| channel.version);
        self.posters[index].pending = Some(Pending::Post { post, registered, version });
        let mut payload = payload.into_boxed_slice();
        let (mut topic, mut urgency, mut receipt) = (topic, urgency, receipt);
        if self.oracle.modes.get(&uaid) == Some(&Mode::Simple) {
            // Mostly rising versions; some are the same or lower.
            let version = (1_000 + self.steps).saturating_sub(self.rng.clients.below(100)) / 8;
            let update = Update { version, data: &post.to_string() }.to_message(uaid, chid, now, ttl);
            (topic, urgency, receipt, payload) = (update.topic, update.urgency, false, update.payload);
            fresh.version = version;
            // A version that is not higher than an acked one is not delivered (PROTOCOL.md, WS-SIMPLE-5).
            fresh.ack_odd = self.oracle.acked_versions.get(&(uaid, chid)).is_some_and(|acked| version <= *acked);
        }
        (fresh.topic, fresh.urgency, fresh.receipt) = (topic, urgency, receipt);
        self.oracle.posts.push(fresh);
        let message = Message {
            uaid,
            chid,
            stamp: Stamp::default(),
            ttl,
            accepted: now,
            urgency,
            topic,
            receipt,
            tries: Default::default(),
            payload,
        };
        self.log(None, format_args!("poster {index} POSTs message {post}"));
        let publish = Publish { uaid, chid, message: Ok(Arc::new(message)) };
        self.request(id, shard, SenderCommand::Publish(Box::new(publish)))
    }

    fn post_broken(&mut self, index: usize, uaid: Uaid, chid: Chid) -> Verdict {
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        let refusal = Refusal(9);
        self.posters[index].pending = Some(Pending::Broken { refusal });
        let publish = Publish { uaid, chid, message: Err(refusal) };
        self.request(id, shard, SenderCommand::Publish(Box::new(publish)))
    }

    fn cancels(&mut self, index: usize) -> Verdict {
        if self.oracle.posts.is_empty() {
            return Ok(());
        }
        let recent = self.oracle.posts.len().saturating_sub(8);
        let post = recent + self.rng.clients.index(self.oracle.posts.len() - recent);
        let Some((id, shard)) = self.poster_socket(index) else { return Ok(()) };
        let target = &mut self.oracle.posts[post];
        let (Some(stamp), Some(_)) = (target.stamp, target.seen) else { return Ok(()) };
        target.cancel_asked = true;
        let cancel = Cancel { uaid: target.to.uaid, chid: target.to.chid, stamp, topic: target.topic };
        self.posters[index].pending = Some(Pending::Cancel { post });
        self.log(None, format_args!("poster {index} cancels message {post}"));
        self.request(id, shard, SenderCommand::Cancel(Box::new(cancel)))
    }

    pub(crate) fn request(&mut self, id: SocketId, shard: usize, command: impl Into<Command>) -> Verdict {
        let Place::At { conn, .. } = self.sockets[id].place else { return Ok(()) };
        self.sockets[id].ready = false;
        self.step(shard, Input::Command { conn, command: command.into() })
    }

    /// A connection of this app server that may carry a request now, on a shard that runs.
    pub(crate) fn poster_socket(&mut self, index: usize) -> Option<(SocketId, usize)> {
        if self.stopping.is_some() && self.shards.iter().any(|shard| shard.drained) {
            return None;
        }
        if self.posters[index].socket.is_none() {
            let shard = self.rng.clients.index(self.shards.len());
            let id = self.sockets.len();
            self.sockets.push(Socket::new(None, Place::Ended));
            self.name(shard, id);
            self.sockets[id].ready = true;
            self.posters[index].socket = Some(id);
        }
        let id = self.posters[index].socket?;
        match self.sockets[id].place {
            Place::At { shard, .. } if self.sockets[id].ready && self.awake(shard) => Some((id, shard)),
            _ => None,
        }
    }

    /// Closes its connection, also with a request under way.
    fn poster_leaves(&mut self, index: usize) {
        self.posters[index].pending = None;
        let Some(id) = self.posters[index].socket.take() else { return };
        if let Place::At { shard, conn } = self.sockets[id].place {
            self.oracle.hung_up.insert((shard, conn.slot, conn.generation));
            self.unname(shard, conn);
        }
        self.sockets[id].place = Place::Ended;
    }

    /// The machine closed it.
    pub(crate) fn poster_closed(&mut self, id: SocketId) {
        for poster in self.posters.iter_mut().filter(|poster| poster.socket == Some(id)) {
            poster.socket = None;
            poster.pending = None;
        }
    }

    /// The process is gone.
    pub(crate) fn posters_cut(&mut self) {
        self.posters.iter_mut().for_each(|poster| *poster = AppServer::default());
    }

    /// The machine is done with a request.
    pub(crate) fn poster_ready(&mut self, id: SocketId) -> Verdict {
        let waits = self.posters.iter().any(|poster| poster.socket == Some(id) && poster.pending.is_some());
        if waits { Err("an HTTP connection was made ready before its answer".to_owned()) } else { Ok(()) }
    }

    /// `Effect::Emit` on an app server's connection.
    pub(crate) fn answered(&mut self, id: SocketId, event: &Event) -> Verdict {
        let index = self.posters.iter().position(|poster| poster.socket == Some(id));
        let pending = index.and_then(|index| Some((index, self.posters[index].pending.take()?)));
        let Some((index, pending)) = pending else {
            return Err(format!("an answer that nobody waits for: {event:?}"));
        };
        match (pending, event) {
            (Pending::Post { post, registered, version }, Event::Sender(SenderEvent::Published(published))) => {
                let target = &self.oracle.posts[post];
                let channel = self.oracle.channels.get(&(target.to.uaid, target.to.chid));
                let same = channel.map_or(0, |channel| channel.version) == version;
                self.published(post, registered.filter(|_| same), *published)
            }
            (Pending::Broken { refusal }, Event::Sender(SenderEvent::Published(Published::Refused(found))))
                if refusal == *found =>
            {
                Ok(())
            }
            (Pending::Broken { .. }, Event::Sender(SenderEvent::Published(answer))) => match answer {
                Published::NoSubscription | Published::Unavailable => Ok(()),
                Published::TooMany { .. } if self.plan.token_rate > 0 => Ok(()),
                other => Err(format!("a broken POST was answered {other:?}")),
            },
            (Pending::Cancel { post }, Event::Sender(SenderEvent::Cancelled(Cancelled { done }))) => {
                self.marks.hit(if *done { "cancel: done" } else { "cancel: 503" });
                self.oracle.posts[post].cancelled |= *done;
                Ok(())
            }
            (Pending::Receipt { post }, Event::Sender(SenderEvent::Receipt(answer))) => {
                self.receipt_said(post, *answer)
            }
            (Pending::NodePush { post, since }, Event::Node(answer)) => self.node_pushed(index, (post, since), *answer),
            (Pending::NodeOther, Event::Node(_)) => Ok(()),
            (pending, event) => Err(format!("{pending:?} was answered {event:?}")),
        }
    }

    /// The answer to a POST whose channel was certainly registered or not, if that is known.
    fn published(&mut self, post: usize, registered: Option<bool>, published: Published) -> Verdict {
        match published {
            Published::Accepted { stamp, disposition } => {
                self.marks.hit(match disposition {
                    Disposition::Direct => "publish: direct",
                    Disposition::Stored => "publish: stored",
                    Disposition::Dropped => "publish: dropped",
                    Disposition::Bridged => return Err("a message went to a bridge, and no user has one".to_owned()),
                });
                if registered == Some(false) {
                    return Err(format!("message {post} was accepted for a channel that is not registered"));
                }
                self.oracle.posts[post].boot = self.boots;
                self.oracle.posts[post].seen_at = self.now;
                self.oracle.accepted(post, stamp, disposition, self.steps)
            }
            Published::NoSubscription => {
                self.marks.hit("publish: no subscription");
                match registered {
                    Some(true) => Err(format!("message {post} met no subscription, its channel is registered")),
                    _ => Ok(()),
                }
            }
            Published::Refused(refusal) => Err(format!("message {post} was refused with {refusal:?}")),
            Published::TooMany { .. } if self.plan.token_rate > 0 => {
                self.marks.hit("publish: too many");
                Ok(())
            }
            Published::TooMany { .. } | Published::OverBudget { .. } => {
                Err(format!("message {post} was refused by a limit that is off"))
            }
            Published::OtherMode if self.plan.simple > 0 => {
                self.marks.hit("publish: other mode");
                Ok(())
            }
            Published::OtherMode => Err(format!("message {post} was refused for its mode, and all users have one")),
            Published::NotBridged(_) => Err(format!("message {post} went to a bridge, and no user has one")),
            Published::Unavailable => {
                self.marks.hit("publish: unavailable");
                Ok(())
            }
        }
    }
}
