//! Everything here that knows io_uring: one ring with its table of direct descriptors.
//!
//! A process may have 20,000 open files where it may have millions of direct descriptors, in as many tables as it
//! likes, each no larger than that limit. So the sockets of agents are direct descriptors of many rings, one armed
//! poll each while idle and no buffer.
//!
//! The one subject of the `unsafe` code is the time in which the kernel touches memory of this process. Every SEND of
//! the staged bytes and every RECV carries MSG_DONTWAIT, so it is over when the submission that carries it returns. The
//! upgrade request is sent later, behind a CONNECT; it is in [`Wire`], which never changes and outlives the ring.

#![allow(unsafe_code)]

mod memory;
mod wire;
mod uring;
mod rings;

pub(super) use memory::{Span, Spans};
pub(super) use rings::Rings;
pub(super) use uring::{Cut, Short};
pub(super) use wire::Wire;
