//! Drops one user for `murre maintain shared`, although nodes serve meanwhile and the user may come back.
//!
//! A hello writes the presence of the user, and no more: record and channels keep their old timestamps, so a delete
//! right after these takes them from under a session that has just begun. There is no conditional update
//! (docs/decisions/0015), so the rows are read right before the delete and right behind it, and put back when a node
//! has entered itself since. A gap of milliseconds remains, in which a node has read the user and not yet written its
//! presence, if that write takes longer than delete and second look: such a user registers anew at its next hello.
//!
//! A presence row says that a user is connected unless the table of nodes says that its boot is over, or the boot was
//! silent for a day: a node that leaves or is killed leaves the rows of its users where they are.
//!
//! A statement that fails may have been made. Each is sent again for a while: murre sets its timestamp, so the second
//! time changes nothing. When one fails for good, all rows are put back as they were, also without a session. Rows are
//! put back in one batch of one partition, which is one mutation: a user is there with all of them or not at all.

use std::cell::RefCell;
use std::time::{Duration, SystemTime};

use hashbrown::HashMap;
use machine::NodeId;
use scylla::DeserializeRow;
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlTimestamp;

use super::connect::consistency;
use super::explain;
use super::rows;
use crate::IDLE_SECONDS_MAX;
use crate::nodes::{NodeRow, SILENT_TIME_LONG};
use crate::shared::error::DatabaseError;
use crate::shared::options::Options;
use crate::shared::schema::family;

/// The first pause before a statement is sent again; each is twice the one before.
const PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of attempts: pauses of 16 s together, in which a database that restarts is there again.
const ATTEMPTS_MAX: u32 = 7;
/// Time to live of rows that are put back for a session, as the session itself would set it.
const YOUNG_SECONDS: i32 = IDLE_SECONDS_MAX as i32;
/// Runs of nodes that are remembered; one more, and all are looked up anew. 10 MB.
const RUNS_MAX: usize = 65_536;

/// One row of `user`.
#[derive(DeserializeRow)]
struct Row {
    family: i8,
    key: Vec<u8>,
    value: Vec<u8>,
    ttl: Option<i32>,
    at: i64,
}

/// Prepared statements that drop users.
pub(super) struct Purger<'a> {
    session: &'a Session,
    config: &'a Options,
    look: PreparedStatement,
    drop: PreparedStatement,
    put: PreparedStatement,
    message_times: PreparedStatement,
    drop_messages: PreparedStatement,
    node: PreparedStatement,
    lease: PreparedStatement,
    /// By the keys of their presence rows: true if the boot was over when it was looked up.
    runs: RefCell<HashMap<Vec<u8>, bool>>,
}

