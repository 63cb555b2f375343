//! One session with the database, its prepared statements, and the limits around each of them: a time limit, retries
//! within a budget, the circuit, a bound on requests in flight, and counters.
//!
//! Every statement may be sent twice: murre sets its timestamp, so the second time changes nothing.
//! Lives on: the store's runtime; shared by all lanes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use runtime::process_clock::ProcessClock;
use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::policies::speculative_execution::SpeculativeExecutionPolicy;
use scylla::response::query_result::QueryRowsResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::batch::TimedBatches;
use super::breaker::{Breaker, Budget, jittered};
use super::connect::consistency;
use super::haste::Haste;
use super::limit::Limit;
use super::preflight::time_of;
use super::rows;
use super::schema_apply::{Kind, kind};
use super::statements::{Bound, Change, hastens, reads, text, timed};
use super::stats::{STATEMENTS, SharedStoreStats, Statement, count};
use crate::shared::options::Options;

/// The first pause before a statement is sent again; each is four times the one before.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of retries of a statement.
const RETRIES_MAX: u32 = 3;
/// Attempts that fit the time of one statement.
const ATTEMPTS_IN_TIMEOUT: u32 = 2;
/// Time from the opening of the circuit to the first look, and between looks at first.
const PROBE_PAUSE: Duration = Duration::from_millis(250);
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(2);
/// Rows of a page that a user agent is sent whole; one more row shows that there are others.
pub(super) const PAGE_ROWS: i32 = machine::limits::PAGE_ROWS_MAX as i32 + 1;
/// Rows of a page of which all are read.
const PAGE_ROWS_LONG: i32 = 500;
/// The least and the greatest number of seconds the database keeps a row; no message is accepted for longer.
const TTL_SECONDS: std::ops::RangeInclusive<u64> = 1..=crate::IDLE_SECONDS_MAX;
/// Rows stay a little longer than their messages: their exact end is looked at when they are read.
const TTL_SLACK_SECONDS: u64 = 60;
/// Clocks of the database that are read at a time.
const CLOCKS_MAX: usize = 5;
/// Time to live of the probe's row.
const PROBE_TTL_SECONDS: i32 = 600;
/// Places that the probe looks at in turn: their tokens lie all over the ring, so that with one replica of three gone,
/// or every third place, some look finds a live replica.
const PROBE_PLACES: u32 = 64;

/// Bytes of one batch: far below the limits of both databases, and a batch of this size delays no other statement for
/// long.
const BATCH_BYTES_MAX: usize = 256 * 1024;

/// The operation failed, and may have taken effect. The cause has been logged and counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failed;

/// A page of rows and the start of the next one.
pub(super) type Rows = (QueryRowsResult, Option<PagingState>);

/// A session with everything prepared.
pub(super) struct Client {
    session: Session,
    prepared: Vec<PreparedStatement>,
    long: Vec<PreparedStatement>,
    write_level: scylla::statement::Consistency,
    /// `None`: the database takes no time limit.
    timed_batches: Option<TimedBatches>,
    pub(super) breaker: Arc<Breaker>,
    pub(super) limit: Arc<Limit>,
    haste: Arc<Haste>,
    pub(super) budget: Budget,
    pub(super) stats: Arc<SharedStoreStats>,
    request_timeout: Duration,
    pub(super) process_clock: Arc<ProcessClock>,
}

