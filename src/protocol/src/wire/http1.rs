//! HTTP/1.1 request heads (by `httparse`, in front of which we bound and reject) and responses.
//!
//! Strict where leniency lets two parsers disagree about the end of a request or its host (RFC 9112 sections 11.2 and
//! 3.2): a bare LF, a folded header line, two lengths, a length with a transfer coding, any coding but `chunked`, and a
//! Host that is bad or there twice are 400.

use std::borrow::Cow;
use std::mem::MaybeUninit;

use super::percent::decode_unreserved;
use super::{list, text};

/// The longest head accepted, blank line included. Beyond it: 431.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The most header lines accepted. Beyond it: 431.
pub const HEADERS_MAX: usize = 100;

/// Error in a head or in a body's framing. The connection cannot go on: the start of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// 400.
    Syntax,
    /// 431.
    HeadTooLarge,
}

/// Framing of a body (RFC 9112 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Bytes of the body; 0 when neither header is there.
    Length(u64),
    /// Chunk by chunk.
    Chunked,
}

/// Room for the header lines of `httparse`; on the caller's stack.
pub struct HeaderSlots<'b>([MaybeUninit<httparse::Header<'b>>; HEADERS_MAX]);

impl HeaderSlots<'_> {
    pub fn new() -> Self {
        HeaderSlots([const { MaybeUninit::uninit() }; HEADERS_MAX])
    }
}

impl Default for HeaderSlots<'_> {
    fn default() -> Self {
        HeaderSlots::new()
    }
}

/// A request head.
#[derive(Debug)]
pub struct Head<'h, 'b> {
    /// As sent: methods are case-sensitive.
    pub method: &'b str,
    /// The path without scheme, authority and query, its unreserved characters decoded (RFC 3986 section 6.2.2.2); `*`
    /// for OPTIONS of the whole server.
    pub path: Cow<'b, str>,
    /// The part behind `?`, decoded as far as the path.
    pub query: Cow<'b, str>,
    pub framing: Framing,
    /// Another request may follow: HTTP/1.1 without `Connection: close`.
    pub keep_alive: bool,
    /// `Expect: 100-continue` was sent.
    pub expects_continue: bool,
    /// HTTP/1.1 without a Host, which is malformed except where old user agents are let in (PROTOCOL.md 1.1).
    pub lacks_host: bool,
    pub is_http_1_0: bool,
    headers: &'h [httparse::Header<'b>],
}

impl<'b> Head<'_, 'b> {
    /// The value of the first header of this name, any case.
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        self.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    }

    /// The values of every header of this name, any case.
    pub fn every<'n>(&self, name: &'n str) -> impl DoubleEndedIterator<Item = &'b [u8]> + use<'_, 'b, 'n> {
        self.headers.iter().filter(move |h| h.name.eq_ignore_ascii_case(name)).map(|h| h.value)
    }

    /// The lines of a header whose value is a list, as one (RFC 9110 section 5.3). Blank lines add nothing (5.6.1).
    pub fn joined(&self, name: &str) -> Option<Cow<'b, [u8]>> {
        let mut lines = self.every(name);
        let first = lines.next()?;
        let mut joined = Cow::Borrowed(first);
        for line in lines.filter(|line| !line.is_empty()) {
            if joined.is_empty() {
                joined = Cow::Borrowed(line);
                continue;
            }
            let list = joined.to_mut();
            list.extend_from_slice(b", ");
            list.extend_from_slice(line);
        }
        Some(joined)
    }

    /// Returns true if a comma-separated header of this name lists `token`, any case.
    pub fn lists(&self, name: &str, token: &str) -> bool {
        self.every(name).flat_map(list::elements).any(|item| item.eq_ignore_ascii_case(token.as_bytes()))
    }
}

/// Returns the length of the head at the front of `bytes`, blank line included; `None` when it is not whole yet.
/// Decides by the first offending byte, so any split of the bytes gives the same answer.
///
/// The first `seen` bytes were the whole of an earlier call that gave `None`. They are not read again, so that a head
/// in many small pieces costs no more than one in few.
pub fn find_head(bytes: &[u8], seen: usize) -> Result<Option<usize>, Malformed> {
    let Some(first) = bytes.first() else { return Ok(None) };
    if !first.is_ascii_uppercase() {
        return Err(Malformed::Syntax);
    }
    let window = &bytes[..bytes.len().min(HEAD_BYTES_MAX)];
    let mut from = seen.min(window.len());
    while let Some(length) = text::position(b'\n', &window[from..]) {
        let feed = from + length;
        let before = &window[..feed];
        if !before.ends_with(b"\r") {
            return Err(Malformed::Syntax);
        }
        if before.ends_with(b"\n\r") {
            return Ok(Some(feed + 1));
        }
        from = feed + 1;
    }
    if bytes.len() >= HEAD_BYTES_MAX { Err(Malformed::HeadTooLarge) } else { Ok(None) }
}

