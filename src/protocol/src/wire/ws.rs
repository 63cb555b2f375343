//! WebSocket frames (RFC 6455 section 5) over tungstenite's frame-header codec.

use std::io::Cursor;

use tungstenite::protocol::frame::FrameHeader;
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// The longest message and frame accepted, in bytes (PROTOCOL.md 1.2). Beyond it: close 1009.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// Rule that a peer's frame breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// RFC 6455 forbids it: unmasked, reserved bits or opcodes, bad control frames, bad order. Close 1002.
    Protocol,
    /// A binary frame. Close 1003.
    Binary,
    /// Beyond [`MESSAGE_BYTES_MAX`]. Close 1009.
    TooBig,
    /// A close reason that is not UTF-8. Close 1007.
    BadText,
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The start, or the whole, of a text message.
    Text,
    /// More of a text message.
    Continuation,
    /// Answer it.
    Ping,
    /// A reply to a ping of this server, or unsolicited.
    Pong,
    Close,
}

/// A whole frame at the front of some bytes, unmasked in place.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'b> {
    pub kind: Kind,
    /// It ends its message.
    pub is_final: bool,
    /// Unmasked.
    pub payload: &'b mut [u8],
    /// Bytes of the frame, head included.
    pub len: usize,
}

/// Reads a client's frame at the front of `bytes` and unmasks it in place. `None` when it is not whole yet (nothing is
/// touched then). `partial` is the number of bytes of a fragmented message that are already there, `None` when none is
/// open.
pub fn read_frame(bytes: &mut [u8], partial: Option<usize>) -> Result<Option<Frame<'_>>, FrameError> {
    let Some(head) = read_head(bytes, partial)? else { return Ok(None) };
    let Some(body) = bytes.get_mut(head.head_len..head.head_len + head.length) else { return Ok(None) };
    unmask(body, head.mask);
    Ok(Some(Frame { kind: head.kind, is_final: head.is_final, payload: body, len: head.head_len + head.length }))
}

/// Returns true if a whole frame of this kind and no fault is at the front; touches nothing.
pub fn is_next(bytes: &[u8], kind: Kind) -> bool {
    // Control frames are the same inside and outside of a fragmented message.
    let whole = |head: &RawHead| head.head_len + head.length <= bytes.len();
    matches!(read_head(bytes, None), Ok(Some(head)) if head.kind == kind && whole(&head))
}

struct RawHead {
    kind: Kind,
    is_final: bool,
    mask: [u8; 4],
    head_len: usize,
    length: usize,
}

fn read_head(bytes: &[u8], partial: Option<usize>) -> Result<Option<RawHead>, FrameError> {
    let mut cursor = Cursor::new(bytes);
    let Some((head, length)) = FrameHeader::parse(&mut cursor).map_err(|_| FrameError::Protocol)? else {
        return Ok(None);
    };
    let Some(mask) = head.mask else { return Err(FrameError::Protocol) };
    if head.rsv1 || head.rsv2 || head.rsv3 {
        return Err(FrameError::Protocol);
    }
    let kind = match (head.opcode, partial) {
        (OpCode::Control(control), _) => {
            if !head.is_final || length > 125 {
                return Err(FrameError::Protocol);
            }
            match control {
                Control::Ping => Kind::Ping,
                Control::Pong => Kind::Pong,
                Control::Close => Kind::Close,
                Control::Reserved(_) => return Err(FrameError::Protocol),
            }
        }
        (OpCode::Data(Data::Text), None) => Kind::Text,
        (OpCode::Data(Data::Continue), Some(_)) => Kind::Continuation,
        (OpCode::Data(Data::Binary), None) => return Err(FrameError::Binary),
        (OpCode::Data(_), _) => return Err(FrameError::Protocol),
    };
    // A control frame is no part of the message that it interrupts, and has its own bound.
    let is_data = matches!(kind, Kind::Text | Kind::Continuation);
    if is_data && length > (MESSAGE_BYTES_MAX - partial.unwrap_or(0).min(MESSAGE_BYTES_MAX)) as u64 {
        return Err(FrameError::TooBig);
    }
    let head_len = cursor.position() as usize;
    Ok(Some(RawHead { kind, is_final: head.is_final, mask, head_len, length: length as usize }))
}

