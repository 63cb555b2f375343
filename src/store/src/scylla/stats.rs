//! Counters of the shared store: statements by kind with their latency, operations of the port by kind, and other
//! numbers. Written by the store's runtime, copied to a board about once a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use machine::StoreOp;
use machine::stats::{Board, Kind, Meaning};

use crate::latencies::LatencyHistograms;

/// Names the statements, with the help of their counters.
macro_rules! statements {
    ($($variant:ident $name:ident : $what:literal),+ $(,)?) => {
        /// Every statement the store sends, but for the schema.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(super) enum Statement { $(#[doc = $what] $variant),+ }

        /// All statements, in the order of their numbers.
        pub(super) const STATEMENTS: &[Statement] = &[$(Statement::$variant),+];

        const STATEMENT_NAMES: &[&str] = &[$(stringify!($name)),+];

        const STATEMENT_MEANINGS: &[Meaning] = &[$(
            Meaning {
                name: concat!("store_", stringify!($name), "_statements"),
                kind: Kind::Counter,
                help: concat!("Statements sent: ", $what),
            },
        )+];
    };
}

statements! {
    UserRead user_read: "read a user.",
    UserCheck user_check: "read whether a user and one channel are there.",
    UserTimes user_times: "read a user with the times of its rows.",
    UserPut user_put: "write a row of a user.",
    UserDelete user_delete: "delete a row of a user.",
    UserDrop user_drop: "delete a user.",
    UserBatch user_batch: "write several rows of a user at once.",
    TopicsRead topics_read: "read topic rows.",
    TopicRead topic_read: "read one topic row.",
    UpdatesRead updates_read: "read the version updates of a channel.",
    MessagesRead messages_read: "read message or saved rows.",
    RowRead row_read: "read one message.",
    KeysRead keys_read: "read keys and times of all messages of a user.",
    KeysBefore keys_before: "read keys and times of the topic and saved rows of a user.",
    KeysBehind keys_behind: "read keys and times of the message rows of a user behind low water.",
    MessagePut message_put: "write a message.",
    MessageDelete message_delete: "delete a message.",
    MessageDrop message_drop: "delete all messages of a user.",
    MessageReclaim message_reclaim: "delete the message rows of a user that were settled long ago.",
    ChannelSweep channel_sweep: "replace the tombstones of unregistered channels by one.",
    MessageBatch message_batch: "write or delete several messages of a user at once.",
    UsersFirst users_first: "read the first users.",
    UsersBehind users_behind: "read the users behind one.",
    NodeRead node_read: "read the row of a node.",
    NodeEnter node_enter: "write that a node has begun.",
    NodeLeave node_leave: "write that a node has left.",
    LeaseRead lease_read: "read when a run of a node was last seen.",
    LeaseRenew lease_renew: "write that a run of a node was seen.",
    DebtWrite debt_write: "write that a node is owed notifications.",
    DebtClear debt_clear: "delete that a node is owed notifications.",
    DebtsRead debts_read: "read what a node is owed.",
    Probe probe: "look whether the database is back.",
}

/// Names the operations of the port.
macro_rules! operations {
    ($($variant:ident $name:ident : $what:literal),+ $(,)?) => {
        #[derive(Clone, Copy)]
        enum Operation { $($variant),+ }
        const OPERATION_MEANINGS: &[Meaning] = &[$(
            Meaning { name: concat!("store_", stringify!($name)), kind: Kind::Counter, help: $what }
        ),+];

        impl Operation {
            fn of(op: &StoreOp) -> Operation {
                match op { $(StoreOp::$variant { .. } => Operation::$variant),+ }
            }
        }
    };
}

operations! {
    LoadUser user_loads: "Users read for a shard.",
    Locate user_locates: "Users looked up for a POST, with its channel alone.",
    Subscribe subscribes: "Channels added to users of the registration API.",
    Touch touches: "Refreshes of a user's expiry.",
    Register registers: "Channels registered.",
    SetContact contacts: "Changes of how a user is reached.",
    SetPresence presences: "Sessions made known to other nodes.",
    ClearPresence presences_cleared: "Sessions that were made known and ended.",
    Unregister unregisters: "Channels unregistered.",
    DropUser drops: "Users dropped by request.",
    DropIdle idle_drops: "Users without a channel dropped, or kept for another node.",
    SetBridge bridges: "Changes of the device of a bridged user.",
    MarkRefused bridges_marked: "Devices of bridged users that were marked as refused.",
    ClearRefused bridges_cleared: "Marks of devices that ended because their service took a notification.",
    DropBridged bridged_drops: "Bridged users dropped because their service refused the device.",
    Publish publishes: "Messages stored, or refused because there is no subscription.",
    Save saves: "Batches of unacked directs saved.",
    Topics topic_pages: "Pages of topic messages read.",
    Messages message_pages: "Pages of messages read.",
    Read row_reads: "Messages read again.",
    Settle settles: "Batches of rows settled.",
    Tried tries: "Batches of rows whose deliveries without an ack were written down.",
}

