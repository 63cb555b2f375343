//! What a transfer writes: rows of users who may not be there yet, and users as they were elsewhere.

use std::sync::Arc;

use shards::machine::StoreReply;
use shards::message::Message;

use super::{Group, Trouble};
use crate::store::transfer::WholeUser;

/// What one group takes on. Rows come before their users; whoever sends them sees to that.
#[derive(Default)]
pub(in crate::store::embedded) struct Load {
    /// Kept as saved rows and topic rows.
    pub(in crate::store::embedded) rows: Vec<Arc<Message>>,
    /// Written whole.
    pub(in crate::store::embedded) users: Vec<WholeUser>,
}

impl Group<'_> {
    /// Takes on rows and users. Every lookup comes before the first change, so that a read that fails changes nothing.
    pub(in crate::store::embedded) fn load(&mut self, load: &Load) -> Result<StoreReply, Trouble> {
        if self.full {
            return self.refuse_full();
        }
        for message in &load.rows {
            self.is_newest(message)?;
        }
        for user in &load.users {
            self.user(user.uaid)?;
        }
        for message in &load.rows {
            // From the overlay: two of them may want the same topic slot.
            if self.is_newest(message)? {
                self.keep(message, true);
            }
        }
        for whole in &load.users {
            let new = self.user(whole.uaid)?.is_none();
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
                }
                for channel in &whole.channels {
                    record.add_channel(channel.chid, channel.key, channel.registered_at);
                }
            });
        }
        Ok(StoreReply::Done)
    }
}
