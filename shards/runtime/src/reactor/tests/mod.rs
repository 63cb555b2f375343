//! The reactor on the real kernel, with a scripted machine and an edge that speaks lines.
//!
//! All shards of a [`Bench`] live on the test's thread and take their turns when the test says so: races of the server
//! happen here in the order that the test chooses. [`threads`] runs real threads.

mod bench;
mod blocked;
mod busy;
mod callers;
mod crowds;
mod goodbyes;
mod hibernation;
mod takeover;
mod late;
mod moves;
mod parking;
mod plain;
mod roles;
mod rules;
mod script;
mod sealed;
mod sealed_moves;
mod threads;
mod toy_tls;
mod turns;
mod unfinished;
