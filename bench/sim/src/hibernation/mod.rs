//! Hibernation (decisions 0034 and 0035), as the reactor does it: the socket of a silent session leaves the kernel, and
//! comes back when a segment arrives, a frame is due, or the session ends.
//!
//! The machine knows nothing of it. A thaw takes time or fails, segments of the peer get lost and come again, and what
//! is recorded outlives the process ([`takeover`]).

mod takeover;

use machine::ids::EmissionId;
use machine::{AgentCommand, CloseReason, Input};

use crate::shared::{SECOND, Verdict};
use crate::socket::{Blocked, Frame, Frozen, Place, SessionRecord, Socket, SocketId};
use crate::world::World;

/// `limits.blocked_timeout` of the reactor.
const BLOCKED_TIMEOUT: u64 = 30 * SECOND;

impl World {
    /// Takes down the plan.
    pub(crate) fn log_hibernation(&mut self) {
        let plan = self.hibernation.plan.clone();
        if plan.searches > 0 {
            self.log(None, format_args!("{plan:?}"));
        }
    }

    /// Looks for silent sessions now and then, and freezes some of them.
    pub(crate) fn search(&mut self) {
        if self.hibernation.plan.searches == 0 || !self.hibernation.rng.permille(self.hibernation.plan.searches) {
            return;
        }
        self.freeze_silent(500);
    }

    /// Freezes this share of the silent sessions.
    pub(crate) fn freeze_silent(&mut self, share: u64) {
        for id in 0..self.sockets.len() {
            if self.is_silent(id) && self.hibernation.rng.permille(share) {
                self.freeze(id);
            }
        }
    }

    /// Returns true if nothing is owed or under way on this connection.
    fn is_silent(&self, id: SocketId) -> bool {
        let socket = &self.sockets[id];
        let Place::At { shard, .. } = socket.place else { return false };
        // A peer that takes nothing more has a closed window, and the check refuses it.
        let has_room = socket.outbox.len() < self.plan.socket_frames;
        let waits = socket.ready && socket.blocked.is_none() && socket.frozen.is_none() && socket.peer_open;
        let has_read = socket.inbox.is_empty() && socket.carried.is_empty();
        self.awake(shard) && socket.is_websocket() && has_room && waits && has_read
    }

    fn freeze(&mut self, id: SocketId) {
        let Place::At { shard, conn } = self.sockets[id].place else { return };
        let hibernation = &mut self.hibernation;
        let may_record =
            hibernation.plan.outlives && (self.calm || !hibernation.rng.permille(hibernation.plan.unrecorded));
        let record = may_record.then(|| SessionRecord::of(&self.shards[shard].machine, conn)).flatten();
        self.marks.hit(if record.is_some() { "hibernation: frozen with a record" } else { "hibernation: frozen" });
        let segment_at = self.now + self.hibernation.delay(self.calm);
        self.sockets[id].frozen = Some(Box::new(Frozen { record, segment_at, ..Frozen::default() }));
        self.log(Some(shard), format_args!("freezes socket {id}"));
    }

    /// A frame is due on a frozen connection.
    pub(crate) fn wait_for_thaw(&mut self, id: SocketId, frame: Frame, emission: Option<EmissionId>) {
        let thaw_at = self.now + self.hibernation.delay(self.calm);
        let socket = &mut self.sockets[id];
        let waits = socket.blocked.is_some();
        let Some(frozen) = &mut socket.frozen else { return };
        if frozen.frames.is_empty() && !waits {
            frozen.thaw_at = thaw_at;
        }
        frozen.frames.push_back((frame, emission));
    }

