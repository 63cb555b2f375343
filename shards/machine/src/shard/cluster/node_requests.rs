//! Requests of other nodes (PROTOCOL.md 4.1): a message for a live session, a check of storage, the end of a session
//! after its user connected to another node.

use super::super::command::{CloseReason, Disposition, NodeAnswer, NodeDisconnect, NodeNotify, NodePush};
use super::super::components::user_index::Resident;
use super::super::components::window::CopyLocation;
use super::super::composer::{ShardMachine, StepContext};
use super::super::row::RowKey;

impl ShardMachine {
    /// Handles `PUT /push/{uaid}`: only for a live session that can take the message now (PROTOCOL.md 4.1).
    pub(in super::super) fn node_push(&mut self, cx: &mut StepContext<'_>, push: NodePush) -> NodeAnswer {
        let (uaid, stamp) = (push.message.uaid, push.message.stamp);
        // The network may bring a push twice. Its node has stamped the message again by now. A late copy could
        // therefore replace an accepted message of the topic by a message that may be refused.
        if self.settling.refused_lately(uaid, stamp) {
            return NodeAnswer::Busy;
        }
        // A copy of a push that was taken: its message was acked, or is saved since its session ended. If it was
        // refused, its node would store it under a second stamp.
        if self.settling.taken_lately(uaid, stamp) {
            return NodeAnswer::Done;
        }
        let answer = self.node_push_answer(cx, push);
        if matches!(answer, NodeAnswer::Busy | NodeAnswer::Held) {
            self.settling.refuse(cx.now.mono, uaid, stamp);
        }
        answer
    }

    fn node_push_answer(&mut self, cx: &mut StepContext<'_>, push: NodePush) -> NodeAnswer {
        let NodePush { message, stored } = push;
        let at = match self.resident(message.uaid) {
            Some(Resident::Session(index)) => self.session_ref(index),
            Some(Resident::Hello(index)) => {
                // Not yet: the first check of the session finds the message that is stored instead.
                self.nudge_pending_hello(index);
                return NodeAnswer::Busy;
            }
            None => return NodeAnswer::NotHere,
        };
        self.read_before_directs(cx, at);
        if !self.registered_channel(at, message.chid) || !self.mode_fits(at, &message) {
            // Storage is right about the channel, and the session finds out there. The session is here all the same.
            self.want_check(at);
            return NodeAnswer::Busy;
        }
        if self.clock.advance(cx.now, message.stamp.clock).is_err() {
            self.stats.clocks_refused += 1;
            return NodeAnswer::Busy;
        }
        if message.ttl == 0 {
            return match self.send_once(cx, at, message) {
                Disposition::Dropped => NodeAnswer::Busy,
                Disposition::Direct | Disposition::Stored | Disposition::Bridged => NodeAnswer::Done,
            };
        }
        if self.is_in_window(&RowKey::of(&message)) {
            return NodeAnswer::Done;
        }
        if self.is_held(cx.now.mono, at, &message) {
            // Storage keeps it, and this session need not read it there.
            self.hold(at);
            return NodeAnswer::Held;
        }
        let fits = if stored { self.row_fits(at, &message) } else { self.direct_fits(at, &message) };
        if fits && !self.write_in_flight(message.uaid) {
            self.stats.node_directs += 1;
            if stored {
                self.push_entry(cx, at, message, CopyLocation::Row);
            } else {
                self.send_direct(cx, at, message);
            }
            NodeAnswer::Done
        } else {
            // Refused: this session learns of the row that the other node stores now only by this flag.
            self.want_check(at);
            NodeAnswer::Busy
        }
    }

    /// Returns true if the message is unacked on this shard.
    fn is_in_window(&self, row: &RowKey) -> bool {
        let session = self.session_of(row.uaid).and_then(|at| self.sessions.get(at));
        let active = session.and_then(|session| self.active_of(session.active));
        active.is_some_and(|active| active.window.contains(row.stamp))
    }

    /// `PUT /notif/{uaid}`.
    pub(in super::super) fn node_notify(&mut self, cx: &mut StepContext<'_>, notify: &NodeNotify) -> NodeAnswer {
        if let Some(row) = notify.unsure {
            self.settle_unsure(row);
        }
        match self.resident(notify.uaid) {
            Some(Resident::Session(index)) => {
                let at = self.session_ref(index);
                self.check_storage(cx, at);
                NodeAnswer::Done
            }
            Some(Resident::Hello(index)) => {
                self.nudge_pending_hello(index);
                NodeAnswer::Noted
            }
            None => NodeAnswer::NotHere,
        }
    }

    /// Settles a stored message whose push got no answer. If it was settled here, the row is deleted. If it is in the
    /// window, its ack deletes the row too. Otherwise it never came.
    fn settle_unsure(&mut self, row: RowKey) {
        if self.settling.ended_lately(row.uaid, row.stamp) {
            self.settle(row);
        } else if let Some(session) = self.session_of(row.uaid).and_then(|at| self.sessions.get(at)) {
            let index = session.active;
            if let Some(active) = self.active_of_mut(index) {
                active.window.may_have_row(row.stamp);
            }
        }
    }

    /// `DELETE /notif/{uaid}/{connected_at}`.
    pub(in super::super) fn node_disconnect(
        &mut self,
        cx: &mut StepContext<'_>,
        &NodeDisconnect { uaid, connected_at }: &NodeDisconnect,
    ) -> NodeAnswer {
        if let Some(Resident::Session(index)) = self.resident(uaid) {
            let at = self.session_ref(index);
            if self.sessions.get(at).is_some_and(|session| session.connected_at.get() == connected_at) {
                self.end_session(cx, at, Some(CloseReason::Elsewhere));
                return NodeAnswer::Done;
            }
        }
        NodeAnswer::NotHere
    }
}
