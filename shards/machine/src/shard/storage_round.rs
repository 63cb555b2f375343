//! Sessions read storage one after the other, because notifications of another node were lost
//! (`components::storage_round`; decision 0037).

use super::composer::{ShardMachine, StepContext};
use super::slab::SlabKey;
use crate::limits;

impl ShardMachine {
    /// Begins a round.
    pub(super) fn begin_storage_round(&mut self, cx: &StepContext<'_>) {
        self.stats.storage_rounds += 1;
        self.storage_round.begin(cx.now.mono, self.sessions.end());
    }

    /// Runs one turn of the round.
    pub(super) fn storage_round_turn(&mut self, cx: &mut StepContext<'_>) {
        if self.storage_round.due().is_none_or(|due| due > cx.now.mono) {
            return;
        }
        let (mut reads, mut visits) = (0, 0);
        while reads < limits::STORAGE_READS_PER_TURN
            && visits < limits::SWEEP_SESSIONS_PER_TURN
            && cx.has_room()
            && self.tickets.room()
            && let Some(index) = self.storage_round.next()
        {
            visits += 1;
            if let Some((at, session)) = self.sessions.at(index)
                && session.stored.has_user()
            {
                reads += 1;
                self.check_storage(cx, at);
            }
        }
        self.stats.storage_round_reads += reads;
        self.storage_round.end_turn(cx.now.mono);
    }

    /// Makes a session whose turn has not come read storage now: no direct overtakes what it may find.
    pub(super) fn read_before_directs(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        if self.storage_round.take(at.index) && self.sessions.live(at).stored.has_user() {
            self.stats.storage_round_reads += 1;
            self.check_storage(cx, at);
        }
    }
}
