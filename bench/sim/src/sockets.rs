//! Sockets as a loop sees them: accept, decode one command at a time, block, move, close.

use machine::ids::{ConnId, EmissionId, ShardId, Stamp};
use machine::message::Message;
use machine::{AgentEvent, Arrival, Carried, CloseReason, Command, Event, Hello, Input, Mail, SessionEvent};
use runtime::mailbox::Lane;

use crate::shared::Verdict;
use crate::socket::{Blocked, Frame, Place, SocketId};
use crate::world::{Moving, Slot, World};

impl World {
    /// Gives a socket a place in a shard's connection plane.
    pub(crate) fn name(&mut self, shard: usize, id: SocketId) -> ConnId {
        let this = &mut self.shards[shard];
        let slot = this.free.pop().unwrap_or_else(|| {
            this.slots.push(Slot::default());
            (this.slots.len() - 1) as u32
        });
        let place = &mut this.slots[slot as usize];
        assert!(place.socket.is_none(), "a free slot is empty");
        place.socket = Some(id);
        let conn = ConnId { slot, generation: place.generation };
        self.sockets[id].place = Place::At { shard, conn };
        conn
    }

    /// Takes the place back: its name stands for no socket any more.
    pub(crate) fn unname(&mut self, shard: usize, conn: ConnId) {
        let this = &mut self.shards[shard];
        let place = &mut this.slots[conn.slot as usize];
        assert!(place.generation == conn.generation && place.socket.is_some(), "a place is given back once");
        *place = Slot { generation: conn.generation + 1, socket: None };
        this.free.push(conn.slot);
    }

    /// Socket that a machine names. App servers may have hung up: then `None`. Any other peer must be there.
    pub(crate) fn socket_of(&self, shard: usize, conn: ConnId) -> Result<Option<SocketId>, String> {
        let slot = self.shards[shard].slots.get(conn.slot as usize);
        match slot {
            Some(Slot { generation, socket: Some(id) }) if *generation == conn.generation => Ok(Some(*id)),
            _ if self.oracle.hung_up.contains(&(shard, conn.slot, conn.generation)) => Ok(None),
            _ => Err(format!("an effect for a connection that is gone: shard {shard}, {conn:?}")),
        }
    }

    pub(crate) fn accept(&mut self, id: SocketId) -> Verdict {
        let Place::Waiting { shard } = self.sockets[id].place else { return Ok(()) };
        let conn = self.name(shard, id);
        self.sockets[id].ready = true;
        self.sockets[id].session.clocks.opened = self.now;
        self.step(shard, Input::Opened { conn })
    }

    pub(crate) fn decode(&mut self, id: SocketId) -> Verdict {
        let Place::At { shard, conn } = self.sockets[id].place else { return Ok(()) };
        let socket = &mut self.sockets[id];
        let Some(command) = socket.carried.pop_front().or_else(|| socket.inbox.pop_front()) else { return Ok(()) };
        socket.ready = false;
        let command = match command {
            Command::Agent(command) => self.before_command(id, shard, command).into(),
            Command::Relay(command) => self.before_relay_command(id, shard, command).into(),
            Command::Sender(_) | Command::Registration(_) | Command::Node(_) => {
                return Err("an HTTP request on a WebSocket".to_owned());
            }
        };
        self.step(shard, Input::Command { conn, command })
    }

    pub(crate) fn notice_gone(&mut self, id: SocketId) -> Verdict {
        let Place::At { shard, conn } = self.sockets[id].place else { return Ok(()) };
        let reasons = [CloseReason::PeerClosed, CloseReason::PeerClosed, CloseReason::BadMessage, CloseReason::TooBig];
        let reason = self.rng.network.pick(&reasons);
        self.unname(shard, conn);
        self.sockets[id].place = Place::Ended;
        self.hibernation.greeting.remove(&id);
        self.oracle.session_ended(id);
        self.relay_ended(id);
        self.step(shard, Input::Gone { conn, reason })
    }

