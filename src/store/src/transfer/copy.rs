//! Copy of one store into another, and a comparison of both.

use std::sync::Arc;

use machine::ids::Uaid;
use machine::message::Message;
use machine::simplepush::{Mode, WakeData};
use machine::time::UnixSeconds;
use ring::digest::{Context, SHA256};

use super::import::{ImportCounts, ImportDecision, ROWS_AT_ONCE_MAX};
use super::port::{Transfer, TransferFault, WholeUser};
use super::rows::{USERS_AT_ONCE_MAX, each_row};
use super::walk::walk;

/// Rows that expire within this many seconds of a comparison are on neither side of it: they may expire between the
/// two reads.
const EXPIRY_MARGIN_SECONDS: u64 = 60;

/// Result of a copy.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Copied {
    /// Results of the users that were not left behind.
    pub admitted: ImportCounts,
    /// Users that were left behind: not seen for 60 days, so the server would drop them.
    pub users_idle: u64,
    /// Users that were left behind: their record has a meaning of another version, so they are reset at the next hello.
    pub users_of_other_version: u64,
    /// Users that were left behind: their record cannot be read. [`Compared::unreadable`] names them.
    pub users_unreadable: u64,
}

/// Copies every user with its messages. Can be run again after any interruption. `progress` is called after each
/// batch.
///
/// # Errors
/// One of the stores fails.
pub fn copy(
    from: &mut dyn Transfer,
    to: &mut dyn Transfer,
    now: &dyn Fn() -> UnixSeconds,
    progress: &mut dyn FnMut(&Copied),
) -> Result<Copied, TransferFault> {
    let mut copied = Copied::default();
    walk(from, now, &mut |from, users, left| {
        copied.users_idle = left.idle;
        copied.users_of_other_version = left.of_other_version;
        copied.users_unreadable = left.unreadable;
        copy_users(from, to, users, now(), &mut copied.admitted)?;
        progress(&copied);
        Ok(())
    })?;
    Ok(copied)
}

fn copy_users(
    from: &mut dyn Transfer,
    to: &mut dyn Transfer,
    users: &[WholeUser],
    now: UnixSeconds,
    admitted: &mut ImportCounts,
) -> Result<(), TransferFault> {
    let uaids: Vec<Uaid> = users.iter().map(|user| user.uaid).collect();
    let (mut new, mut written) = (Vec::new(), Vec::new());
    for (user, there) in users.iter().zip(to.find(&uaids)?) {
        match admitted.decide(user, there.as_ref()) {
            ImportDecision::Whole => {
                if user.may_have_messages {
                    new.push(user.uaid);
                }
                written.push(user.clone());
            }
            ImportDecision::Part(part) => written.push(*part),
            ImportDecision::Nothing => {}
        }
    }
    let mut rows: Vec<Arc<Message>> = Vec::with_capacity(ROWS_AT_ONCE_MAX);
    each_row(from, &new, now, &mut |_, message| {
        admitted.rows_added += 1;
        rows.push(message);
        if rows.len() == ROWS_AT_ONCE_MAX { to.put_rows(&std::mem::take(&mut rows)) } else { Ok(()) }
    })?;
    if !rows.is_empty() {
        to.put_rows(&rows)?;
    }
    if written.is_empty() { Ok(()) } else { to.put_users(&written) }
}

/// Result of a comparison of two stores. Users that only the second store has do not count.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Compared {
    /// Users of the first store that must be in the second.
    pub users: u64,
    /// Channels of these users.
    pub channels: u64,
    /// Messages of these users.
    pub rows: u64,
    /// Sum of digests of these users, with their channels and every byte of their messages.
    pub digest: u128,
    /// The same sum over these users in the second store.
    pub digest_there: u128,
    /// Users that differ because they have changed in the second store since: their clock is later there.
    pub users_newer: u64,
    /// Users that are missing or not the same in the second store.
    pub users_different: u64,
    /// Users of the first store whose record cannot be read, so that nothing of them can be in the second.
    pub users_unreadable: u64,
    /// Positions of the first unreadable users, [`super::UNREADABLE_NAMED_MAX`] at most.
    pub unreadable: Vec<String>,
}

impl Compared {
    /// Returns true if everything has arrived.
    pub fn is_complete(&self) -> bool {
        self.users_different == 0 && self.users_unreadable == 0
    }
}

