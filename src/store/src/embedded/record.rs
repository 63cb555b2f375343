//! The record of a user, as bytes that are edited in place. `rows` has its layout.

use std::num::NonZeroU64;

use machine::UserRow;
use machine::ids::{AddressDigest, Chid, Clock, Uaid};
use machine::share::Credit;
use machine::simplepush::{Contact, Mode, WakeData};
use machine::time::UnixSeconds;
use machine::upstream::Bridged;

use super::rows::{ROWS_PER_COUNT, chid_of, half, word};
use crate::RECORD_VERSION;
use crate::bridge;
use crate::transfer::{Channel, WholeUser};

/// First byte of every record.
const RECORD_FORMAT: u8 = b'1';
/// Channels of a user up to which its record names them: a hello and a stored message then read one row. The bound
/// keeps a register from writing more than 192 bytes for the channels that were there before.
const NAMES_MAX: usize = 8;
const HEAD_BYTES: usize = 52;
const NAME_BYTES: usize = 24;
const MAY_HAVE_MESSAGES: u8 = 1;
const SIMPLE: u8 = 2;
/// Flag of a record that names its channels.
const NAMES: u8 = 4;
/// Three flags are the number of the user's minimum urgency (`Contact::minimum_number`), from this bit on.
const MINIMUM_SHIFT: u8 = 3;
const MINIMUM: u8 = 7 << MINIMUM_SHIFT;
/// Flag of a record with a bridge.
const BRIDGE: u8 = 64;

const _: () = assert!(machine::limits::WAKE_BYTES_MAX <= u8::MAX as usize, "its length is one byte of the record");

/// Bytes that a user is charged with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Charge {
    /// Address from which the user was made.
    pub(super) maker: Option<AddressDigest>,
    pub(super) bytes: u64,
}

/// A user's record as bytes, edited in place. Its length is always head, names, wake data and bridge.
///
/// The channels are rows of their own. Up to `NAMES_MAX` of them the record has a copy of their ids and registrations,
/// which is written in one batch with the rows. A record of more channels has none.
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

    /// Counts the arrival of a row of this many bytes, for all rows that it stands for.
    pub(super) fn row_came(&mut self, bytes: usize) {
        self.set_half(32, half(&self.bytes, 32).saturating_add(1));
        self.set_half(44, half(&self.bytes, 44).saturating_add(bytes as u32));
        self.set_half(48, self.credit().stored(bytes as u64 * ROWS_PER_COUNT).0);
    }

    /// Counts the end of such a row; `acked` if the user has got it.
    pub(super) fn row_went(&mut self, bytes: usize, acked: bool) {
        self.set_half(32, half(&self.bytes, 32).saturating_sub(1));
        self.set_half(44, half(&self.bytes, 44).saturating_sub(bytes as u32));
        if acked {
            self.set_half(48, self.credit().acked(bytes as u64 * ROWS_PER_COUNT).0);
        }
    }

    pub(super) fn no_rows(&mut self) {
        self.bytes[32..36].fill(0);
        self.bytes[44..48].fill(0);
    }

    /// The approximate bytes of the user's rows, and the address that they are charged to.
    pub(super) fn charge(&self) -> Charge {
        let maker = NonZeroU64::new(self.word(36)).map(AddressDigest);
        Charge { maker, bytes: u64::from(half(&self.bytes, 44)) * ROWS_PER_COUNT }
    }

    pub(super) fn set_maker(&mut self, maker: Option<AddressDigest>) {
        self.bytes[36..44].copy_from_slice(&maker.map_or(0, |maker| maker.0.get()).to_be_bytes());
    }

    pub(super) fn credit(&self) -> Credit {
        Credit(half(&self.bytes, 48))
    }

    fn set_half(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
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
