//! Thawing: a socket is made again because a segment came, a frame is due, or the session ends.

use std::os::fd::{AsFd, OwnedFd};
use std::time;

use hibernate::{Place, Tuple, freeze, set_live};

use crate::ports::{Edge, Port};
use crate::ring::{Flags, State, WEBSOCKET_BUFFERS};
use crate::session_record;
use machine::Input;
use machine::ids::ConnId;
use machine::time::TimeSpan;

use super::frozen_table::Kept;
use super::late_frames::{FAILURES_IN_A_ROW_MAX, LateFrame, us_since};
use super::{Machine, Member, Reactor, name};

/// Pause before a thaw that failed is tried again, and after [`FAILURES_IN_A_ROW_MAX`].
const RETRY: TimeSpan = TimeSpan::from_ms(100);

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Ends the time apart: the socket returns to its slot.
    pub(super) fn put_back(&mut self, member: Member) {
        let Member { conn, socket, tuple } = member;
        let returned = self.plane.put_in(conn, socket.as_fd());
        // Without the mark its segments pass through the queue, which lets them in.
        let _ = set_live(&socket, true);
        drop(socket);
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.gate.live(tuple, name(conn));
        }
        if returned.is_ok() { self.stay_open(conn) } else { self.lost(conn) }
    }

    /// The connection is in its slot: it is like any other, and silent from now on.
    pub(super) fn stay_open(&mut self, conn: ConnId) {
        let now_ms = self.now_ms();
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::Open;
        entry.since = now_ms;
        // If the removal of its poll is not over, that polls again.
        self.want_input(conn);
    }

    /// Makes the socket of a frozen connection again. Returns false if the kernel has no descriptor or memory for it:
    /// then it stays frozen.
    pub(super) fn thaw(&mut self, conn: ConnId) -> bool {
        let Some(hibernator) = &mut self.hibernator else { return false };
        hibernator.thaws_left = hibernator.thaws_left.saturating_sub(1);
        let Some(Kept { frozen, place }) = hibernator.frozen.remove(conn.slot) else { return false };
        let tuple = frozen.tuple();
        let Ok(socket) = frozen.thaw(WEBSOCKET_BUFFERS) else {
            hibernator.keep(conn, Kept { frozen, place });
            self.stats.thaw_failures += 1;
            return false;
        };
        let place = match self.take_keys_back(conn, place) {
            Ok(true) if self.plane.put_in(conn, socket.as_fd()).is_ok() => {
                // The mark comes last: no segment reaches a socket that is half restored.
                let _ = set_live(&socket, true);
                if let Some(hibernator) = &mut self.hibernator {
                    hibernator.gate.live(tuple, name(conn));
                }
                self.stay_open(conn);
                self.release_frame(conn);
                return true;
            }
            Ok(true) => Place::NONE,
            Ok(false) => {
                // Nothing can be said on it.
                self.lose(conn, socket, (tuple, Place::NONE));
                return false;
            }
            Err(place) => place,
        };
        self.stats.thaw_failures += 1;
        // Without the mark nothing has reached it.
        match freeze(socket, tuple) {
            Ok(frozen) => {
                if let Some(hibernator) = &mut self.hibernator {
                    hibernator.keep(conn, Kept { frozen, place });
                }
            }
            Err((socket, _)) => self.lose(conn, socket, (tuple, place)),
        }
        false
    }

    /// Takes back what seals and opens for a frozen session: it is in the record, which is erased, or has stayed here.
    /// Returns false if it is of no use, and the place of a record that cannot be erased: then the session stays
    /// frozen.
    fn take_keys_back(&mut self, conn: ConnId, place: Place) -> Result<bool, Place> {
        let Some(records) = self.hibernator.as_mut().and_then(|hibernator| hibernator.records.as_mut()) else {
            return Ok(true);
        };
        if place == Place::NONE {
            return Ok(true);
        }
        let mut session = records.take(place).map_err(|(place, _)| place)?;
        match session_record::tls(&mut session.0) {
            None => Ok(false),
            Some([]) => Ok(true),
            // It overwrites the secrets.
            Some(state) => Ok(self.tls.import(conn.slot, Port::WebSocket, state) == Some(state.len())),
        }
    }

    /// Ends a connection whose socket is neither live nor frozen.
    fn lose(&mut self, conn: ConnId, socket: OwnedFd, (tuple, place): (Tuple, Place)) {
        drop(socket);
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.gate.live(tuple, name(conn));
            // A record that stays leads the next process to a connection that has ended.
            hibernator.erase(place);
        }
        self.lost(conn);
    }

    /// Lets a frame go that waits for the thaw in a queue of this component. Nobody else looks at its connection.
    fn release_frame(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.flags.has(Flags::DIRTY) || entry.flags.has(Flags::POLL_OUT) {
            entry.flags.clear(Flags::POLL_OUT);
            entry.flags.set(Flags::DIRTY);
            self.dirty.push(conn);
        }
    }

    /// Brings a connection back that is set apart or frozen. Returns false if it stays frozen.
    pub(in crate::reactor) fn bring_back(&mut self, conn: ConnId) -> bool {
        match self.conns.get(conn).map(|entry| entry.state) {
            Some(State::Apart) => {
                match self.hibernator.as_mut().and_then(|hibernator| hibernator.apart.remove(&conn.slot)) {
                    Some(member) => self.put_back(member),
                    // Its descriptor has not come yet, and is not needed.
                    None => self.stay_open(conn),
                }
                true
            }
            Some(State::Frozen) => self.thaw_for_frame(LateFrame::new(conn, self.now.mono)),
            _ => true,
        }
    }

    /// Brings a connection back for which a frame is due. Returns false if the frame must wait: the turn has done its
    /// thaws, and the frame is one of `late_frames`; or its thaw has failed, and is tried again later.
    pub(in crate::reactor) fn bring_back_for_frame(&mut self, conn: ConnId) -> bool {
        let (Some(entry), Some(hibernator)) = (self.conns.get(conn), &mut self.hibernator) else { return true };
        if entry.state != State::Frozen {
            return self.bring_back(conn);
        }
        if entry.flags.has(Flags::POLL_OUT) {
            // It is one of those that are tried again.
            return true;
        }
        let frame = LateFrame::new(conn, self.now.mono);
        if hibernator.thaws_left == 0 {
            hibernator.late_frames.push_back(frame);
            return false;
        }
        self.thaw_or_retry(frame)
    }

    /// Returns true if the connection is frozen, and a frame waits for its thaw: in `late_frames` with
    /// [`Flags::DIRTY`], in `retries` with [`Flags::POLL_OUT`].
    fn waits_for_thaw(&self, conn: ConnId, flag: Flags) -> bool {
        self.conns.get(conn).is_some_and(|entry| entry.state == State::Frozen && entry.flags.has(flag))
    }

    fn thaw_for_frame(&mut self, frame: LateFrame) -> bool {
        let thawed = self.thaw(frame.conn);
        if thawed && let Some(hibernator) = &mut self.hibernator {
            self.stats.thaws_by_frame += 1;
            hibernator.thaw_times.by_frame.record(us_since(frame.since));
        }
        thawed
    }

    /// Thaws the connection of a segment that the gate has read at `read_at`. Returns false if it stays frozen.
    pub(super) fn thaw_for_segment(&mut self, conn: ConnId, read_at: time::Instant) -> bool {
        let thawed = self.thaw(conn);
        if thawed && let Some(hibernator) = &mut self.hibernator {
            self.stats.thaws_by_segment += 1;
            hibernator.thaw_times.by_segment.record(us_since(read_at));
        }
        thawed
    }

    /// Thaws for a frame, and counts failures in a row. Thaws for segments are not counted, because a peer could make
    /// its own fail.
    fn thaw_or_retry(&mut self, frame: LateFrame) -> bool {
        let thawed = self.thaw_for_frame(frame);
        let retry = self.now.mono.after(RETRY);
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.failures_in_a_row = if thawed { 0 } else { hibernator.failures_in_a_row + 1 };
            if hibernator.failures_in_a_row == FAILURES_IN_A_ROW_MAX {
                (hibernator.failures_in_a_row, hibernator.no_retry_before) = (0, retry);
            }
        }
        if !thawed {
            self.retry_later(frame);
        }
        thawed
    }

    /// The thaw has failed: to the machine it is a socket that takes no bytes.
    fn retry_later(&mut self, frame: LateFrame) {
        let LateFrame { conn, .. } = frame;
        let (now, now_ms) = (self.now.mono, self.now_ms());
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.flags.clear(Flags::DIRTY);
        entry.flags.set(Flags::POLL_OUT);
        if !entry.flags.has(Flags::BLOCKED) {
            entry.flags.set(Flags::BLOCKED);
            self.buffer_pool.entry(&mut entry.buffers, entry.port).blocked_since = now_ms;
            if entry.flags.has(Flags::KNOWN) {
                self.inputs.push_back(Input::Blocked { conn });
            }
        }
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.retries.push_back((now.after(RETRY), frame));
        }
        self.watch_websocket(conn);
    }

    /// Thaws the connections whose frames had to wait, this many at most.
    pub(super) fn thaw_for_late_frames(&mut self, most: usize) -> bool {
        let now = self.now.mono;
        let mut left = most;
        while left > 0
            && let Some(hibernator) = self.hibernator.as_mut().filter(|hibernator| hibernator.no_retry_before <= now)
            && let Some((_, frame)) = hibernator.retries.pop_front_if(|(at, _)| *at <= now)
        {
            left -= 1;
            if self.waits_for_thaw(frame.conn, Flags::POLL_OUT) {
                self.thaw_or_retry(frame);
            }
        }
        while left > 0
            && let Some(frame) = self.hibernator.as_mut().and_then(|hibernator| hibernator.late_frames.pop_front())
        {
            left -= 1;
            if self.waits_for_thaw(frame.conn, Flags::DIRTY) {
                self.thaw_or_retry(frame);
            }
        }
        left < most
    }
}
