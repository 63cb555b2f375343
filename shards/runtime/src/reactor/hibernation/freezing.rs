//! Freezing: silent sessions are found, set apart in batches, checked, recorded, and closed in silence.

use std::os::fd::OwnedFd;

use hibernate::{Frozen, Place, SESSION_BYTES_MAX, Tuple, check, set_live};

use crate::ports::{Edge, Port};
use crate::ring::{CompletionKey, Flags, State};
use crate::session_record;
use crate::tls::Stage;
use machine::Hello;
use machine::ids::ConnId;
use machine::limits::{FREEZES_PER_TURN, SLOTS_SEARCHED_PER_TURN};

use super::frozen_table::Kept;
use super::{Hibernator, Machine, Member, Phase, Reactor, name};

/// Searches in a row, at the end of the process, that freeze none although connections are found or frames wait for
/// thaws: a second or so.
const SEARCHES_IN_VAIN_MAX: u32 = 25;

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Looks for sessions that have been silent long enough, and sets a batch of them apart.
    pub(super) fn search(&mut self) -> bool {
        let (now, now_ms, is_over) = (self.now.mono, self.now_ms(), self.accepting.is_over());
        let Some(hibernator) = &mut self.hibernator else { return false };
        let most = hibernator.batch_max();
        let Phase::Searching(found) = &mut hibernator.phase else { return false };
        if hibernator.next_search > now || (is_over && !hibernator.is_ending) {
            return false;
        }
        let mut found = std::mem::take(found);
        let (begin, after_ms) = (hibernator.cursor, hibernator.after.0 / 1_000_000);
        let (mut searched, slots) = (0, self.conns.slots());
        while searched < SLOTS_SEARCHED_PER_TURN && begin + searched < slots && found.len() < most {
            if let Some(conn) = self.conns.occupant(begin + searched)
                && self.is_silent(conn, now_ms, after_ms)
            {
                found.push(conn);
            }
            searched += 1;
        }
        let is_through = begin + searched >= slots;
        let is_due = found.len() >= most || (is_through && !found.is_empty());
        let batch = if is_due { std::mem::take(&mut found) } else { Vec::new() };
        let mut is_last = false;
        let Some(hibernator) = &mut self.hibernator else { return false };
        hibernator.cursor = if is_through { 0 } else { begin + searched };
        if is_through && hibernator.is_ending {
            // Some are thawed again and again, some are always busy, and some thaws fail: many searches without
            // progress are enough.
            let frozen = hibernator.frozen.len();
            let is_vain = frozen <= hibernator.most_frozen;
            hibernator.searches_in_vain = if is_vain { hibernator.searches_in_vain + 1 } else { 0 };
            hibernator.most_frozen = hibernator.most_frozen.max(frozen);
            let owes = !hibernator.late_frames.is_empty() || !hibernator.retries.is_empty();
            let is_rest = !is_due && !owes;
            if is_vain && (is_rest || hibernator.searches_in_vain >= SEARCHES_IN_VAIN_MAX) {
                is_last = true;
            }
        }
        if is_through {
            hibernator.next_search = now.after(hibernator.rest());
            #[cfg(test)]
            {
                hibernator.searches += 1;
            }
        }
        hibernator.phase = Phase::Searching(found);
        let mut awaited = 0;
        for conn in batch {
            if self.is_silent(conn, now_ms, after_ms) {
                self.take_out(conn);
                awaited += 1;
            }
        }
        if awaited > 0
            && let Some(hibernator) = &mut self.hibernator
        {
            hibernator.phase = Phase::TakingOut(awaited);
        }
        if is_last {
            // The thread that stops the node reads the number of frozen sessions then.
            self.publish();
            self.control.say_hibernated();
        }
        true
    }

    /// Returns true if nothing was said on this session for so long, and nothing is owed or under way.
    fn is_silent(&self, conn: ConnId, now_ms: u32, after_ms: u64) -> bool {
        let Some(entry) = self.conns.get(conn) else { return false };
        let flags = entry.flags;
        let waits = entry.state == State::Open && flags.has(Flags::KNOWN) && flags.has(Flags::POLL_IN);
        let under_way =
            [Flags::BUSY, Flags::BLOCKED, Flags::RECV, Flags::SENDING, Flags::POLL_OUT, Flags::DIRTY, Flags::PARTIAL];
        let at_end = [Flags::LAST, Flags::ENDED].into_iter().any(|flag| flags.has(flag));
        if !waits || at_end || under_way.into_iter().any(|flag| flags.has(flag)) || entry.port != Port::WebSocket {
            return false;
        }
        if u64::from(now_ms.wrapping_sub(entry.since)) < after_ms || entry.has_buffers() {
            return false;
        }
        !flags.has(Flags::TLS) || (self.tls.stage(conn.slot) == Stage::Established && !self.tls.peer_closed(conn.slot))
    }

    /// Sets a session apart: its poll goes, and an ordinary descriptor comes.
    fn take_out(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::Apart;
        self.plane.take_out(conn);
    }

    /// The ordinary descriptor of a connection is there, or could not be made.
    pub(in crate::reactor) fn taken_out(&mut self, done: CompletionKey, socket: std::io::Result<OwnedFd>) {
        let conn = self.conns.name(done).filter(|conn| {
            // A frame was due meanwhile, or the session has ended.
            self.conns.get(*conn).is_some_and(|entry| entry.state == State::Apart)
        });
        if let Some(conn) = conn
            && let Err(()) = self.join_batch(conn, socket)
        {
            self.stats.freezes_refused += 1;
            self.stay_open(conn);
        }
        let Some(hibernator) = &mut self.hibernator else { return };
        let Phase::TakingOut(awaited) = &mut hibernator.phase else { return };
        *awaited -= 1;
        if *awaited > 0 {
            return;
        }
        if hibernator.apart.is_empty() {
            hibernator.phase = Phase::Searching(Vec::new());
            return;
        }
        hibernator.phase = Phase::Waiting;
        let batch = hibernator.apart.values().map(|member| (member.tuple, name(member.conn))).collect();
        hibernator.gate.set_apart(batch);
    }

    fn join_batch(&mut self, conn: ConnId, socket: std::io::Result<OwnedFd>) -> Result<(), ()> {
        let prepared = socket.and_then(|socket| {
            let tuple = Tuple::of(&socket)?;
            self.plane.vacate(conn)?;
            Ok(Member { conn, socket, tuple })
        });
        let member = prepared.map_err(drop)?;
        // It fails without CAP_NET_ADMIN only, which the start has tried. A socket with the mark must not be frozen,
        // because its segments pass the rules.
        let unmarked = set_live(&member.socket, false);
        let Some(hibernator) = self.hibernator.as_mut().filter(|_| unmarked.is_ok()) else {
            self.put_back(member);
            return Ok(());
        };
        hibernator.apart.insert(conn.slot, member);
        Ok(())
    }

    /// Checks and freezes a part of the batch whose grace period is over.
    pub(super) fn check_batch(&mut self) -> bool {
        let Some(hibernator) = &mut self.hibernator else { return false };
        let Phase::Checking(slots) = &mut hibernator.phase else { return false };
        let rest = slots.len().saturating_sub(FREEZES_PER_TURN);
        let due = slots.split_off(rest);
        if slots.is_empty() {
            hibernator.phase = Phase::Searching(Vec::new());
        }
        for slot in due {
            let member = self.hibernator.as_mut().and_then(|hibernator| hibernator.apart.remove(&slot));
            // It was brought back meanwhile, or has ended.
            let Some(member) = member else { continue };
            self.check(member);
        }
        true
    }

    fn check(&mut self, member: Member) {
        let Member { conn, socket, tuple } = member;
        let Some(entry) = self.conns.get_mut(conn) else { return };
        // A poll that is not over holds the socket open.
        let checked = if entry.flags.has(Flags::POLL_IN) || entry.flags.has(Flags::DIRTY) {
            Err(socket)
        } else {
            check(socket, tuple).map_err(|(socket, _)| socket)
        };
        // The record is there before the socket goes.
        let written = checked.and_then(|checked| {
            let hello = self.machine.hello_of(conn);
            match self.write_record(conn, checked.frozen(), hello.as_ref()) {
                Ok(place) => Ok((checked, place)),
                Err(_) => Err(checked.abort()),
            }
        });
        match written {
            Ok((checked, place)) => {
                self.stats.freezes += 1;
                if let Some(entry) = self.conns.get_mut(conn) {
                    entry.state = State::Frozen;
                }
                if let Some(hibernator) = &mut self.hibernator {
                    hibernator.keep(conn, Kept { frozen: checked.close(), place });
                }
            }
            Err(socket) => {
                self.stats.freezes_refused += 1;
                self.put_back(Member { conn, socket, tuple });
            }
        }
    }

    /// Writes the record of a session from which the next process makes it again. A session that no hello makes again
    /// (SimplePush, a relay) is kept in memory only.
    ///
    /// The keys of the session go into the record: they are not here any more when this returns a place.
    pub(super) fn write_record(
        &mut self,
        conn: ConnId,
        frozen: &Frozen,
        hello: Option<&Hello>,
    ) -> std::io::Result<Place> {
        let Some(Hibernator { records: Some(records), session, .. }) = &mut self.hibernator else {
            return Ok(Place::NONE);
        };
        let (Some(hello), Some(entry)) = (hello, self.conns.get(conn)) else { return Ok(Place::NONE) };
        let is_tls = entry.flags.has(Flags::TLS);
        if is_tls && self.tls.stage(conn.slot) != Stage::Established {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let mut keys = if is_tls { self.tls.export(conn.slot) } else { Vec::new() };
        session.clear();
        let written = if session_record::len(hello, &keys) > SESSION_BYTES_MAX {
            Err(std::io::ErrorKind::InvalidInput.into())
        } else {
            match session_record::encode(hello, &keys, session) {
                Some(()) => records.write(frozen, session),
                None => Ok(Place::NONE),
            }
        };
        let is_kept = written.as_ref().is_ok_and(|place| *place != Place::NONE);
        if is_tls && !is_kept {
            // Invariant: these bytes are the state that was exported above.
            self.tls.import(conn.slot, entry.port, &mut keys).expect("an exported state");
        }
        for secret in [&mut keys, session] {
            secret.fill(0);
            std::hint::black_box(secret);
        }
        written
    }
}
