//! Message ids: the `Location` of a message and the `version` under which user agents ack it (DESIGN.md 6).
//!
//! `base64url(clock 8 || origin 4 || AES-256-GCM(uaid 16, chid 16, topic))`: 80 characters without a topic, no
//! randomness, the same for the message's whole life. The nonce is clock and origin, which name one
//! message and no other.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use shards::ids::{Chid, Clock, Origin, Stamp, Uaid};
use shards::message::Topic;

use super::endpoint::BadKey;
use super::key;
use crate::wire::base64url;

/// What an id says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageId {
    /// Which message.
    pub stamp: Stamp,
    /// Whose.
    pub uaid: Uaid,
    /// On which channel.
    pub chid: Chid,
    /// Its topic slot, if it has one.
    pub topic: Option<Topic>,
}

/// Seals and opens ids. The first key seals, every key opens. One per shard.
pub struct MessageIds {
    seal: LessSafeKey,
    others: Vec<LessSafeKey>,
}

impl MessageIds {
    /// Under keys derived from the crypto keys.
    pub fn new(crypto_keys: &[String]) -> Result<MessageIds, BadKey> {
        let derive = |(at, key): (usize, &String)| derive(key).ok_or(BadKey::Malformed(at));
        let mut keys = crypto_keys.iter().enumerate().map(derive).collect::<Result<Vec<_>, _>>()?.into_iter();
        let seal = keys.next().ok_or(BadKey::None)?;
        Ok(MessageIds { seal, others: keys.collect() })
    }

    /// Appends the text of an id.
    pub fn seal(&self, id: &MessageId, out: &mut Vec<u8>) {
        let mut bytes = [0u8; BYTES_MAX];
        bytes[..8].copy_from_slice(&id.stamp.clock.0.to_be_bytes());
        bytes[8..12].copy_from_slice(&id.stamp.origin.0.to_be_bytes());
        bytes[12..28].copy_from_slice(&id.uaid.0);
        bytes[28..44].copy_from_slice(&id.chid.0);
        let topic = id.topic.as_ref().map_or(&[][..], Topic::as_bytes);
        let end = PLAIN_BYTES + topic.len();
        bytes[PLAIN_BYTES..end].copy_from_slice(topic);
        let nonce = nonce(&bytes);
        let Ok(tag) = self.seal.seal_in_place_separate_tag(nonce, Aad::empty(), &mut bytes[12..end]) else {
            // Invariant: AES-GCM refuses plain texts beyond 64 GiB only, and this one has at most 64 bytes.
            unreachable!("a short plain text is always sealed");
        };
        bytes[end..end + TAG_BYTES].copy_from_slice(tag.as_ref());
        base64url::encode_into(&bytes[..end + TAG_BYTES], out);
    }

    /// What an id says; `None` unless one of our keys sealed it.
    pub fn open(&self, text: &[u8]) -> Option<MessageId> {
        let mut raw = [0u8; BYTES_MAX];
        if text.len() > base64url::encoded_len(BYTES_MAX) {
            return None;
        }
        let length = base64url::decode_into(text, &mut raw)?;
        let sealed = raw.get(..length).filter(|raw| raw.len() >= PLAIN_BYTES + TAG_BYTES)?;
        std::iter::once(&self.seal).chain(&self.others).find_map(|key| open(key, sealed))
    }
}

fn open(key: &LessSafeKey, sealed: &[u8]) -> Option<MessageId> {
    let mut bytes = [0u8; BYTES_MAX];
    bytes.get_mut(..sealed.len())?.copy_from_slice(sealed);
    let nonce = nonce(&bytes);
    let clock = Clock(u64::from_be_bytes(*bytes.first_chunk()?));
    let origin = Origin(u32::from_be_bytes(*bytes[8..].first_chunk()?));
    let plain = key.open_in_place(nonce, Aad::empty(), &mut bytes[12..sealed.len()]).ok()?;
    let (uaid, rest) = plain.split_first_chunk::<16>()?;
    let (chid, topic) = rest.split_first_chunk::<16>()?;
    let topic = if topic.is_empty() { None } else { Some(Topic::new(topic)?) };
    Some(MessageId { stamp: Stamp { clock, origin }, uaid: Uaid(*uaid), chid: Chid(*chid), topic })
}

fn nonce(bytes: &[u8; BYTES_MAX]) -> Nonce {
    let mut nonce = [0; 12];
    nonce.copy_from_slice(&bytes[..12]);
    Nonce::assume_unique_for_key(nonce)
}

fn derive(crypto_key: &str) -> Option<LessSafeKey> {
    let prk = key::derive(crypto_key)?;
    let key = prk.expand(&[b"message id v1"], &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}

const PLAIN_BYTES: usize = 12 + 16 + 16;
const TAG_BYTES: usize = 16;
const BYTES_MAX: usize = PLAIN_BYTES + 32 + TAG_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
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