    /// A frozen connection is thawed for its frames. Where that fails, its socket takes no bytes: it is tried again,
    /// and given up after a while.
    pub(crate) fn thaw_for_frame(&mut self, id: SocketId) -> Verdict {
        if !self.thaw_fails(id) {
            self.marks.hit("hibernation: thawed by a frame");
            return self.thawed(id);
        }
        let retry = self.now + SECOND / 10 + self.hibernation.delay(self.calm);
        let socket = &mut self.sockets[id];
        let Some(frozen) = &mut socket.frozen else { return Ok(()) };
        frozen.thaw_at = retry;
        let failed_at = *frozen.failed_at.get_or_insert(self.now);
        if socket.blocked.is_none() {
            socket.blocked = Some(Blocked::default());
        }
        let told = socket.blocked.as_ref().is_some_and(|blocked| blocked.told);
        if told && self.now > failed_at + BLOCKED_TIMEOUT { self.give_up(id) } else { Ok(()) }
    }

    /// The kernel has no memory or descriptor for a socket, and stays so for a while.
    fn thaw_fails(&mut self, id: SocketId) -> bool {
        let (calm, chance) = (self.calm, self.hibernation.plan.thaw_fails);
        let Some(frozen) = self.sockets[id].frozen.as_mut().filter(|_| !calm) else { return false };
        if self.now >= frozen.fails_until {
            if !self.hibernation.may(chance, calm) {
                return false;
            }
            frozen.fails_until = self.now + self.hibernation.rng.pick(&[1, 5, 90]) * SECOND;
        }
        self.marks.hit("hibernation: thaw failed");
        true
    }

    /// A thaw failed for too long: the connection is gone, without a word to its peer.
    fn give_up(&mut self, id: SocketId) -> Verdict {
        let Place::At { shard, conn } = self.sockets[id].place else { return Ok(()) };
        self.marks.hit("hibernation: never thawed");
        self.unname(shard, conn);
        self.silently_gone(id);
        self.hibernation.greeting.remove(&id);
        // That is a fault, and no restart.
        self.hibernation.left.remove(&id);
        self.oracle.session_ended(id);
        self.relay_ended(id);
        self.step(shard, Input::Gone { conn, reason: CloseReason::NotReading })
    }

    /// The server has given a connection up. Its peer is reset when it speaks.
    pub(crate) fn silently_gone(&mut self, id: SocketId) {
        self.log(None, format_args!("socket {id} ends without a word"));
        let socket = &mut self.sockets[id];
        (socket.place, socket.frozen, socket.blocked) = (Place::Ended, None, None);
        socket.is_stale = socket.peer_open;
    }

    /// A segment arrives for a frozen connection: it is dropped and comes again, or there is a socket for it.
    pub(crate) fn segment(&mut self, id: SocketId) -> Verdict {
        let again = self.now + SECOND / 5 + self.hibernation.rng.below(3 * SECOND);
        let is_lost = self.hibernation.may(self.hibernation.plan.segments_lost, self.calm);
        // A reset does not come again.
        let is_last = is_lost && !self.sockets[id].peer_open && self.hibernation.rng.permille(500);
        if !is_lost && !self.thaw_fails(id) {
            self.marks.hit("hibernation: thawed by a segment");
            return self.thawed(id);
        }
        if is_lost {
            self.marks.hit("hibernation: segment lost");
        }
        let socket = &mut self.sockets[id];
        if let Some(frozen) = &mut socket.frozen {
            frozen.segment_at = again;
            frozen.deaf = is_last && socket.inbox.is_empty();
        }
        Ok(())
    }

    /// The socket is there again, and its record is gone: the frames that waited are sent, as many as it takes.
    fn thawed(&mut self, id: SocketId) -> Verdict {
        self.log(None, format_args!("thaws socket {id}"));
        let socket = &mut self.sockets[id];
        let Some(frozen) = socket.frozen.take() else { return Ok(()) };
        let before = socket.blocked.take();
        for (frame, emission) in frozen.frames {
            self.put(id, frame, emission)?;
        }
        let Some(before) = before else { return Ok(()) };
        let blocked = self.sockets[id].blocked.get_or_insert_default();
        // To the machine the socket was blocked all the time.
        blocked.told = before.told;
        blocked.unsent.extend(before.unsent);
        if blocked.told { self.give_back_unsent(id) } else { Ok(()) }
    }

