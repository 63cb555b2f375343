//! Frozen sessions over a restart (decision 0035): their connections go on, and their hellos are said again.
//!
//! The oracle keeps the sessions that were left to the next process. Each must be served there on the same connection,
//! unless its peer has left, its user has come back by another connection, or its hello met a fault. Its user agent
//! must not notice: it reads no close and no second answer to its hello.

use machine::ids::Uaid;
use machine::message::Message;
use machine::{AgentCommand, BroadcastDelta, CloseReason, Hello, Input};

use crate::sabotage::Sabotage;
use crate::shared::{SECOND, Verdict};
use crate::socket::{Frame, Place, Session, SocketId};
use crate::world::World;

use crate::socket::{Frozen, SessionRecord};

/// Hellos of sessions that were taken over under way at a time; the reactor allows more.
const GREETINGS_MAX: usize = 3;

impl World {
    /// Returns true if the process that is asked to stop leaves its frozen sessions to the next one.
    pub(crate) fn leaves_sessions(&self) -> bool {
        self.stopping.is_some() && self.hibernation.plan.outlives && self.hibernation.plan.drains
    }

    /// `Effect::Close` of a frozen session with a record at the end of such a process: not carried out.
    pub(super) fn leave_to_next(&mut self, id: SocketId) -> bool {
        let Some(record) = self.sockets[id].frozen.as_ref().and_then(|frozen| frozen.record.as_ref()) else {
            return false;
        };
        self.hibernation.left.insert(id, record.uaid);
        if self.store.sabotage == Some(Sabotage::FrozenClosed) {
            self.sockets[id].frozen = None;
            return false;
        }
        self.marks.hit("hibernation: close not carried out");
        self.sockets[id].place = Place::Left;
        true
    }

    /// The process ends: what is recorded waits for the next one. `recorded`: records outlive this end.
    pub(crate) fn end_hibernation(&mut self, recorded: bool) {
        self.hibernation.waiting.clear();
        self.hibernation.greeting.clear();
        self.hibernation.begins = u64::MAX;
        if recorded {
            self.leave_stale_record();
        }
        for id in 0..self.sockets.len() {
            let socket = &mut self.sockets[id];
            let Some(frozen) = socket.frozen.take_if(|_| socket.place != Place::Ended) else { continue };
            let deaf = frozen.deaf;
            match frozen.record.filter(|_| recorded) {
                Some(record) => {
                    self.marks.hit("hibernation: left to the next process");
                    let kept = Frozen { record: Some(record.clone()), segment_at: self.now, deaf, ..Frozen::default() };
                    (socket.place, socket.frozen) = (Place::Left, Some(Box::new(kept)));
                    (socket.session, socket.blocked, socket.ready) = (Session::default(), None, false);
                    self.hibernation.left.insert(id, record.uaid);
                    self.hibernation.waiting.push((id, record));
                }
                // The kernel has no socket whose peer it could tell.
                None => {
                    self.silently_gone(id);
                    // Its peer notices when it speaks; in the calm part it does at once.
                    self.sockets[id].peer_open &= !self.calm;
                }
            }
        }
        if self.store.sabotage != Some(Sabotage::FrozenClosed) {
            let left = std::mem::take(&mut self.hibernation.left);
            self.hibernation.left = left.into_iter().filter(|(id, _)| self.is_left(*id)).collect();
        }
    }

    /// Returns true if this connection was left to the next process and has no socket.
    pub(crate) fn is_left(&self, id: SocketId) -> bool {
        self.sockets[id].place == Place::Left && self.sockets[id].frozen.is_some()
    }

    /// A process that is killed between the thaw and the erasure leaves the record of a socket that the kernel closes.
    fn leave_stale_record(&mut self) {
        if self.calm || !self.hibernation.rng.permille(300) {
            return;
        }
        let Some(id) = (0..self.sockets.len()).find(|id| self.sockets[*id].frozen.is_none() && self.is_greeted(*id))
        else {
            return;
        };
        let Place::At { shard, conn } = self.sockets[id].place else { return };
        let record = SessionRecord::of(&self.shards[shard].machine, conn);
        if record.is_some() {
            self.marks.hit("hibernation: stale record");
            let socket = &mut self.sockets[id];
            socket.peer_open = false;
            // What came along with a move ends with the process, too.
            socket.inbox.clear();
            socket.carried.clear();
            socket.frozen = Some(Box::new(Frozen { record, deaf: true, ..Frozen::default() }));
        }
    }

