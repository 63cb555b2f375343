//! The statements of each operation of the port.
//!
//! Timestamps (ARCHITECTURE.md 8.8): a message at its clock, deleted at exactly that, a presence at the time of its
//! session and cleared at exactly that, low water at its own value. Rows of the user itself are later than everything
//! read of it, and their clock goes into the user clock.
//!
//! Lives on: the store's runtime, inside the task of one operation.

mod pages;

mod settle;

pub(super) mod store;

mod tried;

pub(super) mod updates;

pub(super) mod users;

use machine::ids::{Chid, Clock, Uaid};
use machine::{StoreError, StoreOp};

use super::client::{Failed, Hand};
use super::known::Known;
use super::port::Answer;
use super::rows::{self, UserPart};
use super::stats::{Statement, count};

impl From<Failed> for StoreError {
    fn from(_: Failed) -> StoreError {
        StoreError::Transient
    }
}

/// Does one operation.
pub(super) async fn carry_out(hand: &Hand<'_>, known: &Known, op: &StoreOp) -> Answer {
    match op {
        StoreOp::LoadUser { uaid } => users::load(hand, known, *uaid).await,
        StoreOp::Locate { uaid, chid } => users::locate(hand, known, *uaid, *chid).await,
        StoreOp::Touch { uaid, seen } => users::touch(hand, *uaid, *seen).await,
        StoreOp::Register { .. } => users::register(hand, known, op).await,
        StoreOp::SetContact { uaid, contact, durable: _ } => users::set_contact(hand, known, *uaid, contact).await,
        StoreOp::SetPresence { uaid, presence } => users::set_presence(hand, *uaid, presence).await,
        StoreOp::ClearPresence { uaid, presence } => users::clear_presence(hand, *uaid, presence).await,
        StoreOp::Unregister { uaid, chid, at } => users::unregister(hand, known, *uaid, *chid, *at).await,
        StoreOp::DropUser { uaid } => users::drop(hand, known, *uaid).await,
        StoreOp::Publish { message, checked } => store::publish(hand, known, message, *checked).await,
        StoreOp::Save { messages } => store::save(hand, known, messages).await,
        StoreOp::Topics { uaid, after, limit, now } => pages::topics(hand, known, *uaid, *after, *limit, *now).await,
        StoreOp::Messages { uaid, after, limit, now } => {
            pages::messages(hand, known, *uaid, *after, *limit, *now).await
        }
        StoreOp::Read { row, now } => pages::read(hand, known, row, *now).await,
        StoreOp::Settle { rows, low_water, durable: _ } => settle::settle(hand, known, rows, *low_water).await,
        StoreOp::Tried { rows } => tried::tried(hand, rows).await,
    }
}

/// Reads the whole partition of a user and remembers what later operations need.
pub(super) async fn read_user(hand: &Hand<'_>, known: &Known, uaid: Uaid) -> Result<UserPart, Failed> {
    let part = read_part(hand, Statement::UserRead, &(rows::uaid(&uaid),)).await?;
    let channels = part.channels.len();
    if part.record.is_some() {
        known.change(uaid, |user| {
            user.is_there(part.low_water);
            user.channels = Some(channels);
        });
    }
    Ok(part)
}

/// Reads rows of a user's partition, of which none is an unreadable record.
async fn read_part(
    hand: &Hand<'_>,
    statement: Statement,
    values: &impl scylla::serialize::row::SerializeRow,
) -> Result<UserPart, Failed> {
    sound(hand, read_rows(hand, statement, values).await?)
}

/// Refuses a part with an unreadable record, and counts rows that do not parse.
fn sound(hand: &Hand<'_>, part: UserPart) -> Result<UserPart, Failed> {
    if part.record_unreadable {
        return Err(misread(hand, &"the record of a user cannot be read"));
    }
    if part.damaged > 0 {
        hand.client.numbers.others.damaged_rows.fetch_add(part.damaged, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(part)
}

/// Reads rows of a user's partition, also an unreadable record.
pub(super) async fn read_rows(
    hand: &Hand<'_>,
    statement: Statement,
    values: &impl scylla::serialize::row::SerializeRow,
) -> Result<UserPart, Failed> {
    let (mut part, mut state) = (UserPart::default(), None);
    loop {
        let (found, next) = hand.read(statement, values, state, true).await?;
        let found = found.rows::<(i8, &[u8], &[u8])>().map_err(|error| misread(hand, &error))?;
        for row in found {
            let (family, key, value) = row.map_err(|error| misread(hand, &error))?;
            part.take(family, key, value);
        }
        match next {
            Some(_) => state = next,
            None => return Ok(part),
        }
    }
}

/// Low water of a user, as remembered, else as read; `None` when there is no such user.
async fn settled_to(hand: &Hand<'_>, known: &Known, uaid: Uaid) -> Result<Option<Clock>, Failed> {
    if let Some(low_water) = known.get(uaid, |user| user.low_water).flatten() {
        return Ok(Some(low_water));
    }
    let part = users::check(hand, uaid, Chid([0; 16])).await?;
    if part.record.is_none() {
        return Ok(None);
    }
    known.change(uaid, |user| user.is_there(part.low_water));
    Ok(Some(part.low_water))
}

/// Counts an answer that does not parse; logs the first one, and later ones ever more rarely.
fn misread(hand: &Hand<'_>, error: &dyn std::fmt::Display) -> Failed {
    damaged(hand, error);
    Failed
}

/// Counts a row that does not parse; logs the first one, and later ones ever more rarely.
fn damaged(hand: &Hand<'_>, error: &dyn std::fmt::Display) {
    let rows = &hand.client.numbers.others.damaged_rows;
    count(rows);
    let count = rows.load(std::sync::atomic::Ordering::Relaxed);
    if count.is_power_of_two() {
        tracing::error!(count, %error, "the shared store has a row that is none of this version");
    }
}
