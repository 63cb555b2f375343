//! Endpoint URLs: a user agent, a channel and perhaps a key, sealed in a token (PROTOCOL.md 2.2).
//!
//! Versions 1 and 2 are Fernet tokens as the services before this one made them, version 3 is [`super::token_v3`].
//! Every version is opened; `endpoint.tokens` says which is made.

use std::fmt;

use fernet::Fernet;
use machine::ids::{Chid, KeyDigest, Uaid};
use ring::hkdf::Prk;

use super::entropy::Pool;
use super::key;
use super::token_v3::{self, LOCK_BYTES, Sealed};
use crate::wire::url::BaseUrl;

/// Target of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub uaid: Uaid,
    pub chid: Chid,
    /// The only key that may send, if there is one.
    pub key: Option<KeyDigest>,
}

/// Contents of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointToken {
    pub uaid: Uaid,
    pub chid: Chid,
    pub lock: Option<KeyLock>,
    /// Version of the URLs that the token belongs under.
    pub version: u8,
}

/// The key that an endpoint is locked to, as far as its token says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyLock {
    /// Version 2: the whole digest.
    Digest(KeyDigest),
    /// Version 3: its first bytes.
    Prefix([u8; LOCK_BYTES]),
}

impl KeyLock {
    /// Returns true if this is the key, in a time that does not depend on where it differs.
    pub fn fits(&self, shown: &KeyDigest) -> bool {
        match self {
            KeyLock::Digest(digest) => key::equal(&digest.0, &shown.0),
            KeyLock::Prefix(prefix) => shown.0.first_chunk().is_some_and(|start| key::equal(prefix, start)),
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            KeyLock::Digest(digest) => &digest.0,
            KeyLock::Prefix(prefix) => prefix,
        }
    }
}

/// Form of new tokens (`endpoint.tokens`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TokenForm {
    /// Version 3.
    #[default]
    Short,
    /// Versions 1 and 2, which the services before this one open too.
    Fernet,
}

/// A configured key that cannot be used. Says which, never what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadKey {
    /// The list is empty.
    None,
    /// This one, counted from 0, is not 32 bytes in base64url.
    Malformed(usize),
}

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadKey::None => f.write_str("endpoint.crypto_keys is empty; make a key with `murre keygen`"),
            BadKey::Malformed(at) => {
                let at = at + 1;
                write!(f, "key {at} of endpoint.crypto_keys is not 32 bytes in base64url; make one with `murre keygen`")
            }
        }
    }
}

impl std::error::Error for BadKey {}

/// Keys of both kinds of token, from one crypto key.
struct Keys {
    fernet: Fernet,
    short: Prk,
}

impl Keys {
    fn new(crypto_key: &str) -> Option<Keys> {
        Some(Keys { fernet: Fernet::new(crypto_key)?, short: key::derive(crypto_key)? })
    }
}

/// Seals and opens tokens. The first key seals, every key opens. One per shard.
pub struct Tokens {
    seal: Keys,
    others: Vec<Keys>,
    form: TokenForm,
    pool: Pool,
    prefix: String,
}

impl Tokens {
    /// For URLs below `base`.
    pub fn new(base: &BaseUrl, form: TokenForm, crypto_keys: &[String]) -> Result<Tokens, BadKey> {
        let parse = |(at, key): (usize, &String)| Keys::new(key).ok_or(BadKey::Malformed(at));
        let mut keys = crypto_keys.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?.into_iter();
        let seal = keys.next().ok_or(BadKey::None)?;
        Ok(Tokens {
            seal,
            others: keys.collect(),
            form,
            pool: Pool::default(),
            prefix: format!("{base}{WEBPUSH_PATH}"),
        })
    }

    /// Opens the token of a URL of this version; `None` unless one of these keys sealed it. Versions 1 and 2 are not
    /// told apart here: a token says itself which of them it is.
    pub fn open(&self, version: u8, token: &str) -> Option<EndpointToken> {
        let mut keys = std::iter::once(&self.seal).chain(&self.others);
        match version {
            1 | 2 if token.len() <= FERNET_CHARS_MAX => keys.find_map(|keys| open_fernet(&keys.fernet, token)),
            3 => {
                let sealed = Sealed::read(token)?;
                let (uaid, chid, lock) = keys.find_map(|keys| sealed.open(&keys.short))?;
                Some(EndpointToken { uaid: Uaid(uaid), chid: Chid(chid), lock: lock.map(KeyLock::Prefix), version })
            }
            _ => None,
        }
    }

