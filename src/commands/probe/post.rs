//! The app server of the probe: one POST over one connection (RFC 8030 section 5).

use std::io::{Read, Write};

use super::Failure;
use super::tls::Wire;

/// An http or https URL in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// `http` or `https`.
    scheme: String,
    /// Host and port as written.
    authority: String,
    /// From the first slash on; `/` when there is none.
    path: String,
}

/// What of an answer is read at most.
const HEAD_BYTES_MAX: usize = 16 * 1024;
const HEADERS_MAX: usize = 64;
/// Seconds the server may keep the message for a probe that died.
const TTL: u32 = 60;

impl Url {
    /// Takes `http` and `https` apart.
    pub fn parse(text: &str) -> Result<Url, Failure> {
        let bad = || Failure::new(format!("{text} is not like http://HOST:PORT/PATH"));
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let plain = text.bytes().all(|b| b.is_ascii_graphic());
        if !plain || authority.is_empty() || !matches!(scheme, "http" | "https") {
            return Err(bad());
        }
        let path = if path.is_empty() { "/" } else { path };
        Ok(Url { scheme: scheme.into(), authority: authority.into(), path: path.into() })
    }

    /// `scheme://host[:port]` without the port that is the default: the `aud` of VAPID.
    pub fn origin(&self) -> String {
        let default = if self.scheme == "https" { ":443" } else { ":80" };
        let host = self.authority.strip_suffix(default).unwrap_or(&self.authority);
        format!("{}://{}", self.scheme, host.to_ascii_lowercase())
    }

    /// True for `https`.
    pub fn is_secure(&self) -> bool {
        self.scheme == "https"
    }

    /// `host:port`, with the default port of the scheme where none is written.
    pub fn with_port(&self) -> String {
        match self.split_port() {
            (_, Some(_)) => self.authority.clone(),
            (host, None) => format!("{host}:{}", if self.is_secure() { 443 } else { 80 }),
        }
    }

    /// The host without port and brackets, as certificates name it.
    pub fn host(&self) -> &str {
        self.split_port().0.trim_matches(['[', ']'])
    }

    /// Host, and port if one is written. The colons of an IPv6 address are within its brackets.
    fn split_port(&self) -> (&str, Option<&str>) {
        match self.authority.rsplit_once(':') {
            Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => (host, Some(port)),
            _ => (&self.authority, None),
        }
    }
}

/// POSTs to the path of `url` over `stream`; the message id from `Location`.
pub fn post(mut stream: Wire, url: &Url, authorization: &str, body: &[u8]) -> Result<String, Failure> {
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nTTL: {TTL}\r\nUrgency: high\r\nContent-Encoding: aes128gcm\r\n\
         Content-Type: application/octet-stream\r\nAuthorization: {authorization}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        url.path,
        url.authority,
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    loop {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(&answer).map_err(|e| Failure::new(format!("the answer is not HTTP: {e}")))?;
        if let httparse::Status::Complete(end) = parsed {
            return judge(&response, answer.get(end..).unwrap_or_default());
        }
        let mut chunk = [0; 2048];
        let read = stream.read(&mut chunk)?;
        if read == 0 || answer.len() > HEAD_BYTES_MAX {
            return Err(Failure::new("the answer has no complete head"));
        }
        answer.extend_from_slice(&chunk[..read]);
    }
}

/// 201 with a Location, or why not.
fn judge(response: &httparse::Response<'_, '_>, body: &[u8]) -> Result<String, Failure> {
    let header = |name: &str| {
        let found = response.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name));
        found.map(|h| String::from_utf8_lossy(h.value).into_owned())
    };
    let code = response.code.unwrap_or_default();
    if code != 201 {
        let why: String = String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(300).collect();
        return Err(Failure::new(format!("POST was answered with {code} {why}")));
    }
    let location = header("location").ok_or_else(|| Failure::new("201 without Location"))?;
    if header("ttl").is_none() {
        return Err(Failure::new("201 without TTL"));
    }
    match location.rsplit_once("/m/") {
        Some((_, id)) if !id.is_empty() => Ok(id.to_string()),
        _ => Err(Failure::new("Location names no message")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let url = Url::parse("http://Push.Example:80/wpush/v2/abc").unwrap();
        assert_eq!(url.origin(), "http://push.example");
        assert_eq!(url.with_port(), "Push.Example:80");
        assert_eq!(url.path, "/wpush/v2/abc");
        assert_eq!(Url::parse("http://h").unwrap().with_port(), "h:80");
        assert_eq!(Url::parse("http://[::1]").unwrap().with_port(), "[::1]:80");
        assert_eq!(Url::parse("http://[::1]:8082/").unwrap().with_port(), "[::1]:8082");
        assert_eq!(Url::parse("https://h:443/").unwrap().origin(), "https://h");
        let secure = Url::parse("https://[::1]/").unwrap();
        assert_eq!((secure.with_port().as_str(), secure.host(), secure.is_secure()), ("[::1]:443", "::1", true));
        assert_eq!(Url::parse("https://h:8443/").unwrap().host(), "h");
        for bad in ["h", "ftp://h/", "http:///x", "http://h/a b", "http://h/\r\nX: y"] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
