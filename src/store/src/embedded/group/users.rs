//! Operations on the record of a user, and the removal of channels and users.

use machine::StoreReply;
use machine::ids::{AddressDigest, Chid, Clock, KeyDigest, Uaid};
use machine::limits;
use machine::simplepush::Contact;
use machine::time::UnixSeconds;
use machine::upstream::Bridged;

use super::{Group, Pending, WriteError};
use crate::embedded::query;
use crate::embedded::record::{Charge, Record};
use crate::embedded::room::Room;
use crate::embedded::rows::ChannelRow;

impl Group<'_> {
    pub(super) fn touch(&mut self, uaid: Uaid, seen: UnixSeconds) -> Result<StoreReply, WriteError> {
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
        maker: Option<AddressDigest>,
    ) -> Result<StoreReply, WriteError> {
        let (chid, key, at) = channel;
        let user = self.user(uaid)?.as_ref().map(|record| (record.channel_count(), record.contact()));
        let maker = maker.filter(|_| user.is_none());
        let known = self.registration(uaid, chid)?.is_some();
        let (count, there) = user.map_or((0, None), |(count, there)| (count, Some(there)));
        if known && contact.is_none_or(|contact| there.as_ref() == Some(contact)) {
            // The channel is there, and on the disk: registers are synced before they are answered. It keeps its key.
            self.stats.store_registers_repeated += 1;
            return Ok(StoreReply::Done);
        }
        if self.rooms.room >= Room::NoRegisters || (!known && count >= limits::CHANNELS_MAX) {
            return self.refuse_full();
        }
        self.stats.store_registers += 1;
        self.raise_clock(at);
        if !known {
            self.numbers.registration += 1;
            let registration = self.numbers.registration;
            self.add_channel(uaid, chid, ChannelRow { registered_at: at, registration, key });
        }
        self.change(uaid, |record| {
            record.saw(seen);
            record.advance(at);
            if maker.is_some() {
                record.set_maker(maker);
            }
            if let Some(contact) = contact {
                record.set_contact(contact);
            }
        });
        Ok(StoreReply::Done)
    }

    /// Adds a channel to a user that is there, if it is not registered with another key.
    pub(super) fn subscribe(
        &mut self,
        uaid: Uaid,
        channel: (Chid, Option<KeyDigest>, Clock),
    ) -> Result<StoreReply, WriteError> {
        let (chid, key, _) = channel;
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::NoSubscription) };
        let seen = record.seen();
        if self.registration(uaid, chid)?.is_some() && self.channel_key(uaid, chid)? != key {
            return Ok(StoreReply::OtherKey);
        }
        self.register(uaid, channel, seen, None, None)
    }

    pub(super) fn set_contact(&mut self, uaid: Uaid, contact: &Contact) -> Result<StoreReply, WriteError> {
        self.stats.store_contacts += 1;
        if self.user(uaid)?.is_some() {
            self.change(uaid, |record| record.set_contact(contact));
        }
        Ok(StoreReply::Done)
    }

    pub(super) fn unregister(&mut self, uaid: Uaid, chid: Chid, at: Clock) -> Result<StoreReply, WriteError> {
        self.stats.store_unregisters += 1;
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Done) };
        let may_have_messages = record.may_have_messages();
        let had = self.registration(uaid, chid)?.is_some();
        self.raise_clock(at);
        self.change(uaid, |record| {
            record.advance(at);
            if had {
                record.remove_channel(chid);
            }
        });
        if had {
            self.remove_channel_row(uaid, chid);
        }
        // Without the channel there are no rows of it: they are only written while it is registered.
        if had && may_have_messages {
            self.begin_removal(uaid)?;
        }
        Ok(StoreReply::Done)
    }

    /// Replaces the bridge of a user by a newer one. Operations of a user take effect one by one: a removal of the
    /// earlier one that comes later finds this one.
    pub(super) fn set_bridge(&mut self, uaid: Uaid, bridge: &Bridged) -> Result<StoreReply, WriteError> {
        self.stats.store_contacts += 1;
        let there = self.user(uaid)?.as_ref().and_then(Record::bridge);
        if there.is_some_and(|there| bridge.is_newer_than(&there)) {
            self.raise_clock(bridge.registered);
            self.change(uaid, |record| {
                record.set_bridge(bridge);
                record.advance(bridge.registered);
                record.saw(bridge.seen());
            });
        }
        Ok(StoreReply::Done)
    }

    pub(super) fn mark_refused(
        &mut self,
        uaid: Uaid,
        registered: Clock,
        at: UnixSeconds,
    ) -> Result<StoreReply, WriteError> {
        self.stats.store_contacts += 1;
        let there = self.user(uaid)?.as_ref().and_then(Record::bridge);
        if let Some(bridge) = there.filter(|bridge| bridge.registered == registered && bridge.refused.is_none()) {
            self.change(uaid, |record| record.set_bridge(&Bridged { refused: Some(at), ..bridge }));
        }
        Ok(StoreReply::Done)
    }

    pub(super) fn clear_refused(&mut self, uaid: Uaid, registered: Clock) -> Result<StoreReply, WriteError> {
        self.stats.store_contacts += 1;
        let there = self.user(uaid)?.as_ref().and_then(Record::bridge);
        if let Some(bridge) = there.filter(|bridge| bridge.registered == registered && bridge.refused.is_some()) {
            self.change(uaid, |record| record.set_bridge(&bridge.taken()));
        }
        Ok(StoreReply::Done)
    }

    /// Drops a user whose bridge is exactly this one.
    pub(super) fn drop_bridged(&mut self, uaid: Uaid, registered: Clock) -> Result<StoreReply, WriteError> {
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Done) };
        if record.bridge().is_none_or(|bridge| bridge.registered != registered) {
            return Ok(StoreReply::Kept);
        }
        self.stats.store_drops += 1;
        self.drop_user(uaid)
    }

    /// Drops a user that has no channel, and nothing that its next hello does not say again.
    pub(super) fn drop_idle(&mut self, uaid: Uaid) -> Result<StoreReply, WriteError> {
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Kept) };
        if record.channel_count() > 0 || !record.contact().is_droppable() {
            return Ok(StoreReply::Kept);
        }
        self.stats.store_idle_drops += 1;
        self.drop_user(uaid)
    }

    /// Drops a user with its channels, of which there are at most `limits::CHANNELS_MAX`. Of its rows some are removed
    /// now and the others in the background; none is read again.
    pub(super) fn drop_user(&mut self, uaid: Uaid) -> Result<StoreReply, WriteError> {
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Done) };
        let may_have_messages = record.may_have_messages();
        self.write_out_for(uaid)?;
        let Some(record) = self.user(uaid)? else { return Ok(StoreReply::Done) };
        let record = record.clone();
        // All of them are in the batch with the end of the record: a kill leaves all or none.
        for (chid, _) in query::registrations(self.db, uaid, &record).map_err(WriteError::Read)? {
            self.remove_channel_row(uaid, chid);
        }
        self.shares.charge(uaid, record.charge(), Charge::default());
        self.shares.forget(uaid);
        self.users.insert(uaid, Pending { record: None, changed: true });
        if may_have_messages {
            self.begin_removal(uaid)?;
        }
        Ok(StoreReply::Done)
    }
}
