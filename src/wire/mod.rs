//! Sans-IO codecs: bytes to values and back. No shard state, no clock, no sockets; every parser here meets
//! untrusted bytes and never panics on them.
//!
//! [`http1`] reads request heads and bodies and writes responses, [`upgrade`] is the RFC 6455 opening handshake,
//! [`ws`] the frames, [`push`] the JSON messages inside them, [`relay`] those that name a user agent, [`base64url`] and
//! [`text`] spell values, [`url`] is whom we call.

pub mod base64url;
pub mod body;
pub mod http1;
pub mod push;
pub mod relay;
pub mod server_message;
pub mod simple;
pub mod text;
pub mod upgrade;
pub mod url;
pub mod ws;
