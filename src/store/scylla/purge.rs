//! Drops one user for `murre maintain shared`, although nodes serve meanwhile and may see the user come back.
//!
//! A hello writes where the user is, and no more: record and channels keep their old timestamps, so a delete at these
//! takes them from under a session that has just begun. There is no conditional update (docs/decisions/0015), so the
//! rows are looked at right before the delete and right behind it, and put back when a node has entered itself since.
//! What remains are the milliseconds in which a node has read the user and not yet written where it is, if that write
//! takes longer than delete and second look: such a user registers anew at its next hello.

use scylla::DeserializeRow;
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Statement;

use super::connect::consistency;
use super::explain;
use super::schema::family;
use super::upkeep::UpkeepFault;
use crate::config::Scylla;
use crate::store::IDLE_SECONDS_MAX;

/// One row of `user`.
#[derive(DeserializeRow)]
struct Row {
    family: i8,
    key: Vec<u8>,
    value: Vec<u8>,
    ttl: Option<i32>,
    at: i64,
}

/// A user as it was read a moment ago.
pub(super) struct Found<'a> {
    session: &'a Session,
    config: &'a Scylla,
    uaid: &'a [u8],
    rows: Vec<Row>,
}

impl<'a> Found<'a> {
    /// Reads the user.
    pub(super) async fn read(
        session: &'a Session,
        config: &'a Scylla,
        uaid: &'a [u8],
    ) -> Result<Found<'a>, UpkeepFault> {
        let mut found = Found { session, config, uaid, rows: Vec::new() };
        found.rows = found.look().await?;
        Ok(found)
    }

    /// Seconds since it was last seen; `None` when it has no record.
    pub(super) fn idle(&self) -> Option<u64> {
        let record = self.rows.iter().find(|row| row.family == family::RECORD)?;
        let left = record.ttl.and_then(|left| u64::try_from(left).ok()).unwrap_or(u64::MAX);
        Some(IDLE_SECONDS_MAX.saturating_sub(left))
    }

    /// Whether there is nothing left to drop.
    pub(super) fn is_gone(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether some node says that it is connected.
    pub(super) fn connected(&self) -> bool {
        self.rows.iter().any(|row| row.family == family::PRESENCE)
    }

    /// Drops the user, and then its messages; `false` when it came back meanwhile and is there again. Messages that
    /// are accepted while it runs go by their TTL.
    pub(super) async fn purge(self) -> Result<bool, UpkeepFault> {
        let newest = self.drop_rows().await?;
        if self.put_back(newest).await? {
            return Ok(false);
        }
        let keyspace = &self.config.keyspace;
        let times = format!("SELECT WRITETIME(value) FROM {keyspace}.message WHERE uaid = ?");
        let times: Vec<(Option<i64>,)> = self.select(times).await?;
        if let Some(newest) = times.into_iter().filter_map(|(at,)| at).max() {
            self.run(format!("DELETE FROM {keyspace}.message USING TIMESTAMP ? WHERE uaid = ?"), (newest, self.uaid))
                .await?;
        }
        Ok(true)
    }

    /// Drops what was read and nothing newer. Returns the timestamp of the delete.
    pub(super) async fn drop_rows(&self) -> Result<i64, UpkeepFault> {
        let newest = self.rows.iter().map(|row| row.at).max().unwrap_or(0);
        let delete = format!("DELETE FROM {}.user USING TIMESTAMP ? WHERE uaid = ?", self.config.keyspace);
        self.run(delete, (newest, self.uaid)).await?;
        Ok(newest)
    }

    /// Writes the rows again, just over the delete, if the user is connected now.
    pub(super) async fn put_back(&self, newest: i64) -> Result<bool, UpkeepFault> {
        let now = Found { rows: self.look().await?, ..*self };
        if !now.connected() {
            return Ok(false);
        }
        let update = format!(
            "UPDATE {}.user USING TIMESTAMP ? AND TTL ? SET value = ? WHERE uaid = ? AND family = ? AND key = ?",
            self.config.keyspace
        );
        for row in &self.rows {
            let values = (newest + 1, IDLE_SECONDS_MAX as i32, &row.value, self.uaid, row.family, &row.key);
            self.run(update.clone(), values).await?;
        }
        Ok(true)
    }

    async fn look(&self) -> Result<Vec<Row>, UpkeepFault> {
        let keyspace = &self.config.keyspace;
        let select = "SELECT family, key, value, TTL(value) AS ttl, WRITETIME(value) AS at";
        self.select(format!("{select} FROM {keyspace}.user WHERE uaid = ?")).await
    }

    /// All rows of the user in one answer: channels and messages of a user are bounded.
    async fn select<R>(&self, select: String) -> Result<Vec<R>, UpkeepFault>
    where
        R: for<'frame, 'metadata> scylla::deserialize::row::DeserializeRow<'frame, 'metadata>,
    {
        let mut select = Statement::new(select);
        select.set_consistency(consistency(self.config.read_consistency));
        let found = self
            .session
            .query_unpaged(select, (self.uaid,))
            .await
            .map_err(|error| self.fault(&explain::say(&error)))?;
        let found = found.into_rows_result().map_err(|error| self.fault(&error.to_string()))?;
        let rows = found.rows::<R>().map_err(|error| self.fault(&error.to_string()))?;
        rows.collect::<Result<_, _>>().map_err(|error| self.fault(&error.to_string()))
    }

    async fn run(&self, change: String, values: impl SerializeRow) -> Result<(), UpkeepFault> {
        let mut change = Statement::new(change);
        change.set_consistency(consistency(self.config.write_consistency));
        change.set_is_idempotent(true);
        let done = self.session.query_unpaged(change, values).await;
        done.map(drop).map_err(|error| self.fault(&explain::say(&error)))
    }

    fn fault(&self, why: &str) -> UpkeepFault {
        UpkeepFault::new(format!("a user in {} cannot be dropped: {why}", self.config.keyspace))
    }
}
