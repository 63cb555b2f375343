//! Encryption and decryption of a message, with `ring`: key agreement and content keys (RFC 8291), one record of
//! aes128gcm (RFC 8188). The server never does any of this; it only carries the bytes.

use std::io;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};
use ring::rand::{SecureRandom, SystemRandom};

use protocol::wire::base64url;

/// Bytes of an uncompressed P-256 point.
const POINT_BYTES: usize = 65;
const SALT_BYTES: usize = 16;
/// salt, record size, length of the key id, key id (RFC 8188 section 2.1).
const HEADER_BYTES: usize = SALT_BYTES + 4 + 1 + POINT_BYTES;
const RECORD_BYTES: u32 = 4096;
/// Ends the plain text of the last record (RFC 8188 section 2).
const LAST_RECORD: u8 = 2;

fn failed(_: ring::error::Unspecified) -> io::Error {
    io::Error::other("this host's cryptography failed")
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Returns a random text.
pub fn random_text() -> io::Result<String> {
    Ok(format!("murre probe {}", base64url::encode(&random::<24>()?)))
}

/// The user agent's keys of one subscription. ring agrees with a key once, so one message can be sent and opened.
pub struct SubscriptionKeys {
    private: std::cell::Cell<Option<EphemeralPrivateKey>>,
    public: [u8; POINT_BYTES],
    auth: [u8; 16],
}

impl SubscriptionKeys {
    pub fn generate() -> io::Result<SubscriptionKeys> {
        let (private, public) = ephemeral()?;
        Ok(SubscriptionKeys { private: Some(private).into(), public, auth: random()? })
    }

    /// Returns the body of a POST to this subscription (RFC 8291 section 3.4).
    pub fn encrypt(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let (private, sender) = ephemeral()?;
        let salt = random::<SALT_BYTES>()?;
        let shared = agree(private, &self.public)?;
        let keys = ContentKeys::derive(&shared, &self.auth, &self.public, &sender, &salt)?;
        let mut body = Vec::with_capacity(HEADER_BYTES + plain.len() + 17);
        body.extend_from_slice(&salt);
        body.extend_from_slice(&RECORD_BYTES.to_be_bytes());
        body.push(POINT_BYTES as u8);
        body.extend_from_slice(&sender);
        body.extend_from_slice(&keys.seal(plain)?);
        Ok(body)
    }

    /// Returns the plain text of a body. A second call fails.
    pub fn decrypt(&self, body: &[u8]) -> io::Result<Vec<u8>> {
        let (header, sealed) =
            body.split_at_checked(HEADER_BYTES).ok_or_else(|| io::Error::other("the body is too short"))?;
        let (salt, rest) = header.split_at(SALT_BYTES);
        let (sizes, sender) = rest.split_at(5);
        if usize::from(sizes[4]) != POINT_BYTES {
            return Err(io::Error::other("the body names no key"));
        }
        let private = self.private.take().ok_or_else(|| io::Error::other("the key was used already"))?;
        let shared = agree(private, sender)?;
        ContentKeys::derive(&shared, &self.auth, &self.public, sender, salt)?.open(sealed)
    }
}

fn ephemeral() -> io::Result<(EphemeralPrivateKey, [u8; POINT_BYTES])> {
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).map_err(failed)?;
    let public = private.compute_public_key().map_err(failed)?;
    let point = public.as_ref().try_into().map_err(|_| io::Error::other("this host's cryptography failed"))?;
    Ok((private, point))
}

fn agree(private: EphemeralPrivateKey, public: &[u8]) -> io::Result<Vec<u8>> {
    agree_ephemeral(private, &UnparsedPublicKey::new(&ECDH_P256, public), <[u8]>::to_vec)
        .map_err(|_| io::Error::other("the body's key is no point on P-256"))
}

/// Key and nonce of the only record.
struct ContentKeys {
    key: [u8; 16],
    nonce: [u8; 12],
}

