//! State of a session while something is under way: its window of unacked notifications, its drain of stored
//! ones, its command that waits for storage. An idle session has no entry.

use crate::ids::{Chid, Clock};
use crate::time::Instant;

use super::backlog_state::BacklogState;
use super::window::Window;

/// The side table entry. Owner shard only. Each part keeps its own fields.
#[derive(Default)]
pub(in crate::shard) struct ActiveSession {
    pub window: Window,
    pub drain: BacklogState,
    pub command: StoredCommand,
    pub kept_minimum: KeptMinimum,
    /// The user agent was heard a moment ago: until then nothing is held (`delivery.release_on_activity`).
    pub awake: Option<Instant>,
    /// The deadline that stands for this entry; earlier and later ones of the session do not.
    armed: Option<Instant>,
}

/// The write of the minimum urgency back into the record, after a write that failed.
#[derive(Default)]
pub(in crate::shard) struct KeptMinimum {
    under_way: bool,
    again: bool,
}

impl KeptMinimum {
    /// Notes a write that failed. Returns true if the write-back begins: a session has one at a time.
    pub fn begin(&mut self) -> bool {
        self.again = self.under_way;
        !std::mem::replace(&mut self.under_way, true)
    }

    /// Storage has answered a write-back. Returns true if that was the last one.
    pub fn end(&mut self, written: bool) -> bool {
        self.under_way = !written || std::mem::take(&mut self.again);
        !self.under_way
    }
}

/// A register or unregister that is at storage.
#[derive(Default)]
pub(in crate::shard) struct StoredCommand {
    waits: bool,
    /// The channel whose unregister is at storage: no save may come behind it and bring its rows back.
    unregistering: Option<Chid>,
}

impl StoredCommand {
    /// Returns true if one is at storage.
    pub fn waits(&self) -> bool {
        self.waits
    }

    pub fn unregistering(&self) -> Option<Chid> {
        self.unregistering
    }

    /// A command goes to storage; `unregistering` names the channel of an unregister.
    pub fn begin(&mut self, unregistering: Option<Chid>) {
        (self.waits, self.unregistering) = (true, unregistering);
    }

    /// Storage has answered it.
    pub fn end(&mut self) {
        (self.waits, self.unregistering) = (false, None);
    }
}

impl ActiveSession {
    /// An entry with nothing in it but this window.
    pub fn new(window: Window) -> ActiveSession {
        ActiveSession { window, ..ActiveSession::default() }
    }

    /// Arms a deadline, unless an earlier one is armed. True if it did.
    pub fn arm(&mut self, due: Instant) -> bool {
        let earlier = self.armed.is_none_or(|armed| due < armed);
        if earlier {
            self.armed = Some(due);
        }
        earlier
    }

    /// Returns true if a deadline stands for this entry.
    pub fn is_armed_at(&self, due: Instant) -> bool {
        self.armed == Some(due)
    }

    /// Disarms a deadline that has come. False when it does not stand for this entry.
    pub fn disarm(&mut self, due: Instant) -> bool {
        let stands = self.is_armed_at(due);
        if stands {
            self.armed = None;
        }
        stands
    }

    /// Clock up to which every message row is settled, if storage has not been told so yet.
    pub fn raise_low_water(&mut self) -> Option<Clock> {
        self.drain.raise_low_water(self.window.settled_below())
    }

    /// Nothing is left to deliver, and no command waits.
    pub fn is_delivered(&self) -> bool {
        self.window.is_settled() && self.drain.clear() && !self.command.waits
    }

    /// Nothing is under way any more. The clock that a check has covered stays until the deadline: it rides with the
    /// next delete.
    pub fn idle(&self) -> bool {
        (self.armed.is_none() || self.drain.has_covered_nothing())
            && self.awake.is_none()
            && self.is_delivered()
            && !self.kept_minimum.under_way
            && !self.drain.is_reading()
    }
}