impl<'a> Purger<'a> {
    pub(super) async fn new(session: &'a Session, config: &'a Options) -> Result<Purger<'a>, DatabaseError> {
        let keyspace = &config.keyspace;
        let (user, message) = (format!("{keyspace}.user"), format!("{keyspace}.message"));
        let prepare = async |text: String, level| {
            let made = session.prepare(text).await;
            let mut made = made.map_err(|error| fault(config, &error.to_string()))?;
            made.set_consistency(consistency(level));
            made.set_is_idempotent(true);
            Ok::<_, DatabaseError>(made)
        };
        let (read, write) = (config.read_consistency, config.write_consistency);
        let columns = "family, key, value, TTL(value) AS ttl, WRITETIME(value) AS at";
        Ok(Purger {
            session,
            config,
            look: prepare(format!("SELECT {columns} FROM {user} WHERE uaid = ?"), read).await?,
            drop: prepare(format!("DELETE FROM {user} USING TIMESTAMP ? WHERE uaid = ?"), write).await?,
            put: prepare(
                format!(
                    "UPDATE {user} USING TIMESTAMP ? AND TTL ? SET value = ? WHERE uaid = ? AND family = ? AND key = ?"
                ),
                write,
            )
            .await?,
            message_times: prepare(format!("SELECT WRITETIME(value) FROM {message} WHERE uaid = ?"), read).await?,
            drop_messages: prepare(format!("DELETE FROM {message} USING TIMESTAMP ? WHERE uaid = ?"), write).await?,
            node: prepare(format!("SELECT boot, left_at FROM {keyspace}.node WHERE url = ?"), read).await?,
            lease: prepare(format!("SELECT seen_at FROM {keyspace}.lease WHERE url = ? AND boot = ?"), read).await?,
            runs: RefCell::default(),
        })
    }

    pub(super) async fn read(&'a self, uaid: &'a [u8]) -> Result<PurgeCandidate<'a>, DatabaseError> {
        Ok(PurgeCandidate { broom: self, uaid, rows: self.look(uaid).await? })
    }

    async fn look(&self, uaid: &[u8]) -> Result<Vec<Row>, DatabaseError> {
        self.select(&self.look, (uaid,)).await
    }

    /// Returns true if one of these rows shows that the user is connected now.
    async fn connected(&self, rows: &[Row]) -> Result<bool, DatabaseError> {
        for row in rows.iter().filter(|row| row.family == family::PRESENCE) {
            if !self.is_over(&row.key).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns true if the boot of this presence row is over. An ended boot stays so, and its node's row is read behind
    /// the presence. A boot that was not over may be by now, which only keeps a user that could go.
    async fn is_over(&self, key: &[u8]) -> Result<bool, DatabaseError> {
        if let Some(over) = self.runs.borrow().get(key) {
            return Ok(*over);
        }
        // A row that does not parse proves nothing, nor does a node without a row.
        let Some(node) = rows::presence_node(key) else { return Ok(false) };
        let found: Vec<(Option<i64>, Option<CqlTimestamp>)> = self.select(&self.node, (&*node.url,)).await?;
        let over = found.first().is_some_and(|(boot, left_at)| {
            let row = |boot: i64| NodeRow { boot: boot.cast_unsigned(), left: left_at.is_some(), silent: None };
            boot.is_some_and(|boot| row(boot).judged().is_over(node.boot))
        });
        let over = over || self.is_silent(&node).await?;
        let mut runs = self.runs.borrow_mut();
        if runs.len() >= RUNS_MAX {
            runs.clear();
        }
        runs.insert(key.to_vec(), over);
        Ok(over)
    }

    /// Returns true if this boot was silent for so long that it counts as gone.
    async fn is_silent(&self, node: &NodeId) -> Result<bool, DatabaseError> {
        let seen: Vec<(Option<CqlTimestamp>,)> =
            self.select(&self.lease, (&*node.url, node.boot.cast_signed())).await?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let silent = |CqlTimestamp(at)| now.saturating_sub(Duration::from_millis(u64::try_from(at).unwrap_or(0)));
        Ok(seen.into_iter().filter_map(|(at,)| at).any(|at| silent(at) >= SILENT_TIME_LONG))
    }

    /// All rows of the user in one answer: channels and messages of a user are bounded.
    async fn select<R>(&self, select: &PreparedStatement, key: impl SerializeRow) -> Result<Vec<R>, DatabaseError>
    where
        R: for<'frame, 'metadata> scylla::deserialize::row::DeserializeRow<'frame, 'metadata>,
    {
        let found = self.session.execute_unpaged(select, key).await;
        let found = found.map_err(|error| self.fault(&explain::say(&error)))?;
        let found = found.into_rows_result().map_err(|error| self.fault(&error.to_string()))?;
        let rows = found.rows::<R>().map_err(|error| self.fault(&error.to_string()))?;
        rows.collect::<Result<_, _>>().map_err(|error| self.fault(&error.to_string()))
    }

    async fn run(&self, change: &PreparedStatement, values: impl SerializeRow) -> Result<(), DatabaseError> {
        let done = self.session.execute_unpaged(change, values).await;
        done.map(drop).map_err(|error| self.fault(&explain::say(&error)))
    }

    fn fault(&self, why: &str) -> DatabaseError {
        fault(self.config, why)
    }
}

fn fault(config: &Options, why: &str) -> DatabaseError {
    DatabaseError::passing(format!("a user in {} cannot be dropped: {why}", config.keyspace))
}

/// A user as of a recent read.
pub(super) struct PurgeCandidate<'a> {
    broom: &'a Purger<'a>,
    uaid: &'a [u8],
    rows: Vec<Row>,
}

