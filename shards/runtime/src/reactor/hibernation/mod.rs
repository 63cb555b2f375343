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
//!
//! With `hibernate.dir` the sessions outlive the process: the shard writes a record to a file before the close, and
//! takes it back when the socket is there again. The keys of TLS are in the record, or in the shard, and never in both.
//! [`takeover`] reads the records. At its end such a process freezes every session that can be frozen, and does not
//! carry out the machine's close of them.

mod freezing;
mod frozen_table;
mod late_frames;
mod pending_probes;
mod probing;
mod takeover;
mod thawing;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use hashbrown::HashMap;
use hibernate::{ConnName, News, Place, RecordFiles, SESSION_BYTES_MAX, Segment, ShardGate, Tuple};

use crate::ports::{Edge, Hibernation, Probes, Records};
use crate::ring::State;
use machine::ids::ConnId;
use machine::limits::{SET_APART_AT_END_MAX, SET_APART_MAX, THAWS_PER_TURN};
use machine::time::{Instant, TimeSpan};

use super::input_horizon::LATE;
use super::{Machine, Reactor};
#[cfg(test)]
pub(super) use late_frames::FAILURES_IN_A_ROW_MAX;
use late_frames::LateFrame;
pub(super) use late_frames::ThawTimes;
use pending_probes::PendingProbes;

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

/// Longest time from the first turn of a shard until it has the broadcasts of the process, if there are any.
const BROADCASTS_KNOWN: TimeSpan = TimeSpan::from_ms(500);
/// News of the gate that one turn takes.
const NEWS_PER_TURN: usize = 1_024;

/// Pause between searches at the end of the process.
const LAST_SEARCHES: TimeSpan = TimeSpan::from_ms(20);

/// State of hibernation on a shard.
pub(super) struct Hibernator {
    gate: ShardGate,
    after: TimeSpan,
    phase: Phase,
    /// Slot at which the search goes on, and the time at which it begins again.
    cursor: u32,
    next_search: Instant,
    /// Time from which sessions that were taken over say their hellos; `None` before the first turn.
    begins: Option<Instant>,
    /// Largest number of frozen connections behind a search at the end of the process.
    most_frozen: u32,
    /// Searches in a row that have found connections and frozen none.
    searches_in_vain: u32,
    /// Members of the batch by slot.
    apart: HashMap<u32, Member>,
    frozen: frozen_table::FrozenTable,
    probes: Option<PendingProbes>,
    /// Files of their records, if they outlive the process.
    records: Option<RecordFiles>,
    takeover: takeover::Takeover,
    /// The process ends, and its sessions go on in the next one: every session that can be frozen is frozen, and again
    /// when it was thawed.
    is_ending: bool,
    /// The machine accepts nothing any more.
    is_draining: bool,
    /// Buffer of a record.
    session: Vec<u8>,
    /// Frames for which the turn had no thaw left.
    late_frames: VecDeque<LateFrame>,
    /// Frames whose thaw has failed, and when it is tried again.
    retries: VecDeque<(Instant, LateFrame)>,
    no_retry_before: Instant,
    /// The machine is not told before that frames are late.
    tell_late_at: Instant,
    failures_in_a_row: u32,
    /// Thaws that this turn may still do.
    thaws_left: usize,
    pub(super) thaw_times: ThawTimes,
    /// Searches of all slots that have ended.
    #[cfg(test)]
    searches: u64,
}

impl Hibernator {
    /// Returns the state of a shard that hibernates, and the records that it takes over.
    pub(super) fn of(parts: Option<Hibernation>, now: Instant) -> (Option<Hibernator>, Option<Records>) {
        let Some(Hibernation { after, gate, records, probes }) = parts else { return (None, None) };
        (Some(Hibernator::new(gate, after, probes, now)), records)
    }

    pub(super) fn new(gate: ShardGate, after: TimeSpan, probes: Option<Probes>, now: Instant) -> Hibernator {
        Hibernator {
            probes: probes.map(PendingProbes::new),
            gate,
            after,
            phase: Phase::Searching(Vec::new()),
            cursor: 0,
            next_search: now,
            begins: None,
            most_frozen: 0,
            searches_in_vain: 0,
            apart: HashMap::new(),
            frozen: frozen_table::FrozenTable::default(),
            records: None,
            takeover: takeover::Takeover::default(),
            is_ending: false,
            is_draining: false,
            // A buffer that grows would leave copies of secrets in freed memory.
            session: Vec::with_capacity(SESSION_BYTES_MAX),
            late_frames: VecDeque::new(),
            retries: VecDeque::new(),
            no_retry_before: now,
            tell_late_at: now,
            failures_in_a_row: 0,
            thaws_left: 0,
            thaw_times: ThawTimes::default(),
            #[cfg(test)]
            searches: 0,
        }
    }

    /// Number of frozen connections.
    pub(super) fn frozen(&self) -> u32 {
        self.frozen.len()
    }