/// Reads both stores and compares the users of the first store with those of the second.
///
/// # Errors
/// One of them cannot be read.
pub fn compare(
    from: &mut dyn Transfer,
    to: &mut dyn Transfer,
    now: &dyn Fn() -> UnixSeconds,
    progress: &mut dyn FnMut(&Compared),
) -> Result<Compared, TransferFault> {
    let mut compared = Compared::default();
    let left = walk(from, now, &mut |from, users, _| {
        for some in users.chunks(USERS_AT_ONCE_MAX) {
            compare_users(from, to, some, now(), &mut compared)?;
        }
        progress(&compared);
        Ok(())
    })?;
    Ok(Compared { users_unreadable: left.unreadable, unreadable: left.unreadable_at, ..compared })
}

fn compare_users(
    from: &mut dyn Transfer,
    to: &mut dyn Transfer,
    users: &[WholeUser],
    now: UnixSeconds,
    compared: &mut Compared,
) -> Result<(), TransferFault> {
    let uaids: Vec<Uaid> = users.iter().map(|user| user.uaid).collect();
    let there = to.find(&uaids)?;
    let (ours, theirs) = (row_sums(from, &uaids, now)?, row_sums(to, &uaids, now)?);
    for (at, user) in users.iter().enumerate() {
        let digest = user_digest(user, &ours[at]);
        compared.users += 1;
        compared.channels += user.channels.len() as u64;
        compared.rows += ours[at].rows;
        compared.digest = compared.digest.wrapping_add(digest);
        let digest_there = there[at].as_ref().map_or(0, |there| user_digest(there, &theirs[at]));
        compared.digest_there = compared.digest_there.wrapping_add(digest_there);
        let newer = there[at].as_ref().is_some_and(|there| there.user_clock > user.user_clock);
        let different = digest != digest_there;
        compared.users_newer += u64::from(different && newer);
        compared.users_different += u64::from(different && !newer);
    }
    Ok(())
}

/// Digest of the messages of one user, in any order.
#[derive(Default, Clone)]
struct RowSum {
    rows: u64,
    sum: u128,
}

fn row_sums(store: &mut dyn Transfer, uaids: &[Uaid], now: UnixSeconds) -> Result<Vec<RowSum>, TransferFault> {
    let mut sums = vec![RowSum::default(); uaids.len()];
    let lasting = UnixSeconds(now.0.saturating_add(EXPIRY_MARGIN_SECONDS));
    let mut bytes = Vec::new();
    each_row(store, uaids, now, &mut |at, message| {
        if !message.expired(lasting) {
            bytes.clear();
            message.encode(&mut bytes);
            sums[at].rows += 1;
            sums[at].sum = sums[at].sum.wrapping_add(short_digest(&[&bytes]));
        }
        Ok(())
    })?;
    Ok(sums)
}

/// Digest of everything that must be the same. It leaves out `seen`, which is refreshed once a day, and
/// `may_have_messages`, which is a bound.
fn user_digest(user: &WholeUser, rows: &RowSum) -> u128 {
    let mut channels = Vec::with_capacity(user.channels.len() * 57);
    for channel in &user.channels {
        channels.extend_from_slice(&channel.chid.0);
        channels.extend_from_slice(&channel.registered_at.0.to_be_bytes());
        channels.push(u8::from(channel.key.is_some()));
        channels.extend_from_slice(&channel.key.map_or([0; 32], |key| key.0));
    }
    let simple = u8::from(user.contact.mode == Mode::Simple) | (user.contact.minimum_number() << 1);
    let wake = user.contact.wake.as_ref().map_or("", WakeData::as_str);
    short_digest(&[
        &user.uaid.0,
        &[user.record_version, simple],
        &user.low_water.0.to_be_bytes(),
        &user.user_clock.0.to_be_bytes(),
        &(user.channels.len() as u64).to_be_bytes(),
        &channels,
        &rows.rows.to_be_bytes(),
        &rows.sum.to_be_bytes(),
        wake.as_bytes(),
    ])
}

/// First half of SHA-256.
fn short_digest(parts: &[&[u8]]) -> u128 {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    let digest = context.finish();
    let mut half = [0; 16];
    half.copy_from_slice(&digest.as_ref()[..16]);
    u128::from_be_bytes(half)
}