    /// A Ping for a frozen session is a probe, which the kernel of its peer answers. Returns false if the frame is due.
    pub(crate) fn probes(&mut self, id: SocketId) -> bool {
        let answers = self.now + self.hibernation.delay(self.calm);
        let probes = self.hibernation.plan.probes && !self.hibernation.may(100, self.calm);
        let socket = &mut self.sockets[id];
        let is_agent = socket.agent.is_some();
        let Some(frozen) = socket.frozen.as_mut().filter(|_| probes && is_agent) else { return false };
        frozen.probe_at = Some(answers);
        self.marks.hit("hibernation: probe");
        true
    }

    /// A probe is answered: to the machine it is a Pong. A peer that is gone answers with a reset.
    pub(crate) fn probe_answered(&mut self, id: SocketId) -> Verdict {
        let socket = &mut self.sockets[id];
        let Some(frozen) = &mut socket.frozen else { return Ok(()) };
        frozen.probe_at = None;
        if !socket.peer_open {
            (frozen.deaf, frozen.segment_at) = (false, self.now);
            return Ok(());
        }
        let Place::At { shard, conn } = socket.place else { return Ok(()) };
        if !socket.ready || self.hibernation.may(self.hibernation.plan.segments_lost, self.calm) {
            return Ok(());
        }
        self.sockets[id].ready = false;
        self.heard_of(id, &AgentCommand::Pong);
        self.sockets[id].session.heard_at = self.now;
        self.step(shard, Input::Command { conn, command: AgentCommand::Pong.into() })
    }

    /// The machine closes a frozen session: it is left to the next process, or thawed for its last words. Returns true
    /// if the peer hears nothing.
    pub(crate) fn closes_in_silence(&mut self, id: SocketId, reason: CloseReason) -> bool {
        let Some(frozen) = &self.sockets[id].frozen else { return false };
        if reason == CloseReason::Draining && self.leaves_sessions() && frozen.record.is_some() {
            return self.leave_to_next(id);
        }
        if self.thaw_fails(id) {
            self.silently_gone(id);
            return true;
        }
        if let Some(frozen) = self.sockets[id].frozen.take() {
            self.sockets[id].outbox.extend(frozen.frames.into_iter().map(|(frame, _)| frame));
        }
        false
    }

    /// Earliest instant at which something happens to a frozen session.
    pub(crate) fn hibernation_due(&self) -> impl Iterator<Item = u64> + '_ {
        let frozen = self.sockets.iter().filter_map(|socket| Some((socket, socket.frozen.as_ref()?)));
        let frozen = frozen.flat_map(|(socket, frozen)| {
            let thaw = frozen.owes_frame(socket).then_some(frozen.thaw_at);
            let segment = frozen.has_segment(socket).then_some(frozen.segment_at);
            [thaw, segment, frozen.probe_at].into_iter().flatten()
        });
        frozen.chain((!self.hibernation.waiting.is_empty()).then_some(self.hibernation.begins))
    }

    /// Returns true if no frame and no segment waits for a thaw, and every session that was left goes on.
    pub(crate) fn hibernation_idle(&self) -> bool {
        let due = |socket: &Socket| {
            let frozen = socket.frozen.as_ref().filter(|_| !matches!(socket.place, Place::Ended));
            frozen.is_some_and(|frozen| frozen.is_due(socket))
        };
        let hibernation = &self.hibernation;
        hibernation.waiting.is_empty() && hibernation.greeting.is_empty() && !self.sockets.iter().any(due)
    }

    /// A user agent speaks on a connection that the server has given up: it is reset. Returns false if it is not.
    pub(crate) fn is_reset(&mut self, index: usize, id: SocketId) -> bool {
        let socket = &mut self.sockets[id];
        if !socket.is_stale || !socket.outbox.is_empty() {
            return false;
        }
        self.marks.hit("hibernation: reset of a session that has ended");
        (socket.peer_open, socket.is_stale) = (false, false);
        self.agents[index].sockets.retain(|of| *of != id);
        true
    }
}
