//! The oracle's side of every event that a machine emits: its content, its receiver and its time.

use machine::ids::{Chid, Stamp, Uaid};
use machine::limits;
use machine::message::Message;
use machine::simplepush::Mode;
use machine::{AckUpdate, AckVersion, AgentCommand, Hello, SessionCommand};

use crate::oracle::Post;
use crate::shared::Verdict;
use crate::socket::{Place, SocketId};
use crate::world::World;

impl World {
    /// Nothing is under way, so bodies are kept by machines only: all of them count against their bounds.
    pub(crate) fn bodies_counted(&mut self) -> Verdict {
        // Messages that wait to be stored again are bounded elsewhere.
        let quiet = self.shards.iter().all(|shard| shard.machine.is_quiet());
        if !quiet || !self.store.idle() || self.lanes.iter().flatten().any(|lane| !lane.is_empty()) {
            return Ok(());
        }
        let counted = |machine: &mut machine::ShardMachine| {
            let stats = machine.stats();
            stats.ledger_bytes + stats.row_bytes
        };
        let counted: u64 = self.shards.iter_mut().map(|shard| counted(&mut shard.machine)).sum();
        let kept = self.bodies.kept();
        if kept > counted {
            return Err(format!("machines keep {kept} bytes of messages and count {counted} against their bounds"));
        }
        Ok(())
    }

    /// A command is about to be decoded: what it promises and what it may change is taken down.
    pub(crate) fn before_command(&mut self, id: SocketId, shard: usize, command: AgentCommand) -> AgentCommand {
        self.heard_of(id, &command);
        self.sockets[id].session.heard_at = self.now;
        match command {
            AgentCommand::Hello(hello) => AgentCommand::Hello(self.before_hello(id, shard, hello)),
            AgentCommand::Session(command) => {
                self.before_session_command(id, &command);
                AgentCommand::Session(command)
            }
            AgentCommand::Ping | AgentCommand::Pong => command,
        }
    }

    pub(crate) fn before_hello(&mut self, id: SocketId, shard: usize, mut hello: Box<Hello>) -> Box<Hello> {
        self.sockets[id].session.hello_step = self.steps + 1;
        self.sockets[id].session.known = hello.uaid.is_some_and(|uaid| self.store.seen().user(uaid).is_some());
        let said = hello.channels.clone().filter(|_| self.plan.reconcile);
        if let (true, Some(uaid), Some(said)) = (self.is_member(id), hello.uaid, &said) {
            // Its owner answers it before the member hears of that.
            self.oracle.channels_said(uaid, said);
        }
        self.sockets[id].session.channels_said = said;
        hello.fresh = self.fresh_uaid(shard);
        hello
    }

    pub(crate) fn before_session_command(&mut self, id: SocketId, command: &SessionCommand) {
        let (step, served) = (self.steps + 1, self.sockets[id].session.served);
        match command {
            SessionCommand::Register { chid, .. } => {
                if let Some(uaid) = served {
                    let channel = self.oracle.channels.entry((uaid, *chid)).or_default();
                    channel.registered = None;
                    channel.version += 1;
                }
            }
            SessionCommand::Unregister { chid, .. } => {
                if let Some(uaid) = served {
                    self.oracle.unregister_asked(id, uaid, *chid, step);
                }
            }
            SessionCommand::Ack(updates) => updates.iter().for_each(|update| self.ack_given(id, update)),
            SessionCommand::AckVersions(updates) => updates.iter().for_each(|update| self.version_acked(id, update)),
            SessionCommand::Urgency { minimum } => self.names_minimum(id, *minimum),
            SessionCommand::Nack { .. } | SessionCommand::BroadcastSubscribe(_) => {}
        }
    }

    fn fresh_uaid(&mut self, shard: usize) -> Uaid {
        loop {
            let uaid = Uaid(self.rng.network.bytes16());
            if self.owner(uaid) == shard {
                return uaid;
            }
        }
    }

    fn ack_given(&mut self, id: SocketId, update: &AckUpdate) {
        // An ack of a member may come too late for its session.
        let member = self.is_member(id);
        let session = &self.sockets[id].session;
        let Some(&index) = self.oracle.by_stamp.get(&update.stamp) else { return };
        let post = &mut self.oracle.posts[index];
        if session.served != Some(post.to.uaid) || update.chid != post.to.chid {
            return;
        }
        if member || !session.sent.contains_key(&update.stamp) {
            post.ack_odd = true;
            return;
        }
        post.acked = Some(self.steps + 1);
        post.acked_at = self.now;
        post.acked_in_time = self.oracle.wall_max < post.expires;
        post.acked_when_spent = post.deliveries.are_spent(self.plan.attempts_max);
        post.end_lost = false;
        self.oracle.acked_in_step.push(index);
    }

