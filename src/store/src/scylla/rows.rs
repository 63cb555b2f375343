//! Keys and values of the shared store's rows (`super::schema` has the tables). Big-endian, so that byte order is the
//! order of the laws.
//!
//! ```text
//! user     bridge      0 format, 1 the bridge (`crate::bridge`)
//!          record      0 format, 1 record version, 2 seen 8
//!          low_water   clock 8           user_clock  clock 8
//!          contact     0 format, 1 mode (bit 0) and minimum urgency (from bit 1 on), 2 wake data
//!          presence    connected at 8    key: boot 8, node url
//!          channel     0 format, 1 registered at 8, 9 key 32 or nothing
//!          deleted     clock 8
//! message  value       0 one if it was saved, 1 expires 8, 9 the message layout of `shards`
//!          key         chid 16; of a topic row chid 16, topic; of a version update chid 16, zero, clock 8, origin 4;
//!                      of the late row, which has no value, zero
//! ```
//!
//! A topic is replaced in place, by the write with the later timestamp. A version update is not: its place among others
//! is its version, which is no timestamp, so each has a row of its own and `super::updates` finds the one that counts.
//! No topic begins with a zero byte.

use std::sync::Arc;

use machine::ids::{Chid, Clock, KeyDigest, Stamp, Uaid};
use machine::message::{Message, Topic};
use machine::simplepush::{Contact, Mode, WakeData};
use machine::time::UnixSeconds;
use machine::upstream::Bridged;
use machine::{NodeId, Presence, UserRow};

use crate::shared::schema::family;

const FORMAT: u8 = 1;
const VALUE_HEAD_BYTES: usize = 9;
const CHID_BYTES: usize = 16;
const UPDATE_KEY_BYTES: usize = 29;

/// The value of a record.
pub(super) fn record(record_version: u8, seen: UnixSeconds) -> Vec<u8> {
    [&[FORMAT, record_version][..], &seen.0.to_be_bytes()].concat()
}

/// Reads a value of [`record`].
pub(super) fn parse_record(value: &[u8]) -> Option<(u8, UnixSeconds)> {
    let (head, seen) = value.split_first_chunk::<2>()?;
    (head[0] == FORMAT).then_some((head[1], UnixSeconds(word(seen)?)))
}

/// The value of a low water or a user clock.
pub(super) fn clock(clock: Clock) -> Vec<u8> {
    clock.0.to_be_bytes().to_vec()
}

/// Reads a value of [`clock`].
pub(super) fn parse_clock(value: &[u8]) -> Option<Clock> {
    word(value).map(Clock)
}

/// The value of a contact.
pub(super) fn contact(contact: &Contact) -> Vec<u8> {
    let reach = u8::from(contact.mode == Mode::Simple) | (contact.minimum_number() << 1);
    [&[FORMAT, reach][..], contact.wake.as_ref().map_or("", WakeData::as_str).as_bytes()].concat()
}

fn parse_contact(value: &[u8]) -> Option<Contact> {
    let (head, wake) = value.split_first_chunk::<2>()?;
    let mode = if head[1] & 1 == 1 { Mode::Simple } else { Mode::WebPush };
    let wake = WakeData::new(std::str::from_utf8(wake).unwrap_or_default());
    (head[0] == FORMAT).then(|| Contact { mode, wake, minimum: Contact::minimum_of(head[1] >> 1), bridge: None })
}

/// The value of a bridge.
pub(super) fn bridge(bridge: &Bridged) -> Vec<u8> {
    [&[FORMAT][..], &crate::bridge::encode(bridge)].concat()
}

/// Reads a value of [`bridge`].
pub(super) fn parse_bridge(value: &[u8]) -> Option<Bridged> {
    let (format, bridge) = value.split_first()?;
    if *format == FORMAT { crate::bridge::decode(bridge) } else { None }
}

/// The key of a presence.
pub(super) fn presence_key(node: &NodeId) -> Vec<u8> {
    [&node.boot.to_be_bytes()[..], node.url.as_bytes()].concat()
}

