//! Whole users in and out of the store in memory.

use std::sync::{Arc, Mutex};

use shards::ids::Uaid;
use shards::machine::{RECORD_VERSION, StoreError, StoreOp, StoreReply};
use shards::message::Message;

use super::{Model, ModelPort, State, User, lock};
use crate::store::transfer::{Asker, Channel, Listed, Transfer, TransferFault, WholeUser, refused};

impl Model {
    /// Its users, whole.
    pub fn transfer(&self) -> Box<dyn Transfer> {
        let state = self.state.clone();
        let asker = Asker::new(|waker| {
            Box::new(ModelPort { state: self.state.clone(), waker, replies: std::collections::VecDeque::new() })
        });
        Box::new(ModelTransfer { state, asker })
    }
}

struct ModelTransfer {
    state: Arc<Mutex<State>>,
    asker: Asker,
}

impl Transfer for ModelTransfer {
    fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault> {
        use std::ops::Bound::{Excluded, Unbounded};
        let state = lock(&self.state);
        let behind = state.users.range((after.map_or(Unbounded, Excluded), Unbounded));
        Ok(Listed::readable(behind.take(limit).map(|(uaid, user)| user.whole(*uaid)).collect()))
    }

    fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
        let state = lock(&self.state);
        Ok(uaids.iter().map(|uaid| state.users.get(uaid).map(|user| user.whole(*uaid))).collect())
    }

    fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault> {
        let mut state = lock(&self.state);
        if state.bytes >= state.bytes_max {
            return Err(refused(StoreError::Full));
        }
        for message in rows {
            // Rows without a user are those of one that nobody knows of yet.
            let known = state.users.contains_key(&message.uaid);
            let users = if known { &mut state.users } else { &mut state.coming };
            let (added, replaced) = users.entry(message.uaid).or_default().keep(message.clone(), true);
            state.bytes = state.bytes + added - replaced;
        }
        Ok(())
    }

    fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault> {
        let mut state = lock(&self.state);
        if state.bytes >= state.bytes_max {
            return Err(refused(StoreError::Full));
        }
        for whole in users {
            let coming = state.coming.remove(&whole.uaid);
            let new = !state.users.contains_key(&whole.uaid);
            let user = state.users.entry(whole.uaid).or_insert_with(|| coming.unwrap_or_default());
            user.take_on(whole, new);
        }
        Ok(())
    }

    fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        self.asker.ask(ops)
    }
}

impl User {
    fn whole(&self, uaid: Uaid) -> WholeUser {
        let channel = |(chid, (key, at)): (&_, &(_, _))| Channel { chid: *chid, key: *key, registered_at: *at };
        WholeUser {
            uaid,
            record_version: RECORD_VERSION,
            seen: self.seen,
            low_water: self.low_water,
            user_clock: self.user_clock,
            may_have_messages: !self.rows.is_empty() || !self.topics.is_empty(),
            contact: self.contact.clone(),
            channels: self.channels.iter().map(channel).collect(),
        }
    }

    fn take_on(&mut self, whole: &WholeUser, new: bool) {
        self.seen = self.seen.max(whole.seen);
        self.low_water = self.low_water.max(whole.low_water);
        self.user_clock = self.user_clock.max(whole.user_clock);
        if new {
            self.contact = whole.contact.clone();
        }
        for channel in &whole.channels {
            self.channels.entry(channel.chid).or_insert((channel.key, channel.registered_at));
        }
    }
}
