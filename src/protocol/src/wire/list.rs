//! Fields whose value is a list (RFC 9110 section 5.6.1): the one splitter for all of them, and for the parameters
//! inside their elements.
//!
//! A separator inside a quoted string separates nothing. Empty elements are passed over, because senders and proxies
//! leave some behind when they build a list from parts.

use super::text::trim;

/// Returns the elements of a list without the blanks around them. Empty ones are left out.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split(b',', value).map(trim).filter(|element| !element.is_empty())
}

/// Splits a text at each `separator` that is not in a quoted string. The parts keep their blanks, and may be empty.
///
/// A quote that never closes is an ordinary character.
pub fn split(separator: u8, text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        let at = first_unquoted(separator, text);
        rest = at.map(|at| &text[at + 1..]);
        Some(at.map_or(text, |at| &text[..at]))
    })
}

fn first_unquoted(separator: u8, text: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        if text[at] == separator {
            return Some(at);
        }
        if text[at] == b'"' {
            at += quoted_len(&text[at..]).unwrap_or(1);
        } else {
            at += 1;
        }
    }
    None
}

/// Returns the length of the quoted string at the front, with both quotes (RFC 9110 section 5.6.4).
fn quoted_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// Returns the position of the last `separator` outside of quoted strings, read from the end: no byte on the left, be
/// it a quote that never closes, changes where the last element begins. In a quoted string, a backslash stands before
/// each quote that does not end it.
pub fn last_unquoted(separator: u8, text: &[u8]) -> Option<usize> {
    let mut in_quotes = false;
    for (at, &byte) in text.iter().enumerate().rev() {
        let escapes = || text[..at].iter().rev().take_while(|b| **b == b'\\').count();
        if byte == b'"' && (!in_quotes || escapes().is_multiple_of(2)) {
            in_quotes = !in_quotes;
        } else if byte == separator && !in_quotes {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn elements_are_trimmed_and_empty_ones_left_out() {
        for (value, wanted) in [
            ("", &[][..]),
            (" ,\t,, ", &[]),
            ("a", &["a"]),
            ("a,b,", &["a", "b"]),
            (",a, ,\tb c\t,", &["a", "b c"]),
            (r#"a="x,y";b, c"#, &[r#"a="x,y";b"#, "c"]),
            (r#""\",", b"#, &[r#""\",""#, "b"]),
            (r#"a="x, b"#, &[r#"a="x"#, "b"]),
            (r#"a="x\", b"#, &[r#"a="x\""#, "b"]),
        ] {
            let found: Vec<&[u8]> = elements(value.as_bytes()).collect();
            let wanted: Vec<&[u8]> = wanted.iter().map(|text| text.as_bytes()).collect();
            assert_eq!(found, wanted, "{value}");
        }
    }

    proptest! {
        #[test]
        fn parts_are_the_text_again(text in "[a,;\"\\\\ ]{0,40}") {
            let parts: Vec<&[u8]> = split(b',', text.as_bytes()).collect();
            prop_assert_eq!(parts.join(&b','), text.as_bytes());
        }

        /// Where every quote closes, both directions see the same elements.
        #[test]
        fn the_last_separator_is_that_before_the_last_part(
            parts in prop::collection::vec("[a; ]{0,3}(\"[a,;]{0,3}\")?", 1..6),
        ) {
            let text = parts.join(",");
            let last = split(b',', text.as_bytes()).last().unwrap();
            let at = last_unquoted(b',', text.as_bytes()).map_or(0, |at| at + 1);
            prop_assert_eq!(&text.as_bytes()[at..], last);
        }
    }
}