    /// An ack of a version ends every update of its channel up to that version.
    fn version_acked(&mut self, id: SocketId, update: &AckVersion) {
        let Some(uaid) = self.sockets[id].session.served else { return };
        let member = self.is_member(id);
        let registered = self.oracle.channels.get(&(uaid, update.chid)).is_some_and(|c| c.registered == Some(true));
        let highest = self.oracle.acked_versions.entry((uaid, update.chid)).or_default();
        *highest = update.version.max(*highest);
        let acked = |post: &Post| (post.to.uaid, post.to.chid) == (uaid, update.chid) && post.version <= update.version;
        for (index, post) in self.oracle.posts.iter_mut().enumerate() {
            if post.version == 0 || update.version == 0 || !acked(post) {
                continue;
            }
            // A version that the socket refused meanwhile is read again, also after an ack of it.
            let sent = &self.sockets[id].session.sent;
            let sent = post.stamp.and_then(|stamp| sent.get(&stamp)).is_some_and(|(count, _)| *count > 0);
            if !sent || !registered || member {
                post.ack_odd = true;
                continue;
            }
            post.acked = Some(self.steps + 1);
            post.acked_at = self.now;
            post.acked_in_time = self.oracle.wall_max < post.expires;
            post.end_lost = false;
            self.oracle.acked_in_step.push(index);
        }
    }

    /// The machine answers a hello.
    pub(crate) fn hello_said(&mut self, id: SocketId, uaid: Uaid, mode: Mode) -> Verdict {
        let socket = &self.sockets[id];
        let shard = match socket.place {
            Place::At { shard, .. } => shard,
            Place::Member { .. } => self.owner(uaid),
            _ => return Err("a hello on the way".to_owned()),
        };
        if socket.session.served.is_some() {
            return Err(format!("socket {id} got two hellos"));
        }
        if self.owner(uaid) != shard {
            return Err(format!("shard {shard} serves {uaid:?}, which shard {} owns", self.owner(uaid)));
        }
        let member = self.is_member(id);
        if !member {
            self.outdated(uaid);
        }
        let socket = &self.sockets[id];
        if let Some(other) = self.oracle.resident.get(&uaid).filter(|_| !member) {
            return Err(format!("{uaid:?} is served on socket {id} and on socket {other}"));
        }
        let asked = socket.peer.asked;
        match asked {
            Some(asked) if asked == uaid => self.marks.hit("hello: known"),
            Some(asked) => {
                if socket.session.known && self.store.seen().user(asked).is_some() {
                    return Err(format!("{asked:?} is known and was answered with a fresh UAID"));
                }
                self.marks.hit("hello: unknown, reassigned");
            }
            None => self.marks.hit("hello: new"),
        }
        if asked != Some(uaid) && self.oracle.users.contains(&uaid) {
            return Err(format!("{uaid:?} was issued twice"));
        }
        self.sockets[id].session.served = Some(uaid);
        self.minimum_begins(id, uaid, mode);
        self.sockets[id].session.clocks.greeted = self.now;
        if self.oracle.modes.get(&uaid).is_some_and(|before| *before != mode) {
            self.marks.hit("hello: in another mode");
        }
        self.oracle.mode_said(uaid, mode);
        self.oracle.acked_versions.retain(|key, _| key.0 != uaid);
        if let (false, Some(said)) = (member, self.sockets[id].session.channels_said.take()) {
            self.oracle.channels_said(uaid, &said);
        }
        self.sockets[id].session.connected_at = self.time().unix_us / 1_000;
        self.oracle.users.insert(uaid);
        if member {
            self.member_greeted(id, uaid);
        } else {
            self.oracle.resident.insert(uaid, id);
        }
        Ok(())
    }

    pub(crate) fn registered(&mut self, id: SocketId, uaid: Uaid, chid: Chid, status: u16) -> Verdict {
        if self.sockets[id].session.served != Some(uaid) {
            return Err(format!("a register of {uaid:?} is answered on another session"));
        }
        let late = self.is_member(id);
        let channel = self.oracle.channels.entry((uaid, chid)).or_default();
        channel.version += 1;
        match status {
            200 => channel.registered = (!late).then_some(true),
            500 => self.marks.hit("register: 500"),
            other => return Err(format!("a register was answered {other}")),
        }
        Ok(())
    }

    pub(crate) fn unregistered(&mut self, id: SocketId, chid: Chid, status: u16) -> Verdict {
        let Some(uaid) = self.sockets[id].session.served else {
            return Err("an unregister is answered before hello".to_owned());
        };
        if self.is_member(id) {
            self.oracle.unregister_answered(id, 500, self.steps);
            return Ok(());
        }
        self.oracle.unregister_answered(id, status, self.steps);
        if status == 200 && self.oracle.channels.get(&(uaid, chid)).is_none_or(|c| c.registered != Some(false)) {
            return Err(format!("{chid:?} is said to be unregistered, nobody asked"));
        }
        Ok(())
    }

