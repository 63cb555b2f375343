//! PROXY headers, versions 1 and 2: the result for all bytes agrees with that for each part of them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use protocol::wire::proxy::{HEADER_BYTES_MAX, Header, read};

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes);
    if let Header::Whole { len, .. } = whole {
        assert!(len <= bytes.len() && len <= HEADER_BYTES_MAX);
        assert_eq!(read(&bytes[..len]), whole, "bytes behind a header change nothing");
    }
    assert!(whole != Header::Incomplete || bytes.len() < HEADER_BYTES_MAX, "it would be waited for without end");
    for end in 0..bytes.len().min(HEADER_BYTES_MAX + 1) {
        let part = read(&bytes[..end]);
        assert!(part == Header::Incomplete || part == whole, "{end} bytes: {part:?}, all: {whole:?}");
    }
});
