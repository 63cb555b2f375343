//! A notification as accepted, and the one byte layout in which ledgers and stores keep it.
//!
//! Lives on: made on the landing shard, stamped and kept on the owner shard, shared (`Arc`) with the
//! storage threads while a write is in flight.

use crate::ids::{Chid, Clock, Origin, Stamp, Uaid};
use crate::time::UnixSeconds;

/// A message between its acceptance and its end (ARCHITECTURE.md 3).
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    pub uaid: Uaid,
    pub chid: Chid,
    /// Identity and order; zero until the owner has accepted the message.
    pub stamp: Stamp,
    /// Seconds to keep it; 0 is deliver now or drop (RFC 8030 section 5.2).
    pub ttl: u32,
    /// Wall time of the acceptance; the message expires at `accepted + ttl`.
    pub accepted: UnixSeconds,
    /// RFC 8030 section 5.3.
    pub urgency: Urgency,
    /// Replaces the stored message with the same topic of this channel (RFC 8030 section 5.4).
    pub topic: Option<Topic>,
    /// Its sender asked to be told what becomes of it (RFC 8030 section 5.1).
    pub receipt: bool,
    /// Deliveries in sessions that ended without its ack.
    pub tries: Tries,
    /// Encryption headers and body in the layout of the edge that made it; opaque here.
    pub payload: Box<[u8]>,
}

/// Sessions and deliveries of a message without an ack. They ride in spare bits of the layout, so a message that is
/// acked in its first session pays nothing for them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Tries {
    deliveries: u8,
    sessions: u8,
}

impl Tries {
    /// The most deliveries that are told apart.
    pub const DELIVERIES_MAX: u8 = 31;
    /// Sessions over which a message is delivered at least before it ends for want of an ack.
    pub const SESSIONS_MIN: u8 = 3;

    /// Adds one session with this number of deliveries; unchanged if that is 0.
    pub fn and(self, deliveries: u8) -> Tries {
        if deliveries == 0 {
            return self;
        }
        Tries {
            deliveries: self.deliveries.saturating_add(deliveries).min(Tries::DELIVERIES_MAX),
            sessions: (self.sessions + 1).min(Tries::SESSIONS_MIN),
        }
    }

    /// Deliveries in all those sessions.
    pub fn deliveries(self) -> u8 {
        self.deliveries
    }

    /// Returns true if a message that was delivered this often ends without an ack; `deliveries_max` 0 is never.
    pub fn are_spent(self, deliveries_max: u8) -> bool {
        deliveries_max > 0 && self.deliveries >= deliveries_max && self.sessions >= Tries::SESSIONS_MIN
    }

    fn bits(self) -> u8 {
        self.sessions << 1 | self.deliveries << 3
    }

    fn of_bits(flags: u8) -> Tries {
        Tries { deliveries: flags >> 3, sessions: flags >> 1 & 3 }
    }
}

/// RFC 8030 section 5.3, in rising order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Urgency {
    /// Only on power and Wi-Fi.
    VeryLow,
    /// On either power or Wi-Fi.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Also on low battery.
    High,
}

impl Urgency {
    /// The urgency with this number: its place in the rising order, from 0 on.
    pub fn of(number: u8) -> Option<Urgency> {
        [Urgency::VeryLow, Urgency::Low, Urgency::Normal, Urgency::High].get(usize::from(number)).copied()
    }
}

/// A topic name: 1 to 32 characters of `[0-9A-Za-z-_]` with optional trailing `=`. The code that makes one has checked
/// this (PROTOCOL.md 2.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Topic {
    bytes: [u8; 32],
    len: u8,
}

impl Topic {
    /// A topic of these characters; `None` when there are none or more than 32.
    pub fn new(text: &[u8]) -> Option<Topic> {
        if text.is_empty() || text.len() > 32 {
            return None;
        }
        let mut bytes = [0; 32];
        bytes[..text.len()].copy_from_slice(text);
        Some(Topic { bytes, len: text.len() as u8 })
    }

    /// The slot of version updates (PROTOCOL.md 1.12). No app server can name it: its byte is in no topic's alphabet.
    pub const UPDATE: Topic = Topic { bytes: [0; 32], len: 1 };

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// The place of a message among those that want its topic slot: of two, the greater stays.
///
/// The newer message replaces the older (RFC 8030 section 5.4). A version update replaces only one of a lower version
/// (PROTOCOL.md 1.12), so of two with one version the first stays, in either order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank {
    version: u64,
    tie: Stamp,
}

impl Rank {
    /// Of a message with this stamp and this version; 0 when it is no version update.
    pub fn new(version: u64, stamp: Stamp) -> Rank {
        let first = Stamp { clock: Clock(!stamp.clock.0), origin: Origin(!stamp.origin.0) };
        Rank { version, tie: if version == 0 { stamp } else { first } }
    }
}

/// Facts that a store needs about the message that holds a topic slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicHolder {
    pub stamp: Stamp,
    rank: Rank,
    expires: UnixSeconds,
}

impl std::fmt::Debug for Topic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Topic({})", String::from_utf8_lossy(self.as_bytes()))
    }
}

