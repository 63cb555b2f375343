//! The PROXY header: the line or block with which a proxy that passes bytes on names the client of a connection
//! (<https://www.haproxy.org/download/2.8/doc/proxy-protocol.txt>, sections 2.1 and 2.2). It comes before everything
//! else, also before TLS.
//!
//! Both versions are read. Ports, destination and the fields behind the addresses have no use here and are skipped.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Result of [`read`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// The bytes may become a header when more of them arrive.
    Incomplete,
    /// No bytes that follow can make a header of these.
    Malformed,
    /// A header of `len` bytes, behind which the client's bytes begin.
    Whole {
        len: usize,
        /// The client's address; `None`: the proxy speaks for itself (LOCAL), or does not name an IP address (UNKNOWN,
        /// UNSPEC, AF_UNIX). An IPv4 address that is mapped into IPv6 is the IPv4 address.
        source: Option<IpAddr>,
    },
}

/// The longest header accepted: every TCP segment has room for it (section 2 of the specification). Refuse: malformed.
pub const HEADER_BYTES_MAX: usize = 536;

/// Reads a header at the start of `bytes`. Looks at no more than [`HEADER_BYTES_MAX`] of them.
pub fn read(bytes: &[u8]) -> Header {
    if starts(bytes, TEXT_START) {
        read_text(bytes)
    } else if starts(bytes, SIGNATURE) {
        read_binary(bytes)
    } else {
        Header::Malformed
    }
}

/// Returns true if `bytes` begin with `mark`, or are a part of its beginning.
fn starts(bytes: &[u8], mark: &[u8]) -> bool {
    let length = bytes.len().min(mark.len());
    bytes[..length] == mark[..length]
}

/// Version 1: one line.
fn read_text(bytes: &[u8]) -> Header {
    let window = &bytes[..bytes.len().min(TEXT_BYTES_MAX)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < TEXT_BYTES_MAX { Header::Incomplete } else { Header::Malformed };
    };
    let Some(line) = window[..end].strip_prefix(TEXT_START) else { return Header::Malformed };
    // Behind UNKNOWN, anything may follow up to the end of the line.
    let unknown = line.strip_prefix(b"UNKNOWN").is_some_and(|rest| rest.is_empty() || rest.starts_with(b" "));
    let source = if unknown { Some(None) } else { text_source(line).map(|address| Some(address.to_canonical())) };
    source.map_or(Header::Malformed, |source| Header::Whole { len: end + 2, source })
}

/// Reads `TCP4 SOURCE DESTINATION PORT PORT`, and the same with `TCP6`.
fn text_source(line: &[u8]) -> Option<IpAddr> {
    let mut fields = std::str::from_utf8(line).ok()?.split(' ');
    let source = match fields.next()? {
        "TCP4" => {
            let [source, _destination]: [Ipv4Addr; 2] = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
            IpAddr::V4(source)
        }
        "TCP6" => {
            let [source, _destination]: [Ipv6Addr; 2] = [fields.next()?.parse().ok()?, fields.next()?.parse().ok()?];
            IpAddr::V6(source)
        }
        _ => return None,
    };
    (is_port(fields.next()?) && is_port(fields.next()?) && fields.next().is_none()).then_some(source)
}

/// A number up to 65535 without leading zeros.
fn is_port(text: &str) -> bool {
    let digits = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    digits && text.parse::<u16>().is_ok()
}

/// Version 2: signature, version and command, family and transport, length, addresses, further fields.
fn read_binary(bytes: &[u8]) -> Header {
    // Bytes that are there already may tell that it is none.
    let command = match bytes.get(12) {
        None => return Header::Incomplete,
        Some(0x20) => Command::Local,
        Some(0x21) => Command::Proxy,
        Some(_) => return Header::Malformed,
    };
    let Some(&family) = bytes.get(13) else { return Header::Incomplete };
    let addresses = match (&command, family) {
        // The receiver ignores the family of a LOCAL.
        (Command::Local, _) | (Command::Proxy, 0x00) => 0,
        // A datagram has the same addresses as a stream.
        (Command::Proxy, 0x11 | 0x12) => IPV4_BYTES,
        (Command::Proxy, 0x21 | 0x22) => IPV6_BYTES,
        (Command::Proxy, 0x31 | 0x32) => UNIX_BYTES,
        (Command::Proxy, _) => return Header::Malformed,
    };
    let &[_, _, high, low, ..] = &bytes[12..] else { return Header::Incomplete };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let len = FIXED_BYTES + length;
    if length < addresses || len > HEADER_BYTES_MAX {
        return Header::Malformed;
    }
    let Some(body) = bytes.get(FIXED_BYTES..len) else { return Header::Incomplete };
    let source = match addresses {
        IPV4_BYTES => body.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
        IPV6_BYTES => body.first_chunk::<16>().map(|octets| IpAddr::from(*octets).to_canonical()),
        _ => None,
    };
    Header::Whole { len, source }
}

