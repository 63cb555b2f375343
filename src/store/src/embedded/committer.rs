//! The one thread that writes: takes the operations that wait, applies them as one group, syncs once, then answers.
//!
//! Lives on: its own thread, one per database.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender};
use fjall::PersistMode;
use machine::ids::StoreTicket;
use machine::message::Message;
use machine::stats::Counters;
use machine::{StoreError, StoreReply};

use super::database::Database;
use super::error::Unsaved;
use super::group::{Group, Numbers, Rooms, WriteError};
use super::mail::{Answer, CommitterMail, OpRoute, ReplyQueue};
use super::operation::is_durable;
use super::options::Fatal;
use super::room::Room;
use super::shares::Shares;
use super::stats::{StoreStats, Tally};
use super::store_status::StoreStatus;

/// Operations of one group. More wait for the next, so that no reply waits for a very large batch.
const GROUP_OPERATIONS_MAX: usize = 1_024;
/// Longest time that a relaxed write stays unsynced.
const RELAXED_MAX: Duration = Duration::from_secs(1);
/// Time between two copies of the counters to the board.
const BOARD_EVERY: Duration = Duration::from_secs(1);

/// The committer's own state.
pub(super) struct Committer {
    pub(super) db: Database,
    pub(super) inbox: Receiver<CommitterMail>,
    pub(super) store_status: Arc<StoreStatus>,
    pub(super) fatal: Fatal,
    pub(super) numbers: Numbers,
    pub(super) stats: StoreStats,
    pub(super) shares: Shares,
    /// Time of the oldest write that no sync covered.
    pub(super) unsynced: Option<Instant>,
    pub(super) boarded: Instant,
    /// A write or a sync failed: nothing is promised any more.
    pub(super) failed: bool,
    /// Called before each commit; a test lets it wait or fail.
    #[cfg(test)]
    pub(super) before_commit: Option<super::options::CommitProbe>,
}

/// Answers that a group owes, once it is written.
#[derive(Default)]
struct PendingReplies {
    replies: Replies,
    waiting: Vec<Waiting>,
    /// Some of its replies need the group on the disk.
    durable: bool,
}

/// Replies that wait for the sync of their group.
type Replies = Vec<(Arc<ReplyQueue>, StoreTicket, OpRoute, Answer)>;

impl Committer {
    /// Runs until a stop mail comes or every sender is gone.
    pub(super) fn run(mut self) {
        let mut mails = Vec::with_capacity(GROUP_OPERATIONS_MAX);
        let mut open = true;
        while open {
            open = self.gather(&mut mails);
            if !mails.is_empty() {
                self.commit_group(&mut mails);
            }
            self.sync_relaxed();
            self.count_shares();
            self.show();
        }
        if self.unsynced.is_some() {
            self.sync(PersistMode::SyncAll);
        }
        self.show();
    }

    /// Waits for work and takes the mails that are there; false at the end.
    fn gather(&mut self, mails: &mut Vec<CommitterMail>) -> bool {
        let mut next = match self.inbox.recv_timeout(self.patience()) {
            Ok(mail) => Some(mail),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        };
        while let Some(mail) = next {
            if matches!(mail, CommitterMail::Stop) {
                return false;
            }
            mails.push(mail);
            next = if mails.len() < GROUP_OPERATIONS_MAX { self.inbox.try_recv().ok() } else { None };
        }
        true
    }

    /// Reads some of the records that shares need, after a start.
    fn count_shares(&mut self) {
        if let Err(error) = self.shares.catch_up(&self.db) {
            self.store_status.tally.read_failed(&error);
        }
    }

    fn patience(&self) -> Duration {
        if self.shares.is_behind() {
            return Duration::ZERO;
        }
        let board = BOARD_EVERY.saturating_sub(self.boarded.elapsed());
        let relaxed = self.unsynced.map_or(RELAXED_MAX, |since| RELAXED_MAX.saturating_sub(since.elapsed()));
        board.min(relaxed).max(Duration::from_millis(1))
    }

