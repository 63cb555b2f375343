//! Spelling of numbers, UUIDs and JSON strings straight into an output buffer, without intermediate allocation.

use machine::message::Urgency;
use uuid::Uuid;

/// Appends `value` in decimal.
pub fn push_u64(mut value: u64, out: &mut Vec<u8>) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Returns the word of RFC 8030 section 5.3 for an urgency.
pub fn urgency_name(urgency: Urgency) -> &'static str {
    match urgency {
        Urgency::VeryLow => "very-low",
        Urgency::Low => "low",
        Urgency::Normal => "normal",
        Urgency::High => "high",
    }
}

/// Reads exactly a word of [`urgency_name`].
pub fn read_urgency_name(text: &str) -> Option<Urgency> {
    (0..).map_while(Urgency::of).find(|urgency| urgency_name(*urgency) == text)
}

/// Appends 32 lower-case hex digits: how a UAID is spelled on the WebSocket (PROTOCOL.md, identifiers).
pub fn push_simple(id: &[u8; 16], out: &mut Vec<u8>) {
    let mut text = [0; 32];
    Uuid::from_bytes_ref(id).simple().encode_lower(&mut text);
    out.extend_from_slice(&text);
}

/// Appends the lower-case dashed form: how a channel is spelled (PROTOCOL.md, identifiers).
pub fn push_dashed(id: &[u8; 16], out: &mut Vec<u8>) {
    let mut text = [0; 36];
    Uuid::from_bytes_ref(id).hyphenated().encode_lower(&mut text);
    out.extend_from_slice(&text);
}

/// The 16 bytes of a UUID in any spelling the `uuid` crate reads: dashed, undashed, upper case, braces, urn.
pub fn parse_uuid(text: &[u8]) -> Option<[u8; 16]> {
    Uuid::try_parse_ascii(text).ok().map(Uuid::into_bytes)
}

/// The 16 bytes of a UUID that is spelled lower-case and dashed; `None` for any other spelling.
pub fn parse_dashed(text: &[u8]) -> Option<[u8; 16]> {
    let id = parse_uuid(text)?;
    let mut canonical = [0; 36];
    Uuid::from_bytes_ref(&id).hyphenated().encode_lower(&mut canonical);
    (canonical[..] == *text).then_some(id)
}

/// Appends `text` as a JSON string with its quotes.
pub fn push_json(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for &byte in text.as_bytes() {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            0..=0x1f => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

/// Returns the first place of `byte`. Looks at 32 bytes at a time without branching inside, which compiles to vector
/// compares.
pub fn position(byte: u8, text: &[u8]) -> Option<usize> {
    let (blocks, rest) = text.as_chunks::<32>();
    let holds = |block: &[u8; 32]| block.iter().fold(false, |found, &b| found | (b == byte));
    let found = blocks.iter().position(holds);
    let start = found.unwrap_or(blocks.len()) * 32;
    let tail = if found.is_some() { text.get(start..)? } else { rest };
    tail.iter().position(|&b| b == byte).map(|at| start + at)
}

/// `text` without blanks and tabs at both ends.
pub fn trim(text: &[u8]) -> &[u8] {
    let blank = |b: &u8| matches!(b, b' ' | b'\t');
    let start = text.iter().position(|b| !blank(b)).unwrap_or(text.len());
    let end = text.iter().rposition(|b| !blank(b)).map_or(start, |at| at + 1);
    &text[start..end]
}

/// The decimal number that `text` is, digits only; `None` for anything else or beyond 64 bits.
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |sum, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// The decimal number that `text` is, any number of digits and nothing else (`1*DIGIT` of RFC 5234). Beyond 64 bits it
/// is the largest.
pub fn read_digits(text: &[u8]) -> Option<u64> {
    let is_number = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| parse_u64(text).unwrap_or(u64::MAX))
}

const HEX: &[u8; 16] = b"0123456789abcdef";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(value in any::<u64>()) {
            let mut out = Vec::new();
            push_u64(value, &mut out);
            prop_assert_eq!(std::str::from_utf8(&out).unwrap(), value.to_string());
            prop_assert_eq!(parse_u64(&out), Some(value));
        }

        #[test]
        fn uuids_round_trip(id in any::<[u8; 16]>()) {
            let (mut dashed, mut simple) = (Vec::new(), Vec::new());
            push_dashed(&id, &mut dashed);
            push_simple(&id, &mut simple);
            prop_assert_eq!(parse_dashed(&dashed), Some(id));
            prop_assert_eq!(parse_uuid(&simple), Some(id));
            prop_assert_eq!(parse_dashed(&simple), None);
        }

        #[test]
        fn json_strings_are_read_back(text in any::<String>()) {
            let mut out = Vec::new();
            push_json(&text, &mut out);
            prop_assert_eq!(serde_json::from_slice::<String>(&out).unwrap(), text);
        }

        #[test]
        fn positions_are_first(text in prop::collection::vec(0u8..4, 0..200)) {
            prop_assert_eq!(position(3, &text), text.iter().position(|&b| b == 3));
            prop_assert_eq!(position(9, &text), None);
        }

        #[test]
        fn parsers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = (parse_uuid(&bytes), parse_dashed(&bytes), parse_u64(&bytes), trim(&bytes));
        }
    }

    #[test]
    fn upper_case_is_no_channel_spelling() {
        assert!(parse_uuid(b"{DEADBEEF-0000-4000-8000-000000000000}").is_some());
        assert!(parse_dashed(b"DEADBEEF-0000-4000-8000-000000000000").is_none());
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(read_digits(b"18446744073709551616"), Some(u64::MAX));
        assert_eq!((read_digits(b"0007"), read_digits(b""), read_digits(b"+7")), (Some(7), None, None));
        assert_eq!(trim(b" \t a b \t"), b"a b");
    }
}
