//! Headers of a POST as typed values: TTL, Topic, Urgency and the encryption headers (PROTOCOL.md 2.4).

use machine::message::{Topic, Urgency};

use super::errno::ApiError;
use crate::wire::text::{read_digits, trim, urgency_name};
use crate::wire::{base64url, list};

/// The longest TTL granted: 30 days in seconds. Above it a TTL is lowered.
pub const TTL_MAX: u32 = 30 * 24 * 60 * 60;

/// Delivery options of a message, each rule evaluated and none reported yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// `None`: there is none that can be read. The error: it is negative.
    ttl: Option<Result<u32, ()>>,
    topic: Result<Option<Topic>, ()>,
    urgency: Result<Urgency, ()>,
}

/// A delivery whose every rule holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Seconds, at most [`TTL_MAX`].
    pub ttl: u32,
    pub topic: Option<Topic>,
    /// RFC 8030 section 5.3.
    pub urgency: Urgency,
}

impl Delivery {
    /// From the header values. Only the first `Topic` and `TTL` count; several urgencies are a fault (RFC 8030 5.3).
    pub fn read<'a>(ttl: Option<&[u8]>, topic: Option<&[u8]>, urgencies: impl Iterator<Item = &'a [u8]>) -> Delivery {
        let ttl = ttl.and_then(|text| read_ttl(trim(text)));
        let topic = match topic {
            None => Ok(None),
            Some(text) => read_topic(trim(text)).map(Some).ok_or(()),
        };
        let mut urgency = None;
        for value in urgencies {
            let Some(read) = parse_urgency(trim(value)).filter(|_| urgency.is_none()) else {
                return Delivery { ttl, topic, urgency: Err(()) };
            };
            urgency = Some(read);
        }
        Delivery { ttl, topic, urgency: Ok(urgency.unwrap_or_default()) }
    }

    /// The values, or the first broken rule in the order of PROTOCOL.md 2.3. `encryption` is the verdict on step 10.
    pub fn grant(&self, encryption: Result<(), ApiError>) -> Result<Granted, ApiError> {
        let ttl = self.ttl.ok_or(ApiError::TtlMissing)?;
        encryption?;
        let ttl = ttl.map_err(|()| ApiError::TtlNegative)?;
        let topic = self.topic.map_err(|()| ApiError::Topic)?;
        let urgency = self.urgency.map_err(|()| ApiError::Urgency)?;
        Ok(Granted { ttl, topic, urgency })
    }
}

/// Reads a TTL: any number of digits (RFC 8030 section 5.2), lowered to [`TTL_MAX`]. A negative number is an error of
/// its own.
fn read_ttl(text: &[u8]) -> Option<Result<u32, ()>> {
    if let Some(digits) = text.strip_prefix(b"-") {
        return read_digits(digits).map(|_| Err(()));
    }
    read_digits(text).map(|ttl| Ok(ttl.min(u64::from(TTL_MAX)) as u32))
}

/// A topic: `[0-9A-Za-z-_]` with optional `=` at the end, 32 characters at most in all.
pub fn read_topic(text: &[u8]) -> Option<Topic> {
    if base64url::is_spelled(text) { Topic::new(text) } else { None }
}

/// Reads one of the four words of RFC 8030 section 5.3, in any case (RFC 5234 section 2.3).
pub fn parse_urgency(text: &[u8]) -> Option<Urgency> {
    [Urgency::VeryLow, Urgency::Low, Urgency::Normal, Urgency::High]
        .into_iter()
        .find(|urgency| urgency_name(*urgency).as_bytes().eq_ignore_ascii_case(text))
}

/// Reads the urgency of a message that another server has accepted. An unknown word reads as normal, because the
/// message must not be lost for it.
pub fn read_urgency(text: &[u8]) -> Urgency {
    parse_urgency(text).unwrap_or_default()
}

/// Encryption of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Encoding {
    /// Draft 03, keys in headers.
    Aesgcm = 1,
    /// RFC 8188, keys in the body.
    Aes128gcm = 2,
    /// Draft 01, keys in headers, the sender's in `Encryption-Key`; long out of use.
    Aesgcm128 = 3,
}

