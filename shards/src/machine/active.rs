//! What a session has while something is under way: its window of unacked notifications, its drain of stored
//! ones, its command that waits for storage. An idle session has no entry.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{Chid, Clock, EmissionId, LedgerSlot, Stamp};
use crate::message::{Message, Rank, Topic, Tries};
use crate::time::Instant;

use super::components::ledger_room::ledger_bytes;
use super::pace::Pace;
use super::store::RowKey;

/// The side table entry. Owner shard only.
#[derive(Default)]
pub(super) struct Active {
    /// Unacked notifications in the order they were first sent or will be; `len <= delivery.window`.
    pub window: VecDeque<Entry>,
    /// Pace at which they may go out.
    pub pace: Pace,
    /// Number of them that wait to be sent.
    pub unsent: u16,
    /// None of them before this place waits.
    pub sent_below: u16,
    /// Bytes of those that wait and are in storage, too: what was read ahead.
    pub ahead_bytes: u32,
    /// What left the window after the last retry and waits in storage for the next session; `len <= PARKED_IDS_MAX`.
    pub parked: Vec<Parked>,
    /// Ledger bytes of the directs in the window.
    pub direct_bytes: u32,
    /// Bytes of the bodies that the window keeps of rows; their sum over all sessions is in `RowMemory`.
    pub row_bytes: u32,
    pub next_emission: u32,
    pub drain: StoredDrain,
    /// The deadline that stands for this entry; earlier and later ones of the session do not.
    pub armed: Option<Instant>,
    /// A register or unregister is at storage.
    pub command_waits: bool,
    /// The channel whose unregister is at storage: no save may come behind it and bring its rows back.
    pub unregistering: Option<Chid>,
}

/// One unacked notification.
pub(super) struct Entry {
    pub row: RowKey,
    /// Of a version update; 0 for a notification.
    pub version: u64,
    /// Kept while a copy may still be needed from memory: directs until they are stored, unsent rows. A row that the
    /// socket refuses later than that waits without one, and what is behind it waits too.
    pub body: Option<Arc<Message>>,
    pub source: Source,
    /// When it came into the window, or its last save failed: it spills from here.
    pub accepted: Instant,
    /// When it was last sent: it is sent again from here.
    pub since: Instant,
    pub emission: EmissionId,
    pub sent: bool,
    pub retries: u8,
    /// A read of its body for a retry is at storage.
    pub reading: bool,
    /// In which burst of [`Pace`] it was last sent.
    pub burst: u16,
    /// In sessions before this one.
    pub tries: Tries,
    /// A save of this direct failed and may have taken effect all the same: its ack deletes the row too.
    pub maybe_row: bool,
}

/// What is kept of a notification that left the window unacked.
#[derive(Clone, Copy)]
pub(super) struct Parked {
    pub row: RowKey,
    /// As in [`Entry`].
    pub version: u64,
    /// This session included.
    pub tries: Tries,
}

impl Entry {
    /// A notification as it comes into the window: it waits to be sent.
    pub fn new(message: Arc<Message>, source: Source, now: Instant) -> Entry {
        Entry {
            row: RowKey::of(&message),
            version: message.simple_version().unwrap_or(0),
            tries: message.tries,
            // A row's body only until the socket surely took it (`forget_bodies`).
            body: Some(message),
            source,
            accepted: now,
            since: now,
            emission: EmissionId(0),
            sent: false,
            retries: 0,
            reading: false,
            burst: 0,
            maybe_row: false,
        }
    }

    /// Bytes that its body takes, 0 without one: of the ledger's room while the log has the message, else of what rows
    /// may keep in memory.
    pub fn body_bytes(&self) -> u32 {
        self.body.as_ref().map_or(0, |body| ledger_bytes(body))
    }

    /// Its place among those that want its topic slot.
    pub fn rank(&self) -> Rank {
        Rank::new(self.version, self.row.stamp)
    }

    /// Number of deliveries without an ack, if this session ended now.
    pub fn tried(&self) -> Tries {
        self.tries.and(if self.sent { 1 + self.retries } else { 0 })
    }

    /// What it counts for in [`Active::ahead_bytes`].
    pub fn ahead_bytes(&self) -> u32 {
        if !self.sent && self.source == Source::Row { self.body_bytes() } else { 0 }
    }
}

impl Parked {
    /// As [`Entry::rank`].
    pub fn rank(&self) -> Rank {
        Rank::new(self.version, self.row.stamp)
    }
}

/// Where the copy is that survives us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Source {
    /// In the ledger log only.
    Direct(LedgerSlot),
    /// In the ledger log, and on its way to storage.
    Spilling(LedgerSlot),
    /// In storage.
    Row,
}

/// Delivery of stored messages (PROTOCOL.md 1.8): a check starts at low_water, skips what is in flight or settled, and
/// ends on a read that returned nothing new and began after the last store completed.
#[derive(Default)]
pub(super) struct StoredDrain {
    /// Sticky: storage may hold something that no read has seen.
    pub wanted: bool,
    /// Something was stored since the last check began: the next one is worth a read although writes are under way.
    pub news: bool,
    /// Rows that the next page may have; 0 is not known yet.
    pub rows: u16,
    pub at: Option<DrainCursor>,
    /// A page is at storage.
    pub reading: bool,
    /// Rows that the running check has sent, for `delivery.msg_limit`.
    pub sent: u32,
    /// What the running check may vouch for: rows whose clock lies below this were written before it began.
    pub horizon: Clock,
    /// Rows that the running check has left where they are, for the next session to decide on.
    pub passed_by: u32,
    /// Every message row at or below this was read by a check of this session: it is in the window, parked, settled,
    /// or expired.
    pub covered: Clock,
    /// The low water that storage was last told.
    pub low_water: Clock,
}

