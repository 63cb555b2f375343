//! Directories of format 1, in which the channels of a user were part of the record.
//!
//! ```text
//! record of format 1   head of 32 bytes as in `rows`, then per channel: chid 16, registered at 8, has key 1, key 32;
//!                      then wake data
//! ```
//!
//! Every user is migrated in one batch with its channels, and each record has its format, so an interrupted migration
//! goes on at the same place. Lives on: the starting thread.

use std::path::Path;

use fjall::PersistMode;
use machine::ids::{Chid, Clock, KeyDigest};

use super::database::Database;
use super::error::{Cause, StoreOpenError};
use super::record::Record;
use super::rows::{self, ChannelRow};

const OLD_FORMAT: u8 = 1;
const OLD_HEAD_BYTES: usize = 32;
const OLD_CHANNEL_BYTES: usize = 57;
/// Users of one write batch: with 2,048 channels each, 15 MB.
const USERS_PER_BATCH: usize = 128;
/// Users between two log lines about the progress.
const USERS_PER_LINE: u64 = 1_000_000;

/// Brings the database in `path` to the present format.
///
/// # Errors
/// If it cannot be read or written, or is of a format that this version does not know.
pub(super) fn run(db: &Database, path: &Path) -> Result<(), StoreOpenError> {
    let fault = |error| StoreOpenError::database(path, error);
    let found = db.meta.get(rows::FORMAT_KEY).map_err(fault)?;
    match found.as_deref() {
        Some([rows::FORMAT]) => Ok(()),
        Some([before]) if rows::FORMATS_BEFORE.contains(before) => mark(db).map_err(fault),
        Some([newer]) if *newer > rows::FORMAT => Err(StoreOpenError::new(path, Cause::Version(newer.to_string()))),
        _ => migrate(db).map_err(fault),
    }
}

/// Gives every user of format 1 its channel rows.
fn migrate(db: &Database) -> fjall::Result<()> {
    let mut batch = db.fjall.batch().durability(None);
    let (mut in_batch, mut users) = (0, 0u64);
    for row in db.users.iter() {
        let (key, value) = row.into_inner()?;
        let Some((uaid, old)) = rows::uaid_of(&key).zip(OldRecord::parse(&value)) else { continue };
        let (mut record, channels) = old.split(&value);
        record.set_channels(channels.iter().map(|(chid, channel)| (*chid, channel.registration)));
        batch.insert(&db.users, uaid.0, record.as_bytes());
        for (chid, channel) in channels {
            batch.insert(&db.channels, rows::channel_key(uaid, chid), channel.value());
        }
        (in_batch, users) = (in_batch + 1, users + 1);
        if in_batch == USERS_PER_BATCH {
            std::mem::replace(&mut batch, db.fjall.batch().durability(None)).commit()?;
            in_batch = 0;
        }
        if users.is_multiple_of(USERS_PER_LINE) {
            tracing::info!(users, "store format migrating");
        }
    }
    batch.commit()?;
    db.fjall.persist(PersistMode::SyncAll)?;
    mark(db)?;
    if users > 0 {
        tracing::info!(users, "store format migrated");
    }
    Ok(())
}

/// Writes the present format to the database.
fn mark(db: &Database) -> fjall::Result<()> {
    db.meta.insert(rows::FORMAT_KEY, [rows::FORMAT])?;
    db.fjall.persist(PersistMode::SyncAll)
}

/// Offsets of the parts of a record of format 1.
pub(super) struct OldRecord {
    wake_at: usize,
}

impl OldRecord {
    /// Reads a record of format 1; `None` for anything else.
    pub(super) fn parse(bytes: &[u8]) -> Option<OldRecord> {
        let head = bytes.get(..OLD_HEAD_BYTES)?;
        let count = u32::from_be_bytes(head[28..32].try_into().ok()?) as usize;
        let wake_at = OLD_HEAD_BYTES.checked_add(count.checked_mul(OLD_CHANNEL_BYTES)?)?;
        let whole = head[0] == OLD_FORMAT && bytes.len() == wake_at + usize::from(head[3]);
        whole.then_some(OldRecord { wake_at })
    }

    /// Returns the record of the present format without its channels, and the channels in the order of their ids.
    pub(super) fn split(&self, bytes: &[u8]) -> (Record, Vec<(Chid, ChannelRow)>) {
        let channel = |bytes: &[u8]| {
            let mut chid = [0; 16];
            chid.copy_from_slice(&bytes[..16]);
            let key = (bytes[24] == 1).then(|| KeyDigest(bytes[25..].try_into().unwrap_or_default()));
            let registered_at = Clock(rows::word(bytes, 16));
            (Chid(chid), ChannelRow { registered_at, registration: 0, key })
        };
        let channels = bytes[OLD_HEAD_BYTES..self.wake_at].chunks_exact(OLD_CHANNEL_BYTES).map(channel).collect();
        (Record::of_old(&bytes[..OLD_HEAD_BYTES], &bytes[self.wake_at..]), channels)
    }
}

/// A record of format 1, as an earlier version wrote it.
#[cfg(test)]
pub(super) fn old_record(record: &Record, channels: &[(Chid, ChannelRow)]) -> Vec<u8> {
    let mut bytes = record.as_bytes().to_vec();
    let wake = bytes.split_off(bytes.len() - usize::from(bytes[3]));
    bytes.truncate(OLD_HEAD_BYTES);
    bytes[0] = OLD_FORMAT;
    bytes[2] &= 3;
    bytes[28..32].copy_from_slice(&(channels.len() as u32).to_be_bytes());
    for (chid, channel) in channels {
        bytes.extend_from_slice(&chid.0);
        bytes.extend_from_slice(&channel.registered_at.0.to_be_bytes());
        bytes.push(u8::from(channel.key.is_some()));
        bytes.extend_from_slice(&channel.key.map_or([0; 32], |key| key.0));
    }
    bytes.extend(wake);
    bytes
}
