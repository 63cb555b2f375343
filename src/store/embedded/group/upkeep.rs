//! Operations of the keeper and of readers: they remove what was found dead, where that is still so.

use fjall::Slice;
use shards::ids::Uaid;
use shards::time::UnixSeconds;

use super::{Group, Trouble};
use crate::store::embedded::query;
use crate::store::embedded::rows::{self, Record};
use crate::store::idle;

/// Rows that the keeper or a reader found dead.
pub(in crate::store::embedded) enum Upkeep {
    /// Keys of expired or settled message rows: a key names its version.
    MessageRows(Vec<Slice>),
    /// Keys of expired topic rows, to be judged again at this time.
    TopicRows(Vec<Slice>, UnixSeconds),
    /// Users nobody saw for long, to be judged again at this time.
    IdleUsers(Vec<Uaid>, UnixSeconds),
    /// A user whose mark says that there may be rows when a read found none.
    ClearMark(Uaid),
}

impl Group<'_> {
    /// Removes what the keeper or a reader found, where that is still so.
    pub(in crate::store::embedded) fn upkeep(&mut self, upkeep: Upkeep) -> Result<(), Trouble> {
        match upkeep {
            Upkeep::MessageRows(keys) => {
                self.stats.store_expired_reclaimed += keys.len() as u64;
                for key in keys {
                    self.touched.extend(rows::uaid_of(&key));
                    self.bytes += key.len() as u64;
                    self.batch.remove(&self.db.messages, key);
                }
            }
            Upkeep::TopicRows(keys, now) => {
                for key in keys {
                    self.write_out_if(|group| group.topics.contains_key(&key[..]))?;
                    let value = self.db.topics.get(&key).map_err(Trouble::Read)?;
                    if value.and_then(|value| rows::peek(&value)).is_some_and(|peek| peek.expires <= now) {
                        self.stats.store_expired_reclaimed += 1;
                        self.remove_topic(key.to_vec());
                    }
                }
            }
            Upkeep::IdleUsers(uaids, now) => {
                for uaid in uaids {
                    if self.user(uaid)?.as_ref().is_some_and(|record| idle(record.seen(), now)) {
                        self.stats.store_idle_users_reclaimed += 1;
                        self.drop_user(uaid)?;
                    }
                }
            }
            Upkeep::ClearMark(uaid) => self.clear_mark(uaid)?,
        }
        Ok(())
    }

    fn clear_mark(&mut self, uaid: Uaid) -> Result<(), Trouble> {
        self.write_out_for(uaid)?;
        let last = query::last_key(uaid);
        let empty = [&self.db.messages, &self.db.topics].into_iter().all(|keyspace| {
            let first = keyspace.range(&uaid.0[..]..=&last[..]).next();
            first.is_none()
        });
        if empty && self.user(uaid)?.as_ref().is_some_and(Record::may_have_messages) {
            self.change(uaid, |record| {
                record.mark(false);
            });
        }
        Ok(())
    }
}
