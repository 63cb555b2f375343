//! URLs of servers that murre calls: parsed once by [`Uri`], and then judged by the rules of this file.
//!
//! A subset of RFC 3986: scheme `http` or `https`, a host that is a name or an address, no user and no fragment. Names
//! beyond ASCII must be written in punycode.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use http::Uri;
use http::uri::{Authority, Scheme};

/// An absolute URL. `Display` and `Debug` leave out the query, which may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpUrl {
    origin: Origin,
    /// Path and query, begins with a slash.
    target: String,
}

/// Scheme, host and port: the server of a URL (RFC 6454).
#[derive(Clone, PartialEq, Eq)]
pub struct Origin {
    /// `https`, not `http`.
    pub https: bool,
    /// A name in lower case or an address; an IPv6 address has no brackets here.
    pub host: String,
    /// The default of the scheme when the URL has none.
    pub port: u16,
}

/// Start of the URLs that a server hands out: an origin, and a path without a slash at its end. `Display` spells it in
/// one way only: the host in lower case, and no port that is the default of the scheme.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BaseUrl {
    origin: Origin,
    path: String,
}

impl BaseUrl {
    /// Reads an absolute URL without a query. A dot at the end of the host is left out, because senders copy the host
    /// into places where it has none.
    pub fn parse(text: &str) -> Option<BaseUrl> {
        let HttpUrl { mut origin, target } = HttpUrl::parse(text).filter(|url| !url.target.contains('?'))?;
        if let Some(host) = origin.host.strip_suffix('.') {
            origin.host = host.to_owned();
        }
        let is_name = !origin.host.is_empty() && !origin.host.ends_with('.');
        is_name.then(|| BaseUrl { origin, path: target.trim_end_matches('/').to_owned() })
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Empty, or begins with a slash.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path)
    }
}

impl From<Origin> for BaseUrl {
    fn from(origin: Origin) -> BaseUrl {
        BaseUrl { origin, path: String::new() }
    }
}

impl HttpUrl {
    /// Reads an absolute URL; `None` for what is none.
    pub fn parse(text: &str) -> Option<HttpUrl> {
        // `Uri` drops a fragment, and takes more characters than RFC 3986.
        if text.len() > URL_BYTES_MAX || !text.bytes().all(|b| b.is_ascii_graphic() && !b"#\"<>\\^`{|}".contains(&b)) {
            return None;
        }
        let uri: Uri = text.parse().ok()?;
        let https = *uri.scheme()? == Scheme::HTTPS;
        if !https && *uri.scheme()? != Scheme::HTTP {
            return None;
        }
        Some(HttpUrl { origin: Origin::of(https, uri.authority()?)?, target: uri.path_and_query()?.to_string() })
    }

    /// Returns the URL that a `Location` of this URL's answer names: absolute or relative (RFC 9110 section 10.2.2, RFC
    /// 3986 section 5.2). A fragment in it is left out. `None` if that is no [`HttpUrl`].
    pub fn join(&self, reference: &str) -> Option<HttpUrl> {
        let reference = reference.split('#').next().unwrap_or_default();
        let scheme_end = reference.find([':', '/', '?']).filter(|at| reference[*at..].starts_with(':'));
        if scheme_end.is_some() {
            return HttpUrl::parse(reference);
        }
        let Origin { https, .. } = self.origin;
        if reference.starts_with("//") {
            return HttpUrl::parse(&format!("{}:{reference}", scheme(https)));
        }
        let path = self.path();
        let target = match reference.bytes().next() {
            None => self.target.clone(),
            Some(b'?') => format!("{path}{reference}"),
            Some(b'/') => reference.to_owned(),
            Some(_) => format!("{}{reference}", &path[..path.rfind('/').map_or(0, |slash| slash + 1)]),
        };
        HttpUrl::parse(&format!("{}{}", self.origin, without_dots(&target)))
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Path and query, as in a request line.
    pub fn target(&self) -> &str {
        &self.target
    }

    fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }
}

