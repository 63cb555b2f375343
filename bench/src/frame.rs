//! WebSocket frames as a client sends and reads them (RFC 6455 section 5). The server's codec is not used on purpose:
//! two independent readings of the protocol have to agree.

/// Text frame.
pub const TEXT: u8 = 1;
/// Binary frame.
pub const BINARY: u8 = 2;
/// Close frame.
pub const CLOSE: u8 = 8;
/// Ping frame.
pub const PING: u8 = 9;
/// Pong frame.
pub const PONG: u8 = 10;

/// Any mask will do for a client that no browser script steers.
const MASK: [u8; 4] = [0x5a, 0xc3, 0x17, 0x9e];

/// Appends one final, masked frame.
pub fn push(out: &mut Vec<u8>, opcode: u8, payload: &[u8]) {
    push_header(out, 0x80 | opcode, payload.len(), 0x80);
    out.extend_from_slice(&MASK);
    let start = out.len();
    out.extend_from_slice(payload);
    for four in out[start..].chunks_mut(4) {
        for (byte, mask) in four.iter_mut().zip(MASK) {
            *byte ^= mask;
        }
    }
}

/// Appends a frame header only: the first byte as given, the length, and `0x80` in `masked` for the mask bit.
pub fn push_header(out: &mut Vec<u8>, first: u8, len: usize, masked: u8) {
    out.push(first);
    if len < 126 {
        out.push(masked | len as u8);
    } else if len < 1 << 16 {
        out.push(masked | 126);
        out.extend_from_slice(&(len as u16).to_be_bytes());
    } else {
        out.push(masked | 127);
        out.extend_from_slice(&(len as u64).to_be_bytes());
    }
}

/// One frame at the front of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub opcode: u8,
    /// Offset of the payload.
    pub start: usize,
    /// Offset of the end of the payload and of the frame.
    pub end: usize,
}

/// The frame at the front of `bytes`; `None` when it is not there yet. A server frame is final and not masked:
/// anything else is an error.
pub fn parse(bytes: &[u8]) -> Result<Option<Frame>, String> {
    let (Some(&first), Some(&second)) = (bytes.first(), bytes.get(1)) else { return Ok(None) };
    if first & 0xf0 != 0x80 || second & 0x80 != 0 {
        return Err(format!("a server frame starts with {first:#04x} {second:#04x}"));
    }
    let (start, len): (usize, usize) = match second {
        126 => match bytes.get(2..4) {
            Some(&[a, b]) => (4, usize::from(u16::from_be_bytes([a, b]))),
            _ => return Ok(None),
        },
        127 => match bytes.get(2..10).and_then(|long| <[u8; 8]>::try_from(long).ok()) {
            Some(long) => (10, u64::from_be_bytes(long) as usize),
            None => return Ok(None),
        },
        short => (2, usize::from(short)),
    };
    let end = start.saturating_add(len);
    Ok((bytes.len() >= end).then_some(Frame { opcode: first & 15, start, end }))
}

/// The code of a close frame's payload; 1005 when it has none (RFC 6455 section 7.1.5).
pub fn close_code(payload: &[u8]) -> u16 {
    payload.first_chunk::<2>().map_or(1005, |code| u16::from_be_bytes(*code))
}

/// The upgrade request of a user agent.
pub fn upgrade_request(host: &str) -> Vec<u8> {
    format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\r\n"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_form_is_read_once_it_is_whole() {
        for len in [0usize, 1, 125, 126, 65_535, 65_536] {
            let mut bytes = Vec::new();
            push_header(&mut bytes, 0x81, len, 0);
            let start = bytes.len();
            bytes.resize(start + len, b'x');
            for cut in [0, 1, start - 1, bytes.len() - 1] {
                assert_eq!(parse(&bytes[..cut.min(bytes.len() - 1)]), Ok(None));
            }
            assert_eq!(parse(&bytes), Ok(Some(Frame { opcode: TEXT, start, end: start + len })));
        }
    }

    #[test]
    fn masked_and_fragmented_server_frames_are_errors() {
        assert!(parse(&[0x81, 0x81]).is_err());
        assert!(parse(&[0x01, 0x01]).is_err());
    }

    #[test]
    fn what_is_pushed_is_masked() {
        let mut bytes = Vec::new();
        push(&mut bytes, TEXT, b"hello");
        assert_eq!(&bytes[..2], &[0x81, 0x85]);
        let clear: Vec<u8> = bytes[6..].iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        assert_eq!(clear, b"hello");
    }
}