/// The run in a key of [`presence_key`].
pub(super) fn presence_node(key: &[u8]) -> Option<NodeId> {
    let (boot, url) = key.split_first_chunk::<8>()?;
    Some(NodeId { url: std::str::from_utf8(url).ok()?.into(), boot: u64::from_be_bytes(*boot) })
}

fn parse_presence(key: &[u8], value: &[u8]) -> Option<Presence> {
    Some(Presence { node: Arc::new(presence_node(key)?), connected_at: word(value)? })
}

/// The value of a channel.
pub(super) fn channel(registered_at: Clock, key: Option<&KeyDigest>) -> Vec<u8> {
    [&[FORMAT][..], &registered_at.0.to_be_bytes(), key.map_or(&[][..], |key| &key.0)].concat()
}

/// Reads a value of [`channel`].
pub(super) fn parse_channel(value: &[u8]) -> Option<(Clock, Option<KeyDigest>)> {
    let (head, key) = value.split_first_chunk::<9>()?;
    let key = if key.is_empty() { None } else { Some(KeyDigest(key.try_into().ok()?)) };
    (head[0] == FORMAT).then_some((Clock(word(&head[1..])?), key))
}

/// The value of a message that was POSTed, in any family.
pub(super) fn value(message: &Message) -> Vec<u8> {
    encoded(message, 0)
}

/// The value of a message that a ledger had: the ledger may write it again, in `family::SAVED`.
pub(super) fn saved_value(message: &Message) -> Vec<u8> {
    encoded(message, 1)
}

/// Returns true if this is a [`saved_value`].
pub(super) fn was_saved(value: &[u8]) -> bool {
    value.first() == Some(&1)
}

fn encoded(message: &Message, saved: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(VALUE_HEAD_BYTES + message.encoded_len());
    out.push(saved);
    out.extend_from_slice(&message.expires().0.to_be_bytes());
    message.encode(&mut out);
    out
}

/// Expiry of the message of this value, without decoding it.
pub(super) fn expires(value: &[u8]) -> Option<UnixSeconds> {
    Some(UnixSeconds(word(value.get(1..VALUE_HEAD_BYTES)?)?))
}

/// The message of a value.
pub(super) fn message(value: &[u8]) -> Option<Message> {
    Message::decode(value.get(VALUE_HEAD_BYTES..)?)
}

/// Position of a message row, but for the UAID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RowLocation {
    pub(super) family: i8,
    pub(super) clock: i64,
    pub(super) origin: i64,
    pub(super) key: Vec<u8>,
}

impl RowLocation {
    /// Place of a message without topic, in `family::MESSAGE` or `family::SAVED`.
    pub(super) fn plain(family: i8, stamp: Stamp, chid: Chid) -> RowLocation {
        RowLocation { family, clock: micros(stamp.clock), origin: i64::from(stamp.origin.0), key: chid.0.to_vec() }
    }

    /// Place of a message with this topic.
    pub(super) fn topic(chid: Chid, topic: &Topic, stamp: Stamp) -> RowLocation {
        let key = if *topic == Topic::UPDATE {
            let (clock, origin) = (stamp.clock.0.to_be_bytes(), stamp.origin.0.to_be_bytes());
            [&chid.0[..], topic.as_bytes(), &clock, &origin].concat()
        } else {
            [&chid.0[..], topic.as_bytes()].concat()
        };
        RowLocation { family: family::TOPIC, clock: 0, origin: 0, key }
    }

    /// Place of the row that says that rows were saved late.
    pub(super) fn late() -> RowLocation {
        RowLocation { family: family::LATE, clock: 0, origin: 0, key: vec![0] }
    }

    /// Place of this message, as a POST stores it.
    pub(super) fn of(message: &Message) -> RowLocation {
        match &message.topic {
            Some(topic) => RowLocation::topic(message.chid, topic, message.stamp),
            None => RowLocation::plain(family::MESSAGE, message.stamp, message.chid),
        }
    }

    /// The channel of a message row's key.
    pub(super) fn chid(key: &[u8]) -> Option<Chid> {
        key.first_chunk::<CHID_BYTES>().map(|chid| Chid(*chid))
    }
}

