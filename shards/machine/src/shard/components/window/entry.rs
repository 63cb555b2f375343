//! One entry of a window, which only the window changes, and what becomes of it when it is not acked.

use std::sync::Arc;

use crate::ids::{EmissionId, LedgerSlot};
use crate::message::{Message, Rank, Tries, Urgency};
use crate::time::{Instant, TimeSpan};

use super::super::super::row::RowKey;
use super::super::ledger_room::ledger_bytes;

/// One unacked notification.
pub(in crate::shard) struct WindowEntry {
    pub(super) row: RowKey,
    /// Of a version update; 0 for a notification.
    pub(super) version: u64,
    /// Kept while a copy may still be needed from memory: directs until they are stored, unsent rows. A row that the
    /// socket refuses later than that waits without one, and what is behind it waits too.
    pub(super) body: Option<Arc<Message>>,
    pub(super) source: CopyLocation,
    /// Time at which it came into the window, or its last save failed: it spills from here.
    pub(super) accepted: Instant,
    /// Time at which it was last sent: it is sent again from here.
    pub(super) since: Instant,
    pub(super) emission: EmissionId,
    pub(super) sent: bool,
    pub(super) urgency: Urgency,
    /// It is below the minimum urgency of the user agent and not sent: it waits for nothing here, and leaves the window
    /// when storage has it.
    pub(super) held: bool,
    pub(super) retries: u8,
    /// A read of its body for a retry is at storage.
    pub(super) reading: bool,
    /// Burst of [`Pace`] in which it was last sent.
    pub(super) burst: u16,
    /// In sessions before this one.
    pub(super) tries: Tries,
    /// A save of this direct failed and may have taken effect all the same: its ack deletes the row too.
    pub(super) maybe_row: bool,
}

/// Remains of a notification that left the window unacked.
#[derive(Clone, Copy)]
pub(super) struct DeferredId {
    pub(super) row: RowKey,
    pub(super) version: u64,
    /// This session included.
    pub(super) tries: Tries,
}

/// Location of the durable copy of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum CopyLocation {
    /// In the ledger log only.
    Direct(LedgerSlot),
    /// In the ledger log, and on its way to storage.
    Spilling(LedgerSlot),
    /// In storage.
    Row,
}

/// Directs that go to storage, and those that have expired.
#[derive(Default)]
pub(in crate::shard) struct Spill {
    pub messages: Vec<Arc<Message>>,
    pub expired: Vec<RowKey>,
}

/// Next act on an entry that was not acked in time.
pub(in crate::shard) enum Retry {
    /// It was delivered as often as it may be.
    Spent(RowKey),
    /// This is sent again.
    Resend(Arc<Message>),
    /// Its body is read first.
    Read(RowKey),
    /// It has had its retries and leaves the window for [`Window::defer`].
    Defer,
    /// It stays as it is: storage has no ticket, or has not taken it yet.
    Stays,
}

impl WindowEntry {
    /// A notification as it comes into the window: it waits to be sent.
    pub fn new(message: Arc<Message>, source: CopyLocation, now: Instant) -> WindowEntry {
        WindowEntry {
            row: RowKey::of(&message),
            version: message.simple_version().unwrap_or(0),
            tries: message.tries,
            urgency: message.urgency,
            held: false,
            // A row's body only until the socket surely took it (`Window::forget_bodies`).
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

    pub fn row(&self) -> RowKey {
        self.row
    }

    /// Returns true if a ledger has it.
    pub fn is_direct(&self) -> bool {
        self.source != CopyLocation::Row
    }

    /// Returns true if storage has it, or may have it.
    pub fn may_be_stored(&self) -> bool {
        match self.source {
            CopyLocation::Direct(_) => self.maybe_row,
            CopyLocation::Spilling(_) | CopyLocation::Row => true,
        }
    }

    /// The ledger record of a direct, and its message.
    pub fn record(&self) -> Option<(LedgerSlot, &Arc<Message>)> {
        match (self.source, &self.body) {
            (CopyLocation::Direct(slot) | CopyLocation::Spilling(slot), Some(body)) => Some((slot, body)),
            _ => None,
        }
    }

    /// Bytes that its body takes, 0 without one: of the ledger's room while the log has the message, else of what rows
    /// may keep in memory.
    pub fn body_bytes(&self) -> u32 {
        self.body.as_ref().map_or(0, |body| ledger_bytes(body))
    }

    /// Returns true if it is sent when its turn comes.
    pub(super) fn waits(&self) -> bool {
        !self.sent && !self.held
    }

    /// Number of deliveries without an ack, if this session ended now.
    pub fn tried(&self) -> Tries {
        self.tries.and(if self.sent { 1 + self.retries } else { 0 })
    }

    /// Returns when something must be done about it: an entry that waits to be sent is due with its session's pace.
    pub fn due(&self, spill_after: TimeSpan, retry_after: TimeSpan) -> Option<Instant> {
        let spill = self.accepted.after(spill_after);
        let retry = self.since.after(retry_after);
        match self.source {
            CopyLocation::Direct(_) => Some(if self.sent { spill.min(retry) } else { spill }),
            CopyLocation::Row if self.sent && self.body.is_some() => Some(self.since.after(BODY_KEPT).min(retry)),
            CopyLocation::Spilling(_) | CopyLocation::Row => self.sent.then_some(retry),
        }
    }

    /// Its place among those that want its topic slot.
    pub(super) fn rank(&self) -> Rank {
        Rank::new(self.version, self.row.stamp)
    }

    /// Its share of [`Window::ahead_bytes`].
    pub(super) fn ahead_bytes(&self) -> u32 {
        if self.waits() && self.source == CopyLocation::Row { self.body_bytes() } else { 0 }
    }
}

impl DeferredId {
    /// As [`WindowEntry::rank`].
    pub(super) fn rank(&self) -> Rank {
        Rank::new(self.version, self.row.stamp)
    }
}

/// Time for which the body of a sent row stays: longer than the loop needs to say `Blocked`.
pub(in crate::shard) const BODY_KEPT: TimeSpan = TimeSpan::from_secs(1);
