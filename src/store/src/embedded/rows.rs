//! Keys and values of the embedded store. Big-endian, so that byte order is the order of the laws.
//!
//! ```text
//! users     uaid                                -> record: 0 format, 1 record version, 2 flags, 3 wake data length,
//!                                                  4 seen 8, 12 low water 8, 20 user clock 8, 28 channel count 4,
//!                                                  32 rows counted 4; then, if a flag says so, chid 16 and
//!                                                  registration 8 of every channel in chid order; then wake data;
//!                                                  then, if a flag says so, the bridge (`bridge`) and its length 2
//! channels  uaid, chid                          -> registered at 8, registration 8, has key 1, key 32 if it has one
//! messages  uaid, clock, origin, chid           -> 0 flags, 1 expires 8, registration 8 if the flag says so, then the
//!                                                  message layout of `shards`
//! topics    uaid, chid, topic                   -> as messages
//! meta      "clock"                             -> the greatest clock in any row, 8
//!           "registration"                      -> the number of the last registration of a channel, 8
//!           "format"                            -> 4; 3 from a version whose records have no bridge, 2 from one whose
//!                                                  records name no channels. Each says that no record of format 1 is
//!                                                  left
//!           "removal", uaid                     -> how far the removal of this user's dead rows has come
//! ```

use machine::ids::{Chid, Clock, KeyDigest, Origin, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::simplepush::{Contact, Mode, WakeData};
use machine::time::UnixSeconds;
use machine::upstream::Bridged;
use machine::{RowKey, UserRow};

use crate::RECORD_VERSION;
use crate::bridge;
use crate::transfer::{Channel, WholeUser};

/// Bytes of a key of `messages`.
pub(super) const MESSAGE_KEY_BYTES: usize = 44;

/// Row of `meta` with the greatest clock.
pub(super) const CLOCK_KEY: &[u8] = b"clock";
/// Row of `meta` with the number of the last registration.
pub(super) const REGISTRATION_KEY: &[u8] = b"registration";
/// Row of `meta` with the format of the directory, once no record of format 1 is left.
pub(super) const FORMAT_KEY: &[u8] = b"format";
/// Front of the rows of `meta` that name users with dead rows.
pub(super) const REMOVAL_PREFIX: &[u8] = b"removal";
/// Format of the directory.
pub(super) const FORMAT: u8 = 4;
/// Formats of the directory when no record named channels, and when none had a bridge. Nothing in them has to be
/// migrated.
pub(super) const FORMATS_BEFORE: std::ops::RangeInclusive<u8> = 2..=3;
/// Format of records: it did not change when flags for names and bridges were added, because the number of the
/// directory did.
const RECORD_FORMAT: u8 = 2;

/// Rows for which one is counted in its user's record, so that one write in 64 pays for it.
const ROWS_PER_COUNT: u64 = 64;
/// Channels of a user up to which its record names them: a hello and a stored message then read one row. The bound
/// keeps a register from writing more than 192 bytes for the channels that were there before.
const NAMES_MAX: usize = 8;
const HEAD_BYTES: usize = 36;
const NAME_BYTES: usize = 24;
const MAY_HAVE_MESSAGES: u8 = 1;
const SIMPLE: u8 = 2;
/// Flag of a record that names its channels.
const NAMES: u8 = 4;
/// Three flags are the number of the user's minimum urgency (`Contact::minimum_number`), from this bit on. An earlier
/// version wrote 0 there and reads past it.
const MINIMUM_SHIFT: u8 = 3;
const MINIMUM: u8 = 7 << MINIMUM_SHIFT;
/// Flag of a record with a bridge.
const BRIDGE: u8 = 64;
const SAVED: u8 = 1;
const REGISTRATION: u8 = 2;
const VALUE_HEAD_BYTES: usize = 9;

const _: () = assert!(machine::limits::WAKE_BYTES_MAX <= u8::MAX as usize, "its length is one byte of the record");

/// A user's record as bytes, edited in place. Its length is always head, names, wake data and bridge.
///
/// The channels are rows of their own. Up to `NAMES_MAX` of them the record has a copy of their ids and registrations,
/// which is written in one batch with the rows. A record of more channels, or of an earlier version, has none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
}