/// Family and key behind which the next page of topics begins. The first page has the late row, too.
pub(super) fn topic_cursor(after: Option<(Chid, Topic)>) -> (i8, Vec<u8>) {
    match after {
        None => (family::LATE, Vec::new()),
        // Behind every update of the channel and before its topics.
        Some((chid, Topic::UPDATE)) => (family::TOPIC, [&chid.0[..], &[1]].concat()),
        Some((chid, topic)) => (family::TOPIC, [&chid.0[..], topic.as_bytes()].concat()),
    }
}

/// Returns true if this key of `family::TOPIC` is that of a version update.
pub(super) fn is_update(key: &[u8]) -> bool {
    key.len() == UPDATE_KEY_BYTES && key[CHID_BYTES] == 0
}

/// Bounds before and behind the keys of the version updates of a channel.
pub(super) fn update_range(chid: Chid) -> (Vec<u8>, Vec<u8>) {
    ([&chid.0[..], &[0]].concat(), [&chid.0[..], &[1]].concat())
}

/// A clock as a timestamp of the database.
pub(super) fn micros(clock: Clock) -> i64 {
    i64::try_from(clock.0).unwrap_or(i64::MAX)
}

/// A channel and the fields of its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ChannelRow {
    pub(super) chid: Chid,
    pub(super) registered_at: Clock,
    pub(super) key: Option<KeyDigest>,
}

/// Result of a read of a user's partition, or of part of it.
#[derive(Default)]
pub(super) struct UserPart {
    /// Version of the record and time at which the user was last seen; without a record there is no user.
    pub(super) record: Option<(u8, UnixSeconds)>,
    pub(super) low_water: Clock,
    /// The latest message row that was deleted alone, if there were many.
    pub(super) deleted: Clock,
    user_clock: Clock,
    /// Without the bridge.
    pub(super) contact: Contact,
    /// The bridge of a bridged user. It counts only beside a record.
    pub(super) bridge: Option<Box<Bridged>>,
    /// In the order of their ids.
    pub(super) channels: Vec<ChannelRow>,
    presence: Vec<Presence>,
    /// Rows that do not parse.
    pub(super) damaged: u64,
    /// There is a record, damaged or of another version: the user is not known, which is not the same as unknown.
    pub(super) record_unreadable: bool,
}

impl UserPart {
    /// Takes one row of the partition.
    pub(super) fn take(&mut self, family: i8, key: &[u8], value: &[u8]) {
        if self.read(family, key, value).is_none() {
            self.damaged += 1;
        }
    }

    fn read(&mut self, family: i8, key: &[u8], value: &[u8]) -> Option<()> {
        match family {
            family::RECORD => {
                self.record_unreadable |= parse_record(value).is_none();
                self.record = Some(parse_record(value)?);
            }
            family::BRIDGE => {
                // A bridge that cannot be read is not "none": its user would look like one that stores messages.
                self.record_unreadable |= parse_bridge(value).is_none();
                self.bridge = Some(Box::new(parse_bridge(value)?));
            }
            family::LOW_WATER => self.low_water = parse_clock(value)?,
            family::DELETED => self.deleted = parse_clock(value)?,
            family::USER_CLOCK => self.user_clock = parse_clock(value)?,
            family::CONTACT => self.contact = parse_contact(value)?,
            family::PRESENCE => self.presence.push(parse_presence(key, value)?),
            family::CHANNEL => {
                let chid = RowLocation::chid(key)?;
                // The key alone makes it a channel.
                let (registered_at, key) = parse_channel(value).unwrap_or_default();
                self.channels.push(ChannelRow { chid, registered_at, key });
                parse_channel(value)?;
            }
            // Of a later version of the tables.
            _ => {}
        }
        Some(())
    }

    pub(super) fn has_channel(&self, chid: Chid) -> bool {
        self.channels.iter().any(|channel| channel.chid == chid)
    }

    /// The greatest clock of anything read.
    pub(super) fn highest(&self) -> Clock {
        let presence = self.presence.iter().map(|presence| Clock(presence.connected_at));
        presence.max().unwrap_or_default().max(self.highest_but_presence())
    }

