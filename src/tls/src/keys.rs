//! Secrets of an established connection, and the derivations of RFC 8446 section 7. A connection of TLS 1.2 has keys
//! and IVs of its handshake, and derives nothing.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::{CipherSuite, ConnectionTrafficSecrets};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of the longest traffic secret: that of SHA-384.
pub(crate) const SECRET_MAX: usize = 48;
/// Bytes of the longest key: AES-256 and ChaCha20.
const KEY_MAX: usize = 32;
/// Bytes of a nonce (RFC 8446 section 5.3).
const IV_LEN: usize = 12;
/// Bytes of a nonce of AES-GCM in TLS 1.2 that records do not carry (RFC 5288 section 3).
pub(crate) const SALT_LEN: usize = 4;
/// Bytes of an exported direction at most: a sequence number, and a secret or a key with its IV.
pub(crate) const EXPORTED_MAX: usize = 8 + SECRET_MAX;
const _: () = assert!(KEY_MAX + IV_LEN <= SECRET_MAX);
/// Bytes that every suite adds to a record.
pub(crate) const TAG_LEN: usize = 16;

/// Cipher suite of TLS 1.3 (RFC 8446 appendix B.4), or record protection of TLS 1.2 (RFC 5288, RFC 7905). The numbers
/// are part of the exported state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Suite {
    Aes128GcmSha256 = 1,
    Aes256GcmSha384 = 2,
    ChaCha20Poly1305Sha256 = 3,
    Tls12Aes128Gcm = 4,
    Tls12Aes256Gcm = 5,
    Tls12ChaCha20Poly1305 = 6,
}

const ALL: [Suite; 6] = [
    Suite::Aes128GcmSha256,
    Suite::Aes256GcmSha384,
    Suite::ChaCha20Poly1305Sha256,
    Suite::Tls12Aes128Gcm,
    Suite::Tls12Aes256Gcm,
    Suite::Tls12ChaCha20Poly1305,
];

impl Suite {
    pub(crate) fn of(suite: CipherSuite) -> Option<Suite> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128GcmSha256),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256GcmSha384),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20Poly1305Sha256),
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Some(Suite::Tls12Aes128Gcm),
            CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Some(Suite::Tls12Aes256Gcm),
            CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Some(Suite::Tls12ChaCha20Poly1305),
            _ => None,
        }
    }

    pub(crate) fn from_number(number: u8) -> Option<Suite> {
        ALL.into_iter().find(|suite| *suite as u8 == number)
    }

    pub(crate) fn is_tls12(self) -> bool {
        matches!(self, Suite::Tls12Aes128Gcm | Suite::Tls12Aes256Gcm | Suite::Tls12ChaCha20Poly1305)
    }

    /// Bytes of the nonce that a record carries: with AES-GCM in TLS 1.2 (RFC 5288 section 3).
    pub(crate) fn explicit_len(self) -> usize {
        if matches!(self, Suite::Tls12Aes128Gcm | Suite::Tls12Aes256Gcm) { IV_LEN - SALT_LEN } else { 0 }
    }

    /// Bytes of a traffic secret: the length of the hash. None in TLS 1.2.
    pub(crate) fn secret_len(self) -> usize {
        match self {
            Suite::Aes256GcmSha384 => 48,
            Suite::Aes128GcmSha256 | Suite::ChaCha20Poly1305Sha256 => 32,
            Suite::Tls12Aes128Gcm | Suite::Tls12Aes256Gcm | Suite::Tls12ChaCha20Poly1305 => 0,
        }
    }

    /// Bytes of an exported direction: the sequence number, and the traffic secret or, in TLS 1.2, key and IV.
    pub(crate) fn exported_len(self) -> usize {
        8 + if self.is_tls12() { self.key_len() + IV_LEN } else { self.secret_len() }
    }

    fn key_len(self) -> usize {
        self.aead().key_len()
    }

    fn aead(self) -> &'static Algorithm {
        match self {
            Suite::Aes128GcmSha256 | Suite::Tls12Aes128Gcm => &AES_128_GCM,
            Suite::Aes256GcmSha384 | Suite::Tls12Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305Sha256 | Suite::Tls12ChaCha20Poly1305 => &CHACHA20_POLY1305,
        }
    }

    fn hkdf(self) -> hkdf::Algorithm {
        if self.secret_len() == SECRET_MAX { HKDF_SHA384 } else { HKDF_SHA256 }
    }

    /// Records that one key may seal (RFC 8446 section 5.5), as `confidentiality_limit` of rustls.
    pub(crate) fn limit(self) -> u64 {
        match self {
            Suite::ChaCha20Poly1305Sha256 | Suite::Tls12ChaCha20Poly1305 => u64::MAX,
            _ => 1 << 24,
        }
    }
}