impl Client {
    ///
    /// # Errors
    /// The database's error for the first statement that it does not take; the tables are missing or others.
    pub(super) async fn prepare(
        session: Session,
        config: &Options,
        process_clock: Arc<ProcessClock>,
    ) -> Result<Client, String> {
        let keyspace = &config.keyspace;
        let (mut prepared, mut long) = (Vec::new(), Vec::new());
        let attempt = config.request_timeout / ATTEMPTS_IN_TIMEOUT;
        let limit = Arc::new(Limit::new(usize::from(config.in_flight), config.request_timeout));
        let haste = Arc::new(Haste::new(Arc::clone(&limit), attempt));
        let profile = session.get_default_execution_profile_handle().pointee_to_builder();
        let hasty: Arc<dyn SpeculativeExecutionPolicy> = haste.clone();
        let hasty = profile.speculative_execution_policy(Some(hasty)).build().into_handle();
        // ScyllaDB ends statements that are not awaited any more; Cassandra has no option for it.
        let write_level = consistency(config.write_consistency);
        let gives_up = kind(&session).await.map_err(|fault| fault.to_string())? == Kind::Scylla;
        for statement in STATEMENTS {
            let text = text(*statement, keyspace);
            let text = if gives_up { timed(&text, attempt) } else { text };
            let made = session.prepare(text.as_str()).await;
            let mut made = made.map_err(|error| format!("the database does not take our statements: {error}"))?;
            let level = if reads(*statement) { config.read_consistency } else { config.write_consistency };
            made.set_consistency(consistency(level));
            made.set_is_idempotent(true);
            made.set_use_cached_result_metadata(true);
            if hastens(*statement) {
                made.set_execution_profile_handle(Some(hasty.clone()));
            }
            made.set_page_size(PAGE_ROWS_LONG);
            long.push(made.clone());
            made.set_page_size(PAGE_ROWS);
            prepared.push(made);
        }
        Ok(Client {
            session,
            prepared,
            long,
            write_level,
            timed_batches: gives_up.then(|| TimedBatches::new(keyspace, attempt, write_level)),
            breaker: Arc::new(Breaker::new(attempt)),
            limit,
            haste,
            budget: Budget::new(),
            stats: Arc::new(SharedStoreStats::new()),
            request_timeout: config.request_timeout,
            process_clock,
        })
    }

    /// Copies the numbers that are counted elsewhere.
    pub(super) fn note_limit(&self) {
        let others = &self.stats.others;
        others.in_flight_limit.store(self.limit.get() as u64, Ordering::Relaxed);
        others.in_flight_lowered.store(self.limit.lowered(), Ordering::Relaxed);
        others.reads_late.store(self.haste.sent(), Ordering::Relaxed);
    }

    /// Seconds for which the database keeps a row with this end.
    pub(super) fn ttl(&self, expires: machine::time::UnixSeconds) -> i32 {
        let left = expires.0.saturating_sub(self.process_clock.unix().0).saturating_add(TTL_SLACK_SECONDS);
        left.clamp(*TTL_SECONDS.start(), *TTL_SECONDS.end()) as i32
    }

    /// Looks until the database is back, then closes the circuit. Ends with the store.
    pub(super) async fn watch(&self) {
        let (mut changes, mut look) = (self.breaker.watch(), 0u32);
        loop {
            // Invariant: the sender lives in the breaker, and that in self.
            changes.wait_for(|open| *open).await.expect("the breaker is alive");
            self.stats.others.circuit_open.store(1, Ordering::Relaxed);
            let mut pause = PROBE_PAUSE;
            loop {
                tokio::time::sleep(jittered(pause)).await;
                look = look.wrapping_add(1);
                if self.probe(look).await {
                    break;
                }
                pause = (pause * 2).min(PROBE_PAUSE_MAX);
            }
            self.breaker.close();
            self.stats.others.circuit_open.store(0, Ordering::Relaxed);
            tracing::info!("database circuit closed");
        }
    }

    /// Lead of most of the database's clocks over ours, in microseconds: the median of a few of its nodes, of two the
    /// lower. One of them may stand on the host whose clock is in doubt.
    pub(super) async fn ahead(&self) -> Option<i64> {
        let state = self.session.get_cluster_state();
        let limit = self.request_timeout / ATTEMPTS_IN_TIMEOUT;
        let mut told = Vec::new();
        for node in state.get_nodes_info().iter().filter(|node| node.is_connected()).take(CLOCKS_MAX) {
            let before = self.process_clock.unix_us();
            let answer = tokio::time::timeout(limit, time_of(&self.session, node)).await;
            let ours = before.midpoint(self.process_clock.unix_us()).cast_signed();
            told.extend(answer.ok().flatten().map(|millis| millis.saturating_mul(1_000).saturating_sub(ours)));
        }
        told.sort_unstable();
        told.get(told.len().checked_sub(1)? / 2).copied()
    }

    /// Number of clocks that [`Client::ahead`] asks.
    pub(super) fn clock_count(&self) -> usize {
        let state = self.session.get_cluster_state();
        state.get_nodes_info().iter().filter(|node| node.is_connected()).take(CLOCKS_MAX).count()
    }

