//! Operations on the table `user`.

use machine::ids::{Chid, Clock, KeyDigest, Uaid};
use machine::limits;
use machine::simplepush::Contact;
use machine::time::UnixSeconds;
use machine::{Presence, RECORD_VERSION, StoreError, StoreOp, StoreReply};

use super::super::client::{Failed, StatementContext};
use super::super::port::Answer;
use super::super::rows::{self, RowLocation, UserPart, micros};
use super::super::statements::Change;
use super::super::stats::Statement;
use super::super::user_cache::{CachedUser, UserCache};
use super::low_water;
use super::read::{misread, read_part, read_user, sound};
use crate::IDLE_SECONDS_MAX;
use crate::shared::schema::family;

/// Seconds that rows of a user live without a `Touch`.
pub(super) const USER_TTL: i32 = IDLE_SECONDS_MAX as i32;

pub(super) async fn load(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid) -> Answer {
    let part = read_user(context, known, uaid).await?;
    Ok(StoreReply::User(part.into_row().map(Box::new)))
}

/// One short page has all rows of most users. Of a user with more it has everything but channels, and the channel of
/// this id is read alone.
pub(super) async fn locate(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid, chid: Chid) -> Answer {
    let mut part = UserPart::default();
    let (found, next) = context.read(Statement::UserRead, &(rows::uaid(&uaid),), None, false).await?;
    for row in found.rows::<(i8, &[u8], &[u8])>().map_err(|error| misread(context, &error))? {
        let (family, key, value) = row.map_err(|error| misread(context, &error))?;
        part.take(family, key, value);
    }
    let mut part = sound(context, part)?;
    if next.is_some() {
        if part.channels.is_empty() {
            // More presence rows than a page holds: of runs that are over.
            part = read_user(context, known, uaid).await?;
        } else if !part.has_channel(chid) {
            part.channels = check(context, uaid, chid).await?.channels;
        }
    }
    if part.record.is_some() {
        let counted = next.is_none().then_some(part.channels.len());
        known.change(uaid, |user| {
            user.is_there(part.low_water, part.deleted);
            user.channels = counted.or(user.channels);
        });
    }
    part.channels.retain(|channel| channel.chid == chid);
    Ok(StoreReply::User(part.into_row().map(Box::new)))
}

/// Writes every row again as it is, with a new TTL and a timestamp one microsecond later. At the same timestamp the new
/// copy would be lost with the old one: both databases turn an expired cell into a tombstone when they compact its file
/// alone, and a tombstone wins a tie. The user clock is raised to the last of these timestamps, so that a later delete
/// of a row is stamped later. A presence is not written again here: its timestamp is its version, and its session
/// writes the next one. Low water is not written again either: it has lived as long as every message that it covers,
/// and its timestamp is its value. Messages
/// that it has covered for a while are deleted first.
pub(in super::super) async fn touch(context: &StatementContext<'_>, uaid: Uaid, seen: UnixSeconds) -> Answer {
    let (mut changes, mut known, mut newest) = (Vec::new(), false, Clock(0));
    let mut settled = Clock(0);
    for TimedRow { family, key, mut value, at } in read_timed(context, uaid).await? {
        let at = at.saturating_add(1);
        match family {
            family::LOW_WATER => {
                settled = rows::parse_clock(&value).unwrap_or_default();
                continue;
            }
            family::PRESENCE | family::DELETED => continue,
            family::RECORD => {
                if let Some((version, before)) = rows::parse_record(&value) {
                    known = true;
                    value = rows::record(version, before.max(seen));
                }
            }
            family::USER_CLOCK => newest = newest.max(rows::parse_clock(&value).unwrap_or_default()),
            _ => {}
        }
        newest = newest.max(Clock(at.unsigned_abs()));
        if family != family::USER_CLOCK {
            changes.push(Change::UserPut { family, key, value, at, ttl: USER_TTL });
        }
    }
    if known {
        low_water::reclaim(context, uaid, settled).await?;
        changes.push(user_clock(newest));
        context.change(&uaid, &changes).await?;
    }
    Ok(StoreReply::Done)
}

/// A row of `user` with its timestamp.
#[derive(Clone)]
pub(super) struct TimedRow {
    pub(super) family: i8,
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) at: i64,
}

