//! `Topics`, `Messages` and `Read`.

use std::sync::Arc;

use machine::ids::{Chid, Clock, Origin, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::time::UnixSeconds;
use machine::{Page, RowKey, StoreReply};
use scylla::response::PagingState;

use super::super::client::{Failed, StatementContext};
use super::super::port::Answer;
use super::super::rows::{self, micros};
use super::super::stats::Statement;
use super::super::user_cache::{CachedUser, UserCache};
use super::read::{damaged, misread};
use super::users::settled_to;
use super::{low_water, updates};
use crate::shared::schema::family;

/// Pages begin in short requests: the first page of a user agent fits one.
fn is_long(limit: usize, first: bool) -> bool {
    !first || limit > usize::from(machine::limits::PAGE_ROWS_MAX)
}

/// Rows without a user wait for a transfer to bring it; no read returns them before.
fn nothing() -> StoreReply {
    StoreReply::Page(Box::new(Page { messages: Vec::new(), exhausted: true }))
}

pub(super) async fn topics(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    after: Option<(Chid, Topic)>,
    limit: u16,
    now: UnixSeconds,
) -> Answer {
    if settled_to(context, known, uaid).await?.is_none() {
        return Ok(nothing());
    }
    let read = after.is_none().then(|| known.begin_topics(uaid));
    let (limit, (from, after)) = (usize::from(limit), rows::topic_cursor(after));
    let mut live: Vec<Arc<Message>> = Vec::new();
    // Updates of the channel that is being read; all of them must be seen before one of them counts.
    let mut of_channel: Vec<Message> = Vec::new();
    let (mut state, mut first, mut late) = (None, true, false);
    'pages: loop {
        let values = (rows::uaid(&uaid), from, &after);
        let (found, next) = context.read(Statement::TopicsRead, &values, state, is_long(limit, first)).await?;
        first = false;
        for row in found.rows::<(i8, &[u8], &[u8])>().map_err(|error| misread(context, &error))? {
            let (family, key, value) = row.map_err(|error| misread(context, &error))?;
            if family != family::TOPIC {
                late |= family == family::LATE;
                continue;
            }
            if !rows::is_update(key) && rows::expires(value).is_none_or(|end| end <= now) {
                continue;
            }
            let Some(message) = rows::message(value) else {
                damaged(context, &"a topic row");
                continue;
            };
            if of_channel.first().is_some_and(|update| !rows::is_update(key) || update.chid != message.chid) {
                live.extend(live_update(&mut of_channel, now));
            }
            if rows::is_update(key) {
                of_channel.push(message);
            } else {
                live.push(Arc::new(message));
            }
            if live.len() > limit {
                break 'pages;
            }
        }
        match next {
            Some(_) => state = next,
            None => break,
        }
    }
    // The late row is the first of all.
    if let Some(read) = read {
        known.topics_read(uaid, read, !late);
    }
    live.extend(live_update(&mut of_channel, now));
    let exhausted = live.len() <= limit;
    live.truncate(limit);
    Ok(StoreReply::Page(Box::new(Page { messages: live, exhausted })))
}

/// The update that counts, when it has not expired: an expired one hides those it replaced.
fn live_update(of_channel: &mut Vec<Message>, now: UnixSeconds) -> Option<Arc<Message>> {
    updates::counts(std::mem::take(of_channel)).filter(|update| !update.expired(now)).map(Arc::new)
}

pub(super) async fn messages(
    context: &StatementContext<'_>,
    known: &UserCache,
    uaid: Uaid,
    after: Stamp,
    limit: u16,
    now: UnixSeconds,
) -> Answer {
    let Some(settled) = settled_to(context, known, uaid).await? else { return Ok(nothing()) };
    let (limit, settled) = (usize::from(limit), Stamp { clock: settled, origin: Origin(u32::MAX) });
    let mut saved = Slice::new(family::SAVED, after);
    let mut plain = Slice::new(family::MESSAGE, after.max(settled));
    // The check that asks for this began with the topics, and a save since then has it look once more.
    if after == Stamp::default() && known.change(uaid, CachedUser::take_no_saved) {
        saved.state = State::End;
    }
    tokio::try_join!(saved.fill(context, uaid, limit, now), plain.fill(context, uaid, limit, now))?;
    if after.clock <= settled.clock {
        low_water::pass(context, known, uaid, plain.first).await;
    }
    let exhausted = saved.live.len() + plain.live.len() <= limit;
    known.change(uaid, |user| {
        for stamp in &plain.only {
            user.note_unsaved_row(*stamp);
        }
    });
    Ok(StoreReply::Page(Box::new(merge(saved.live, plain.live, limit, exhausted))))
}