impl PurgeCandidate<'_> {
    /// Seconds since the user was last seen; `None` when it has no record.
    pub(super) fn idle(&self) -> Option<u64> {
        let record = self.rows.iter().find(|row| row.family == family::RECORD)?;
        let left = record.ttl.and_then(|left| u64::try_from(left).ok()).unwrap_or(u64::MAX);
        Some(IDLE_SECONDS_MAX.saturating_sub(left))
    }

    /// Returns true if there is nothing left to drop.
    pub(super) fn is_gone(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns true if a node that is there has a presence row of the user.
    pub(super) async fn connected(&self) -> Result<bool, DatabaseError> {
        self.broom.connected(&self.rows).await
    }

    /// Drops the user, and then its messages; `false` when it came back meanwhile and is there again. Messages that are
    /// accepted during the purge go by their TTL.
    pub(super) async fn purge(self) -> Result<bool, DatabaseError> {
        let newest = self.newest();
        let dropped = async {
            insist(async || self.drop_rows(newest).await).await?;
            insist(async || self.put_back(newest).await).await
        };
        match dropped.await {
            Ok(true) => return Ok(false),
            Ok(false) => {}
            Err(fault) => {
                // The outcome of the delete and the presence of the user are unknown.
                insist(async || self.write_back(newest, |row| row.ttl.unwrap_or(YOUNG_SECONDS)).await).await.map_err(
                    |_| DatabaseError::passing(format!("{fault}; if it was connecting just then it registers anew")),
                )?;
                return Err(fault);
            }
        }
        let Purger { message_times, drop_messages, .. } = self.broom;
        let times: Vec<(Option<i64>,)> = self.broom.select(message_times, (self.uaid,)).await?;
        if let Some(newest) = times.into_iter().filter_map(|(at,)| at).max() {
            self.broom.run(drop_messages, (newest, self.uaid)).await?;
        }
        Ok(true)
    }

    /// The timestamp of the delete: one microsecond after the last write that was read. A late refresh that read the
    /// same rows writes at the same timestamp.
    pub(super) fn newest(&self) -> i64 {
        self.rows.iter().map(|row| row.at).max().unwrap_or(0).saturating_add(1)
    }

    /// Drops the rows that were read and nothing newer.
    pub(super) async fn drop_rows(&self, newest: i64) -> Result<(), DatabaseError> {
        self.broom.run(&self.broom.drop, (newest, self.uaid)).await
    }

    /// Writes the rows again, just over the delete, if the user is connected now.
    pub(super) async fn put_back(&self, newest: i64) -> Result<bool, DatabaseError> {
        let now = self.broom.look(self.uaid).await?;
        if !self.broom.connected(&now).await? {
            return Ok(false);
        }
        self.write_back(newest, |_| YOUNG_SECONDS).await?;
        Ok(true)
    }

    /// Writes all rows but presence again, just over the delete, each for this number of seconds. Rows that were
    /// removed since have a later timestamp or the same, and stay removed.
    async fn write_back(&self, newest: i64, seconds: impl Fn(&Row) -> i32) -> Result<(), DatabaseError> {
        let values = |row| {
            let Row { family, key, value, .. }: &Row = row;
            (newest + 1, seconds(row), value, self.uaid, *family, key)
        };
        let rows: Vec<_> = self.rows.iter().filter(|row| row.family != family::PRESENCE).map(values).collect();
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(consistency(self.broom.config.write_consistency));
        batch.set_is_idempotent(true);
        rows.iter().for_each(|_| batch.append_statement(self.broom.put.clone()));
        let done = self.broom.session.batch(&batch, &rows).await;
        done.map(drop).map_err(|error| self.broom.fault(&explain::say(&error)))
    }
}

/// Tries until it succeeds, but not for ever.
async fn insist<T>(mut attempt: impl AsyncFnMut() -> Result<T, DatabaseError>) -> Result<T, DatabaseError> {
    let mut pause = PAUSE;
    for _ in 1..ATTEMPTS_MAX {
        match attempt().await {
            Ok(done) => return Ok(done),
            Err(fault) => tracing::warn!(%fault, "purge step failed; retried"),
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    attempt().await
}
