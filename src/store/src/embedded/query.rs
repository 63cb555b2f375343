//! Reads: the answers of a database to `LoadUser`, `Topics`, `Messages` and `Read`.
//!
//! Lives on: reader threads; the committer for reads that stand behind a write of their user.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;

use fjall::{Keyspace, Slice};
use machine::ids::{Chid, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::time::UnixSeconds;
use machine::{Page, RowKey, StoreOp, StoreReply};

use super::database::Database;
use super::record::Record;
use super::rows::{self, ChannelRow};

/// Rows that are skipped before the iterator is made anew, so that no old version of the tree is held for long.
const SKIPS_PER_ITERATOR: usize = 1_024;
/// Expired rows that one read points out to the reclaimer.
const EXPIRED_HINTS_MAX: usize = 1_024;

/// An answer and the findings of the reader on the way.
pub(super) struct QueryResult {
    pub(super) reply: StoreReply,
    /// Keys of expired or settled rows, at most `EXPIRED_HINTS_MAX`.
    pub(super) expired: Vec<Slice>,
    /// The user is marked as having messages, and there was none.
    pub(super) nothing_marked: bool,
}

impl QueryResult {
    fn only(reply: StoreReply) -> QueryResult {
        QueryResult { reply, expired: Vec::new(), nothing_marked: false }
    }
}

/// Answers a read from the database.
pub(super) fn answer(db: &Database, op: &StoreOp) -> fjall::Result<QueryResult> {
    match op {
        StoreOp::Topics { uaid, after, limit, now } => topics(db, *uaid, *after, *limit, *now),
        StoreOp::Messages { uaid, after, limit, now } => messages(db, *uaid, *after, *limit, *now),
        StoreOp::Read { row, now } => read(db, row, *now),
        StoreOp::LoadUser { uaid } => user(db, *uaid),
        StoreOp::Locate { uaid, chid } => locate(db, *uaid, *chid),
        StoreOp::Touch { .. }
        | StoreOp::Register { .. }
        | StoreOp::Subscribe { .. }
        | StoreOp::SetContact { .. }
        | StoreOp::SetPresence { .. }
        | StoreOp::ClearPresence { .. }
        | StoreOp::Unregister { .. }
        | StoreOp::DropUser { .. }
        | StoreOp::DropIdle { .. }
        | StoreOp::SetBridge { .. }
        | StoreOp::MarkRefused { .. }
        | StoreOp::ClearRefused { .. }
        | StoreOp::DropBridged { .. }
        | StoreOp::Publish { .. }
        | StoreOp::Save { .. }
        | StoreOp::Settle { .. }
        | StoreOp::Tried { .. } => unreachable!("the port sends no write to a reader"),
    }
}

/// The record of a user.
pub(super) fn record(db: &Database, uaid: Uaid) -> fjall::Result<Option<Record>> {
    let Some(bytes) = db.users.get(uaid.0)? else { return Ok(None) };
    match Record::parse(&bytes) {
        Some(record) => Ok(Some(record)),
        // The checksum of its block was right, so the record is of a later version: "not sure" is not "unknown".
        None => Err(fjall::Error::Unrecoverable),
    }
}

fn user(db: &Database, uaid: Uaid) -> fjall::Result<QueryResult> {
    let Some(record) = record(db, uaid)? else { return Ok(QueryResult::only(StoreReply::User(None))) };
    let channels = registrations(db, uaid, &record)?.into_iter().map(|(chid, _)| chid).collect();
    Ok(QueryResult::only(StoreReply::User(Some(Box::new(record.row(channels))))))
}

/// The user with one channel or none.
fn locate(db: &Database, uaid: Uaid, chid: Chid) -> fjall::Result<QueryResult> {
    let mut found = user(db, uaid)?;
    if let StoreReply::User(Some(row)) = &mut found.reply {
        row.channels.retain(|one| *one == chid);
    }
    Ok(found)
}

/// The channels of the user with this record and their registrations, in the order of their ids.
pub(super) fn registrations(db: &Database, uaid: Uaid, record: &Record) -> fjall::Result<Vec<(Chid, u64)>> {
    match record.names() {
        Some(names) => Ok(names.collect()),
        None => Ok(channels(db, uaid)?.into_iter().map(|(chid, channel)| (chid, channel.registration)).collect()),
    }
}

/// The rows of the channels of a user, in the order of their ids.
pub(super) fn channels(db: &Database, uaid: Uaid) -> fjall::Result<Vec<(Chid, ChannelRow)>> {
    let mut channels = Vec::new();
    for row in db.channels.range(&uaid.0[..]..=&last_key(uaid)[..]) {
        let (key, value) = row.into_inner()?;
        // As with a record: one of a later version is not "none".
        let chid = rows::chid_in(&key).ok_or(fjall::Error::Unrecoverable)?;
        channels.push((chid, ChannelRow::parse(&value).ok_or(fjall::Error::Unrecoverable)?));
    }
    Ok(channels)
}

/// The registrations that count for a user who has dead rows; nothing for one who has none.
struct Registrations(Option<HashMap<Chid, u64>>);

impl Registrations {
    fn of(db: &Database, uaid: Uaid, record: &Record) -> fjall::Result<Registrations> {
        if !db.has_dead_rows() || !db.meta.contains_key(rows::removal_key(uaid))? {
            return Ok(Registrations(None));
        }
        Ok(Registrations(Some(registrations(db, uaid, record)?.into_iter().collect())))
    }

    fn has(&self, chid: Option<Chid>, peek: &rows::RowHead) -> bool {
        let Some(of_channels) = &self.0 else { return true };
        chid.is_some_and(|chid| of_channels.get(&chid) == Some(&peek.registration))
    }
}

fn topics(
    db: &Database,
    uaid: Uaid,
    after: Option<(Chid, Topic)>,
    limit: u16,
    now: UnixSeconds,
) -> fjall::Result<QueryResult> {
    let Some(record) = record(db, uaid)?.filter(Record::may_have_messages) else { return Ok(empty()) };
    let start = match &after {
        Some((chid, topic)) => Bound::Excluded(rows::topic_key(uaid, *chid, topic)),
        None => Bound::Included(uaid.0.to_vec()),
    };
    let registrations = Registrations::of(db, uaid, &record)?;
    let judge = |key: &[u8], peek: &rows::RowHead| match registrations.has(rows::chid_in(key), peek) {
        true if peek.expires > now => Verdict::Live,
        true => Verdict::Expired,
        false => Verdict::Removed,
    };
    scan(&db.topics, start, last_key(uaid), limit, &judge).map(|found| finish(found, &record, false))
}

fn messages(db: &Database, uaid: Uaid, after: Stamp, limit: u16, now: UnixSeconds) -> fjall::Result<QueryResult> {
    let Some(record) = record(db, uaid)?.filter(Record::may_have_messages) else { return Ok(empty()) };
    let low_water = record.low_water();
    let start = Bound::Excluded(rows::message_key(uaid, after, Chid([0xff; 16])).to_vec());
    let registrations = Registrations::of(db, uaid, &record)?;
    let judge = |key: &[u8], peek: &rows::RowHead| {
        let settled = !peek.saved && rows::word(key, 16) <= low_water.0;
        match registrations.has(rows::parse_message_key(key).map(|(_, _, chid)| chid), peek) {
            true if peek.expires > now && !settled => Verdict::Live,
            true => Verdict::Expired,
            false => Verdict::Removed,
        }
    };
    scan(&db.messages, start, last_key(uaid), limit, &judge).map(|found| finish(found, &record, true))
}

fn read(db: &Database, row: &RowKey, now: UnixSeconds) -> fjall::Result<QueryResult> {
    let Some(record) = record(db, row.uaid)? else { return Ok(empty()) };
    let keyspace = if row.topic.is_some() { &db.topics } else { &db.messages };
    let value = keyspace.get(rows::row_key(row))?;
    let registrations = Registrations::of(db, row.uaid, &record)?;
    let live = |value: &Slice| {
        let peek = rows::peek(value)?;
        let message = rows::message(value)?;
        let settled = row.topic.is_none() && !peek.saved && row.stamp.clock <= record.low_water();
        let there = message.stamp == row.stamp && registrations.has(Some(row.chid), &peek);
        (there && peek.expires > now && !settled).then(|| Arc::new(message))
    };
    let messages = value.as_ref().and_then(live).into_iter().collect();
    Ok(QueryResult::only(StoreReply::Page(Box::new(Page { messages, exhausted: true }))))
}

/// The greatest key that any row of a user can have in any family: topics are shorter than 40 bytes.
pub(super) fn last_key(uaid: Uaid) -> Vec<u8> {
    let mut key = uaid.0.to_vec();
    key.extend_from_slice(&[0xff; 49]);
    key
}

/// Judgement of a row by a read.
enum Verdict {
    Live,
    /// Expired or settled: for the reclaimer.
    Expired,
    /// Of a channel or user that is no more: its removal is under way.
    Removed,
}

struct Scan {
    messages: Vec<Arc<Message>>,
    exhausted: bool,
    expired: Vec<Slice>,
}

/// The first `limit` live rows from `start` to `last`. Loops over any number of dead ones, in bounded bites.
fn scan(
    keyspace: &Keyspace,
    mut start: Bound<Vec<u8>>,
    last: Vec<u8>,
    limit: u16,
    judge: &dyn Fn(&[u8], &rows::RowHead) -> Verdict,
) -> fjall::Result<Scan> {
    let mut scan = Scan { messages: Vec::new(), exhausted: false, expired: Vec::new() };
    'bites: loop {
        let mut skipped = 0;
        for row in keyspace.range::<Vec<u8>, _>((start.clone(), Bound::Included(last.clone()))) {
            let (key, value) = row.into_inner()?;
            // A row that is not one is skipped: its block was whole, so it is of a later version.
            let Some(peek) = rows::peek(&value) else { continue };
            let verdict = judge(&key, &peek);
            if matches!(verdict, Verdict::Live) {
                if scan.messages.len() == usize::from(limit) {
                    return Ok(scan);
                }
                scan.messages.extend(rows::message(&value).map(Arc::new));
                continue;
            }
            skipped += 1;
            if matches!(verdict, Verdict::Expired) && scan.expired.len() < EXPIRED_HINTS_MAX {
                scan.expired.push(key.clone());
            }
            if skipped == SKIPS_PER_ITERATOR {
                start = Bound::Excluded(key.to_vec());
                continue 'bites;
            }
        }
        scan.exhausted = true;
        return Ok(scan);
    }
}

fn finish(scan: Scan, record: &Record, is_messages: bool) -> QueryResult {
    let nothing = is_messages && scan.messages.is_empty() && scan.exhausted;
    QueryResult {
        nothing_marked: nothing && record.may_have_messages(),
        expired: scan.expired,
        reply: StoreReply::Page(Box::new(Page { messages: scan.messages, exhausted: scan.exhausted })),
    }
}

fn empty() -> QueryResult {
    QueryResult::only(StoreReply::Page(Box::new(Page { messages: Vec::new(), exhausted: true })))
}
