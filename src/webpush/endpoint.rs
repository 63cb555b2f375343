//! Endpoint URLs: a user agent, a channel and perhaps a key digest, sealed in a Fernet token (BEHAVIOUR.md 2.2).

use std::fmt;

use fernet::Fernet;
use shards::ids::{Chid, KeyDigest, Uaid};

/// What a token says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Whose.
    pub uaid: Uaid,
    /// Which channel.
    pub chid: Chid,
    /// The key it is locked to; only in tokens of version 2.
    pub key: Option<KeyDigest>,
}

impl Opened {
    /// The version of URL that such a token belongs under: 1 without a key, 2 with one.
    pub fn version(&self) -> u8 {
        if self.key.is_some() { 2 } else { 1 }
    }
}

/// A configured key that cannot be used. Says which, never what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadKey {
    /// The list is empty.
    None,
    /// This one, counted from 0, is not 32 bytes in base64url.
    Malformed(usize),
    /// The endpoint URL is not `scheme://host[:port][/path]` of plain ASCII.
    Url,
}

impl fmt::Display for BadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadKey::None => f.write_str("endpoint.crypto_keys is empty; make a key with `murre keygen`"),
            BadKey::Malformed(at) => {
                let at = at + 1;
                write!(f, "key {at} of endpoint.crypto_keys is not 32 bytes in base64url; make one with `murre keygen`")
            }
            BadKey::Url => f.write_str("endpoint.url must be like https://push.example.com, without quotes or blanks"),
        }
    }
}

impl std::error::Error for BadKey {}

/// Seals and opens tokens. The first key seals, every key opens. One per shard.
pub struct Tokens {
    seal: Fernet,
    open: Vec<Fernet>,
    prefix: String,
}

impl Tokens {
    /// For URLs below `endpoint_url`.
    pub fn new(endpoint_url: &str, keys: &[String]) -> Result<Tokens, BadKey> {
        let parse = |(at, key): (usize, &String)| Fernet::new(key).ok_or(BadKey::Malformed(at));
        let open = keys.iter().enumerate().map(parse).collect::<Result<Vec<_>, _>>()?;
        let seal = open.first().ok_or(BadKey::None)?.clone();
        let (base, _) = split_url(endpoint_url).ok_or(BadKey::Url)?;
        Ok(Tokens { seal, open, prefix: format!("{base}{WEBPUSH_PATH}") })
    }

    /// What the token says, whatever version of URL it came in; `None` unless one of our keys sealed it.
    pub fn open(&self, token: &str) -> Option<Opened> {
        // Two plain texts are sealed; a token of any other length is neither.
        if token.len() > TOKEN_CHARS_MAX {
            return None;
        }
        let plain = self.open.iter().find_map(|key| key.decrypt(token).ok())?;
        let (uaid, rest) = plain.split_first_chunk::<16>()?;
        let (chid, rest) = rest.split_first_chunk::<16>()?;
        let key = match rest.len() {
            0 => None,
            _ => Some(KeyDigest(rest.try_into().ok()?)),
        };
        Some(Opened { uaid: Uaid(*uaid), chid: Chid(*chid), key })
    }

    /// Appends a fresh URL. Every call makes a different text of the same meaning.
    pub fn seal(&self, opened: &Opened, out: &mut Vec<u8>) {
        let mut plain = [0; 64];
        plain[..16].copy_from_slice(&opened.uaid.0);
        plain[16..32].copy_from_slice(&opened.chid.0);
        let plain = match &opened.key {
            Some(key) => {
                plain[32..].copy_from_slice(&key.0);
                &plain[..]
            }
            None => &plain[..32],
        };
        out.extend_from_slice(self.prefix.as_bytes());
        out.extend_from_slice(if opened.key.is_some() { b"v2/" } else { b"v1/" });
        out.extend_from_slice(self.seal.encrypt(plain).trim_end_matches('=').as_bytes());
    }

    /// Appends a fresh URL of SimplePush (BEHAVIOUR.md 1.12). It is locked to no key.
    pub fn seal_simple(&self, uaid: Uaid, chid: Chid, out: &mut Vec<u8>) {
        let plain = [uaid.0, chid.0].concat();
        out.extend_from_slice(self.prefix.strip_suffix(WEBPUSH_PATH).unwrap_or_default().as_bytes());
        out.extend_from_slice(b"/spush/v1/");
        out.extend_from_slice(self.seal.encrypt(&plain).trim_end_matches('=').as_bytes());
    }

