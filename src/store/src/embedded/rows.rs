//! Keys and values of the embedded store. Big-endian, so that byte order is the order of the laws.
//!
//! ```text
//! users     uaid                                -> record: 0 format, 1 record version, 2 flags, 3 wake data length,
//!                                                  4 seen 8, 12 low water 8, 20 user clock 8, 28 channel count 4,
//!                                                  32 rows counted 4, 36 digest of the address that made the
//!                                                  user 8, 44 bytes of the rows counted 4, 48 credit 4; then, if
//!                                                  a flag says so, chid 16 and
//!                                                  registration 8 of every channel in chid order; then wake data;
//!                                                  then, if a flag says so, the bridge (`bridge`) and its length 2
//! channels  uaid, chid                          -> registered at 8, registration 8, has key 1, key 32 if it has one
//! messages  uaid, clock, origin, chid           -> 0 flags, 1 expires 8, registration 8 if the flag says so, then the
//!                                                  message layout of `shards`
//! topics    uaid, chid, topic                   -> as messages
//! meta      "clock"                             -> the greatest clock in any row, 8
//!           "registration"                      -> the number of the last registration of a channel, 8
//!           "removal", uaid                     -> how far the removal of this user's dead rows has come
//! ```

use machine::RowKey;
use machine::ids::{Chid, Clock, KeyDigest, Origin, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::time::UnixSeconds;

use crate::transfer::Channel;

/// Bytes of a key of `messages`.
pub(super) const MESSAGE_KEY_BYTES: usize = 44;

/// Row of `meta` with the greatest clock.
pub(super) const CLOCK_KEY: &[u8] = b"clock";
/// Row of `meta` with the number of the last registration.
pub(super) const REGISTRATION_KEY: &[u8] = b"registration";
/// Front of the rows of `meta` that name users with dead rows.
pub(super) const REMOVAL_PREFIX: &[u8] = b"removal";
/// Rows for which one is counted in its user's record, so that one write in 64 pays for it.
pub(super) const ROWS_PER_COUNT: u64 = 64;
const SAVED: u8 = 1;
const REGISTRATION: u8 = 2;
const VALUE_HEAD_BYTES: usize = 9;

/// One registration of a channel. Its rows carry its number, so that rows of an earlier registration of the same
/// channel are known to be dead until they are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChannelRow {
    pub(super) registered_at: Clock,
    /// 0 for one of a transfer.
    pub(super) registration: u64,
    pub(super) key: Option<KeyDigest>,
}

impl ChannelRow {
    /// Reads what [`ChannelRow::value`] gave; `None` for anything else.
    pub(super) fn parse(bytes: &[u8]) -> Option<ChannelRow> {
        let (head, key) = (bytes.get(..17)?, &bytes[17..]);
        let key = match head[16] {
            0 => None,
            _ => Some(KeyDigest(key.try_into().ok()?)),
        };
        Some(ChannelRow { registered_at: Clock(word(head, 0)), registration: word(head, 8), key })
    }

    pub(super) fn value(&self) -> Vec<u8> {
        let key = self.key.as_ref().map_or(&[][..], |key| &key.0);
        let words = [self.registered_at.0.to_be_bytes(), self.registration.to_be_bytes()].concat();
        [&words[..], &[u8::from(self.key.is_some())], key].concat()
    }

    /// The channel as a transfer moves it.
    pub(super) fn channel(&self, chid: Chid) -> Channel {
        Channel { chid, key: self.key, registered_at: self.registered_at }
    }
}

/// The value of a message or topic row of this registration of its channel.
pub(super) fn value(message: &Message, saved: bool, registration: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(VALUE_HEAD_BYTES + 8 + message.encoded_len());
    out.push(if saved { SAVED } else { 0 } | if registration > 0 { REGISTRATION } else { 0 });
    out.extend_from_slice(&message.expires().0.to_be_bytes());
    if registration > 0 {
        out.extend_from_slice(&registration.to_be_bytes());
    }
    message.encode(&mut out);
    out
}

/// The front of a row, which is known without decoding it.
pub(super) struct RowHead {
    /// Came from a ledger, so `low_water` says nothing about it.
    pub(super) saved: bool,
    pub(super) expires: UnixSeconds,
    pub(super) registration: u64,
}

/// Looks at the front of a value; `None` when it is not one.
pub(super) fn peek(value: &[u8]) -> Option<RowHead> {
    let head = value.get(..VALUE_HEAD_BYTES)?;
    let registration = match head[0] & REGISTRATION {
        0 => 0,
        _ => word(value.get(VALUE_HEAD_BYTES..VALUE_HEAD_BYTES + 8)?, 0),
    };
    Some(RowHead { saved: head[0] & SAVED != 0, expires: UnixSeconds(word(head, 1)), registration })
}

/// The message of a value.
pub(super) fn message(value: &[u8]) -> Option<Message> {
    let head = if value.first()? & REGISTRATION != 0 { VALUE_HEAD_BYTES + 8 } else { VALUE_HEAD_BYTES };
    Message::decode(value.get(head..)?)
}

/// Returns true if the row of this stamp is one of those that are counted. It depends on nothing else, so that a row is
/// counted once when it comes and once when it goes.
pub(super) fn is_counted(stamp: Stamp) -> bool {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&stamp.clock.0.to_be_bytes());
    bytes[8..].copy_from_slice(&stamp.origin.0.to_be_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes).is_multiple_of(ROWS_PER_COUNT)
}

/// Key of a channel row.
pub(super) fn channel_key(uaid: Uaid, chid: Chid) -> [u8; 32] {
    let mut key = [0; 32];
    key[..16].copy_from_slice(&uaid.0);
    key[16..].copy_from_slice(&chid.0);
    key
}

/// Key of the row of `meta` that says that a user has dead rows.
pub(super) fn removal_key(uaid: Uaid) -> Vec<u8> {
    [REMOVAL_PREFIX, &uaid.0].concat()
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

/// Channel of a channel or topic key; `None` when it is neither.
pub(super) fn chid_in(key: &[u8]) -> Option<Chid> {
    key.get(16..32).map(chid_of)
}

/// The user of any key.
pub(super) fn uaid_of(key: &[u8]) -> Option<Uaid> {
    key.get(..16)?.try_into().ok().map(Uaid)
}

/// Key of the row that a `RowKey` names.
pub(super) fn row_key(row: &RowKey) -> Vec<u8> {
    match &row.topic {
        Some(topic) => topic_key(row.uaid, row.chid, topic),
        None => message_key(row.uaid, row.stamp, row.chid).to_vec(),
    }
}

/// Callers hand over at least 16 bytes.
pub(super) fn chid_of(bytes: &[u8]) -> Chid {
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

/// The 4 bytes at `at`; callers know that they are there.
pub(super) fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(half)
}

/// The 8 bytes at `at`; callers know that they are there.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(word)
}
