//! Tokens of forward endpoints: a sealed one opens as it was, and a changed one does not open as another.

#![no_main]

use libfuzzer_sys::fuzz_target;
use machine::ids::KeyDigest;
use protocol::webpush::forward::{ForwardToken, ForwardTokens, TARGET_BYTES_MAX};

const KEY: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";

fuzz_target!(|input: (&str, Option<[u8; 32]>, Vec<u8>)| {
    let (url, digest, edits) = input;
    let tokens = ForwardTokens::new(&[KEY.to_owned()]).unwrap();
    assert!(tokens.open(url).is_none(), "no key sealed it");
    // A digest of zero bytes is none.
    let sender = digest.filter(|digest| *digest != [0; 32]).map(KeyDigest);
    let token = ForwardToken { url: url.into(), sender, key: None };
    let sealed = tokens.seal(&token);
    let opened = tokens.open(&sealed);
    if url.is_empty() || url.len() <= TARGET_BYTES_MAX {
        assert!(opened == (!url.is_empty()).then_some(token.clone()), "{} bytes", url.len());
    }
    let mut text = sealed.into_bytes();
    fuzz::edit(&mut text, &mut edits.into_iter());
    if let Ok(text) = std::str::from_utf8(&text) {
        assert!(tokens.open(text).is_none_or(|opened| opened == token));
    }
});