impl Record {
    /// A user that was never written.
    pub(super) fn new() -> Record {
        let mut bytes = vec![0; HEAD_BYTES];
        bytes[0] = RECORD_FORMAT;
        bytes[1] = RECORD_VERSION;
        bytes[2] = NAMES;
        Record { bytes }
    }

    /// The record without channels in these parts of one of format 1, whose head is the beginning of this one's.
    pub(super) fn of_old(head: &[u8], wake: &[u8]) -> Record {
        let mut bytes = head.to_vec();
        bytes.resize(HEAD_BYTES, 0);
        bytes[0] = RECORD_FORMAT;
        bytes[2] = (bytes[2] & (MAY_HAVE_MESSAGES | SIMPLE)) | NAMES;
        bytes[28..32].fill(0);
        bytes.extend_from_slice(wake);
        Record { bytes }
    }

    /// Reads what [`Record::as_bytes`] gave; `None` for anything else.
    pub(super) fn parse(bytes: &[u8]) -> Option<Record> {
        let head = bytes.get(..HEAD_BYTES)?;
        let count = match head[2] & NAMES {
            0 => 0,
            _ => half(head, 28) as usize,
        };
        let rest = HEAD_BYTES + count * NAME_BYTES + usize::from(head[3]);
        let tail = bytes.get(rest..)?;
        let whole = head[0] == RECORD_FORMAT
            && count <= NAMES_MAX
            && match head[2] & BRIDGE {
                0 => tail.is_empty(),
                // A bridge of a later version is not "none".
                _ => tail_length(bytes) == tail.len() && bridge_in(tail).is_some(),
            };
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

    /// Raises the time at which the user was last seen.
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

    /// Sets the mark; returns true if that changed it.
    pub(super) fn mark(&mut self, may_have_messages: bool) -> bool {
        let changed = self.may_have_messages() != may_have_messages;
        self.put(MAY_HAVE_MESSAGES, may_have_messages);
        changed
    }

    pub(super) fn mode(&self) -> Mode {
        if self.bytes[2] & SIMPLE != 0 { Mode::Simple } else { Mode::WebPush }
    }

    pub(super) fn contact(&self) -> Contact {
        let wake = std::str::from_utf8(&self.bytes[self.wake_at()..self.bridge_at()]).unwrap_or_default();
        let minimum = Contact::minimum_of((self.bytes[2] & MINIMUM) >> MINIMUM_SHIFT);
        Contact { mode: self.mode(), wake: WakeData::new(wake), minimum, bridge: self.bridge().map(Box::new) }
    }

    pub(super) fn set_contact(&mut self, contact: &Contact) {
        let wake = contact.wake.as_ref().map_or("", WakeData::as_str);
        self.put(SIMPLE, contact.mode == Mode::Simple);
        self.bytes[2] = (self.bytes[2] & !MINIMUM) | (contact.minimum_number() << MINIMUM_SHIFT);
        let there = self.wake_at()..self.bridge_at();
        self.bytes.splice(there, wake.bytes());
        self.bytes[3] = wake.len() as u8;
        if let Some(bridge) = &contact.bridge
            && self.bridge().is_none_or(|there| bridge.is_newer_than(&there))
        {
            self.set_bridge(bridge);
        }
    }

    pub(super) fn bridge(&self) -> Option<Bridged> {
        bridge_in(&self.bytes[self.bridge_at()..])
    }

    pub(super) fn set_bridge(&mut self, bridge: &Bridged) {
        self.bytes.truncate(self.bridge_at());
        let value = bridge::encode(bridge);
        self.bytes.extend_from_slice(&value);
        self.bytes.extend_from_slice(&(value.len() as u16).to_be_bytes());
        self.put(BRIDGE, true);
    }

    pub(super) fn channel_count(&self) -> usize {
        half(&self.bytes, 28) as usize
    }

    /// The channels with their registrations, in the order of their ids; `None` if only the rows have them.
    pub(super) fn names(&self) -> Option<impl Iterator<Item = (Chid, u64)>> {
        let names = &self.bytes[HEAD_BYTES..self.wake_at()];
        let name = |name: &[u8]| (chid_of(name), word(name, 16));
        (self.bytes[2] & NAMES != 0).then(|| names.chunks_exact(NAME_BYTES).map(name))
    }

    /// Adds a channel, which is not there.
    pub(super) fn add_channel(&mut self, chid: Chid, registration: u64) {
        let count = self.channel_count();
        let before = self.names().map(|names| names.take_while(|(named, _)| *named < chid).count());
        match before {
            Some(before) if count < NAMES_MAX => {
                let place = HEAD_BYTES + before * NAME_BYTES;
                self.bytes.splice(place..place, chid.0.into_iter().chain(registration.to_be_bytes()));
            }
            Some(_) => self.forget_names(),
            None => {}
        }
        self.count_channels(count + 1);
    }

    pub(super) fn remove_channel(&mut self, chid: Chid) {
        if let Some(nth) = self.names().and_then(|mut names| names.position(|(named, _)| named == chid)) {
            let place = HEAD_BYTES + nth * NAME_BYTES;
            self.bytes.drain(place..place + NAME_BYTES);
        }
        self.count_channels(self.channel_count().saturating_sub(1));
    }

    /// Replaces the channels by these, in the order of their ids.
    pub(super) fn set_channels(&mut self, channels: impl Iterator<Item = (Chid, u64)>) {
        self.forget_names();
        self.put(NAMES, true);
        self.count_channels(0);
        channels.for_each(|(chid, registration)| self.add_channel(chid, registration));
    }

    pub(super) fn forget_names(&mut self) {
        let wake_at = self.wake_at();
        self.bytes.drain(HEAD_BYTES..wake_at);
        self.put(NAMES, false);
    }

    fn count_channels(&mut self, count: usize) {
        self.bytes[28..32].copy_from_slice(&(count as u32).to_be_bytes());
    }

    /// Start of the wake data.
    fn wake_at(&self) -> usize {
        self.bridge_at() - usize::from(self.bytes[3])
    }

    /// Start of the bridge, or the end.
    fn bridge_at(&self) -> usize {
        let tail = if self.bytes[2] & BRIDGE != 0 { tail_length(&self.bytes) } else { 0 };
        self.bytes.len() - tail
    }

    /// Approximate number of the user's rows, from those that are counted.
    pub(super) fn row_count(&self) -> u64 {
        u64::from(half(&self.bytes, 32)) * ROWS_PER_COUNT
    }

    pub(super) fn count_row(&mut self, came: bool) {
        let count = half(&self.bytes, 32);
        let after = if came { count.saturating_add(1) } else { count.saturating_sub(1) };
        self.bytes[32..36].copy_from_slice(&after.to_be_bytes());
    }

    pub(super) fn no_rows(&mut self) {
        self.bytes[32..36].fill(0);
    }

    /// The record as the machine reads it.
    pub(super) fn row(&self, channels: Vec<Chid>) -> UserRow {
        UserRow {
            record_version: self.bytes[1],
            seen: self.seen(),
            low_water: self.low_water(),
            user_clock: Clock(self.word(20)),
            may_have_messages: self.may_have_messages(),
            contact: self.contact(),
            channels,
            presence: Vec::new(),
        }
    }

    /// The user with its channels, as a transfer moves it.
    pub(super) fn whole(&self, uaid: Uaid, channels: Vec<Channel>) -> WholeUser {
        WholeUser::of(uaid, self.row(Vec::new()), channels)
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

/// Bytes of the bridge at the end of a record and of its length.
fn tail_length(record: &[u8]) -> usize {
    record.last_chunk().map_or(0, |length| usize::from(u16::from_be_bytes(*length)) + 2)
}

/// Reads a bridge with its length behind it.
fn bridge_in(tail: &[u8]) -> Option<Bridged> {
    tail.split_last_chunk::<2>().and_then(|(value, _)| bridge::decode(value))
}

/// Sets the mark of a record of any format; its flags are in one place in all of them.
pub(super) fn set_mark(record: &mut [u8]) {
    if let Some(flags) = record.get_mut(2) {
        *flags |= MAY_HAVE_MESSAGES;
    }
}

/// One registration of a channel. Its rows carry its number, so that rows of an earlier registration of the same
/// channel are known to be dead until they are removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChannelRow {
    pub(super) registered_at: Clock,
    /// 0 for one of format 1, or of a transfer.
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

/// The 4 bytes at `at`; callers know that they are there.
fn half(bytes: &[u8], at: usize) -> u32 {
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
