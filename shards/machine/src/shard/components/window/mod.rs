//! The window of one session: its unacked notifications, what left it unacked, and the sums over both.
//!
//! An entry is changed here only, so that what is unsent, read ahead and kept in memory stays the sum of the entries.

mod entry;
mod held;
#[cfg(test)]
mod tests;
mod unacked;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{Chid, EmissionId, Stamp};
use crate::limits::{DEFERRED_IDS_MAX, PAGE_ROWS_MAX, READ_AHEAD_BYTES};
use crate::message::{Message, Rank, Topic, Tries};
use crate::time::{Instant, Now, TimeSpan};

use super::super::pace::Pace;
use super::super::row::RowKey;
use entry::DeferredId;
pub(in crate::shard) use entry::{BODY_KEPT, CopyLocation, Retry, Spill, WindowEntry};

/// Notifications that a session has sent or will send and that have no ack.
#[derive(Default)]
pub(in crate::shard) struct Window {
    /// In the order they were first sent or will be; `len <= delivery.window`.
    entries: VecDeque<WindowEntry>,
    /// Pace at which they may go out.
    pace: Pace,
    /// Number of them that wait to be sent; what is held does not.
    unsent: u16,
    /// None of them before this place waits.
    sent_below: u16,
    /// Bytes of those that wait and are in storage, too: what was read ahead.
    ahead_bytes: u32,
    /// Ids that left the window after the last retry and wait in storage for the next session; at most
    /// `DEFERRED_IDS_MAX`.
    deferred: Vec<DeferredId>,
    /// Ledger bytes of the directs in the window.
    direct_bytes: u32,
    /// Bytes of the bodies that the window keeps of rows; their sum over all sessions is in `RowMemory`.
    row_bytes: u32,
    next_emission: u32,
}

/// Result of [`Window::send_waiting`].
#[derive(Default)]
pub(in crate::shard) struct Sent {
    pub count: usize,
    /// Some of them are in storage, too.
    pub rows: bool,
    /// Those that have expired before it was their turn.
    pub expired: Vec<RowKey>,
}

/// An entry whose body was read.
#[derive(Clone, Copy)]
pub(in crate::shard) struct ReadEntry {
    pub row: RowKey,
    pub sent: bool,
}

/// The next entry to be sent, when only storage has its body.
#[derive(Clone, Copy)]
pub(in crate::shard) struct Gap {
    pub row: RowKey,
    /// A read of it is at storage.
    pub reading: bool,
}

impl Window {
    /// An empty window in this buffer, whose frames have the names behind `emissions`.
    pub fn new(buffer: VecDeque<WindowEntry>, emissions: u32) -> Window {
        assert!(buffer.is_empty(), "a buffer is emptied before it is used again");
        Window { entries: buffer, next_emission: emissions, ..Window::default() }
    }

    /// Takes the buffer of a window that is over.
    pub fn into_entries(self) -> VecDeque<WindowEntry> {
        self.entries
    }

    // --- what it holds -------------------------------------------------------------------------------------

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Notifications that are unacked here, in the window or deferred.
    pub fn unacked_count(&self) -> usize {
        self.entries.len() + self.deferred.len()
    }

    /// Nothing is unacked here, in the window or deferred.
    pub fn is_settled(&self) -> bool {
        self.entries.is_empty() && self.deferred.is_empty()
    }

    /// Returns true if an entry has this stamp.
    pub fn contains(&self, stamp: Stamp) -> bool {
        self.position(stamp).is_some()
    }

    /// Returns true if a message is unacked here, in the window or deferred.
    pub fn holds(&self, stamp: Stamp) -> bool {
        self.contains(stamp) || self.deferred.iter().any(|deferred| deferred.row.stamp == stamp)
    }

