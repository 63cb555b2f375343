//! murre: a push connection server. This crate is its edges: HTTP, storage backends, configuration, assembly.
//!
//! **State lives in the crate `shards`; bytes live here and in the crate `protocol`.** Modules in suggested reading
//! order.

#![forbid(unsafe_code)]

pub mod edge;

pub mod store;

pub mod island;

pub mod config;

pub mod node;

pub mod client;

pub mod commands;

mod files;

#[cfg(test)]
mod tidy;
