//! Deliveries without an ack (docs/decisions/0021-ten-deliveries.md): a message ends after `delivery.attempts_max` of
//! them over three sessions. It ends neither before that, nor is it sent again after it.

use machine::ids::Stamp;
use machine::message::Message;
use machine::{AgentEvent, Event, RelayEvent, SessionEvent};

use crate::shared::Verdict;
use crate::world::World;

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
