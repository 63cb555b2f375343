//! Reads of a user's partition, and rows that do not parse.

use machine::StoreError;
use machine::ids::Uaid;

use super::super::client::{Failed, StatementContext};
use super::super::rows::{self, UserPart};
use super::super::stats::{Statement, count};
use super::super::user_cache::UserCache;

impl From<Failed> for StoreError {
    fn from(_: Failed) -> StoreError {
        StoreError::Transient
    }
}

/// Reads the whole partition of a user and remembers what later operations need.
pub(super) async fn read_user(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
) -> Result<UserPart, Failed> {
    let part = read_part(context, Statement::UserRead, &(rows::uaid(&uaid),)).await?;
    let channels = part.channels.len();
    if part.record.is_some() {
        known.change(uaid, |user| {
            user.is_there(part.low_water, part.deleted);
            user.channels = Some(channels);
        });
    }
    Ok(part)
}

/// Reads rows of a user's partition, of which none is an unreadable record.
pub(super) async fn read_part(
    context: &StatementContext<'_>,
    statement: Statement,
    values: &impl scylla::serialize::row::SerializeRow,
) -> Result<UserPart, Failed> {
    sound(context, read_rows(context, statement, values).await?)
}

/// Refuses a part with an unreadable record, and counts rows that do not parse.
pub(super) fn sound(context: &StatementContext<'_>, part: UserPart) -> Result<UserPart, Failed> {
    if part.record_unreadable {
        return Err(misread(context, &"the record of a user cannot be read"));
    }
    if part.damaged > 0 {
        context.client.stats.others.damaged_rows.fetch_add(part.damaged, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(part)
}

/// Reads rows of a user's partition, also an unreadable record.
pub(in super::super) async fn read_rows(
    context: &StatementContext<'_>,
    statement: Statement,
    values: &impl scylla::serialize::row::SerializeRow,
) -> Result<UserPart, Failed> {
    let (mut part, mut state) = (UserPart::default(), None);
    loop {
        let (found, next) = context.read(statement, values, state, true).await?;
        let found = found.rows::<(i8, &[u8], &[u8])>().map_err(|error| misread(context, &error))?;
        for row in found {
            let (family, key, value) = row.map_err(|error| misread(context, &error))?;
            part.take(family, key, value);
        }
        match next {
            Some(_) => state = next,
            None => return Ok(part),
        }
    }
}

/// Counts an answer that does not parse; logs the first one, and later ones ever more rarely.
pub(super) fn misread(context: &StatementContext<'_>, error: &dyn std::fmt::Display) -> Failed {
    damaged(context, error);
    Failed
}

/// Counts a row that does not parse; logs the first one, and later ones ever more rarely.
pub(super) fn damaged(context: &StatementContext<'_>, error: &dyn std::fmt::Display) {
    let rows = &context.client.stats.others.damaged_rows;
    count(rows);
    let count = rows.load(std::sync::atomic::Ordering::Relaxed);
    if count.is_power_of_two() {
        tracing::error!(count, %error, "row of an unknown format found in the shared store");
    }
}
