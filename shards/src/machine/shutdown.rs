//! SIGTERM (ARCHITECTURE.md 4): directs stop first, ledgers are saved while their entries stay so that late acks settle
//! the stored copy, sessions close with 1001 at the drain rate, and when nothing is left the shard says so.

use crate::limits;
use crate::time::{Instant, Span};

use super::command::CloseReason;
use super::conns::ConnState;
use super::input::Effect;
use super::{ShardMachine, Turn};

/// A drain under way.
pub(super) struct Shutdown {
    rate: u32,
    next: Instant,
    /// Sessions whose ledgers have been sent to storage: all below it.
    saved_below: u32,
    cursor: u32,
    /// Ledgers have had until then to reach storage before their sessions close.
    close_from: Instant,
    said: bool,
}

impl ShardMachine {
    pub(super) fn draining(&self) -> bool {
        self.shutdown.is_some()
    }

    pub(super) fn begin_drain(&mut self, turn: &mut Turn<'_>, rate: u32) {
        if self.shutdown.is_none() {
            let rate = rate.max(1);
            let close_from = turn.now.mono.after(SAVE_FIRST);
            self.receipts.give_up_all();
            self.shutdown =
                Some(Shutdown { rate, next: turn.now.mono, saved_below: 0, cursor: 0, close_from, said: false });
        }
    }

    /// One turn of the drain: save ledgers, then close a share of the connections.
    pub(super) fn drain_turn(&mut self, turn: &mut Turn<'_>) {
        let Some(shutdown) = &self.shutdown else { return };
        if shutdown.next > turn.now.mono || shutdown.said {
            return;
        }
        let end = self.sessions.end();
        let from = shutdown.saved_below;
        let budget = end.min(from.saturating_add(limits::SWEEP_SESSIONS_PER_TURN as u32));
        let share = (shutdown.rate / TURNS_PER_SECOND).max(1) as usize;
        let close_from = shutdown.close_from;
        let mut until = from;
        while until < budget && turn.has_room() {
            if let Some((at, _)) = self.sessions.at(until) {
                self.spill_unacked_for(turn, at, Span(0));
            }
            until += 1;
        }
        if until >= end && (self.tickets.idle() || turn.now.mono >= close_from) {
            self.close_some(turn, share);
        }
        let next = turn.now.mono.after(Span(1_000_000_000 / u64::from(TURNS_PER_SECOND)));
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.saved_below = until;
            shutdown.next = next;
        }
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
        let cursor = self.shutdown.as_ref().map_or(0, |shutdown| shutdown.cursor);
        let some = self.conns.scan(cursor, share.min(limits::SWEEP_SESSIONS_PER_TURN));
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
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.cursor = next;
        }
    }

    /// Says once that nothing is left.
    pub(super) fn say_drained(&mut self, turn: &mut Turn<'_>) {
        if self.shutdown.is_none() {
            return;
        }
        let over = self.sessions.is_empty()
            && self.conns.len() == 0
            && self.departures.is_empty()
            && self.tickets.idle()
            && self.requests.idle()
            && self.greetings.is_empty()
            && self.relays.idle();
        if let Some(shutdown) = &mut self.shutdown
            && over
            && !shutdown.said
        {
            shutdown.said = true;
            turn.effects.push_back(Effect::Drained);
        }
    }

    pub(super) fn drain_due(&self) -> Option<Instant> {
        self.shutdown.as_ref().filter(|shutdown| !shutdown.said).map(|shutdown| shutdown.next)
    }
}

const TURNS_PER_SECOND: u32 = 50;
/// How long closing waits for storage to take the ledgers; after that they depart with their sessions.
const SAVE_FIRST: Span = Span::from_secs(2);
