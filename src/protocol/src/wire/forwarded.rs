//! `X-Forwarded-For` and `Forwarded` (RFC 7239): fields in which each proxy of a chain appends the address that called
//! it.
//!
//! A caller may send such a field itself, so only the elements on the right count: those of proxies that are trusted.
//! A field is therefore read from its end, and no byte on the left, be it a quote that never closes, changes the
//! meaning of an element on the right.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::list::last_unquoted;

/// Field that names the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `X-Forwarded-For`: addresses, some with ports, separated by commas.
    XForwardedFor,
    /// `Forwarded`, of which the parameter `for` is read.
    Forwarded,
}

/// The most elements that are looked at. Refuse: no address is found.
pub const ELEMENTS_MAX: usize = 32;

impl Kind {
    /// Name of the field.
    pub fn field(self) -> &'static str {
        match self {
            Kind::XForwardedFor => "x-forwarded-for",
            Kind::Forwarded => "forwarded",
        }
    }
}

/// Returns the address on the right of all elements that is not trusted, or the address on the left if all are.
///
/// `fields` are the lines of the field in the order of the head. The proxy that sent them must be trusted itself.
///
/// `None`: no address was found, and the proxy counts as the client. An element without an address ends the walk so:
/// `unknown`, an obfuscated name (`_hidden`), or a malformed one; and so does the element behind [`ELEMENTS_MAX`]. An
/// IPv4 address that is mapped into IPv6 is the IPv4 address.
pub fn client<'a>(
    kind: Kind,
    fields: impl DoubleEndedIterator<Item = &'a [u8]>,
    trusted: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut last = None;
    let mut elements = 0;
    for field in fields.rev() {
        let mut rest = Some(field);
        while let Some(line) = rest {
            elements += 1;
            if elements > ELEMENTS_MAX {
                return None;
            }
            let comma = match kind {
                Kind::XForwardedFor => line.iter().rposition(|b| *b == b','),
                Kind::Forwarded => last_unquoted(b',', line),
            };
            let element = comma.map_or(line, |at| &line[at + 1..]).trim_ascii();
            rest = comma.map(|at| &line[..at]);
            // A recipient ignores empty elements of a list (RFC 9110 section 5.6.1).
            if element.is_empty() {
                continue;
            }
            let address = match kind {
                Kind::XForwardedFor => x_forwarded_for(element)?,
                Kind::Forwarded => forwarded_for(element)?,
            };
            let address = address.to_canonical();
            if !trusted(address) {
                return Some(address);
            }
            last = Some(address);
        }
    }
    last
}

/// An address, as most proxies write it, or with a port.
fn x_forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(element).ok()?;
    if let Ok(address) = text.parse::<Ipv6Addr>() {
        return Some(IpAddr::V6(address));
    }
    node(text).filter(|_| !text.contains('_'))
}

/// The parameter `for` of an element; none of its parameters may be there twice (RFC 7239 section 4).
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = Some(element);
    while let Some(pairs) = rest {
        let semicolon = last_unquoted(b';', pairs);
        let pair = semicolon.map_or(pairs, |at| &pairs[at + 1..]);
        rest = semicolon.map(|at| &pairs[..at]);
        if pair.is_empty() {
            continue;
        }
        let at = pair.iter().position(|b| *b == b'=')?;
        let (name, value) = (&pair[..at], value(&pair[at + 1..])?);
        if !is_token(name) || (name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some()) {
            return None;
        }
    }
    node(std::str::from_utf8(&found?).ok()?)
}

/// A token, or the text of a quoted string.
fn value(bytes: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(quoted) = bytes.strip_prefix(b"\"") else {
        return is_token(bytes).then_some(Cow::Borrowed(bytes));
    };
    let quoted = quoted.strip_suffix(b"\"")?;
    if !quoted.iter().any(|b| matches!(b, b'"' | b'\\')) {
        return Some(Cow::Borrowed(quoted));
    }
    let mut text = Vec::with_capacity(quoted.len());
    let mut bytes = quoted.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'"' => return None,
            b'\\' => text.push(*bytes.next()?),
            _ => text.push(byte),
        }
    }
    Some(Cow::Owned(text))
}

/// RFC 9110 section 5.6.2.
fn is_token(bytes: &[u8]) -> bool {
    let is_sign = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !bytes.is_empty() && bytes.iter().all(is_sign)
}

/// An address with or without a port (RFC 7239 section 6); an IPv6 address is in brackets.
fn node(text: &str) -> Option<IpAddr> {
    let (address, rest) = match text.strip_prefix('[') {
        Some(inner) => {
            let (address, rest) = inner.split_once(']')?;
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), rest)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            (IpAddr::V4(text[..end].parse::<Ipv4Addr>().ok()?), &text[end..])
        }
    };
    let is_whole = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
    is_whole.then_some(address)
}