impl Origin {
    /// A port and no user may stand beside the host.
    fn of(https: bool, authority: &Authority) -> Option<Origin> {
        let host = authority.host();
        let port = match authority.as_str().strip_prefix(host)? {
            "" => default_port(https),
            port => port_number(port.strip_prefix(':')?)?,
        };
        Some(Origin { https, host: host_name(host)?, port })
    }

    /// Host and port, for a resolver.
    pub fn with_port(&self) -> String {
        format!("{}:{}", self.bracketed(), self.port)
    }

    fn bracketed(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    /// Returns true if the port is that of the scheme.
    pub fn has_default_port(&self) -> bool {
        self.port == default_port(self.https)
    }

    /// As in a `Host` header: without the port when it is that of the scheme.
    pub fn authority(&self) -> String {
        if self.has_default_port() { self.bracketed() } else { self.with_port() }
    }
}

fn default_port(https: bool) -> u16 {
    if https { 443 } else { 80 }
}

fn port_number(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

/// A name of letters, digits, dots, dashes and underscores, or an address.
fn host_name(text: &str) -> Option<String> {
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().ok().map(|address| address.to_string());
    }
    let allowed = text.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b));
    // Digits and dots are an address or nothing: no resolver should be asked to make one of `127.1`.
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let good = allowed && (1..=HOST_BYTES_MAX).contains(&text.len()) && (!numeric || text.parse::<Ipv4Addr>().is_ok());
    good.then(|| text.to_ascii_lowercase())
}

/// `/a/../b/./c` is `/b/c` (RFC 3986 section 5.2.4). The query is left as it is.
fn without_dots(target: &str) -> String {
    let (path, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(segment),
        }
        if last && matches!(segment, "." | "..") {
            kept.push("");
        }
    }
    format!("/{}{query}", kept.join("/"))
}

fn scheme(https: bool) -> &'static str {
    if https { "https" } else { "http" }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", scheme(self.https), self.authority())
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Origin({self})")
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin, self.path())
    }
}

impl fmt::Debug for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpUrl({self})")
    }
}

