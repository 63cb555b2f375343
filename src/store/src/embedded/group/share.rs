//! The share of a user in a store that is nearly full (decision 0039).

use std::time::Instant;

use machine::StoreReply;
use machine::ids::Uaid;

use super::{Group, WriteError};
use crate::embedded::query;
use crate::embedded::rows;

/// Rows of a user that are read for its share. A user with more has more than any share.
const SHARE_ROWS_MAX: usize = 1_024;
/// Share of an address below which one row in 64 says too little: a user with less than 256 KiB may have none that is
/// counted, or one that counts for more. Its own rows are read: many addresses with little each do not fill a store,
/// and none is refused for a guess.
const EXACT_BELOW: u64 = 1 << 20;

impl Group<'_> {
    /// Returns the answer to a write of messages.
    pub(super) fn written(&self) -> StoreReply {
        if self.rooms.left.is_scarce() { StoreReply::Scarce } else { StoreReply::Done }
    }

    /// Returns true if room is scarce, and both this user and its address have more than their share of it.
    pub(super) fn is_beyond_share(&mut self, uaid: Uaid) -> Result<bool, WriteError> {
        let room = self.rooms.left;
        if !room.is_scarce() {
            return Ok(false);
        }
        let Some(record) = self.user(uaid)? else { return Ok(false) };
        let (charge, low_water, share) = (record.charge(), record.low_water(), room.user_share(record.credit()));
        // A user without an address is an address of its own.
        let of_address = charge.maker.map_or(charge.bytes, |maker| self.shares.of_address(maker));
        let address_share = room.address_share();
        let share = if address_share < EXACT_BELOW {
            // What the others of its address leave to it, which is not guessed by rows of its own.
            let of_others = of_address.saturating_sub(charge.bytes);
            share.max(address_share.saturating_sub(of_others))
        } else if room.admits_address(of_address) {
            return Ok(false);
        } else {
            share
        };
        let now = Instant::now();
        match self.shares.has_share(uaid, share, now) {
            Some(has_share) => Ok(has_share),
            None => self.read_has_share(uaid, low_water.0, share, now),
        }
    }

    /// Sums the rows of a user, until there are as many bytes as its share; returns true if there are.
    fn read_has_share(&mut self, uaid: Uaid, low_water: u64, share: u64, now: Instant) -> Result<bool, WriteError> {
        self.write_out_for(uaid)?;
        let last = query::last_key(uaid);
        let (mut bytes, mut count) = (0u64, 0);
        for (keyspace, is_message) in [(&self.db.messages, true), (&self.db.topics, false)] {
            for row in keyspace.range(&uaid.0[..]..=&last[..]) {
                let (key, value) = row.into_inner().map_err(WriteError::Read)?;
                let is_saved = rows::peek(&value).is_none_or(|peek| peek.saved);
                // Settled rows are removed soon.
                if !is_message || is_saved || rows::word(&key, 16) > low_water {
                    bytes += (rows::MESSAGE_KEY_BYTES + value.len()) as u64;
                }
                count += 1;
                if bytes >= share || count == SHARE_ROWS_MAX {
                    let bytes = if bytes >= share { bytes } else { u64::MAX };
                    self.shares.know(uaid, bytes, false, now);
                    return Ok(true);
                }
            }
        }
        self.shares.know(uaid, bytes, true, now);
        Ok(false)
    }
}