/// Applies a mask (RFC 6455 section 5.3), eight bytes at a time.
pub fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}

/// The code of a peer's close frame, checked (RFC 6455 sections 5.5.1 and 7.4); `None` when it gave none.
pub fn close_code(payload: &[u8]) -> Result<Option<u16>, FrameError> {
    match payload {
        [] => Ok(None),
        [_] => Err(FrameError::Protocol),
        [high, low, reason @ ..] => {
            let code = u16::from_be_bytes([*high, *low]);
            let allowed = matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999);
            if !allowed {
                return Err(FrameError::Protocol);
            }
            std::str::from_utf8(reason).map_err(|_| FrameError::BadText)?;
            Ok(Some(code))
        }
    }
}

/// Opcode that a server or a client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A whole text message.
    Text = 0x81,
    Close = 0x88,
    Ping = 0x89,
    Pong = 0x8a,
}

/// Appends an unmasked frame whose payload `write` appends.
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[opcode as u8, 0, 0, 0]);
    let body = start + 4;
    write(out);
    let length = out.len() - body;
    if length <= 125 {
        out.copy_within(body.., start + 2);
        out.truncate(start + 2 + length);
        out[start + 1] = length as u8;
    } else if let Ok(short) = u16::try_from(length) {
        out[start + 1] = 126;
        out[start + 2..body].copy_from_slice(&short.to_be_bytes());
    } else {
        out.resize(out.len() + 6, 0);
        out.copy_within(body..body + length, start + 10);
        out[start + 1] = 127;
        out[start + 2..start + 10].copy_from_slice(&(length as u64).to_be_bytes());
    }
}

/// Appends a close frame. The reason is cut to what a control frame holds.
pub fn write_close(out: &mut Vec<u8>, code: Option<u16>, reason: &str) {
    write_frame(out, Opcode::Close, |out| {
        if let Some(code) = code {
            out.extend_from_slice(&code.to_be_bytes());
            out.extend_from_slice(reason.as_bytes().get(..123).unwrap_or(reason.as_bytes()));
        }
    });
}

