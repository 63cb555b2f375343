//! Rows of channels and users that are no more: they are dead at once and removed in bounded passes.
//!
//! An unregister or a drop removes the channel rows, writes a row of `meta` that names the user, and makes one pass.
//! From then on a read judges every row of that user by the registration it carries, until a pass has come to the end
//! of the user's rows. The row of `meta` says how far the passes have come, so a restart goes on from there.

use std::ops::Bound;

use fjall::{Keyspace, Slice};
use machine::ids::Uaid;

use super::{Group, RowEnd, WriteError};
use crate::embedded::query;
use crate::embedded::rows;

/// Rows that one pass looks at: with bodies of 8 KiB, 2 MiB.
pub(in crate::embedded) const REMOVAL_ROWS_MAX: usize = 256;

/// Start of the next pass: its family, and the key before it.
#[derive(Default)]
struct Cursor {
    topics: bool,
    /// Empty at the beginning of a family.
    after: Vec<u8>,
}

impl Cursor {
    fn parse(bytes: &[u8]) -> Cursor {
        match bytes.split_first() {
            Some((family, after)) => Cursor { topics: *family == 1, after: after.to_vec() },
            None => Cursor::default(),
        }
    }

    fn value(&self) -> Vec<u8> {
        [&[u8::from(self.topics)], &self.after[..]].concat()
    }
}

impl Group<'_> {
    /// Marks this user as having dead rows, and makes the first pass. The mark is in one batch with the change that
    /// killed the rows.
    pub(super) fn begin_removal(&mut self, uaid: Uaid) -> Result<(), WriteError> {
        self.db.set_dead_rows(true);
        self.put_cursor(uaid, Some(&Cursor::default()));
        self.remove_dead(uaid)
    }

    /// Tells reads when no user has dead rows any more.
    pub(super) fn look_for_dead(&mut self) -> Result<(), WriteError> {
        self.write_out()?;
        if self.db.meta.prefix(rows::REMOVAL_PREFIX).next().is_none() {
            self.db.set_dead_rows(false);
        }
        Ok(())
    }

    /// One pass over the rows of a user: removes the dead among the next `REMOVAL_ROWS_MAX`.
    pub(in crate::embedded) fn remove_dead(&mut self, uaid: Uaid) -> Result<(), WriteError> {
        self.write_out_for(uaid)?;
        let bytes = self.db.meta.get(rows::removal_key(uaid)).map_err(WriteError::Read)?;
        let Some(mut cursor) = bytes.map(|bytes| Cursor::parse(&bytes)) else { return Ok(()) };
        let mut left = REMOVAL_ROWS_MAX;
        if !cursor.topics {
            left -= self.remove_dead_of(uaid, false, &mut cursor.after, left)?;
            if left > 0 {
                cursor = Cursor { topics: true, after: Vec::new() };
            }
        }
        if cursor.topics {
            left -= self.remove_dead_of(uaid, true, &mut cursor.after, left)?;
        }
        self.put_cursor(uaid, (left == 0).then_some(&cursor));
        Ok(())
    }

    /// Makes passes until no row of this user is dead; for a transfer, which runs beside no session.
    pub(super) fn remove_all_dead(&mut self, uaid: Uaid) -> Result<(), WriteError> {
        self.write_out_for(uaid)?;
        while self.db.meta.contains_key(rows::removal_key(uaid)).map_err(WriteError::Read)? {
            self.remove_dead(uaid)?;
            self.write_out()?;
        }
        Ok(())
    }

    /// Looks at `count` rows of one family behind `after`, which moves on; returns the number of rows found.
    fn remove_dead_of(
        &mut self,
        uaid: Uaid,
        topics: bool,
        after: &mut Vec<u8>,
        count: usize,
    ) -> Result<usize, WriteError> {
        let keyspace = if topics { &self.db.topics } else { &self.db.messages };
        let rows = some_rows(keyspace, uaid, after, count)?;
        for (key, value) in &rows {
            let chid = if topics { rows::chid_in(key) } else { rows::parse_message_key(key).map(|(_, _, chid)| chid) };
            let registration = rows::peek(value).map(|peek| peek.registration);
            let live = match chid {
                Some(chid) => self.registration(uaid, chid)? == registration,
                None => false,
            };
            match rows::message(value) {
                _ if live => {}
                Some(message) if topics => self.remove_topic(key.to_vec(), message.stamp, RowEnd::Gone)?,
                Some(_) | None if topics => self.batch.remove(&self.db.topics, key.clone()),
                Some(_) | None => self.remove_message(uaid, key.clone(), RowEnd::Gone)?,
            }
            self.stats.store_removed_rows += u64::from(!live);
        }
        if let Some((last, _)) = rows.last() {
            *after = last.to_vec();
        }
        Ok(rows.len())
    }

    fn put_cursor(&mut self, uaid: Uaid, cursor: Option<&Cursor>) {
        let key = rows::removal_key(uaid);
        self.touched.insert(uaid);
        match cursor {
            Some(cursor) => self.batch.insert(&self.db.meta, key, cursor.value()),
            None => self.batch.remove(&self.db.meta, key),
        }
    }
}

fn some_rows(keyspace: &Keyspace, uaid: Uaid, after: &[u8], count: usize) -> Result<Vec<(Slice, Slice)>, WriteError> {
    let start = if after.is_empty() { Bound::Included(uaid.0.to_vec()) } else { Bound::Excluded(after.to_vec()) };
    let behind = keyspace.range::<Vec<u8>, _>((start, Bound::Included(query::last_key(uaid)))).take(count);
    behind.map(|row| row.into_inner().map_err(WriteError::Read)).collect()
}