    /// Returns true if the database takes a write at the place of this look. Where the replicas of one place are gone
    /// others may still be served, so each look is at another place.
    async fn probe(&self, look: u32) -> bool {
        let _sent = self.stats.sent(Statement::Probe);
        let at = i64::try_from(self.process_clock.unix_us()).unwrap_or(i64::MAX);
        let place = probe_place(look);
        let values = (at, PROBE_TTL_SECONDS, &[0u8; 8][..], &place[..]);
        let sent = self.session.execute_unpaged(&self.prepared[Statement::Probe as usize], values);
        let limit = self.request_timeout / ATTEMPTS_IN_TIMEOUT;
        let answer = tokio::time::timeout(limit, sent).await;
        matches!(answer, Ok(Ok(_)))
    }

    /// Makes one attempt after another, as the budget, the circuit and the time allow.
    async fn run<T, F>(
        &self,
        context: &StatementContext<'_>,
        statement: Statement,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, ExecutionError>>,
    {
        let until = context.until.min(Instant::now() + self.request_timeout);
        let permit = tokio::time::timeout_at(until, context.permits.acquire()).await;
        let Ok(Ok(_permit)) = permit else { return Err(Failed) };
        self.budget.earn();
        let mut pause = RETRY_PAUSE;
        for left in (0..=RETRIES_MAX).rev() {
            let began = Instant::now();
            let limit = until.min(began + self.request_timeout / ATTEMPTS_IN_TIMEOUT);
            let sent = self.stats.sent(statement);
            let answer = tokio::time::timeout_at(limit, attempt()).await;
            drop(sent);
            let failure = answer.as_ref().map_or(Some(None), |answer| answer.as_ref().err().map(Some));
            self.note_time(statement, began, failure);
            let error = match answer {
                Ok(Ok(value)) => {
                    self.breaker.answered();
                    return Ok(value);
                }
                Ok(Err(error)) => Some(error),
                Err(_) => None,
            };
            if !self.take_failure(statement, error.as_ref()) || left == 0 || Instant::now() + pause >= until {
                return Err(Failed);
            }
            if !self.budget.spend() {
                count(&self.stats.others.retries_refused);
                return Err(Failed);
            }
            tokio::time::sleep(jittered(pause)).await;
            if self.breaker.is_open() {
                return Err(Failed);
            }
            count(&self.stats.others.retries);
            pause *= 4;
        }
        Err(Failed)
    }

    /// Reports the time of an attempt, and its failure: without an answer, or with one.
    fn note_time(&self, statement: Statement, began: Instant, failure: Option<Option<&ExecutionError>>) {
        let now = Instant::now();
        let took = now.duration_since(began);
        let given_up = match failure {
            None => false,
            Some(error) if error.is_none_or(is_overload) => true,
            // A quick refusal says nothing of how long the others take.
            Some(_) => return,
        };
        self.limit.take(now.into_std(), took, given_up);
        if hastens(statement) {
            self.haste.took(took);
        }
    }

    /// Counts and logs a failed attempt; returns true if another may help.
    fn take_failure(&self, statement: Statement, error: Option<&ExecutionError>) -> bool {
        let others = &self.stats.others;
        let Some(error) = error else {
            count(&others.timeouts);
            return !self.weigh_failure(&"no answer in time");
        };
        let before = others.errors.fetch_add(1, Ordering::Relaxed);
        if before == 0 || (before + 1).is_power_of_two() {
            tracing::warn!(count = before + 1, ?statement, %error, "statement failed");
        }
        // A refused statement is refused again; and the database does answer.
        !is_refusal(error) && !self.weigh_failure(error)
    }

    /// Counts a failure of the database; returns true if the circuit is open now.
    fn weigh_failure(&self, why: &dyn std::fmt::Display) -> bool {
        if self.breaker.failed() {
            count(&self.stats.others.circuit_opened);
            tracing::error!(reason = %why, "database circuit opened; operations are refused");
        }
        self.breaker.is_open()
    }
}

/// An operation's access to the client: its lane's share of requests in flight, and its time.
#[derive(Clone, Copy)]
pub(super) struct StatementContext<'a> {
    pub(super) client: &'a Client,
    pub(super) permits: &'a Semaphore,
    pub(super) until: Instant,
}

