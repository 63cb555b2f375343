//! Message ids: the `Location` of a message and the `version` under which user agents ack it (PROTOCOL.md 2.9).
//!
//! `base64url(clock 8 || origin 4 || AES-256-GCM(uaid 16, chid 16, topic))`: 80 characters without a topic, no
//! randomness, the same for the message's whole life.

use machine::ids::{Chid, Stamp, Uaid};
use machine::message::Topic;

use super::endpoint::BadKey;
use super::sealed::Sealer;

/// Contents of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageId {
    pub stamp: Stamp,
    pub uaid: Uaid,
    pub chid: Chid,
    pub topic: Option<Topic>,
}

/// Seals and opens ids. The first key seals, every key opens. One per shard.
pub struct MessageIds {
    sealer: Sealer,
}

impl MessageIds {
    /// Under keys derived from the crypto keys.
    pub fn new(crypto_keys: &[String]) -> Result<MessageIds, BadKey> {
        Ok(MessageIds { sealer: Sealer::new(crypto_keys, b"message id v1")? })
    }

    /// Appends the text of an id.
    pub fn seal(&self, id: &MessageId, out: &mut Vec<u8>) {
        let topic = id.topic.as_ref().map_or(&[][..], Topic::as_bytes);
        self.sealer.seal(id.stamp, &[&id.uaid.0, &id.chid.0, topic], out);
    }

    /// Opens an id; `None` unless one of these keys sealed it.
    pub fn open(&self, text: &[u8]) -> Option<MessageId> {
        let opened = self.sealer.open(text)?;
        let (uaid, rest) = opened.plain().split_first_chunk::<16>()?;
        let (chid, topic) = rest.split_first_chunk::<16>()?;
        let topic = if topic.is_empty() { None } else { Some(Topic::new(topic)?) };
        Some(MessageId { stamp: opened.stamp, uaid: Uaid(*uaid), chid: Chid(*chid), topic })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::ids::{Clock, Origin};
    use proptest::prelude::*;

    fn ids(keys: &[&str]) -> MessageIds {
        MessageIds::new(&keys.iter().map(|key| key.to_string()).collect::<Vec<_>>()).unwrap()
    }

    fn sealed(ids: &MessageIds, id: &MessageId) -> Vec<u8> {
        let mut out = Vec::new();
        ids.seal(id, &mut out);
        out
    }

    const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
    const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn sample() -> MessageId {
        let stamp = Stamp { clock: Clock(1_700_000_000_000_000), origin: Origin(7) };
        MessageId { stamp, uaid: Uaid([1; 16]), chid: Chid([2; 16]), topic: None }
    }

    #[test]
    fn an_id_has_80_characters_and_never_changes() {
        let ids = ids(&[KEY_1]);
        let text = sealed(&ids, &sample());
        assert_eq!(text.len(), 80);
        assert_eq!(sealed(&ids, &sample()), text);
    }

    #[test]
    fn every_key_opens_and_a_stranger_does_not() {
        let text = sealed(&ids(&[KEY_1]), &sample());
        assert_eq!(ids(&[KEY_2, KEY_1]).open(&text), Some(sample()));
        assert_eq!(ids(&[KEY_2]).open(&text), None);
    }

    #[test]
    fn a_changed_character_is_noticed() {
        let ids = ids(&[KEY_1]);
        let text = sealed(&ids, &sample());
        for at in 0..text.len() {
            let mut changed = text.clone();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(ids.open(&changed), None, "character {at}");
        }
    }

    proptest! {
        #[test]
        fn opens_what_it_sealed(
            clock in any::<u64>(), origin in any::<u32>(), uaid in any::<[u8; 16]>(), chid in any::<[u8; 16]>(),
            topic in "[a-zA-Z0-9_-]{0,32}",
        ) {
            let ids = ids(&[KEY_2]);
            let stamp = Stamp { clock: Clock(clock), origin: Origin(origin) };
            let topic = Topic::new(topic.as_bytes());
            let id = MessageId { stamp, uaid: Uaid(uaid), chid: Chid(chid), topic };
            prop_assert_eq!(ids.open(&sealed(&ids, &id)), Some(id));
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..150), text in "[A-Za-z0-9_-]{0,130}") {
            let ids = ids(&[KEY_1]);
            prop_assert_eq!(ids.open(&bytes), None);
            prop_assert_eq!(ids.open(text.as_bytes()), None);
        }
    }
}
