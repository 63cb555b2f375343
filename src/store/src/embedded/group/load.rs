//! Writes of a transfer: rows of users who may not be there yet, and users as they were elsewhere.

use std::sync::Arc;

use machine::StoreReply;
use machine::message::Message;

use super::{Group, WriteError};
use crate::embedded::room::Room;
use crate::embedded::rows::ChannelRow;
use crate::transfer::WholeUser;

/// Rows and users that one group takes on. The sender puts rows before their users.
#[derive(Default)]
pub(in crate::embedded) struct Load {
    /// Kept as saved rows and topic rows.
    pub(in crate::embedded) rows: Vec<Arc<Message>>,
    pub(in crate::embedded) users: Vec<WholeUser>,
}

impl Group<'_> {
    /// Takes on rows and users. Every lookup comes before the first change, so that a read that fails changes nothing.
    pub(in crate::embedded) fn load(&mut self, load: &Load) -> Result<StoreReply, WriteError> {
        if self.rooms.room >= Room::NoMessages {
            return self.refuse_full();
        }
        for message in &load.rows {
            self.remove_all_dead(message.uaid)?;
        }
        for message in &load.rows {
            let registration = self.registration_of_load(message)?;
            self.is_newest(message, registration)?;
        }
        for user in &load.users {
            self.remove_all_dead(user.uaid)?;
            self.user(user.uaid)?;
            for channel in &user.channels {
                self.registration(user.uaid, channel.chid)?;
            }
        }
        for message in &load.rows {
            let registration = self.registration_of_load(message)?;
            // From the overlay: two of them may compete for the same topic slot.
            if self.is_newest(message, registration)? {
                self.keep(message, true, registration)?;
            }
        }
        for whole in &load.users {
            let new = self.user(whole.uaid)?.is_none();
            for channel in &whole.channels {
                if self.registration(whole.uaid, channel.chid)?.is_none() {
                    let row = ChannelRow { registered_at: channel.registered_at, registration: 0, key: channel.key };
                    self.add_channel(whole.uaid, channel.chid, row);
                }
            }
            self.raise_clock(whole.user_clock);
            self.change(whole.uaid, |record| {
                record.saw(whole.seen);
                record.settled(whole.low_water);
                record.advance(whole.user_clock);
                if whole.may_have_messages {
                    record.mark(true);
                }
                if new {
                    record.set_contact(&whole.contact);
                } else if let Some(bridge) = &whole.contact.bridge
                    && record.bridge().is_some_and(|there| bridge.is_newer_than(&there))
                {
                    record.set_bridge(bridge);
                }
            });
        }
        Ok(StoreReply::Done)
    }

    /// Rows come before their channels, which then get this number. Nothing dead has it: that was removed first.
    fn registration_of_load(&mut self, message: &Message) -> Result<u64, WriteError> {
        Ok(self.registration(message.uaid, message.chid)?.unwrap_or(0))
    }
}