/// Bytes of one URL. Refuse: it is none.
pub const URL_BYTES_MAX: usize = 2_048;
/// Bytes of a name in the DNS (RFC 1035 section 2.3.4).
const HOST_BYTES_MAX: usize = 253;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> HttpUrl {
        HttpUrl::parse(text).unwrap_or_else(|| panic!("{text} is a URL"))
    }

    /// With the query, which `Display` leaves out.
    fn spelled(url: &HttpUrl) -> String {
        format!("{}{}", url.origin(), url.target())
    }

    #[test]
    fn a_url_is_taken_apart() {
        let parts = url("HTTPS://Push.Example.ORG:8443/v1/Broadcasts?a=b/c");
        let Origin { https, host, port } = parts.origin().clone();
        assert_eq!((https, host.as_str(), port), (true, "push.example.org", 8443));
        assert_eq!(parts.target(), "/v1/Broadcasts?a=b/c");
        assert_eq!(parts.origin().authority(), "push.example.org:8443");
        let bare = url("http://[2001:DB8:0::1]?x");
        assert_eq!((bare.origin().host.as_str(), bare.origin().port), ("2001:db8::1", 80));
        assert_eq!((bare.origin().authority().as_str(), bare.target()), ("[2001:db8::1]", "/?x"));
        assert_eq!(url("https://a").origin().port, 443);
        assert_eq!(url("https://a:443").origin(), url("https://A/").origin());
        assert_ne!(url("http://a:443").origin(), url("https://a").origin());
        for (text, resolved) in [("http://[::1]", "[::1]:80"), ("http://h", "h:80"), ("https://h/p", "h:443")] {
            assert_eq!(url(text).origin().with_port(), resolved);
        }
    }

    #[test]
    fn a_base_has_one_spelling() {
        for (text, spelled) in [
            ("HTTPS://Push.Example.ORG:443/", "https://push.example.org"),
            ("https://push.example.org.", "https://push.example.org"),
            ("https://push.example.org.:8443//", "https://push.example.org:8443"),
            ("http://h:80/Push/", "http://h/Push"),
            ("http://h:443", "http://h:443"),
            ("https://[2001:DB8:0::1]:443/a/b", "https://[2001:db8::1]/a/b"),
        ] {
            let base = BaseUrl::parse(text).unwrap();
            assert_eq!(base.to_string(), spelled, "{text}");
            assert_eq!(BaseUrl::parse(spelled), Some(base), "{text}");
        }
        for text in [
            "",
            "h",
            "ftp://h",
            "http://",
            "http://.",
            "http://h..",
            "http://u@h",
            "http://h/?q",
            "http://h#f",
            "http://a b",
        ] {
            assert_eq!(BaseUrl::parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused() {
        for text in [
            "",
            "a",
            "http:/a",
            "ftp://a",
            "http://",
            "http:///p",
            "http://:80",
            "http://a:",
            "http://a:0",
            "http://a:65536",
            "http://a:+1",
            "http://u@a/",
            "http://u:p@a/",
            "http://a b/",
            "http://a/#f",
            "http://a/\u{e9}",
            "http://[::1",
            "http://[::1]x/",
            "http://[fe80::1%25eth0]/",
            "http://127.1/",
            "http://a\\@b/",
        ] {
            assert!(HttpUrl::parse(text).is_none(), "{text}");
        }
        assert!(HttpUrl::parse(&format!("http://a/{}", "x".repeat(URL_BYTES_MAX - 9))).is_some());
        assert!(HttpUrl::parse(&format!("http://a/{}", "x".repeat(URL_BYTES_MAX - 8))).is_none());
    }

    #[test]
    fn a_location_is_resolved_against_the_url_that_was_asked() {
        let base = url("https://a.example/b/c?d");
        for (reference, wanted) in [
            ("http://x.example:81/y", "http://x.example:81/y"),
            ("HTTPS://x.example", "https://x.example/"),
            ("//x.example/y?z", "https://x.example/y?z"),
            ("/y?z=/../w", "https://a.example/y?z=/../w"),
            ("y", "https://a.example/b/y"),
            ("./y/.", "https://a.example/b/y/"),
            ("../../y", "https://a.example/y"),
            ("..", "https://a.example/"),
            ("?z", "https://a.example/b/c?z"),
            ("", "https://a.example/b/c?d"),
            ("/y#fragment", "https://a.example/y"),
            ("y:z", ""),
            ("/y:z", "https://a.example/y:z"),
            ("javascript:alert(1)", ""),
            ("ftp://x", ""),
            ("//u@x/", ""),
            ("/a b", ""),
        ] {
            assert_eq!(base.join(reference).map_or(String::new(), |url| spelled(&url)), wanted, "{reference}");
        }
    }

    #[test]
    fn a_query_is_not_shown() {
        let secret = url("https://a/b?key=secret");
        assert_eq!(format!("{secret} {secret:?}"), "https://a/b HttpUrl(https://a/b)");
    }

    proptest! {
        #[test]
        fn nothing_panics_and_what_is_taken_is_spelled_the_same_again(text in "\\PC{0,40}", reference in "\\PC{0,40}") {
            for text in [text.clone(), format!("http://{text}"), format!("https://a/{text}")] {
                if let Some(url) = HttpUrl::parse(&text) {
                    prop_assert_eq!(&HttpUrl::parse(&spelled(&url)), &Some(url.clone()));
                    if let Some(joined) = url.join(&reference) {
                        prop_assert_eq!(&HttpUrl::parse(&spelled(&joined)), &Some(joined.clone()));
                    }
                }
            }
        }
    }
}
