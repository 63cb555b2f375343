//! The POSTs of app servers as bytes, made anew for each message: a million templates would be as large as a million
//! sessions.

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::webpush::identity::Identity;
use protocol::wire::url::HttpUrl;

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

/// The smallest body that holds a number.
pub const NUMBERED_BYTES_MIN: usize = 9;

/// Makes requests in a buffer that is used again.
pub struct Letters {
    signing: Signing,
    /// The `Authorization` of [`Signing::Once`] and its audience.
    authorization: Option<(String, String)>,
    filler: Vec<u8>,
    request: Vec<u8>,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Letter<'a> {
    pub url: &'a str,
    /// `TTL` in seconds.
    pub ttl: u32,
    pub topic: Option<&'a str>,
    /// Bytes of the body; those that are too few for a number carry none.
    pub body_bytes: usize,
    /// Number at the start of the body.
    pub number: u64,
}

impl Letters {
    /// A writer whose letters are signed like this.
    pub fn new(signing: Signing) -> Letters {
        let filler = (0..4096usize).map(|n| (n * 151) as u8).collect();
        Letters { signing, authorization: None, filler, request: Vec::with_capacity(8192) }
    }

    /// The whole request; `None` when the URL is not valid.
    pub fn write(&mut self, letter: &Letter<'_>) -> Option<&[u8]> {
        let (origin, host, path) = cut(letter.url)?;
        if let Signing::Once(identity) = &self.signing
            && self.authorization.as_ref().is_none_or(|(audience, _)| audience != origin)
        {
            self.authorization = Some((origin.to_owned(), authorization(identity, origin)));
        }
        let fresh = match &self.signing {
            Signing::Each(identity) => Some(authorization(identity, origin)),
            _ => None,
        };
        let authorization = fresh.as_deref().or(self.authorization.as_ref().map(|(_, value)| value.as_str()));
        let out = &mut self.request;
        out.clear();
        let ttl = letter.ttl.to_string();
        for part in ["POST ", path, " HTTP/1.1\r\nHost: ", host, "\r\nTTL: ", &ttl, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        for (name, value) in [("Authorization: ", authorization), ("Topic: ", letter.topic)] {
            if let Some(value) = value {
                [name, value, "\r\n"].into_iter().for_each(|part| out.extend_from_slice(part.as_bytes()));
            }
        }
        if letter.body_bytes > 0 {
            out.extend_from_slice(b"Content-Encoding: aes128gcm\r\n");
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
fn authorization(identity: &Identity, audience: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    identity.authorization(audience, now.as_secs() + 3_600)
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

    fn letter(body_bytes: usize) -> Letter<'static> {
        Letter { url: URL, ttl: 60, topic: None, body_bytes, number: 77 }
    }

    #[test]
    fn a_letter_is_a_request_whose_body_has_its_number() {
        let mut letters = Letters::new(Signing::None);
        for bytes in [9, 200, 5_000] {
            let request = letters.write(&letter(bytes)).unwrap();
            let body = request.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
            let head = std::str::from_utf8(&request[..body]).unwrap();
            assert!(head.starts_with("POST /wpush/v2/abc HTTP/1.1\r\nHost: push.test:8082\r\nTTL: 60\r\n"), "{head}");
            assert!(head.contains(&format!("Content-Length: {bytes}\r\n")), "{head}");
            assert_eq!(request.len() - body, bytes);
            assert_eq!(request[body..body + 8], 77u64.to_be_bytes());
        }
        let empty = letters.write(&Letter { topic: Some("t1"), ..letter(0) }).unwrap();
        let text = std::str::from_utf8(empty).unwrap();
        assert!(text.contains("Topic: t1\r\n") && !text.contains("Content-Encoding"), "{text}");
        assert!(letters.write(&Letter { url: "nonsense", ..letter(9) }).is_none());
        assert!(origin("x").is_err());
    }

    #[test]
    fn a_token_is_used_again_or_made_for_each() {
        let signed = |letters: &mut Letters| {
            let request = String::from_utf8(letters.write(&letter(0)).unwrap().to_vec()).unwrap();
            request.lines().find(|line| line.starts_with("Authorization: vapid t=")).unwrap().to_owned()
        };
        let mut once = Letters::new(Signing::Once(Identity::generate()));
        assert_eq!(signed(&mut once), signed(&mut once));
        let mut each = Letters::new(Signing::Each(Identity::generate()));
        assert_ne!(signed(&mut each), signed(&mut each));
    }
}