impl Encoding {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Aesgcm => "aesgcm",
            Encoding::Aes128gcm => "aes128gcm",
            Encoding::Aesgcm128 => "aesgcm128",
        }
    }

    /// By the value of `Content-Encoding`, a list of one name, any case.
    pub fn named(value: &[u8]) -> Option<Encoding> {
        let mut names = list::elements(value);
        let name = names.next().filter(|_| names.next().is_none())?;
        [Encoding::Aes128gcm, Encoding::Aesgcm, Encoding::Aesgcm128]
            .into_iter()
            .find(|encoding| encoding.name().as_bytes().eq_ignore_ascii_case(name))
    }
}

/// The encryption headers of a request as sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encryption<'a> {
    pub encoding: Option<&'a [u8]>,
    pub encryption: Option<&'a [u8]>,
    pub crypto_key: Option<&'a [u8]>,
    /// `Encryption-Key`, of aesgcm128 only; dropped with the others, as the service of today ignores it.
    pub encryption_key: Option<&'a [u8]>,
}

/// Writes a header as it is kept: without empty elements, without double quotes, and without base64 padding before `,`,
/// `;` or the end. Quotes that hold a `,` or `;` stay. Anything but printable ASCII is a fault.
pub fn push_clean(value: &[u8], out: &mut Vec<u8>) -> Result<(), ApiError> {
    let mut is_first = true;
    for section in list::split(b',', value) {
        let mut separator = b',';
        for part in list::split(b';', section) {
            let item = trim(part);
            if item.is_empty() {
                continue;
            }
            if !is_first {
                out.push(separator);
                // As the sender wrote it.
                out.extend(part.first().filter(|byte| matches!(byte, b' ' | b'\t')).map(|_| b' '));
            }
            (is_first, separator) = (false, b';');
            push_item(item, out)?;
        }
    }
    Ok(())
}

fn push_item(item: &[u8], out: &mut Vec<u8>) -> Result<(), ApiError> {
    if !item.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
        return Err(ApiError::Encryption);
    }
    if item.iter().any(|byte| matches!(byte, b',' | b';')) {
        out.extend_from_slice(item);
        return Ok(());
    }
    let start = out.len();
    out.extend(item.iter().filter(|byte| **byte != b'"'));
    let kept = base64url::strip_padding(&out[start..]).len();
    out.truncate(start + kept);
    if kept == 0 { Err(ApiError::Encryption) } else { Ok(()) }
}

/// The value of `key` in the first section that has it: sections by `,`, items by `;`, each `key=value`
/// (PROTOCOL.md 2.4). A fault when an item has no `=`.
pub fn parameter<'a>(header: &'a [u8], key: &str) -> Result<Option<&'a [u8]>, ApiError> {
    let mut found = None;
    let items = list::elements(header).flat_map(|section| list::split(b';', section)).map(trim);
    for item in items.filter(|item| !item.is_empty()) {
        let equals = item.iter().position(|&b| b == b'=').ok_or(ApiError::Encryption)?;
        if found.is_none() && unquote(&item[..equals]) == key.as_bytes() {
            found = Some(unquote(&item[equals + 1..]));
        }
    }
    Ok(found)
}

fn unquote(text: &[u8]) -> &[u8] {
    let odd = |b: &u8| matches!(b, b' ' | b'\t' | b'"');
    let start = text.iter().position(|b| !odd(b)).unwrap_or(text.len());
    let end = text.iter().rposition(|b| !odd(b)).map_or(start, |at| at + 1);
    &text[start..end]
}

