//! Pings and pong deadlines of idle sessions: a sweep over the slab in budgeted turns, and a FIFO of the pings that
//! are out. No timer per connection (DESIGN.md 4.3; BEHAVIOUR.md 1.7). The same sweep finds who is due for a refresh.

use crate::ids::ConnId;
use crate::limits;
use crate::time::{Instant, Span};

use super::command::{CloseReason, Event};
use super::conns::ConnState;
use super::hello::give_back;
use super::input::Effect;
use super::relay::is_seat;
use super::session::{AWAITING_PONG, ODD_PING, Session, has_come, span_ticks, ticks};
use super::slab::Ref;
use super::{ShardMachine, Turn};

/// Where the sweep is. `due` is `None` while there is no session.
#[derive(Default)]
pub(super) struct Sweep {
    cursor: u32,
    pub due: Option<Instant>,
}

impl ShardMachine {
    /// Starts the sweep when there is somebody to sweep.
    pub(super) fn arm_sweep(&mut self, now: Instant) {
        if self.sweep.due.is_none() {
            self.sweep.due = Some(now.after(self.sweep_round()));
        }
    }

    /// How long one round over all sessions takes: a ping is at most this much late.
    fn sweep_round(&self) -> Span {
        Span((self.sweep_period().0 / 32).max(Span::from_ms(20).0))
    }

    /// The shortest time that the sweep measures.
    fn sweep_period(&self) -> Span {
        let spans = [self.config.ping_interval, self.config.wake_timeout];
        spans.into_iter().filter(|span| *span > Span(0)).fold(SWEEP_PERIOD_MAX, Span::min)
    }

    pub(super) fn sweep_sessions(&mut self, turn: &mut Turn<'_>) {
        let Some(due) = self.sweep.due else { return };
        if due > turn.now.mono {
            return;
        }
        let end = self.sessions.end();
        if self.sessions.is_empty() {
            self.sweep = Sweep::default();
            return;
        }
        let start = if self.sweep.cursor < end { self.sweep.cursor } else { 0 };
        let stop = end.min(start + limits::SWEEP_SESSIONS_PER_TURN as u32);
        let mut cursor = start;
        while cursor < stop && turn.has_room() {
            if let Some((at, _)) = self.sessions.at(cursor) {
                self.sweep_one(turn, at);
            }
            cursor += 1;
        }
        self.sweep.cursor = cursor;
        let share = self.sweep_round().0 as u128 * u128::from(cursor - start) / u128::from(end.max(1));
        self.sweep.due = Some(turn.now.mono.after(Span((share as u64).max(1_000_000))));
    }

    fn sweep_one(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let now_ticks = ticks(turn.now.mono);
        let interval = span_ticks(self.config.ping_interval);
        self.refresh_session(turn, at);
        if self.is_idled_out(at, turn.now.mono) {
            self.stats.idled_out += 1;
            self.end_session(turn, at, Some(CloseReason::IdledOut));
            return;
        }
        let Some(session) = self.sessions.get_mut(at) else { return };
        // A relay is pinged as a connection, not for each of its members.
        let due = interval != 0 && has_come(session.ping_due, now_ticks);
        if !due || session.has(AWAITING_PONG) || is_seat(session.conn) {
            return;
        }
        session.ping_due = now_ticks.wrapping_add(interval);
        session.put(AWAITING_PONG, true);
        let odd = !session.has(ODD_PING);
        session.put(ODD_PING, odd);
        let conn = session.conn;
        self.stats.pings += 1;
        self.pongs_due.push_back((turn.now.mono.after(self.config.pong_timeout), at, odd));
        turn.effects.push_back(Effect::Emit(conn, Event::Ping));
    }

    /// Ends the sessions whose Pong did not come. Not for a silence of ours: one that waits in a socket until the shard
    /// comes to it, or behind a command that storage has not answered yet, is in time.
    pub(super) fn pong_timeouts(&mut self, turn: &mut Turn<'_>) {
        while let Some((due, at, odd)) = self.pongs_due.front().copied() {
            if due > turn.now.mono || !turn.has_room() {
                break;
            }
            // A shard that is late finds the clock of a Ping whose Pong came beside that of the next.
            let same = |session: &&Session| session.has(AWAITING_PONG) && session.has(ODD_PING) == odd;
            let silent = self.sessions.get(at).filter(same);
            let busy = silent.map(|session| self.active_of(session.active).is_some_and(|active| active.command_waits));
            if busy.is_some() && due > self.heard {
                // The timeout stands, and the next turns hear on.
                break;
            }
            self.pongs_due.pop_front();
            match busy {
                None => {}
                // Storage answers every command, so this ends.
                Some(true) => self.pongs_due.push_back((turn.now.mono.after(self.config.pong_timeout), at, odd)),
                Some(false) => {
                    self.stats.pong_timeouts += 1;
                    self.end_session(turn, at, Some(CloseReason::PongTimeout));
                }
            }
        }
        give_back(&mut self.pongs_due);
    }

    /// Until when the shard has heard. Pings that it wrote since, and was then held up, count from now.
    pub(super) fn heard(&mut self, turn: &Turn<'_>, until: Instant, late: bool) {
        self.heard = until;
        if !late {
            return;
        }
        let (since, due) = (until.after(self.config.pong_timeout), turn.now.mono.after(self.config.pong_timeout));
        for (at, ..) in self.pongs_due.iter_mut().rev().take_while(|(at, ..)| *at >= since) {
            *at = due;
        }
        self.relays_were_held_up(since, due);
    }

    /// The user agent sent a frame that is no command.
    pub(super) fn frame(&mut self, turn: &Turn<'_>, conn: ConnId) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.postpone_ping(turn, at);
            }
            Some(ConnState::Relay(index)) => self.postpone_relay_ping(turn, index),
            _ => {}
        }
    }

    /// Any frame of the user agent shows that it is there: the next Ping is due an interval later. The sweep finds
    /// that when it comes by.
    pub(super) fn postpone_ping(&mut self, turn: &Turn<'_>, at: Ref) {
        let interval = span_ticks(self.config.ping_interval);
        if let Some(session) = self.sessions.get_mut(at) {
            session.ping_due = ticks(turn.now.mono).wrapping_add(interval);
        }
    }

    pub(super) fn pong(&mut self, at: Ref) {
        if let Some(session) = self.sessions.get_mut(at) {
            session.put(AWAITING_PONG, false);
        }
    }

    /// The message `{}`: the first is always answered, the next not before the minimum interval.
    pub(super) fn client_ping(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let now_ticks = ticks(turn.now.mono);
        let least = span_ticks(self.config.ping_min_interval);
        let Some(session) = self.sessions.get_mut(at) else { return };
        if session.client_ping != 0 && now_ticks.wrapping_sub(session.client_ping) < least {
            self.stats.pings_too_soon += 1;
            self.end_session(turn, at, Some(CloseReason::PingTooSoon));
            return;
        }
        session.client_ping = now_ticks;
        self.say(turn, at, Event::Pong);
    }
}

/// Where nobody is pinged the sweep comes by for refreshes only: every two minutes.
const SWEEP_PERIOD_MAX: Span = Span::from_secs(3_600);
