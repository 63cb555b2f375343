//! Work at storage: every operation carries a ticket that finds the state of its submitter, if it still exists
//! (`components::tickets`).

use crate::ids::StoreTicket;

use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::store::{StoreError, StoreOp, StoreReply};
use super::work::{Waiting, Work};

impl ShardMachine {
    /// Submits an operation. The caller has checked for room, unless the operation must happen.
    pub(super) fn submit(&mut self, turn: &mut Turn<'_>, work: Work, op: StoreOp) {
        let submitted = self.tickets.submit(turn.now.mono, Waiting::Store(work), op);
        self.send_to_storage(turn, submitted);
    }

    /// Sends an operation to storage, unless it waits in the backlog.
    fn send_to_storage(&mut self, turn: &mut Turn<'_>, submitted: Option<(StoreTicket, StoreOp)>) {
        if let Some((ticket, op)) = submitted {
            self.stats.store_operations += 1;
            turn.effects.push_back(Effect::Store(ticket, op));
        }
    }

    /// Submits a must-do operation again after a pause.
    pub(super) fn submit_later(&mut self, turn: &Turn<'_>, work: Work, op: StoreOp) {
        self.stats.store_retries += 1;
        self.tickets.submit_later(turn.now.mono, Waiting::Store(work), op);
    }

    /// Submits operations of the backlog that are due.
    pub(super) fn submit_backlog(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some(submitted) = self.tickets.next_due(turn.now.mono)
        {
            self.send_to_storage(turn, Some(submitted));
        }
    }

    /// Handles a reply of storage: finds the state that waits for it.
    pub(super) fn stored(&mut self, turn: &mut Turn<'_>, ticket: StoreTicket, result: Result<StoreReply, StoreError>) {
        let Some(Waiting::Store(work)) = self.tickets.close(ticket) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        if result.is_err() {
            self.stats.store_errors += 1;
        }
        self.note_room(&work, &result);
        match work {
            Work::LoadUser { greeting } => self.user_loaded(turn, greeting, result.map(StoreReply::user)),
            Work::Register { session, uaid, chid, key } => {
                self.registered(turn, (session, uaid), chid, key, result.is_ok());
            }
            Work::Unregister { session, uaid, chid } => self.unregistered(turn, session, uaid, chid, result.is_ok()),
            Work::Publish(work) => self.publish_stored(turn, work, result.map(StoreReply::written)),
            Work::Page { session } => {
                self.row_memory.end_page();
                self.page_loaded(turn, session, result.map(StoreReply::page));
            }
            Work::Retry { session, stamp } => self.retry_loaded(turn, session, stamp, result.map(StoreReply::page)),
            Work::Spill { session, stamps } => self.spilled(turn, session, &stamps, result.is_ok()),
            Work::Depart { uaid } => self.departed(turn, uaid, result.map(drop)),
            Work::Settle { uaid, count } => self.settled(turn, uaid, count, result.is_ok()),
            Work::Cancel { asker, row } => self.cancelled(turn, asker, row, result.is_ok()),
            Work::Contact { session } => self.contact_set(turn, session, result.is_ok()),
            Work::Minimum { session, minimum } => self.minimum_set(turn, session, minimum, result.is_ok()),
            Work::Wake { uaid } => self.wake_loaded(turn, uaid, result.map(StoreReply::user)),
            Work::Receipt { asker, query } => self.receipt_read(turn, asker, &query, result.map(StoreReply::page)),
            Work::StartOver { greeting, uaid } => self.started_over(turn, greeting, uaid, result.is_ok()),
            Work::Reset { uaid } if result.is_ok() => self.end_receipts_of_user(uaid),
            Work::Forget { session, uaid, chid, asked } => {
                self.forgotten(turn, (session, uaid), (chid, asked), result.is_ok());
            }
            Work::Enter { session } => self.entered(turn, session, result.is_ok()),
            Work::RenewPresence { session } => self.presence_renewed(turn, session, result.is_ok()),
            Work::Doubt { session } => self.doubt_settled(turn, session, result.map(StoreReply::user)),
            Work::Look(lookup) => self.looked(turn, *lookup, result.map(StoreReply::user)),
            Work::LookAgain(tale) => self.looked_again(turn, tale, result.map(StoreReply::user)),
            Work::SaveAgain(tale) => self.saved_again(turn, tale, result.is_ok()),
            Work::Refresh { session, look } => self.refreshed(turn, session, look, result.is_ok()),
            Work::Touch | Work::Reset { .. } => {}
        }
        self.submit_backlog(turn);
    }
}

impl ShardMachine {
    /// Learns from the answer to a save if storage has room for accepted messages: a message goes to the ledger only
    /// while storage would take it from there.
    fn note_room(&mut self, work: &Work, result: &Result<StoreReply, StoreError>) {
        if matches!(work, Work::Depart { .. } | Work::Spill { .. }) {
            let refused = self.storage_room.saved(matches!(result, Err(StoreError::Full)));
            self.stats.saves_refused += u64::from(refused);
        } else if matches!((work, result), (Work::Publish(publish), Ok(StoreReply::Done)) if !publish.check_only) {
            // Any other answer proves nothing: no row was written.
            self.storage_room.written();
        }
    }
}