    /// Number of frozen connections that outlive the process.
    pub(super) fn recorded(&self) -> u32 {
        self.frozen.recorded()
    }

    /// Number of sessions that were taken over and that the machine does not have yet.
    pub(super) fn taken_over(&self) -> usize {
        self.takeover.len()
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

    /// Returns true if frames wait for a turn with thaws left.
    pub(super) fn has_late_frames(&self) -> bool {
        !self.late_frames.is_empty()
    }

    /// Returns a time since which Pings may wait for a thaw, if a frame waits for long. It says so once in a while:
    /// each time the machine gives every Ping since then the whole time for its Pong. A peer that is gone is therefore
    /// not found before the frames have been sent.
    pub(super) fn late_since(&mut self, now: Instant) -> Option<Instant> {
        let LateFrame { turn, .. } = self.late_frames.front()?;
        if now.since(*turn) < LATE || now < self.tell_late_at {
            return None;
        }
        self.tell_late_at = now.after(LATE);
        // To the machine a Ping that follows a probe is as old as the probe.
        let probed = self.probes.as_ref().map_or(TimeSpan(0), PendingProbes::answer_within);
        Some(Instant(turn.0.saturating_sub(probed.0)))
    }

    /// Gives back what a crowd of late frames, or of probes, needed.
    pub(super) fn trim(&mut self) {
        super::trim(&mut self.late_frames);
        super::trim(&mut self.retries);
        self.probes.iter_mut().for_each(PendingProbes::trim);
    }

    /// Returns true if the gate has something to say.
    pub(super) fn has_news(&self) -> bool {
        self.gate.has_news()
    }

    /// Keeps a connection that is frozen.
    fn keep(&mut self, conn: ConnId, kept: frozen_table::Kept) {
        self.frozen.insert(conn.slot, kept);
    }

    /// Lets records outlive the process from now on.
    pub(super) fn write_records(&mut self, files: RecordFiles) {
        self.records = Some(files);
    }

    /// Tells the gate what it must hold.
    pub(super) fn attach(&self, held: Vec<(Tuple, ConnName)>, wake: impl Fn() + Send + Sync + 'static) {
        self.gate.attach(held, wake);
    }

    /// The shard has the broadcasts of the process: hellos of sessions that were taken over know what has changed.
    pub(super) fn know_broadcasts(&mut self, now: Instant) {
        self.begins = Some(now);
    }

    /// Freezes everything that can be, from now on. Returns false if the sessions do not outlive the process.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        let outlives = self.records.is_some();
        if outlives && !self.is_ending {
            self.gate.accept_no_more();
            (self.is_ending, self.after, self.next_search, self.cursor) = (true, TimeSpan(0), now, 0);
        }
        outlives
    }

    /// The machine has been told that the process ends.
    pub(super) fn begin_drain(&mut self) {
        self.is_draining = true;
    }

    /// Returns the number of sessions of the machine, if the next process has them all, as far as this component knows.
    fn left_to_next(&self) -> Option<u32> {
        let has_frames = !self.late_frames.is_empty() || !self.retries.is_empty();
        let is_over = self.is_ending && self.is_draining && !has_frames;
        // The machine does not know those that wait yet.
        is_over.then(|| self.frozen.recorded().saturating_sub(self.takeover.waiting() as u32))
    }

    /// Time at which there is something to do without news. `open`: connections of the shard; `is_over`: nothing is
    /// accepted any more.
    pub(super) fn next(&self, open: u32, is_over: bool) -> Option<Instant> {
        let searches = matches!(self.phase, Phase::Searching(_))
            && if is_over { self.is_ending } else { open > self.frozen.len() };
        let search = searches.then_some(self.next_search);
        let search = search.into_iter().chain(self.begins.filter(|_| self.takeover.is_due())).min();
        let retry = self.retries.front().map(|(at, _)| (*at).max(self.no_retry_before));
        let answer = self.probes.as_ref().and_then(PendingProbes::next);
        search.into_iter().chain(retry).chain(answer).min()
    }

    #[cfg(test)]
    pub(super) fn searches_for_test(&self) -> u64 {
        self.searches
    }

    /// Lets the end wait for a test, however slow its host is.
    #[cfg(test)]
    pub(super) fn search_on_for_test(&mut self) {
        self.searches_in_vain = 0;
    }

    #[cfg(test)]
    pub(super) fn age_late_frames_for_test(&mut self, by: TimeSpan) {
        self.late_frames.iter_mut().for_each(|frame| frame.turn = Instant(frame.turn.0 - by.0));
    }

    #[cfg(test)]
    pub(super) fn probe_with_for_test(&mut self, probes: Probes) {
        self.probes = Some(PendingProbes::new(probes));
    }

    #[cfg(test)]
    pub(super) fn record_for_test(&self, slot: u32) -> &hibernate::Frozen {
        &self.frozen.get(slot).expect("the connection is frozen").frozen
    }

