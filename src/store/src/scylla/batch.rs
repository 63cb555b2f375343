//! Several changes of one user at once, as a database takes them with the time limit of a statement.
//!
//! Cassandra has no such limit, and gets the BATCH frame of the protocol. ScyllaDB ignores the limits of the statements
//! in a batch, by its documentation: only the limit of the batch itself counts, and the BATCH frame has no field for
//! it. So a batch for ScyllaDB is a text of its own that begins with its limit. Such a text is prepared once for each
//! [`Shape`] of a batch, which [`rounded`] keeps few.
//!
//! Lives on: the store's runtime; shared by all lanes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use scylla::client::session::Session;
use scylla::errors::{ExecutionError, PrepareError};
use scylla::serialize::SerializationError;
use scylla::serialize::row::{RowSerializationContext, SerializeRow};
use scylla::serialize::writers::RowWriter;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

use super::statements::{Bound, Change, text};
use super::stats::Statement;

/// Number of changes of each kind, in the order of the text.
type Shape = Vec<(Statement, usize)>;

/// Prepared batches that are kept: some 2 kB for each change of the largest. At the bound all are forgotten.
const SHAPES_MAX: usize = 256;

/// Batches for a database that gives a batch up by a limit in its text.
pub(super) struct TimedBatches {
    keyspace: String,
    time: Duration,
    level: Consistency,
    prepared: Mutex<BTreeMap<Shape, PreparedStatement>>,
}

impl TimedBatches {
    pub(super) fn new(keyspace: &str, time: Duration, level: Consistency) -> TimedBatches {
        TimedBatches { keyspace: keyspace.to_owned(), time, level, prepared: Mutex::default() }
    }

    /// Makes these changes of one user in one mutation.
    pub(super) async fn send(&self, session: &Session, uaid: &[u8], changes: &[Change]) -> Result<(), ExecutionError> {
        let (shape, changes) = shaped(changes);
        let prepared = self.prepared(session, &shape).await?;
        session.execute_unpaged(&prepared, &Together(uaid, changes)).await.map(drop)
    }

    async fn prepared(&self, session: &Session, shape: &Shape) -> Result<PreparedStatement, PrepareError> {
        let known = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(prepared) = known().get(shape) {
            return Ok(prepared.clone());
        }
        let mut made = session.prepare(batch_text(shape, &self.keyspace, self.time)).await?;
        made.set_consistency(self.level);
        made.set_is_idempotent(true);
        let mut known = known();
        if known.len() >= SHAPES_MAX {
            known.clear();
        }
        known.insert(shape.clone(), made.clone());
        Ok(made)
    }
}

/// The text of a batch. The limits of its statements would count for nothing, so they have none.
fn batch_text(shape: &Shape, keyspace: &str, time: Duration) -> String {
    let changes = shape.iter().flat_map(|(statement, count)| std::iter::repeat_n(*statement, *count));
    let changes: String = changes.map(|statement| format!("{}; ", text(statement, keyspace))).collect();
    format!("BEGIN UNLOGGED BATCH USING TIMEOUT {}ms {changes}APPLY BATCH", time.as_millis().max(1))
}

/// Sorts changes by their kinds, of each as many as [`rounded`] says. Every change has a timestamp of its own, so their
/// order counts for nothing, and a change that is made twice is made once.
fn shaped(changes: &[Change]) -> (Shape, Vec<&Change>) {
    let mut kinds: BTreeMap<Statement, Vec<&Change>> = BTreeMap::new();
    for change in changes {
        kinds.entry(change.statement()).or_default().push(change);
    }
    let (mut shape, mut all) = (Shape::new(), Vec::new());
    for (statement, mut of_kind) in kinds {
        let last = of_kind.last().copied();
        of_kind.extend(std::iter::repeat_n(last, rounded(of_kind.len()) - of_kind.len()).flatten());
        shape.push((statement, of_kind.len()));
        all.extend(of_kind);
    }
    (shape, all)
}

/// The least of 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on that is not less: at most half of a batch is there twice.
fn rounded(count: usize) -> usize {
    let power = count.next_power_of_two();
    if count <= power / 4 * 3 && power >= 4 { power / 4 * 3 } else { power }
}

/// The values of all changes of a batch, one behind the other.
struct Together<'a>(&'a [u8], Vec<&'a Change>);

impl SerializeRow for Together<'_> {
    fn serialize(&self, ctx: &RowSerializationContext<'_>, writer: &mut RowWriter) -> Result<(), SerializationError> {
        let mut columns = ctx.columns();
        for change in &self.1 {
            let (of_change, rest) = columns.split_at(change.values().min(columns.len()));
            Bound(self.0, change).serialize(&RowSerializationContext::from_specs(of_change), writer)?;
            columns = rest;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows::RowLocation;
    use super::*;

    fn put(key: u8) -> Change {
        Change::UserPut { family: 5, key: vec![key], value: vec![key], at: 1, ttl: 1 }
    }

    #[test]
    fn a_batch_begins_with_its_time_and_its_statements_have_none() {
        let place = RowLocation { family: 2, clock: 1, origin: 1, key: vec![1] };
        let deletes = |count: usize| {
            (0..count).map(|_| Change::MessageDelete { place: place.clone(), at: 1 }).collect::<Vec<_>>()
        };
        for (changes, statements) in [(vec![put(1), put(2)], 2), (deletes(5), 6)] {
            let (shape, all) = shaped(&changes);
            let text = batch_text(&shape, "k", Duration::from_millis(2_500));
            assert!(text.starts_with("BEGIN UNLOGGED BATCH USING TIMEOUT 2500ms "), "{text}");
            assert!(text.ends_with("; APPLY BATCH"), "{text}");
            assert_eq!(text.matches("TIMEOUT").count(), 1, "{text}");
            assert_eq!(text.matches("USING TIMESTAMP ?").count(), statements, "{text}");
            assert_eq!(text.matches('?').count(), all.iter().map(|change| change.values()).sum::<usize>(), "{text}");
        }
    }

    #[test]
    fn batches_have_few_shapes_and_every_change() {
        let rounds: Vec<usize> = (1..=17).map(rounded).collect();
        assert_eq!(rounds, [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16, 16, 16, 16, 24]);
        let mut changes: Vec<Change> = (0..5).map(put).collect();
        changes.insert(2, Change::UserDelete { family: 5, key: vec![9], at: 1 });
        let (shape, all) = shaped(&changes);
        assert_eq!(shape, [(Statement::UserPut, 6), (Statement::UserDelete, 1)]);
        let keys: Vec<u8> = all
            .iter()
            .map(|change| match change {
                Change::UserPut { key, .. } | Change::UserDelete { key, .. } => key[0],
                Change::ChannelSweep { .. } | Change::MessagePut { .. } | Change::MessageDelete { .. } => 0,
            })
            .collect();
        assert_eq!(keys, [0, 1, 2, 3, 4, 4, 9]);
    }
}
