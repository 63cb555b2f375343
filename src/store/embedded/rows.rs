//! Keys and values of the embedded store. Big-endian, so that byte order is the order of the laws.
//!
//! ```text
//! users     uaid                                -> record: 0 format, 1 record version, 2 flags, 3 wake data length,
//!                                                  4 seen 8, 12 low water 8, 20 user clock 8, 28 channel count 4,
//!                                                  then per channel in chid order: chid 16, registered at 8, has key
//!                                                  1, key 32; then wake data
//! messages  uaid, clock, origin, chid           -> 0 flags, 1 expires 8, then the message layout of `shards`
//! topics    uaid, chid, topic                   -> as messages
//! meta      "clock"                             -> the greatest clock in any row, 8
//! ```

use shards::ids::{Chid, Clock, KeyDigest, Origin, Stamp, Uaid};
use shards::machine::{RowKey, UserRow};
use shards::message::{Message, Topic};
use shards::simple::{Contact, Mode, WakeData};
use shards::time::UnixSeconds;

use crate::store::RECORD_VERSION;
use crate::store::transfer::{Channel, WholeUser};

/// Bytes of a key of `messages`.
pub(super) const MESSAGE_KEY_BYTES: usize = 44;

/// Name of the one row of `meta`.
pub(super) const CLOCK_KEY: &[u8] = b"clock";

const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 32;
const CHANNEL_BYTES: usize = 57;
const MAY_HAVE_MESSAGES: u8 = 1;
const SIMPLE: u8 = 2;
const SAVED: u8 = 1;
const VALUE_HEAD_BYTES: usize = 9;

const _: () = assert!(shards::limits::WAKE_BYTES_MAX <= u8::MAX as usize, "its length is one byte of the record");

/// A user's record as bytes, edited in place: a record of 2,048 channels is not decoded to look at one.
/// Its length is always head, whole channels and wake data, and the sizes of both are in the head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
}

impl Record {
    /// A user that was never written.
    pub(super) fn new() -> Record {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[0] = FORMAT;
        bytes[1] = RECORD_VERSION;
        Record { bytes }
    }

    /// Reads what [`Record::as_bytes`] gave; `None` for anything else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Record> {
        let head = bytes.get(..HEAD_BYTES)?;
        let count = u32::from_be_bytes(head[28..32].try_into().ok()?) as usize;
        let tail = count.checked_mul(CHANNEL_BYTES)? + usize::from(head[3]);
        let whole = head[0] == FORMAT && bytes.len() == HEAD_BYTES + tail;
        whole.then(|| Record { bytes: bytes.to_vec() })
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn seen(&self) -> UnixSeconds {
        UnixSeconds(self.word(4))
    }

    pub(super) fn low_water(&self) -> Clock {
        Clock(self.word(12))
    }

    pub(super) fn may_have_messages(&self) -> bool {
        self.bytes[2] & MAY_HAVE_MESSAGES != 0
    }

    /// Raises when the user was last seen.
    pub(super) fn saw(&mut self, seen: UnixSeconds) {
        self.raise(4, seen.0);
    }

    /// Raises the low water, and the user clock with it.
    pub(super) fn settled(&mut self, low_water: Clock) {
        self.raise(12, low_water.0);
        self.advance(low_water);
    }

    /// Raises the user clock.
    pub(super) fn advance(&mut self, clock: Clock) {
        self.raise(20, clock.0);
    }

    /// Sets the mark; says whether that changed it.
    pub(super) fn mark(&mut self, may_have_messages: bool) -> bool {
        let changed = self.may_have_messages() != may_have_messages;
        self.put(MAY_HAVE_MESSAGES, may_have_messages);
        changed
    }

    /// In which mode the user is reached.
    pub(super) fn mode(&self) -> Mode {
        if self.bytes[2] & SIMPLE != 0 { Mode::Simple } else { Mode::WebPush }
    }

    /// How the user is reached.
    pub(super) fn contact(&self) -> Contact {
        let wake = std::str::from_utf8(&self.bytes[self.wake_at()..]).unwrap_or_default();
        Contact { mode: self.mode(), wake: WakeData::new(wake) }
    }

    /// Sets how the user is reached.
    pub(super) fn set_contact(&mut self, contact: &Contact) {
        let wake = contact.wake.as_ref().map_or("", WakeData::as_str);
        self.put(SIMPLE, contact.mode == Mode::Simple);
        self.bytes.truncate(self.wake_at());
        self.bytes.extend_from_slice(wake.as_bytes());
        self.bytes[3] = wake.len() as u8;
    }

    pub(super) fn channel_count(&self) -> usize {
        (self.wake_at() - HEAD_BYTES) / CHANNEL_BYTES
    }

    pub(super) fn has_channel(&self, chid: Chid) -> bool {
        self.find(chid).is_ok()
    }

    /// Adds a channel; one that is there keeps its key and its time.
    pub(super) fn add_channel(&mut self, chid: Chid, key: Option<KeyDigest>, at: Clock) {
        let Err(index) = self.find(chid) else { return };
        let mut channel = [0; CHANNEL_BYTES];
        channel[..16].copy_from_slice(&chid.0);
        channel[16..24].copy_from_slice(&at.0.to_be_bytes());
        if let Some(key) = key {
            channel[24] = 1;
            channel[25..].copy_from_slice(&key.0);
        }
        let place = HEAD_BYTES + index * CHANNEL_BYTES;
        self.bytes.splice(place..place, channel);
        self.count_channels();
    }

    /// Removes a channel; says whether it was there.
    pub(super) fn remove_channel(&mut self, chid: Chid) -> bool {
        let Ok(index) = self.find(chid) else { return false };
        let place = HEAD_BYTES + index * CHANNEL_BYTES;
        self.bytes.drain(place..place + CHANNEL_BYTES);
        self.count_channels();
        true
    }