    /// Returns true if this connection may have hibernated: its hello is answered.
    fn is_greeted(&self, id: SocketId) -> bool {
        let socket = &self.sockets[id];
        matches!(socket.place, Place::At { .. }) && socket.agent.is_some() && socket.session.served.is_some()
    }

    /// No process is there: some user agents give their connections up, and some of those come back by others.
    pub(crate) fn some_leave(&mut self) {
        self.hibernation.begins = self.now + SECOND / 5 + self.hibernation.rng.below(3 * SECOND);
        for at in 0..self.hibernation.waiting.len() {
            let id = self.hibernation.waiting[at].0;
            let leaves = self.hibernation.may(self.hibernation.plan.leavers, self.calm) && self.sockets[id].peer_open;
            let Some(index) = self.sockets[id].agent.filter(|_| leaves) else { continue };
            self.marks.hit("hibernation: user agent gone before the takeover");
            if self.hibernation.rng.permille(500) {
                self.hang_up(index, id);
                // Its last segment may meet no process.
                let deaf = self.hibernation.rng.permille(500);
                self.sockets[id].frozen.iter_mut().for_each(|frozen| frozen.deaf = deaf);
            }
            self.agents[index].retry_at = 0;
            self.connect(index);
            if let Some(id) = self.agents[index].sockets.last().copied().filter(|_| self.agents[index].relay.is_none())
            {
                self.say_hello(index, id);
            }
        }
    }

    /// Returns true if a hello can be said.
    pub(crate) fn can_resume(&self) -> bool {
        let hibernation = &self.hibernation;
        let awake = |(_, record): &(SocketId, SessionRecord)| self.awake(self.owner(record.uaid));
        self.now >= hibernation.begins
            && hibernation.greeting.len() < GREETINGS_MAX
            && hibernation.waiting.iter().any(awake)
    }

    /// Says the hello of a session that was taken over, unless its user has come back.
    pub(crate) fn resume(&mut self) -> Verdict {
        let at = self.hibernation.rng.index(self.hibernation.waiting.len());
        let (id, SessionRecord { uaid, broadcasts }) = self.hibernation.waiting[at].clone();
        let shard = self.owner(uaid);
        if !self.awake(shard) {
            return Ok(());
        }
        self.hibernation.waiting.swap_remove(at);
        let socket = &mut self.sockets[id];
        if socket.frozen.is_none() && !socket.peer_open {
            self.marks.hit("hibernation: peer gone before its hello");
            socket.place = Place::Ended;
            self.hibernation.left.remove(&id);
            return Ok(());
        }
        if self.store.sabotage == Some(Sabotage::FrozenForgotten) && self.hibernation.rng.permille(300) {
            self.silently_gone(id);
            return Ok(());
        }
        let is_back = self.shards[shard].machine.has_user(uaid);
        if is_back && self.store.sabotage != Some(Sabotage::HelloToReturned) {
            self.marks.hit("hibernation: user has come back before the takeover");
            self.silently_gone(id);
            self.hibernation.left.remove(&id);
            return Ok(());
        }
        let conn = self.name(shard, id);
        self.hibernation.greeting.insert(id, uaid);
        let known = self.store.seen().user(uaid).is_some();
        if !known {
            // It was never stored. One that has named a minimum has no record.
            self.marks.hit("hibernation: user not in storage");
        }
        let (opened, hello_step) = (self.now, self.steps + 2);
        let session = &mut self.sockets[id].session;
        (session.clocks.opened, session.hello_step, session.known) = (opened, hello_step, known);
        self.sockets[id].peer.asked = Some(uaid);
        let boot = self.boots;
        self.step(shard, Input::Opened { conn })?;
        if self.boots != boot || self.sockets[id].place != (Place::At { shard, conn }) {
            return Ok(());
        }
        let hello = Hello { broadcasts, ..Hello::new(Some(uaid), uaid) };
        self.step(shard, Input::Command { conn, command: AgentCommand::Hello(Box::new(hello)).into() })
    }

