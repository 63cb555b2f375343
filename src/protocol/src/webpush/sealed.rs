//! Texts that speak of one message and only this server can make or read: `base64url(clock 8 || origin 4 ||
//! AES-256-GCM(plain text))`.
//!
//! The nonce is clock and origin, which name one message and no other. So under one label a message must always be
//! sealed with the same plain text, and each use has its own label, from which HKDF derives its keys.

use machine::ids::{Clock, Origin, Stamp};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use super::endpoint::BadKey;
use super::key;
use crate::wire::base64url;

/// Seals and opens under the keys of one label. The first key seals, every key opens.
pub struct Sealer {
    seal: LessSafeKey,
    others: Vec<LessSafeKey>,
}

/// An opened text, and the stamp of its message.
pub struct UnsealedText {
    pub stamp: Stamp,
    bytes: [u8; BYTES_MAX],
    end: usize,
}

impl UnsealedText {
    pub fn plain(&self) -> &[u8] {
        &self.bytes[STAMP_BYTES..self.end]
    }
}

impl Sealer {
    /// Under keys derived from the crypto keys for `label`.
    pub fn new(crypto_keys: &[String], label: &'static [u8]) -> Result<Sealer, BadKey> {
        let derive = |(at, key): (usize, &String)| derive(key, label).ok_or(BadKey::Malformed(at));
        let mut keys = crypto_keys.iter().enumerate().map(derive).collect::<Result<Vec<_>, _>>()?.into_iter();
        let seal = keys.next().ok_or(BadKey::None)?;
        Ok(Sealer { seal, others: keys.collect() })
    }

    /// Appends the text of these parts; together they are at most [`PLAIN_BYTES_MAX`] long.
    pub fn seal(&self, stamp: Stamp, parts: &[&[u8]], out: &mut Vec<u8>) {
        let mut bytes = [0u8; BYTES_MAX];
        bytes[..8].copy_from_slice(&stamp.clock.0.to_be_bytes());
        bytes[8..STAMP_BYTES].copy_from_slice(&stamp.origin.0.to_be_bytes());
        let mut end = STAMP_BYTES;
        for part in parts {
            bytes[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        let nonce = nonce(&bytes);
        let Ok(tag) = self.seal.seal_in_place_separate_tag(nonce, Aad::empty(), &mut bytes[STAMP_BYTES..end]) else {
            // Invariant: AES-GCM refuses plain texts beyond 64 GiB only, and this one has at most 68 bytes.
            unreachable!("a short plain text is always sealed");
        };
        bytes[end..end + TAG_BYTES].copy_from_slice(tag.as_ref());
        base64url::encode_into(&bytes[..end + TAG_BYTES], out);
    }

    /// Opens a text; `None` unless one of these keys sealed it.
    pub fn open(&self, text: &[u8]) -> Option<UnsealedText> {
        if text.len() > base64url::encoded_len(BYTES_MAX) {
            return None;
        }
        let mut raw = [0u8; BYTES_MAX];
        let length = base64url::decode_into(text, &mut raw)?;
        let sealed = raw.get(..length).filter(|raw| raw.len() >= STAMP_BYTES + TAG_BYTES)?;
        std::iter::once(&self.seal).chain(&self.others).find_map(|key| open(key, sealed))
    }
}

fn open(key: &LessSafeKey, sealed: &[u8]) -> Option<UnsealedText> {
    let mut bytes = [0u8; BYTES_MAX];
    bytes.get_mut(..sealed.len())?.copy_from_slice(sealed);
    let nonce = nonce(&bytes);
    let clock = Clock(u64::from_be_bytes(*bytes.first_chunk()?));
    let origin = Origin(u32::from_be_bytes(*bytes[8..].first_chunk()?));
    let plain = key.open_in_place(nonce, Aad::empty(), &mut bytes[STAMP_BYTES..sealed.len()]).ok()?;
    let end = STAMP_BYTES + plain.len();
    Some(UnsealedText { stamp: Stamp { clock, origin }, bytes, end })
}

fn nonce(bytes: &[u8; BYTES_MAX]) -> Nonce {
    let mut nonce = [0; STAMP_BYTES];
    nonce.copy_from_slice(&bytes[..STAMP_BYTES]);
    Nonce::assume_unique_for_key(nonce)
}

fn derive(crypto_key: &str, label: &'static [u8]) -> Option<LessSafeKey> {
    let prk = key::derive(crypto_key)?;
    let label = [label];
    let key = prk.expand(&label, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(key)))
}

/// The longest plain text: UAID, CHID, four bytes more and a topic.
pub const PLAIN_BYTES_MAX: usize = 16 + 16 + 4 + 32;

const STAMP_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const BYTES_MAX: usize = STAMP_BYTES + PLAIN_BYTES_MAX + TAG_BYTES;
