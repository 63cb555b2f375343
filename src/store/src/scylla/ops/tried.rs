//! `Tried`: the number of failed deliveries of rows.
//!
//! The count is a part of the value, so the row is read and written again, at the timestamp of its message: the delete
//! of an ack has that timestamp too, and of a write and a delete with one timestamp the delete stays. Of two writes
//! the one that expires later stays, so each count keeps its row a little longer than the one before.

use machine::message::{Message, Topic, Tries};
use machine::{RowKey, StoreReply};

use super::super::client::{Failed, StatementContext};
use super::super::port::Answer;
use super::super::rows::{self, RowLocation, micros};
use super::super::statements::Change;
use super::super::stats::Statement;
use super::read::misread;
use super::{pages, updates};
use crate::shared::schema::family;

/// Seconds by which a row is kept longer for each delivery: more than two clocks read a moment apart differ.
const SECONDS_EACH: i32 = 2;

pub(super) async fn tried(context: &StatementContext<'_>, tried: &[(RowKey, Tries)]) -> Answer {
    let Some((first, _)) = tried.first() else { return Ok(StoreReply::Done) };
    let mut changes = Vec::new();
    for (row, tries) in tried {
        for (place, message) in forms(context, row).await? {
            let message = Message { tries: *tries, ..message };
            let ttl =
                context.client.ttl(message.expires()).saturating_add(SECONDS_EACH * i32::from(tries.deliveries()));
            changes.push(Change::MessagePut {
                place,
                // Which of the two it was is not read: an ack deletes both forms of it.
                value: rows::saved_value(&message),
                at: micros(message.stamp.clock),
                ttl,
            });
        }
    }
    if !changes.is_empty() {
        context.change(&first.uaid, &changes).await?;
    }
    Ok(StoreReply::Done)
}

/// Every form of this version in the store.
async fn forms(context: &StatementContext<'_>, row: &RowKey) -> Result<Vec<(RowLocation, Message)>, Failed> {
    let found = match &row.topic {
        Some(topic) if *topic == Topic::UPDATE => updates::of_channel(context, row.uaid, row.chid).await?,
        Some(topic) => pages::read_topic(context, row, topic).await?,
        None => return plain_forms(context, row).await,
    };
    let found = found.filter(|message| message.stamp == row.stamp);
    Ok(found.map(|message| (RowLocation::of(&message), message)).into_iter().collect())
}

async fn plain_forms(context: &StatementContext<'_>, row: &RowKey) -> Result<Vec<(RowLocation, Message)>, Failed> {
    let (clock, origin) = (micros(row.stamp.clock), i64::from(row.stamp.origin.0));
    let values = (rows::uaid(&row.uaid), clock, origin, &row.chid.0[..]);
    let (found, _) = context.read(Statement::RowRead, &values, None, false).await?;
    let mut forms = Vec::new();
    for kept in found.rows::<(i8, &[u8])>().map_err(|error| misread(context, &error))? {
        let (of, value) = kept.map_err(|error| misread(context, &error))?;
        if (of == family::SAVED || of == family::MESSAGE)
            && let Some(message) = rows::message(value)
        {
            forms.push((RowLocation::plain(of, row.stamp, row.chid), message));
        }
    }
    Ok(forms)
}
