//! `Settle`: acks, cancels and replacements, each in exactly its version.
//!
//! Low water is one write for all acks that it covers and leaves no tombstone, so a message row that it covers is not
//! deleted. A saved row it does not cover; of a row of unknown form both forms are deleted. Message rows that are
//! deleted alone are counted, so that reads do not pass their tombstones for long (`super::low_water`).

use machine::ids::{Clock, Uaid};
use machine::message::Topic;
use machine::{RowKey, StoreReply};

use super::super::client::{Failed, StatementContext};
use super::super::port::Answer;
use super::super::rows::RowLocation;
use super::super::stats::count;
use super::super::user_cache::UserCache;
use super::changes::delete;
use super::{low_water, updates};
use crate::shared::schema::family;

pub(super) async fn settle(
    context: &StatementContext<'_>,
    known: &UserCache,
    rows: &[RowKey],
    low_water: Option<Clock>,
) -> Answer {
    let Some(first) = rows.first() else { return Ok(StoreReply::Done) };
    let uaid = first.uaid;
    let before = known.get(uaid, |user| user.low_water).flatten().unwrap_or_default();
    let covered = before.max(low_water.unwrap_or_default());
    let (mut deletes, mut alone, mut last) = (Vec::new(), 0, Clock(0));
    for row in rows {
        match &row.topic {
            Some(topic) if *topic == Topic::UPDATE => deletes.extend(updates::settle(context, row).await?),
            Some(topic) => deletes.push(delete(RowLocation::topic(row.chid, topic, row.stamp), row.stamp.clock)),
            None => {
                if row.stamp.clock > covered {
                    (alone, last) = (alone + 1, last.max(row.stamp.clock));
                    deletes.push(delete(RowLocation::plain(family::MESSAGE, row.stamp, row.chid), row.stamp.clock));
                } else {
                    count(&context.client.stats.others.deletes_spared);
                }
                if !known.change(uaid, |user| user.take_unsaved_row(row.stamp)) {
                    deletes.push(delete(RowLocation::plain(family::SAVED, row.stamp, row.chid), row.stamp.clock));
                }
            }
        }
    }
    let counted = known.change(uaid, |user| user.count_deletes(alone, last));
    let noted = counted.note.then_some(last);
    // Two tables, so two requests, and neither needs the other.
    tokio::try_join!(raise(context, known, uaid, low_water.filter(|low_water| *low_water > before), noted), async {
        context.change(&uaid, &deletes).await
    })?;
    if counted.pass {
        // The rows are settled, also if this fails.
        let _ = low_water::find_and_pass(context, known, uaid).await;
    }
    Ok(StoreReply::Done)
}

async fn raise(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    low_water: Option<Clock>,
    noted: Option<Clock>,
) -> Result<(), Failed> {
    let changes: Vec<_> = low_water.map(low_water::settled_at).into_iter().chain(noted.map(low_water::note)).collect();
    context.change(&uaid, &changes).await?;
    if let Some(low_water) = low_water {
        known.change(uaid, |user| user.raise(low_water));
    }
    Ok(())
}
