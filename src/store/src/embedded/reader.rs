//! Threads that read: they answer reads and hand on the operations that stand behind them.
//!
//! Lives on: its own thread; `Options::readers` of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::channel::{Receiver, Sender};
use machine::{StoreError, StoreOp};

use super::database::Database;
use super::group::cleanup::CleanupOp;
use super::mail::{CommitterMail, ReaderMail, SubmittedOp};
use super::query;
use super::stats::Tally;
use super::store_status::StoreStatus;

/// Runs until a stop mail comes or every sender is gone.
pub(super) fn run(
    db: &Database,
    inbox: &Receiver<ReaderMail>,
    committer: &Sender<CommitterMail>,
    store_status: &Arc<StoreStatus>,
) {
    while let Ok(ReaderMail::Op(submitted)) = inbox.recv() {
        if submitted.route.to_committer {
            store_status.queued.fetch_add(1, Ordering::Relaxed);
            if let Err(returned) = committer.send(CommitterMail::Op(submitted))
                && let CommitterMail::Op(submitted) = returned.0
            {
                refuse(submitted, store_status);
            }
            continue;
        }
        match query::answer(db, &submitted.op) {
            Ok(found) => {
                Tally::add(&store_status.tally.reads);
                submitted.reply_queue.push(submitted.ticket, submitted.route, Ok(found.reply));
                submitted.reply_queue.wake();
                if found.nothing_marked && found.expired.is_empty() {
                    store_status.tell(committer, CleanupOp::ClearMark(submitted.route.uaid));
                }
                if !found.expired.is_empty() {
                    store_status.tell(committer, expired(&submitted.op, found.expired));
                }
            }
            Err(error) => {
                store_status.tally.read_failed(&error);
                refuse(submitted, store_status);
            }
        }
    }
}

fn refuse(submitted: SubmittedOp, store_status: &StoreStatus) {
    Tally::add(&store_status.tally.transient);
    submitted.reply_queue.push(submitted.ticket, submitted.route, Err(StoreError::Transient));
    submitted.reply_queue.wake();
}

fn expired(op: &StoreOp, keys: Vec<fjall::Slice>) -> CleanupOp {
    match op {
        StoreOp::Topics { now, .. } => CleanupOp::TopicRows(keys, *now),
        _ => CleanupOp::MessageRows(keys),
    }
}
