//! The RFC 6455 opening handshake, checked by us (PROTOCOL.md 1.1), and the families of user agents.

use tungstenite::handshake::derive_accept_key;

use super::http1::{Framing, Head, Response};
use super::list;

/// Reason to refuse an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpgradeError {
    /// HTTP/1.0, or a version that is not spoken here: 426.
    Required,
    /// `Upgrade` does not list `websocket`, `Connection` does not list `upgrade`, no key of 16 bytes, a key or version
    /// twice, or a body: 400.
    Malformed,
}

/// The versions of the protocol that differ from RFC 6455 in nothing we use.
pub const VERSIONS: &str = "13, 8, 7";

/// The sub-protocol Firefox offers.
pub const SUB_PROTOCOL: &str = "push-notification";

/// An upgrade that may be accepted.
#[derive(Debug)]
pub struct Accepted<'b> {
    key: &'b [u8],
    echo_protocol: bool,
    /// Family of the user agent, see [`family_name`].
    pub agent_family: u16,
}

/// Returns true if a head requests a WebSocket, also one whose `Upgrade` a proxy has dropped.
pub fn is_asked(head: &Head<'_, '_>) -> bool {
    offers(head) || ["sec-websocket-key", "sec-websocket-version"].iter().any(|name| head.header(name).is_some())
}

/// Returns true if `Upgrade` lists WebSockets. Other protocols in it are ignored: a client offers them, and goes on
/// without an upgrade (RFC 9110 section 7.8).
fn offers(head: &Head<'_, '_>) -> bool {
    let name = |protocol: &[u8]| protocol.split(|b| *b == b'/').next().is_some_and(is_websocket);
    head.every("upgrade").flat_map(list::elements).any(name)
}

fn is_websocket(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"websocket")
}

/// Returns true for 16 bytes in base64 (RFC 6455 section 4.2.1).
fn is_key(text: &[u8]) -> bool {
    let is_digit = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/');
    text.strip_suffix(b"==").is_some_and(|digits| digits.len() == 22 && digits.iter().all(is_digit))
}

/// Returns the value of a field that may be there once (RFC 6455 section 11.3).
fn once<'b>(head: &Head<'_, 'b>, name: &str) -> Result<Option<&'b [u8]>, UpgradeError> {
    let mut values = head.every(name);
    let value = values.next();
    if values.next().is_some() { Err(UpgradeError::Malformed) } else { Ok(value) }
}

/// Checks the head of `GET /`; method and path are the caller's.
pub fn check<'b>(head: &Head<'_, 'b>) -> Result<Accepted<'b>, UpgradeError> {
    // A 426 carries `Upgrade`. Proxies hand the field on to clients of HTTP/2, which forbids it (RFC 9113 section
    // 8.2.2); those cannot send it either, so only a request with the field is answered 426.
    if !offers(head) {
        return Err(UpgradeError::Malformed);
    }
    // An `Upgrade` field in an HTTP/1.0 request is ignored (RFC 9110 section 7.8; RFC 6455 section 4.2.1).
    if head.is_http_1_0 {
        return Err(UpgradeError::Required);
    }
    if !matches!(once(head, "sec-websocket-version")?, Some(b"13" | b"8" | b"7")) {
        return Err(UpgradeError::Required);
    }
    let key = once(head, "sec-websocket-key")?.unwrap_or_default();
    if !is_key(key) || !head.lists("connection", "upgrade") || head.framing != Framing::Length(0) {
        return Err(UpgradeError::Malformed);
    }
    let echo_protocol = head.lists("sec-websocket-protocol", SUB_PROTOCOL);
    let agent_family = family(head.header("user-agent").unwrap_or_default());
    Ok(Accepted { key, echo_protocol, agent_family })
}

impl Accepted<'_> {
    /// Appends the 101, with `hsts` seconds of `Strict-Transport-Security`; 0: it has none.
    pub fn write(&self, hsts: u32, out: &mut Vec<u8>) {
        let response = Response::start(out, 101)
            .header("Upgrade", b"websocket")
            .header("Connection", b"Upgrade")
            .header("Sec-WebSocket-Accept", derive_accept_key(self.key).as_bytes())
            .hsts(hsts);
        let echo = self.echo_protocol.then_some(SUB_PROTOCOL.as_bytes());
        match echo {
            Some(protocol) => response.header("Sec-WebSocket-Protocol", protocol).empty(),
            None => response.empty(),
        }
    }
}

