//! Operations of the keeper and of readers: they judge dead rows again and remove them.

use fjall::Slice;
use machine::ids::Uaid;
use machine::limits;
use machine::time::UnixSeconds;

use super::removal::REMOVAL_ROWS_MAX;
use super::{Group, RowEnd, WriteError};
use crate::embedded::query;
use crate::embedded::record::Record;
use crate::embedded::rows;
use crate::idle;

/// Channels and rows that one mail about idle users removes. A user has at most `limits::CHANNELS_MAX` channels, and
/// dropping it looks at `REMOVAL_ROWS_MAX` rows at most.
const IDLE_ROWS_MAX: usize = 4 * limits::CHANNELS_MAX;

/// Rows that the keeper or a reader found dead.
pub(in crate::embedded) enum CleanupOp {
    /// Keys of expired or settled message rows: a key names its version.
    MessageRows(Vec<Slice>),
    /// Keys of expired topic rows, with the time for judging them again.
    TopicRows(Vec<Slice>, UnixSeconds),
    /// Users not seen for long, with the time for judging them again.
    IdleUsers(Vec<Uaid>, UnixSeconds),
    /// A user with rows of channels that are no more, or who is no more.
    DeadRows(Uaid),
    /// The keeper found no user with dead rows.
    NoDeadRows,
    /// A user whose mark says that there may be rows when a read found none.
    ClearMark(Uaid),
}

impl Group<'_> {
    /// Removes the rows and users that the keeper or a reader found, if they are still dead.
    pub(in crate::embedded) fn upkeep(&mut self, upkeep: CleanupOp) -> Result<(), WriteError> {
        match upkeep {
            CleanupOp::MessageRows(keys) => {
                self.stats.store_expired_reclaimed += keys.len() as u64;
                for key in keys {
                    if let Some(uaid) = rows::uaid_of(&key) {
                        self.remove_message(uaid, key, RowEnd::Gone)?;
                    }
                }
            }
            CleanupOp::TopicRows(keys, now) => {
                for key in keys {
                    self.write_out_if(|group| group.topics.contains_key(&key[..]))?;
                    let value = self.db.topics.get(&key).map_err(WriteError::Read)?;
                    let Some(value) = value.filter(|value| rows::peek(value).is_some_and(|peek| peek.expires <= now))
                    else {
                        continue;
                    };
                    if let Some(message) = rows::message(&value) {
                        self.stats.store_expired_reclaimed += 1;
                        self.remove_topic(key.to_vec(), message.stamp, RowEnd::Gone)?;
                    }
                }
            }
            CleanupOp::IdleUsers(uaids, now) => {
                let mut removed = 0;
                for uaid in uaids {
                    let Some(record) = self.user(uaid)?.as_ref().filter(|record| idle(record.seen(), now)) else {
                        continue;
                    };
                    removed += record.channel_count();
                    removed += if record.may_have_messages() { REMOVAL_ROWS_MAX } else { 0 };
                    if removed > IDLE_ROWS_MAX {
                        // The next walk finds the others again.
                        break;
                    }
                    self.stats.store_idle_users_reclaimed += 1;
                    self.drop_user(uaid)?;
                }
            }
            CleanupOp::DeadRows(uaid) => self.remove_dead(uaid)?,
            CleanupOp::NoDeadRows => self.look_for_dead()?,
            CleanupOp::ClearMark(uaid) => self.clear_mark(uaid)?,
        }
        Ok(())
    }

    fn clear_mark(&mut self, uaid: Uaid) -> Result<(), WriteError> {
        self.write_out_for(uaid)?;
        let last = query::last_key(uaid);
        let empty = [&self.db.messages, &self.db.topics].into_iter().all(|keyspace| {
            let first = keyspace.range(&uaid.0[..]..=&last[..]).next();
            first.is_none()
        });
        if empty && self.user(uaid)?.as_ref().is_some_and(Record::may_have_messages) {
            self.change(uaid, |record| {
                record.mark(false);
                record.no_rows();
            });
        }
        Ok(())
    }
}
