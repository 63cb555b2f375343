//! Percent-encoding of paths (RFC 3986 section 2.1).

use std::borrow::Cow;

/// Decodes the triplets of unreserved characters, once (RFC 3986 section 6.2.2.2): `%2D` is a dash in every URL. All
/// others stay, `%2F` and `%25` among them, because they may mean something else than their character.
pub fn decode_unreserved(text: &str) -> Cow<'_, str> {
    let Some(first) = (0..text.len()).find(|at| unreserved(text.as_bytes(), *at).is_some()) else {
        return Cow::Borrowed(text);
    };
    let mut decoded = String::with_capacity(text.len());
    let (mut copied, mut at) = (0, first);
    while at < text.len() {
        match unreserved(text.as_bytes(), at) {
            Some(character) => {
                decoded.push_str(&text[copied..at]);
                decoded.push(character);
                at += 3;
                copied = at;
            }
            None => at += 1,
        }
    }
    decoded.push_str(&text[copied..]);
    Cow::Owned(decoded)
}

/// Returns the unreserved character (RFC 3986 section 2.3) whose triplet stands there.
fn unreserved(text: &[u8], at: usize) -> Option<char> {
    let [b'%', high, low] = text.get(at..at + 3)? else { return None };
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let byte = (digit(high)? << 4 | digit(low)?) as u8;
    (byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)).then_some(char::from(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unreserved_triplets_are_decoded_once_and_others_stay() {
        for (text, decoded) in [
            ("/wpush/v3/a%2Db%5f%41%7e%2E", "/wpush/v3/a-b_A~."),
            ("/a%2Fb%2fc", "/a%2Fb%2fc"),
            ("/%252D%2541", "/%252D%2541"),
            ("/%%2D%2", "/%-%2"),
            ("/%", "/%"),
            ("/%2", "/%2"),
            ("/%zz%3D%00%ff", "/%zz%3D%00%ff"),
            ("/%2", "/%2"),
        ] {
            assert_eq!(decode_unreserved(text), decoded, "{text}");
        }
        assert!(matches!(decode_unreserved("/a%2Fb"), Cow::Borrowed(_)), "nothing to decode is not copied");
    }

    proptest! {
        #[test]
        fn nothing_panics_and_what_needs_no_escape_comes_back(text in "\\PC{0,40}", path in "[A-Za-z0-9._~-]{0,20}") {
            let _ = decode_unreserved(&text);
            let encoded: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
            prop_assert_eq!(decode_unreserved(&encoded), path);
        }
    }
}
