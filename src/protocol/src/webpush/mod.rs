//! The application-server side (RFC 8030, 8188, 8291, 8292), still sans-IO: tokens, ids, headers, VAPID, errors.
//!
//! [`endpoint`] seals and opens push URLs ([`token_v3`] those of version 3), [`message_id`] the `Location` and
//! `version` of a message and [`receipt`] the path to its fate (both [`sealed`]), [`headers`] and [`prefer`] turn
//! request headers into values, [`payload`] keeps them with the body, [`vapid`] checks that a sender may send, by its
//! [`key`], [`errno`] the one table of refusals, [`node_call`] what nodes of one cluster send each other. Several of
//! them need [`entropy`] and [`generation_cache`]. [`identity`] signs what [`vapid`] verifies, for clients.

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
pub mod registration;
pub mod generation_cache;
pub mod sealed;
pub mod token_v3;
pub mod vapid;