/// Secrets of one direction. Overwritten when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Direction {
    /// Sequence number of the next record.
    pub seq: u64,
    /// The traffic secret, of which the next one is made; `secret_len` bytes of it are used.
    secret: [u8; SECRET_MAX],
    key: [u8; KEY_MAX],
    iv: [u8; IV_LEN],
}

impl Direction {
    /// Derives key and IV of a traffic secret (RFC 8446 section 7.3).
    pub(crate) fn new(suite: Suite, secret: &[u8], seq: u64) -> Direction {
        let mut new = Direction { seq, secret: [0; SECRET_MAX], key: [0; KEY_MAX], iv: [0; IV_LEN] };
        new.secret[..secret.len()].copy_from_slice(secret);
        let secret = Prk::new_less_safe(suite.hkdf(), secret);
        expand_label(&secret, b"key", &mut new.key[..suite.key_len()]);
        expand_label(&secret, b"iv", &mut new.iv);
        new
    }

    /// Takes key, IV and sequence number that rustls extracted, and the traffic secret of which it derived them, empty
    /// in TLS 1.2. `None` if they are not of this suite.
    pub(crate) fn extracted(
        suite: Suite,
        secret: &[u8],
        (seq, secrets): &(u64, ConnectionTrafficSecrets),
    ) -> Option<Direction> {
        let (aead, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return None,
        };
        let mut new = Direction::of_key(suite, *seq, key.as_ref(), iv.as_ref()).filter(|_| suite.aead() == aead)?;
        new.secret[..secret.len()].copy_from_slice(secret);
        Some(new)
    }

    fn of_key(suite: Suite, seq: u64, key: &[u8], iv: &[u8]) -> Option<Direction> {
        let mut new = Direction { seq, secret: [0; SECRET_MAX], key: [0; KEY_MAX], iv: *iv.as_array()? };
        let is_whole = key.len() == suite.key_len();
        is_whole.then(|| new.key[..key.len()].copy_from_slice(key)).map(|()| new)
    }

    /// Appends the state for another shard: `exported_len` bytes.
    pub(crate) fn export(&self, suite: Suite, state: &mut Vec<u8>) {
        state.extend_from_slice(&self.seq.to_be_bytes());
        if suite.is_tls12() {
            state.extend_from_slice(&self.key[..suite.key_len()]);
            state.extend_from_slice(&self.iv);
        } else {
            state.extend_from_slice(&self.secret[..suite.secret_len()]);
        }
    }

    /// Reads what [`Direction::export`] wrote.
    pub(crate) fn import(suite: Suite, state: &[u8]) -> Option<Direction> {
        let (seq, secrets) = state.split_first_chunk()?;
        let seq = u64::from_be_bytes(*seq);
        if suite.is_tls12() {
            let (key, iv) = secrets.split_at_checked(suite.key_len())?;
            return Direction::of_key(suite, seq, key, iv);
        }
        Some(Direction::new(suite, secrets, seq))
    }

    /// Goes over to the next traffic secret after a KeyUpdate (RFC 8446 section 7.2).
    pub(crate) fn update(&mut self, suite: Suite) {
        let mut next = Zeroizing::new([0; SECRET_MAX]);
        let next = &mut next[..suite.secret_len()];
        expand_label(&Prk::new_less_safe(suite.hkdf(), self.secret(suite)), b"traffic upd", next);
        *self = Direction::new(suite, next, 0);
    }

    fn secret(&self, suite: Suite) -> &[u8] {
        &self.secret[..suite.secret_len()]
    }

    /// Returns true if key and IV are those that follow from the traffic secret.
    pub(crate) fn is_derived(&self, suite: Suite) -> bool {
        if suite.is_tls12() {
            return true;
        }
        let derived = Direction::new(suite, self.secret(suite), self.seq);
        self.key == derived.key && self.iv == derived.iv
    }

