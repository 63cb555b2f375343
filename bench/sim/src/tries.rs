//! Deliveries without an ack (docs/decisions/0021-ten-deliveries.md): a message ends after `delivery.attempts_max` of
//! them over three sessions. It ends neither before that, nor is it sent again after it.

use machine::ids::Stamp;
use machine::message::{Message, Tries};
use machine::{AgentEvent, Event, RelayEvent, SessionEvent};

use crate::world::{Verdict, World};

/// Deliveries of one message, counted by the world.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    count: u32,
    sessions: u32,
    /// The number of the last session among those of its user.
    last: u64,
    /// The machine may know of fewer: a kill, a storage error or a refused frame took some of them.
    forgotten: bool,
}

impl Deliveries {
    fn delivered(&mut self, session: u64) {
        self.count += 1;
        self.sessions += u32::from(self.last != session);
        self.last = session;
    }

    /// Some of them may not count.
    pub(crate) fn forget(&mut self) {
        self.forgotten |= self.count > 0;
    }

    /// Returns true if the message may end without an ack.
    pub(crate) fn are_spent(&self, attempts_max: u8) -> bool {
        attempts_max > 0 && self.count >= u32::from(attempts_max) && self.sessions >= u32::from(Tries::SESSIONS_MIN)
    }
}

impl World {
    /// The owner of a user says this on its session, to a socket or to the home of a relay.
    pub(crate) fn handed(&mut self, shard: usize, event: &Event) -> Verdict {
        match event {
            Event::Agent(AgentEvent::Session(event)) => self.handed_by_session(event, false),
            // Events from another shard were counted when they set out.
            Event::Relay(RelayEvent::Of { uaid, event }) if self.owner(*uaid) == shard => {
                self.handed_by_session(event, true)
            }
            _ => Ok(()),
        }
    }

    /// As `handed`; `member`: of a relay.
    pub(crate) fn handed_by_session(&mut self, event: &SessionEvent, member: bool) -> Verdict {
        match event {
            SessionEvent::Notification { message, .. } => self.delivered(message, member),
            SessionEvent::Hello { uaid, .. } => {
                *self.oracle.sessions.entry(*uaid).or_default() += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn delivered(&mut self, message: &Message, member: bool) -> Verdict {
        let index = self.oracle.identify(message)?;
        let session = self.oracle.sessions.get(&message.uaid).copied().unwrap_or_default();
        let post = &mut self.oracle.posts[index];
        let deliveries = &mut post.deliveries;
        // A member's frame may be refused far from its owner. Other nodes write copies that know of no delivery.
        deliveries.forgotten |= post.foreign || member;
        if post.ttl > 0 && deliveries.are_spent(self.plan.attempts_max) && !deliveries.forgotten {
            return Err(format!("{message:?} was delivered {} times and comes again", deliveries.count));
        }
        deliveries.delivered(session);
        Ok(())
    }

    /// A socket refused its frame, or storage could not note a delivery.
    pub(crate) fn delivery_forgotten(&mut self, stamp: Option<Stamp>) {
        if let Some(index) = stamp.and_then(|stamp| self.oracle.by_stamp.get(&stamp)) {
            self.oracle.posts[*index].deliveries.forgotten = true;
        }
    }
}
