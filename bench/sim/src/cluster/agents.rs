//! User agents: each connects to any node that is up, and leaves with or without its node's notice.

use std::collections::VecDeque;

use machine::ids::{Chid, Claim, ConnId, Uaid};
use machine::message::Urgency;
use machine::simplepush::{Mode, WakeData};
use machine::{
    AckUpdate, AckVersion, AgentCommand, AgentEvent, CloseReason, Command, Event, Hello, Input, SessionCommand,
    SessionEvent,
};

use super::sock::{Frame, Place, Sock, SockId};
use super::world::{Cluster, ClusterEvent};
use crate::shared::Verdict;

/// The longest time that a user agent stays away, nanoseconds.
const AWAY_MAX: u64 = 600_000_000_000;

impl Cluster {
    pub(super) fn enabled_of(&self, id: SockId, sock: &Sock, found: &mut Vec<ClusterEvent>) {
        let mine = self.agents[sock.agent].sock == Some(id) || self.twins.contains(&id);
        if mine && !sock.outbox.is_empty() {
            found.push(ClusterEvent::Read(id));
        }
        if sock.place == Place::Ended || !self.awake(sock.node) {
            return;
        }
        match sock.place {
            Place::Waiting if sock.closed => {}
            Place::Waiting => found.push(ClusterEvent::Opened(id)),
            Place::At(_) if sock.closed => found.push(ClusterEvent::Gone(id)),
            Place::At(_) if sock.ready && !sock.inbox.is_empty() => found.push(ClusterEvent::Decode(id)),
            Place::At(_) | Place::Moving | Place::Ended => {}
        }
    }

    /// Gives a socket a name on a shard.
    pub(super) fn name(&mut self, n: usize, s: usize, id: SockId) -> ConnId {
        let conn = self.fresh_conn();
        self.nodes[n].shards[s].conns.insert(conn.slot, id);
        let sock = &mut self.socks[id];
        (sock.shard, sock.place) = (s, Place::At(conn));
        conn
    }

    pub(super) fn opened(&mut self, id: SockId) -> Verdict {
        let (n, s) = (self.socks[id].node, self.socks[id].shard);
        let conn = self.name(n, s, id);
        self.socks[id].ready = true;
        self.step(n, s, Input::Opened { conn })
    }

    pub(super) fn gone(&mut self, id: SockId) -> Verdict {
        let Place::At(conn) = self.socks[id].place else { return Ok(()) };
        let (n, s) = (self.socks[id].node, self.socks[id].shard);
        self.nodes[n].shards[s].conns.remove(&conn.slot);
        self.socks[id].place = Place::Ended;
        self.step(n, s, Input::Gone { conn, reason: CloseReason::PeerClosed })
    }

    pub(super) fn decode(&mut self, id: SockId) -> Verdict {
        let Place::At(conn) = self.socks[id].place else { return Ok(()) };
        let (n, s) = (self.socks[id].node, self.socks[id].shard);
        let Some(mut command) = self.socks[id].inbox.pop_front() else { return Ok(()) };
        self.socks[id].spoke = self.now;
        let (step, uaid) = (self.steps + 1, self.socks[id].served);
        match &mut command {
            Command::Agent(AgentCommand::Hello(hello)) => {
                self.socks[id].known = hello.uaid.filter(|asked| self.known.contains(asked));
                hello.fresh = loop {
                    let fresh = Uaid(self.rng.network.bytes16());
                    if usize::from(self.placement.owner(fresh).0) == s {
                        break fresh;
                    }
                };
            }
            Command::Agent(AgentCommand::Session(
                SessionCommand::Register { chid, .. } | SessionCommand::Unregister { chid, .. },
            )) => {
                let Some(uaid) = uaid else { return Ok(()) };
                let channel = self.channels.entry((uaid, *chid)).or_default();
                channel.registered = None;
                channel.version += 1;
                self.socks[id].asking.insert(*chid, channel.version);
                if matches!(command, Command::Agent(AgentCommand::Session(SessionCommand::Unregister { .. }))) {
                    channel.unregistered = Some(step);
                }
            }
            Command::Agent(AgentCommand::Session(SessionCommand::Ack(updates))) => {
                for at in updates.iter().filter_map(|update| self.by_stamp.get(&update.stamp)) {
                    self.posts[*at].acks(step, self.now, id, self.nodes[n].id.boot);
                }
            }
            Command::Agent(AgentCommand::Session(SessionCommand::AckVersions(updates))) => {
                updates.iter().for_each(|update| self.version_acked(id, update));
            }
            Command::Agent(AgentCommand::Session(SessionCommand::Urgency { minimum: Some(minimum) })) => {
                let sock = &mut self.socks[id];
                (sock.naming, sock.minimum) = (*minimum, sock.minimum.min(*minimum));
            }
            _ => {}
        }
        self.socks[id].ready = false;
        self.step(n, s, Input::Command { conn, command })
    }

