//! SIGTERM (ARCHITECTURE.md 4): directs stop first. Ledgers are saved, and their entries stay so that late acks settle
//! the stored copy. Sessions close with 1001 at the drain rate. When nothing is left the shard reports it.

use crate::limits;
use crate::time::Span;

use super::command::CloseReason;
use super::components::conns::ConnState;
use super::components::shutdown::Share;
use super::composer::{ShardMachine, Turn};
use super::input::Effect;

impl ShardMachine {
    pub(super) fn draining(&self) -> bool {
        self.shutdown.has_begun()
    }

    pub(super) fn begin_drain(&mut self, turn: &mut Turn<'_>, rate: u32) {
        let (shard, shard_count) = (self.config.shard.0, self.config.placement.shard_count());
        if self.shutdown.begin(turn.now.mono, Share { rate, shard, shard_count }) {
            self.receipts.give_up_all();
        }
    }

    /// Runs one turn of the drain: saves ledgers, then closes a share of the connections.
    pub(super) fn drain_turn(&mut self, turn: &mut Turn<'_>) {
        // No drain runs, or its next turn is not due.
        let Some(mut drain) = self.shutdown.begin_turn(turn.now.mono, self.sessions.end()) else { return };
        while turn.has_room()
            && let Some(index) = drain.next()
        {
            if let Some((at, _)) = self.sessions.at(index) {
                self.spill_unacked_for(turn, at, Span(0));
            }
        }
        if let Some(share) = drain.closes(self.tickets.idle()) {
            self.close_some(turn, share);
        }
        self.shutdown.end_turn(turn.now.mono, &drain);
    }

    fn close_some(&mut self, turn: &mut Turn<'_>, share: usize) {
        // Members of relays first: a relay closes when its last member is gone.
        let seats = self.conns.seats.some_sessions(share.min(limits::SWEEP_SESSIONS_PER_TURN));
        for seat in &seats {
            if !turn.has_room() {
                return;
            }
            self.close_conn(turn, *seat, CloseReason::Draining);
        }
        if seats.len() >= share {
            return;
        }
        let share = share - seats.len();
        let some = self.conns.scan(self.shutdown.cursor(), share.min(limits::SWEEP_SESSIONS_PER_TURN));
        let mut next = 0;
        for conn in some {
            if !turn.has_room() {
                break;
            }
            next = conn.slot + 1;
            match self.conns.get(conn) {
                Some(ConnState::Session(index)) => {
                    let at = self.session_ref(index);
                    self.end_session(turn, at, Some(CloseReason::Draining));
                }
                Some(ConnState::Relay(index)) => self.end_relay_without_members(turn, index),
                // A hello under way ends by itself within seconds: its socket is then a session, moved, or gone.
                Some(ConnState::Greeting(_) | ConnState::Claiming) | None => {}
                Some(ConnState::Opened(_) | ConnState::Waiting) => self.close_conn(turn, conn, CloseReason::Draining),
            }
        }
        self.shutdown.set_cursor(next);
    }

    /// Reports once that nothing is left.
    pub(super) fn say_drained(&mut self, turn: &mut Turn<'_>) {
        let over = self.draining()
            && self.sessions.is_empty()
            && self.conns.len() == 0
            && self.departures.is_empty()
            && self.tickets.idle()
            && self.requests.idle()
            && self.greetings.is_empty()
            && self.relays.idle();
        if over && self.shutdown.complete() {
            turn.effects.push_back(Effect::Drained);
        }
    }
}
