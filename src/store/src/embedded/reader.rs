//! Threads that read: they answer reads and hand on the operations that stand behind them.
//!
//! Lives on: its own thread; `Options::readers` of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crossbeam::channel::{Receiver, Sender};
use machine::{StoreError, StoreOp};

use super::Gates;
use super::database::Database;
use super::group::Upkeep;
use super::port::{CommitterMail, Job, ReaderMail};
use super::query;
use super::stats::Tally;

/// Runs until a stop mail comes or every sender is gone.
pub(super) fn run(db: &Database, inbox: &Receiver<ReaderMail>, committer: &Sender<CommitterMail>, gates: &Arc<Gates>) {
    while let Ok(ReaderMail::Job(job)) = inbox.recv() {
        if job.route.to_committer {
            gates.queued.fetch_add(1, Ordering::Relaxed);
            if let Err(returned) = committer.send(CommitterMail::Job(job))
                && let CommitterMail::Job(job) = returned.0
            {
                refuse(job, gates);
            }
            continue;
        }
        match query::answer(db, &job.op) {
            Ok(found) => {
                Tally::add(&gates.tally.reads);
                job.outbox.push(job.ticket, job.route, Ok(found.reply));
                job.outbox.wake();
                if found.nothing_marked && found.expired.is_empty() {
                    gates.tell(committer, Upkeep::ClearMark(job.route.uaid));
                }
                if !found.expired.is_empty() {
                    gates.tell(committer, expired(&job.op, found.expired));
                }
            }
            Err(error) => {
                gates.tally.read_failed(&error);
                refuse(job, gates);
            }
        }
    }
}

fn refuse(job: Job, gates: &Gates) {
    Tally::add(&gates.tally.transient);
    job.outbox.push(job.ticket, job.route, Err(StoreError::Transient));
    job.outbox.wake();
}

fn expired(op: &StoreOp, keys: Vec<fjall::Slice>) -> Upkeep {
    match op {
        StoreOp::Topics { now, .. } => Upkeep::TopicRows(keys, *now),
        _ => Upkeep::MessageRows(keys),
    }
}
