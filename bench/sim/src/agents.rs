//! User agents: what they would do, and the ways in which they misbehave.

use std::num::NonZeroU64;

use machine::ids::{CallerAddress, Chid, KeyDigest, Origin, Stamp, Uaid};
use machine::message::Urgency;
use machine::simplepush::{Mode, WakeData};
use machine::{
    AckUpdate, AckVersion, AgentCommand, BroadcastVersion, CloseReason, Command, Hello, RelayCommand, SessionCommand,
};

use crate::parts::Habit;
use crate::shared::Verdict;
use crate::socket::{Frame, Place, Socket, SocketId};
use crate::world::World;

impl World {
    /// A random user agent does something.
    pub(crate) fn agent_acts(&mut self) {
        let index = self.rng.clients.index(self.agents.len());
        let agent = &self.agents[index];
        let open = agent.sockets.last().copied();
        match open {
            None => self.connect(index),
            Some(_) if self.rng.clients.permille(self.plan.faults.double) => {
                self.marks.hit("agent: connects twice");
                self.connect(index);
            }
            Some(last) => {
                let sockets = &self.agents[index].sockets;
                let id = if self.rng.clients.permille(900) { last } else { self.rng.clients.pick(sockets) };
                self.socket_acts(index, id);
                self.flush_member(id);
            }
        }
    }

    /// Opens a connection to a random shard.
    pub(crate) fn connect(&mut self, index: usize) {
        if self.stopping.is_some() || self.now < self.agents[index].retry_at {
            return;
        }
        let id = match self.agents[index].relay {
            Some(relay) => self.connect_member(index, relay),
            None => {
                let shard = self.rng.clients.index(self.shards.len());
                self.sockets.push(Socket::new(Some(index), Place::Waiting { shard }));
                self.sockets.len() - 1
            }
        };
        self.agents[index].sockets.push(id);
        let place = self.sockets[id].place;
        self.log(None, format_args!("agent {index} connects as socket {id}: {place:?}"));
        if self.calm {
            self.say_hello(index, id);
            self.flush_member(id);
        }
    }

    fn socket_acts(&mut self, index: usize, id: SocketId) {
        if self.is_reset(index, id) {
            return;
        }
        let faults = &self.plan.faults;
        let (disconnect, half_open, stop) = (faults.disconnect, faults.half_open, faults.stop_reading);
        let hardly_reads = self.agents[index].habit == Habit::HardlyReads;
        let rng = &mut self.rng.clients;
        if self.sockets[id].peer.silent {
            if rng.permille(50) {
                self.hang_up(index, id);
            }
        } else if rng.permille(disconnect) {
            self.hang_up(index, id);
        } else if rng.permille(half_open) {
            self.marks.hit("agent: falls silent");
            self.sockets[id].peer.silent = true;
        } else if self.sockets[id].peer.paused {
            self.sockets[id].peer.paused = !rng.permille(if hardly_reads { 50 } else { 300 });
        } else if rng.permille(if hardly_reads { 300 } else { stop }) {
            self.marks.hit("agent: stops reading");
            self.sockets[id].peer.paused = true;
        } else if !self.sockets[id].peer.hello_sent {
            if rng.permille(900) {
                self.say_hello(index, id);
            }
        } else if self.sockets[id].peer.uaid.is_some() {
            self.asks(index, id);
        }
    }

    /// Goes away: by close, or by reset, which takes what was sent with it.
    pub(crate) fn hang_up(&mut self, index: usize, id: SocketId) {
        let reset = self.rng.clients.permille(500);
        self.log(None, format_args!("agent {index} leaves socket {id}, reset: {reset}"));
        self.member_leaves(id);
        self.marks.hit(if reset { "agent: reset" } else { "agent: close" });
        let socket = &mut self.sockets[id];
        socket.peer_open = false;
        socket.outbox.clear();
        if reset {
            socket.inbox.clear();
        }
        self.agents[index].sockets.retain(|of| *of != id);
    }

    pub(crate) fn say_hello(&mut self, index: usize, id: SocketId) {
        let own = self.agents[index].uaid;
        let issued = &self.oracle.users;
        let rng = &mut self.rng.clients;
        let draw = if self.calm { 0 } else { rng.below(100) };
        let uaid = match draw {
            0..82 => own,
            82..88 => None,
            88..94 => Some(Uaid(rng.bytes16())),
            _ if issued.is_empty() => None,
            // A UAID that was issued to any user agent, or given up long ago.
            _ => issued.iter().nth(rng.index(issued.len())).copied(),
        };
        let broadcasts = if rng.permille(300) { self.wanted_broadcasts(id) } else { Vec::new() };
        let peer = &mut self.sockets[id].peer;
        peer.hello_sent = true;
        peer.asked = uaid;
        let mut hello = Hello { broadcasts, ..Hello::new(uaid, Uaid([0; 16])) };
        if self.agents[index].simple {
            hello.mode = Mode::Simple;
            hello.wake = WakeData::new("at=here").filter(|_| self.rng.clients.permille(500));
        }
        if self.plan.reconcile && !self.calm && self.rng.clients.permille(500) {
            hello.channels = Some(self.channels_said(index));
        }
        self.sockets[id].inbox.push_back(AgentCommand::Hello(Box::new(hello)).into());
        if !self.calm && self.rng.clients.permille(200) {
            // Commands that an eager user agent sends before its hello is answered must survive a move.
            let early = self.wish(index);
            self.sockets[id]
                .inbox
                .push_back(SessionCommand::Register { chid: early, key: None, caller: caller(index) }.into());
        }
    }

