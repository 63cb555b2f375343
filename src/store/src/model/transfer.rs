//! Whole users in and out of the store in memory.

use std::sync::{Arc, Mutex};

use machine::ids::Uaid;
use machine::message::Message;
use machine::{StoreError, StoreOp, StoreReply};

use machine::model::User;

use super::{Model, ModelPort, State, lock};
use crate::transfer::{BlockingPort, Channel, Listed, Transfer, TransferFault, WholeUser, refused};

impl Model {
    pub fn transfer(&self) -> Box<dyn Transfer> {
        let state = self.state.clone();
        let asker = BlockingPort::new(|waker| {
            Box::new(ModelPort { state: self.state.clone(), waker, replies: std::collections::VecDeque::new() })
        });
        Box::new(ModelTransfer { state, asker })
    }
}

struct ModelTransfer {
    state: Arc<Mutex<State>>,
    asker: BlockingPort,
}

impl Transfer for ModelTransfer {
    fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault> {
        let state = lock(&self.state);
        Ok(Listed::readable(state.users_after(after).take(limit).map(|(uaid, user)| whole(*uaid, user)).collect()))
    }

    fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
        let state = lock(&self.state);
        Ok(uaids.iter().map(|uaid| state.user(*uaid).map(|user| whole(*uaid, user))).collect())
    }

    fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault> {
        let mut state = lock(&self.state);
        if state.is_full() {
            return Err(refused(StoreError::Full));
        }
        rows.iter().for_each(|message| state.put_row(message));
        Ok(())
    }

    fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault> {
        let mut state = lock(&self.state);
        if state.is_full() {
            return Err(refused(StoreError::Full));
        }
        for whole in users {
            let (user, known) = state.bring(whole.uaid);
            take_on(user, whole, !known);
        }
        Ok(())
    }

    fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        self.asker.ask(ops)
    }
}

fn whole(uaid: Uaid, user: &User) -> WholeUser {
    let channel = |(chid, (key, at)): (&_, &(_, _))| Channel { chid: *chid, key: *key, registered_at: *at };
    WholeUser::of(uaid, user.row(), user.channels.iter().map(channel).collect())
}

fn take_on(user: &mut User, whole: &WholeUser, new: bool) {
    user.seen = user.seen.max(whole.seen);
    user.low_water = user.low_water.max(whole.low_water);
    user.user_clock = user.user_clock.max(whole.user_clock);
    if new {
        user.contact = whole.contact.clone();
    } else if user.contact.bridge.is_some() {
        user.contact.bridge = whole.contact.replacing(&user.contact).bridge;
    }
    for channel in &whole.channels {
        user.channels.entry(channel.chid).or_insert((channel.key, channel.registered_at));
    }
}