/// One to five digits, or an obfuscated port.
fn is_port(text: &str) -> bool {
    let obfuscated = |rest: &str| !rest.is_empty() && rest.bytes().all(is_obfuscated);
    match text.strip_prefix('_') {
        Some(rest) => obfuscated(rest),
        None => (1..=5).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit()),
    }
}

fn is_obfuscated(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Trusts `10.0.0.0/8` and `fd00::/8`.
    fn is_trusted(address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.octets()[0] == 0xfd,
        }
    }

    fn found(kind: Kind, fields: &[&str]) -> Option<String> {
        client(kind, fields.iter().map(|field| field.as_bytes()), is_trusted).map(|address| address.to_string())
    }

    fn x(fields: &[&str]) -> Option<String> {
        found(Kind::XForwardedFor, fields)
    }

    fn forwarded(fields: &[&str]) -> Option<String> {
        found(Kind::Forwarded, fields)
    }

    #[test]
    fn the_walk_ends_at_the_first_address_from_the_right_that_is_not_trusted() {
        for (fields, wanted) in [
            (&["192.0.2.1"][..], "192.0.2.1"),
            (&["198.51.100.1, 192.0.2.1"], "192.0.2.1"),
            (&["198.51.100.1, 192.0.2.1, 10.0.0.1,fd00::1"], "192.0.2.1"),
            (&["198.51.100.1", "192.0.2.1", "10.0.0.1"], "192.0.2.1"),
            (&["nonsense, 2001:db8::1\t, , 10.0.0.1,", ""], "2001:db8::1"),
            (&["[2001:db8::1]:4711, [fd00::1]"], "2001:db8::1"),
            (&["192.0.2.1:4711, 10.0.0.1:1"], "192.0.2.1"),
            (&["::ffff:192.0.2.1, ::ffff:10.0.0.1"], "192.0.2.1"),
            // All are trusted: the chain begins with the first of them.
            (&["10.0.0.1, 10.0.0.2", "10.0.0.3"], "10.0.0.1"),
        ] {
            assert_eq!(x(fields).as_deref(), Some(wanted), "{fields:?}");
        }
        for (fields, wanted) in [
            (&["for=192.0.2.1"][..], "192.0.2.1"),
            (&["For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
            (&["for=192.0.2.60;proto=http;by=203.0.113.43"], "192.0.2.60"),
            (&["by=203.0.113.43;for=192.0.2.60;"], "192.0.2.60"),
            (&["for=192.0.2.43, for=198.51.100.17"], "198.51.100.17"),
            (
                &["for=192.0.2.43", "for=\"10.0.0.1:80\"", "for=\"[fd00::1]:_p.0-rt\";host=\"a,b;c=\\\"d\""],
                "192.0.2.43",
            ),
            (&["for=\"\\1\\9\\2.0.2.43\""], "192.0.2.43"),
            (&["for=192.0.2.1;secret=\"\\\\\", for=10.0.0.1"], "192.0.2.1"),
            (&["for=10.0.0.1, for=10.0.0.2"], "10.0.0.1"),
        ] {
            assert_eq!(forwarded(fields).as_deref(), Some(wanted), "{fields:?}");
        }
    }

    #[test]
    fn an_element_without_an_address_ends_the_walk() {
        for element in [
            "unknown",
            "_hidden",
            "localhost",
            "192.0.2",
            "192.0.2.01",
            "192.0.2.1:",
            "192.0.2.1:123456",
            "192.0.2.1:+1",
            "192.0.2.1 198.51.100.1",
            "192.0.2.1:_p",
            "[192.0.2.1]",
            "[2001:db8::1",
            "2001:db8::1]",
            "[2001:db8::1]x",
            "[2001:db8::1]:",
            "fe80::1%eth0",
            "\"192.0.2.1\"",
            "for=192.0.2.1",
            "\u{e9}",
            "-",
        ] {
            assert_eq!(x(&[element]), None, "{element}");
            assert_eq!(x(&[&format!("192.0.2.1, {element}, 10.0.0.1")]), None, "{element}");
            assert_eq!(x(&[&format!("{element}, 192.0.2.9")]).as_deref(), Some("192.0.2.9"), "{element}");
        }
        for element in [
            "for=unknown",
            "for=_hidden",
            "for=\"_gazonk\"",
            "for=\"unknown:80\"",
            "for=",
            "for",
            "=192.0.2.1",
            "192.0.2.1",
            "by=192.0.2.1",
            "proto=https",
            "for=192.0.2.1;for=192.0.2.1",
            "for=192.0.2.1;FOR=192.0.2.2",
            "for=2001:db8::1",
            "for=[2001:db8::1]",
            "for=\"2001:db8::1\"",
            "for=192.0.2.1:80",
            "for=\"192.0.2.1:\"",
            "for=\"[2001:db8::1]:_\"",
            "for = 192.0.2.1",
            "for=\"192.0.2.1",
            "for=192.0.2.1\"",
            "for=\"192.0.2.1\"x",
            "for=192.0.2.1;x=\"",
            "for=192.0.2.1;x=\"\\\"",
            "for=192.0.2.1;x=\"a\"b\"",
            "for=192.0.2.1;x=\"a\"\"b\"",
            "for=192.0.2.1;\u{e9}=1",
            "for=192.0.2.1 ;proto=http",
            "for=\"192.0.2.1\\\"",
        ] {
            assert_eq!(forwarded(&[element]), None, "{element}");
            assert_eq!(forwarded(&[&format!("{element}, for=192.0.2.9")]).as_deref(), Some("192.0.2.9"), "{element}");
            assert_eq!(forwarded(&["for=192.0.2.1", element, "for=10.0.0.1"]), None, "{element}");
        }
        assert_eq!((x(&[]), x(&["", " ,"]), forwarded(&[]), forwarded(&[""])), (None, None, None, None));
    }

    #[test]
    fn a_caller_cannot_reach_into_what_its_proxy_appends() {
        for mine in ["\"", "for=\"", "for=\"\\", "for=1.2.3.4;x=\"a", "\\", "\\\"", "for=\"a\\\\\\\"", ";;;", ","] {
            for (appended, wanted) in
                [("for=192.0.2.9", "192.0.2.9"), ("for=\"[2001:db8::1]\";by=\"_p\";host=\"a\"", "2001:db8::1")]
            {
                assert_eq!(forwarded(&[&format!("{mine}, {appended}")]).as_deref(), Some(wanted), "{mine}");
                assert_eq!(forwarded(&[mine, appended]).as_deref(), Some(wanted), "{mine}");
            }
        }
    }

    #[test]
    fn the_work_has_a_bound() {
        for (kind, element) in [(Kind::XForwardedFor, "10.0.0.1"), (Kind::Forwarded, "for=10.0.0.1")] {
            let chain = |count: usize| vec![element; count].join(",");
            assert_eq!(found(kind, &[&chain(ELEMENTS_MAX)]).as_deref(), Some("10.0.0.1"));
            assert_eq!(found(kind, &[&chain(ELEMENTS_MAX + 1)]), None);
            assert_eq!(found(kind, &vec![element; ELEMENTS_MAX + 1]), None);
            assert_eq!(found(kind, &[element, &",".repeat(ELEMENTS_MAX)]), None, "empty elements count too");
        }
    }

    fn spelled(kind: Kind, address: IpAddr, port: Option<u16>) -> String {
        let port = port.map_or(String::new(), |port| format!(":{port}"));
        match (kind, address) {
            (Kind::XForwardedFor, IpAddr::V4(v4)) => format!("{v4}{port}"),
            (Kind::XForwardedFor, IpAddr::V6(v6)) if port.is_empty() => v6.to_string(),
            (Kind::XForwardedFor, IpAddr::V6(v6)) => format!("[{v6}]{port}"),
            (Kind::Forwarded, IpAddr::V4(v4)) => format!("proto=https;for=\"{v4}{port}\""),
            (Kind::Forwarded, IpAddr::V6(v6)) => format!("for=\"[{v6}]{port}\";by=_p"),
        }
    }

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::XForwardedFor), Just(Kind::Forwarded)]
    }

    /// Signs that have a meaning, in any order.
    fn field() -> impl Strategy<Value = Vec<u8>> {
        "[for=\",;\\\\\\[\\]:. 019_]{0,60}".prop_map(Vec::from)
    }

    fn left() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![proptest::collection::vec(any::<u8>(), 0..60), field()]
    }

    proptest! {
        #[test]
        fn nothing_on_the_left_changes_an_answer(
            kind in kinds(),
            left in left(),
            address: IpAddr,
            port: Option<u16>,
            proxies in proptest::collection::vec(prop_oneof![Just("10.1.2.3"), Just("fd00::9")], 0..4),
        ) {
            prop_assume!(!is_trusted(address.to_canonical()));
            let chain = proxies.iter().map(|proxy| spelled(kind, proxy.parse().unwrap(), None));
            let mine: Vec<String> = [spelled(kind, address, port)].into_iter().chain(chain).collect();
            let joined = [&left[..], b",", mine.join(", ").as_bytes()].concat();
            let lines = [&left[..]].into_iter().chain(mine.iter().map(String::as_bytes));
            let lines: Vec<&[u8]> = lines.collect();
            let wanted = Some(address.to_canonical());
            prop_assert_eq!(client(kind, [&joined[..]].into_iter(), is_trusted), wanted);
            prop_assert_eq!(client(kind, lines.into_iter(), is_trusted), wanted);
        }

        #[test]
        fn random_fields_never_panic(kind in kinds(), fields in proptest::collection::vec(field(), 0..4)) {
            let bytes = fields.iter().map(Vec::as_slice);
            let all = client(kind, bytes.clone(), |_| true);
            prop_assert!(all.is_none() || client(kind, bytes, |_| false).is_some());
        }
    }
}
