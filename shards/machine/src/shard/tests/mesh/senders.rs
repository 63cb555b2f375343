//! Requests of app servers, and their answers.

use std::sync::Arc;

use super::{CHANNEL, Mesh};
use crate::ids::{Stamp, Uaid};
use crate::message::{Message, Topic, Urgency};
use crate::shard::*;
use crate::time::{TimeSpan, UnixSeconds};
use crate::upstream::{BridgeOutcome, Bridged, UpstreamOp};

impl Mesh {
    /// Sends a POST to `shard`; its answer is looked up later.
    pub fn start_post(&mut self, shard: usize, message: Message) -> (usize, u32) {
        let conn = self.conn();
        let publish = Publish { uaid: message.uaid, chid: message.chid, message: Ok(Arc::new(message)) };
        self.step(shard, Input::Command { conn, command: SenderCommand::Publish(Box::new(publish)).into() });
        (shard, conn.slot)
    }

    pub fn answer_to(&self, post: (usize, u32)) -> Option<Published> {
        self.published.get(&post).copied()
    }

    pub fn post(&mut self, shard: usize, message: Message) -> Published {
        let post = self.start_post(shard, message);
        self.run();
        self.answer_to(post).expect("the POST was answered")
    }

    pub fn publish(&mut self, shard: usize, publish: Publish) -> Published {
        let conn = self.conn();
        self.step(shard, Input::Command { conn, command: SenderCommand::Publish(Box::new(publish)).into() });
        self.run();
        self.answer_to((shard, conn.slot)).expect("the POST was answered")
    }

    /// Posts and expects 201 with this disposition; returns the stamp.
    pub fn accept(&mut self, shard: usize, message: Message, expected: Disposition) -> Stamp {
        match self.post(shard, message) {
            Published::Accepted { stamp, disposition } => {
                assert_eq!(disposition, expected);
                stamp
            }
            refused => panic!("not accepted: {refused:?}"),
        }
    }

    pub fn request(&mut self, shard: usize, command: impl Into<Command>) -> String {
        let conn = self.conn();
        self.step(shard, Input::Command { conn, command: command.into() });
        self.run();
        self.answers.get(&(shard, conn.slot)).cloned().expect("the request was answered")
    }

    /// Sends a call of the registration API to `shard`; its answer is taken later.
    pub fn start_registration(&mut self, shard: usize, uaid: Uaid, call: RegistrationCall) -> (usize, u32) {
        let conn = self.conn();
        let command = RegistrationCommand { uaid, call }.into();
        self.step(shard, Input::Command { conn, command });
        self.run();
        (shard, conn.slot)
    }

    pub fn registration_said(&mut self, asked: (usize, u32)) -> Option<RegistrationAnswer> {
        self.registrations.remove(&asked)
    }

    pub fn registration(&mut self, shard: usize, uaid: Uaid, call: RegistrationCall) -> RegistrationAnswer {
        let asked = self.start_registration(shard, uaid, call);
        self.registration_said(asked).expect("the call was answered")
    }

    /// Answers the oldest call of a service.
    pub fn answer_upstream(&mut self, outcome: BridgeOutcome) -> Arc<Bridged> {
        let (shard, ticket, UpstreamOp { to, .. }) = self.upstream_calls.pop_front().expect("a call is under way");
        self.step(shard, Input::Upstream { ticket, reply: outcome });
        self.run();
        to
    }

    /// Sends a POST for a bridged user whose service answers so.
    pub fn post_bridged(&mut self, shard: usize, message: Message, outcome: BridgeOutcome) -> Published {
        let post = self.start_post(shard, message);
        self.run();
        self.answer_upstream(outcome);
        self.answer_to(post).expect("the POST was answered")
    }

    /// Sends a receipt request for this message to `shard`; its answer is looked up later.
    pub fn start_receipt(&mut self, shard: usize, (message, stamp): (&Message, Stamp), wait: TimeSpan) -> (usize, u32) {
        let conn = self.conn();
        let Message { uaid, chid, topic, ttl, .. } = *message;
        let expires = UnixSeconds(stamp.clock.0 / 1_000_000 + u64::from(ttl));
        let query = ReceiptQuery { uaid, chid, stamp, topic, expires, wait };
        self.step(shard, Input::Command { conn, command: SenderCommand::Receipt(Box::new(query)).into() });
        self.run();
        (shard, conn.slot)
    }

    pub fn receipt_said(&self, asked: (usize, u32)) -> Option<ReceiptAnswer> {
        self.receipts.get(&asked).copied()
    }

    /// Returns the present outcome of a message.
    pub fn receipt(&mut self, shard: usize, message: (&Message, Stamp)) -> ReceiptAnswer {
        let asked = self.start_receipt(shard, message, TimeSpan(0));
        self.receipt_said(asked).expect("without a wait the answer comes at once")
    }
}

/// Returns a message as an edge makes it: no stamp yet.
pub fn message(uaid: Uaid) -> Message {
    Message {
        uaid,
        chid: CHANNEL,
        stamp: Stamp::default(),
        ttl: 3_600,
        accepted: UnixSeconds(0),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: Box::from(&b"payload"[..]),
    }
}

pub fn topical(uaid: Uaid, topic: &str) -> Message {
    Message { topic: Topic::new(topic.as_bytes()), ..message(uaid) }
}

pub fn lasting(uaid: Uaid, ttl: u32) -> Message {
    Message { ttl, ..message(uaid) }
}
