//! Responses: the headers that every answer carries, error bodies, CORS and the small pages of 7.1.

use std::io::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::HttpDate as HttpDateText;
use machine::time::UnixSeconds;
use runtime::ports::Port;

use crate::health::Health;
use protocol::webpush::errno::ApiError;
use protocol::webpush::registration::RegistrationFault;
use protocol::wire::http1::{Head, Response};
use protocol::wire::text::{push_json, push_u64};
use protocol::wire::upgrade;

/// The facts of `/__version__` (PROTOCOL.md 7.1).
#[derive(Clone, Debug, Default)]
pub struct VersionInfo {
    pub version: String,
    pub commit: String,
    /// State of the source tree: `clean` if the binary has nothing but that commit, else `changed` or `unknown`.
    pub tree: String,
    pub source: String,
    pub build: String,
}

/// Facts of a request that its answer depends on.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// True if another request can follow.
    pub keep_alive: bool,
    /// True if the request was a HEAD: no body is sent.
    pub to_head: bool,
    /// True on the app-server port: browsers of any origin can read the answers.
    pub cors: bool,
    /// `Origin`, for the echo; only on that port.
    pub origin: Option<Box<[u8]>>,
    /// Seconds in `Strict-Transport-Security`; 0 without TLS, and then there is none.
    pub hsts: u32,
}

/// Maximum length of an echoed `Origin`, and of an echoed list of headers.
pub const ECHO_BYTES_MAX: usize = 1024;

impl Context {
    /// Returns the context of a request on a connection of `port`, with `hsts` seconds.
    pub fn of(port: Port, hsts: u32, head: &Head<'_, '_>) -> Context {
        let context = Context::of_port(port, hsts);
        let origin = head.header("origin").filter(|origin| context.cors && origin.len() <= ECHO_BYTES_MAX);
        let (keep_alive, to_head) = (head.keep_alive, head.method == "HEAD");
        Context { keep_alive, to_head, origin: origin.map(Into::into), ..context }
    }

    /// Returns the context of a connection that ends with its answer.
    pub fn closing(&self) -> Context {
        Context { keep_alive: false, ..self.clone() }
    }

    /// Returns the context of bytes that are no request.
    pub fn of_port(port: Port, hsts: u32) -> Context {
        Context { cors: matches!(port, Port::Endpoint | Port::Public), hsts, ..Context::default() }
    }
}

/// Default number of seconds after which a refused sender may try again.
const RETRY_AFTER: u32 = 120;

/// Header that tells other nodes that the session is absent, accepts nothing now, or holds the message. A 404 of
/// another server says nothing about sessions, nor does the 503 of a node that has too many connections.
const SESSION: &str = "Murre-Session";

/// Complete answer beyond `--max-connections`.
pub const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n";

/// Starts a response with the headers that every answer has.
pub fn start<'o>(date: &HttpDate, context: &Context, status: u16, out: &'o mut Vec<u8>) -> Response<'o> {
    let mut response = Response::start(out, status).header("Date", &date.text).hsts(context.hsts);
    if !context.keep_alive && status != 426 {
        response = response.header("Connection", b"close");
    }
    if !context.cors {
        return response;
    }
    response = response.header("Vary", b"Origin");
    if let Some(origin) = &context.origin {
        response = response
            .header("Access-Control-Allow-Origin", origin)
            .header("Access-Control-Expose-Headers", b"location, www-authenticate, ttl, retry-after, link");
    }
    response
}

/// Writes a complete error answer with its JSON body (PROTOCOL.md 2.11).
pub fn fault(date: &HttpDate, context: &Context, fault: ApiError, out: &mut Vec<u8>) {
    fault_until(date, context, fault, RETRY_AFTER, out);
}

/// Writes the same as [`fault`]. A 429 or 503 tells the client to try again after `retry_after` seconds.
pub fn fault_until(date: &HttpDate, context: &Context, fault: ApiError, retry_after: u32, out: &mut Vec<u8>) {
    let status = fault.row().status;
    let mut response = start(date, context, status, out).header("Content-Type", b"application/json");
    response = match status {
        401 if matches!(fault, ApiError::NodeKey | ApiError::AccessToken) => {
            response.header("WWW-Authenticate", b"Bearer")
        }
        401 if fault == ApiError::Registration(RegistrationFault::Secret) => {
            response.header("WWW-Authenticate", b"webpush")
        }
        401 => response.header("WWW-Authenticate", b"vapid"),
        404 if fault == ApiError::NoSession => response.header(SESSION, b"none"),
        503 if fault == ApiError::SessionBusy => response.header(SESSION, b"busy"),
        503 if fault == ApiError::SessionHolds => response.header(SESSION, b"held"),
        410 => response.header("Cache-Control", b"max-age=86400"),
        426 => upgrade::required_headers(response),
        429 | 503 => response.header_with("Retry-After", |out| push_u64(u64::from(retry_after), out)),
        _ => response,
    };
    let mut body = Vec::with_capacity(256);
    fault.push_body(&mut body);
    response.body(&body, context.to_head);
}

