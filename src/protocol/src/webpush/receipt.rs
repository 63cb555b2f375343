//! Receipts: the path under which the sender of a message learns its fate (RFC 8030 section 5.1).
//!
//! Sealed as the id of the message is, under a label of its own: a sender that has one may ask, it finds the owner of
//! the message, and the node where it lands keeps nothing for it. 86 characters without a topic.

use machine::ids::{Chid, Stamp, Uaid};
use machine::message::Topic;
use machine::time::UnixSeconds;

use super::endpoint::BadKey;
use super::sealed::Sealer;

/// Contents of a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// Stamp of the message.
    pub stamp: Stamp,
    pub uaid: Uaid,
    pub chid: Chid,
    pub topic: Option<Topic>,
    /// The TTL it was granted, in seconds.
    pub ttl: u32,
}

impl Receipt {
    /// Returns the time at which its message expires. The clock of the stamp may be ahead of the wall clock by
    /// `store.max_skew`.
    pub fn expires(&self) -> UnixSeconds {
        UnixSeconds((self.stamp.clock.0 / 1_000_000).saturating_add(u64::from(self.ttl)))
    }
}

/// Seals and opens receipts. The first key seals, every key opens. One per shard.
pub struct Receipts {
    sealer: Sealer,
}

impl Receipts {
    /// Under keys derived from the crypto keys.
    pub fn new(crypto_keys: &[String]) -> Result<Receipts, BadKey> {
        Ok(Receipts { sealer: Sealer::new(crypto_keys, b"receipt v1")? })
    }

    /// Appends the text of a receipt. A message has one TTL for its life, so it is always the same.
    pub fn seal(&self, receipt: &Receipt, out: &mut Vec<u8>) {
        let topic = receipt.topic.as_ref().map_or(&[][..], Topic::as_bytes);
        let parts = [&receipt.uaid.0[..], &receipt.chid.0, &receipt.ttl.to_be_bytes(), topic];
        self.sealer.seal(receipt.stamp, &parts, out);
    }

    /// Opens a receipt; `None` unless one of these keys sealed it.
    pub fn open(&self, text: &[u8]) -> Option<Receipt> {
        let opened = self.sealer.open(text)?;
        let (uaid, rest) = opened.plain().split_first_chunk::<16>()?;
        let (chid, rest) = rest.split_first_chunk::<16>()?;
        let (ttl, topic) = rest.split_first_chunk::<4>()?;
        let topic = if topic.is_empty() { None } else { Some(Topic::new(topic)?) };
        let ttl = u32::from_be_bytes(*ttl);
        Some(Receipt { stamp: opened.stamp, uaid: Uaid(*uaid), chid: Chid(*chid), topic, ttl })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webpush::message_id::{MessageId, MessageIds};
    use machine::ids::{Clock, Origin};
    use proptest::prelude::*;

    const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
    const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn receipts(keys: &[&str]) -> Receipts {
        Receipts::new(&keys.iter().map(|key| key.to_string()).collect::<Vec<_>>()).unwrap()
    }

    fn sealed(receipts: &Receipts, receipt: &Receipt) -> Vec<u8> {
        let mut out = Vec::new();
        receipts.seal(receipt, &mut out);
        out
    }

    fn sample() -> Receipt {
        let stamp = Stamp { clock: Clock(1_700_000_000_999_999), origin: Origin(7) };
        Receipt { stamp, uaid: Uaid([1; 16]), chid: Chid([2; 16]), topic: None, ttl: 60 }
    }

    #[test]
    fn a_receipt_is_opened_by_every_key_and_by_no_stranger() {
        let text = sealed(&receipts(&[KEY_1]), &sample());
        assert_eq!(text.len(), 86);
        assert_eq!(receipts(&[KEY_2, KEY_1]).open(&text), Some(sample()));
        assert_eq!(receipts(&[KEY_2]).open(&text), None);
        assert_eq!(sample().expires(), UnixSeconds(1_700_000_060));
    }

    /// A holder of a `Location`, which a user agent sees as `version`, has no receipt; and a receipt cancels nothing.
    #[test]
    fn a_message_id_is_no_receipt_and_a_receipt_no_message_id() {
        let ids = MessageIds::new(&[KEY_1.to_string()]).unwrap();
        let Receipt { stamp, uaid, chid, .. } = sample();
        let mut id = Vec::new();
        ids.seal(&MessageId { stamp, uaid, chid, topic: Topic::new(b"topic") }, &mut id);
        assert!(ids.open(&id).is_some());
        assert_eq!(receipts(&[KEY_1]).open(&id), None);
        assert_eq!(ids.open(&sealed(&receipts(&[KEY_1]), &sample())), None);
    }

    #[test]
    fn a_changed_character_is_noticed() {
        let receipts = receipts(&[KEY_1]);
        let text = sealed(&receipts, &sample());
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(receipts.open(&changed), None, "character {at}");
        }
    }

    proptest! {
        #[test]
        fn opens_what_it_sealed(
            clock in any::<u64>(), origin in any::<u32>(), uaid in any::<[u8; 16]>(), ttl in any::<u32>(),
            topic in "[a-zA-Z0-9_-]{0,32}",
        ) {
            let receipts = receipts(&[KEY_2]);
            let stamp = Stamp { clock: Clock(clock), origin: Origin(origin) };
            let receipt = Receipt { stamp, uaid: Uaid(uaid), ttl, topic: Topic::new(topic.as_bytes()), ..sample() };
            prop_assert_eq!(receipts.open(&sealed(&receipts, &receipt)), Some(receipt));
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..150), text in "[A-Za-z0-9_-]{0,140}") {
            let receipts = receipts(&[KEY_1]);
            prop_assert_eq!(receipts.open(&bytes), None);
            prop_assert_eq!(receipts.open(text.as_bytes()), None);
        }
    }
}
