//! Time in the window: directs that go to storage, and notifications that are sent again.

use crate::ids::{Chid, EmissionId, LedgerSlot, Stamp};
use crate::limits::RETRIES_MAX;
use crate::message::Urgency;
use crate::time::{Instant, Now, TimeSpan};

use super::Window;
use super::entry::{CopyLocation, Retry, Spill, WindowEntry};

impl Window {
    /// Takes the directs that are unacked for `wait`, and those that are held, to storage, except those of a channel
    /// that is being unregistered.
    pub fn spill(&mut self, now: Now, wait: TimeSpan, except: Option<Chid>) -> Spill {
        let mut spill = Spill::default();
        for entry in &mut self.entries {
            let (CopyLocation::Direct(slot), Some(body)) = (entry.source, &entry.body) else { continue };
            if except == Some(entry.row.chid) || (!entry.held && entry.accepted.after(wait) > now.mono) {
                continue;
            }
            if body.expired(now.unix()) {
                spill.expired.push(entry.row);
            } else {
                spill.messages.push(body.clone());
                entry.source = CopyLocation::Spilling(slot);
            }
        }
        spill
    }

    /// Storage has a direct that was spilled. Returns its ledger record and the bytes that are a row's from now on;
    /// `None` when it was acked meanwhile.
    pub fn spilled(&mut self, stamp: Stamp) -> Option<(LedgerSlot, u32)> {
        let place = self.position(stamp)?;
        let entry = &mut self.entries[place];
        let CopyLocation::Spilling(slot) = entry.source else { return None };
        let bytes = entry.body_bytes();
        entry.source = CopyLocation::Row;
        // The socket may still refuse what it was just handed: `forget_bodies` drops the body when it has not.
        self.ahead_bytes += entry.ahead_bytes();
        self.direct_bytes -= bytes;
        self.row_bytes += bytes;
        Some((slot, bytes))
    }

    /// Storage has not taken a direct that was spilled, or it has: it stays a direct.
    pub fn not_spilled(&mut self, stamp: Stamp, now: Instant) {
        let place = self.position(stamp);
        if let Some(entry) = place.map(|place| &mut self.entries[place])
            && let CopyLocation::Spilling(slot) = entry.source
        {
            entry.source = CopyLocation::Direct(slot);
            entry.maybe_row = true;
            entry.accepted = now;
        }
    }

    /// The row of this direct may be in storage, too. False when there is no such entry.
    pub fn may_have_row(&mut self, stamp: Stamp) -> bool {
        let place = self.position(stamp);
        place.map(|place| self.entries[place].maybe_row = true).is_some()
    }

    /// Drops the bodies of rows that the socket took this long ago. Returns their bytes.
    pub fn forget_bodies(&mut self, now: Instant, kept: TimeSpan) -> u32 {
        let mut bytes = 0;
        for entry in self.entries.iter_mut().filter(|entry| entry.source == CopyLocation::Row && entry.sent) {
            if entry.since.after(kept) <= now {
                bytes += entry.body_bytes();
                entry.body = None;
            }
        }
        self.row_bytes -= bytes;
        bytes
    }

    /// Names what was not acked in time, as far as the pace allows it to be sent again.
    pub fn unacked_for(&self, now: Instant, retry_after: TimeSpan) -> Vec<Stamp> {
        self.entries
            .iter()
            .filter(|entry| entry.sent && !entry.reading && entry.since.after(retry_after) <= now)
            .map(|entry| entry.row.stamp)
            .take(usize::from(self.pace.room_again(now)))
            .collect()
    }

    /// Decides on an entry that was not acked in time. `room`: storage may be asked for its body. Nothing below the
    /// minimum urgency is sent again on this session.
    pub fn retry(&mut self, stamp: Stamp, now: Instant, attempts_max: u8, room: bool, minimum: Urgency) -> Retry {
        let entry = self.entry(stamp);
        entry.since = now;
        if entry.tried().are_spent(attempts_max) {
            return Retry::Spent(entry.row);
        }
        if entry.retries < RETRIES_MAX && entry.urgency >= minimum {
            return match entry.body.clone() {
                Some(message) => Retry::Resend(message),
                None if room => {
                    entry.reading = true;
                    Retry::Read(entry.row)
                }
                None => Retry::Stays,
            };
        }
        // While storage has not taken it, it stays in the window and in the ledger.
        if entry.source == CopyLocation::Row { Retry::Defer } else { Retry::Stays }
    }

    /// Returns true if the pace allows one that is out to be sent again.
    pub fn may_resend(&self, now: Instant) -> bool {
        self.pace.room_again(now) > 0
    }

    /// An entry is sent again. Returns the name of its frame.
    pub fn resend(&mut self, stamp: Stamp, now: Instant) -> EmissionId {
        let emission = self.emission();
        // Invariant: the caller has the stamp from the window.
        let place = self.position(stamp).expect("an entry of the window has a place");
        let entry = &mut self.entries[place];
        entry.retries += 1;
        entry.burst = self.pace.send_again(now, entry.burst);
        entry.emission = emission;
        entry.since = now;
        emission
    }

    /// Takes back the last deliveries of a window that ends: their frames may not have left. A message whose frame has
    /// left after all is delivered once more at most.
    pub fn undo_deliveries(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        let mut sent: Vec<&mut WindowEntry> = self.entries.iter_mut().filter(|entry| entry.sent).collect();
        sent.sort_by_key(|entry| std::cmp::Reverse((entry.since, entry.emission.0)));
        for entry in sent.into_iter().take(count) {
            entry.sent = entry.retries > 0;
            entry.retries = entry.retries.saturating_sub(1);
        }
    }
}