/// Names the other numbers.
macro_rules! others {
    ($($kind:ident $name:ident : $what:literal),+ $(,)?) => {
        /// Numbers that belong to no one statement.
        #[derive(Default)]
        pub(super) struct Others { $(#[doc = $what] pub(super) $name: AtomicU64),+ }

        const OTHER_MEANINGS: &[Meaning] = &[$(
            Meaning { name: concat!("store_", stringify!($name)), kind: Kind::$kind, help: $what }
        ),+];

        impl Others {
            fn write_to(&self, board: &Board, mut at: usize) {
                $(board.set(at, self.$name.load(Ordering::Relaxed)); at += 1;)+
                let _ = at;
            }
        }
    };
}

others! {
    Counter retries: "Statements sent again.",
    Counter retries_refused: "Statements not sent again because too many were.",
    Counter timeouts: "Attempts that were not answered in time.",
    Counter errors: "Attempts that the database or the way to it failed.",
    Counter late: "Messages written too late to be promised: answered as failed.",
    Counter transient: "Operations answered as failed.",
    Counter coalesced: "Reads of a user that shared the read of another request.",
    Counter deletes_spared: "Rows that were settled without a delete because low water covers them.",
    Counter low_water_passed: "Times that low water was raised past rows that had been deleted alone.",
    Counter damaged_rows: "Rows that could not be read.",
    Counter circuit_opened: "Times the circuit was opened.",
    Gauge circuit_open: "1 while the database does not answer and operations are refused at once.",
    Gauge queue: "Operations that wait in the store.",
    Gauge in_flight: "Statements without an answer.",
    Gauge in_flight_limit: "Operations that each shard may have at the database now: fewer while it answers slowly.",
    Counter in_flight_lowered: "Times that this number was lowered.",
    Counter reads_late: "Reads that were also sent to another node, where there is one, because the first was late.",
    Gauge in_flight_max: "The most statements without an answer at any time.",
}

/// All counters of the store.
pub(super) struct SharedStoreStats {
    counts: Vec<AtomicU64>,
    pub(super) latencies: Arc<LatencyHistograms>,
    operations: Vec<AtomicU64>,
    pub(super) others: Others,
}

impl SharedStoreStats {
    pub(super) fn new() -> SharedStoreStats {
        let atomics = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        SharedStoreStats {
            counts: atomics(STATEMENTS.len()),
            latencies: Arc::new(LatencyHistograms::new(STATEMENT_NAMES)),
            operations: atomics(OPERATION_MEANINGS.len()),
            others: Others::default(),
        }
    }

    /// A board with a place for each number.
    pub(super) fn board() -> Board {
        Board::new(&[OTHER_MEANINGS, OPERATION_MEANINGS, STATEMENT_MEANINGS])
    }

    /// Counts a statement that is sent. The returned value is dropped when it is answered or given up.
    pub(super) fn sent(&self, statement: Statement) -> Sent<'_> {
        self.counts[statement as usize].fetch_add(1, Ordering::Relaxed);
        let now = self.others.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.others.in_flight_max.fetch_max(now, Ordering::Relaxed);
        Sent { stats: self, statement, at: Instant::now() }
    }

    /// Counts an operation of a shard.
    pub(super) fn asked(&self, op: &StoreOp) {
        self.operations[Operation::of(op) as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Number of statements of this kind that were sent.
    #[cfg(test)]
    pub(super) fn count(&self, statement: Statement) -> u64 {
        self.counts[statement as usize].load(Ordering::Relaxed)
    }

    /// Copies the numbers. Called about once a second.
    pub(super) fn write_to(&self, board: &Board) {
        self.others.write_to(board, 0);
        for (at, count) in (OTHER_MEANINGS.len()..).zip(self.operations.iter().chain(&self.counts)) {
            board.set(at, count.load(Ordering::Relaxed));
        }
    }
}

/// One statement without an answer.
pub(super) struct Sent<'a> {
    stats: &'a SharedStoreStats,
    statement: Statement,
    at: Instant,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.stats.others.in_flight.fetch_sub(1, Ordering::Relaxed);
        let micros = u64::try_from(self.at.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.stats.latencies.record(self.statement as usize, micros);
    }
}

/// Adds one.
pub(super) fn count(number: &AtomicU64) {
    number.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_statement_is_in_the_buckets_of_its_own_kind_for_good() {
        let stats = SharedStoreStats::new();
        for took in [1, 1, 400] {
            let mut sent = stats.sent(Statement::UserRead);
            sent.at -= Duration::from_millis(took);
        }
        let board = SharedStoreStats::board();
        stats.write_to(&board);
        let sent = board.read().find(|(meaning, _)| meaning.name == "store_user_read_statements");
        assert_eq!(sent.expect("it is on the board").1, 3);
        let read = |name: &str| stats.latencies.read().find(|taken| taken.name == name).expect("a row");
        let taken = read("user_read");
        assert_eq!(taken.counts.iter().sum::<u64>(), 3);
        assert_eq!(taken.counts[..2], [0, 0], "none took less than a millisecond");
        // One of 400 ms, and a little more on a busy host.
        assert!(taken.counts[10..].iter().sum::<u64>() >= 1 && taken.sum_us >= 402_000, "{taken:?}");
        assert_eq!(read("user_put").counts.iter().sum::<u64>(), 0);
        assert_eq!(stats.latencies.read().count(), STATEMENTS.len());
    }
}