impl StatementContext<'_> {
    /// Sends a statement whose answer has no rows.
    pub(super) async fn send(&self, statement: Statement, values: &impl SerializeRow) -> Result<(), Failed> {
        let prepared = &self.client.prepared[statement as usize];
        let session = &self.client.session;
        let attempt = || session.execute_unpaged(prepared, values);
        self.client.run(self, statement, attempt).await.map(drop)
    }

    /// Reads the page of a short answer that begins at `state`, or a long one behind it.
    pub(super) async fn read(
        &self,
        statement: Statement,
        values: &impl SerializeRow,
        state: Option<PagingState>,
        long: bool,
    ) -> Result<Rows, Failed> {
        let prepared = if long { &self.client.long } else { &self.client.prepared };
        let (prepared, session) = (&prepared[statement as usize], &self.client.session);
        let attempt = || {
            let state = state.clone().unwrap_or_else(PagingState::start);
            session.execute_single_page(prepared, values, state)
        };
        let (found, next) = self.client.run(self, statement, attempt).await?;
        let next = match next {
            PagingStateResponse::HasMorePages { state } => Some(state),
            PagingStateResponse::NoMorePages => None,
        };
        let rows = found.into_rows_result().map_err(|error| {
            tracing::error!(?statement, %error, "read answered without rows");
            Failed
        })?;
        Ok((rows, next))
    }

    /// Makes these changes of one user; those of one table at once, as far as they fit a batch.
    pub(super) async fn change(&self, uaid: &machine::ids::Uaid, changes: &[Change]) -> Result<(), Failed> {
        let mut rest = changes;
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let fit = rest.iter().take_while(|change| {
                bytes += change.bytes();
                change.of_messages() == first.of_messages() && bytes <= BATCH_BYTES_MAX
            });
            let (batch, behind) = rest.split_at(fit.count().max(1));
            self.change_at_once(rows::uaid(uaid), batch).await?;
            rest = behind;
        }
        Ok(())
    }

    async fn change_at_once(&self, uaid: &[u8], changes: &[Change]) -> Result<(), Failed> {
        let bound: Vec<Bound<'_>> = changes.iter().map(|change| Bound(uaid, change)).collect();
        if let [one] = changes {
            return self.send(one.statement(), &bound[0]).await;
        }
        let statement = match changes.first() {
            Some(change) if change.of_messages() => Statement::MessageBatch,
            _ => Statement::UserBatch,
        };
        let session = &self.client.session;
        // All of one partition: one mutation, so no log is needed to make it atomic.
        if let Some(batches) = &self.client.timed_batches {
            return self.client.run(self, statement, || batches.send(session, uaid, changes)).await;
        }
        let mut batch = Batch::new(BatchType::Unlogged);
        batch.set_consistency(self.client.write_level);
        batch.set_is_idempotent(true);
        for change in changes {
            batch.append_statement(self.client.prepared[change.statement() as usize].clone());
        }
        self.client.run(self, statement, || session.batch(&batch, &bound)).await.map(drop)
    }

    /// Wall time in microseconds.
    pub(super) fn process_clock(&self) -> u64 {
        self.client.process_clock.unix_us()
    }
}

/// Returns true if the database has understood the statement and refuses it.
fn is_refusal(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::BadQuery(_) => true,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) => matches!(
            error,
            DbError::SyntaxError
                | DbError::Invalid
                | DbError::Unauthorized
                | DbError::ConfigError
                | DbError::AlreadyExists { .. }
                | DbError::FunctionFailure { .. }
        ),
        _ => false,
    }
}

/// Returns true if the database is overloaded or exceeded its own time limit.
fn is_overload(error: &ExecutionError) -> bool {
    match error {
        ExecutionError::RequestTimeout(_) => true,
        ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, _)) => matches!(
            error,
            DbError::Overloaded
                | DbError::ReadTimeout { .. }
                | DbError::WriteTimeout { .. }
                | DbError::RateLimitReached { .. }
        ),
        _ => false,
    }
}

/// The partition of one look. No UAID is as short, so scans of users skip it.
fn probe_place(look: u32) -> [u8; 8] {
    let [a, b, c, d] = (look % PROBE_PLACES).to_be_bytes();
    [b'p', b'r', b'o', b'b', a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_looks_at_many_places_of_which_none_is_a_user() {
        let places: std::collections::HashSet<[u8; 8]> = (0..1_000).map(probe_place).collect();
        assert_eq!(places.len(), PROBE_PLACES as usize);
    }
}