/// Reads the whole partition of a user.
pub(super) async fn read_timed(context: &StatementContext<'_>, uaid: Uaid) -> Result<Vec<TimedRow>, Failed> {
    let (mut rows, mut state) = (Vec::new(), None);
    loop {
        let (found, next) = context.read(Statement::UserTimes, &(rows::uaid(&uaid),), state, true).await?;
        let found = found.rows::<(i8, &[u8], &[u8], i64)>().map_err(|error| misread(context, &error))?;
        for row in found {
            let (family, key, value, at) = row.map_err(|error| misread(context, &error))?;
            rows.push(TimedRow { family, key: key.to_vec(), value: value.to_vec(), at });
        }
        match next {
            Some(_) => state = next,
            None => return Ok(rows),
        }
    }
}

pub(super) async fn register(context: &StatementContext<'_>, known: &UserCache, op: &StoreOp) -> Answer {
    let StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker: _ } = op else {
        unreachable!("only a register is handed over");
    };
    let (uaid, chid) = (*uaid, *chid);
    let (part, channels) = counted(context, known, uaid, chid).await?;
    let there = part.has_channel(chid);
    if channels >= limits::CHANNELS_MAX && !there {
        return Err(StoreError::Full);
    }
    // One more than the rows of a refresh at the same time: a drop of the user in those versions does not end these.
    let at = Clock(later(known, uaid, &part, *at).0.saturating_add(1));
    let mut changes = vec![user_clock(at)];
    if !there || part.record.is_none() {
        // Also of a user that is there: another node may drop it now, because it had no channel.
        let (version, before) = part.record.unwrap_or((RECORD_VERSION, *seen));
        changes.push(put(family::RECORD, Vec::new(), rows::record(version, before.max(*seen)), at));
    }
    if let Some(contact) = contact {
        changes.push(put(family::CONTACT, Vec::new(), rows::contact(contact), at));
        let there = part.bridge.as_ref();
        if let Some(bridge) = contact.bridge.as_ref().filter(|new| there.is_none_or(|there| new.is_newer_than(there))) {
            changes.push(put(family::BRIDGE, Vec::new(), rows::bridge(bridge), at));
        }
    }
    if !there {
        changes.push(put(family::CHANNEL, chid.0.to_vec(), rows::channel(at, key.as_ref()), at));
    }
    if let Some(presence) = presence {
        changes.push(enter(presence));
    }
    context.change(&uaid, &changes).await?;
    known.change(uaid, |user| {
        user.is_there(part.low_water, part.deleted);
        user.channels = Some(channels + usize::from(!there));
    });
    Ok(StoreReply::Done)
}

/// Adds a channel to a user that is there. A removal on another node may have read the user before this write: so the
/// user is read once more behind it, and the rows of a user that is no more go in exactly the versions written here.
pub(super) async fn subscribe(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    (chid, key): (Chid, Option<KeyDigest>),
    at: Clock,
) -> Answer {
    let (part, channels) = counted(context, known, uaid, chid).await?;
    if part.record.is_none() {
        return Ok(StoreReply::NoSubscription);
    }
    if let Some(there) = part.channels.iter().find(|channel| channel.chid == chid) {
        return Ok(if there.key == key { StoreReply::Done } else { StoreReply::OtherKey });
    }
    if channels >= limits::CHANNELS_MAX {
        return Err(StoreError::Full);
    }
    let at = later(known, uaid, &part, at);
    let channel = put(family::CHANNEL, chid.0.to_vec(), rows::channel(at, key.as_ref()), at);
    context.change(&uaid, &[user_clock(at), channel]).await?;
    let behind = check(context, uaid, chid).await?;
    if behind.record.is_none() {
        known.change(uaid, |user| *user = CachedUser::dropped(at.max(user.dropped_at)));
        let gone = |family, key| Change::UserDelete { family, key, at: micros(at) };
        let rows = [gone(family::USER_CLOCK, Vec::new()), gone(family::CHANNEL, chid.0.to_vec())];
        context.change(&uaid, &rows).await?;
        return Ok(StoreReply::NoSubscription);
    }
    known.change(uaid, |user| {
        user.is_there(part.low_water, part.deleted);
        user.channels = Some(channels + 1);
    });
    // Another node may have subscribed the channel meanwhile, with another key and a later clock.
    let lost = behind.channels.iter().any(|there| there.chid == chid && there.key != key);
    Ok(if lost { StoreReply::OtherKey } else { StoreReply::Done })
}

