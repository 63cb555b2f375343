//! The drop of users that have no channel when their session ends.

use machine::StoreReply;
use machine::ids::{Clock, Uaid};

use super::super::client::StatementContext;
use super::super::port::Answer;
use super::super::rows::{self, UserPart, micros};
use super::super::stats::Statement;
use super::super::user_cache::{CachedUser, UserCache};
use super::bridges;
use super::read::sound;
use super::users::{TimedRow, delete, has, read_timed};
use crate::shared::schema::family;

/// Drops a user that has no channel. Each row goes in the version that was read, so that a register on another node,
/// which writes the record with its channel, stands beside it. A writer that came first reads behind it: a subscription
/// or a session that took the user for there has its record back.
pub(super) async fn drop(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid) -> Answer {
    let rows = read_timed(context, uaid).await?;
    let mut part = UserPart::default();
    rows.iter().for_each(|row| part.take(row.family, &row.key, &row.value));
    let part = sound(context, part)?;
    let is_used = |rows: &[TimedRow]| [family::CHANNEL, family::PRESENCE, family::BRIDGE].map(|of| has(rows, of));
    let Some((_, seen)) = part.record.filter(|_| is_used(&rows) == [false; 3] && part.contact.is_droppable()) else {
        return Ok(StoreReply::Kept);
    };
    let settled = micros(part.low_water);
    if settled > 0 {
        // Messages of channels that were unregistered, which low water hides.
        context.send(Statement::MessageDrop, &(settled, rows::uaid(&uaid))).await?;
    }
    let newest = rows.iter().map(|row| row.at).max().unwrap_or_default();
    known.change(uaid, |user| *user = CachedUser::dropped(Clock(newest.unsigned_abs())));
    delete(context, uaid, rows.clone()).await?;
    let behind = read_timed(context, uaid).await?;
    if has(&behind, family::RECORD) {
        return Ok(StoreReply::Kept);
    }
    if is_used(&behind) != [false; 3] {
        // Later than what came meanwhile: its writer may find no record, and delete its rows again.
        let latest = behind.iter().map(|row| row.at).max().unwrap_or_default();
        let rows = rows.into_iter().map(|row| TimedRow { at: row.at.max(latest), ..row }).collect();
        context.change(&uaid, &bridges::copies(rows, seen)).await?;
        return Ok(StoreReply::Kept);
    }
    delete(context, uaid, behind).await?;
    Ok(StoreReply::Done)
}