    /// As the machine wants it.
    pub(super) fn row(&self) -> UserRow {
        UserRow {
            record_version: self.bytes[1],
            seen: self.seen(),
            low_water: self.low_water(),
            user_clock: Clock(self.word(20)),
            may_have_messages: self.may_have_messages(),
            contact: self.contact(),
            channels: self.channels().map(chid_of).collect(),
            presence: Vec::new(),
        }
    }

    /// With everything that it holds.
    pub(super) fn whole(&self, uaid: Uaid) -> WholeUser {
        let row = self.row();
        let channel = |bytes: &[u8]| Channel {
            chid: chid_of(bytes),
            key: (bytes[24] == 1).then(|| KeyDigest(bytes[25..].try_into().unwrap_or_default())),
            registered_at: Clock(word(bytes, 16)),
        };
        WholeUser {
            uaid,
            record_version: row.record_version,
            seen: row.seen,
            low_water: row.low_water,
            user_clock: row.user_clock,
            may_have_messages: row.may_have_messages,
            contact: row.contact,
            channels: self.channels().map(channel).collect(),
        }
    }

    fn channels(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes[HEAD_BYTES..self.wake_at()].chunks_exact(CHANNEL_BYTES)
    }

    fn find(&self, chid: Chid) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.channel_count());
        while low < high {
            let middle = low + (high - low) / 2;
            let place = HEAD_BYTES + middle * CHANNEL_BYTES;
            match self.bytes[place..place + 16].cmp(&chid.0[..]) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    fn count_channels(&mut self) {
        let count = self.channel_count() as u32;
        self.bytes[28..32].copy_from_slice(&count.to_be_bytes());
    }

    /// Where wake data begins: behind the channels.
    fn wake_at(&self) -> usize {
        self.bytes.len() - usize::from(self.bytes[3])
    }

    fn put(&mut self, flag: u8, on: bool) {
        self.bytes[2] = if on { self.bytes[2] | flag } else { self.bytes[2] & !flag };
    }

    fn word(&self, at: usize) -> u64 {
        word(&self.bytes, at)
    }

    fn raise(&mut self, at: usize, value: u64) {
        if value > self.word(at) {
            self.bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
        }
    }
}

/// The value of a message or topic row.
pub(super) fn value(message: &Message, saved: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(VALUE_HEAD_BYTES + message.encoded_len());
    out.push(if saved { SAVED } else { 0 });
    out.extend_from_slice(&message.expires().0.to_be_bytes());
    message.encode(&mut out);
    out
}

/// What is known of a row without decoding it.
pub(super) struct Peek {
    /// Came from a ledger, so `low_water` says nothing about it.
    pub(super) saved: bool,
    pub(super) expires: UnixSeconds,
}

/// Looks at the front of a value; `None` when it is not one.
pub(super) fn peek(value: &[u8]) -> Option<Peek> {
    let head = value.get(..VALUE_HEAD_BYTES)?;
    Some(Peek { saved: head[0] & SAVED != 0, expires: UnixSeconds(word(head, 1)) })
}

/// The message of a value.
pub(super) fn message(value: &[u8]) -> Option<Message> {
    Message::decode(value.get(VALUE_HEAD_BYTES..)?)
}

/// Key of a message row.
pub(super) fn message_key(uaid: Uaid, stamp: Stamp, chid: Chid) -> [u8; MESSAGE_KEY_BYTES] {
    let mut key = [0; MESSAGE_KEY_BYTES];
    key[..16].copy_from_slice(&uaid.0);
    key[16..24].copy_from_slice(&stamp.clock.0.to_be_bytes());
    key[24..28].copy_from_slice(&stamp.origin.0.to_be_bytes());
    key[28..].copy_from_slice(&chid.0);
    key
}

/// User, stamp and channel of a message key; `None` when it is not one.
pub(super) fn parse_message_key(key: &[u8]) -> Option<(Uaid, Stamp, Chid)> {
    let key: &[u8; MESSAGE_KEY_BYTES] = key.try_into().ok()?;
    Some((uaid_of(key)?, stamp_of(&key[16..28]), chid_of(&key[28..])))
}

/// Key of a topic row.
pub(super) fn topic_key(uaid: Uaid, chid: Chid, topic: &Topic) -> Vec<u8> {
    [&uaid.0[..], &chid.0[..], topic.as_bytes()].concat()
}

/// Channel of a topic key; `None` when it is not one.
pub(super) fn topic_chid(key: &[u8]) -> Option<Chid> {
    key.get(16..32).map(chid_of)
}

/// The user of any key.
pub(super) fn uaid_of(key: &[u8]) -> Option<Uaid> {
    key.get(..16)?.try_into().ok().map(Uaid)
}

/// Which row a `RowKey` names.
pub(super) fn row_key(row: &RowKey) -> Vec<u8> {
    match &row.topic {
        Some(topic) => topic_key(row.uaid, row.chid, topic),
        None => message_key(row.uaid, row.stamp, row.chid).to_vec(),
    }
}

/// Callers hand over at least 16 bytes.
fn chid_of(bytes: &[u8]) -> Chid {
    let mut chid = [0; 16];
    chid.copy_from_slice(&bytes[..16]);
    Chid(chid)
}

/// Callers hand over at least 12 bytes.
fn stamp_of(bytes: &[u8]) -> Stamp {
    let mut origin = [0; 4];
    origin.copy_from_slice(&bytes[8..12]);
    Stamp { clock: Clock(word(bytes, 0)), origin: Origin(u32::from_be_bytes(origin)) }
}

/// The 8 bytes at `at`; callers know that they are there.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}