/// Command of version 2.
enum Command {
    /// A connection of the proxy itself, as to check that the server is there.
    Local,
    Proxy,
}

const TEXT_START: &[u8] = b"PROXY ";
/// The longest line of version 1, its CRLF included.
const TEXT_BYTES_MAX: usize = 107;
const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const FIXED_BYTES: usize = 16;
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;
const UNIX_BYTES: usize = 216;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = (body.len() as u16).to_be_bytes();
        [SIGNATURE, &[command, family], &length, body].concat()
    }

    fn whole(bytes: &[u8], source: Option<&str>) -> Header {
        Header::Whole { len: bytes.len(), source: source.map(|text| text.parse().unwrap()) }
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 1, 0xdc, 0x04, 1, 0xbb];

    fn v6(source: &str) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().unwrap();
        [&source.octets()[..], &[0x20; 16], &[1, 2, 3, 4]].concat()
    }

    /// Headers of every kind with the address that they name.
    fn samples() -> Vec<(Vec<u8>, Option<&'static str>)> {
        let text = |line: &str| line.as_bytes().to_vec();
        let worst = ["ffff"; 8].join(":");
        let longest = format!("PROXY UNKNOWN {worst} {worst} 65535 65535\r\n");
        let with_fields = |more: usize| [&V4[..], &[4], &(more as u16).to_be_bytes(), &vec![0; more]].concat();
        vec![
            // The examples of section 2.1, which are the longest lines of their kind.
            (text("PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"), Some("255.255.255.255")),
            (text(&longest.replace("UNKNOWN", "TCP6")), Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")),
            (text(&longest), None),
            (text("PROXY UNKNOWN\r\n"), None),
            (text("PROXY UNKNOWN \u{e9} anything\r \n\r\n"), None),
            (text("PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"), Some("192.168.0.1")),
            (text("PROXY TCP6 2001:db8::1 ::1 0 80\r\n"), Some("2001:db8::1")),
            (text("PROXY TCP6 ::ffff:192.0.2.1 ::1 1 80\r\n"), Some("192.0.2.1")),
            (binary(0x21, 0x11, &V4), Some("192.0.2.1")),
            (binary(0x21, 0x12, &V4), Some("192.0.2.1")),
            (binary(0x21, 0x11, &with_fields(3)), Some("192.0.2.1")),
            (binary(0x21, 0x11, &with_fields(HEADER_BYTES_MAX - FIXED_BYTES - 15)), Some("192.0.2.1")),
            (binary(0x21, 0x21, &v6("2001:db8::1")), Some("2001:db8::1")),
            (binary(0x21, 0x22, &v6("::ffff:192.0.2.1")), Some("192.0.2.1")),
            (binary(0x21, 0x31, &[b'/'; 216]), None),
            (binary(0x21, 0x32, &[b'/'; 220]), None),
            (binary(0x21, 0x00, b""), None),
            (binary(0x21, 0x00, &V4), None),
            (binary(0x20, 0x00, b""), None),
            (binary(0x20, 0x11, &V4), None),
            (binary(0x20, 0xff, b"x"), None),
        ]
    }

    #[test]
    fn whole_headers_are_read_and_what_follows_is_not_theirs() {
        assert_eq!(samples()[2].0.len(), TEXT_BYTES_MAX);
        assert_eq!(samples()[11].0.len(), HEADER_BYTES_MAX);
        for (bytes, source) in samples() {
            let shown = String::from_utf8_lossy(&bytes);
            assert_eq!(read(&bytes), whole(&bytes, source), "{shown:?}");
            for more in [&b"\x16\x03\x01"[..], b"GET / HTTP/1.1\r\n\r\n", &bytes, &[0; 600]] {
                assert_eq!(read(&[&bytes, more].concat()), whole(&bytes, source), "{shown:?}");
            }
        }
    }

    #[test]
    fn every_truncation_is_incomplete() {
        for (bytes, _) in samples() {
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), Header::Incomplete, "{length} of {}", bytes.escape_ascii());
            }
        }
    }

    #[test]
    fn lines_that_are_no_header_are_malformed() {
        for line in [
            "",
            "TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 \r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2 1 2\r\n",
            "PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP6 [::1] ::1 1 2\r\n",
            "PROXY tcp4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UNKNOWNS\r\n",
            "proxy UNKNOWN\r\n",
            " PROXY UNKNOWN\r\n",
            "\r\nPROXY UNKNOWN\r\n",
        ] {
            let wanted = if line.is_empty() { Header::Incomplete } else { Header::Malformed };
            assert_eq!(read(line.as_bytes()), wanted, "{line:?}");
        }
        // The end of the line must be in the first 107 bytes, and a stranger is known by the first byte.
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(TEXT_BYTES_MAX - 15));
        assert_eq!(long.len(), TEXT_BYTES_MAX + 1);
        assert_eq!(read(long.as_bytes()), Header::Malformed);
        assert_eq!(read(&long.as_bytes()[..TEXT_BYTES_MAX]), Header::Malformed);
        for stranger in [&b"G"[..], b"\x16", b"PO", b"\r\n\r\n\0\r\nQUIX"] {
            assert_eq!(read(stranger), Header::Malformed);
        }
    }

    #[test]
    fn blocks_that_are_no_header_are_malformed() {
        for (command, family, body) in [
            // Versions and commands.
            (0x11, 0x11, &V4[..]),
            (0x31, 0x11, &V4),
            (0x22, 0x11, &V4),
            // Families and transports.
            (0x21, 0x01, &V4),
            (0x21, 0x10, &V4),
            (0x21, 0x13, &V4),
            (0x21, 0x41, &V4),
            // Lengths.
            (0x21, 0x11, &V4[..11]),
            (0x21, 0x21, &[0; 35]),
            (0x21, 0x31, &[0; 215]),
            (0x21, 0x11, &[0; HEADER_BYTES_MAX - FIXED_BYTES + 1]),
            (0x20, 0x00, &[0; HEADER_BYTES_MAX - FIXED_BYTES + 1]),
            (0x20, 0x00, &[0; 65_535]),
        ] {
            let bytes = binary(command, family, body);
            assert_eq!(read(&bytes), Header::Malformed, "{command:#x} {family:#x} {}", body.len());
            assert_eq!(read(&bytes[..FIXED_BYTES]), Header::Malformed, "told by its first bytes");
        }
    }

    #[test]
    fn a_changed_byte_never_panics() {
        for (bytes, _) in samples() {
            for at in 0..bytes.len() {
                for value in 0..=u8::MAX {
                    let mut changed = bytes.clone();
                    changed[at] = value;
                    if let Header::Whole { len, .. } = read(&changed) {
                        assert!(len <= bytes.len() && len <= HEADER_BYTES_MAX);
                    }
                }
            }
        }
    }

    /// Random bytes behind a beginning that is right.
    fn strange() -> impl Strategy<Value = Vec<u8>> {
        let starts: Vec<Vec<u8>> = samples().into_iter().map(|(bytes, _)| bytes).chain([Vec::new()]).collect();
        (proptest::sample::select(starts), 0usize..40, proptest::collection::vec(any::<u8>(), 0..700))
            .prop_map(|(start, kept, noise)| [&start[..kept.min(start.len())], &noise].concat())
    }

    proptest! {
        #[test]
        fn an_answer_holds_for_everything_that_follows(
            bytes in strange(),
            more in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let long = [&bytes[..], &more].concat();
            match read(&bytes) {
                Header::Incomplete => prop_assert!(bytes.len() < HEADER_BYTES_MAX),
                answer @ (Header::Malformed | Header::Whole { .. }) => prop_assert_eq!(read(&long), answer),
            }
            if let Header::Whole { len, .. } = read(&bytes) {
                prop_assert!(len <= bytes.len() && len <= HEADER_BYTES_MAX);
                prop_assert_eq!(read(&bytes[..len]), read(&bytes));
                prop_assert_eq!(read(&bytes[..len - 1]), Header::Incomplete);
            }
        }

        #[test]
        fn addresses_come_back(source: IpAddr, port: u16, fields in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (text, body) = match source {
                IpAddr::V4(v4) => ("TCP4", [&v4.octets()[..], &[1; 8]].concat()),
                IpAddr::V6(v6) => ("TCP6", [&v6.octets()[..], &[1; 20]].concat()),
            };
            let line = format!("PROXY {text} {source} {source} {port} {port}\r\n");
            let wanted = Some(source.to_canonical());
            prop_assert_eq!(read(line.as_bytes()), Header::Whole { len: line.len(), source: wanted });
            let family = if source.is_ipv4() { 0x11 } else { 0x21 };
            let block = binary(0x21, family, &[&body[..], &fields].concat());
            prop_assert_eq!(read(&block), Header::Whole { len: block.len(), source: wanted });
        }
    }
}