/// Writes a complete 405, which lists the allowed methods.
pub fn wrong_method(date: &HttpDate, context: &Context, fault: ApiError, allow: &str, out: &mut Vec<u8>) {
    let mut body = Vec::with_capacity(256);
    fault.push_body(&mut body);
    start(date, context, 405, out)
        .header("Allow", allow.as_bytes())
        .header("Content-Type", b"application/json")
        .body(&body, context.to_head);
}

/// Writes the answer to OPTIONS: the allowed methods, headers and origins (PROTOCOL.md 2.12).
pub fn options(date: &HttpDate, context: &Context, requested: Option<&[u8]>, allow: &str, out: &mut Vec<u8>) {
    let mut response = start(date, context, 204, out).header("Allow", allow.as_bytes());
    if context.origin.is_some() {
        response = response
            .header("Access-Control-Allow-Methods", b"DELETE, GET, POST, PUT")
            .header("Access-Control-Max-Age", b"3600")
            .header("Vary", b"Access-Control-Request-Method, Access-Control-Request-Headers");
        if let Some(requested) = requested {
            response = response.header("Access-Control-Allow-Headers", requested);
        }
    }
    response.empty();
}

/// Page that says if a load balancer should send more.
pub const HEARTBEAT: &str = "/__lbheartbeat__";

/// Small pages of every port (PROTOCOL.md 7.1), written once.
pub struct Pages {
    version: Vec<u8>,
    /// By the number of a [`Health`].
    health: [Vec<u8>; Health::ALL.len()],
}

impl Pages {
    pub fn new(info: &VersionInfo) -> Pages {
        let mut version = Vec::new();
        let facts = [
            (r#"{"source":"#, &info.source),
            (r#","version":"#, &info.version),
            (r#","commit":"#, &info.commit),
            (r#","tree":"#, &info.tree),
            (r#","build":"#, &info.build),
        ];
        for (name, value) in facts {
            version.extend_from_slice(name.as_bytes());
            push_json(value, &mut version);
        }
        version.push(b'}');
        let health = Health::ALL.map(|health| {
            let mut page = format!(r#"{{"status":"{}","version":"#, health.word()).into_bytes();
            push_json(&info.version, &mut page);
            page.push(b'}');
            page
        });
        Pages { version, health }
    }

    /// Returns the body of the page at `path` of a node with this health, if there is one.
    pub fn find(&self, path: &str, health: Health) -> Option<&[u8]> {
        match path {
            "/status" | "/health" | "/__heartbeat__" => Some(&self.health[health as usize]),
            HEARTBEAT => Some(b""),
            "/__version__" => Some(&self.version),
            _ => None,
        }
    }
}

/// Returns true if load balancers use this page to decide on more traffic.
pub fn is_health(path: &str) -> bool {
    matches!(path, "/status" | "/health" | "/__heartbeat__" | HEARTBEAT)
}

/// Returns true if a node with this health answers this page with 503: liveness for what a restart heals, and the page
/// of load balancers also for what another node does better.
pub fn is_turned(path: &str, health: Health) -> bool {
    match health {
        Health::Good | Health::Degraded => false,
        Health::Unready => path == HEARTBEAT,
        Health::Broken => is_health(path),
    }
}

/// `Date` of answers (RFC 9110 section 6.6.1), written again when the second changes.
pub struct HttpDate {
    second: UnixSeconds,
    text: Vec<u8>,
}

impl Default for HttpDate {
    fn default() -> Self {
        let mut text = Vec::with_capacity(29);
        push_date(UnixSeconds(0), &mut text);
        HttpDate { second: UnixSeconds(0), text }
    }
}

impl HttpDate {
    /// Sets the time of the answers that follow.
    pub fn set(&mut self, now: UnixSeconds) {
        if self.second != now {
            self.second = now;
            self.text.clear();
            push_date(now, &mut self.text);
        }
    }
}

/// Last second that an IMF-fixdate can name, of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// Appends an IMF-fixdate (RFC 9110 section 5.6.7).
fn push_date(at: UnixSeconds, out: &mut Vec<u8>) {
    let date = HttpDateText::from(UNIX_EPOCH + Duration::from_secs(at.0.min(LAST_SECOND)));
    // A vector takes every write.
    let _ = write!(out, "{date}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_spelled_as_documented() {
        for (second, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (1_709_251_199, "Thu, 29 Feb 2024 23:59:59 GMT"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            let mut out = Vec::new();
            push_date(UnixSeconds(second), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), text);
        }
    }
}
