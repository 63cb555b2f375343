//! States of a connection.

/// A WebSocket's part in the protocol (PROTOCOL.md 1.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::shard) enum ConnState {
    /// Upgraded at this tick (`ticks::ticks`, kept in the bits of an index); its hello has not come.
    Opened(u32),
    /// Its hello waits for a place among the hellos in flight.
    Waiting,
    /// Its hello is being worked on here (index of a pending hello).
    Greeting(u32),
    /// Its hello is being worked on by the owner.
    Claiming,
    /// Identified (index of a session).
    Session(u32),
    /// It speaks for several (index of a relay).
    Relay(u32),
}
