//! The first bytes of a connection: TLS, an HTTP request that missed the scheme, or neither.

use crate::record::{ALERT, Alert, CIPHERTEXT_MAX, HANDSHAKE, Header};

/// Kind of a connection by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum First {
    /// More bytes are needed.
    Unknown,
    Tls,
    /// A plain HTTP request.
    Http,
    Other,
}

impl First {
    /// Classifies the first bytes of a connection. [`First::BYTES_MAX`] of them are never [`First::Unknown`].
    pub fn of(bytes: &[u8]) -> First {
        first(bytes)
    }

    /// Bytes that suffice to classify a connection.
    pub const BYTES_MAX: usize = METHOD_MAX + 1;

    /// Last bytes for a connection that is not TLS: one answer 400 that names `https://`, or alert 50. Empty for
    /// others.
    pub fn last_words(self) -> &'static [u8] {
        match self {
            First::Http => ANSWER.as_bytes(),
            First::Other => &[ALERT, 3, 3, 0, 2, 2, Alert::DecodeError as u8],
            First::Unknown | First::Tls => &[],
        }
    }
}

/// Bytes of the longest method that is recognized.
const METHOD_MAX: usize = 16;

/// Answer to an HTTP request on a TLS port.
const ANSWER: &str = concat!(
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 66\r\nConnection: close\r\n\r\n",
    "this port speaks TLS; begin the URL with https:// and not http://\n"
);

fn first(bytes: &[u8]) -> First {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        Some(b' ') if (3..=METHOD_MAX).contains(&method) => return First::Http,
        None if method <= METHOD_MAX && method > 0 => return First::Unknown,
        _ => {}
    }
    if bytes.first().is_some_and(|kind| *kind != HANDSHAKE) {
        return First::Other;
    }
    // The major version is 3 in every version of TLS (RFC 8446 section 5.1).
    match Header::read(bytes) {
        None => First::Unknown,
        Some(header) if header.len > CIPHERTEXT_MAX || bytes[1] != 3 => First::Other,
        Some(_) => First::Tls,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_are_told_apart() {
        let kinds: [(&[u8], First); 13] = [
            (b"", First::Unknown),
            (b"G", First::Unknown),
            (b"GET", First::Unknown),
            (b"GET / HTTP/1.1\r\n", First::Http),
            (b"PROPFIND ", First::Http),
            (b"GO ", First::Other),
            (b"Get / ", First::Other),
            (b"ABCDEFGHIJKLMNOPQ", First::Other),
            (b"\x16\x03", First::Unknown),
            (b"\x16\x03\x01\x02\x00", First::Tls),
            (b"\x16\x03\x01\x41\x01", First::Other),
            (b"\x16\x02\x01\x02\x00", First::Other),
            (b"\x80", First::Other),
        ];
        for (bytes, kind) in kinds {
            assert_eq!(first(bytes), kind, "{bytes:?}");
        }
    }

    #[test]
    fn the_answer_states_its_length() {
        let (head, body) = ANSWER.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())) && body.contains("https://"));
    }
}
