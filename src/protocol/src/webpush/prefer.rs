//! The `Prefer` header (RFC 7240): a sender's request for a receipt, and the time that a reader of one would wait.

use crate::wire::list;
use crate::wire::text::{read_digits, trim};

/// Preferences of a request. Everything else that it may say is ignored, as RFC 7240 section 2 asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preferences {
    /// `respond-async`: of a POST, a receipt (RFC 8030 section 5.1).
    pub respond_async: bool,
    /// `wait`: of a look at a receipt, the seconds until there must be an answer (RFC 7240 section 4.3).
    pub wait: Option<u32>,
}

impl Preferences {
    /// From every `Prefer` header, each a list. The first of a name counts (RFC 7240 section 2).
    pub fn read<'a>(values: impl Iterator<Item = &'a [u8]>) -> Preferences {
        let mut preferences = Preferences::default();
        for item in values.flat_map(list::elements) {
            let item = trim(list::split(b';', item).next().unwrap_or_default());
            let (name, value) = match item.iter().position(|byte| *byte == b'=') {
                Some(at) => (trim(&item[..at]), trim(&item[at + 1..])),
                None => (item, &[][..]),
            };
            if name.eq_ignore_ascii_case(b"respond-async") {
                preferences.respond_async = true;
            } else if name.eq_ignore_ascii_case(b"wait") && preferences.wait.is_none() {
                let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
                preferences.wait = read_digits(bare).map(|seconds| u32::try_from(seconds).unwrap_or(u32::MAX));
            }
        }
        preferences
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(values: &[&str]) -> (bool, Option<u32>) {
        let preferences = Preferences::read(values.iter().map(|value| value.as_bytes()));
        (preferences.respond_async, preferences.wait)
    }

    #[test]
    fn preferences_are_found_among_others() {
        assert_eq!(read(&[]), (false, None));
        assert_eq!(read(&["respond-async"]), (true, None));
        assert_eq!(read(&["return=minimal; foo=\"bar\" , Respond-Async;x, wait = 10"]), (true, Some(10)));
        assert_eq!(read(&["wait=\"7\"", "wait=9, respond-async"]), (true, Some(7)));
        assert_eq!(read(&["wait=99999999999"]), (false, Some(u32::MAX)));
        assert_eq!(read(&[&format!("wait={}", "9".repeat(40))]), (false, Some(u32::MAX)));
        assert_eq!(read(&["x=\"a, respond-async, b\", ,wait=3,"]), (false, Some(3)), "quotes hold a list together");
        for odd in ["respond-asyncx", "wait", "wait=", "wait=-1", "wait=1.5", "=", ",;,=;", "x=respond-async"] {
            assert_eq!(read(&[odd]), (false, None), "{odd}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = Preferences::read([&bytes[..]].into_iter());
        }
    }
}
