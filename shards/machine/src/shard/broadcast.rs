//! Broadcasts of sessions: subscription, changes, and the time of their notification.

use super::command::{BroadcastVersion, SessionEvent};
use super::composer::{ShardMachine, Turn};
use super::slab::Ref;

impl ShardMachine {
    pub(super) fn set_broadcasts(&mut self, turn: &mut Turn<'_>, values: &[BroadcastVersion]) {
        if self.broadcasts.push(turn.now.mono, values, self.sessions.end()) {
            self.stats.broadcast_changes += 1;
            self.spread_broadcasts(turn);
        }
    }

    pub(super) fn broadcast_subscribe(&mut self, turn: &mut Turn<'_>, at: Ref, wanted: &[BroadcastVersion]) {
        let session = self.sessions.live_mut(at);
        let delta = self.broadcasts.add_to(&mut session.broadcasts, wanted);
        if let Some(delta) = delta {
            self.say(turn, at, SessionEvent::Broadcast(Box::new(delta)));
        }
    }

    /// Notifies the sessions of this beat of the changes.
    pub(super) fn spread_broadcasts(&mut self, turn: &mut Turn<'_>) {
        // No push runs, or its next beat is not due.
        let Some(mut beat) = self.broadcasts.begin_beat(turn.now.mono, self.sessions.end()) else { return };
        while turn.has_room()
            && let Some(index) = beat.next()
        {
            if let Some((at, _)) = self.sessions.at(index) {
                self.tell_broadcasts(turn, at);
            }
        }
        self.broadcasts.end_beat(turn.now.mono, &beat);
    }

    /// Notifies one session. If its socket is blocked, the notification waits until it takes bytes.
    pub(super) fn tell_broadcasts(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let session = self.sessions.live_mut(at);
        if session.link.is_blocked() {
            return;
        }
        if let Some(delta) = self.broadcasts.news(&mut session.broadcasts) {
            self.stats.broadcasts_sent += 1;
            self.say(turn, at, SessionEvent::Broadcast(Box::new(delta)));
        }
    }
}