/// Reads a user with at least this channel, and returns the number of its channels beside it.
async fn counted(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    chid: Chid,
) -> Result<(UserPart, usize), Failed> {
    if let Some(channels) = known.get(uaid, |user| user.channels).flatten() {
        return Ok((check(context, uaid, chid).await?, channels));
    }
    let part = read_user(context, known, uaid).await?;
    let channels = part.channels.len();
    Ok((part, channels))
}

/// The contact comes from a hello, which has no clock of its own.
pub(super) async fn set_contact(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    contact: &Contact,
) -> Answer {
    let part = check(context, uaid, Chid([0; 16])).await?;
    if part.record.is_some() {
        let at = later(known, uaid, &part, Clock(context.process_clock()));
        let said = put(family::CONTACT, Vec::new(), rows::contact(contact), at);
        context.change(&uaid, &[user_clock(at), said]).await?;
    }
    Ok(StoreReply::Done)
}

/// A newer session of the same boot has a later timestamp and stays.
pub(super) async fn set_presence(context: &StatementContext<'_>, uaid: Uaid, presence: &Presence) -> Answer {
    context.change(&uaid, &[enter(presence)]).await?;
    Ok(StoreReply::Done)
}

pub(super) async fn clear_presence(context: &StatementContext<'_>, uaid: Uaid, presence: &Presence) -> Answer {
    let at = micros(Clock(presence.connected_at));
    let key = rows::presence_key(&presence.node);
    context.change(&uaid, &[Change::UserDelete { family: family::PRESENCE, key, at }]).await?;
    Ok(StoreReply::Done)
}

/// The channel goes before its messages: a message stored in between finds no channel.
pub(super) async fn unregister(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    chid: Chid,
    at: Clock,
) -> Answer {
    let part = check(context, uaid, chid).await?;
    if part.record.is_none() {
        return Ok(StoreReply::Done);
    }
    let at = later(known, uaid, &part, at);
    let gone = Change::UserDelete { family: family::CHANNEL, key: chid.0.to_vec(), at: micros(at) };
    context.change(&uaid, &[user_clock(at), gone]).await?;
    let many = known.change(uaid, |user| {
        user.channels = user.channels.filter(|_| !part.has_channel(chid));
        user.count_unregister()
    });
    let (mut before, mut behind) = (Vec::new(), Vec::new());
    let of_channel = |deletes: &mut Vec<Change>, place: RowLocation, at| {
        if RowLocation::chid(&place.key) == Some(chid) {
            deletes.push(Change::MessageDelete { place, at });
        }
    };
    let (all, settled) = ((rows::uaid(&uaid),), (rows::uaid(&uaid), micros(part.low_water), i64::MAX));
    tokio::try_join!(
        for_each_key(context, Statement::KeysBefore, &all, |place, at| of_channel(&mut before, place, at)),
        for_each_key(context, Statement::KeysBehind, &settled, |place, at| of_channel(&mut behind, place, at)),
    )?;
    before.append(&mut behind);
    context.change(&uaid, &before).await?;
    if many {
        // The channel is unregistered, also if this fails.
        let _ = sweep_channels(context, uaid).await;
    }
    Ok(StoreReply::Done)
}

/// Seconds from an unregister until its tombstone may become part of one: a register that has not taken effect by then
/// was refused.
const SWEEP_SECONDS: u64 = 600;

/// Replaces the tombstones of channels that were unregistered a while ago by one. The channels that are there are
/// written once more first, later than that tombstone.
async fn sweep_channels(context: &StatementContext<'_>, uaid: Uaid) -> Result<(), Failed> {
    let at = micros(low_water::ago(context, SWEEP_SECONDS));
    let (mut changes, mut newest) = (Vec::new(), Clock(at.unsigned_abs() + 1));
    for row in read_timed(context, uaid).await? {
        newest = newest.max(Clock(row.at.unsigned_abs()));
        if row.family == family::CHANNEL && row.at <= at {
            let (key, value, ttl) = (row.key, row.value, USER_TTL);
            changes.push(Change::UserPut { family: family::CHANNEL, key, value, at: at + 1, ttl });
        }
    }
    changes.push(user_clock(newest));
    changes.push(Change::ChannelSweep { at });
    if at > 0 { context.change(&uaid, &changes).await } else { Ok(()) }
}

