//! Pings of relays: they belong to the connection, not to its members.

use crate::time::Instant;

use super::super::command::{CloseReason, RelayEvent};
use super::super::components::relays::Visit;
use super::super::composer::{ShardMachine, StepContext};
use super::super::input::Effect;

impl ShardMachine {
    /// Handles the message `{}`, as for any session.
    pub(super) fn relay_ping(&mut self, cx: &mut StepContext<'_>, index: u32) {
        let relay = self.relays.live(self.relay_of(index).at);
        let conn = relay.conn();
        if !relay.take_client_ping(cx.now.mono, self.config.ping_min_interval) {
            self.stats.pings_too_soon += 1;
            self.end_relay(cx, index, Some(CloseReason::PingTooSoon));
            return;
        }
        cx.effects.push_back(Effect::Emit(conn, RelayEvent::Pong.into()));
        cx.effects.push_back(Effect::Ready(conn));
    }

    pub(super) fn relay_pong(&mut self, cx: &mut StepContext<'_>, index: u32) {
        let relay = self.relays.live(self.relay_of(index).at);
        relay.pong();
        cx.effects.push_back(Effect::Ready(relay.conn()));
    }

    /// Postpones the ping, as for a session: any frame shows that the relay is there.
    pub(in crate::shard) fn postpone_relay_ping(&mut self, cx: &StepContext<'_>, index: u32) {
        let due = cx.now.mono.after(self.config.ping_interval);
        self.relays.live(self.relay_of(index).at).postpone_ping(due);
    }

    /// Pings the relays that are due and ends those that did not answer. There are few, so each is visited.
    pub(super) fn relay_pings(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.now.mono;
        if !self.relays.begin_visit(now) {
            return;
        }
        let spans = (self.config.ping_interval, self.config.pong_timeout);
        let mut due = None;
        for index in 0..self.relays.end() {
            if !cx.has_room() {
                // The next turn visits the others.
                due = Some(now);
                break;
            }
            let Some(id) = self.relay_at(index) else { continue };
            let relay = self.relays.live(id.at);
            match relay.visit(now, self.keepalive.input_horizon(), spans) {
                Visit::Nothing => {}
                Visit::Ping => {
                    self.stats.pings += 1;
                    cx.effects.push_back(Effect::Emit(relay.conn(), RelayEvent::Ping.into()));
                }
                Visit::Silent => {
                    self.stats.pong_timeouts += 1;
                    self.end_relay(cx, index, Some(CloseReason::PongTimeout));
                    continue;
                }
            }
            due = [due, relay.due()].into_iter().flatten().min();
        }
        self.relays.visited(due);
    }

    /// Postpones a Pong that was due at `since` or later to `due`, because its Ping was written late.
    pub(in crate::shard) fn relays_were_held_up(&mut self, since: Instant, due: Instant) {
        for index in 0..self.relays.end() {
            if let Some(id) = self.relay_at(index) {
                self.relays.live(id.at).postpone_pong(since, due);
            }
        }
    }
}