/// Which page is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DrainCursor {
    Topics(Option<(Chid, Topic)>),
    Messages(Stamp),
}

impl StoredDrain {
    /// No direct may overtake what storage holds.
    pub fn clear(&self) -> bool {
        !self.wanted && self.at.is_none()
    }

    /// The running check begins again, from the start.
    pub fn restart(&mut self) {
        self.wanted = true;
        self.news = true;
        self.at = None;
        self.covered = Clock::default();
    }
}

impl Active {
    /// Up to where every message row is settled: what the checks have covered, but for what is still unacked.
    pub fn low_water(&self) -> Option<Clock> {
        let unacked = self.window.iter().map(|entry| entry.row).chain(self.parked.iter().map(|parked| parked.row));
        let lowest = unacked.map(|row| row.stamp.clock.0.saturating_sub(1)).min().unwrap_or(u64::MAX);
        let settled = Clock(self.drain.covered.0.min(lowest));
        (settled > self.drain.low_water).then_some(settled)
    }

    /// Adds a notification that waits to be sent.
    pub fn enter(&mut self, entry: Entry) {
        match entry.source {
            Source::Direct(_) | Source::Spilling(_) => self.direct_bytes += entry.body_bytes(),
            Source::Row => self.row_bytes += entry.body_bytes(),
        }
        self.ahead_bytes += entry.ahead_bytes();
        self.unsent += 1;
        self.window.push_back(entry);
    }

    /// Marks the entry at this place as sent now, for the first time or after the socket refused it. Returns the name
    /// of its frame.
    pub fn send(&mut self, place: usize, now: Instant) -> EmissionId {
        let emission = self.emission();
        let burst = self.pace.send(now);
        let entry = &mut self.window[place];
        self.ahead_bytes -= entry.ahead_bytes();
        self.unsent -= 1;
        (entry.sent, entry.since, entry.emission, entry.burst) = (true, now, emission, burst);
        emission
    }

    /// The socket took nothing of this entry's frame: it waits again.
    pub fn unsend(&mut self, place: usize) {
        let entry = &mut self.window[place];
        entry.sent = false;
        self.pace.take(entry.burst);
        self.ahead_bytes += entry.ahead_bytes();
        self.unsent += 1;
        self.sent_below = self.sent_below.min(place as u16);
    }

    /// Takes back the last deliveries of a window that ends: their frames may not have left. A message whose frame has
    /// left after all is delivered once more at most.
    pub fn undo_deliveries(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let mut sent: Vec<&mut Entry> = self.window.iter_mut().filter(|entry| entry.sent).collect();
        sent.sort_by_key(|entry| std::cmp::Reverse((entry.since, entry.emission.0)));
        for entry in sent.into_iter().take(count) {
            entry.sent = entry.retries > 0;
            entry.retries = entry.retries.saturating_sub(1);
        }
    }

    /// The next to be sent, when only storage has its body: the socket refused it after the body was forgotten.
    pub fn gap(&mut self) -> Option<&mut Entry> {
        let next = self.window.iter_mut().skip(usize::from(self.sent_below)).find(|entry| !entry.sent)?;
        next.body.is_none().then_some(next)
    }

    /// Gives a row that waits without a body its body. Returns the bytes that it takes; `None` for any other entry.
    pub fn fill(&mut self, stamp: Stamp, message: Arc<Message>) -> Option<u32> {
        let place = self.position(stamp)?;
        let entry = &mut self.window[place];
        if entry.sent || entry.body.is_some() {
            return None;
        }
        entry.body = Some(message);
        self.ahead_bytes += entry.ahead_bytes();
        self.row_bytes += entry.body_bytes();
        Some(entry.body_bytes())
    }

    /// Takes an entry out of the window, keeping its sums.
    pub fn remove(&mut self, stamp: Stamp) -> Option<Entry> {
        let place = self.position(stamp)?;
        let entry = self.window.remove(place)?;
        if entry.sent {
            self.pace.take(entry.burst);
        } else {
            self.unsent -= 1;
        }
        self.ahead_bytes -= entry.ahead_bytes();
        self.sent_below -= u16::from(place < usize::from(self.sent_below));
        match entry.source {
            Source::Direct(_) | Source::Spilling(_) => self.direct_bytes -= entry.body_bytes(),
            Source::Row => self.row_bytes -= entry.body_bytes(),
        }
        Some(entry)
    }

    pub fn position(&self, stamp: Stamp) -> Option<usize> {
        self.window.iter().position(|entry| entry.row.stamp == stamp)
    }

    /// A name for the next frame.
    pub fn emission(&mut self) -> EmissionId {
        self.next_emission = self.next_emission.wrapping_add(1);
        EmissionId(self.next_emission)
    }

    /// Nothing is under way any more. What a check has covered stays until the deadline: it rides with the next delete.
    pub fn idle(&self) -> bool {
        (self.armed.is_none() || self.drain.covered == Clock::default())
            && self.window.is_empty()
            && self.parked.is_empty()
            && self.drain.clear()
            && !self.drain.reading
            && !self.command_waits
    }
}
