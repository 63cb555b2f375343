//! Operations on the record of a user, and what goes with a channel or a user.

use shards::ids::{Chid, Clock, KeyDigest, Uaid};
use shards::limits;
use shards::machine::StoreReply;
use shards::simple::Contact;
use shards::time::UnixSeconds;

use super::{Group, Pending, Trouble};
use crate::store::embedded::rows::{self, Record};

impl Group<'_> {
    pub(super) fn touch(&mut self, uaid: Uaid, seen: UnixSeconds) -> Result<StoreReply, Trouble> {
        self.stats.store_touches += 1;
        if self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.saw(seen));
        }
        Ok(StoreReply::Done)
    }

    pub(super) fn register(
        &mut self,
        uaid: Uaid,
        channel: (Chid, Option<KeyDigest>, Clock),
        seen: UnixSeconds,
        contact: Option<&Contact>,
    ) -> Result<StoreReply, Trouble> {
        if self.full {
            return self.refuse_full();
        }
        let (chid, key, at) = channel;
        let known = self.user(uaid)?.as_ref().map(|record| (record.channel_count(), record.has_channel(chid)));
        if known.is_some_and(|(count, has)| count >= limits::CHANNELS_MAX && !has) {
            return self.refuse_full();
        }
        self.stats.store_registers += 1;
        self.raise_clock(at);
        self.change(uaid, |record| {
            record.saw(seen);
            record.advance(at);
            record.add_channel(chid, key, at);
            if let Some(contact) = contact {
                record.set_contact(contact);
            }
        });
        Ok(StoreReply::Done)
    }

    pub(super) fn set_contact(&mut self, uaid: Uaid, contact: &Contact) -> Result<StoreReply, Trouble> {
        self.stats.store_contacts += 1;
        if self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.set_contact(contact));
        }
        Ok(StoreReply::Done)
    }

    pub(super) fn unregister(&mut self, uaid: Uaid, chid: Chid, at: Clock) -> Result<StoreReply, Trouble> {
        self.stats.store_unregisters += 1;
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Done) };
        let (had, may_have_messages) = (record.has_channel(chid), record.may_have_messages());
        // Without the channel there are no rows of it: they are only written while it is registered.
        if had && may_have_messages {
            self.write_out_for(uaid)?;
            let keys = self.keys_of(uaid, |key| rows::parse_message_key(key).is_some_and(|(_, _, of)| of == chid))?;
            let topics = self.topics_of(uaid, |key| rows::topic_chid(key) == Some(chid))?;
            self.remove_rows(uaid, keys, topics);
        }
        self.raise_clock(at);
        // A scan may have written the overlay out.
        self.user(uaid)?;
        self.change(uaid, |record| {
            record.advance(at);
            record.remove_channel(chid);
        });
        Ok(StoreReply::Done)
    }

    pub(super) fn drop_user(&mut self, uaid: Uaid) -> Result<StoreReply, Trouble> {
        let may_have_messages = self.user(uaid)?.as_ref().map(Record::may_have_messages);
        if may_have_messages.is_none() {
            return Ok(StoreReply::Done);
        }
        if may_have_messages == Some(true) {
            self.write_out_for(uaid)?;
            let keys = self.keys_of(uaid, |_| true)?;
            let topics = self.topics_of(uaid, |_| true)?;
            self.remove_rows(uaid, keys, topics);
        }
        self.users.insert(uaid, Pending { record: None, changed: true });
        Ok(StoreReply::Done)
    }
}
