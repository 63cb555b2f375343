//! The POSTs of app servers as bytes, made anew for each message: a million templates would be as large as a million
//! sessions.

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::webpush::identity::Identity;
use protocol::wire::url::HttpUrl;

use crate::target::value_name;

/// Signature of POSTs (RFC 8292).
#[derive(Default)]
pub enum Signing {
    /// No `Authorization` header.
    #[default]
    None,
    /// One token for all, used again as libraries do.
    Once(Identity),
    /// A token of its own for each.
    Each(Identity),
}

impl Signing {
    /// The key that channels register with.
    pub fn public_key(&self) -> Option<String> {
        match self {
            Signing::None => None,
            Signing::Once(identity) | Signing::Each(identity) => Some(identity.public_key()),
        }
    }
}

/// Spelling of the VAPID headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Vapid {
    /// Draft 01: `Authorization: WebPush TOKEN` and `Crypto-Key: p256ecdsa=KEY`.
    #[value(name = "01")]
    Draft01,
    /// Draft 02 and RFC 8292: `Authorization: vapid t=TOKEN,k=KEY`.
    #[default]
    #[value(name = "02")]
    Draft02,
}

/// Content coding of bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Encoding {
    /// RFC 8188: salt and key of the sender are in the body.
    #[default]
    Aes128gcm,
    /// The draft before it: `Encryption: salt=` and `Crypto-Key: dh=`.
    Aesgcm,
}

/// A salt and a public key, as long as those of real senders; no reader of a letter decrypts it.
const SALT: &str = "lngarbyKfMoi9Z75xYXmkg";
const DH: &str = "BNoRDbb84JGm8g5Z5CFxurSqsXWJ11ItfXEWYVLE85Y7CYkDjXsIEc4aqxYaQ1G8BqkXCJ6DPpDrWtdWj_mugHU";

/// The smallest body that holds a number.
pub const NUMBERED_BYTES_MIN: usize = 9;

/// Makes requests in a buffer that is used again.
pub struct PostWriter {
    signing: Signing,
    vapid: Vapid,
    encoding: Encoding,
    /// The `Content-Encoding` of bodies.
    coding: String,
    /// The `Authorization` of [`Signing::Once`] and its audience.
    authorization: Option<(String, String)>,
    /// The parameter of `Crypto-Key` that names the key of the signature, in draft 01.
    signing_key: Option<String>,
    filler: Vec<u8>,
    request: Vec<u8>,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct PostSpec<'a> {
    pub url: &'a str,
    /// `TTL` in seconds.
    pub ttl: u32,
    pub topic: Option<&'a str>,
    /// `Urgency`; `None` sends no header.
    pub urgency: Option<&'a str>,
    /// Bytes of the body; those that are too few for a number carry none.
    pub body_bytes: usize,
    /// Number at the start of the body.
    pub number: u64,
}

impl PostWriter {
    /// A writer whose letters are signed like this, by RFC 8292, and have bodies by RFC 8188.
    pub fn new(signing: Signing) -> PostWriter {
        PostWriter::spelled(signing, Vapid::default(), Encoding::default())
    }

    /// As [`PostWriter::new`], in the spelling of older senders.
    pub fn spelled(signing: Signing, vapid: Vapid, encoding: Encoding) -> PostWriter {
        let filler = (0..4096usize).map(|n| (n * 151) as u8).collect();
        let signing_key =
            signing.public_key().filter(|_| vapid == Vapid::Draft01).map(|key| format!("p256ecdsa={key}"));
        let (coding, request) = (value_name(&encoding), Vec::with_capacity(8192));
        PostWriter { signing, vapid, encoding, coding, authorization: None, signing_key, filler, request }
    }

    /// The whole request; `None` when the URL is not valid.
    pub fn write(&mut self, letter: &PostSpec<'_>) -> Option<&[u8]> {
        let (origin, host, path) = cut(letter.url)?;
        if let Signing::Once(identity) = &self.signing
            && self.authorization.as_ref().is_none_or(|(audience, _)| audience != origin)
        {
            self.authorization = Some((origin.to_owned(), authorization(identity, origin, self.vapid)));
        }
        let fresh = match &self.signing {
            Signing::Each(identity) => Some(authorization(identity, origin, self.vapid)),
            _ => None,
        };
        let authorization = fresh.as_deref().or(self.authorization.as_ref().map(|(_, value)| value.as_str()));
        let has_headers = self.encoding == Encoding::Aesgcm && letter.body_bytes > 0;
        let (salt, dh) = if has_headers { (Some(SALT), Some(DH)) } else { (None, None) };
        let out = &mut self.request;
        out.clear();
        let ttl = letter.ttl.to_string();
        for part in ["POST ", path, " HTTP/1.1\r\nHost: ", host, "\r\nTTL: ", &ttl, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for (name, value) in [
            ("Authorization: ", authorization),
            ("Topic: ", letter.topic),
            ("Urgency: ", letter.urgency),
            ("Encryption: salt=", salt),
        ] {
            if let Some(value) = value {
                [name, value, "\r\n"].into_iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
            }
        }
        if letter.body_bytes > 0 {
            out.extend_from_slice(format!("Content-Encoding: {}\r\n", self.coding).as_bytes());
        }
        // One section for both keys, as the libraries write it.
        let keys = match (dh, self.signing_key.as_deref()) {
            (None, None) => None,
            (None, Some(key)) => Some(["", "", "", key]),
            (Some(dh), None) => Some(["dh=", dh, "", ""]),
            (Some(dh), Some(key)) => Some(["dh=", dh, ";", key]),
        };
        if let Some(keys) = keys {
            let parts = [&["Crypto-Key: "][..], &keys, &["\r\n"]].concat();
            parts.into_iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
        }
        out.extend_from_slice(format!("Content-Length: {}\r\n\r\n", letter.body_bytes).as_bytes());
        let start = out.len();
        while out.len() < start + letter.body_bytes {
            let missing = start + letter.body_bytes - out.len();
            out.extend_from_slice(&self.filler[..missing.min(self.filler.len())]);
        }
        if letter.body_bytes >= NUMBERED_BYTES_MIN {
            out[start..start + 8].copy_from_slice(&letter.number.to_be_bytes());
        }
        Some(out)
    }
}

/// The `Authorization` header for `audience`, good for an hour.
fn authorization(identity: &Identity, audience: &str, vapid: Vapid) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let exp = now.as_secs() + 3_600;
    match vapid {
        Vapid::Draft01 => format!("WebPush {}", identity.token(audience, exp)),
        Vapid::Draft02 => identity.authorization(audience, exp),
    }
}

