//! Work at storage: every operation carries a ticket that finds the state of its submitter, if it still exists
//! (`components::tickets`).

use crate::ids::StoreTicket;

use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::pending_op::{PendingOp, Waiting};
use super::store::{StoreError, StoreOp, StoreReply};

impl ShardMachine {
    /// Submits an operation. The caller has checked for room, unless the operation must happen.
    pub(super) fn submit(&mut self, cx: &mut StepContext<'_>, work: PendingOp, op: StoreOp) {
        let submitted = self.tickets.submit(cx.now.mono, Waiting::Store(work), op);
        self.send_to_storage(cx, submitted);
    }

    /// Sends an operation to storage, unless it waits in the backlog.
    fn send_to_storage(&mut self, cx: &mut StepContext<'_>, submitted: Option<(StoreTicket, StoreOp)>) {
        if let Some((ticket, op)) = submitted {
            self.stats.store_operations += 1;
            cx.effects.push_back(Effect::Store(ticket, op));
        }
    }

    /// Submits a must-do operation again after a pause.
    pub(super) fn submit_later(&mut self, cx: &StepContext<'_>, work: PendingOp, op: StoreOp) {
        self.stats.store_retries += 1;
        self.tickets.submit_later(cx.now.mono, Waiting::Store(work), op);
    }

    /// Submits operations of the backlog that are due.
    pub(super) fn submit_deferred(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some((work, op)) = self.tickets.next_due(cx.now.mono)
        {
            let stands = match work {
                Waiting::Store(work) => self.minimum_due(cx, work, op).map(|(work, op)| (Waiting::Store(work), op)),
                Waiting::Peer(_) => Some((work, op)),
            };
            if let Some((work, op)) = stands {
                let ticket = self.tickets.call(work);
                self.send_to_storage(cx, Some((ticket, op)));
            }
        }
    }

    /// Handles a reply of storage: finds the state that waits for it.
    pub(super) fn stored(
        &mut self,
        cx: &mut StepContext<'_>,
        ticket: StoreTicket,
        result: Result<StoreReply, StoreError>,
    ) {
        let Some(Waiting::Store(work)) = self.tickets.close(ticket) else {
            self.stats.store_replies_stale += 1;
            return;
        };
        if result.is_err() {
            self.stats.store_errors += 1;
        }
        self.note_room(&work, &result);
        match work {
            PendingOp::LoadUser { pending_hello } => self.user_loaded(cx, pending_hello, result.map(StoreReply::user)),
            PendingOp::Register { session, uaid, chid, key } => {
                self.registered(cx, (session, uaid), chid, key, result.is_ok());
            }
            PendingOp::Unregister { session, uaid, chid } => self.unregistered(cx, session, uaid, chid, result.is_ok()),
            PendingOp::ListChannels(work) => self.channels_listed(cx, work, result.map(StoreReply::user)),
            PendingOp::Publish(work) => match result {
                Ok(StoreReply::Bridged(to)) => self.publish_bridged(cx, work, to),
                result => self.publish_stored(cx, work, result.map(StoreReply::written)),
            },
            PendingOp::Page { session } => {
                self.row_memory.end_page();
                self.page_loaded(cx, session, result.map(StoreReply::page));
            }
            PendingOp::Retry { session, stamp } => self.retry_loaded(cx, session, stamp, result.map(StoreReply::page)),
            PendingOp::Spill { session, stamps } => self.spilled(cx, session, &stamps, result.is_ok()),
            PendingOp::SaveUnacked { uaid } => self.unacked_saved(cx, uaid, result.map(drop)),
            PendingOp::Settle { uaid, count } => self.settled(cx, uaid, count, result.is_ok()),
            PendingOp::Cancel { reply_to, row } => self.cancelled(cx, reply_to, row, result.is_ok()),
            PendingOp::Contact { session } => self.contact_set(cx, session, result.is_ok()),
            PendingOp::Minimum { session, minimum } => self.minimum_set(cx, session, minimum, result.is_ok()),
            PendingOp::KeepMinimum { session, minimum } => self.minimum_kept(cx, session, minimum, result.is_ok()),
            PendingOp::Wake { uaid } => self.wake_loaded(cx, uaid, result.map(StoreReply::user)),
            PendingOp::Receipt { reply_to, query } => {
                self.receipt_read(cx, reply_to, &query, result.map(StoreReply::page))
            }
            PendingOp::StartOver { pending_hello, uaid } => self.started_over(cx, pending_hello, uaid, result.is_ok()),
            PendingOp::DropIdle { uaid } => self.idle_user_dropped(uaid, result),
            PendingOp::Reset { uaid } if result.is_ok() => self.end_receipts_of_user(uaid),
            PendingOp::UnregisterReconciled { session, uaid, chid, asked } => {
                self.unregister_reconciled(cx, (session, uaid), (chid, asked), result.is_ok());
            }
            PendingOp::WritePresence { session } => self.presence_written(cx, session, result.is_ok()),
            PendingOp::RenewPresence { session } => self.presence_renewed(cx, session, result.is_ok()),
            PendingOp::CheckPresence { session } => self.presence_checked(cx, session, result.map(StoreReply::user)),
            PendingOp::LoadForPublish(lookup) => {
                self.user_loaded_for_publish(cx, *lookup, result.map(StoreReply::user))
            }
            PendingOp::LoadForNotify(notify) => self.user_loaded_for_notify(cx, notify, result.map(StoreReply::user)),
            PendingOp::SaveAgain(notify) => self.saved_again(cx, notify, result.is_ok()),
            PendingOp::Refresh { session, look } => self.refreshed(cx, session, look, result.is_ok()),
            PendingOp::Registration(work) => self.registration_stored(cx, *work, result),
            PendingOp::DeviceRefused(work) => self.refusal_stored(cx, *work, result),
            PendingOp::Touch | PendingOp::Reset { .. } => {}
        }
        self.submit_deferred(cx);
    }
}

impl ShardMachine {
    /// Learns from the answer to a save if storage has room for accepted messages: a message goes to the ledger only
    /// while storage would take it from there.
    fn note_room(&mut self, work: &PendingOp, result: &Result<StoreReply, StoreError>) {
        let saves = matches!(work, PendingOp::SaveUnacked { .. } | PendingOp::Spill { .. });
        // Any other answer proves nothing: no row was written.
        if !saves && !matches!(work, PendingOp::Publish(publish) if !publish.check_only) {
            return;
        }
        match result {
            Ok(StoreReply::Done) => self.storage_room.answered(false),
            Ok(StoreReply::Scarce) | Err(StoreError::Full) => self.storage_room.answered(true),
            Ok(_) | Err(StoreError::Transient) => {}
        }
        if saves {
            let refused = self.storage_room.saved(matches!(result, Err(StoreError::Full)));
            self.stats.saves_refused += u64::from(refused);
        } else if matches!(result, Ok(StoreReply::Done | StoreReply::Scarce)) {
            self.storage_room.written();
        }
    }
}
