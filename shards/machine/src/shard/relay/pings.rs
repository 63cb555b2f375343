//! Pings of relays: they belong to the connection, not to its members.

use crate::time::Instant;

use super::super::command::{CloseReason, RelayEvent};
use super::super::composer::{ShardMachine, Turn};
use super::super::input::Effect;

impl ShardMachine {
    /// Handles the message `{}`, as for any session.
    pub(super) fn relay_ping(&mut self, turn: &mut Turn<'_>, index: u32) {
        let relay = self.relays.table.live_mut(self.relay_of(index).at);
        let now = turn.now.mono;
        if relay.client_ping.is_some_and(|at| now.since(at) < self.config.ping_min_interval) {
            self.stats.pings_too_soon += 1;
            self.end_relay(turn, index, Some(CloseReason::PingTooSoon));
            return;
        }
        relay.client_ping = Some(now);
        turn.effects.push_back(Effect::Emit(relay.conn, RelayEvent::Pong.into()));
        turn.effects.push_back(Effect::Ready(relay.conn));
    }

    pub(super) fn relay_pong(&mut self, turn: &mut Turn<'_>, index: u32) {
        let relay = self.relays.table.live_mut(self.relay_of(index).at);
        relay.pong_due = None;
        turn.effects.push_back(Effect::Ready(relay.conn));
    }

    /// Postpones the ping, as for a session: any frame shows that the relay is there.
    pub(in crate::shard) fn postpone_relay_ping(&mut self, turn: &Turn<'_>, index: u32) {
        let due = turn.now.mono.after(self.config.ping_interval);
        let relay = self.relays.table.live_mut(self.relay_of(index).at);
        relay.ping_due = relay.ping_due.map(|_| due);
    }

    /// Pings the relays that are due and ends those that did not answer. There are few, so each is visited.
    pub(super) fn relay_pings(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now.mono;
        if self.relays.due.is_none_or(|due| due > now) {
            return;
        }
        // Ends of relays call this again while owners are notified.
        self.relays.due = None;
        let mut due = None;
        for index in 0..self.relays.table.end() {
            if !turn.has_room() {
                // The next turn visits the others.
                due = Some(now);
                break;
            }
            let Some(id) = self.relay_at(index) else { continue };
            let Some(relay) = self.relays.table.get_mut(id.at) else { continue };
            // As for a session: a silence counts only after the shard has read its sockets.
            if relay.pong_due.is_some_and(|at| at <= now && at <= self.keepalive.input_horizon()) {
                self.stats.pong_timeouts += 1;
                self.end_relay(turn, index, Some(CloseReason::PongTimeout));
                continue;
            }
            if relay.pong_due.is_none() && relay.ping_due.is_some_and(|at| at <= now) {
                relay.ping_due = Some(now.after(self.config.ping_interval));
                relay.pong_due = Some(now.after(self.config.pong_timeout));
                self.stats.pings += 1;
                turn.effects.push_back(Effect::Emit(relay.conn, RelayEvent::Ping.into()));
            }
            due = [due, relay.due()].into_iter().flatten().min();
        }
        self.relays.due = due;
    }

    /// Postpones a Pong that was due at `since` or later, because its Ping was written late. It is due at `due`.
    pub(in crate::shard) fn relays_were_held_up(&mut self, since: Instant, due: Instant) {
        for index in 0..self.relays.table.end() {
            let Some(relay) = self.relay_at(index).and_then(|id| self.relays.table.get_mut(id.at)) else { continue };
            if relay.pong_due.is_some_and(|at| at >= since) {
                relay.pong_due = Some(due);
            }
        }
    }
}
