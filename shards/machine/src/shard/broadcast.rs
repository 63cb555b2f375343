//! Broadcasts of sessions: subscription, changes, and the time of their notification.

use super::command::{BroadcastVersion, SessionEvent};
use super::composer::{ShardMachine, StepContext};
use super::slab::SlabKey;

impl ShardMachine {
    pub(super) fn set_broadcasts(&mut self, cx: &mut StepContext<'_>, values: &[BroadcastVersion]) {
        if self.broadcasts.push(cx.now.mono, values, self.sessions.end()) {
            self.stats.broadcast_changes += 1;
            self.spread_broadcasts(cx);
        }
    }

    pub(super) fn broadcast_subscribe(&mut self, cx: &mut StepContext<'_>, at: SlabKey, wanted: &[BroadcastVersion]) {
        let session = self.sessions.live_mut(at);
        let delta = self.broadcasts.add_to(&mut session.broadcasts, wanted);
        if let Some(delta) = delta {
            self.say(cx, at, SessionEvent::Broadcast(Box::new(delta)));
        }
    }

    /// Notifies the sessions of this beat of the changes.
    pub(super) fn spread_broadcasts(&mut self, cx: &mut StepContext<'_>) {
        // No push runs, or its next beat is not due.
        let Some(mut beat) = self.broadcasts.begin_beat(cx.now.mono, self.sessions.end()) else { return };
        while cx.has_room()
            && let Some(index) = beat.next()
        {
            if let Some((at, _)) = self.sessions.at(index) {
                self.tell_broadcasts(cx, at);
            }
        }
        self.broadcasts.end_beat(cx.now.mono, &beat);
    }

    /// Notifies one session. If its socket is blocked, the notification waits until it takes bytes.
    pub(super) fn tell_broadcasts(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        let session = self.sessions.live_mut(at);
        if session.link.is_blocked() {
            return;
        }
        if let Some(delta) = self.broadcasts.news(&mut session.broadcasts) {
            self.stats.broadcasts_sent += 1;
            self.say(cx, at, SessionEvent::Broadcast(Box::new(delta)));
        }
    }
}
