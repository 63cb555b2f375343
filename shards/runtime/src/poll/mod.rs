//! Plane of hosts without io_uring: sockets are descriptors of the process, which the shard polls with epoll.
//!
//! The plane stages operations and hands out completions as rings do ([`crate::ring::Plane`]), so the reactor above is
//! the same. It uses nothing that Linux 4.18 lacks.
//!
//! The plane registers a socket once, edge-triggered, with its first poll. The kernel reports each change, and
//! [`tables`] keeps the reported state until an operation finds the opposite. An idle connection costs eight bytes of
//! a table.
//!
//! Lives on: the shard's thread, but for the [`tray`], where other shards leave sockets.

#![allow(unsafe_code)]

mod accepts;
mod plane;
mod sys;
mod tables;
mod tray;

#[cfg(test)]
mod tests;

pub(crate) use plane::PollPlane;
