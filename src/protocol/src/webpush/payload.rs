//! Contents of `Message::payload`, opaque to the machine: encryption headers and raw body, written once at the POST.
//!
//! ```text
//! 0      encoding (0: no body) | which headers follow (0x10 encryption, 0x20 crypto_key, 0x40 encryption_key)
//! 1..    each header that follows: length (2, big-endian) and text
//! ..end  body as received
//! ```

use machine::limits::PAYLOAD_BYTES_MAX;

use super::errno::ApiError;
use super::headers::{Encoding, Encryption, check_encryption, push_clean};
use crate::wire::base64url;
use crate::wire::text::push_json;

/// A payload being written: the headers are there, the body may still come.
#[derive(Debug)]
pub struct Draft {
    bytes: Vec<u8>,
    /// Index of its first byte.
    body: usize,
    /// The verdict on the headers, which counts only when there is a body.
    verdict: Result<(), ApiError>,
}

impl Draft {
    /// Takes the headers; makes room for a body of `body_len` bytes.
    pub fn new(headers: &Encryption<'_>, body_len: usize) -> Draft {
        Draft::with(headers, body_len, push_clean)
    }

    /// As [`Draft::new`], of headers that another node cleaned: cleaning them again could change them.
    pub fn kept(headers: &Encryption<'_>, body_len: usize) -> Draft {
        Draft::with(headers, body_len, push_kept)
    }

    fn with(headers: &Encryption<'_>, body_len: usize, push: PushHeader) -> Draft {
        let mut bytes = Vec::with_capacity(1 + header_room(headers) + body_len);
        bytes.push(0);
        let verdict = push_headers(headers, push, &mut bytes);
        Draft { body: bytes.len(), bytes, verdict }
    }

    pub fn extend(&mut self, body: &[u8]) {
        self.bytes.extend_from_slice(body);
    }

    /// Memory that it holds, in bytes: that of a body of known length from the start.
    pub fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns the bytes of the body so far.
    pub fn body_len(&self) -> usize {
        self.bytes.len() - self.body
    }

    /// The verdict on the encryption headers: without a body they are dropped and nothing is wrong with them.
    pub fn verdict(&self) -> Result<(), ApiError> {
        if self.body_len() == 0 { Ok(()) } else { self.verdict }
    }

    /// The payload. Its size is a rule of its own: headers and body are bounded together.
    pub fn finish(mut self) -> Result<Box<[u8]>, ApiError> {
        if self.body_len() == 0 {
            self.bytes.truncate(1);
            self.bytes[0] = 0;
        }
        if self.bytes.len() > PAYLOAD_BYTES_MAX { Err(ApiError::TooLarge) } else { Ok(self.bytes.into_boxed_slice()) }
    }
}

fn header_room(headers: &Encryption<'_>) -> usize {
    [headers.encryption, headers.crypto_key, headers.encryption_key].iter().flatten().map(|h| h.len() + 2).sum()
}

/// Writes one header as it is kept.
type PushHeader = fn(&[u8], &mut Vec<u8>) -> Result<(), ApiError>;

fn push_kept(value: &[u8], out: &mut Vec<u8>) -> Result<(), ApiError> {
    if !value.iter().all(|byte| (0x20..=0x7e).contains(byte)) {
        return Err(ApiError::Encryption);
    }
    out.extend_from_slice(value);
    Ok(())
}

fn push_headers(headers: &Encryption<'_>, push: PushHeader, bytes: &mut Vec<u8>) -> Result<(), ApiError> {
    let encoding = headers.encoding.and_then(Encoding::named).ok_or(ApiError::Encryption)?;
    let encryption_key = headers.encryption_key.filter(|_| encoding == Encoding::Aesgcm128);
    let mut mark = encoding as u8;
    let mut spans = [const { None }; 3];
    for (at, value) in [headers.encryption, headers.crypto_key, encryption_key].into_iter().enumerate() {
        let Some(value) = value else { continue };
        let length_at = bytes.len();
        bytes.extend_from_slice(&[0, 0]);
        push(value, bytes)?;
        let length = bytes.len() - length_at - 2;
        if length == 0 {
            bytes.truncate(length_at);
            continue;
        }
        let short = u16::try_from(length).map_err(|_| ApiError::Encryption)?;
        bytes[length_at..length_at + 2].copy_from_slice(&short.to_be_bytes());
        mark |= FLAGS[at];
        spans[at] = Some(length_at + 2..bytes.len());
    }
    bytes[0] = mark;
    let [encryption, crypto_key, key] = spans.map(|span| span.map(|span| &bytes[span]));
    check_encryption(encoding, encryption, crypto_key, key)
}

/// A payload, read.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct View<'a> {
    pub encoding: Encoding,
    /// `encryption`, `crypto_key` and `encryption_key`, as far as the sender supplied them.
    pub headers: [Option<&'a str>; 3],
    /// As received.
    pub body: &'a [u8],
}

