//! Hibernation of sessions: their sockets leave the kernel while nobody speaks (decision 0034).
//!
//! ```text
//!   Open --- silent: poll and mark are taken away, the slot is vacated ---> Apart
//!   Apart -- after a grace period: checked, recorded, closed in silence --> Frozen
//!   Apart -- a frame is due, or the check refuses -----------------------> Open
//!   Frozen - a segment came, a frame is due, or the session ends --------> Open
//! ```
//! The machine knows nothing of this: a session stays in its slot under its name, and a frame takes a little longer.
//! One batch of connections is set apart at a time.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use hibernate::{ConnName, News, Segment, ShardGate, Tuple, freeze, set_live};

use crate::ports::{Edge, Hibernation, Port};
use crate::ring::{CompletionKey, Flags, State, WEBSOCKET_BUFFERS};
use crate::tls::Stage;
use machine::Input;
use machine::ids::ConnId;
use machine::limits::{FREEZES_PER_TURN, SET_APART_MAX, SLOTS_SEARCHED_PER_TURN, THAWS_PER_TURN};
use machine::time::{Instant, TimeSpan};

use super::frozen_table::FrozenTable;
use super::{Machine, Reactor};

/// Pause before a thaw that failed is tried again.
const RETRY: TimeSpan = TimeSpan::from_ms(100);

/// A connection that is set apart: its ordinary descriptor is the only one.
struct Member {
    conn: ConnId,
    socket: OwnedFd,
    tuple: Tuple,
}

/// Progress of the batch.
enum Phase {
    /// Silent connections are looked for.
    Searching(Vec<ConnId>),
    /// This many descriptors have not come yet.
    TakingOut(usize),
    /// The gate waits for its grace period.
    Waiting,
    /// These slots are checked.
    Checking(Vec<u32>),
}

/// State of hibernation on a shard.
pub(super) struct Hibernator {
    gate: ShardGate,
    after: TimeSpan,
    phase: Phase,
    /// Slot at which the search goes on, and the time at which it begins again.
    cursor: u32,
    next_search: Instant,
    /// Members of the batch by slot.
    apart: HashMap<u32, Member>,
    frozen: FrozenTable,
    /// Connections with a frame whose thaw failed, and when it is tried again.
    retries: VecDeque<(Instant, ConnId)>,
    /// Thaws that this turn may still do.
    thaws_left: usize,
    /// Searches of all slots that have ended.
    #[cfg(test)]
    searches: u64,
}

impl Hibernator {
    pub(super) fn new(hibernation: Hibernation, now: Instant) -> Hibernator {
        let Hibernation { after, gate } = hibernation;
        Hibernator {
            gate,
            after,
            phase: Phase::Searching(Vec::new()),
            cursor: 0,
            next_search: now,
            apart: HashMap::new(),
            frozen: FrozenTable::default(),
            retries: VecDeque::new(),
            thaws_left: 0,
            #[cfg(test)]
            searches: 0,
        }
    }

    /// Number of frozen connections.
    pub(super) fn frozen(&self) -> u32 {
        self.frozen.len()
    }

    /// Bytes of heap for them.
    pub(super) fn heap_bytes(&self) -> usize {
        self.frozen.heap_bytes()
    }

    /// Segments that the gate has judged, those of them that it did not know, and those that it dropped: of all shards.
    pub(super) fn segments(&self) -> [u64; 3] {
        let stats = self.gate.stats();
        [&stats.judged, &stats.unknown, &stats.dropped].map(|count| count.load(Ordering::Relaxed))
    }

    /// Returns true if the gate has something to say.
    pub(super) fn has_news(&self) -> bool {
        self.gate.has_news()
    }

    /// Time at which there is something to do without news. `open`: connections of the shard.
    pub(super) fn next(&self, open: u32) -> Option<Instant> {
        let searches = matches!(self.phase, Phase::Searching(_)) && open > self.frozen.len();
        let search = searches.then_some(self.next_search);
        search.into_iter().chain(self.retries.front().map(|(at, _)| *at)).min()
    }

    #[cfg(test)]
    pub(super) fn searches_for_test(&self) -> u64 {
        self.searches
    }

