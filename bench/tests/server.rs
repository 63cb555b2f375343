//! Tests that speak to a real server: what a change needs while it is written (`bench/check quick`).
//!
//! One binary, because each links the whole server.

mod common;

mod bad_input;
mod commands;
mod delivery;
mod fence;
mod http;
mod receipts;
mod refusals;
mod registration;
mod relay;
mod reload;
mod secrets;
mod simple;
mod socket;
mod strangers;
mod user_agent;
mod without_rings;
