//! Bodies of HTTP/1.1 requests, read as they come: by length or chunk by chunk (RFC 9112 section 7.1).

use super::http1::{Framing, Malformed};

/// The longest chunk-size or trailer line accepted, its CRLF included. Beyond it: 400 and 431.
pub const LINE_BYTES_MAX: usize = 256;
/// The most trailer lines accepted; all are ignored. Beyond it: 431.
pub const TRAILERS_MAX: u8 = 16;

/// Position in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyReader {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Bytes left of a body of known length.
    Length(u64),
    /// A chunk-size line comes next.
    Size,
    /// Bytes left of this chunk.
    Chunk(u64),
    /// The CRLF behind a chunk comes next.
    ChunkEnd,
    /// Trailer lines that may still come.
    Trailers(u8),
    Done,
}

/// Result of one call of [`BodyReader::read`] at the front of the bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Done,
    /// Number of bytes of the body at the front.
    Data(usize),
    /// Number of bytes of framing at the front; read on.
    Framing(usize),
    More,
}

impl BodyReader {
    /// At the start of a body.
    pub fn new(framing: Framing) -> BodyReader {
        let state = match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size,
        };
        BodyReader { state }
    }

    /// Looks at the front of `bytes`. The caller drops what `Data` and `Framing` name before it calls again.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Piece, Malformed> {
        match self.state {
            State::Done => Ok(Piece::Done),
            State::Length(left) | State::Chunk(left) => Ok(self.data(left, bytes.len())),
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::Size;
                    Ok(Piece::Framing(2))
                }
                [] | [b'\r'] => Ok(Piece::More),
                _ => Err(Malformed::Syntax),
            },
            State::Size => {
                let Some(line) = line(bytes, Malformed::Syntax)? else { return Ok(Piece::More) };
                self.state = match chunk_size(line)? {
                    0 => State::Trailers(TRAILERS_MAX),
                    size => State::Chunk(size),
                };
                Ok(Piece::Framing(line.len() + 2))
            }
            State::Trailers(left) => {
                let Some(line) = line(bytes, Malformed::HeadTooLarge)? else { return Ok(Piece::More) };
                self.state = match left.checked_sub(1) {
                    _ if line.is_empty() => State::Done,
                    _ if !is_field(line) => return Err(Malformed::Syntax),
                    Some(left) => State::Trailers(left),
                    None => return Err(Malformed::HeadTooLarge),
                };
                Ok(Piece::Framing(line.len() + 2))
            }
        }
    }

    /// Returns the number of bytes that are announced and not read yet: of the whole body by length, of the chunk
    /// otherwise.
    pub fn announced(&self) -> u64 {
        match self.state {
            State::Length(left) | State::Chunk(left) => left,
            State::Size | State::ChunkEnd | State::Trailers(_) | State::Done => 0,
        }
    }

    fn data(&mut self, left: u64, there: usize) -> Piece {
        if there == 0 {
            return Piece::More;
        }
        let taken = left.min(there as u64);
        let chunked = matches!(self.state, State::Chunk(_));
        self.state = match (left - taken, chunked) {
            (0, true) => State::ChunkEnd,
            (0, false) => State::Done,
            (rest, true) => State::Chunk(rest),
            (rest, false) => State::Length(rest),
        };
        Piece::Data(taken as usize)
    }
}

/// The line at the front without its CRLF; `None` when it is not whole yet. `too_long` says what one that ends nowhere
/// is.
fn line(bytes: &[u8], too_long: Malformed) -> Result<Option<&[u8]>, Malformed> {
    let window = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
    match window.iter().position(|&b| b == b'\n') {
        Some(feed) if feed > 0 && window[feed - 1] == b'\r' => Ok(Some(&window[..feed - 1])),
        Some(_) => Err(Malformed::Syntax),
        None if bytes.len() >= LINE_BYTES_MAX => Err(too_long),
        None => Ok(None),
    }
}

/// Returns true if a line is `name: value` (RFC 9110 section 5.1), not folded and without control characters.
fn is_field(line: &[u8]) -> bool {
    let Some(colon) = line.iter().position(|&b| b == b':') else { return false };
    let (name, value) = line.split_at(colon);
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    !name.is_empty() && name.iter().all(token) && value.iter().all(is_text)
}

fn is_text(byte: &u8) -> bool {
    *byte == b'\t' || !byte.is_ascii_control()
}