    /// Checks that the machine may send this notification.
    pub(crate) fn notified(&mut self, id: SocketId, message: &Message) -> Verdict {
        if self.is_member(id) {
            return self.member_notified(id, message);
        }
        self.not_held(id, message)?;
        let session = &self.sockets[id].session;
        if session.served != Some(message.uaid) {
            return Err(format!("{message:?} for another user agent, on socket {id}"));
        }
        let index = self.oracle.identify(message)?;
        self.oracle.stamped(index, message)?;
        let post = &self.oracle.posts[index];
        if post.acked.is_some() && !post.end_lost {
            return Err(format!("{message:?} was acked at step {:?} and comes again", post.acked));
        }
        if post.cancelled {
            return Err(format!("{message:?} was cancelled and comes again"));
        }
        if post.ttl == 0 && post.sent_count > 0 {
            return Err(format!("{message:?} has TTL 0 and comes again"));
        }
        if message.expired(self.time().unix()) && post.ttl > 0 && post.sent_count == 0 {
            self.marks.hit("notification: expired when first sent");
        }
        let none = Default::default();
        let channel = self.oracle.channels.get(&(message.uaid, message.chid)).unwrap_or(&none);
        if channel.registered == Some(false) {
            return Err(format!("{message:?} on a channel that is not registered"));
        }
        // The push of another node whose answer was lost comes once more, and is a new message by then.
        let pushed_again = post.foreign && post.pushed.is_some();
        if post.seen.is_some_and(|seen| seen < channel.dropped_before) && !pushed_again {
            return Err(format!("{message:?} was dropped by an unregister and comes again"));
        }
        let hello_step = session.hello_step;
        let newer = self.oracle.posts.iter().find(|other| {
            // An ack that a kill has taken back, or a wall clock that went back, may show the older one again.
            (post.topic.is_some() && post.version == 0 && !post.end_lost && self.oracle.wall_max < post.expires)
                && (other.to, other.topic) == (post.to, post.topic)
                && other.stamp > post.stamp
                && other.ttl > 0
                && other.seen.is_some_and(|seen| seen < hello_step)
        });
        match newer {
            Some(newer) => Err(format!("{message:?} comes after hello although {:?} replaced it", newer.stamp)),
            None => Ok(()),
        }
    }

    /// The socket took it.
    pub(crate) fn sent(&mut self, id: SocketId, stamp: Stamp) -> Verdict {
        let Some(&index) = self.oracle.by_stamp.get(&stamp) else { return Err(format!("{stamp:?} is nobody's")) };
        let member = self.is_member(id);
        let session = &mut self.sockets[id].session;
        let (count, last) = session.sent.entry(stamp).or_insert((0, self.now));
        if *count > 0 {
            self.marks.hit("notification: retried");
            if self.now - *last < self.plan.retry_after.0 && !member {
                return Err(format!("{stamp:?} was sent twice on one session within retry_after"));
            }
        }
        *count += 1;
        *last = self.now;
        if *count > 1 + u32::from(limits::RETRIES_MAX) && !member {
            return Err(format!("{stamp:?} was sent {count} times on one session"));
        }
        if session.sent.len() > 1 && *session.sent.keys().last().unwrap_or(&stamp) != stamp {
            self.marks.hit("notification: behind a newer one");
        }
        let post = &mut self.oracle.posts[index];
        post.sent_count += 1;
        if post.sent_count > 1 {
            self.marks.hit("notification: sent again");
        }
        if post.first_sent.is_some() {
            return Ok(());
        }
        post.first_sent = Some(self.steps);
        // A refusal takes its time from the home of a relay to the owner, which may have read on by then.
        if member { Ok(()) } else { self.in_order(index) }
    }

    /// Nothing of this channel that was POSTed after its 201 was sent before it.
    fn in_order(&self, index: usize) -> Verdict {
        let post = &self.oracle.posts[index];
        let Some(seen) = post.seen else { return Ok(()) };
        // A message that a wall clock took for expired, or that was acked unseen or cancelled in vain, was passed over
        // and comes late.
        if post.foreign || post.ttl == 0 || post.ack_odd || post.cancel_asked || self.oracle.wall_max >= post.expires {
            return Ok(());
        }
        // Topic messages come before the others of a user (PROTOCOL.md 1.8); Urgency reorders within a page.
        let overtook = self.oracle.posts.iter().find(|other| {
            other.to == post.to
                && other.start > seen
                && other.first_sent.is_some()
                && other.ttl > 0
                && !other.foreign
                && other.topic.is_none()
                && post.topic.is_none()
                && other.urgency <= post.urgency
        });
        match overtook {
            Some(other) => Err(format!("{:?} was sent before {:?}, whose 201 was earlier", other.stamp, post.stamp)),
            None => Ok(()),
        }
    }
}
