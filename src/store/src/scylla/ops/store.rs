//! `Publish` and `Save`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use machine::ids::Chid;
use machine::message::{Message, Topic};
use machine::simplepush::Mode;
use machine::{StoreError, StoreReply};

use super::super::client::StatementContext;
use super::super::port::Answer;
use super::super::rows::{self, RowLocation, micros};
use super::super::statements::Change;
use super::super::stats::count;
use super::super::user_cache::{CachedUser, UserCache};
use super::changes::write;
use super::read::read_user;
use super::{changes, updates, users};
use crate::shared::schema::family;

/// A message that is not written this long after its clock is refused: low water may pass it later.
const WRITE_WITHIN_US: u64 = machine::limits::WRITE_SECONDS_MAX * 1_000_000;

pub(super) async fn publish(
    context: &StatementContext<'_>,
    known: &UserCache,
    message: &Message,
    checked: bool,
) -> Answer {
    let mut low_water = known.get(message.uaid, |user| user.low_water).flatten().unwrap_or_default();
    if !checked {
        let part = users::check(context, message.uaid, message.chid).await?;
        if part.record.is_none() || !part.has_channel(message.chid) {
            return Ok(StoreReply::NoSubscription);
        }
        if message.mode() != part.contact.mode {
            return Ok(StoreReply::OtherMode);
        }
        if let Some(bridge) = part.bridge {
            return Ok(StoreReply::Bridged(bridge));
        }
        low_water = low_water.max(part.low_water);
    }
    if message.ttl == 0 {
        return Ok(StoreReply::Done);
    }
    if message.mode() == Mode::Simple {
        let changes = updates::publish(context, message).await?;
        context.change(&message.uaid, &changes).await?;
    } else {
        // No session settled a message before it was there: a message that comes late is kept like one from a ledger.
        let late = message.topic.is_none() && message.stamp.clock <= low_water;
        let family = if late { family::SAVED } else { family::MESSAGE };
        let mut changes = vec![put(context, message, family)];
        if late {
            known.change(message.uaid, CachedUser::may_have_saved);
            changes.push(changes::late(context));
        }
        context.change(&message.uaid, &changes).await?;
    }
    // The host may have slept, so that its clock is right and ours is not yet.
    if context.client.process_clock.latest_us() > message.stamp.clock.0.saturating_add(WRITE_WITHIN_US) {
        let late = &context.client.stats.others.late;
        count(late);
        if late.load(Ordering::Relaxed).is_power_of_two() {
            tracing::error!(limit_seconds = WRITE_WITHIN_US / 1_000_000, "message not stored in time");
        }
        return Err(StoreError::Transient);
    }
    Ok(StoreReply::Done)
}

pub(super) async fn save(context: &StatementContext<'_>, known: &UserCache, messages: &[Arc<Message>]) -> Answer {
    let Some(first) = messages.first() else { return Ok(StoreReply::Done) };
    let uaid = first.uaid;
    let part = read_user(context, known, uaid).await?;
    if part.record.is_none() {
        return Ok(StoreReply::Done);
    }
    let mut changes = Vec::new();
    let (mut updated, mut plain): (Vec<Chid>, Vec<&Message>) = Default::default();
    for message in messages.iter().filter(|message| part.has_channel(message.chid)) {
        if message.topic.is_none() {
            known.change(uaid, |user| user.take_unsaved_row(message.stamp));
            plain.push(&**message);
        } else if message.topic != Some(Topic::UPDATE) {
            changes.push(put(context, message, family::TOPIC));
        } else if !updated.contains(&message.chid) {
            updated.push(message.chid);
        }
    }
    for chid in updated {
        let of_channel = messages.iter().filter(|m| m.chid == chid && m.topic == Some(Topic::UPDATE));
        changes.extend(updates::save(context, uaid, chid, of_channel.map(|message| &**message)).await?);
    }
    // Low water waits for the first of these as it does for what is POSTed.
    let (early, late): (Vec<_>, Vec<_>) =
        plain.into_iter().partition(|message| message.stamp.clock > part.low_water && is_early(context, message, 2));
    changes.extend(early.iter().map(|message| save_as(context, message, family::MESSAGE)));
    if !late.is_empty() {
        known.change(uaid, CachedUser::may_have_saved);
        changes.push(changes::late(context));
        changes.extend(late.iter().map(|message| save_as(context, message, family::SAVED)));
    }
    context.change(&uaid, &changes).await?;
    let too_late: Vec<_> = early.into_iter().filter(|message| !is_early(context, message, 1)).collect();
    if !too_late.is_empty() {
        known.change(uaid, CachedUser::may_have_saved);
        let mut again = vec![changes::late(context)];
        again.extend(too_late.iter().map(|message| save_as(context, message, family::SAVED)));
        context.change(&uaid, &again).await?;
    }
    Ok(StoreReply::Done)
}

/// Returns true if less than this part of the time for its write has passed since the stamp of a message.
fn is_early(context: &StatementContext<'_>, message: &Message, part: u64) -> bool {
    let (now, clock) = (context.client.process_clock.latest_us(), message.stamp.clock.0);
    now >= clock && now - clock <= WRITE_WITHIN_US / part
}

fn save_as(context: &StatementContext<'_>, message: &Message, family: i8) -> Change {
    let place = RowLocation::plain(family, message.stamp, message.chid);
    let (ttl, at) = (context.client.ttl(message.expires()), micros(message.stamp.clock));
    Change::MessagePut { place, value: rows::saved_value(message), at, ttl }
}

/// Writes a message to the topic it has, else to this family.
fn put(context: &StatementContext<'_>, message: &Message, family: i8) -> Change {
    let place = match &message.topic {
        Some(topic) => RowLocation::topic(message.chid, topic, message.stamp),
        None => RowLocation::plain(family, message.stamp, message.chid),
    };
    write(context, message, place)
}