/// Parses a whole head as [`find_head`] measured it.
pub fn parse_head<'h, 'b>(bytes: &'b [u8], slots: &'h mut HeaderSlots<'b>) -> Result<Head<'h, 'b>, Malformed> {
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(bytes, &mut slots.0) {
        Ok(httparse::Status::Complete(used)) if used == bytes.len() => {}
        Ok(_) => return Err(Malformed::Syntax),
        Err(httparse::Error::TooManyHeaders) => return Err(Malformed::HeadTooLarge),
        Err(_) => return Err(Malformed::Syntax),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(Malformed::Syntax);
    };
    let mut head = Head {
        method,
        path: decode_unreserved(path_of(method, target).ok_or(Malformed::Syntax)?),
        query: decode_unreserved(query_of(target)),
        framing: Framing::Length(0),
        keep_alive: false,
        expects_continue: false,
        lacks_host: false,
        is_http_1_0: minor == 0,
        headers: request.headers,
    };
    head.framing = framing(&head, minor)?;
    let (host, another) = {
        let mut hosts = head.every("host");
        (hosts.next(), hosts.next())
    };
    if another.is_some() || !host.is_none_or(is_host) {
        return Err(Malformed::Syntax);
    }
    head.lacks_host = minor == 1 && host.is_none();
    head.keep_alive = minor == 1 && !head.lists("connection", "close");
    head.expects_continue = minor == 1 && head.lists("expect", "100-continue");
    Ok(head)
}

fn framing(head: &Head<'_, '_>, minor: u8) -> Result<Framing, Malformed> {
    let (mut length, mut coding) = (None, None);
    for header in head.headers {
        let seen = match header.name.len() {
            14 if header.name.eq_ignore_ascii_case("content-length") => &mut length,
            17 if header.name.eq_ignore_ascii_case("transfer-encoding") => &mut coding,
            _ => continue,
        };
        if seen.replace(header.value).is_some() {
            return Err(Malformed::Syntax);
        }
    }
    match (length, coding) {
        (None, None) => Ok(Framing::Length(0)),
        (Some(digits), None) => text::read_digits(digits).map(Framing::Length).ok_or(Malformed::Syntax),
        (None, Some(coding)) if minor == 1 && is_chunked(coding) => Ok(Framing::Chunked),
        _ => Err(Malformed::Syntax),
    }
}

/// Returns true for a list of one coding, `chunked`.
fn is_chunked(codings: &[u8]) -> bool {
    let mut codings = list::elements(codings);
    codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked")) && codings.next().is_none()
}

/// The path of a request target in origin, absolute or asterisk form (RFC 9112 section 3.2). The authority form is for
/// CONNECT, which nothing here takes.
fn path_of<'b>(method: &str, target: &'b str) -> Option<&'b str> {
    let rest = if target.starts_with('/') || (target == "*" && method == "OPTIONS") {
        target
    } else {
        let (scheme, rest) = target.split_once("://")?;
        let known = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
        let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        rest.get(authority..).filter(|_| known && authority > 0)?
    };
    let path = rest.split(['?', '#']).next()?;
    Some(if path.is_empty() { "/" } else { path })
}

/// Returns true if every character may stand in `uri-host [ ":" port ]` (RFC 3986 section 3.2). The host itself does
/// not matter to anything here; an empty one is allowed.
fn is_host(value: &[u8]) -> bool {
    value.iter().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%:[]".contains(b))
}

/// The query of a request target.
fn query_of(target: &str) -> &str {
    let target = target.split('#').next().unwrap_or(target);
    target.split_once('?').map_or("", |(_, query)| query)
}

/// Writes one response into an output buffer: status line, headers, then one of the two ends.
pub struct Response<'o> {
    out: &'o mut Vec<u8>,
    status: u16,
}

impl<'o> Response<'o> {
    /// The status line.
    pub fn start(out: &'o mut Vec<u8>, status: u16) -> Response<'o> {
        out.extend_from_slice(b"HTTP/1.1 ");
        text::push_u64(u64::from(status), out);
        out.push(b' ');
        out.extend_from_slice(reason(status).as_bytes());
        out.extend_from_slice(b"\r\n");
        Response { out, status }
    }

    /// A header line. The caller's value holds no CR or LF: it is ours or came through [`parse_head`].
    pub fn header(self, name: &str, value: &[u8]) -> Response<'o> {
        debug_assert!(!value.iter().any(|b| matches!(b, b'\r' | b'\n')));
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        self.out.extend_from_slice(value);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// A header line whose value `write` appends.
    pub fn header_with(self, name: &str, write: impl FnOnce(&mut Vec<u8>)) -> Response<'o> {
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b": ");
        write(self.out);
        self.out.extend_from_slice(b"\r\n");
        self
    }

    /// `Strict-Transport-Security` for this number of seconds (RFC 6797 section 6.1); no line for 0.
    pub fn hsts(self, seconds: u32) -> Response<'o> {
        if seconds == 0 {
            return self;
        }
        self.header_with("Strict-Transport-Security", |out| {
            out.extend_from_slice(b"max-age=");
            text::push_u64(u64::from(seconds), out);
        })
    }

    /// Ends the response without a body.
    pub fn empty(self) {
        if self.status == 204 || self.status < 200 {
            self.out.extend_from_slice(b"\r\n");
        } else {
            self.out.extend_from_slice(b"Content-Length: 0\r\n\r\n");
        }
    }

    /// Ends the response with a body; only its length is said when the request was a HEAD.
    pub fn body(self, body: &[u8], to_head: bool) {
        self.out.extend_from_slice(b"Content-Length: ");
        text::push_u64(body.len() as u64, self.out);
        self.out.extend_from_slice(b"\r\n\r\n");
        if !to_head {
            self.out.extend_from_slice(body);
        }
    }
}

/// The phrase of every status we send.
pub fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        205 => "Reset Content",
        200..=299 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        413 => "Payload Too Large",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    }
}

#[cfg(test)]
mod tests;