    /// The greatest clock of anything but presence.
    pub(super) fn highest_but_presence(&self) -> Clock {
        let channels = self.channels.iter().map(|channel| channel.registered_at);
        let registered = self.bridge.as_ref().map_or(Clock(0), |bridge| bridge.registered);
        channels.max().unwrap_or_default().max(self.user_clock).max(self.low_water).max(registered)
    }

    /// The row as the machine reads it, when the whole partition was read.
    pub(super) fn into_row(mut self) -> Option<UserRow> {
        let (record_version, seen) = self.record?;
        self.presence.sort_by_key(|one| std::cmp::Reverse(one.connected_at));
        Some(UserRow {
            record_version,
            seen,
            low_water: self.low_water,
            user_clock: self.highest(),
            // A shared store keeps no mark: it would have to be written before every message.
            may_have_messages: true,
            contact: Contact { bridge: self.bridge, ..self.contact },
            channels: self.channels.iter().map(|channel| channel.chid).collect(),
            presence: self.presence,
        })
    }
}

/// A UAID as a bound value.
pub(super) fn uaid(uaid: &Uaid) -> &[u8] {
    &uaid.0
}

fn word(bytes: &[u8]) -> Option<u64> {
    bytes.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn users_are_read_as_they_were_written() {
        let node = Arc::new(NodeId { url: "http://a:1".into(), boot: 7 });
        let said = Contact { mode: Mode::Simple, wake: WakeData::new("ip=1"), ..Contact::default() };
        let mut part = UserPart::default();
        part.take(family::RECORD, &[], &record(1, UnixSeconds(5)));
        part.take(family::LOW_WATER, &[], &clock(Clock(6)));
        part.take(family::USER_CLOCK, &[], &clock(Clock(7)));
        part.take(family::CONTACT, &[], &contact(&said));
        part.take(family::PRESENCE, &presence_key(&node), &clock(Clock(9)));
        part.take(family::CHANNEL, &[2; 16], &channel(Clock(3), Some(&KeyDigest([4; 32]))));
        part.take(family::CHANNEL, &[3; 16], &channel(Clock(4), None));
        assert_eq!(part.channels[0].key, Some(KeyDigest([4; 32])));
        let row = part.into_row().expect("it has a record");
        assert_eq!((row.seen, row.low_water, row.user_clock), (UnixSeconds(5), Clock(6), Clock(9)));
        assert_eq!(row.presence, [Presence { node, connected_at: 9 }]);
        assert_eq!((row.contact, row.channels), (said, vec![Chid([2; 16]), Chid([3; 16])]));
    }

    #[test]
    fn a_contact_keeps_its_minimum_and_one_of_an_earlier_version_has_none() {
        for minimum in (0..=4).map(Contact::minimum_of) {
            let said = Contact { minimum, ..Contact::default() };
            assert_eq!(parse_contact(&contact(&said)), Some(said));
        }
        assert_eq!(parse_contact(&[FORMAT, 0]), Some(Contact::default()));
        let simple = Contact { mode: Mode::Simple, wake: WakeData::new("ip=1"), ..Contact::default() };
        assert_eq!(parse_contact(&[FORMAT, 1, b'i', b'p', b'=', b'1']), Some(simple));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_a_user_that_is_not_there() {
        let mut part = UserPart::default();
        part.take(family::RECORD, &[], &[0xff; 3]);
        assert!(part.record_unreadable && part.record.is_none() && part.damaged == 1);
        part.take(family::CHANNEL, &[4; 16], &[0xff; 3]);
        assert!(part.has_channel(Chid([4; 16])), "its key says what it is");
        assert!(!UserPart::default().record_unreadable);
    }

    proptest! {
        #[test]
        fn odd_rows_are_counted_and_never_panic(
            family in -4i8..8,
            key in prop::collection::vec(any::<u8>(), 0..40),
            value in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            let mut part = UserPart::default();
            part.take(family, &key, &value);
            prop_assert!((-2..=5).contains(&family) || part.damaged == 0, "it is of a later version");
            let _ = (message(&value), expires(&value), is_update(&key), RowLocation::chid(&key));
            let _ = part.into_row();
        }
    }
}