    /// Appends a fresh URL. Every call makes a different text of the same meaning, and no two texts tell that they are
    /// of one user agent (RFC 8030 section 8.2). `None`, and nothing appended, when the kernel gives no random bytes.
    pub fn seal(&mut self, subscription: &Subscription, out: &mut Vec<u8>) -> Option<()> {
        let start = out.len();
        out.extend_from_slice(self.prefix.as_bytes());
        let sealed = match self.form {
            TokenForm::Short => self.seal_short(subscription, out),
            TokenForm::Fernet => {
                self.seal_fernet(subscription, out);
                Some(())
            }
        };
        if sealed.is_none() {
            out.truncate(start);
        }
        sealed
    }

    fn seal_short(&mut self, subscription: &Subscription, out: &mut Vec<u8>) -> Option<()> {
        let Subscription { uaid, chid, key } = subscription;
        let lock = key.as_ref().and_then(|key| key.0.first_chunk()).copied();
        out.extend_from_slice(b"v3/");
        token_v3::seal(&self.seal.short, &self.pool.draw()?, &(uaid.0, chid.0, lock), out)
    }

    fn seal_fernet(&self, subscription: &Subscription, out: &mut Vec<u8>) {
        let mut plain = [0; 64];
        plain[..16].copy_from_slice(&subscription.uaid.0);
        plain[16..32].copy_from_slice(&subscription.chid.0);
        let plain = match &subscription.key {
            Some(key) => {
                plain[32..].copy_from_slice(&key.0);
                &plain[..]
            }
            None => &plain[..32],
        };
        out.extend_from_slice(if subscription.key.is_some() { b"v2/" } else { b"v1/" });
        out.extend_from_slice(self.seal.fernet.encrypt(plain).trim_end_matches('=').as_bytes());
    }

    /// Appends a fresh URL of SimplePush (PROTOCOL.md 1.12). It is locked to no key.
    pub fn seal_simple(&self, uaid: Uaid, chid: Chid, out: &mut Vec<u8>) {
        let plain = [uaid.0, chid.0].concat();
        out.extend_from_slice(self.prefix.strip_suffix(WEBPUSH_PATH).unwrap_or_default().as_bytes());
        out.extend_from_slice(b"/spush/v1/");
        out.extend_from_slice(self.seal.fernet.encrypt(&plain).trim_end_matches('=').as_bytes());
    }
}

fn open_fernet(key: &Fernet, token: &str) -> Option<EndpointToken> {
    let plain = key.decrypt(token).ok()?;
    let (uaid, rest) = plain.split_first_chunk::<16>()?;
    let (chid, rest) = rest.split_first_chunk::<16>()?;
    let (lock, version) = match rest.len() {
        0 => (None, 1),
        _ => (Some(KeyLock::Digest(KeyDigest(rest.try_into().ok()?))), 2),
    };
    Some(EndpointToken { uaid: Uaid(*uaid), chid: Chid(*chid), lock, version })
}

/// Version and token of what follows `/wpush/`: `token` alone is of version 1, else `v1/token`, `v2/token`, `v3/token`.
pub fn parse_path(path: &str) -> Option<(u8, &str)> {
    let (version, token) = match path.split_once('/') {
        None => (1, path),
        Some(("v1", token)) => (1, token),
        Some(("v2", token)) => (2, token),
        Some(("v3", token)) => (3, token),
        Some(_) => return None,
    };
    (!token.contains('/')).then_some((version, token))
}

/// A Fernet token of version 2 has 183 characters, and one of padding.
const FERNET_CHARS_MAX: usize = 184;
/// Prefix of the paths of WebPush endpoints.
const WEBPUSH_PATH: &str = "/wpush/";

#[cfg(test)]
mod tests;
