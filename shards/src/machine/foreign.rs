//! What other nodes ask of this one (BEHAVIOUR.md 4.1): a message for a live session, a look at storage, the end of a
//! session that is elsewhere by now.

use crate::ids::Uaid;

use super::command::{CloseReason, Disposition, NodeAnswer, NodeNotify, NodePush};
use super::mail::Reply;
use super::remote::Asker;
use super::users::Resident;
use super::{ShardMachine, Turn};

impl ShardMachine {
    /// `PUT /push/{uaid}`: only for a live session that can take it now (BEHAVIOUR.md 4.1).
    pub(super) fn node_push(&mut self, turn: &mut Turn<'_>, asker: Asker, push: NodePush) {
        let reply = self.node_push_answer(turn, push);
        self.answer(turn, asker, Reply::Node(reply));
    }

    fn node_push_answer(&mut self, turn: &mut Turn<'_>, push: NodePush) -> NodeAnswer {
        let NodePush { message, stored: _ } = push;
        let Some(Resident::Session(index)) = self.resident(message.uaid) else {
            return NodeAnswer::NotHere;
        };
        let at = self.session_ref(index);
        if !self.registered_channel(at, message.chid) || !self.mode_fits(at, &message) {
            return NodeAnswer::NotHere;
        }
        if self.clock.advance(turn.now, message.stamp.clock).is_err() {
            self.stats.clocks_refused += 1;
            return NodeAnswer::Busy;
        }
        if message.ttl == 0 {
            return match self.send_once(turn, at, message) {
                Disposition::Dropped => NodeAnswer::Busy,
                Disposition::Direct | Disposition::Stored => NodeAnswer::Done,
            };
        }
        let known = self.sessions.get(at).is_some_and(|session| {
            self.active_of(session.active).is_some_and(|active| active.position(message.stamp).is_some())
        });
        if known || self.settled_lately.contains(message.uaid, message.stamp) {
            return NodeAnswer::Done;
        }
        if self.direct_fits(at, &message) && !self.write_in_flight(message.uaid) {
            self.stats.node_directs += 1;
            self.send_direct(turn, at, message);
            NodeAnswer::Done
        } else {
            // Refused: what the other node stores now is not known to this session but for this flag.
            self.want_check(at);
            NodeAnswer::Busy
        }
    }

    /// `PUT /notif/{uaid}`.
    pub(super) fn node_notify(&mut self, turn: &mut Turn<'_>, asker: Asker, notify: &NodeNotify) {
        let reply = match self.resident(notify.uaid) {
            Some(Resident::Session(index)) => {
                let at = self.session_ref(index);
                self.check_storage(turn, at);
                NodeAnswer::Done
            }
            Some(Resident::Greeting(index)) => {
                self.nudge_greeting(index);
                NodeAnswer::Noted
            }
            None => NodeAnswer::NotHere,
        };
        self.answer(turn, asker, Reply::Node(reply));
    }

    /// `DELETE /notif/{uaid}/{connected_at}`.
    pub(super) fn node_disconnect(&mut self, turn: &mut Turn<'_>, asker: Asker, uaid: Uaid, connected_at: u64) {
        let mut reply = NodeAnswer::NotHere;
        if let Some(Resident::Session(index)) = self.resident(uaid) {
            let at = self.session_ref(index);
            if self.sessions.get(at).is_some_and(|session| session.connected_at == connected_at) {
                self.end_session(turn, at, Some(CloseReason::Elsewhere));
                reply = NodeAnswer::Done;
            }
        }
        self.answer(turn, asker, Reply::Node(reply));
    }
}