/// Reads a payload; `None` when it has no body, or is not what [`Draft`] wrote.
pub fn view(payload: &[u8]) -> Option<View<'_>> {
    let (&mark, mut rest) = payload.split_first()?;
    let encoding = match mark & 0x0f {
        1 => Encoding::Aesgcm,
        2 => Encoding::Aes128gcm,
        3 => Encoding::Aesgcm128,
        _ => return None,
    };
    let mut headers = [None; 3];
    for (header, flag) in headers.iter_mut().zip(FLAGS) {
        if mark & flag != 0 {
            let (length, tail) = rest.split_first_chunk::<2>()?;
            let (text, tail) = tail.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
            *header = Some(std::str::from_utf8(text).ok()?);
            rest = tail;
        }
    }
    Some(View { encoding, headers, body: rest })
}

/// Appends `,"data":"...","headers":{...}` as a notification carries it; nothing without a body (PROTOCOL.md 1.6).
pub fn push_content(payload: &[u8], out: &mut Vec<u8>) {
    let Some(view) = view(payload) else { return };
    out.extend_from_slice(br#","data":""#);
    base64url::encode_into(view.body, out);
    out.extend_from_slice(br#"","headers":{"encoding":""#);
    out.extend_from_slice(view.encoding.name().as_bytes());
    out.push(b'"');
    for (name, value) in NAMES.iter().zip(view.headers) {
        if let Some(value) = value {
            out.extend_from_slice(name.as_bytes());
            push_json(value, out);
        }
    }
    out.push(b'}');
}

const FLAGS: [u8; 3] = [0x10, 0x20, 0x40];
const NAMES: [&str; 3] = [r#","encryption":"#, r#","crypto_key":"#, r#","encryption_key":"#];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn content(headers: &Encryption<'_>, body: &[u8]) -> String {
        let mut draft = Draft::new(headers, body.len());
        draft.extend(body);
        assert_eq!(draft.verdict(), Ok(()));
        let mut out = Vec::new();
        push_content(&draft.finish().unwrap(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn content_is_spelled_as_documented() {
        let modern = Encryption { encoding: Some(b"aes128gcm"), ..Encryption::default() };
        assert_eq!(content(&modern, &[0xfb, 0xff]), r#","data":"-_8","headers":{"encoding":"aes128gcm"}"#);
        assert_eq!(content(&modern, b""), "");
        let old = Encryption {
            encoding: Some(b"aesgcm"),
            encryption: Some(br#"keyid="p"; salt="AA==""#),
            crypto_key: Some(b"dh=BB==,p256ecdsa=CC"),
            encryption_key: Some(b"dh=dropped"),
        };
        assert_eq!(
            content(&old, b"x"),
            concat!(
                r#","data":"eA","headers":{"encoding":"aesgcm","encryption":"keyid=p; salt=AA","#,
                r#""crypto_key":"dh=BB,p256ecdsa=CC"}"#
            )
        );
    }

    #[test]
    fn headers_count_only_with_a_body() {
        let mut draft = Draft::new(&Encryption::default(), 0);
        assert_eq!(draft.verdict(), Ok(()));
        draft.extend(b"x");
        assert_eq!(draft.verdict(), Err(ApiError::Encryption));
        let wrong = Encryption { encryption: Some(b"salt=\xff"), encoding: Some(b"aesgcm"), ..Encryption::default() };
        let draft = Draft::new(&wrong, 0);
        assert_eq!(draft.verdict(), Ok(()));
        assert_eq!(&*draft.finish().unwrap(), &[0]);
    }

    #[test]
    fn headers_and_body_are_bounded_together() {
        let long = format!("rs={}", "1".repeat(4000));
        let headers =
            Encryption { encoding: Some(b"aes128gcm"), encryption: Some(long.as_bytes()), ..Encryption::default() };
        let mut draft = Draft::new(&headers, 5000);
        draft.extend(&[0; 5000]);
        assert_eq!(draft.verdict(), Ok(()));
        assert_eq!(draft.finish(), Err(ApiError::TooLarge));
    }

    proptest! {
        #[test]
        fn view_reads_what_a_draft_wrote(
            body in prop::collection::vec(any::<u8>(), 1..300), salt in "[a-z0-9_-]{1,30}", dh in "[a-z0-9_-]{1,90}",
        ) {
            let (encryption, crypto_key) = (format!("salt={salt}"), format!("dh={dh}"));
            let headers = Encryption {
                encoding: Some(b"aesgcm"),
                encryption: Some(encryption.as_bytes()),
                crypto_key: Some(crypto_key.as_bytes()),
                encryption_key: None,
            };
            let mut draft = Draft::new(&headers, body.len());
            draft.extend(&body);
            prop_assert_eq!(draft.verdict(), Ok(()));
            let payload = draft.finish().unwrap();
            let view = view(&payload).unwrap();
            prop_assert_eq!(view.headers, [Some(&*encryption), Some(&*crypto_key), None]);
            prop_assert_eq!(view.body, &body[..]);
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut out = Vec::new();
            push_content(&bytes, &mut out);
            let (sent, encoding) = (Some(&bytes[..]), Some(&b"aesgcm"[..]));
            let headers = Encryption { encoding, encryption: sent, crypto_key: sent, encryption_key: sent };
            let _ = Draft::new(&headers, 0).finish();
        }
    }
}