    pub(crate) fn tell_blocked(&mut self, id: SocketId) -> Verdict {
        let Place::At { shard, conn } = self.sockets[id].place else { return Ok(()) };
        let Some(blocked) = &mut self.sockets[id].blocked else { return Ok(()) };
        blocked.told = true;
        self.marks.hit("socket: blocked");
        self.step(shard, Input::Blocked { conn })?;
        self.give_back_unsent(id)
    }

    /// Names what was refused, oldest first.
    pub(crate) fn give_back_unsent(&mut self, id: SocketId) -> Verdict {
        loop {
            let Place::At { shard, conn } = self.sockets[id].place else { return Ok(()) };
            let Some(blocked) = &mut self.sockets[id].blocked else { return Ok(()) };
            let Some(emission) = blocked.unsent.pop_front() else { return Ok(()) };
            self.marks.hit("socket: unsent");
            self.step(shard, Input::Unsent { conn, emission })?;
        }
    }

    pub(crate) fn writable(&mut self, id: SocketId) -> Verdict {
        let Place::At { shard, conn } = self.sockets[id].place else { return Ok(()) };
        let Some(blocked) = self.sockets[id].blocked.take() else { return Ok(()) };
        assert!(blocked.unsent.is_empty(), "what was refused was named right behind Blocked");
        self.sockets[id].outbox.extend(blocked.tail);
        self.marks.hit("socket: writable again");
        self.step(shard, Input::Writable { conn })
    }

    /// Writes a frame, or finds that the socket takes none.
    pub(crate) fn write(&mut self, id: SocketId, frame: Frame, emission: Option<EmissionId>) -> Verdict {
        let (reader, stamp) = reader_of(id, &frame);
        let socket = &self.sockets[id];
        let is_taken = if socket.frozen.is_some() && (socket.blocked.is_none() || emission.is_none()) {
            self.wait_for_thaw(id, frame, emission);
            true
        } else {
            self.put(id, frame, emission)?
        };
        match stamp {
            Some(stamp) if is_taken => self.sent(reader, stamp),
            _ => Ok(()),
        }
    }

    /// Puts a frame into a socket. Returns false if it is refused.
    pub(crate) fn put(&mut self, id: SocketId, frame: Frame, emission: Option<EmissionId>) -> Result<bool, String> {
        let full = self.plan.socket_frames;
        let whole = self.rng.network.permille(500);
        let (reader, stamp) = reader_of(id, &frame);
        let socket = &mut self.sockets[id];
        match &mut socket.blocked {
            None if socket.outbox.len() < full => socket.outbox.push_back(frame),
            None => {
                // The first frame refused may have gone out in part; then the rest of it is owed.
                let mut blocked = Blocked::default();
                match emission {
                    Some(emission) if whole => blocked.unsent.push_back(emission),
                    _ => blocked.tail.push_back(frame),
                }
                let none_sent = blocked.tail.is_empty();
                socket.blocked = Some(blocked);
                if none_sent {
                    self.sockets[reader].session.refused(stamp);
                    self.delivery_forgotten(stamp);
                    return Ok(false);
                }
            }
            Some(blocked) => match emission {
                Some(_) if blocked.told => return Err("a notification for a socket that is blocked".to_owned()),
                Some(emission) => {
                    blocked.unsent.push_back(emission);
                    self.sockets[reader].session.refused(stamp);
                    self.delivery_forgotten(stamp);
                    return Ok(false);
                }
                None => blocked.tail.push_back(frame),
            },
        }
        Ok(true)
    }