    #[cfg(test)]
    pub(super) fn record_for_test(&self, slot: u32) -> &hibernate::Frozen {
        self.frozen.get(slot).expect("the connection is frozen")
    }

    /// Searches come a quarter of the silence apart, so a session is frozen at most that much later.
    fn rest(&self) -> TimeSpan {
        TimeSpan(self.after.0 / 4)
    }
}

fn name(conn: ConnId) -> ConnName {
    ConnName { slot: conn.slot, generation: conn.generation }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Does what is due: wakes sessions, goes on with the batch, looks for silent ones. True when there was something.
    pub(super) fn hibernate(&mut self) -> bool {
        let Some(hibernator) = &mut self.hibernator else { return false };
        hibernator.thaws_left = THAWS_PER_TURN;
        let mut worked = self.read_gate();
        worked |= self.retry_thaws();
        worked |= self.check_batch();
        worked | self.search()
    }

    fn read_gate(&mut self) -> bool {
        let mut worked = false;
        while let Some(hibernator) = self.hibernator.as_mut().filter(|hibernator| hibernator.thaws_left > 0) {
            let Some(news) = hibernator.gate.next() else { break };
            worked = true;
            match news {
                News::Segment(conn, segment) => {
                    let conn = ConnId { slot: conn.slot, generation: conn.generation };
                    let accepts = self.judge_segment(conn, segment);
                    let Some(hibernator) = &mut self.hibernator else { break };
                    if accepts { hibernator.gate.accept(segment) } else { hibernator.gate.drop(segment) }
                }
                News::GraceOver => hibernator.phase = Phase::Checking(hibernator.apart.keys().copied().collect()),
            }
        }
        if worked && let Some(hibernator) = &mut self.hibernator {
            // Before anything else is frozen: an accepted segment is in its socket then.
            hibernator.gate.send_verdicts();
        }
        worked
    }

    /// Thaws the connection of a segment. Returns false if the segment must be dropped.
    fn judge_segment(&mut self, conn: ConnId, segment: Segment) -> bool {
        let is_frozen = self.conns.get(conn).is_some_and(|entry| entry.state == State::Frozen);
        let Some(hibernator) = &self.hibernator else { return true };
        // Anything but a frozen connection is the kernel's: it is live, or set apart and still there, or has ended.
        let Some(frozen) = hibernator.frozen.get(conn.slot).filter(|_| is_frozen) else { return true };
        if frozen.tuple() != segment.tuple {
            return true;
        }
        if !frozen.takes(segment.position, segment.acknowledged, segment.syn) {
            self.stats.wakes_refused += 1;
            return false;
        }
        let thawed = self.thaw(conn);
        self.stats.thaws_by_segment += u64::from(thawed);
        thawed
    }

    /// Looks for sessions that have been silent long enough, and sets a batch of them apart.
    fn search(&mut self) -> bool {
        let (now, now_ms, is_over) = (self.now.mono, self.now_ms(), self.accepting.is_over());
        let Some(hibernator) = &mut self.hibernator else { return false };
        let Phase::Searching(found) = &mut hibernator.phase else { return false };
        if hibernator.next_search > now || is_over {
            return false;
        }
        let mut found = std::mem::take(found);
        let (begin, after_ms) = (hibernator.cursor, hibernator.after.0 / 1_000_000);
        let (mut searched, slots) = (0, self.conns.slots());
        while searched < SLOTS_SEARCHED_PER_TURN && begin + searched < slots && found.len() < SET_APART_MAX {
            if let Some(conn) = self.conns.occupant(begin + searched)
                && self.is_silent(conn, now_ms, after_ms)
            {
                found.push(conn);
            }
            searched += 1;
        }
        let is_through = begin + searched >= slots;
        let is_due = found.len() >= SET_APART_MAX || (is_through && !found.is_empty());
        let batch = if is_due { std::mem::take(&mut found) } else { Vec::new() };
        let Some(hibernator) = &mut self.hibernator else { return false };
        hibernator.cursor = if is_through { 0 } else { begin + searched };
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
    pub(super) fn taken_out(&mut self, done: CompletionKey, socket: std::io::Result<OwnedFd>) {
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
        // It fails without CAP_NET_ADMIN only, which the start has tried. The check then finds no harm: segments pass
        // the rules, and the socket is not closed while it has any.
        let unmarked = set_live(&member.socket, false);
        let Some(hibernator) = self.hibernator.as_mut().filter(|_| unmarked.is_ok()) else {
            self.put_back(member);
            return Ok(());
        };
        hibernator.apart.insert(conn.slot, member);
        Ok(())
    }

    /// Checks and freezes a part of the batch whose grace period is over.
    fn check_batch(&mut self) -> bool {
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
        let frozen = if entry.flags.has(Flags::POLL_IN) || entry.flags.has(Flags::DIRTY) {
            Err(socket)
        } else {
            freeze(socket, tuple).map_err(|(socket, _)| socket)
        };
        match frozen {
            Ok(frozen) => {
                entry.state = State::Frozen;
                self.stats.freezes += 1;
                if let Some(hibernator) = &mut self.hibernator {
                    hibernator.frozen.insert(conn.slot, frozen);
                }
            }
            Err(socket) => {
                self.stats.freezes_refused += 1;
                self.put_back(Member { conn, socket, tuple });
            }
        }
    }

    /// Ends the time apart: the socket returns to its slot.
    fn put_back(&mut self, member: Member) {
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
    fn stay_open(&mut self, conn: ConnId) {
        let now_ms = self.now_ms();
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::Open;
        entry.since = now_ms;
        // If the removal of its poll is not over, that polls again.
        self.want_input(conn);
    }

    /// Makes the socket of a frozen connection again. Returns false if the kernel has no descriptor or memory for it:
    /// then it stays frozen.
    fn thaw(&mut self, conn: ConnId) -> bool {
        let Some(hibernator) = &mut self.hibernator else { return false };
        hibernator.thaws_left = hibernator.thaws_left.saturating_sub(1);
        let Some(frozen) = hibernator.frozen.get(conn.slot) else { return false };
        let tuple = frozen.tuple();
        let Ok(socket) = frozen.thaw(WEBSOCKET_BUFFERS) else {
            self.stats.thaw_failures += 1;
            return false;
        };
        hibernator.frozen.remove(conn.slot);
        if self.plane.put_in(conn, socket.as_fd()).is_err() {
            self.stats.thaw_failures += 1;
            // Without the mark nothing has reached it.
            return match freeze(socket, tuple) {
                Ok(frozen) => {
                    hibernator.frozen.insert(conn.slot, frozen);
                    false
                }
                Err((socket, _)) => {
                    drop(socket);
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
    pub(super) fn bring_back(&mut self, conn: ConnId) -> bool {
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

    /// A frame is due on a connection that is set apart or frozen. Returns false if it must wait: it is in `postponed`
    /// then, because this turn has done its thaws, or its thaw has failed and is tried again later.
    pub(super) fn bring_back_for_frame(&mut self, conn: ConnId, postponed: &mut Vec<ConnId>) -> bool {
        let is_frozen = self.conns.get(conn).is_some_and(|entry| entry.state == State::Frozen);
        if is_frozen && self.hibernator.as_ref().is_some_and(|hibernator| hibernator.thaws_left == 0) {
            postponed.push(conn);
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

    fn retry_thaws(&mut self) -> bool {
        let mut worked = false;
        while let Some(hibernator) = &mut self.hibernator {
            let Some((_, conn)) = hibernator.retries.pop_front_if(|(at, _)| *at <= self.now.mono) else { break };
            worked = true;
            let Some(entry) = self.conns.get_mut(conn) else { continue };
            entry.flags.clear(Flags::POLL_OUT);
            if entry.state == State::Frozen || entry.state == State::Open {
                self.mark_dirty(conn);
            }
        }
        worked
    }

    /// A connection ends: whatever hibernation keeps of it goes.
    pub(super) fn leave_hibernation(&mut self, conn: ConnId) {
        let Some(hibernator) = &mut self.hibernator else { return };
        let tuple = match self.conns.get(conn).map(|entry| entry.state) {
            Some(State::Apart) => hibernator.apart.remove(&conn.slot).map(|member| member.tuple),
            Some(State::Frozen) => hibernator.frozen.remove(conn.slot).map(|frozen| frozen.tuple()),
            _ => None,
        };
        if let Some(tuple) = tuple {
            hibernator.gate.live(tuple, name(conn));
        }
    }
}
