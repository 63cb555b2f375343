//! `Publish` and `Save`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use machine::ids::Chid;
use machine::message::{Message, Topic};
use machine::simplepush::Mode;
use machine::{StoreError, StoreReply};

use super::super::client::StatementContext;
use super::super::port::Answer;
use super::super::rows::RowLocation;
use super::super::schema::family;
use super::super::statements::Change;
use super::super::stats::count;
use super::super::user_cache::{CachedUser, UserCache};
use super::changes::write;
use super::read::read_user;
use super::{updates, users};

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
        if late {
            known.change(message.uaid, CachedUser::may_have_saved);
        }
        context.change(&message.uaid, &[put(context, message, family)]).await?;
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
    known.change(uaid, CachedUser::may_have_saved);
    let mut changes = Vec::new();
    let mut updated: Vec<Chid> = Vec::new();
    for message in messages.iter().filter(|message| part.has_channel(message.chid)) {
        if message.topic != Some(Topic::UPDATE) {
            known.change(uaid, |user| user.take_unsaved_row(message.stamp));
            changes.push(put(context, message, family::SAVED));
        } else if !updated.contains(&message.chid) {
            updated.push(message.chid);
        }
    }
    for chid in updated {
        let of_channel = messages.iter().filter(|m| m.chid == chid && m.topic == Some(Topic::UPDATE));
        changes.extend(updates::save(context, uaid, chid, of_channel.map(|message| &**message)).await?);
    }
    context.change(&uaid, &changes).await?;
    Ok(StoreReply::Done)
}

/// Writes a message to the topic it has, else to this family.
fn put(context: &StatementContext<'_>, message: &Message, family: i8) -> Change {
    let place = match &message.topic {
        Some(topic) => RowLocation::topic(message.chid, topic, message.stamp),
        None => RowLocation::plain(family, message.stamp, message.chid),
    };
    write(context, message, place)
}