/// The first rows of both in the order of stamps; one that is in both forms counts once.
fn merge(saved: Vec<Arc<Message>>, plain: Vec<Arc<Message>>, limit: usize, exhausted: bool) -> Page {
    let mut messages = [saved, plain].concat();
    messages.sort_by_key(|message| (message.stamp, message.chid));
    messages.dedup_by(|b, a| (a.stamp, a.chid) == (b.stamp, b.chid));
    let exhausted = exhausted || messages.len() <= limit;
    messages.truncate(limit);
    Page { messages, exhausted }
}

/// One family, read in order of stamps up to the limit.
struct Slice {
    family: i8,
    after: Stamp,
    state: State,
    live: Vec<Arc<Message>>,
    /// Clock of the first row that has not expired.
    first: Option<Clock>,
    /// The rows that no ledger had.
    only: Vec<Stamp>,
}

enum State {
    Start,
    More(PagingState),
    End,
}

impl Slice {
    fn new(family: i8, after: Stamp) -> Slice {
        Slice { family, after, state: State::Start, live: Vec::new(), first: None, only: Vec::new() }
    }

    /// Reads until there is one row more than the limit, or no more.
    async fn fill(
        &mut self,
        context: &StatementContext<'_>,
        uaid: Uaid,
        limit: usize,
        now: UnixSeconds,
    ) -> Result<(), Failed> {
        let (clock, origin) = (micros(self.after.clock), i64::from(self.after.origin.0));
        while self.live.len() <= limit {
            let (state, first) = match &self.state {
                State::Start => (None, true),
                State::More(state) => (Some(state.clone()), false),
                State::End => return Ok(()),
            };
            let values = (rows::uaid(&uaid), self.family, clock, origin, self.family, i64::MAX, i64::MAX);
            let (found, next) = context.read(Statement::MessagesRead, &values, state, is_long(limit, first)).await?;
            for row in found.rows::<(i64, i64, &[u8], &[u8])>().map_err(|error| misread(context, &error))? {
                let (clock, _, _, value) = row.map_err(|error| misread(context, &error))?;
                if rows::expires(value).is_some_and(|end| end <= now) {
                    continue;
                }
                self.first = self.first.or(Some(Clock(clock.unsigned_abs())));
                match rows::message(value) {
                    Some(message) => {
                        if !rows::was_saved(value) {
                            self.only.push(message.stamp);
                        }
                        self.live.push(Arc::new(message));
                    }
                    None => damaged(context, &"a message row"),
                }
            }
            self.state = next.map_or(State::End, State::More);
        }
        Ok(())
    }
}

pub(super) async fn read(context: &StatementContext<'_>, known: &UserCache, row: &RowKey, now: UnixSeconds) -> Answer {
    let found = match &row.topic {
        Some(topic) if *topic == Topic::UPDATE => updates::of_channel(context, row.uaid, row.chid).await?,
        Some(topic) => read_topic(context, row, topic).await?,
        None => read_plain(context, known, row).await?,
    };
    let live = found.filter(|message| message.stamp == row.stamp && !message.expired(now));
    let messages = live.map(Arc::new).into_iter().collect();
    Ok(StoreReply::Page(Box::new(Page { messages, exhausted: true })))
}

pub(super) async fn read_topic(
    context: &StatementContext<'_>,
    row: &RowKey,
    topic: &Topic,
) -> Result<Option<Message>, Failed> {
    let key = [&row.chid.0[..], topic.as_bytes()].concat();
    let (found, _) = context.read(Statement::TopicRead, &(rows::uaid(&row.uaid), key), None, false).await?;
    let value = found.maybe_first_row::<(&[u8],)>().map_err(|error| misread(context, &error))?;
    Ok(value.and_then(|(value,)| rows::message(value)))
}

async fn read_plain(
    context: &StatementContext<'_>,
    known: &UserCache,
    row: &RowKey,
) -> Result<Option<Message>, Failed> {
    let Some(settled) = settled_to(context, known, row.uaid).await? else { return Ok(None) };
    let (clock, origin) = (micros(row.stamp.clock), i64::from(row.stamp.origin.0));
    let values = (rows::uaid(&row.uaid), clock, origin, &row.chid.0[..]);
    let (found, _) = context.read(Statement::RowRead, &values, None, false).await?;
    for kept in found.rows::<(i8, &[u8])>().map_err(|error| misread(context, &error))? {
        let (family, value) = kept.map_err(|error| misread(context, &error))?;
        if family == family::SAVED || row.stamp.clock > settled {
            return Ok(rows::message(value));
        }
    }
    Ok(None)
}
