//! Bytes to values and back: HTTP, WebSocket and its JSON messages ([`wire`]), tokens, headers and keys of WebPush
//! ([`webpush`]).
//!
//! **No IO.** Every function here takes bytes or values and returns the other. The crate knows no socket, no store and
//! no configuration; the compiler refuses `unsafe`.

#![forbid(unsafe_code)]

pub mod wire;

pub mod webpush;
