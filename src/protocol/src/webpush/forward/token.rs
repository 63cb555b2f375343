//! The token of a forward endpoint.

use std::fmt;

use fernet::Fernet;
use machine::ids::KeyDigest;
use machine::upstream::ForwardKey;
use p256::SecretKey;

use super::super::endpoint::BadKey;
use super::target::TARGET_BYTES_MAX;

/// Contents of a token.
#[derive(Clone, PartialEq, Eq)]
pub struct ForwardToken {
    /// URL of the target as its creator wrote it. It is a secret of the creator.
    pub url: Box<str>,
    /// SHA-256 of the only key that may send, if there is one.
    pub sender: Option<KeyDigest>,
    /// Key that signs outgoing calls, only beside `sender`.
    pub key: Option<ForwardKey>,
}

impl fmt::Debug for ForwardToken {
    /// Never shows the URL.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardToken").field("sender", &self.sender).field("key", &self.key).finish_non_exhaustive()
    }
}

/// Seals and opens tokens of forward endpoints. The first key seals, every key opens.
pub struct ForwardTokens(Vec<Fernet>);

impl ForwardTokens {
    /// Under the crypto keys.
    ///
    /// # Errors
    /// [`BadKey`].
    pub fn new(crypto_keys: &[String]) -> Result<ForwardTokens, BadKey> {
        let parse = |(at, key): (usize, &String)| Fernet::new(key).ok_or(BadKey::Malformed(at));
        let keys = crypto_keys.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(BadKey::None) } else { Ok(ForwardTokens(keys)) }
    }

    /// Returns a fresh text of this token.
    pub fn seal(&self, token: &ForwardToken) -> String {
        let mut plain = Vec::with_capacity(token.url.len() + 2 * PART_BYTES);
        plain.extend_from_slice(token.url.as_bytes());
        plain.extend_from_slice(&token.sender.map_or([0; PART_BYTES], |digest| digest.0));
        plain.extend_from_slice(&token.key.map_or([0; PART_BYTES], |key| key.0));
        // Invariant: there is a first key, because `new` refuses an empty list.
        self.0[0].encrypt(&plain).trim_end_matches('=').to_owned()
    }

    /// Opens a text; `None` unless one of these keys sealed it.
    pub fn open(&self, text: &str) -> Option<ForwardToken> {
        if text.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let plain = self.0.iter().find_map(|key| key.decrypt(text).ok())?;
        let (rest, scalar) = plain.split_last_chunk::<PART_BYTES>()?;
        let (url, digest) = rest.split_last_chunk::<PART_BYTES>()?;
        let present = |part: &[u8; PART_BYTES]| (*part != [0; PART_BYTES]).then_some(*part);
        let sender = present(digest).map(KeyDigest);
        let key = present(scalar).map(ForwardKey);
        let fits = key.is_none_or(|key| sender.is_some() && SecretKey::from_slice(&key.0).is_ok());
        let url = std::str::from_utf8(url).ok().filter(|url| !url.is_empty() && fits)?;
        Some(ForwardToken { url: url.into(), sender, key })
    }
}

/// Bytes of the digest and of the scalar.
const PART_BYTES: usize = 32;
/// A Fernet token of a URL of [`TARGET_BYTES_MAX`] and both parts, with its padding.
const TOKEN_CHARS_MAX: usize = (1 + 8 + 16 + (TARGET_BYTES_MAX + 2 * PART_BYTES) / 16 * 16 + 16 + 32).div_ceil(3) * 4;