impl ContentKeys {
    /// RFC 8291 section 3.4, then RFC 8188 section 2.2 and 2.3.
    fn derive(shared: &[u8], auth: &[u8], receiver: &[u8], sender: &[u8], salt: &[u8]) -> io::Result<Self> {
        let info = [b"WebPush: info\0".as_slice(), receiver, sender];
        let input: [u8; 32] = expand(auth, shared, &info)?;
        Ok(ContentKeys {
            key: expand(salt, &input, &[b"Content-Encoding: aes128gcm\0"])?,
            nonce: expand(salt, &input, &[b"Content-Encoding: nonce\0"])?,
        })
    }

    fn cipher(&self) -> io::Result<LessSafeKey> {
        Ok(LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &self.key).map_err(failed)?))
    }

    fn seal(&self, plain: &[u8]) -> io::Result<Vec<u8>> {
        let mut record = [plain, &[LAST_RECORD]].concat();
        let nonce = Nonce::assume_unique_for_key(self.nonce);
        self.cipher()?.seal_in_place_append_tag(nonce, Aad::empty(), &mut record).map_err(failed)?;
        Ok(record)
    }

    fn open(&self, sealed: &[u8]) -> io::Result<Vec<u8>> {
        let mut record = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(self.nonce);
        let opened = self.cipher()?.open_in_place(nonce, Aad::empty(), &mut record);
        let padded = opened.map_err(|_| io::Error::other("the message does not decrypt: it was changed on the way"))?;
        let end = padded.iter().rposition(|byte| *byte != 0).filter(|end| padded[*end] == LAST_RECORD);
        let end = end.ok_or_else(|| io::Error::other("the record is not the last one"))?;
        Ok(padded[..end].to_vec())
    }
}

/// HKDF-SHA256 of RFC 5869.
fn expand<const N: usize>(salt: &[u8], input: &[u8], info: &[&[u8]]) -> io::Result<[u8; N]> {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut out = [0; N];
    let key = Salt::new(HKDF_SHA256, salt).extract(input);
    key.expand(info, Length(N)).and_then(|okm| okm.fill(&mut out)).map_err(failed)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        base64url::decode(text.as_bytes()).unwrap()
    }

    /// The example of RFC 8291 section 5 and its appendix A.
    #[test]
    fn the_example_of_rfc_8291_is_sealed_and_opened() {
        let shared = bytes("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let auth = bytes("BTBZMqHH6r4Tts7J_aSIgg");
        let receiver = bytes("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4");
        let sender = bytes("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let salt = bytes("DGv6ra1nlYgDCS1FRnbzlw");
        let keys = ContentKeys::derive(&shared, &auth, &receiver, &sender, &salt).unwrap();
        assert_eq!(keys.key.to_vec(), bytes("oIhVW04MRdy2XN9CiKLxTg"));
        assert_eq!(keys.nonce.to_vec(), bytes("4h_95klXJ5E_qnoN"));
        let sealed = bytes("8pfeW0KbunFT06SuDKoJH9Ql87S1QUrdirN6GcG7sFz1y1sqLgVi1VhjVkHsUoEsbI_0LpXMuGvnzQ");
        let plain = b"When I grow up, I want to be a watermelon";
        assert_eq!(keys.seal(plain).unwrap(), sealed);
        assert_eq!(keys.open(&sealed).unwrap(), plain);
    }

    #[test]
    fn a_message_comes_back_and_a_changed_one_does_not() {
        let receiver = SubscriptionKeys::generate().unwrap();
        let body = receiver.encrypt(b"hello").unwrap();
        assert_eq!(receiver.decrypt(&body).unwrap(), b"hello");
        assert!(receiver.decrypt(&body).is_err(), "a key is used once");
        let receiver = SubscriptionKeys::generate().unwrap();
        let mut body = receiver.encrypt(b"hello").unwrap();
        *body.last_mut().unwrap() ^= 1;
        assert!(receiver.decrypt(&body).unwrap_err().to_string().contains("changed on the way"));
        assert!(SubscriptionKeys::generate().unwrap().decrypt(&body[..40]).is_err());
    }
}
