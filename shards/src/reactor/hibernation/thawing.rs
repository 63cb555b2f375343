//! Thawing: a socket is made again because a segment came, a frame is due, or the session ends.

use std::os::fd::AsFd;

use hibernate::{Place, freeze, set_live};

use crate::ports::Edge;
use crate::ring::{Flags, State, WEBSOCKET_BUFFERS};
use machine::Input;
use machine::ids::ConnId;
use machine::time::TimeSpan;

use super::frozen_table::Kept;
use super::{Machine, Member, Reactor, name};

/// Pause before a thaw that failed is tried again.
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
        let Some(Kept { frozen, place }) = hibernator.frozen.get(conn.slot).copied() else { return false };
        let tuple = frozen.tuple();
        let Ok(socket) = frozen.thaw(WEBSOCKET_BUFFERS) else {
            self.stats.thaw_failures += 1;
            return false;
        };
        hibernator.frozen.remove(conn.slot);
        // Nothing may be sealed with keys that a record still has.
        let is_erased = hibernator.erase(place);
        if !is_erased || self.plane.put_in(conn, socket.as_fd()).is_err() {
            let place = if is_erased { Place::NONE } else { place };
            self.stats.thaw_failures += 1;
            // Without the mark nothing has reached it.
            return match freeze(socket, tuple) {
                Ok(frozen) => {
                    hibernator.keep(conn, Kept { frozen, place });
                    false
                }
                Err((socket, _)) => {
                    drop(socket);
                    hibernator.gate.live(tuple, name(conn));
                    // A record that stays leads the next process to a connection that has ended.
                    hibernator.erase(place);
                    self.lost(conn);
                    false
                }
            };
        }
        // The mark comes last: no segment reaches a socket that is half restored.
        let _ = set_live(&socket, true);
        hibernator.gate.live(tuple, name(conn));
        self.stay_open(conn);
        true
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
            Some(State::Frozen) => {
                let thawed = self.thaw(conn);
                self.stats.thaws_by_frame += u64::from(thawed);
                thawed
            }
            _ => true,
        }
    }

    /// Brings a connection back for which a frame is due. Returns false if the frame must wait: the turn has done its
    /// thaws, and the connection is in `postponed`; or its thaw has failed, and is tried again later.
    pub(in crate::reactor) fn bring_back_for_frame(&mut self, conn: ConnId) -> bool {
        let (Some(entry), Some(hibernator)) = (self.conns.get(conn), &self.hibernator) else { return true };
        let (is_frozen, is_retried) = (entry.state == State::Frozen, entry.flags.has(Flags::POLL_OUT));
        if is_frozen && is_retried {
            return true;
        }
        if is_frozen && hibernator.thaws_left == 0 {
            self.postponed.push_back(conn);
            return false;
        }
        let is_back = self.bring_back(conn);
        if !is_back {
            self.retry_later(conn);
        }
        is_back
    }

    /// The thaw has failed: to the machine it is a socket that takes no bytes.
    fn retry_later(&mut self, conn: ConnId) {
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
            hibernator.retries.push_back((now.after(RETRY), conn));
        }
        self.watch_websocket(conn);
    }

    pub(super) fn retry_thaws(&mut self) -> bool {
        let mut worked = false;
        while let Some(hibernator) = &mut self.hibernator {
            let Some((_, conn)) = hibernator.retries.pop_front_if(|(at, _)| *at <= self.now.mono) else { break };
            worked = true;
            let Some(entry) = self.conns.get_mut(conn) else { continue };
            entry.flags.clear(Flags::POLL_OUT);
            self.mark_dirty(conn);
        }
        worked
    }
}