    /// The machine answers a hello. Returns the frame for its user agent, which must not see the answer
    /// to a hello that the driver has said.
    pub(crate) fn answer_read(&mut self, id: SocketId, uaid: Uaid, delta: Box<BroadcastDelta>) -> Option<Frame> {
        if self.hibernation.greeting.remove(&id).is_none() {
            return Some(Frame::Hello(uaid, delta));
        }
        self.marks.hit("hibernation: session goes on");
        self.hibernation.left.remove(&id);
        if self.store.sabotage == Some(Sabotage::AnswerSent) {
            return Some(Frame::Hello(uaid, delta));
        }
        if delta.changed.is_empty() || self.store.sabotage == Some(Sabotage::ChangesSwallowed) {
            return None;
        }
        self.marks.hit("hibernation: broadcast changed between two processes");
        Some(Frame::Broadcast(Box::new(BroadcastDelta { changed: delta.changed, unknown: Vec::new() })))
    }

    /// The machine closes a connection.
    pub(crate) fn close_of_frozen(&mut self, id: SocketId, reason: CloseReason) -> Verdict {
        let served = self.sockets[id].session.served;
        let older = |(other, uaid): (&SocketId, &Uaid)| *other < id && served == Some(*uaid);
        if reason == CloseReason::Superseded && self.hibernation.greeting.iter().any(older) {
            return Err(format!("socket {id} is ended by the hello of an earlier connection of its user"));
        }
        if self.hibernation.greeting.remove(&id).is_some() {
            self.marks.hit(&format!("hibernation: hello refused, {reason:?}"));
            // No process can help these; a drain of another mode ends all sessions.
            let excused = matches!(
                reason,
                CloseReason::StorageDown
                    | CloseReason::Overloaded
                    | CloseReason::Superseded
                    | CloseReason::HandshakeTimeout
                    | CloseReason::Draining
            );
            if !excused {
                return Err(format!("the session of socket {id} was frozen and is refused with {reason:?}"));
            }
            self.hibernation.left.remove(&id);
        }
        Ok(())
    }

    /// A user agent reads this: nothing that would show it a restart.
    pub(crate) fn unnoticed(&self, id: SocketId, frame: &Frame) -> Verdict {
        let is_left = self.hibernation.left.contains_key(&id);
        match frame {
            Frame::Closed(CloseReason::Draining) if is_left => {
                Err(format!("socket {id} reads a close, and its session was frozen for the next process"))
            }
            Frame::Hello(..) if self.sockets[id].peer.uaid.is_some() => {
                Err(format!("socket {id} reads an answer to a hello that it has not said"))
            }
            _ => Ok(()),
        }
    }

    /// Checks, behind the last hello, that no session that was left to this process is lost.
    pub(crate) fn sessions_went_on(&mut self) -> Verdict {
        let hibernation = &self.hibernation;
        if hibernation.left.is_empty()
            || !hibernation.waiting.is_empty()
            || !hibernation.greeting.is_empty()
            || self.leaves_sessions()
        {
            return Ok(());
        }
        let lost = hibernation.left.iter().find(|(id, _)| self.sockets[**id].peer_open);
        if let Some((id, uaid)) = lost {
            return Err(format!("the session of {uaid:?} on socket {id} was frozen and is lost by a restart"));
        }
        self.hibernation.left.clear();
        Ok(())
    }

    /// Returns true if the ledger record of this message is not replayed, because its user has a frozen session.
    pub(crate) fn replay_forgotten(&self, message: &Message) -> bool {
        self.store.sabotage == Some(Sabotage::FrozenNotReplayed)
            && self.hibernation.waiting.iter().any(|(_, record)| record.uaid == message.uaid)
    }

    /// The process restarts with every session frozen and messages on their way. They arrive, though no user agent
    /// says a word.
    pub(crate) fn restart_frozen(&mut self) -> Verdict {
        self.post_everywhere()?;
        self.freeze_silent(1_000);
        // Learned while no process is there.
        for known in &mut self.broadcasts {
            known.version = self.steps.to_string().into();
        }
        // A kill may take back the mode that a user has changed to, until its hello.
        if self.plan.simple == 0 && self.hibernation.rng.permille(500) {
            self.kill()?;
        } else {
            self.stop()?;
            while self.stopping.is_some() {
                self.turn()?;
                self.end_stop()?;
            }
        }
        for index in 0..self.agents.len() {
            let over = |id: &SocketId| !self.sockets[*id].peer_open;
            if let Some(id) = self.agents[index].sockets.last().copied().filter(over) {
                self.hang_up(index, id);
                self.agents[index].retry_at = self.now + 5 * SECOND;
            }
        }
        self.marks.add("hibernation: left while calm", self.hibernation.waiting.len() as u64);
        self.post_everywhere()
    }
}