/// Appends a client's masked frame; for the probe and for tests.
pub fn write_masked(out: &mut Vec<u8>, opcode: Opcode, mask: [u8; 4], payload: &[u8]) {
    let head = FrameHeader { opcode: OpCode::from(opcode as u8 & 0x0f), mask: Some(mask), ..FrameHeader::default() };
    // Writing to a vector does not fail; were it to, the peer would see a broken frame.
    let _ = head.format(payload.len() as u64, out);
    let start = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[start..], mask);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_masked(&mut out, Opcode::Text, [1, 2, 3, 4], payload);
        out[0] = first;
        out
    }

    #[test]
    fn frames_that_break_a_rule() {
        let none = None;
        let cases: &[(&[u8], Option<usize>, FrameError)] = &[
            (&[0x81, 0x02, b'{', b'}'], none, FrameError::Protocol),
            (&masked(0xc1, b"{}"), none, FrameError::Protocol),
            (&masked(0x83, b"{}"), none, FrameError::Protocol),
            (&masked(0x8b, b"{}"), none, FrameError::Protocol),
            (&masked(0x82, b"{}"), none, FrameError::Binary),
            (&masked(0x02, b"{}"), none, FrameError::Binary),
            (&masked(0x80, b"{}"), none, FrameError::Protocol),
            (&masked(0x81, b"{}"), Some(3), FrameError::Protocol),
            (&masked(0x09, b"x"), none, FrameError::Protocol),
            (&masked(0x89, &[0; 126]), none, FrameError::Protocol),
            (&masked(0x80, b"12345"), Some(MESSAGE_BYTES_MAX - 4), FrameError::TooBig),
            (&[0x81, 0xff, 0, 0, 0, 0, 0, 1, 0, 1, 9, 9, 9, 9], none, FrameError::TooBig),
            (&[0x81, 0xff, 0xff, 0, 0, 0, 0, 1, 0, 1, 9, 9, 9, 9], none, FrameError::TooBig),
        ];
        for (bytes, partial, fault) in cases {
            let mut bytes = bytes.to_vec();
            assert_eq!(read_frame(&mut bytes, *partial).err(), Some(*fault), "{:02x?}", &bytes[..2]);
        }
    }

    #[test]
    fn control_frames_do_not_count_to_the_message_they_interrupt() {
        for (first, kind) in [(0x88, Kind::Close), (0x89, Kind::Ping), (0x8a, Kind::Pong)] {
            let mut bytes = masked(first, &[7; 125]);
            let frame = read_frame(&mut bytes, Some(MESSAGE_BYTES_MAX)).unwrap().unwrap();
            assert_eq!((frame.kind, frame.payload.len()), (kind, 125));
        }
        let mut last = masked(0x80, b"");
        assert!(read_frame(&mut last, Some(MESSAGE_BYTES_MAX)).unwrap().is_some());
    }

    #[test]
    fn close_codes_are_checked() {
        assert_eq!(close_code(b""), Ok(None));
        assert_eq!(close_code(&[3]), Err(FrameError::Protocol));
        assert_eq!(close_code(&[0x03, 0xe8, b'o', b'k']), Ok(Some(1000)));
        assert_eq!(close_code(&[0x03, 0xe8, 0xff]), Err(FrameError::BadText));
        for forbidden in [0u16, 999, 1004, 1005, 1006, 1015, 2000, 2999, 5000] {
            assert_eq!(close_code(&forbidden.to_be_bytes()), Err(FrameError::Protocol), "{forbidden}");
        }
    }

    proptest! {
        #[test]
        fn masked_frames_are_read_back(
            payload in prop::collection::vec(any::<u8>(), 0..400), mask in any::<[u8; 4]>(),
        ) {
            let mut bytes = Vec::new();
            write_masked(&mut bytes, Opcode::Text, mask, &payload);
            bytes.extend_from_slice(b"next");
            let whole = bytes.len() - 4;
            for cut in [0, 1, 2, 5, whole.saturating_sub(1)] {
                let before = bytes[..cut.min(whole - 1)].to_vec();
                let mut early = before.clone();
                prop_assert_eq!(read_frame(&mut early, None), Ok(None));
                prop_assert_eq!(early, before);
            }
            let frame = read_frame(&mut bytes, None).unwrap().unwrap();
            prop_assert_eq!((frame.kind, frame.is_final, frame.len), (Kind::Text, true, whole));
            prop_assert_eq!(&frame.payload[..], &payload[..]);
        }

        #[test]
        fn unmasked_frames_have_the_right_head(length in prop_oneof![0usize..300, 65_000usize..66_000]) {
            let mut out = vec![9];
            write_frame(&mut out, Opcode::Text, |out| out.extend((0..length).map(|n| n as u8)));
            let mut cursor = Cursor::new(&out[1..]);
            let (head, said) = FrameHeader::parse(&mut cursor).unwrap().unwrap();
            prop_assert_eq!(said, length as u64);
            prop_assert!(head.is_final && head.mask.is_none());
            let body = &out[1 + cursor.position() as usize..];
            prop_assert_eq!(body.len(), length);
            prop_assert!(body.iter().enumerate().all(|(n, &b)| b == n as u8));
        }

        #[test]
        fn never_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..80), partial in prop::option::of(0usize..70_000),
        ) {
            let mut bytes = bytes;
            let _ = is_next(&bytes, Kind::Ping);
            let _ = close_code(&bytes);
            let _ = read_frame(&mut bytes, partial);
        }
    }
}