    /// The channels that it says it has: sometimes one too few, or one too many.
    fn channels_said(&mut self, index: usize) -> Box<[Chid]> {
        let mut said = self.agents[index].channels.clone();
        match self.rng.clients.below(10) {
            0 => drop(said.pop_first()),
            1 => drop(said.insert(self.wish(index))),
            _ => {}
        }
        said.into_iter().collect()
    }

    fn wanted_broadcasts(&mut self, id: SocketId) -> Vec<BroadcastVersion> {
        let mut wanted = Vec::new();
        for name in ["a", "b", "nobody"] {
            if self.rng.clients.permille(500) {
                let version = self.sockets[id].peer.broadcasts.get(name).cloned().unwrap_or_else(|| "0".into());
                wanted.push(BroadcastVersion { id: name.into(), version });
            }
        }
        wanted
    }

    /// A channel this agent would like: few, so that they are registered and dropped again and again.
    fn wish(&mut self, index: usize) -> Chid {
        let channel = self.rng.clients.index(self.plan.channels);
        let mut bytes = [0; 16];
        bytes[0] = index as u8 + 1;
        bytes[1] = channel as u8 + 1;
        Chid(bytes)
    }

    fn asks(&mut self, index: usize, id: SocketId) {
        let few = self.agents[index].channels.len() < self.plan.channels;
        if self.plan.minimums > 0 && self.rng.clients.permille(self.plan.minimums) {
            let minimum = Urgency::of(self.rng.clients.below(4) as u8);
            self.sockets[id].inbox.push_back(SessionCommand::Urgency { minimum }.into());
            return;
        }
        if self.plan.busy {
            if !self.agents[index].channels.is_empty() {
                return self.acks(id);
            }
            let (chid, socket) = (self.wish(index), &mut self.sockets[id]);
            if socket.ready && socket.inbox.is_empty() {
                socket.inbox.push_back(SessionCommand::Register { chid, key: None, caller: caller(index) }.into());
            }
            return;
        }
        let command: Command = match self.rng.clients.below(100) {
            0..15 => SessionCommand::Register { chid: self.wish(index), key: None, caller: caller(index) }.into(),
            15..40 if few => SessionCommand::Register {
                chid: self.wish(index),
                key: Some(KeyDigest([7; 32])),
                caller: caller(index),
            }
            .into(),
            40..45 => SessionCommand::Unregister { chid: self.wish(index), code: 200 }.into(),
            45..47 => SessionCommand::Nack { code: 301 }.into(),
            47..52 => {
                let wanted = self.wanted_broadcasts(id);
                SessionCommand::BroadcastSubscribe(wanted).into()
            }
            52..56 => {
                let early = self.sockets[id].peer.pinged_at.is_some_and(|at| self.now < at + 50_000_000_000);
                if early && !self.rng.clients.permille(50) {
                    return;
                }
                self.sockets[id].peer.pinged_at = Some(self.now);
                AgentCommand::Ping.into()
            }
            56 if self.rng.clients.permille(100) => {
                AgentCommand::Hello(Box::new(Hello::new(None, Uaid([0; 16])))).into()
            }
            _ => return self.acks(id),
        };
        self.sockets[id].inbox.push_back(command);
    }

    /// Acks some, all, out of order, twice, or what it should not.
    fn acks(&mut self, id: SocketId) {
        let odd = self.plan.faults.odd_ack;
        let habit = self.sockets[id].agent.map_or(Habit::Prompt, |index| self.agents[index].habit);
        if habit == Habit::NeverAcks || (habit == Habit::Batches && self.now < self.sockets[id].peer.batch_at) {
            return;
        }
        let mut updates = Vec::new();
        let rng = &mut self.rng.clients;
        let peer = &mut self.sockets[id].peer;
        match rng.below(4) {
            _ if habit == Habit::Batches => {
                updates.append(&mut peer.got);
                peer.batch_at = self.now + 30_000_000_000;
            }
            0 => updates.append(&mut peer.got),
            1 => peer.got.reverse(),
            _ => {}
        }
        while !peer.got.is_empty() && updates.len() < 3 {
            let at = if rng.permille(700) { 0 } else { rng.index(peer.got.len()) };
            updates.push(peer.got.remove(at));
        }
        if rng.permille(odd) && !peer.acked.is_empty() {
            let again = peer.acked[rng.index(peer.acked.len())];
            updates.push(again);
            self.marks.hit("ack: twice");
        }
        peer.acked.extend(updates.iter().copied());
        if self.rng.clients.permille(odd) {
            updates.extend(self.strange_ack());
        }
        if updates.len() > 1 {
            self.marks.hit("ack: several");
        }
        if !updates.is_empty() {
            self.say_ack(id, updates);
        }
    }