    /// A fresh URL.
    pub fn url(&self, opened: &Opened) -> String {
        let mut out = Vec::with_capacity(256);
        self.seal(opened, &mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    /// What a whole URL of ours says; its version must fit the token. For `murre endpoint inspect`.
    pub fn open_url(&self, url: &str) -> Option<Opened> {
        let (_, path) = url.rsplit_once("/wpush/")?;
        let (version, token) = parse_path(path)?;
        self.open(token).filter(|opened| opened.version() == version)
    }
}

/// Version and token of what follows `/wpush/`: `token`, `v1/token` or `v2/token`.
pub fn parse_path(path: &str) -> Option<(u8, &str)> {
    match path.split_once('/') {
        None => Some((1, path)),
        Some(("v1", token)) if !token.contains('/') => Some((1, token)),
        Some(("v2", token)) if !token.contains('/') => Some((2, token)),
        Some(_) => None,
    }
}

/// Base (no slash at the end) and origin (lower case, default port left out) of an endpoint URL.
pub fn split_url(url: &str) -> Option<(&str, String)> {
    let base = url.trim_end_matches('/');
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b'<' | b'>' | b'?' | b'#');
    let (scheme, rest) = base.split_once("://")?;
    let authority = rest.split('/').next()?;
    if !base.bytes().all(plain)
        || !matches!(scheme, "http" | "https")
        || authority.is_empty()
        || authority.contains('@')
    {
        return None;
    }
    let default = if scheme == "https" { ":443" } else { ":80" };
    let host = authority.strip_suffix(default).unwrap_or(authority);
    Some((base, format!("{scheme}://{}", host.to_ascii_lowercase())))
}

const TOKEN_CHARS_MAX: usize = 184;
const WEBPUSH_PATH: &str = "/wpush/";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tokens(keys: &[&str]) -> Tokens {
        let keys: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
        Tokens::new("https://push.example.com/", &keys).unwrap()
    }

    const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
    const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    #[test]
    fn urls_have_the_documented_lengths() {
        let tokens = tokens(&[KEY_1]);
        let opened = Opened { uaid: Uaid([1; 16]), chid: Chid([2; 16]), key: None };
        let url = tokens.url(&opened);
        let token = url.strip_prefix("https://push.example.com/wpush/v1/").unwrap();
        assert_eq!(token.len(), 140);
        assert_ne!(tokens.url(&opened), url);
        let url = tokens.url(&Opened { key: Some(KeyDigest([3; 32])), ..opened });
        assert_eq!(url.strip_prefix("https://push.example.com/wpush/v2/").unwrap().len(), 183);
    }

    #[test]
    fn every_key_of_the_list_opens_and_the_first_seals() {
        let opened = Opened { uaid: Uaid([1; 16]), chid: Chid([2; 16]), key: None };
        let (old, new) = (tokens(&[KEY_1]), tokens(&[KEY_2, KEY_1]));
        assert_eq!(new.open_url(&old.url(&opened)), Some(opened));
        assert_eq!(old.open_url(&new.url(&opened)), None);
    }

    #[test]
    fn other_lengths_and_versions_are_refused() {
        let tokens = tokens(&[KEY_1]);
        for length in [0, 16, 31, 33, 48, 63, 65, 96] {
            let token = tokens.seal.encrypt(&vec![7; length]);
            assert_eq!(tokens.open(token.trim_end_matches('=')), None, "{length}");
        }
        let url = tokens.url(&Opened { uaid: Uaid([1; 16]), chid: Chid([2; 16]), key: None });
        assert_eq!(tokens.open_url(&url.replace("/v1/", "/v2/")), None);
        assert!(tokens.open_url(&url.replace("/v1/", "/")).is_some());
        assert!(tokens.open_url(&format!("{url}=")).is_some());
        assert_eq!(parse_path("v3/x"), None);
        assert_eq!(parse_path("v1/x/y"), None);
    }

    #[test]
    fn keys_and_urls_are_checked() {
        let new = |url: &str, keys: &[&str]| {
            Tokens::new(url, &keys.iter().map(|k| k.to_string()).collect::<Vec<_>>()).map(|_| ()).unwrap_err()
        };
        assert_eq!(new("http://h", &[]), BadKey::None);
        assert_eq!(new("http://h", &[KEY_1, "short"]), BadKey::Malformed(1));
        for url in ["h", "ftp://h", "http://", "http://a\"b", "http://a b", "http://u@h", "http://h/?q"] {
            assert_eq!(new(url, &[KEY_1]), BadKey::Url, "{url}");
        }
        assert_eq!(split_url("https://Push.Example:443/a/").unwrap().1, "https://push.example");
        assert_eq!(split_url("http://h:8082").unwrap(), ("http://h:8082", "http://h:8082".to_string()));
    }

    proptest! {
        #[test]
        fn opens_what_it_sealed(
            uaid in any::<[u8; 16]>(), chid in any::<[u8; 16]>(), key in any::<Option<[u8; 32]>>(),
        ) {
            let tokens = tokens(&[KEY_2]);
            let opened = Opened { uaid: Uaid(uaid), chid: Chid(chid), key: key.map(KeyDigest) };
            prop_assert_eq!(tokens.open_url(&tokens.url(&opened)), Some(opened));
        }

        #[test]
        fn never_panics(token in any::<String>(), base64 in "[A-Za-z0-9_=-]{0,190}") {
            let tokens = tokens(&[KEY_1]);
            prop_assert_eq!(tokens.open(&token), None);
            prop_assert_eq!(tokens.open(&base64), None);
            let _ = (tokens.open_url(&token), split_url(&token));
        }
    }
}
