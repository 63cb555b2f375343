//! Operations on the record of a bridged user.
//!
//! Two nodes may change one user at the same time: a registration of a new token here, the removal of the old one
//! there. A delete is one microsecond later than the row that was read, and a registration writes every row of the user
//! two microseconds later than it was: the rows that it wrote stand beside a removal that read the old ones. Each of
//! them first writes and then reads, so that at least one sees the other: a removal is not said to have taken effect
//! while a registration can still bring the user back (docs/decisions/0032-bridged-records.md).

use machine::StoreReply;
use machine::ids::{Clock, Uaid};
use machine::time::UnixSeconds;
use machine::upstream::Bridged;

use super::super::client::{Failed, StatementContext};
use super::super::port::Answer;
use super::super::rows;
use super::super::statements::Change;
use super::super::stats::Statement;
use super::super::user_cache::{CachedUser, UserCache};
use super::read::misread;
use super::users::{self, TimedRow, USER_TTL, read_timed};
use crate::IDLE_SECONDS_MAX;
use crate::shared::schema::family;

/// Microseconds from a row that was read to its copy. A refresh at the same time writes one microsecond later.
const COPY_US: i64 = 2;

pub(super) async fn set(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid, bridge: &Bridged) -> Answer {
    let dropped_at = known.get(uaid, |user| user.dropped_at).unwrap_or_default();
    replace(context, uaid, dropped_at, bridge).await
}

/// Replaces the bridge, later than `dropped_at` and everything that is there.
pub(in super::super) async fn replace(
    context: &StatementContext<'_>,
    uaid: Uaid,
    dropped_at: Clock,
    bridge: &Bridged,
) -> Answer {
    let rows = read_timed(context, uaid).await?;
    let Some((_, there, _)) = bridged(context, &rows)? else { return Ok(StoreReply::Done) };
    if !bridge.is_newer_than(&there) {
        return Ok(StoreReply::Done);
    }
    let latest = rows.iter().map(|row| row.at.saturating_add(COPY_US)).max().unwrap_or_default();
    let at = Clock(latest.max(rows::micros(dropped_at.max(bridge.registered))).unsigned_abs());
    let first = [users::user_clock(at), users::put(family::BRIDGE, Vec::new(), rows::bridge(bridge), at)];
    context.change(&uaid, &first).await?;
    let rows = read_timed(context, uaid).await?;
    match bridged(context, &rows)? {
        Some((_, _, seen)) => context.change(&uaid, &copies(rows, seen.max(bridge.seen()))).await?,
        None => users::delete(context, uaid, rows).await?,
    }
    Ok(StoreReply::Done)
}

/// Copies of the rows of a user, each later than it was, but of its bridge and its low water.
pub(super) fn copies(rows: Vec<TimedRow>, seen: UnixSeconds) -> Vec<Change> {
    let (mut newest, mut changes) = (0, Vec::with_capacity(rows.len()));
    for TimedRow { family, key, mut value, at } in rows {
        let at = at.saturating_add(COPY_US);
        match family {
            family::BRIDGE | family::LOW_WATER | family::PRESENCE | family::DELETED => continue,
            family::RECORD => {
                if let Some((version, _)) = rows::parse_record(&value) {
                    value = rows::record(version, seen);
                }
            }
            family::USER_CLOCK => {
                newest =
                    newest.max(rows::micros(rows::parse_clock(&value).unwrap_or_default()).saturating_add(COPY_US));
            }
            _ => {}
        }
        newest = newest.max(at);
        if family != family::USER_CLOCK {
            changes.push(Change::UserPut { family, key, value, at, ttl: USER_TTL });
        }
    }
    // First, so that the record is in the first batch of many.
    changes.insert(0, users::user_clock(Clock(newest.unsigned_abs())));
    changes
}

/// Notes a refusal, or ends the note, one microsecond later than the record that was read, so that a registration or a
/// removal at the same time wins. The row lives as long as the user would without it.
pub(super) async fn mark(
    context: &StatementContext<'_>,
    uaid: Uaid,
    registered: Clock,
    refused: Option<UnixSeconds>,
) -> Answer {
    let rows = read_timed(context, uaid).await?;
    let Some((at, there, seen)) = bridged(context, &rows)? else { return Ok(StoreReply::Done) };
    if there.registered == registered && there.refused.is_none() == refused.is_some() {
        let changed = if refused.is_some() { Bridged { refused, ..there } } else { there.taken() };
        let value = rows::bridge(&changed);
        let ttl = context.client.ttl(UnixSeconds(seen.0.saturating_add(IDLE_SECONDS_MAX)));
        let at = at.saturating_add(1);
        context.change(&uaid, &[Change::UserPut { family: family::BRIDGE, key: Vec::new(), value, at, ttl }]).await?;
    }
    Ok(StoreReply::Done)
}

/// Each row goes in the version that was read, and in the one that a refresh at the same time makes of it. What a
/// subscription on another node has written meanwhile goes behind that.
pub(super) async fn drop(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid, registered: Clock) -> Answer {
    let rows = read_timed(context, uaid).await?;
    if !users::has(&rows, family::RECORD) {
        return Ok(StoreReply::Done);
    }
    if bridged(context, &rows)?.is_none_or(|(_, there, _)| there.registered != registered) {
        return Ok(StoreReply::Kept);
    }
    let rows: Vec<_> = rows.into_iter().map(|row| TimedRow { at: row.at.saturating_add(1), ..row }).collect();
    let newest = rows.iter().map(|row| row.at).max().unwrap_or_default();
    users::delete(context, uaid, rows).await?;
    known.change(uaid, |user| *user = CachedUser::dropped(Clock(newest.unsigned_abs())));
    let behind = read_timed(context, uaid).await?;
    if users::has(&behind, family::RECORD) || users::has(&behind, family::BRIDGE) {
        return Ok(StoreReply::Kept);
    }
    users::delete(context, uaid, behind).await?;
    // A bridged user has no messages, but what a ledger of another time may have saved.
    let mut saved: Option<i64> = None;
    users::for_each_message(context, uaid, |_, at| saved = saved.max(Some(at))).await?;
    if let Some(at) = saved {
        context.send(Statement::MessageDrop, &(at, rows::uaid(&uaid))).await?;
    }
    Ok(StoreReply::Done)
}

/// The bridge of a user with its timestamp, and the time at which the user was last seen; `None` without either.
fn bridged(context: &StatementContext<'_>, rows: &[TimedRow]) -> Result<Option<(i64, Bridged, UnixSeconds)>, Failed> {
    let of = |family| rows.iter().find(|row| row.family == family);
    let (Some(bridge), Some(record)) = (of(family::BRIDGE), of(family::RECORD)) else { return Ok(None) };
    match (rows::parse_bridge(&bridge.value), rows::parse_record(&record.value)) {
        (Some(parsed), Some((_, seen))) => Ok(Some((bridge.at, parsed, seen))),
        _ => Err(misread(context, &"the record of a bridged user cannot be read")),
    }
}
