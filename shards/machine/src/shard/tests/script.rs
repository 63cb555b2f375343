//! The scripted store: the model that the laws check (`crate::model`). A test can hold back, fail or lose its replies.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::{Chid, Clock, Stamp, StoreTicket, Uaid};
use crate::message::Message;
use crate::model::{Model, User};
use crate::shard::{Presence, RECORD_VERSION, RowKey, StoreError, StoreOp, StoreReply};
use crate::simplepush::Contact;
use crate::time::UnixSeconds;

type Answer = Result<StoreReply, StoreError>;

/// Fate of the next operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Done and answered in order.
    Prompt,
    /// Done when released.
    Held,
    /// Not done; answered with an error.
    Failing,
    /// Messages are refused because there is no room; everything else is done.
    Full,
    /// Done; answered with an error all the same.
    Lossy,
}

pub struct Script {
    pub mode: Mode,
    pub held: VecDeque<(usize, StoreTicket, StoreOp)>,
    pub replies: VecDeque<(usize, StoreTicket, Answer)>,
    /// Every operation ever submitted, by its kind.
    pub seen: Vec<&'static str>,
    /// Version in the records that a reader gets; a lower one is that of an older server.
    pub record_version: u8,
    /// Stored data.
    pub model: Model,
}

impl Script {
    pub fn new(model: Model) -> Script {
        Script {
            mode: Mode::Prompt,
            held: VecDeque::new(),
            replies: VecDeque::new(),
            seen: Vec::new(),
            record_version: RECORD_VERSION,
            model,
        }
    }

    pub fn submit(&mut self, shard: usize, ticket: StoreTicket, op: StoreOp) {
        self.seen.push(kind(&op));
        let answer = match self.mode {
            Mode::Held => return self.held.push_back((shard, ticket, op)),
            Mode::Failing => Err(StoreError::Transient),
            Mode::Full if matches!(op, StoreOp::Publish { .. } | StoreOp::Save { .. }) => Err(StoreError::Full),
            Mode::Prompt | Mode::Full => self.apply(&op),
            Mode::Lossy => self.apply(&op).and(Err(StoreError::Transient)),
        };
        self.replies.push_back((shard, ticket, answer));
    }

    /// Carries out the held operations.
    pub fn release(&mut self) {
        self.mode = Mode::Prompt;
        while !self.held.is_empty() {
            self.release_one();
        }
    }

    /// Carries out the first held operation; the others stay.
    pub fn release_one(&mut self) {
        if let Some((shard, ticket, op)) = self.held.pop_front() {
            let answer = self.apply(&op);
            self.replies.push_back((shard, ticket, answer));
        }
    }

    fn apply(&mut self, op: &StoreOp) -> Answer {
        let mut answer = self.model.apply(op);
        if let Ok(StoreReply::User(Some(row))) = &mut answer {
            row.record_version = self.record_version;
        }
        answer
    }

    /// Carries out an operation of the test itself. It does not fail, and no machine gets its reply.
    pub fn done(&mut self, op: &StoreOp) {
        let answer = self.model.apply(op);
        assert!(matches!(answer, Ok(StoreReply::Done | StoreReply::Scarce)), "{op:?}: {answer:?}");
    }

    /// Adds a user with these channels, last seen at the given time.
    pub fn add_user(&mut self, uaid: Uaid, channels: &[Chid], seen: UnixSeconds) {
        let (key, at) = (None, Clock(1));
        for chid in channels.iter().copied() {
            self.done(&StoreOp::Register { uaid, chid, key, at, seen, contact: None, presence: None, maker: None });
        }
    }

    /// Stores a message for another node, which has made the checks.
    pub fn put(&mut self, message: Arc<Message>) {
        self.done(&StoreOp::Publish { message, checked: true });
    }

    /// Saves a message of a ledger.
    pub fn save(&mut self, message: Arc<Message>) {
        self.done(&StoreOp::Save { messages: vec![message] });
    }

    /// Settles every message row up to this clock, as an ack on another node does.
    pub fn raise_low_water(&mut self, uaid: Uaid, clock: Clock) {
        let (chid, stamp) = (Chid([0; 16]), Stamp::default());
        let rows = vec![RowKey { uaid, chid, stamp, topic: None }];
        self.done(&StoreOp::Settle { rows, low_water: Some(clock), durable: true });
    }

    /// Deletes the presence rows of a user.
    pub fn clear_presence(&mut self, uaid: Uaid) {
        for presence in self.presence_of(uaid) {
            self.done(&StoreOp::ClearPresence { uaid, presence });
        }
    }

    /// Returns the presence rows of a user, newest first.
    pub fn presence_of(&self, uaid: Uaid) -> Vec<Presence> {
        self.model.user(uaid).map(|user| user.row().presence).unwrap_or_default()
    }

    /// Returns the contact of a user.
    pub fn contact_of(&self, uaid: Uaid) -> Contact {
        self.model.user(uaid).map(|user| user.contact.clone()).unwrap_or_default()
    }

    pub fn channels_of(&self, uaid: Uaid) -> Option<Vec<Chid>> {
        self.model.user(uaid).map(|user| user.channels.keys().copied().collect())
    }

    pub fn low_water_of(&self, uaid: Uaid) -> Clock {
        self.model.user(uaid).map(|user| user.low_water).unwrap_or_default()
    }

    /// Returns every message of a user that a reader gets.
    pub fn rows_of(&self, uaid: Uaid) -> Vec<Arc<Message>> {
        self.model.user(uaid).into_iter().flat_map(User::messages).cloned().collect()
    }
}

fn kind(op: &StoreOp) -> &'static str {
    match op {
        StoreOp::LoadUser { .. } | StoreOp::Locate { .. } => "load",
        StoreOp::Touch { .. } => "touch",
        StoreOp::Register { .. } | StoreOp::Subscribe { .. } => "register",
        StoreOp::SetPresence { .. } => "enter",
        StoreOp::ClearPresence { .. } => "clear",
        StoreOp::SetContact { .. } => "contact",
        StoreOp::Unregister { .. } => "unregister",
        StoreOp::DropUser { .. } => "drop",
        StoreOp::DropIdle { .. } => "drop idle",
        StoreOp::SetBridge { .. } => "set bridge",
        StoreOp::MarkRefused { .. } => "mark refused",
        StoreOp::ClearRefused { .. } => "clear refused",
        StoreOp::DropBridged { .. } => "drop bridged",
        StoreOp::Publish { .. } => "publish",
        StoreOp::Save { .. } => "save",
        StoreOp::Topics { .. } => "topics",
        StoreOp::Messages { .. } => "messages",
        StoreOp::Read { .. } => "read",
        StoreOp::Settle { .. } => "settle",
        StoreOp::Tried { .. } => "tried",
    }
}
