//! Tombstones that reads pass, and rows that were settled and are still on disk.
//!
//! An ack of a young message deletes its row alone, and every read behind low water passes the tombstone for as long as
//! it lives, a day. Low water is therefore raised past them, by the rows themselves: every message row below the first
//! that is there is settled, and none can appear below `limits::SETTLE_SECONDS`. A user with many such deletes has a
//! row that says so (`family::DELETED`), so that the next check finds out on any node. Rows of users with few stay
//! where they are: a write for each would cost more than their tombstones.
//!
//! Rows below low water are on disk until they expire. The refresh of a user deletes them with one range, whose
//! timestamp is older than every write that can still be under way (`limits::RECLAIM_SECONDS`): a row that a hint
//! brings later stands.

use std::sync::atomic::Ordering;

use machine::ids::{Clock, Uaid};
use machine::limits;

use super::super::client::{Failed, StatementContext};
use super::super::rows::{self, micros};
use super::super::statements::Change;
use super::super::stats::Statement;
use super::super::user_cache::UserCache;
use super::read::misread;
use crate::IDLE_SECONDS_MAX;
use crate::shared::schema::family;

/// Seconds for which the database is told of many deletes: their tombstones live a day, and compaction is late.
const DELETED_TTL: i32 = 2 * 86_400;

/// The clock this many seconds ago; none while this clock is far from those of the database.
pub(super) fn ago(context: &StatementContext<'_>, seconds: u64) -> Clock {
    let clock = &context.client.process_clock;
    let now = if clock.is_stopped() { 0 } else { clock.unix_us() };
    Clock(now.saturating_sub(seconds * 1_000_000))
}

/// Low water is written at its own value, so the greatest stays.
pub(in super::super) fn settled_at(at: Clock) -> Change {
    let (value, ttl) = (rows::clock(at), IDLE_SECONDS_MAX as i32);
    Change::UserPut { family: family::LOW_WATER, key: Vec::new(), value, at: micros(at), ttl }
}

/// Says that this user has many message rows that were deleted alone, the latest at `last`.
pub(super) fn note(last: Clock) -> Change {
    let value = rows::clock(last);
    Change::UserPut { family: family::DELETED, key: Vec::new(), value, at: micros(last), ttl: DELETED_TTL }
}

/// Raises low water past the rows of this user that were deleted alone, if there were many. All message rows behind low
/// water were just read; the first of them that is there has the clock `first`. A failure costs the next read.
pub(super) async fn pass(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid, first: Option<Clock>) {
    let Some((Some(before), deleted)) = known.get(uaid, |user| (user.low_water, user.deleted)) else { return };
    let below = first.map_or(Clock(u64::MAX), |first| Clock(first.0.saturating_sub(1)));
    let settled = below.min(ago(context, limits::SETTLE_SECONDS));
    if deleted <= before || settled <= before {
        return;
    }
    if context.change(&uaid, &[settled_at(settled)]).await.is_ok() {
        context.client.stats.others.low_water_passed.fetch_add(1, Ordering::Relaxed);
        known.change(uaid, |user| user.raise(settled));
    }
}

/// As [`pass`], and finds the first row itself.
pub(super) async fn find_and_pass(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid) -> Result<(), Failed> {
    let Some(Some(settled)) = known.get(uaid, |user| user.low_water) else { return Ok(()) };
    let (clock, origin) = (micros(settled), i64::from(u32::MAX));
    let values = (rows::uaid(&uaid), family::MESSAGE, clock, origin, family::MESSAGE, i64::MAX, i64::MAX);
    let (found, _) = context.read(Statement::MessagesRead, &values, None, false).await?;
    let rows = found.rows::<(i64, i64, &[u8], &[u8])>().map_err(|error| misread(context, &error))?;
    let first = match rows.into_iter().next() {
        Some(row) => Some(Clock(row.map_err(|error| misread(context, &error))?.0.unsigned_abs())),
        None => None,
    };
    pass(context, known, uaid, first).await;
    Ok(())
}

/// Deletes the message rows at or below `low_water` that are old enough.
pub(super) async fn reclaim(context: &StatementContext<'_>, uaid: Uaid, low_water: Clock) -> Result<(), Failed> {
    let below = micros(low_water.min(ago(context, limits::RECLAIM_SECONDS)));
    if below == 0 {
        return Ok(());
    }
    context.send(Statement::MessageReclaim, &(below, rows::uaid(&uaid), below)).await
}
