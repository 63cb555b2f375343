//! A push client over blocking sockets: user agent, app server and message encryption. `murre probe`, the load
//! generator and the tests share it.
//!
//! The WebSocket codec is that of tungstenite, not that of the server: two implementations of the protocol must agree.

#![forbid(unsafe_code)]

pub mod stream;

pub mod http;

pub mod agent;

pub mod encryption;