    fn commit_group(&mut self, mails: &mut Vec<CommitterMail>) {
        let began = Instant::now();
        self.store_status.commit_began();
        let (written_before, deleted_before) = (self.stats.store_bytes_written, self.stats.store_rows_deleted);
        let mut owed = PendingReplies { replies: Replies::with_capacity(mails.len()), ..PendingReplies::default() };
        let operations = mails.len() as u64;
        let applied = self.apply(mails, &mut owed);
        // A group that wrote nothing needs no sync when everything before it is on the disk.
        let done = applied.and_then(|wrote| match owed.durable && !wrote && self.unsynced.is_none() {
            true => Ok(()),
            false => self.finish_group(owed.durable),
        });
        if let Err(trouble) = done {
            self.fail(&trouble);
            for (_, _, _, answer) in &mut owed.replies {
                *answer = Err(StoreError::Transient);
            }
        }
        let (bytes, deletes) =
            (self.stats.store_bytes_written - written_before, self.stats.store_rows_deleted - deleted_before);
        self.store_status.space.wrote(bytes, deletes);
        self.stats.store_groups += 1;
        self.stats.store_group_operations += operations;
        self.stats.store_sync_microseconds += began.elapsed().as_micros() as u64;
        self.store_status.commit_ended();
        for waiting in owed.waiting {
            waiting.tell(self.failed);
        }
        self.deliver(owed.replies);
    }

    /// Applies every mail in order and writes the batch out, unsynced; returns true if anything was written.
    fn apply(&mut self, mails: &mut Vec<CommitterMail>, owed: &mut PendingReplies) -> Result<bool, fjall::Error> {
        self.store_status.space.look_again(&self.db);
        let room = self.store_status.space.room();
        let mut failure = if self.failed { Some(fjall::Error::Poisoned) } else { None };
        let rooms =
            Rooms { room, left: self.store_status.space.left(), user_rows_max: self.store_status.user_rows_max };
        let mut group = Group::new(&self.db, &mut self.stats, &mut self.numbers, &mut self.shares, rooms);
        for mail in mails.drain(..) {
            let done = match mail {
                CommitterMail::Op(submitted) => {
                    self.store_status.queued.fetch_sub(1, Ordering::Relaxed);
                    owed.durable |= is_durable(&submitted.op);
                    let (answer, done) = match failure {
                        Some(_) => (Err(StoreError::Transient), Ok(())),
                        None => settle_answer(group.apply(submitted.op)),
                    };
                    owed.replies.push((submitted.reply_queue, submitted.ticket, submitted.route, answer));
                    done
                }
                CommitterMail::Upkeep(upkeep) => {
                    self.store_status.upkeep_taken();
                    if failure.is_some() || room == Room::Nothing { Ok(()) } else { group.upkeep(upkeep) }
                }
                CommitterMail::Replay(messages, done) => {
                    owed.durable = true;
                    let (unsaved, outcome) = save_replayed(&mut group, messages, &self.store_status.tally);
                    owed.waiting.push(Waiting::Replay(done, unsaved));
                    outcome
                }
                CommitterMail::Load(load, done) => {
                    self.store_status.queued.fetch_sub(1, Ordering::Relaxed);
                    owed.durable = true;
                    let (answer, outcome) = settle_answer(group.load(&load));
                    owed.waiting.push(Waiting::Load(done, answer.map(drop)));
                    outcome
                }
                CommitterMail::Stop => Ok(()),
            };
            match done {
                Ok(()) | Err(WriteError::Refused(_)) => {}
                Err(WriteError::Read(error)) => self.store_status.tally.read_failed(&error),
                Err(WriteError::Write(error)) => failure = Some(error),
            }
        }
        let written = match group.write_out() {
            Err(WriteError::Write(error)) => Err(error),
            Ok(()) | Err(WriteError::Refused(_) | WriteError::Read(_)) => Ok(group.wrote()),
        };
        failure.map_or(written, Err)
    }

    /// Makes the group as durable as its operations ask for.
    fn finish_group(&mut self, durable: bool) -> Result<(), fjall::Error> {
        #[cfg(test)]
        if let Some(probe) = &self.before_commit {
            probe()?;
        }
        if durable {
            self.db.fjall.persist(PersistMode::SyncData)?;
            self.stats.store_syncs += 1;
            self.unsynced = None;
        } else {
            // To the kernel, so that a kill loses nothing; to the disk with the next durable group or in a second.
            self.db.fjall.persist(PersistMode::Buffer)?;
            self.unsynced.get_or_insert_with(Instant::now);
        }
        Ok(())
    }

    fn sync_relaxed(&mut self) {
        if self.unsynced.is_some_and(|since| since.elapsed() >= RELAXED_MAX) {
            self.store_status.commit_began();
            self.sync(PersistMode::SyncData);
            self.store_status.commit_ended();
        }
    }

    fn sync(&mut self, mode: PersistMode) {
        self.unsynced = None;
        if self.failed {
            return;
        }
        match self.db.fjall.persist(mode) {
            Ok(()) => self.stats.store_syncs += 1,
            Err(error) => self.fail(&error),
        }
    }

