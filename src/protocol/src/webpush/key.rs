//! Keys: comparing them, the public keys of senders, and what is derived from the crypto keys.

use std::hint::black_box;

use machine::ids::KeyDigest;
use ring::agreement::{self, ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey};
use ring::digest::{SHA256, digest};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use ring::rand::SystemRandom;

use super::generation_cache::GenerationCache;
use crate::wire::base64url;

/// Bytes of an uncompressed P-256 point.
pub const POINT_BYTES: usize = 65;

/// SHA-256 of a public key: what a v2 endpoint is locked to (PROTOCOL.md 2.2).
pub fn key_digest(point: &[u8; POINT_BYTES]) -> KeyDigest {
    KeyDigest(sha256(point))
}

/// SHA-256.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, bytes).as_ref());
    out
}

/// The secret that a crypto key gives, from which each use derives keys under a label of its own: one list of keys
/// configures all (PROTOCOL.md 2.2). `None` when the text is not a Fernet key.
pub fn derive(crypto_key: &str) -> Option<Prk> {
    // The same text as Fernet tokens take, checked by the same code.
    fernet::Fernet::new(crypto_key)?;
    let secret = base64url::decode(crypto_key.as_bytes())?;
    Some(Salt::new(HKDF_SHA256, b"murre").extract(&secret))
}

/// Returns true if two digests are equal, in a time that does not depend on where they differ.
pub fn equal<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    let difference = a.iter().zip(b).fold(0u8, |sum, (x, y)| black_box(sum | (x ^ y)));
    black_box(difference) == 0
}

/// Reads the point of a public key's text (base64url, or standard base64 as some senders write); `None` unless it has
/// 65 bytes and the mark of an uncompressed point. A point off the curve is not found here.
pub fn parse_point(text: &[u8]) -> Option<[u8; POINT_BYTES]> {
    base64url::decode_sloppy::<POINT_BYTES>(text).filter(|point| point[0] == 4)
}

/// Checks the keys that user agents register with. One per shard: it remembers the keys it has found good, since
/// one site's key comes from every one of its visitors.
pub struct PointChecker {
    random: SystemRandom,
    good: GenerationCache<[u8; 32], ()>,
}

impl PointChecker {
    /// Remembers at most `limit` keys.
    pub fn new(limit: usize) -> PointChecker {
        PointChecker { random: SystemRandom::new(), good: GenerationCache::new(limit) }
    }

    /// The digest of a key that is a point on P-256; `None` for any other text.
    pub fn check(&mut self, text: &[u8]) -> Option<KeyDigest> {
        let point = parse_point(text)?;
        let digest = key_digest(&point);
        if self.good.get(&digest.0).is_none() {
            // ring says whether a point is on the curve only by using it: agree on a key and forget it.
            let ours = EphemeralPrivateKey::generate(&ECDH_P256, &self.random).ok()?;
            agreement::agree_ephemeral(ours, &UnparsedPublicKey::new(&ECDH_P256, point), |_| ()).ok()?;
            self.good.insert(digest.0, ());
        }
        Some(digest)
    }
}

/// Text with the credentials of other nodes: any of several keys, compared by digest (PROTOCOL.md 4.1).
pub struct BearerKeys(Vec<[u8; 32]>);

impl BearerKeys {
    /// Keys as configured.
    pub fn new(keys: &[String]) -> BearerKeys {
        BearerKeys(keys.iter().map(|key| sha256(key.as_bytes())).collect())
    }

    /// Returns true if an `Authorization` value carries one of them. Without keys no value is allowed.
    pub fn allow(&self, authorization: Option<&[u8]>) -> bool {
        let Some((scheme, token)) = authorization.and_then(|value| value.split_at_checked(7)) else { return false };
        if !scheme.eq_ignore_ascii_case(b"bearer ") {
            return false;
        }
        self.admit(crate::wire::text::trim(token))
    }

    /// Returns true if this is one of them. The time does not depend on the keys.
    pub fn admit(&self, key: &[u8]) -> bool {
        let presented = sha256(key);
        self.0.iter().fold(false, |found, key| found | equal(key, &presented))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_points_on_the_curve_pass() {
        let ours = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).unwrap();
        let public = ours.compute_public_key().unwrap();
        let good = public.as_ref().to_vec();
        let mut checker = PointChecker::new(4);
        let text = base64url::encode(&good);
        assert_eq!(checker.check(text.as_bytes()), Some(KeyDigest(sha256(&good))));
        assert_eq!(checker.check(format!("{text}=").as_bytes()), Some(KeyDigest(sha256(&good))));
        let mut off = good.clone();
        off[64] ^= 1;
        assert_eq!(checker.check(base64url::encode(&off).as_bytes()), None);
        let mut compressed = good.clone();
        compressed[0] = 2;
        for bad in [&good[..64], &compressed, &[4; 65], &[0; 65], b""] {
            assert_eq!(checker.check(base64url::encode(bad).as_bytes()), None);
        }
        assert_eq!(checker.check(b"not base64!"), None);
    }

    #[test]
    fn any_of_the_bearer_keys_passes_and_nothing_else() {
        let keys = BearerKeys::new(&["one".into(), "two".into()]);
        assert!(keys.allow(Some(b"Bearer one")));
        assert!(keys.allow(Some(b"bearer  two ")));
        for wrong in [None, Some(&b"Bearer three"[..]), Some(b"Basic one"), Some(b"Bearer"), Some(b"one"), Some(b"")] {
            assert!(!keys.allow(wrong), "{wrong:?}");
        }
        assert!(!BearerKeys::new(&[]).allow(Some(b"Bearer ")));
    }
}