    /// Seals in place under the next sequence number and returns the tag.
    pub(crate) fn seal(&mut self, suite: Suite, additional: &[u8], inner: &mut [u8]) -> [u8; TAG_LEN] {
        let (key, nonce) = (self.aead_key(suite), Nonce::assume_unique_for_key(self.nonce()));
        // Invariant: an inner plaintext is at most 2^14 + 1 bytes, far below the limits of the algorithms.
        let tag = key.seal_in_place_separate_tag(nonce, Aad::from(additional), inner).expect("short");
        self.seq += 1;
        let mut bytes = [0; TAG_LEN];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// Opens in place under the next sequence number, and returns the length of the inner plaintext at the front;
    /// `None` if the record is not the one that the peer sealed under this number. `explicit` is the part of the nonce
    /// that a record of TLS 1.2 carries.
    ///
    /// `key` is the key object of the records before this one in the same call, if there were some.
    pub(crate) fn open(
        &mut self,
        suite: Suite,
        key: &mut Option<LessSafeKey>,
        (additional, explicit): (&[u8], &[u8]),
        sealed: &mut [u8],
    ) -> Option<usize> {
        let key = key.get_or_insert_with(|| self.aead_key(suite));
        let mut nonce = self.nonce();
        nonce[IV_LEN - explicit.len()..].copy_from_slice(explicit);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key.open_in_place(nonce, Aad::from(additional), sealed).ok()?.len();
        self.seq += 1;
        Some(opened)
    }

    /// The key object is built for each call: an expanded key would cost 544 bytes per direction to keep.
    fn aead_key(&self, suite: Suite) -> LessSafeKey {
        // Invariant: the slice has the length that the algorithm states.
        LessSafeKey::new(UnboundKey::new(suite.aead(), &self.key[..suite.key_len()]).expect("the right length"))
    }

    /// IV xor sequence number (RFC 8446 section 5.3, RFC 7905 section 2). With AES-GCM in TLS 1.2 the last 8 bytes are
    /// the explicit part, which RFC 5288 leaves to the sender; rustls seals its Finished in the same way.
    pub(crate) fn nonce(&self) -> [u8; IV_LEN] {
        let mut nonce = self.iv;
        for (byte, of_seq) in nonce[IV_LEN - 8..].iter_mut().zip(self.seq.to_be_bytes()) {
            *byte ^= of_seq;
        }
        nonce
    }
}

/// Length of the output of an expansion.
pub(crate) struct Len(pub usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
fn expand_label(secret: &Prk, label: &[u8], out: &mut [u8]) {
    let length = (out.len() as u16).to_be_bytes();
    let label_len = [b"tls13 ".len() as u8 + label.len() as u8];
    let info: [&[u8]; 5] = [&length, &label_len, b"tls13 ", label, &[0]];
    // Invariant: an output is at most as long as the hash, of which HKDF makes 255.
    secret.expand(&info, Len(out.len())).and_then(|okm| okm.fill(out)).expect("short");
}

#[cfg(test)]
mod tests {
    use rustls::SupportedCipherSuite;

    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Server application traffic secret of RFC 8448 section 3 with the key and IV that follow from it.
    #[test]
    fn key_and_iv_equal_those_of_the_rfc() {
        let secret = bytes("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let server = Direction::new(Suite::Aes128GcmSha256, &secret, 0);
        assert_eq!(server.key[..16], bytes("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!(server.iv[..], bytes("cf782b88dd83549aadf1e984"));
    }

    #[test]
    fn secrets_are_overwritten() {
        let mut direction = Direction::new(Suite::Aes256GcmSha384, &[7; 48], 0);
        assert!(direction.secret == [7; 48] && direction.key != [0; 32] && direction.iv != [0; 12]);
        direction.zeroize();
        assert!(direction.secret == [0; 48] && direction.key == [0; 32] && direction.iv == [0; 12]);
        fn at_drop<T: ZeroizeOnDrop>(_: &T) {}
        at_drop(&direction);
    }

    #[test]
    fn limits_are_those_of_rustls() {
        for supported in rustls::crypto::ring::ALL_CIPHER_SUITES {
            let suite = Suite::of(supported.suite()).unwrap();
            let (common, hash) = match supported {
                SupportedCipherSuite::Tls12(of_12) => (&of_12.common, 0),
                SupportedCipherSuite::Tls13(of_13) => (&of_13.common, of_13.common.hash_provider.output_len()),
            };
            assert_eq!(suite.limit(), common.confidentiality_limit, "{suite:?}");
            assert_eq!(suite.secret_len(), hash, "{suite:?}");
            assert_eq!(suite.is_tls12(), hash == 0, "{suite:?}");
            assert_eq!(Suite::from_number(suite as u8), Some(suite));
        }
    }
}
