//! SIGTERM (ARCHITECTURE.md 4): directs stop first. Ledgers are saved, and their entries stay so that late acks settle
//! the stored copy. Sessions close with 1001 at the drain rate. When nothing is left the shard reports it.

use crate::limits;
use crate::time::TimeSpan;

use super::command::CloseReason;
use super::components::conns::ConnState;
use super::components::shutdown::Share;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;

impl ShardMachine {
    pub(super) fn draining(&self) -> bool {
        self.shutdown.has_begun()
    }

    pub(super) fn begin_drain(&mut self, cx: &mut StepContext<'_>, rate: u32) {
        let (shard, shard_count) = (self.config.shard.0, self.config.placement.shard_count());
        if self.shutdown.begin(cx.now.mono, Share { rate, shard, shard_count }) {
            self.receipts.give_up_all();
        }
    }

    /// Runs one turn of the drain: saves ledgers, then closes a share of the connections.
    pub(super) fn drain_turn(&mut self, cx: &mut StepContext<'_>) {
        // No drain runs, or its next turn is not due.
        let Some(mut drain) = self.shutdown.begin_turn(cx.now.mono, self.sessions.end()) else { return };
        while cx.has_room()
            && let Some(index) = drain.next()
        {
            if let Some((at, _)) = self.sessions.at(index) {
                self.spill_unacked_for(cx, at, TimeSpan(0));
            }
        }
        if let Some(share) = drain.closes(self.tickets.idle()) {
            self.close_some(cx, share);
        }
        self.shutdown.end_turn(cx.now.mono, &drain);
    }

    fn close_some(&mut self, cx: &mut StepContext<'_>, share: usize) {
        // Members of relays first: a relay closes when its last member is gone.
        let virtual_conns = self.conns.virtual_conns.some_sessions(share.min(limits::SWEEP_SESSIONS_PER_TURN));
        for vconn in &virtual_conns {
            if !cx.has_room() {
                return;
            }
            self.close_conn(cx, *vconn, CloseReason::Draining);
        }
        if virtual_conns.len() >= share {
            return;
        }
        let share = share - virtual_conns.len();
        let some = self.conns.scan(self.shutdown.cursor(), share.min(limits::SWEEP_SESSIONS_PER_TURN));
        let mut next = 0;
        for conn in some {
            if !cx.has_room() {
                break;
            }
            next = conn.slot + 1;
            match self.conns.get(conn) {
                Some(ConnState::Session(index)) => {
                    let at = self.session_ref(index);
                    self.end_session(cx, at, Some(CloseReason::Draining));
                }
                Some(ConnState::Relay(index)) => self.end_relay_without_members(cx, index),
                // A hello under way ends by itself within seconds: its socket is then a session, moved, or gone.
                Some(ConnState::Greeting(_) | ConnState::Claiming) | None => {}
                Some(ConnState::Opened(_) | ConnState::Waiting) => self.close_conn(cx, conn, CloseReason::Draining),
            }
        }
        self.shutdown.set_cursor(next);
    }

    /// Returns true if the end of this shard loses nothing but this number of connections, each with a session that has
    /// nothing to deliver, to save or to count: nothing is under way, and no message is unacked.
    pub fn owes_nothing_but(&self, idle: usize) -> bool {
        self.is_quiet() && self.active_sessions.len() == 0 && self.sessions.len() == idle && self.conns.len() == idle
    }

    /// Reports once that nothing is left.
    pub(super) fn say_drained(&mut self, cx: &mut StepContext<'_>) {
        if self.draining() && self.owes_nothing_but(0) && self.shutdown.complete() {
            cx.effects.push_back(Effect::Drained);
        }
    }
}