/// Adds what a 426 must say (RFC 9110 section 15.5.22, RFC 6455 section 4.4).
pub fn required_headers(response: Response<'_>) -> Response<'_> {
    response
        .header("Upgrade", b"websocket")
        .header("Connection", b"Upgrade, close")
        .header("Sec-WebSocket-Version", VERSIONS.as_bytes())
}

const BROWSERS: [(&str, &str); 8] = [
    ("Other", ""),
    ("Firefox", "Firefox/"),
    ("Firefox iOS", "FxiOS/"),
    ("Thunderbird", "Thunderbird/"),
    ("Edge", "Edg/"),
    ("Opera", "OPR/"),
    ("Chrome", "Chrome/"),
    ("Safari", "Safari/"),
];
const SYSTEMS: [(&str, &str); 7] = [
    ("Other", ""),
    ("Android", "Android"),
    ("iOS", "iPhone"),
    ("iOS", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "Mac OS X"),
    ("Linux", "Linux"),
];

/// The family of a `User-Agent`: one small number, the same on every shard (`system << 8 | browser`).
pub fn family(user_agent: &[u8]) -> u16 {
    let window = &user_agent[..user_agent.len().min(512)];
    let find = |table: &[(&str, &str)]| {
        let holds = |mark: &str| window.windows(mark.len()).any(|part| part == mark.as_bytes());
        (1..table.len()).find(|&at| holds(table[at].1)).unwrap_or(0) as u16
    };
    find(&SYSTEMS) << 8 | find(&BROWSERS)
}

/// Operating system and browser of a family, for logs and metrics.
pub fn family_name(family: u16) -> (&'static str, &'static str) {
    let name = |table: &[(&'static str, &'static str)], at: u16| table.get(usize::from(at)).map_or("Other", |e| e.0);
    (name(&SYSTEMS, family >> 8), name(&BROWSERS, family & 0xff))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::http1::{HeaderSlots, parse_head};

    fn verdict(lines: &str) -> Result<(String, u16), UpgradeError> {
        verdict_on("HTTP/1.1", lines)
    }

    fn verdict_on(version: &str, lines: &str) -> Result<(String, u16), UpgradeError> {
        let bytes = format!("GET / {version}\r\nHost: h\r\n{lines}\r\n");
        let mut slots = HeaderSlots::new();
        let head = parse_head(bytes.as_bytes(), &mut slots).unwrap();
        let accepted = check(&head)?;
        let mut out = Vec::new();
        accepted.write(0, &mut out);
        Ok((String::from_utf8(out).unwrap(), accepted.agent_family))
    }

    const GOOD: &str = "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

    #[test]
    fn the_example_of_the_rfc_is_accepted() {
        let (answer, _) = verdict(GOOD).unwrap();
        assert!(answer.starts_with("HTTP/1.1 101 "));
        assert!(answer.contains("\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"));
        assert!(!answer.contains("Sec-WebSocket-Protocol"));
        assert!(answer.ends_with("\r\n\r\n"));
    }

    #[test]
    fn the_sub_protocol_is_echoed_when_offered() {
        let (answer, _) = verdict(&format!("{GOOD}Sec-WebSocket-Protocol: chat, push-notification\r\n")).unwrap();
        assert!(answer.contains("\r\nSec-WebSocket-Protocol: push-notification\r\n"));
    }

    #[test]
    fn each_missing_part_is_refused() {
        assert!(verdict(&GOOD.replace("13", "8")).is_ok());
        assert!(verdict(&GOOD.replace("13", "7")).is_ok());
        assert_eq!(verdict(&GOOD.replace("13", "12")).err(), Some(UpgradeError::Required));
        assert_eq!(verdict(&GOOD.replace("WebSocket\r", "h2c\r")).err(), Some(UpgradeError::Malformed));
        assert_eq!(verdict("").err(), Some(UpgradeError::Malformed));
        assert_eq!(verdict(&GOOD.replace("-Key", "-Kex")).err(), Some(UpgradeError::Malformed));
        assert_eq!(verdict(&GOOD.replace(", Upgrade", "")).err(), Some(UpgradeError::Malformed));
        assert_eq!(verdict(&format!("{GOOD}Content-Length: 3\r\n")).err(), Some(UpgradeError::Malformed));
    }

    #[test]
    fn a_head_without_any_field_of_websockets_asks_for_none() {
        let asks = |lines: &str| {
            let bytes = format!("GET / HTTP/1.1\r\nHost: h\r\n{lines}\r\n");
            let mut slots = HeaderSlots::new();
            is_asked(&parse_head(bytes.as_bytes(), &mut slots).unwrap())
        };
        assert!(asks(GOOD) && asks("Upgrade: websocket/13\r\n") && asks("Upgrade: h2c,,WEBSOCKET\r\n"));
        assert!(!asks("Upgrade: h2c\r\n") && !asks("Upgrade: xwebsocket, TLS/1.0\r\n"));
        assert!(asks("Sec-WebSocket-Version: 13\r\n"), "a proxy that drops Upgrade is told so");
        assert!(!asks("Connection: keep-alive\r\n"));
    }

    /// RFC 9110 section 7.8: an `Upgrade` field in an HTTP/1.0 request is ignored.
    #[test]
    fn an_upgrade_of_http_1_0_is_refused() {
        assert!(verdict_on("HTTP/1.1", GOOD).is_ok());
        assert_eq!(verdict_on("HTTP/1.0", GOOD).err(), Some(UpgradeError::Required));
        assert_eq!(verdict_on("HTTP/1.0", "").err(), Some(UpgradeError::Malformed));
    }

    #[test]
    fn families_are_told_apart() {
        let firefox = "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n";
        let (_, family) = verdict(&format!("{GOOD}{firefox}")).unwrap();
        assert_eq!(family_name(family), ("Linux", "Firefox"));
        assert_eq!(family_name(super::family(b"\xff\xfe")), ("Other", "Other"));
        assert_eq!(family_name(u16::MAX), ("Other", "Other"));
    }
}
