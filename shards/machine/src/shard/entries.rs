//! The end of one notification of a window: its ledger record, its row, and the sums of its window.
//!
//! A direct ends when its ledger record is marked dead. A row ends when exactly that version is deleted (`settles`).

use crate::ids::Stamp;

use super::components::ledger_room::ledger_bytes;
use super::components::window::WindowEntry;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::row::RowKey;
use super::slab::SlabKey;

impl ShardMachine {
    /// Ends one notification that is in the window: removes it from the ledger and from storage.
    pub(super) fn take_entry(&mut self, cx: &mut StepContext<'_>, at: SlabKey, stamp: Stamp) {
        let index = self.sessions.live(at).active;
        let entry = self.take_out(index, stamp);
        self.end_entry(cx, entry);
    }

    /// Removes an entry that is in the window.
    pub(super) fn take_out(&mut self, index: u32, stamp: Stamp) -> WindowEntry {
        // Invariant: the caller has the stamp from the window.
        self.remove_entry(index, stamp).expect("an entry of the window is taken once")
    }

    /// Removes an entry from the window if it is there, and keeps the window's sums.
    pub(super) fn remove_entry(&mut self, index: u32, stamp: Stamp) -> Option<WindowEntry> {
        let entry = self.active_of_mut(index)?.window.remove(stamp)?;
        if !entry.is_direct() {
            self.row_memory.remove(entry.body_bytes());
        }
        Some(entry)
    }

    /// Settles the remains of an entry that left the window.
    pub(super) fn end_entry(&mut self, cx: &mut StepContext<'_>, entry: WindowEntry) {
        let row = entry.row();
        self.forget_record(cx, &entry);
        if entry.may_be_stored() {
            self.settle(row);
        }
        if row.stamp.origin != self.config.origin {
            self.settling.remember(cx.now.mono, row.uaid, row.stamp);
        }
    }

    /// Marks the ledger record of a direct dead.
    pub(super) fn forget_record(&mut self, cx: &mut StepContext<'_>, entry: &WindowEntry) {
        if let Some((slot, body)) = entry.record() {
            self.ledger_room.give_back(slot, ledger_bytes(body));
            cx.effects.push_back(Effect::LedgerDead(slot));
        }
    }

    /// Queues the deletion of a row; the end of this step submits it with the others of this user.
    pub(super) fn settle(&mut self, row: RowKey) {
        self.stats.settles_shed += u64::from(!self.settling.add(row));
    }
}
