//! Tokens of version 3: each sealed once under a key of its own (docs/decisions/0012-short-tokens.md).
//!
//! ```text
//! 0       3
//! 1..17   salt, random: this token's key is HKDF-Expand(PRK, "endpoint token v3" || salt)
//! 17..    AES-256-GCM(uaid 16, chid 16, and for a locked endpoint the first 16 bytes of its key digest)
//! ..end   tag 16; byte 0 is authenticated with it
//! ```
//!
//! 87 characters of base64url, 108 with a key. The PRK is what [`super::key::derive`] makes of a crypto key.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::Prk;

use crate::wire::base64url;

/// Value of byte 0.
pub const MARK: u8 = 3;
/// Bytes of a key digest that a token carries. A sender with another key must find one with the same 128 bits, which is
/// as hard as breaking the seal or the curve.
pub const LOCK_BYTES: usize = 16;
/// Random bytes of each token.
pub const SALT_BYTES: usize = 16;

const IDS_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = 1 + SALT_BYTES;
const BYTES_MAX: usize = HEAD_BYTES + IDS_BYTES + LOCK_BYTES + TAG_BYTES;
/// The longest token in characters; padding is tolerated.
const CHARS_MAX: usize = base64url::encoded_len(BYTES_MAX) + 3;

/// The plain text of a token: UAID, CHID, and the lock if there is one.
pub type Plain = ([u8; 16], [u8; 16], Option<[u8; LOCK_BYTES]>);

/// Appends a token. A salt must not be given twice.
pub fn seal(prk: &Prk, salt: &[u8; SALT_BYTES], plain: &Plain, out: &mut Vec<u8>) -> Option<()> {
    let mut bytes = [0; BYTES_MAX];
    let (uaid, chid, lock) = plain;
    bytes[0] = MARK;
    bytes[1..HEAD_BYTES].copy_from_slice(salt);
    bytes[HEAD_BYTES..HEAD_BYTES + 16].copy_from_slice(uaid);
    bytes[HEAD_BYTES + 16..HEAD_BYTES + IDS_BYTES].copy_from_slice(chid);
    let mut end = HEAD_BYTES + IDS_BYTES;
    if let Some(lock) = lock {
        bytes[end..end + LOCK_BYTES].copy_from_slice(lock);
        end += LOCK_BYTES;
    }
    let key = key_of(prk, salt)?;
    let tag = key.seal_in_place_separate_tag(nonce(), Aad::from([MARK]), &mut bytes[HEAD_BYTES..end]).ok()?;
    bytes[end..end + TAG_BYTES].copy_from_slice(tag.as_ref());
    base64url::encode_into(&bytes[..end + TAG_BYTES], out);
    Some(())
}

/// The bytes of a token, if they can be one. Decoded once, then tried with each key.
pub struct Sealed {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl Sealed {
    /// From the text of a URL.
    pub fn read(token: &str) -> Option<Sealed> {
        if token.len() > CHARS_MAX {
            return None;
        }
        let mut bytes = [0; BYTES_MAX];
        let length = base64url::decode_into(token.as_bytes(), &mut bytes)?;
        let fits = length == BYTES_MAX || length == BYTES_MAX - LOCK_BYTES;
        (fits && bytes[0] == MARK).then_some(Sealed { bytes, length })
    }

    /// Opens it; `None` unless this key sealed it.
    pub fn open(&self, prk: &Prk) -> Option<Plain> {
        let mut bytes = self.bytes;
        let (head, sealed) = bytes.get_mut(..self.length)?.split_first_chunk_mut::<HEAD_BYTES>()?;
        let key = key_of(prk, head.last_chunk()?)?;
        let plain = key.open_in_place(nonce(), Aad::from([MARK]), sealed).ok()?;
        let (uaid, rest) = plain.split_first_chunk::<16>()?;
        let (chid, rest) = rest.split_first_chunk::<16>()?;
        let lock = if rest.is_empty() { None } else { Some(rest.try_into().ok()?) };
        Some((*uaid, *chid, lock))
    }
}

fn key_of(prk: &Prk, salt: &[u8; SALT_BYTES]) -> Option<LessSafeKey> {
    let info = [&b"endpoint token v3"[..], salt];
    let okm = prk.expand(&info, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(okm)))
}

/// Zero: every key seals one token.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}
