//! Lines of an untrusted input: a line without an end takes a bounded buffer.

use std::io::{self, BufRead, Read as _};

/// The longest line, bytes: a user with 2,048 channels has 200 KB, and 1,000 messages of 8 KiB are 11 MB in base64.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// Reads lines.
pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// The bytes before the line end.
    Line(&'a [u8]),
    /// Longer than [`LINE_BYTES_MAX`], and skipped.
    TooLong,
}

impl<R: BufRead> Lines<R> {
    pub fn new(input: R) -> Lines<R> {
        Lines { input, buffer: Vec::new() }
    }

    /// Reads the next line; `None` at the end. The last line may lack its end.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn next(&mut self) -> io::Result<Option<Next<'_>>> {
        self.buffer.clear();
        let room = LINE_BYTES_MAX as u64 + 1;
        if self.input.by_ref().take(room).read_until(b'\n', &mut self.buffer)? == 0 {
            return Ok(None);
        }
        if self.buffer.last() == Some(&b'\n') {
            self.buffer.pop();
        } else if self.buffer.len() > LINE_BYTES_MAX {
            self.buffer = Vec::new();
            self.pass_over()?;
            return Ok(Some(Next::TooLong));
        }
        Ok(Some(Next::Line(&self.buffer)))
    }

    /// Reads to the end of the line and keeps nothing.
    fn pass_over(&mut self) -> io::Result<()> {
        loop {
            let chunk = self.input.fill_buf()?;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let count = end.map_or(chunk.len(), |at| at + 1);
            let ended = end.is_some() || count == 0;
            self.input.consume(count);
            if ended {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_and_a_very_long_one_is_passed_over() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let longer = vec![b'y'; LINE_BYTES_MAX + 1];
        let input = [b"a\n\nb\r\n", &long[..], b"\n", &longer[..], b"\nc\n", &longer[..]].concat();
        let mut lines = Lines::new(io::BufReader::new(&input[..]));
        for expected in [&b"a"[..], b"", b"b\r", &long] {
            assert!(matches!(lines.next().unwrap(), Some(Next::Line(line)) if line == expected));
        }
        assert_eq!(lines.next().unwrap(), Some(Next::TooLong));
        assert_eq!(lines.next().unwrap(), Some(Next::Line(b"c")));
        assert_eq!(lines.next().unwrap(), Some(Next::TooLong));
        assert_eq!(lines.next().unwrap(), None);
        let mut unended = Lines::new(&b"last"[..]);
        assert_eq!(unended.next().unwrap(), Some(Next::Line(b"last")));
        assert_eq!(unended.next().unwrap(), None);
    }
}
