//! Everything that knows io_uring.
//!
//! A shard's sockets are direct descriptors of its own rings (RULES.md): never in the process's file table, one armed
//! poll each while idle, no buffer. [`Plane`] is the port of the reactor. [`RingPlane`] stages operations, submits them
//! and hands out completions; the meaning of a connection and of its bytes is decided in [`crate::reactor`].
//!
//! Lives on: the shard's thread (rings are SINGLE_ISSUER), but for [`listen`], [`probe`], [`raise_limits`]
//! and [`tables`], which the starting thread calls, or a command.
//!
//! The `unsafe` code here has one subject: the memory that the kernel may touch, and the time in which it may. Every
//! SEND and RECV carries MSG_DONTWAIT, so it is over when the submission that carries it returns (RULES.md rule 2).

#![allow(unsafe_code)]

mod arena;
mod call_filter;
mod conns;
mod fence;
mod hub;
mod pending_input;
mod layout;
mod listen;
mod memory;
mod op;
mod pending_output;
mod peer;
mod plane;
mod port;
mod probe;
mod conn_buffers;
mod uring;

#[cfg(test)]
pub(crate) mod tests;

pub use call_filter::{forbid_rings, refuse_calls};
pub use fence::Fence;
pub use layout::{RING_BYTES, tables};
pub use listen::{ListenError, WEBSOCKET_BUFFERS, listen, local_address, steer};
pub use memory::give_memory_back;
pub use probe::{ProbeError, nofile_limit, probe, raise_limits, takes_sockets_out, tells_peers};

pub(crate) use arena::{Arena, ArenaSpan, SpanSize};
pub(crate) use conn_buffers::{ConnBufferPool, SocketMove};
pub(crate) use conns::{Conns, Flags, NewConn, Standing, State};
pub(crate) use fence::RingUses;
pub(crate) use hub::eventfd;
pub(crate) use layout::{PlaneConfig, accept_limit};
pub(crate) use op::{Completion, CompletionKey, Origin, claimed, dealt};
pub(crate) use peer::{Family, address as peer_address};
pub(crate) use pending_output::PendingOutput;
pub(crate) use plane::RingPlane;
pub use port::PlaneKind;
pub(crate) use port::{Plane, Sent, SocketTray, TableAddress};