    /// Returns true if a message of a higher rank than this one is unacked in its slot.
    pub fn outranks(&self, message: &Message) -> bool {
        let rank = message.rank();
        let same_slot = |row: &RowKey| row.chid == message.chid && row.topic == message.topic;
        self.entries.iter().any(|entry| same_slot(&entry.row) && entry.rank() > rank)
            || self.deferred.iter().any(|deferred| same_slot(&deferred.row) && deferred.rank() > rank)
    }

    /// Returns true if storage has something that is unacked here.
    pub fn has_rows(&self) -> bool {
        !self.deferred.is_empty() || self.entries.iter().any(|entry| entry.source == CopyLocation::Row)
    }

    /// Number of vain deliveries of each row that storage has, this session included. Directs carry theirs with them.
    pub fn tried_rows(&self) -> Vec<(RowKey, Tries)> {
        let sent = self.entries.iter().filter(|entry| entry.source == CopyLocation::Row && entry.sent);
        let deferred = self.deferred.iter().map(|deferred| (deferred.row, deferred.tries));
        sent.map(|entry| (entry.row, entry.tried())).chain(deferred).collect()
    }

    /// Ledger bytes of its directs, and bytes that were read ahead.
    pub fn waiting_bytes(&self) -> u32 {
        self.direct_bytes + self.ahead_bytes
    }

    /// Bytes that were read ahead of what is sent.
    pub fn ahead_bytes(&self) -> u32 {
        self.ahead_bytes
    }

    /// Returns true if enough was read ahead of what is sent.
    pub fn is_ahead(&self) -> bool {
        self.unsent > PAGE_ROWS_MAX / 2 || self.ahead_bytes >= READ_AHEAD_BYTES
    }

    /// Bytes of the bodies that it keeps of rows.
    pub fn row_bytes(&self) -> u32 {
        self.row_bytes
    }

    /// One less than the smallest clock of what is unacked: below that everything is settled.
    pub fn settled_below(&self) -> u64 {
        let unacked =
            self.entries.iter().map(|entry| entry.row).chain(self.deferred.iter().map(|deferred| deferred.row));
        unacked.map(|row| row.stamp.clock.0.saturating_sub(1)).min().unwrap_or(u64::MAX)
    }

    /// Returns when something must be done about an entry.
    pub fn due(&self, spill_after: TimeSpan, retry_after: TimeSpan) -> Option<Instant> {
        self.entries.iter().filter_map(|entry| entry.due(spill_after, retry_after)).min()
    }

    fn position(&self, stamp: Stamp) -> Option<usize> {
        self.entries.iter().position(|entry| entry.row.stamp == stamp)
    }

    fn entry(&mut self, stamp: Stamp) -> &mut WindowEntry {
        // Invariant: the caller has the stamp from the window.
        let place = self.position(stamp).expect("an entry of the window has a place");
        &mut self.entries[place]
    }

    // --- into the window and out of it -----------------------------------------------------------------------

    /// Adds a notification that waits to be sent.
    pub fn enter(&mut self, entry: WindowEntry) {
        match entry.source {
            CopyLocation::Direct(_) | CopyLocation::Spilling(_) => self.direct_bytes += entry.body_bytes(),
            CopyLocation::Row => self.row_bytes += entry.body_bytes(),
        }
        self.ahead_bytes += entry.ahead_bytes();
        self.unsent += 1;
        self.entries.push_back(entry);
    }

    /// Takes an entry out, keeping the sums.
    pub fn remove(&mut self, stamp: Stamp) -> Option<WindowEntry> {
        let place = self.position(stamp)?;
        let entry = self.entries.remove(place)?;
        if entry.sent {
            self.pace.take(entry.burst);
        }
        self.unsent -= u16::from(entry.waits());
        self.ahead_bytes -= entry.ahead_bytes();
        self.sent_below -= u16::from(place < usize::from(self.sent_below));
        match entry.source {
            CopyLocation::Direct(_) | CopyLocation::Spilling(_) => self.direct_bytes -= entry.body_bytes(),
            CopyLocation::Row => self.row_bytes -= entry.body_bytes(),
        }
        Some(entry)
    }

