//! Sans-IO codecs: bytes to values and back. No shard state, no clock, no sockets; every parser here meets
//! untrusted bytes and never panics on them.
//!
//! [`http1`] reads request heads and writes responses, [`body`] reads the body behind a head, [`upgrade`] is the RFC
//! 6455 opening handshake, [`ws`] the frames, [`client_message`] and [`server_message`] the JSON messages inside them,
//! one way and the other, [`relay`] those that name a user agent, [`simplepush`] what SimplePush spells otherwise,
//! [`base64url`] and [`text`] spell values, [`list`] splits the fields that are lists, [`percent`] decodes paths,
//! [`number`] reads the integers of JSON, [`url`] is the address of another server, and [`global`]
//! knows the addresses of the public internet. [`proxy`] and [`forwarded`] are the two ways in which a proxy names its
//! client.

pub mod base64url;
pub mod body;
pub mod forwarded;
pub mod global;
pub mod http1;
pub mod list;
pub mod number;
pub mod percent;
pub mod proxy;
pub mod client_message;
pub mod relay;
pub mod server_message;
pub mod simplepush;
pub mod text;
pub mod upgrade;
pub mod url;
pub mod ws;