/// Hex digits, as many as the line has room for, then nothing or an extension, which is ignored. Beyond 64 bits they
/// are the largest number (RFC 9112 section 7.1). Blanks before an extension are bad and must be read nevertheless
/// (RFC 9112 section 7.1.1, RFC 9110 section 5.6.3).
fn chunk_size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = match line.iter().position(|&b| b == b';') {
        Some(at) => line[..at].trim_ascii_end(),
        None => line,
    };
    if digits.is_empty() || !line.iter().all(is_text) {
        return Err(Malformed::Syntax);
    }
    digits.iter().try_fold(0u64, |size, &byte| {
        let digit = char::from(byte).to_digit(16).ok_or(Malformed::Syntax)?;
        Ok(size.checked_mul(16).map_or(u64::MAX, |size| size | u64::from(digit)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a body from `bytes` arriving in pieces of `step`; the body and how many bytes were used.
    fn read_all(framing: Framing, bytes: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, Malformed> {
        let (mut reader, mut body, mut used, mut there) = (BodyReader::new(framing), Vec::new(), 0, 0);
        loop {
            match reader.read(&bytes[used..there])? {
                Piece::Done => return Ok(Some((body, used))),
                Piece::Data(length) => {
                    body.extend_from_slice(&bytes[used..used + length]);
                    used += length;
                }
                Piece::Framing(length) => used += length,
                Piece::More if there == bytes.len() => return Ok(None),
                Piece::More => there = (there + step).min(bytes.len()),
            }
        }
    }

    #[test]
    fn chunks_are_joined_and_trailers_ignored() {
        let bytes = b"4\r\nWiki\r\n5 \t;x=\"y\"\r\npedia\r\n0\r\nA: b\r\n\r\nnext";
        for step in 1..bytes.len() {
            let (body, used) = read_all(Framing::Chunked, bytes, step).unwrap().unwrap();
            assert_eq!((body.as_slice(), used), (&b"Wikipedia"[..], bytes.len() - 4));
        }
    }

    #[test]
    fn a_chunk_has_any_number_of_digits() {
        let bytes = format!("{}4\r\nWiki\r\n00000000000\r\n\r\n", "0".repeat(100));
        let (body, used) = read_all(Framing::Chunked, bytes.as_bytes(), 7).unwrap().unwrap();
        assert_eq!((body.as_slice(), used), (&b"Wiki"[..], bytes.len()));
        for (digits, size) in [
            ("123456789", 0x1_2345_6789),
            ("ffffffffffffffff", u64::MAX),
            ("10000000000000000", u64::MAX),
            ("10000000000000000;x", u64::MAX),
            ("F".repeat(200).as_str(), u64::MAX),
        ] {
            let mut reader = BodyReader::new(Framing::Chunked);
            let line = format!("{digits}\r\n");
            assert_eq!(reader.read(line.as_bytes()), Ok(Piece::Framing(line.len())), "{digits}");
            assert_eq!(reader.announced(), size, "{digits}");
        }
        assert_eq!(chunk_size(b"10000000000000000g"), Err(Malformed::Syntax));
    }

    #[test]
    fn odd_chunks_are_refused() {
        for bytes in [
            &b"\r\n"[..],
            b"4\nWiki\r\n",
            b"4\r\nWikix\r\n",
            b" 4\r\n",
            b"4 \r\n",
            b"+4\r\n",
            b"0x4\r\n",
            b"g\r\n",
            b"4;a\rb\r\n",
            b"4;a\0b\r\n",
            b"4\t\r\n",
            b" ;x\r\n",
            b"-1\r\n",
            b"0\r\nA: b\n\r\n",
            b"0\r\nnonsense\r\n\r\n",
            b"0\r\n: b\r\n\r\n",
            b"0\r\nA : b\r\n\r\n",
            b"0\r\nA: b\r\n folded\r\n\r\n",
            b"0\r\nA: \x01\r\n\r\n",
            b"0\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(read_all(Framing::Chunked, bytes, 100), Err(Malformed::Syntax), "{bytes:?}");
        }
        let endless = [b"0\r\n".to_vec(), b"A: b\r\n".repeat(17)].concat();
        assert_eq!(read_all(Framing::Chunked, &endless, 100), Err(Malformed::HeadTooLarge));
        let long = [b"0\r\nA: ".to_vec(), vec![b'x'; 300]].concat();
        assert_eq!(read_all(Framing::Chunked, &long, 100), Err(Malformed::HeadTooLarge));
        let long = [b"1;".to_vec(), vec![b'x'; 300]].concat();
        assert_eq!(read_all(Framing::Chunked, &long, 100), Err(Malformed::Syntax));
    }

    proptest! {
        #[test]
        fn any_split_reads_the_same(bytes in "[0-9a-f\r\n;x]{0,80}", step in 1usize..20, length in 0u64..50) {
            for framing in [Framing::Chunked, Framing::Length(length)] {
                let whole = read_all(framing, bytes.as_bytes(), 1000);
                prop_assert_eq!(read_all(framing, bytes.as_bytes(), step), whole);
            }
        }

        #[test]
        fn what_was_chunked_is_read(chunks in prop::collection::vec("[a-z]{1,40}", 0..6), step in 1usize..30) {
            let mut bytes = Vec::new();
            for chunk in &chunks {
                bytes.extend_from_slice(format!("{:x}\r\n{chunk}\r\n", chunk.len()).as_bytes());
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
            let (body, used) = read_all(Framing::Chunked, &bytes, step).unwrap().unwrap();
            prop_assert_eq!(body, chunks.concat().into_bytes());
            prop_assert_eq!(used, bytes.len());
        }
    }
}