    /// Keeps what is needed of an entry that left the window unacked. False when too many are kept.
    pub fn defer(&mut self, entry: &WindowEntry) -> bool {
        let room = self.deferred.len() < DEFERRED_IDS_MAX;
        if room {
            self.deferred.push(DeferredId { row: entry.row, version: entry.version, tries: entry.tried() });
        }
        room
    }

    /// Forgets what was deferred under this stamp. False when there is none.
    pub fn unpark(&mut self, stamp: Stamp) -> bool {
        let place = self.deferred.iter().position(|deferred| deferred.row.stamp == stamp);
        place.map(|place| self.deferred.swap_remove(place)).is_some()
    }

    /// Names the older messages of a topic slot, and takes the deferred ones out.
    pub fn older(&mut self, (chid, topic, newest): (Chid, Topic, Rank)) -> (Vec<Stamp>, Vec<RowKey>) {
        let older = |row: &RowKey, rank: Rank| row.chid == chid && row.topic == Some(topic) && rank < newest;
        let entries = self.entries.iter().filter(|entry| older(&entry.row, entry.rank()));
        let stamps = entries.map(|entry| entry.row.stamp).collect();
        let deferred = self.deferred.extract_if(.., |deferred| older(&deferred.row, deferred.rank()));
        (stamps, deferred.map(|deferred| deferred.row).collect())
    }

    /// Names the updates of a channel up to a version, and takes the deferred ones out.
    pub fn updates(&mut self, chid: Chid, version: u64) -> (Vec<Stamp>, Vec<RowKey>) {
        let ended = |row: &RowKey, of: u64| row.chid == chid && of != 0 && of <= version;
        let entries = self.entries.iter().filter(|entry| ended(&entry.row, entry.version));
        let stamps = entries.map(|entry| entry.row.stamp).collect();
        let deferred = self.deferred.extract_if(.., |deferred| ended(&deferred.row, deferred.version));
        (stamps, deferred.map(|deferred| deferred.row).collect())
    }

    /// Names the messages of a channel, and forgets the deferred ones: storage has dropped them.
    pub fn of_channel(&mut self, chid: Chid) -> Vec<Stamp> {
        self.deferred.retain(|deferred| deferred.row.chid != chid);
        self.entries.iter().filter(|entry| entry.row.chid == chid).map(|entry| entry.row.stamp).collect()
    }

    /// Names the rows at the end of the window that wait to be sent. A direct behind them keeps them there.
    pub fn rows_at_end(&self) -> Vec<Stamp> {
        let waits = |entry: &&WindowEntry| entry.waits() && entry.source == CopyLocation::Row;
        self.entries.iter().rev().take_while(waits).map(|entry| entry.row.stamp).collect()
    }

    // --- sending -------------------------------------------------------------------------------------------

    /// Returns true if an entry waits to be sent.
    pub fn waits(&self) -> bool {
        self.unsent > 0
    }

    /// Returns true if an entry waits for the pace.
    pub fn is_paced(&self, now: Instant) -> bool {
        self.waits() && self.pace.room(now) == 0
    }

    /// Hands `emit` what waits, in its order, as far as the pace allows and at most `most` of them.
    pub fn send_waiting(&mut self, now: Now, most: usize, mut emit: impl FnMut(Arc<Message>, EmissionId)) -> Sent {
        let room = usize::from(self.pace.room(now.mono)).min(most);
        let mut sent = Sent::default();
        let mut place = usize::from(self.sent_below);
        while sent.count < room && place < self.entries.len() {
            let entry = &self.entries[place];
            match &entry.body {
                Some(message) if entry.waits() && message.expired(now.unix()) => sent.expired.push(entry.row),
                Some(message) if entry.waits() => {
                    let message = message.clone();
                    sent.rows |= entry.source == CopyLocation::Row;
                    emit(message, self.send(place, now.mono));
                    sent.count += 1;
                }
                // Nothing overtakes what the socket refused late.
                None if entry.waits() => break,
                Some(_) | None => {}
            }
            place += 1;
        }
        self.sent_below = place as u16;
        sent
    }