/// Origin, host and path of an absolute URL, as slices: a load generator has no allocation for each message.
fn cut(url: &str) -> Option<(&str, &str, &str)> {
    let host = url.find("://")? + 3;
    let path = host + url[host..].find('/')?;
    Some((&url[..path], &url[host..path], &url[path..]))
}

/// The origin of an endpoint URL; an error that names the fault of the URL.
pub fn origin(url: &str) -> std::io::Result<String> {
    let bad = || std::io::Error::other(format!("the server answered register with no URL: {url:?}"));
    Ok(HttpUrl::parse(url).ok_or_else(bad)?.origin().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://push.test:8082/wpush/v2/abc";

    fn letter(body_bytes: usize) -> PostSpec<'static> {
        PostSpec { url: URL, ttl: 60, topic: None, urgency: None, body_bytes, number: 77 }
    }

    #[test]
    fn a_letter_is_a_request_whose_body_has_its_number() {
        let mut letters = PostWriter::new(Signing::None);
        for bytes in [9, 200, 5_000] {
            let request = letters.write(&letter(bytes)).unwrap();
            let body = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let head = std::str::from_utf8(&request[..body]).unwrap();
            assert!(head.starts_with("POST /wpush/v2/abc HTTP/1.1\r\nHost: push.test:8082\r\nTTL: 60\r\n"), "{head}");
            let end = format!("Content-Encoding: aes128gcm\r\nContent-Length: {bytes}\r\n\r\n");
            assert!(head.ends_with(&end), "{head}");
            assert_eq!(request.len() - body, bytes);
            assert_eq!(request[body..body + 8], 77u64.to_be_bytes());
        }
        let empty = letters.write(&PostSpec { topic: Some("t1"), ..letter(0) }).unwrap();
        let text = std::str::from_utf8(empty).unwrap();
        assert!(text.contains("Topic: t1\r\n") && !text.contains("Content-Encoding"), "{text}");
        assert!(letters.write(&PostSpec { url: "nonsense", ..letter(9) }).is_none());
        assert!(origin("x").is_err());
    }

    #[test]
    fn the_headers_of_each_generation_are_those_of_its_senders() {
        let lines = |vapid, encoding, body_bytes| {
            let identity = Identity::generate();
            let key = identity.public_key();
            let mut letters = PostWriter::spelled(Signing::Once(identity), vapid, encoding);
            let request = letters.write(&letter(body_bytes)).unwrap();
            let head = String::from_utf8_lossy(request).split("\r\n\r\n").next().unwrap().replace(&key, "KEY");
            let line = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            let scheme = line("Authorization: ").unwrap();
            let scheme = if scheme.ends_with(",k=KEY") { "vapid" } else { &scheme[..8] }.to_owned();
            (scheme, line("Crypto-Key: "), line("Encryption: "))
        };
        let dh = format!("dh={DH}");
        let (webpush, vapid, salt) = ("WebPush ".to_owned(), "vapid".to_owned(), Some(format!("salt={SALT}")));
        let key = Some("p256ecdsa=KEY".to_owned());
        assert_eq!(lines(Vapid::Draft01, Encoding::Aes128gcm, 9), (webpush.clone(), key.clone(), None));
        assert_eq!(lines(Vapid::Draft02, Encoding::Aes128gcm, 9), (vapid.clone(), None, None));
        let both = Some(format!("{dh};p256ecdsa=KEY"));
        assert_eq!(lines(Vapid::Draft01, Encoding::Aesgcm, 9), (webpush.clone(), both, salt.clone()));
        assert_eq!(lines(Vapid::Draft02, Encoding::Aesgcm, 9), (vapid, Some(dh), salt));
        assert_eq!(lines(Vapid::Draft01, Encoding::Aesgcm, 0), (webpush, key, None));
    }

    #[test]
    fn a_token_is_used_again_or_made_for_each() {
        let signed = |letters: &mut PostWriter| {
            let request = String::from_utf8(letters.write(&letter(0)).unwrap().to_vec()).unwrap();
            request.lines().find(|line| line.starts_with("Authorization: vapid t=")).unwrap().to_owned()
        };
        let mut once = PostWriter::new(Signing::Once(Identity::generate()));
        assert_eq!(signed(&mut once), signed(&mut once));
        let mut each = PostWriter::new(Signing::Each(Identity::generate()));
        assert_ne!(signed(&mut each), signed(&mut each));
    }
}