    /// A failed write or sync leaves the state of the disk unknown. Any promise from here on may be a lie, so none is
    /// made (ARCHITECTURE.md 8.7: exit). The next start reads the rows that are really there.
    fn fail(&mut self, error: &fjall::Error) {
        if !self.failed {
            self.failed = true;
            (self.fatal)(&format!(
                "storage cannot write any more ({error}): exiting so that nothing is promised that is not kept; \
                 check the disk of the data directory and start again"
            ));
        }
    }

    fn deliver(&mut self, replies: Replies) {
        let mut woken: Vec<Arc<ReplyQueue>> = Vec::new();
        for (reply_queue, ticket, route, answer) in replies {
            self.stats.store_transient += u64::from(matches!(answer, Err(StoreError::Transient)));
            reply_queue.push(ticket, route, answer);
            if !woken.iter().any(|known| Arc::ptr_eq(known, &reply_queue)) {
                woken.push(reply_queue);
            }
        }
        woken.iter().for_each(|reply_queue| reply_queue.wake());
    }

    /// Copies the counters to the board, about once a second.
    fn show(&mut self) {
        if self.boarded.elapsed() < BOARD_EVERY && !self.failed {
            return;
        }
        self.boarded = Instant::now();
        let tally = &self.store_status.tally;
        let refused = tally.transient.swap(0, Ordering::Relaxed);
        self.stats.store_transient += refused;
        self.stats.store_reads = tally.reads.load(Ordering::Relaxed);
        self.stats.store_read_errors = tally.read_errors.load(Ordering::Relaxed);
        self.stats.store_queue = self.store_status.queued.load(Ordering::Relaxed);
        self.stats.store_disk_bytes = self.store_status.space.used();
        self.stats.store_disk_free_bytes = self.store_status.space.free();
        self.stats.store_room = self.store_status.space.room() as u64;
        self.stats.store_scarce = u64::from(self.store_status.space.left().is_scarce());
        self.stats.store_cache_bytes = self.db.cache_bytes();
        self.stats.store_buffer_bytes = self.db.buffer_bytes();
        self.stats.store_circuit_open = u64::from(self.store_status.circuit_open.load(Ordering::Relaxed));
        self.stats.write_to(&self.store_status.board, 0);
    }
}

/// A thread beside the shards that waits for the sync of a group.
enum Waiting {
    /// The starting thread, and the unsaved messages with the first reason.
    Replay(Sender<Result<Option<Unsaved>, ()>>, Option<Unsaved>),
    /// A transfer, and the result of its load before the sync.
    Load(Sender<Result<(), StoreError>>, Result<(), StoreError>),
}

impl Waiting {
    fn tell(self, failed: bool) {
        match self {
            Waiting::Replay(done, unsaved) => {
                let _ = done.send(if failed { Err(()) } else { Ok(unsaved) });
            }
            Waiting::Load(done, outcome) => {
                let _ = done.send(if failed { Err(StoreError::Transient) } else { outcome });
            }
        }
    }
}

/// Splits an operation's outcome into its reply and the failure to count.
fn settle_answer(outcome: Result<StoreReply, WriteError>) -> (Answer, Result<(), WriteError>) {
    match outcome {
        Ok(reply) => (Ok(reply), Ok(())),
        Err(WriteError::Refused(error)) => (Err(error), Ok(())),
        Err(trouble) => (Err(StoreError::Transient), Err(trouble)),
    }
}

/// Saves the messages of a ledger, user by user; where a read fails, message by message. Returns the unsaved ones, and
/// the failure of a write, which ends the group.
fn save_replayed(
    group: &mut Group,
    messages: Vec<Arc<Message>>,
    tally: &Tally,
) -> (Option<Unsaved>, Result<(), WriteError>) {
    let mut unsaved: Option<Unsaved> = None;
    for of_one_user in messages.chunk_by(|a, b| a.uaid == b.uaid) {
        match group.save(of_one_user) {
            Ok(_) => continue,
            Err(WriteError::Write(error)) => return (unsaved, Err(WriteError::Write(error))),
            Err(WriteError::Read(_) | WriteError::Refused(_)) => {}
        }
        for message in of_one_user {
            match group.save(std::slice::from_ref(message)) {
                Ok(_) => {}
                Err(WriteError::Read(error)) => {
                    tally.read_failed(&error);
                    Unsaved::add(&mut unsaved, message, || format!("a row of its user cannot be read ({error})"));
                }
                Err(WriteError::Refused(error)) => {
                    Unsaved::add(&mut unsaved, message, || match error {
                        StoreError::Full => "the disk of the store is full".to_owned(),
                        StoreError::Transient => "the store is stalled".to_owned(),
                    });
                }
                Err(trouble @ WriteError::Write(_)) => return (unsaved, Err(trouble)),
            }
        }
    }
    (unsaved, Ok(()))
}
