//! The application-server side (RFC 8030, 8188, 8291, 8292), still sans-IO: tokens, ids, headers, VAPID, errors.
//!
//! [`endpoint`] seals and opens push URLs ([`short`] those of version 3), [`message_id`] the `Location` and `version`
//! of a message and [`receipt`] the path to what became of it (both [`sealed`]), [`headers`] and [`prefer`] turn
//! request headers into values, [`payload`] is how they are kept with the body, [`vapid`] who may send, by which
//! [`key`], [`errno`] the one table of refusals, [`node_call`] what nodes of one cluster send each other. [`entropy`]
//! and [`recent`] are what several of them need. [`identity`] signs what [`vapid`] verifies: for clients.

pub mod endpoint;
pub mod entropy;
pub mod errno;
pub mod headers;
pub mod identity;
pub mod key;
pub mod message_id;
pub mod node_call;
pub mod payload;
pub mod prefer;
pub mod receipt;
pub mod recent;
pub mod sealed;
pub mod short;
pub mod vapid;
