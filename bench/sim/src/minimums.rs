//! Minimum urgencies of user agents (docs/decisions/0029-urgency.md): a message below the minimum is held, which is no
//! loss, and nothing below it is sent while the user agent is quiet. What a lower minimum releases comes in its order
//! (`World::sent`), and all of it comes in the end (`World::quiesce`).

use machine::ids::Uaid;
use machine::message::{Message, Urgency};
use machine::simplepush::Mode;

use crate::shared::Verdict;
use crate::socket::SocketId;
use crate::world::World;

impl World {
    /// A hello is answered: the session has the minimum that the user has for certain.
    pub(crate) fn minimum_begins(&mut self, id: SocketId, uaid: Uaid, mode: Mode) {
        let minimum = self.oracle.minimums.get(&uaid).copied().filter(|_| mode == Mode::WebPush);
        self.sockets[id].session.minimum = minimum.unwrap_or(Urgency::VeryLow);
        // The shard may have stood still behind the hello; the user agent is awake from its session's begin.
        self.sockets[id].session.heard_at = self.now;
    }

    /// A machine is given the message `urgency`: until the reply either minimum may hold.
    pub(crate) fn names_minimum(&mut self, id: SocketId, minimum: Option<Urgency>) {
        let session = &mut self.sockets[id].session;
        let minimum = minimum.unwrap_or(Urgency::VeryLow);
        session.naming = minimum;
        session.minimum = session.minimum.min(minimum);
        if let Some(uaid) = session.served {
            self.oracle.minimums.remove(&uaid);
        }
    }

    /// A machine answers it.
    pub(crate) fn minimum_named(&mut self, id: SocketId, status: u16) -> Verdict {
        match status {
            // The owner of a member has gone on meanwhile.
            200 if self.is_member(id) => self.marks.hit("urgency: named by a member"),
            200 => {
                self.marks.hit("urgency: named");
                let session = &mut self.sockets[id].session;
                session.minimum = session.naming;
                if let Some(uaid) = session.served {
                    self.oracle.minimums.insert(uaid, session.naming);
                }
            }
            500 => self.marks.hit("urgency: 500"),
            404 if self.oracle.modes.values().any(|mode| *mode == Mode::Simple) => {}
            other => return Err(format!("a minimum was answered {other}")),
        }
        Ok(())
    }

    /// Nothing below the minimum is sent to a user agent that is quiet.
    pub(crate) fn not_held(&mut self, id: SocketId, message: &Message) -> Verdict {
        let session = &self.sockets[id].session;
        if message.urgency >= session.minimum || message.mode() == Mode::Simple {
            return Ok(());
        }
        let span = self.plan.release_on_activity.0;
        if span > 0 && self.now < session.heard_at + span {
            self.marks.hit("urgency: released by activity");
            return Ok(());
        }
        let minimum = session.minimum;
        Err(format!("{message:?} of urgency {:?} is below the minimum {minimum:?} of its user", message.urgency))
    }
}
