//! What waits in the window goes out, in its order, at the pace of its session (decision 0020).
//!
//! Directs and rows that were read ahead stand in one line. A step sends a few of them and leaves the rest to the next
//! turn, so that one session with much to hear holds up its neighbours for some tens of microseconds at a time.

use std::sync::Arc;

use crate::ids::Stamp;
use crate::limits;
use crate::message::Message;
use crate::time::Span;

use super::active::{Active, Entry, Source};
use super::command::Event;
use super::drain::DRAIN_PAUSE;
use super::input::Effect;
use super::receipt::Outcome;
use super::session::{BLOCKED, NONE};
use super::slab::Ref;
use super::store::StoreOp;
use super::tickets::Work;
use super::{ShardMachine, Turn};

impl ShardMachine {
    /// Adds a notification to the window and sends it as soon as its turn comes.
    pub(super) fn push_entry(&mut self, turn: &mut Turn<'_>, at: Ref, message: Arc<Message>, source: Source) {
        self.enter_window(turn, at, message, source);
        self.send_waiting(turn, at);
    }

    /// Adds a notification to the window.
    pub(super) fn enter_window(&mut self, turn: &Turn<'_>, at: Ref, message: Arc<Message>, source: Source) {
        let Some(session) = self.sessions.get(at) else { return };
        assert!(!session.has(BLOCKED), "nothing is added to the window of a blocked socket");
        self.expect_receipt(&message);
        let entry = Entry::new(message, source, turn.now.mono);
        let due = self.entry_due(&entry);
        if source == Source::Row {
            self.row_memory.add(entry.body_bytes());
        }
        self.activate(at).enter(entry);
        if let Some(due) = due {
            self.arm_active_at(at, due);
        }
    }

    /// Sends what waits in the window, in its order, as far as the pace of the session allows and no longer than a
    /// turn: what is left is looked at again when there is room.
    pub(super) fn send_waiting(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let Some(session) = self.sessions.get(at).filter(|session| !session.has(BLOCKED)) else { return };
        let (conn, index, now) = (session.conn, session.active, turn.now);
        let Some(active) = self.active_of_mut(index).filter(|active| active.unsent > 0) else { return };
        let room = usize::from(active.pace.room(now.mono)).min(limits::SENT_PER_STEP);
        let (mut sent, mut rows, mut expired) = (0, false, Vec::new());
        let mut place = usize::from(active.sent_below);
        while sent < room && place < active.window.len() {
            let entry = &active.window[place];
            match &entry.body {
                Some(message) if !entry.sent && message.expired(now.unix()) => expired.push(entry.row),
                Some(message) if !entry.sent => {
                    let message = message.clone();
                    rows |= entry.source == Source::Row;
                    let emission = active.send(place, now.mono);
                    turn.effects.push_back(Effect::Emit(conn, Event::Notification { message, emission }));
                    sent += 1;
                }
                // Nothing overtakes what the socket refused late.
                None if !entry.sent => break,
                Some(_) | None => {}
            }
            place += 1;
        }
        active.sent_below = place as u16;
        self.stats.notifications_sent += sent as u64;
        if sent > 0 {
            self.simple_active(at, now.mono);
            self.arm_sent(turn, at, rows);
        }
        for row in expired {
            self.stats.expired += 1;
            self.end_receipt(&row, Outcome::Expired);
            self.take_entry(turn, at, row.stamp);
        }
        self.read_gap(turn, at);
        let waits = |active: &Active| active.unsent > 0 && active.pace.room(now.mono) == 0;
        self.stats.paced += u64::from(sent > 0 && self.active_of(index).is_some_and(waits));
        self.arm_pace(turn, at);
    }

    /// Reads the body of a row whose frame the socket refused after the body was forgotten: what is behind it waits.
    fn read_gap(&mut self, turn: &mut Turn<'_>, at: Ref) {
        let (room, full) = (self.tickets.room(), self.rows_are_full(at));
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        let Some(active) = self.active_of_mut(index).filter(|active| active.unsent > 0) else { return };
        let Some(gap) = active.gap().filter(|gap| !gap.reading) else { return };
        if full {
            self.leave_to_storage(at);
        } else if room {
            gap.reading = true;
            let row = gap.row;
            let op = StoreOp::Read { row, now: turn.now.unix() };
            self.submit(turn, Work::Retry { session: at, stamp: row.stamp }, op);
        }
    }

    /// The body that a refused row had forgotten was read: it goes out in its place.
    pub(super) fn fill_gap(&mut self, turn: &mut Turn<'_>, at: Ref, stamp: Stamp, message: Arc<Message>) {
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        let Some(active) = self.active_of_mut(index) else { return };
        let Some(bytes) = active.fill(stamp, message) else { return };
        self.row_memory.add(bytes);
        self.continue_drain(turn, at);
    }

    /// Arms the session's deadline for the next of what waits in its window.
    pub(super) fn arm_pace(&mut self, turn: &Turn<'_>, at: Ref) {
        let Some(session) = self.sessions.get(at).filter(|session| !session.has(BLOCKED)) else { return };
        let index = session.active;
        let Some(active) = self.active_of_mut(index).filter(|active| active.unsent > 0) else { return };
        if let Some(reading) = active.gap().map(|gap| gap.reading) {
            // The answer to its read goes on.
            if !reading {
                self.arm_active_in(at, DRAIN_PAUSE, turn);
            }
            return;
        }
        // With room left it is this turn that was long enough.
        let next_turn = turn.now.mono.after(Span(1));
        let due = if active.pace.room(turn.now.mono) > 0 { next_turn } else { active.pace.due().max(next_turn) };
        self.arm_active_at(at, due);
    }

    /// Notifications that are sent and unacked.
    pub(super) fn out(&self, at: Ref) -> u16 {
        let session = self.sessions.get(at);
        session.and_then(|session| self.active_of(session.active)).map_or(0, |active| active.pace.out())
    }

    /// Acks have ended some of the so many that were out before them.
    pub(super) fn pace_acked(&mut self, turn: &Turn<'_>, at: Ref, before: u16) {
        let index = self.sessions.get(at).map_or(NONE, |session| session.active);
        if let Some(active) = self.active_of_mut(index).filter(|active| active.pace.out() < before) {
            active.pace.ack(turn.now.mono, before);
        }
    }
}