/// Checks that cleaned headers fit their encoding (PROTOCOL.md 2.4).
pub fn check_encryption(
    encoding: Encoding,
    encryption: Option<&[u8]>,
    crypto_key: Option<&[u8]>,
    encryption_key: Option<&[u8]>,
) -> Result<(), ApiError> {
    let look = |header: Option<&[u8]>, key| match header {
        None => Ok(None),
        Some(header) => Ok(Some(parameter(header, key)?.map(base64url::is_spelled))),
    };
    let (salt, dh) = (look(encryption, "salt")?, look(crypto_key, "dh")?);
    let (good, absent) = (Some(Some(true)), |found| !matches!(found, Some(Some(_))));
    let fits = match encoding {
        Encoding::Aes128gcm => absent(salt) && absent(dh),
        Encoding::Aesgcm => salt == good && (crypto_key.is_none() || dh == good),
        // Drafts before 02 named the sender's key in a header of its own; `Crypto-Key` is for VAPID then.
        Encoding::Aesgcm128 => salt == good && absent(dh) && look(encryption_key, "dh")? == good,
    };
    if fits { Ok(()) } else { Err(ApiError::Encryption) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn grant(ttl: Option<&str>, topic: Option<&str>, urgencies: &[&str]) -> Result<Granted, ApiError> {
        let values = urgencies.iter().map(|u| u.as_bytes());
        Delivery::read(ttl.map(str::as_bytes), topic.map(str::as_bytes), values).grant(Ok(()))
    }

    #[test]
    fn ttl_is_required_and_capped() {
        let ttl = |text: Option<&str>| grant(text, None, &[]).map(|granted| granted.ttl);
        assert_eq!(ttl(Some("0")), Ok(0));
        assert_eq!(ttl(Some(" 60 ")), Ok(60));
        assert_eq!(ttl(Some("2592001")), Ok(TTL_MAX));
        assert_eq!(ttl(Some("9223372036854775807")), Ok(TTL_MAX));
        for text in
            ["9223372036854775808", "18446744073709551616", &"9".repeat(30), &format!("{}9999999", "0".repeat(30))]
        {
            assert_eq!(ttl(Some(text)), Ok(TTL_MAX), "{text}");
        }
        for text in ["-1", "-18446744073709551616"] {
            assert_eq!(ttl(Some(text)), Err(ApiError::TtlNegative), "{text}");
        }
        for text in [None, Some(""), Some("x"), Some("1.5"), Some("+1"), Some("-"), Some("1, 1")] {
            assert_eq!(ttl(text), Err(ApiError::TtlMissing), "{text:?}");
        }
    }

    #[test]
    fn topics_follow_their_pattern() {
        for good in ["a", "A-Z_09", "ab==", "abcdefghijklmnopqrstuvwxyz012345"] {
            assert!(grant(Some("1"), Some(good), &[]).unwrap().topic.is_some(), "{good}");
        }
        for bad in ["", "=", "a b", "a=b", "a.b", "\u{e4}", "abcdefghijklmnopqrstuvwxyz0123456"] {
            assert_eq!(grant(Some("1"), Some(bad), &[]), Err(ApiError::Topic), "{bad}");
        }
    }

    #[test]
    fn urgencies_are_read() {
        let urgency = |values: &[&str]| grant(Some("1"), None, values).map(|granted| granted.urgency);
        assert_eq!(urgency(&[]), Ok(Urgency::Normal));
        assert_eq!(urgency(&["very-low"]), Ok(Urgency::VeryLow));
        assert_eq!(urgency(&["low"]), Ok(Urgency::Low));
        assert_eq!(urgency(&["high"]), Ok(Urgency::High));
        assert_eq!(urgency(&["normal"]), Ok(Urgency::Normal));
        assert_eq!(urgency(&["Very-Low"]), Ok(Urgency::VeryLow), "RFC 5234 section 2.3: any case");
        for unknown in ["whatever", "", "very low", "5", "high;q=1"] {
            assert_eq!(urgency(&[unknown]), Err(ApiError::Urgency), "{unknown}");
        }
        assert_eq!(urgency(&["low", "high"]), Err(ApiError::Urgency));
        assert_eq!(urgency(&["low, high"]), Err(ApiError::Urgency));
    }

    #[test]
    fn the_first_broken_rule_is_named() {
        let bad = Delivery::read(None, Some(b"!"), [&b"low"[..], b"low"].into_iter());
        assert_eq!(bad.grant(Err(ApiError::Encryption)), Err(ApiError::TtlMissing));
        let bad = Delivery { ttl: Some(Err(())), ..bad };
        assert_eq!(bad.grant(Err(ApiError::Encryption)), Err(ApiError::Encryption));
        assert_eq!(bad.grant(Ok(())), Err(ApiError::TtlNegative));
        let bad = Delivery { ttl: Some(Ok(1)), ..bad };
        assert_eq!(bad.grant(Ok(())), Err(ApiError::Topic));
        assert_eq!(Delivery { topic: Ok(None), ..bad }.grant(Ok(())), Err(ApiError::Urgency));
    }

    #[test]
    fn headers_are_cleaned() {
        let clean = |text: &str| {
            let mut out = b"=".to_vec();
            push_clean(text.as_bytes(), &mut out).map(|()| String::from_utf8(out.split_off(1)).unwrap())
        };
        assert_eq!(clean(r#" keyid="p";salt="ab==" "#).unwrap(), "keyid=p;salt=ab");
        assert_eq!(clean("dh=ab=,p256ecdsa=cd==").unwrap(), "dh=ab,p256ecdsa=cd");
        assert_eq!(clean("salt=").unwrap(), "salt");
        assert_eq!(clean(", dh=ab , ,\t;p256ecdsa=cd==;,").unwrap(), "dh=ab, p256ecdsa=cd".replace(", ", ","));
        assert_eq!(clean("keyid=\"a,b;c\"; dh=\"ab==\"").unwrap(), "keyid=\"a,b;c\"; dh=ab");
        assert_eq!(clean(" , ;").unwrap(), "");
        assert!(clean("dh=ab,=").is_err());
        assert!(clean("a=\u{e4}").is_err());
        assert!(clean("a=\tb").is_err());
    }

    #[test]
    fn encodings_need_their_parameters() {
        let check_key = |encoding, encryption: Option<&str>, crypto_key: Option<&str>, key: Option<&str>| {
            let [encryption, crypto_key, key] = [encryption, crypto_key, key].map(|h| h.map(str::as_bytes));
            check_encryption(encoding, encryption, crypto_key, key).is_ok()
        };
        let check = |encoding, encryption, crypto_key| check_key(encoding, encryption, crypto_key, None);
        use Encoding::{Aes128gcm, Aesgcm, Aesgcm128};
        assert!(check(Aes128gcm, None, None));
        assert!(check(Aes128gcm, Some("rs=4096"), Some("p256ecdsa=AA")));
        assert!(!check(Aes128gcm, Some("salt=AA"), None));
        assert!(!check(Aes128gcm, None, Some("keyid=p; dh=AA")));
        assert!(!check(Aes128gcm, None, Some("nonsense")));
        assert!(check(Aesgcm, Some("keyid=p;salt=AA-_"), Some("keyid=p;dh=BB,p256ecdsa=CC")));
        assert!(check(Aesgcm, Some("keyid=p;salt=AA-_"), Some("p256ecdsa=CC, keyid=p;dh=BB")));
        assert!(check(Aesgcm, Some("salt=AA"), None));
        assert!(!check(Aesgcm, Some("salt=A+"), None));
        assert!(check(Aesgcm, Some("salt=AA;,"), Some("dh=BB,p256ecdsa=CC, ,")));
        assert!(!check(Aesgcm, Some("salt=AA"), Some("keyid=\"x,dh=BB\"")));
        assert!(!check(Aesgcm, Some("rs=1"), None));
        assert!(!check(Aesgcm, None, Some("dh=BB")));
        assert!(!check(Aesgcm, Some("salt=AA"), Some("p256ecdsa=BB")));
        assert!(!check(Aesgcm, Some("salt=AA"), Some("dh")));
        assert!(check_key(Aesgcm128, Some("salt=AA"), None, Some("keyid=p;dh=BB")));
        assert!(check_key(Aesgcm128, Some("salt=AA;rs=24"), Some("p256ecdsa=CC"), Some("dh=BB")));
        assert!(!check_key(Aesgcm128, Some("salt=AA"), None, None));
        assert!(!check_key(Aesgcm128, Some("salt=AA"), None, Some("dh=B+")));
        assert!(!check_key(Aesgcm128, Some("salt=AA"), None, Some("keyid=p")));
        assert!(!check_key(Aesgcm128, Some("salt=AA"), Some("dh=BB"), Some("dh=BB")));
        assert!(!check_key(Aesgcm128, Some("rs=24"), None, Some("dh=BB")));
        assert!(!check_key(Aesgcm128, None, None, Some("dh=BB")));
        assert_eq!(Encoding::named(b"AES128GCM"), Some(Aes128gcm));
        assert_eq!(Encoding::named(b", aes128gcm ,"), Some(Aes128gcm));
        assert_eq!(Encoding::named(b"aes128gcm, aes128gcm"), None);
        assert_eq!(Encoding::named(b"gzip"), None);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Delivery::read(Some(&bytes), Some(&bytes), [&bytes[..]].into_iter()).grant(Ok(()));
            let mut out = Vec::new();
            let _ = push_clean(&bytes, &mut out);
            let _ = parameter(&bytes, "dh");
        }
    }
}