    /// Marks the entry at this place as sent now, for the first time or after the socket refused it. Returns the name
    /// of its frame.
    fn send(&mut self, place: usize, now: Instant) -> EmissionId {
        let emission = self.emission();
        let burst = self.pace.send(now);
        let entry = &mut self.entries[place];
        self.ahead_bytes -= entry.ahead_bytes();
        self.unsent -= 1;
        (entry.sent, entry.since, entry.emission, entry.burst) = (true, now, emission, burst);
        emission
    }

    /// The socket took nothing of the frame that `named` finds. A first delivery waits again; after a retry the
    /// delivery before it stands, is acked or tried again in its time. False when there is none.
    pub fn unsend(&mut self, named: impl Fn(EmissionId) -> bool) -> bool {
        let Some(place) = self.entries.iter().position(|entry| entry.sent && named(entry.emission)) else {
            return false;
        };
        let entry = &mut self.entries[place];
        if entry.retries > 0 {
            entry.retries -= 1;
            return true;
        }
        entry.sent = false;
        self.pace.take(entry.burst);
        self.ahead_bytes += entry.ahead_bytes();
        self.unsent += 1;
        self.sent_below = self.sent_below.min(place as u16);
        true
    }

    /// A name for the next frame.
    pub fn emission(&mut self) -> EmissionId {
        self.next_emission = self.next_emission.wrapping_add(1);
        EmissionId(self.next_emission)
    }

    /// The name of the last frame.
    pub fn last_emission(&self) -> u32 {
        self.next_emission
    }

    /// The next to be sent, when only storage has its body: the socket refused it after the body was forgotten.
    pub fn gap(&self) -> Option<Gap> {
        let next = self.entries.iter().skip(usize::from(self.sent_below)).find(|entry| entry.waits())?;
        next.body.is_none().then_some(Gap { row: next.row, reading: next.reading })
    }

    /// A read of the body of an entry goes to storage.
    pub fn begin_read(&mut self, stamp: Stamp) {
        self.entry(stamp).reading = true;
    }

    /// A read of the body of an entry has come back. `None` when the entry is no longer there.
    pub fn end_read(&mut self, stamp: Stamp) -> Option<ReadEntry> {
        let place = self.position(stamp)?;
        let entry = &mut self.entries[place];
        entry.reading = false;
        Some(ReadEntry { row: entry.row, sent: entry.sent })
    }

    /// Gives a row that waits without a body its body. Returns the bytes that it takes; `None` for any other entry.
    pub fn fill(&mut self, stamp: Stamp, message: Arc<Message>) -> Option<u32> {
        let place = self.position(stamp)?;
        let entry = &mut self.entries[place];
        if entry.sent || entry.body.is_some() {
            return None;
        }
        entry.body = Some(message);
        self.ahead_bytes += entry.ahead_bytes();
        self.row_bytes += entry.body_bytes();
        Some(entry.body_bytes())
    }

    // --- pace ----------------------------------------------------------------------------------------------

    /// Returns when more of what waits may go out: at `next_turn` if it is this turn that was long enough.
    pub fn pace_due(&self, now: Instant, next_turn: Instant) -> Instant {
        if self.pace.room(now) > 0 { next_turn } else { self.pace.due().max(next_turn) }
    }

    /// Number of notifications that are sent and unacked.
    pub fn out(&self) -> u16 {
        self.pace.out()
    }

    /// An ack came; `before` were out before it.
    pub fn acked(&mut self, now: Instant, before: u16) {
        if self.pace.out() < before {
            self.pace.ack(now, before);
        }
    }

    /// The socket takes bytes again.
    pub fn resume(&mut self, now: Instant) {
        self.pace.resume(now);
    }
}

#[cfg(test)]
impl Window {
    /// Bodies of all entries that have one.
    pub fn bodies(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.entries.iter().filter_map(|entry| entry.body.as_ref())
    }
}