    /// Removes what is kept of a connection, its record in a file included.
    fn forget(&mut self, slot: u32) -> Option<Tuple> {
        let frozen_table::Kept { frozen, place } = self.frozen.remove(slot)?;
        self.erase(place);
        Some(frozen.tuple())
    }

    /// Erases the record of a connection that has ended. One that stays leads the next process to no connection.
    fn erase(&mut self, place: Place) {
        let _ = self.records.as_mut().map(|records| records.erase(place));
    }

    /// Searches come a quarter of the silence apart, so a session is frozen at most that much later.
    fn rest(&self) -> TimeSpan {
        if self.is_ending { LAST_SEARCHES } else { TimeSpan(self.after.0 / 4) }
    }

    fn batch_max(&self) -> usize {
        if self.is_ending { SET_APART_AT_END_MAX } else { SET_APART_MAX }
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
        hibernator.begins.get_or_insert(self.now.mono.after(BROADCASTS_KNOWN));
        // Segments and late frames share the turn, whichever of them are more.
        let mut worked = self.thaw_for_late_frames(THAWS_PER_TURN / 2);
        worked |= self.read_gate();
        let left = self.hibernator.as_ref().map_or(0, |hibernator| hibernator.thaws_left);
        worked |= self.thaw_for_late_frames(left);
        worked |= self.ping_unanswered();
        worked |= self.check_batch();
        worked |= self.search();
        worked |= self.resume_sessions();
        self.say_left_to_next();
        worked
    }

    /// Reports that the drain is over when every session is left to the next process and the machine owes nothing: it
    /// need not go over its sessions one by one.
    fn say_left_to_next(&self) {
        let left = self.hibernator.as_ref().and_then(Hibernator::left_to_next);
        if left.is_some_and(|left| self.machine.owes_nothing_but(left as usize)) {
            self.control.say_drained();
        }
    }

    fn read_gate(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..NEWS_PER_TURN {
            let Some(hibernator) = self.hibernator.as_mut().filter(|hibernator| hibernator.thaws_left > 0) else {
                break;
            };
            let Some(news) = hibernator.gate.next() else { break };
            worked = true;
            match news {
                News::Segment(conn, segment, read_at) => {
                    let conn = ConnId { slot: conn.slot, generation: conn.generation };
                    let accepts = self.judge_segment(conn, segment, read_at);
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

    /// Thaws the connection of a segment that the gate has read at `read_at`. Returns false if the segment must be
    /// dropped.
    fn judge_segment(&mut self, conn: ConnId, segment: Segment, read_at: std::time::Instant) -> bool {
        if self.conns.get(conn).is_some_and(|entry| entry.state == State::Apart) {
            // It is not silent any more.
            self.bring_back(conn);
            return true;
        }
        let is_frozen = self.conns.get(conn).is_some_and(|entry| entry.state == State::Frozen);
        let Some(hibernator) = &self.hibernator else { return true };
        if hibernator.is_ending && self.conns.get(conn).is_none() {
            // The next process has it.
            return false;
        }
        // Anything but a frozen connection is the kernel's: it is live, or set apart and still there, or has ended.
        let Some(frozen_table::Kept { frozen, .. }) = hibernator.frozen.get(conn.slot).filter(|_| is_frozen) else {
            return true;
        };
        if frozen.tuple() != segment.tuple {
            return true;
        }
        if frozen.is_sign_of_life(&segment) {
            self.answered_probe(conn);
            return false;
        }
        if !frozen.takes(segment.position, segment.acknowledged, segment.syn) {
            self.stats.wakes_refused += 1;
            return false;
        }
        self.thaw_for_segment(conn, read_at)
    }

    /// Leaves a frozen session to the next process. Returns false if that will not have it.
    pub(super) fn leave_to_next(&mut self, conn: ConnId) -> bool {
        let is_frozen = self.conns.get(conn).is_some_and(|entry| entry.state == State::Frozen);
        let Some(hibernator) = self.hibernator.as_mut().filter(|hibernator| hibernator.is_ending) else {
            return false;
        };
        let has_record = hibernator.frozen.get(conn.slot).is_some_and(|kept| kept.place != Place::NONE);
        if !is_frozen || !has_record {
            return false;
        }
        hibernator.frozen.remove(conn.slot);
        self.stats.left_to_next += 1;
        self.close(conn);
        true
    }

    /// Removes everything that hibernation keeps of a connection that ends.
    pub(super) fn leave_hibernation(&mut self, conn: ConnId) {
        self.leave_takeover(conn);
        let Some(hibernator) = &mut self.hibernator else { return };
        let tuple = match self.conns.get(conn).map(|entry| entry.state) {
            Some(State::Apart) => hibernator.apart.remove(&conn.slot).map(|member| member.tuple),
            Some(State::Frozen) => hibernator.forget(conn.slot),
            _ => None,
        };
        if let Some(tuple) = tuple {
            hibernator.gate.live(tuple, name(conn));
        }
    }
}
