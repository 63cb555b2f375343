//! The one alphabet we write: base64url without padding (RFC 4648 section 5). Padding is tolerated when reading.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Appends the text form of `bytes`.
pub fn encode_into(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + encoded_len(bytes.len()), 0);
    let written = URL_SAFE.encode_slice(bytes, &mut out[start..]).unwrap_or(0);
    debug_assert_eq!(start + written, out.len());
}

/// The text form of `bytes`.
pub fn encode(bytes: &[u8]) -> String {
    URL_SAFE.encode(bytes)
}

/// Returns the number of characters that `bytes` bytes take.
pub const fn encoded_len(bytes: usize) -> usize {
    bytes / 3 * 4 + (bytes % 3 * 8).div_ceil(6)
}

/// The bytes of `text`; `None` when a character is not of the alphabet.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE.decode(text).ok()
}

/// Decodes into `buffer`; the number of bytes, or `None` when they are too many or the text is not base64url.
pub fn decode_into(text: &[u8], buffer: &mut [u8]) -> Option<usize> {
    URL_SAFE.decode_slice(text, buffer).ok()
}

/// Decodes a text of exactly `N` bytes. Text with `/` or `+` is read as standard base64, as some senders
/// spell VAPID keys (PROTOCOL.md 2.5).
pub fn decode_sloppy<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let engine = if text.iter().any(|b| matches!(b, b'/' | b'+')) { &STANDARD } else { &URL_SAFE };
    if text.len() > encoded_len(N) + 3 {
        return None;
    }
    engine.decode(text).ok()?.try_into().ok()
}

/// Returns true if every character belongs to the alphabet, with optional `=` at the end; false for no text.
pub fn is_spelled(text: &[u8]) -> bool {
    let body = strip_padding(text);
    !body.is_empty() && body.iter().all(|&b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// `text` without `=` at its end.
pub fn strip_padding(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|&b| b != b'=').map_or(0, |at| at + 1);
    &text[..end]
}

const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn reads_what_it_wrote(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut text = b"before".to_vec();
            encode_into(&bytes, &mut text);
            prop_assert_eq!(text.len(), 6 + encoded_len(bytes.len()));
            prop_assert_eq!(decode(&text[6..]), Some(bytes.clone()));
            let mut out = [0; 256];
            prop_assert_eq!(decode_into(&text[6..], &mut out), Some(bytes.len()));
            prop_assert_eq!(&out[..bytes.len()], &bytes[..]);
        }

        #[test]
        fn never_panics(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&text);
            let _ = decode_into(&text, &mut [0; 16]);
            let _ = decode_sloppy::<65>(&text);
        }
    }

    #[test]
    fn padding_is_tolerated_and_stripped() {
        assert_eq!(decode(b"-_8="), Some(vec![0xfb, 0xff]));
        assert_eq!(decode(b"-_8"), Some(vec![0xfb, 0xff]));
        assert_eq!(decode(b"+/8="), None);
        assert_eq!(decode_sloppy::<2>(b"+/8="), Some([0xfb, 0xff]));
        assert_eq!(strip_padding(b"ab=="), b"ab");
        assert!(is_spelled(b"a-_9=="));
        assert!(!is_spelled(b"=="));
        assert!(!is_spelled(b"a b"));
    }
}
