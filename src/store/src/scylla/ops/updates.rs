//! Version updates (SimplePush): the row of a channel that counts.
//!
//! A higher version replaces a lower one in any order of arrival, so time cannot settle it. Every update has a row of
//! its own, and a store deletes the rows that it replaces. A read takes the row that would be left if they had been
//! stored one after another. Two nodes that store at the same moment leave two rows; the next store or ack sees to it.

use machine::RowKey;
use machine::ids::{Chid, Uaid};
use machine::message::{Message, Topic};

use super::super::client::{Failed, StatementContext};
use super::super::rows::{self, RowLocation};
use super::super::statements::Change;
use super::super::stats::Statement;
use super::changes::{delete, write};
use super::read::{damaged, misread};

/// Changes that store this update; none when a row stands above it.
pub(in super::super) async fn publish(
    context: &StatementContext<'_>,
    message: &Message,
) -> Result<Vec<Change>, Failed> {
    save(context, message.uaid, message.chid, std::iter::once(message)).await
}

/// As [`publish`] for several of one channel, in this order.
pub(super) async fn save(
    context: &StatementContext<'_>,
    uaid: Uaid,
    chid: Chid,
    messages: impl Iterator<Item = &Message>,
) -> Result<Vec<Change>, Failed> {
    let rows = read(context, uaid, chid).await?;
    let held = counts(rows.clone());
    let mut last = held.clone();
    for message in messages {
        if last.as_ref().is_none_or(|held| message.replaces(&held.held())) {
            last = Some(message.clone());
        }
    }
    let (Some(last), true) = (&last, last != held) else { return Ok(Vec::new()) };
    let replaced = rows.iter().filter(|row| row.stamp != last.stamp);
    let mut changes: Vec<Change> = replaced.map(|row| delete(place(row), row.stamp.clock)).collect();
    changes.push(write(context, last, place(last)));
    Ok(changes)
}

/// Changes that settle this update: those that it replaced go with it.
pub(super) async fn settle(context: &StatementContext<'_>, row: &RowKey) -> Result<Vec<Change>, Failed> {
    let rows = read(context, row.uaid, row.chid).await?;
    let counts = counts(rows.clone()).is_some_and(|held| held.stamp == row.stamp);
    let mut changes = vec![delete(RowLocation::topic(row.chid, &Topic::UPDATE, row.stamp), row.stamp.clock)];
    if counts {
        let others = rows.iter().filter(|other| other.stamp != row.stamp);
        changes.extend(others.map(|other| delete(place(other), other.stamp.clock)));
    }
    Ok(changes)
}

/// The row that counts among the rows of one channel.
pub(super) async fn of_channel(
    context: &StatementContext<'_>,
    uaid: Uaid,
    chid: Chid,
) -> Result<Option<Message>, Failed> {
    Ok(counts(read(context, uaid, chid).await?))
}

/// The row of one channel that would be left, had all been stored in the order of their acceptance.
pub(super) fn counts(mut rows: Vec<Message>) -> Option<Message> {
    rows.sort_by_key(|row| (row.accepted, row.stamp));
    rows.into_iter().reduce(|held, next| if next.replaces(&held.held()) { next } else { held })
}

async fn read(context: &StatementContext<'_>, uaid: Uaid, chid: Chid) -> Result<Vec<Message>, Failed> {
    let (from, to) = rows::update_range(chid);
    let (mut messages, mut state) = (Vec::new(), None);
    loop {
        let (found, next) = context.read(Statement::UpdatesRead, &(rows::uaid(&uaid), &from, &to), state, true).await?;
        for row in found.rows::<(&[u8], &[u8])>().map_err(|error| misread(context, &error))? {
            let (_, value) = row.map_err(|error| misread(context, &error))?;
            match rows::message(value) {
                Some(message) => messages.push(message),
                None => damaged(context, &"a version update"),
            }
        }
        match next {
            Some(_) => state = next,
            None => return Ok(messages),
        }
    }
}

fn place(message: &Message) -> RowLocation {
    RowLocation::of(message)
}