/// Everything that is there goes with one tombstone for each table, later than all of it.
pub(super) async fn drop(context: &StatementContext<'_>, known: &UserCache, uaid: Uaid) -> Answer {
    let part = read_user(context, known, uaid).await?;
    let mut highest = micros(part.highest().max(known.get(uaid, |user| user.dropped_at).unwrap_or_default()));
    for_each_message(context, uaid, |_, at| highest = highest.max(at)).await?;
    let at = i64::try_from(context.process_clock()).unwrap_or(i64::MAX).max(highest.saturating_add(1));
    context.send(Statement::UserDrop, &(at, rows::uaid(&uaid))).await?;
    context.send(Statement::MessageDrop, &(at, rows::uaid(&uaid))).await?;
    known.change(uaid, |user| *user = CachedUser::dropped(Clock(at.unsigned_abs())));
    // A subscription or registration on another node, which has read the user before, may have written later rows.
    let mut behind = read_timed(context, uaid).await?;
    if !has(&behind, family::RECORD) {
        behind.retain(|row| row.family != family::PRESENCE);
        delete(context, uaid, behind).await?;
    }
    Ok(StoreReply::Done)
}

/// Deletes rows of a user, in exactly these versions.
pub(super) async fn delete(context: &StatementContext<'_>, uaid: Uaid, rows: Vec<TimedRow>) -> Result<(), Failed> {
    let gone = |TimedRow { family, key, at, .. }| Change::UserDelete { family, key, at };
    let deletes: Vec<_> = rows.into_iter().map(gone).collect();
    context.change(&uaid, &deletes).await
}

/// Returns true if there is a row of this family.
pub(super) fn has(rows: &[TimedRow], family: i8) -> bool {
    rows.iter().any(|row| row.family == family)
}

/// Low water of a user, as remembered, else as read; `None` when there is no such user.
pub(super) async fn settled_to(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
) -> Result<Option<Clock>, Failed> {
    if let Some(low_water) = known.get(uaid, |user| user.low_water).flatten() {
        return Ok(Some(low_water));
    }
    let part = check(context, uaid, Chid([0; 16])).await?;
    if part.record.is_none() {
        return Ok(None);
    }
    known.change(uaid, |user| user.is_there(part.low_water, part.deleted));
    Ok(Some(part.low_water))
}

/// Record, low water, user clock, contact and one channel of a user.
pub(super) async fn check(context: &StatementContext<'_>, uaid: Uaid, chid: Chid) -> Result<UserPart, Failed> {
    read_part(context, Statement::UserCheck, &(rows::uaid(&uaid), &chid.0[..])).await
}

/// The clock of a write on a user: that of its owner, and later than everything there is, also when the owner's clock
/// is behind.
pub(super) fn later(known: &UserCache, uaid: Uaid, part: &UserPart, at: Clock) -> Clock {
    let dropped_at = known.get(uaid, |user| user.dropped_at).unwrap_or_default();
    at.max(Clock(part.highest().max(dropped_at).0.saturating_add(1)))
}

/// Places and timestamps of every message of a user.
pub(super) async fn for_each_message(
    context: &StatementContext<'_>,
    uaid: Uaid,
    take: impl FnMut(RowLocation, i64),
) -> Result<(), Failed> {
    for_each_key(context, Statement::KeysRead, &(rows::uaid(&uaid),), take).await
}

async fn for_each_key(
    context: &StatementContext<'_>,
    statement: Statement,
    values: &impl scylla::serialize::row::SerializeRow,
    mut take: impl FnMut(RowLocation, i64),
) -> Result<(), Failed> {
    let mut state = None;
    loop {
        let (found, next) = context.read(statement, values, state, true).await?;
        let found = found.rows::<(i8, i64, i64, &[u8], i64)>().map_err(|error| misread(context, &error))?;
        for row in found {
            let (family, clock, origin, key, at) = row.map_err(|error| misread(context, &error))?;
            take(RowLocation { family, clock, origin, key: key.to_vec() }, at);
        }
        match next {
            Some(_) => state = next,
            None => return Ok(()),
        }
    }
}

pub(in super::super) fn put(family: i8, key: Vec<u8>, value: Vec<u8>, at: Clock) -> Change {
    Change::UserPut { family, key, value, at: micros(at), ttl: USER_TTL }
}

/// Part of every batch on a user: no node whose clock is behind can write under it.
pub(in super::super) fn user_clock(at: Clock) -> Change {
    put(family::USER_CLOCK, Vec::new(), rows::clock(at), at)
}

fn enter(presence: &Presence) -> Change {
    let at = Clock(presence.connected_at);
    put(family::PRESENCE, rows::presence_key(&presence.node), rows::clock(at), at)
}