    /// A machine says this to a user agent, whether that reads it or not.
    pub(super) fn said(&mut self, id: SockId, event: &Event) -> Verdict {
        let Event::Agent(AgentEvent::Session(event)) = event else { return Ok(()) };
        match event {
            SessionEvent::Hello { uaid, .. } if self.bridges.users.contains_key(uaid) => {
                return Err(format!("{uaid:?} has a bridge and is given a session"));
            }
            SessionEvent::Hello { uaid, .. } => {
                let known = self.socks[id].known.filter(|known| self.store.user(*known).is_some());
                if let Some(known) = known.filter(|known| known != uaid) {
                    return Err(format!("{known:?} is known and was given {uaid:?}"));
                }
                (self.socks[id].served, self.socks[id].spoke) = (Some(*uaid), self.now);
                self.acked_versions.retain(|key, _| key.0 != *uaid);
            }
            SessionEvent::Registered { uaid, chid, status, .. } => {
                let asked = self.socks[id].asking.remove(chid);
                let channel = self.channels.entry((*uaid, *chid)).or_default();
                if *status == 200 && asked == Some(channel.version) {
                    channel.registered = Some(true);
                    channel.registered_on = Some((id, self.steps));
                }
                if *status == 200 {
                    self.known.insert(*uaid);
                }
            }
            SessionEvent::Unregistered { chid, status } => {
                self.socks[id].unsure |= *status != 200;
                let asked = self.socks[id].asking.remove(chid);
                let Some(uaid) = self.socks[id].served else { return Ok(()) };
                let channel = self.channels.entry((uaid, *chid)).or_default();
                channel.unregistered = Some(self.steps);
                if *status == 200 && asked == Some(channel.version) {
                    channel.registered = Some(false);
                }
            }
            SessionEvent::Urgency { status: 200 } => {
                self.marks.hit("urgency: named");
                let sock = &mut self.socks[id];
                sock.minimum = sock.naming;
            }
            SessionEvent::Urgency { status } if *status != 500 => {
                return Err(format!("a minimum was answered {status}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// A user agent reads one frame.
    pub(super) fn read(&mut self, id: SockId) -> Verdict {
        let Some(frame) = self.socks[id].outbox.pop_front() else { return Ok(()) };
        let index = self.socks[id].agent;
        self.log(None, format_args!("agent {index} reads {frame:?} on socket {id}"));
        let twin = self.agents[index].sock != Some(id);
        let agent = &mut self.agents[index];
        match frame {
            Frame::Hello(_) | Frame::Registered(..) | Frame::Unregistered(..) if twin => {}
            Frame::Hello(uaid) => {
                if agent.uaid != Some(uaid) {
                    agent.uaid = Some(uaid);
                    agent.channels.clear();
                }
                self.socks[id].greeted = true;
                self.lowers_when_calm(id);
            }
            Frame::Urgency => {}
            Frame::Registered(chid, 200) => drop(agent.channels.insert(chid)),
            Frame::Unregistered(chid, 200) => drop(agent.channels.remove(&chid)),
            Frame::Registered(..) | Frame::Unregistered(..) => {}
            Frame::Ping => self.socks[id].inbox.push_back(AgentCommand::Pong.into()),
            Frame::Closed => self.lost(id),
            Frame::Notification(update) => {
                self.socks[id].got.push(update);
                if self.calm && !self.withholds {
                    self.acks(id, true);
                }
            }
        }
        Ok(())
    }

    /// In the end every user agent wants everything, or speaks now and then ([`Cluster::speaks`]).
    pub(super) fn lowers_when_calm(&mut self, id: SockId) {
        let names = self.plan.minimums > 0 && !self.agents[self.socks[id].agent].simple;
        if self.calm && names && self.plan.release_on_activity.0 == 0 && self.socks[id].greeted {
            let minimum = Some(Urgency::VeryLow);
            self.socks[id].inbox.push_back(SessionCommand::Urgency { minimum }.into());
        }
    }

    /// Every user agent that has slept for a while says something: that releases what its minimum holds.
    pub(super) fn speaks(&mut self) {
        let slept = self.now.saturating_sub(2 * self.plan.release_on_activity.0);
        for id in self.agents.iter().filter_map(|agent| agent.sock).collect::<Vec<_>>() {
            let sock = &mut self.socks[id];
            if sock.greeted && sock.spoke < slept && sock.inbox.is_empty() {
                sock.inbox.push_back(AgentCommand::Pong.into());
            }
        }
    }

    /// The user agent knows that this socket is over.
    pub(super) fn lost(&mut self, id: SockId) {
        let agent = self.socks[id].agent;
        if self.agents[agent].sock == Some(id) {
            self.agents[agent].sock = None;
            self.agents[agent].retry_at = self.now + self.rng.clients.below(3_000_000_000);
        }
    }

    pub(super) fn connect(&mut self, index: usize) {
        if self.now < self.agents[index].retry_at {
            return;
        }
        let node = self.rng.clients.index(self.nodes.len());
        if !self.nodes[node].up || self.nodes[node].stopping.is_some() {
            return;
        }
        let shard = self.rng.clients.index(self.nodes[node].shards.len());
        let asked = self.agents[index].uaid.or_else(|| self.stray_name());
        let mut hello = Hello::new(asked, Uaid([0; 16]));
        if self.agents[index].simple {
            hello.mode = Mode::Simple;
            // In the end none can be told to stay away.
            hello.wake = WakeData::new("at=here").filter(|_| !self.calm && self.rng.clients.permille(500));
        }
        let id = self.socks.len();
        self.socks.push(Sock {
            agent: index,
            node,
            shard,
            inbox: VecDeque::from([AgentCommand::Hello(Box::new(hello)).into()]),
            minimum: Urgency::VeryLow,
            naming: Urgency::VeryLow,
            since: self.steps,
            ..Sock::default()
        });
        self.agents[index].sock = Some(id);
        self.log(None, format_args!("agent {index} connects to node {node} as socket {id}"));
    }

    /// Name of a bridged user, which a user agent without one may give by mistake.
    fn stray_name(&mut self) -> Option<Uaid> {
        if self.plan.bridges.phones == 0 || !self.rng.clients.permille(300) {
            return None;
        }
        let phone = self.rng.clients.index(self.plan.bridges.phones);
        let name = self.bridges.phones[phone].uaid;
        name.inspect(|_| self.marks.hit("agent: names a bridged user"))
    }

    /// Goes away, seen by its node or not.
    pub(super) fn leave(&mut self, index: usize) {
        let Some(id) = self.agents[index].sock.take() else { return };
        let unseen = !self.calm && self.rng.clients.permille(self.plan.faults.half_open);
        self.marks.hit(if unseen { "agent: leaves unseen" } else { "agent: leaves" });
        self.log(None, format_args!("agent {index} leaves socket {id}, unseen: {unseen}"));
        self.socks[id].closed = !unseen;
        if unseen && self.rng.clients.permille(self.plan.faults.twin) {
            self.marks.hit("agent: listens to a socket that it has left");
            self.twins.push(id);
        }
        if self.rng.clients.permille(500) {
            self.socks[id].inbox.clear();
        }
        // At once: the next hello may overtake what this session still writes.
        let at_once = unseen && self.rng.clients.permille(500);
        let away = self.plan.faults.away;
        let wait = if at_once {
            0
        } else if away > 0 && self.rng.clients.permille(away) {
            self.marks.hit("agent: stays away");
            self.rng.clients.below(AWAY_MAX)
        } else {
            self.rng.clients.below(2_000_000_000)
        };
        self.agents[index].retry_at = self.now + wait;
    }

    /// A random user agent does something.
    pub(super) fn agent_acts(&mut self) {
        let index = self.rng.clients.index(self.agents.len());
        if !self.twins.is_empty() && self.rng.clients.permille(300) {
            let id = self.twins[self.rng.clients.index(self.twins.len())];
            return self.acks(id, false);
        }
        let Some(id) = self.agents[index].sock else { return self.connect(index) };
        if self.rng.clients.permille(self.plan.faults.disconnect) {
            return self.leave(index);
        }
        if !self.socks[id].greeted || self.socks[id].inbox.len() > 4 {
            return;
        }
        let chid = self.wish(index);
        if self.plan.press.flicker > 0 && self.rng.clients.permille(self.plan.press.flicker) {
            return self.flickers(index, id);
        }
        let few = self.agents[index].channels.len() < self.plan.channels;
        let names = self.plan.minimums > 0 && !self.agents[index].simple;
        if names && self.rng.clients.permille(self.plan.minimums) {
            let minimum = Urgency::of(self.rng.clients.below(4) as u8);
            return self.socks[id].inbox.push_back(SessionCommand::Urgency { minimum }.into());
        }
        match self.rng.clients.below(100) {
            0..30 if few => {
                self.socks[id].inbox.push_back(SessionCommand::Register { chid, key: None, caller: None }.into())
            }
            30..34 => self.socks[id].inbox.push_back(SessionCommand::Register { chid, key: None, caller: None }.into()),
            34..37 => self.socks[id].inbox.push_back(SessionCommand::Unregister { chid, code: 200 }.into()),
            _ if self.rng.clients.permille(self.plan.acking) => self.acks(id, false),
            _ => {}
        }
    }

    /// Unregisters a channel, registers it again and leaves unseen: the next hello may read the user in between.
    fn flickers(&mut self, index: usize, id: SockId) {
        let Some(chid) = self.agents[index].channels.first().copied() else { return };
        self.marks.hit("agent: flickers");
        let asked = [
            SessionCommand::Unregister { chid, code: 200 },
            SessionCommand::Register { chid, key: None, caller: None },
        ];
        self.socks[id].inbox.extend(asked.map(Into::into));
        self.agents[index].sock = None;
        self.agents[index].retry_at = self.now + self.rng.clients.below(self.plan.delay + 1);
    }

    fn wish(&mut self, index: usize) -> Chid {
        let mut bytes = [0; 16];
        bytes[0] = index as u8 + 1;
        bytes[1] = self.rng.clients.index(self.plan.channels) as u8 + 1;
        Chid(bytes)
    }

    /// Acks everything, or some.
    pub(super) fn acks(&mut self, id: SockId, all: bool) {
        let got = &mut self.socks[id].got;
        let mut updates = Vec::new();
        let count = if all { got.len() } else { 1 + self.rng.clients.index(3) };
        while !got.is_empty() && updates.len() < count {
            let at = if self.rng.clients.permille(700) { 0 } else { self.rng.clients.index(got.len()) };
            updates.push(got.remove(at));
        }
        if updates.is_empty() {
            return;
        }
        let command = if self.agents[self.socks[id].agent].simple {
            let version = |update: &AckUpdate| {
                let version = self.by_stamp.get(&update.stamp).map_or(0, |post| self.posts[*post].version);
                AckVersion { chid: update.chid, version }
            };
            SessionCommand::AckVersions(updates.iter().map(version).collect())
        } else {
            SessionCommand::Ack(updates)
        };
        self.socks[id].inbox.push_back(command.into());
    }

    /// An ack of a version ends every update of its channel up to that version.
    fn version_acked(&mut self, id: SockId, update: &AckVersion) {
        let Some(uaid) = self.socks[id].served else { return };
        let key = (uaid, update.chid);
        let registered = self.channels.get(&key).is_some_and(|channel| channel.registered == Some(true));
        let highest = self.acked_versions.entry(key).or_default();
        *highest = update.version.max(*highest);
        let boot = self.nodes[self.socks[id].node].id.boot;
        for post in &mut self.posts {
            let acked = (post.to.uaid, post.to.chid) == key && (1..=update.version).contains(&post.version);
            if acked && registered && post.sent_on == Some(id) {
                post.acks(self.steps + 1, self.now, id, boot);
            } else {
                post.ack_odd |= acked;
            }
        }
    }

    /// A socket whose descriptor has set out.
    pub(super) fn sets_out(&mut self, n: usize, to: usize, id: SockId, claim: Claim) {
        self.socks[id].place = Place::Moving;
        self.nodes[n].shards[to].moves.push((id, claim));
    }
}