    /// `Effect::Close`: last words, and the place is free.
    pub(crate) fn close(&mut self, shard: usize, conn: ConnId, reason: CloseReason) -> Verdict {
        let Some(id) = self.socket_of(shard, conn)? else { return Ok(()) };
        self.in_time(id, reason)?;
        self.close_of_frozen(id, reason)?;
        self.marks.hit(&format!("close: {reason:?}"));
        if self.calm && !matches!(reason, CloseReason::Superseded | CloseReason::Draining) {
            self.marks.hit(&format!("close while calm: {reason:?}"));
        }
        self.unname(shard, conn);
        if self.closes_in_silence(id, reason) {
            self.oracle.session_ended(id);
            self.relay_ended(id);
            return Ok(());
        }
        let socket = &mut self.sockets[id];
        socket.place = Place::Ended;
        let rest = socket.blocked.take().map(|blocked| blocked.tail).unwrap_or_default();
        socket.outbox.extend(rest);
        socket.outbox.push_back(Frame::Closed(reason));
        self.oracle.session_ended(id);
        self.relay_ended(id);
        if !self.sockets[id].is_websocket() {
            self.poster_closed(id);
        }
        Ok(())
    }

    /// `Effect::Move`: descriptor and mail set out, each in its own time.
    pub(crate) fn set_out(
        &mut self,
        from: usize,
        conn: ConnId,
        to: ShardId,
        claim: machine::ids::Claim,
        hello: Box<Hello>,
    ) -> Verdict {
        let Some(id) = self.socket_of(from, conn)? else {
            return Err("a move of an HTTP connection".to_owned());
        };
        let target = usize::from(to.0);
        if self.sockets[id].frozen.is_some() {
            return Err(format!("socket {id} moves and is frozen"));
        }
        if target == from || target >= self.shards.len() {
            return Err(format!("a move from shard {from} to shard {target}"));
        }
        if hello.uaid.map(|uaid| self.owner(uaid)) != Some(target) {
            return Err(format!("a move to shard {target}, which does not own the UAID"));
        }
        let fails = !self.calm && self.rng.faults.permille(self.plan.faults.move_fail);
        let received = self.rng.network.index(self.sockets[id].inbox.len() + 1);
        let socket = &mut self.sockets[id];
        let carried: Vec<Command> = socket.inbox.drain(..received).collect();
        let bytes = mail_bytes(id, received);
        socket.carried.extend(carried);
        socket.place = Place::Moving;
        socket.session.fed = received == 0;
        self.moves.push(Moving { socket: id, source: from, conn, to: target, claim, fails });
        if !fails {
            return self.post_mail(from, to, Mail::Arrive(Box::new(Arrival { claim, hello, bytes: Carried(bytes) })));
        }
        Ok(())
    }

    /// A descriptor lands where it was sent, or stays where it was.
    pub(crate) fn land(&mut self, index: usize) -> Verdict {
        let moving = self.moves.swap_remove(index);
        let id = moving.socket;
        if moving.fails {
            self.marks.hit("move: failed");
            self.sockets[id].place = Place::At { shard: moving.source, conn: moving.conn };
            let (conn, to, claim) = (moving.conn, ShardId(moving.to as u16), moving.claim);
            self.step(moving.source, Input::MoveFailed { conn, to, claim })?;
            let source = (moving.source, moving.conn);
            let stays = matches!(self.sockets[id].place, Place::At { shard, conn } if (shard, conn) == source);
            return if stays { Err("a socket whose move failed was not closed".to_owned()) } else { Ok(()) };
        }
        self.unname(moving.source, moving.conn);
        let conn = self.name(moving.to, id);
        if !self.sockets[id].peer_open {
            self.marks.hit("move: peer gone on the way");
        }
        let waits = |mail: &Mail| matches!(mail, Mail::Arrive(arrival) if arrival.claim == moving.claim);
        let behind = self.lanes[moving.to][Lane::Arrivals as usize].iter().any(waits);
        self.marks.hit(if behind { "move: descriptor before mail" } else { "move: mail before descriptor" });
        self.step(moving.to, Input::Arrived { conn, claim: moving.claim })?;
        if self.sockets[id].place == Place::Ended {
            self.marks.hit("move: superseded or timed out on the way");
        }
        Ok(())
    }