impl std::fmt::Debug for Message {
    /// Never shows the payload.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("uaid", &self.uaid)
            .field("chid", &self.chid)
            .field("stamp", &self.stamp)
            .field("ttl", &self.ttl)
            .field("topic", &self.topic)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl Message {
    /// Time from which on it may not be delivered.
    pub fn expires(&self) -> UnixSeconds {
        UnixSeconds(self.accepted.0.saturating_add(u64::from(self.ttl)))
    }

    /// Returns true if that time has come (PROTOCOL.md 2.4: `now >= timestamp + ttl`).
    pub fn expired(&self, now: UnixSeconds) -> bool {
        now >= self.expires()
    }

    /// Its place among those that want its topic slot.
    pub fn rank(&self) -> Rank {
        Rank::new(self.simple_version().unwrap_or(0), self.stamp)
    }

    /// Facts that a store needs while this message holds a topic slot.
    pub fn held(&self) -> TopicHolder {
        TopicHolder { stamp: self.stamp, rank: self.rank(), expires: self.expires() }
    }

    /// Returns true if it takes the slot from the message that holds it; that message itself may be written again. An
    /// expired version must not keep lower ones away.
    pub fn replaces(&self, held: &TopicHolder) -> bool {
        self.rank() >= held.rank || (self.simple_version().is_some() && held.expires <= self.accepted)
    }

    /// Number of bytes that [`Message::encode`] appends.
    pub fn encoded_len(&self) -> usize {
        HEAD_BYTES + self.topic.map_or(0, |t| t.as_bytes().len()) + self.payload.len()
    }

    /// Appends the layout below; everything big-endian.
    ///
    /// ```text
    /// 0  layout version (1)    1  urgency     2  topic length
    /// 3  flags: bit 0 a receipt, bits 1 to 2 sessions and bits 3 to 7 deliveries without an ack
    /// 4  uaid 16   20 chid 16   36 clock 8   44 origin 4   48 ttl 4   52 accepted 8
    /// 60 topic, then payload to the end
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        let topic = self.topic.as_ref().map_or(&[][..], Topic::as_bytes);
        let flags = u8::from(self.receipt) | self.tries.bits();
        out.extend_from_slice(&[LAYOUT_VERSION, self.urgency as u8, topic.len() as u8, flags]);
        out.extend_from_slice(&self.uaid.0);
        out.extend_from_slice(&self.chid.0);
        out.extend_from_slice(&self.stamp.clock.0.to_be_bytes());
        out.extend_from_slice(&self.stamp.origin.0.to_be_bytes());
        out.extend_from_slice(&self.ttl.to_be_bytes());
        out.extend_from_slice(&self.accepted.0.to_be_bytes());
        out.extend_from_slice(topic);
        out.extend_from_slice(&self.payload);
    }

    /// Reads the bytes that [`Message::encode`] wrote; `None` for any other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let (head, tail) = bytes.split_at_checked(HEAD_BYTES)?;
        if head[0] != LAYOUT_VERSION {
            return None;
        }
        let urgency = Urgency::of(head[1])?;
        let (topic, payload) = tail.split_at_checked(usize::from(head[2]))?;
        let topic = if topic.is_empty() { None } else { Some(Topic::new(topic)?) };
        Some(Message {
            uaid: Uaid(field(head, 4)?),
            chid: Chid(field(head, 20)?),
            stamp: Stamp {
                clock: Clock(u64::from_be_bytes(field(head, 36)?)),
                origin: Origin(u32::from_be_bytes(field(head, 44)?)),
            },
            ttl: u32::from_be_bytes(field(head, 48)?),
            accepted: UnixSeconds(u64::from_be_bytes(field(head, 52)?)),
            urgency,
            topic,
            // A version that wrote no flags wrote 0 here: no receipt, no delivery.
            receipt: head[3] & RECEIPT != 0,
            tries: Tries::of_bits(head[3]),
            payload: payload.into(),
        })
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

const LAYOUT_VERSION: u8 = 1;
const HEAD_BYTES: usize = 60;
const RECEIPT: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample(topic: Option<Topic>, payload: Vec<u8>) -> Message {
        Message {
            uaid: Uaid([1; 16]),
            chid: Chid([2; 16]),
            stamp: Stamp { clock: Clock(3), origin: Origin(4) },
            ttl: 5,
            accepted: UnixSeconds(6),
            urgency: Urgency::High,
            topic,
            receipt: false,
            tries: Default::default(),
            payload: payload.into(),
        }
    }

    proptest! {
        #[test]
        fn decode_reads_what_encode_wrote(topic in prop::collection::vec(any::<u8>(), 0..33),
                                          payload in prop::collection::vec(any::<u8>(), 0..300), receipt: bool,
                                          tried in prop::collection::vec(0u8..9, 0..5)) {
            let tries = tried.into_iter().fold(Tries::default(), Tries::and);
            let message = Message { receipt, tries, ..sample(Topic::new(&topic), payload) };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            prop_assert_eq!(bytes.len(), message.encoded_len());
            prop_assert_eq!(Message::decode(&bytes), Some(message));
        }

        #[test]
        fn decode_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&bytes);
        }
    }

    #[test]
    fn what_was_written_before_receipts_reads_as_without() {
        let mut bytes = Vec::new();
        sample(None, vec![7]).encode(&mut bytes);
        assert_eq!(bytes[3], 0);
        assert!(!Message::decode(&bytes).unwrap().receipt);
    }

    #[test]
    fn tries_are_spent_after_their_number_over_three_sessions() {
        let one = Tries::default().and(20).and(0);
        assert!(!one.are_spent(10), "one session");
        let three = one.and(1).and(1);
        assert!(three.are_spent(10) && three.are_spent(22) && !three.are_spent(23) && !three.are_spent(0));
        assert_eq!(three.and(200).and(200), Tries { deliveries: 31, sessions: 3 });
    }

    #[test]
    fn expires_at_the_second_it_says() {
        let message = sample(None, Vec::new());
        assert!(!message.expired(UnixSeconds(10)));
        assert!(message.expired(UnixSeconds(11)));
    }
}