    /// In the words of its mode: SimplePush names versions.
    fn say_ack(&mut self, id: SocketId, updates: Vec<AckUpdate>) {
        if !self.sockets[id].agent.is_some_and(|index| self.agents[index].simple) {
            self.sockets[id].inbox.push_back(SessionCommand::Ack(updates).into());
            return;
        }
        let version_of = |stamp| self.oracle.by_stamp.get(stamp).map_or(0, |post| self.oracle.posts[*post].version);
        let versions =
            updates.iter().map(|update| AckVersion { chid: update.chid, version: version_of(&update.stamp) });
        let versions = versions.collect();
        self.sockets[id].inbox.push_back(SessionCommand::AckVersions(versions).into());
    }

    /// An ack of a message that never was, or of any message.
    fn strange_ack(&mut self) -> Option<AckUpdate> {
        self.marks.hit("ack: strange");
        let rng = &mut self.rng.clients;
        let posts = &self.oracle.posts;
        if posts.is_empty() || rng.permille(300) {
            let mut stamp = Stamp::default();
            stamp.clock.0 = rng.below(1 << 50);
            stamp.origin = Origin(rng.bits() as u32);
            return Some(AckUpdate { stamp, chid: Chid(rng.bytes16()), topic: None, code: 100 });
        }
        let post = &posts[rng.index(posts.len())];
        post.stamp.map(|stamp| AckUpdate { stamp, chid: post.to.chid, topic: post.topic, code: 102 })
    }

    /// Reads one frame.
    pub(crate) fn receive(&mut self, id: SocketId) -> Verdict {
        let Some(frame) = self.sockets[id].outbox.pop_front() else { return Ok(()) };
        self.unnoticed(id, &frame)?;
        match (frame, self.sockets[id].relay) {
            (Frame::Of(member, frame), Some(_)) => {
                self.read(member, *frame);
                self.flush_member(member);
            }
            (Frame::Ping, Some(_)) => self.sockets[id].inbox.push_back(RelayCommand::Pong.into()),
            (Frame::Closed(_), Some(relay)) => {
                self.sockets[id].peer_open = false;
                if self.relays[relay].socket == Some(id) {
                    self.relay_gone(relay);
                }
            }
            (_, Some(_)) => {}
            (frame, None) => self.read(id, frame),
        }
        Ok(())
    }

    fn read(&mut self, id: SocketId, frame: Frame) {
        let Some(index) = self.sockets[id].agent else { return };
        self.log(None, format_args!("agent {index} reads {frame:?} on socket {id}"));
        let current = self.agents[index].sockets.last() == Some(&id);
        let peer = &mut self.sockets[id].peer;
        match frame {
            Frame::Hello(uaid, delta) => {
                peer.uaid = Some(uaid);
                peer.broadcasts.extend(delta.changed.into_iter().map(|b| (b.id, b.version)));
                let agent = &mut self.agents[index];
                if current && agent.uaid != Some(uaid) {
                    agent.uaid = Some(uaid);
                    agent.channels.clear();
                }
                if self.calm && self.plan.minimums > 0 {
                    let minimum = Some(Urgency::VeryLow);
                    self.sockets[id].inbox.push_back(SessionCommand::Urgency { minimum }.into());
                }
            }
            Frame::Urgency => {}
            Frame::Registered(chid, 200) if current => {
                self.agents[index].channels.insert(chid);
            }
            Frame::Registered(..) => {}
            Frame::Unregistered(chid, 200) => {
                self.agents[index].channels.remove(&chid);
            }
            Frame::Unregistered(..) => {}
            Frame::Notification(message) => {
                peer.got.push(AckUpdate { stamp: message.stamp, chid: message.chid, topic: message.topic, code: 100 });
                if self.calm {
                    let updates = std::mem::take(&mut peer.got);
                    self.say_ack(id, updates);
                } else if self.rng.clients.permille(self.plan.acking) {
                    self.acks(id);
                }
            }
            Frame::Broadcast(delta) => {
                self.marks.hit("agent: broadcast read");
                peer.broadcasts.extend(delta.changed.into_iter().map(|b| (b.id, b.version)));
            }
            Frame::Ping => self.sockets[id].inbox.push_back(AgentCommand::Pong.into()),
            Frame::Pong => self.marks.hit("agent: pong read"),
            Frame::Of(..) => {}
            Frame::Closed(reason) if self.is_member(id) => self.member_closed(id, reason),
            Frame::Closed(reason) => {
                let wait = if reason == CloseReason::Overloaded { 10_000_000_000 } else { 2_000_000_000 };
                self.sockets[id].peer_open = false;
                self.agents[index].sockets.retain(|of| *of != id);
                self.agents[index].retry_at = self.now + self.rng.clients.below(wait);
            }
        }
    }
}

/// Two user agents in three have the address of another.
fn caller(index: usize) -> Option<CallerAddress> {
    NonZeroU64::new(index as u64 % 3).map(CallerAddress)
}
