//! Requests whose head is good, while their body arrives, and what their answers need of them. Those of the
//! registration API are in `registering`.

use machine::ids::{Chid, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::simplepush::Update;
use machine::time::UnixSeconds;

use protocol::webpush::errno::ApiError;
use protocol::webpush::headers::{Delivery, TTL_MAX};
use protocol::webpush::payload::Draft;
use protocol::wire::simplepush::{BadVersion, read_form};

/// A POST with a good token and authorization, while its body arrives.
pub(super) struct PostDraft {
    pub(super) uaid: Uaid,
    pub(super) chid: Chid,
    pub(super) payload: Draft,
    pub(super) delivery: Delivery,
    /// True with `Prefer: respond-async`.
    pub(super) receipt: bool,
}

/// Facts of a POST that its answer contains.
#[derive(Clone, Copy)]
pub(super) struct Posted {
    pub(super) uaid: Uaid,
    pub(super) chid: Chid,
    pub(super) topic: Option<Topic>,
    /// Granted TTL in seconds.
    pub(super) ttl: u32,
    /// True if the answer has a receipt.
    pub(super) receipt: bool,
}

impl PostDraft {
    /// Returns the message, or the first broken rule of PROTOCOL.md 2.3 steps 8 to 11.
    pub(super) fn finish(self, accepted: UnixSeconds) -> Result<Message, ApiError> {
        let granted = self.delivery.grant(self.payload.verdict())?;
        Ok(Message {
            uaid: self.uaid,
            chid: self.chid,
            stamp: Stamp::default(),
            ttl: granted.ttl,
            accepted,
            urgency: granted.urgency,
            topic: granted.topic,
            receipt: self.receipt,
            tries: Default::default(),
            payload: self.payload.finish()?,
        })
    }
}

/// A PUT whose token is good, while its body arrives.
pub(super) struct UpdateDraft {
    pub(super) uaid: Uaid,
    pub(super) chid: Chid,
    pub(super) query: Box<[u8]>,
    pub(super) body: Vec<u8>,
}

impl UpdateDraft {
    /// Keeps a piece of the body. The body is at most [`super::PushEdge::form_bytes_max`] bytes long.
    pub(super) fn extend(&mut self, piece: &[u8]) {
        self.body.extend_from_slice(piece);
    }

    /// Heap memory, in bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        self.query.len() + self.body.capacity()
    }

    /// Returns the message, or the fault of the form. An update has no TTL, so it is kept as long as any message can
    /// be.
    pub(super) fn finish(self, accepted: UnixSeconds, data_bytes_max: usize) -> Result<Message, ApiError> {
        let form = if self.body.is_empty() { &self.query[..] } else { &self.body };
        let form = read_form(form, accepted.0).map_err(|BadVersion| ApiError::BadUpdate)?;
        if form.data.len() > data_bytes_max {
            return Err(ApiError::TooLarge);
        }
        let update = Update { version: form.version, data: &form.data };
        Ok(update.to_message(self.uaid, self.chid, accepted, TTL_MAX))
    }
}

/// A call of another node with a body.
#[derive(Clone, Copy)]
pub(super) enum NodeCall {
    /// `PUT /push`.
    Push,
    /// `PUT /notif`.
    Notify,
}