    /// `Effect::Feed`: the bytes that travelled come back, unchanged, before any other.
    pub(crate) fn feed(&mut self, shard: usize, conn: ConnId, bytes: &[u8]) -> Verdict {
        let Some(id) = self.socket_of(shard, conn)? else { return Err("bytes fed to an HTTP connection".to_owned()) };
        if *bytes != *mail_bytes(id, self.sockets[id].carried.len()) {
            return Err("other bytes came out of a move than went in".to_owned());
        }
        if !bytes.is_empty() {
            self.marks.hit("move: undecoded bytes came along");
        }
        self.sockets[id].session.fed = true;
        Ok(())
    }

    /// `Effect::Emit` on a user agent's connection: the user agent reads it, if the machine may send it.
    pub(crate) fn emit(&mut self, id: SocketId, event: Event) -> Verdict {
        let (frame, emission) = match event {
            Event::Relay(event) => return self.relay_said(id, event),
            other if self.sockets[id].relay.is_some() => return Err(format!("a relay is told {other:?}")),
            Event::Agent(AgentEvent::Session(event)) => match self.frame_of(id, event)? {
                (Frame::Hello(uaid, delta), _) => match self.answer_read(id, uaid, delta) {
                    Some(frame) => (frame, None),
                    None => return Ok(()),
                },
                other => other,
            },
            Event::Agent(AgentEvent::Pong) => (Frame::Pong, None),
            Event::Agent(AgentEvent::Ping) => {
                self.server_pings(id)?;
                if self.probes(id) {
                    return Ok(());
                }
                (Frame::Ping, None)
            }
            Event::Sender(_) | Event::Registration(_) | Event::Node(_) => {
                return Err("an HTTP answer on a WebSocket".to_owned());
            }
        };
        self.write(id, frame, emission)
    }

    /// Frame that the user agent on this socket reads, once the oracle agrees.
    pub(crate) fn frame_of(
        &mut self,
        id: SocketId,
        event: SessionEvent,
    ) -> Result<(Frame, Option<EmissionId>), String> {
        Ok(match event {
            SessionEvent::Hello { uaid, mode, broadcasts, .. } => {
                self.hello_said(id, uaid, mode)?;
                (Frame::Hello(uaid, broadcasts), None)
            }
            SessionEvent::Registered { uaid, chid, status, .. } => {
                self.registered(id, uaid, chid, status)?;
                (Frame::Registered(chid, status), None)
            }
            SessionEvent::Unregistered { chid, status } => {
                self.unregistered(id, chid, status)?;
                (Frame::Unregistered(chid, status), None)
            }
            SessionEvent::Urgency { status } => {
                self.minimum_named(id, status)?;
                (Frame::Urgency, None)
            }
            SessionEvent::Notification { message, emission, .. } => {
                self.notified(id, &message)?;
                self.bodies.seen(&message);
                (Frame::Notification(Box::new(Message::clone(&message))), Some(emission))
            }
            SessionEvent::Broadcast(delta) => (Frame::Broadcast(delta), None),
        })
    }
}

/// The user agent that reads a frame, and the message in it.
fn reader_of(id: SocketId, frame: &Frame) -> (SocketId, Option<Stamp>) {
    match frame {
        Frame::Notification(message) => (id, Some(message.stamp)),
        Frame::Of(member, frame) => match &**frame {
            Frame::Notification(message) => (*member, Some(message.stamp)),
            _ => (*member, None),
        },
        _ => (id, None),
    }
}

/// Bytes that stand for `count` undecoded commands of a socket.
fn mail_bytes(id: SocketId, count: usize) -> Box<[u8]> {
    if count == 0 {
        return Box::default();
    }
    let mut bytes = (id as u64).to_be_bytes().to_vec();
    bytes.resize(8 + count, b'x');
    bytes.into()
}
