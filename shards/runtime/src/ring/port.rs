//! Port of the reactor to the kernel: the operations on sockets that a shard stages, and their completions.
//!
//! Two planes implement it: [`super::RingPlane`] with io_uring, and `crate::poll::PollPlane` with epoll. The rules of
//! RULES.md hold on both. A *ring* of the poll plane is a table of descriptors and nothing else; its hub is its epoll.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use machine::ids::{Claim, ConnId};
use machine::time::Instant;

use super::arena::{Arena, SpanSize};
use super::op::{Completion, Origin};
use super::peer::Family;
use super::pending_output::PendingOutput;

/// Kind of the plane of a process: all of its shards have the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum PlaneKind {
    /// Sockets are direct descriptors of io_uring rings.
    #[default]
    Rings,
    /// Sockets are descriptors of the process, polled with epoll.
    Poll,
}

impl PlaneKind {
    /// Returns its value of `shards.plane`.
    pub fn word(self) -> &'static str {
        match self {
            PlaneKind::Rings => "io_uring",
            PlaneKind::Poll => "poll",
        }
    }
}

/// Output whose submission is over.
pub(crate) struct Sent {
    pub conn: ConnId,
    pub output: PendingOutput,
    /// `None`: the socket took all of it. Else the number of bytes that it took, or a negative errno.
    pub refused: Option<i32>,
}

/// Address of a table of another shard, for moved sockets. The address of its first table also wakes the shard.
#[derive(Clone)]
pub(crate) enum TableAddress {
    /// The descriptor of a ring.
    Ring(RawFd),
    /// The tray of a poll plane, and the number of the table.
    Tray(Arc<dyn SocketTray>, u16),
}

/// Part of a poll plane that other threads use.
pub(crate) trait SocketTray: Send + Sync {
    /// Leaves a socket for `table`, with the `word` that a ring would have as user_data.
    ///
    /// # Errors
    /// The socket and a negative errno: the table is full (ENFILE), or the plane is gone (EOWNERDEAD).
    fn leave(&self, table: u16, socket: OwnedFd, word: u64) -> Result<(), (OwnedFd, i32)>;

    /// Wakes the shard.
    fn wake(&self);
}

/// Sockets of a shard. Of the operations, only [`Plane::enter`] and [`Plane::wait`] are carried out at once.
pub(crate) trait Plane {
    /// Returns the number of rings.
    fn rings(&self) -> u16;

    /// Returns the number of slots of each table.
    fn table(&self) -> u32;

    /// Returns the address of a table for other shards.
    fn address(&self, ring: u16) -> TableAddress;

    /// Returns the global slot of a descriptor of a table.
    fn slot(&self, ring: u16, direct: u32) -> u32;

    /// Returns the ring of a slot.
    fn ring_of(&self, slot: u32) -> u16;

    /// Returns the receive buffers.
    fn arena(&mut self) -> &mut Arena;

    /// Arms one accept of `listener` into the table of `ring`.
    fn accept(&mut self, ring: u16, listener: u32, arming: u16, fd: BorrowedFd<'_>);

    /// Ends the accepts of that arming. Each still has its completion.
    fn cancel_accepts(&mut self, ring: u16, listener: u32, arming: u16);

    /// Arms the one-shot poll of an idle connection.
    fn poll_in(&mut self, conn: ConnId);

    /// Arms the one-shot poll of a blocked connection.
    fn poll_out(&mut self, conn: ConnId);

    /// Stages a receive. Returns false if no span is free.
    fn recv(&mut self, conn: ConnId, size: SpanSize) -> bool;

    /// Stages the request for the address of the TCP peer. Returns false if no span is free.
    fn ask_peer(&mut self, conn: ConnId, family: Family) -> bool;

    /// Stages one send of everything in `output`; it comes back through [`Plane::next_sent`]. At most one per
    /// connection and submission: the caller waits for that (RULES.md rule 1).
    fn send(&mut self, conn: ConnId, output: PendingOutput);

    /// Stages the shutdown of the write side.
    fn shutdown(&mut self, conn: ConnId);

    /// Stages the removal of armed polls, then the Close: the last operation of a connection (RULES.md rule 3).
    fn close(&mut self, conn: ConnId, poll_in: bool, poll_out: bool);

    /// Stages the move of a claimed connection.
    fn move_claimed(&mut self, conn: ConnId, polls: (bool, bool), target: TableAddress, claim: Claim, tls: bool);

    /// Stages the move of a fresh connection that is dealt to another shard.
    fn move_dealt(&mut self, conn: ConnId, target: TableAddress, kind: u32);

    /// Stages the move of an established connection that is handed over to another shard.
    fn move_handed_over(&mut self, conn: ConnId, poll_in: bool, target: TableAddress, from: Origin);

    /// Stages the live mark of a connection that was just accepted into this slot, so that its segments pass the packet
    /// rules ([`hibernate::LIVE_MARK`]). A failure leaves it as it is: its segments then pass through the queue.
    fn mark_live(&mut self, slot: u32);

    /// Stages the removal of the armed poll of an idle connection, which has its completion, then an ordinary
    /// descriptor of its socket. [`Plane::vacate`] follows.
    fn take_out(&mut self, conn: ConnId);

    /// Puts the eventfd of the shard into the slot in place of the socket: the slot stays occupied, and the kernel
    /// gives it to no other connection.
    fn vacate(&mut self, conn: ConnId) -> io::Result<()>;

    /// Puts a socket into the slot in place of the eventfd. The caller closes its own descriptor.
    fn put_in(&mut self, conn: ConnId, socket: BorrowedFd<'_>) -> io::Result<()>;

    /// Occupies a free slot with the eventfd of the shard, before anything is accepted.
    fn occupy(&mut self, ring: u16, direct: u32) -> io::Result<()>;

    /// Stages the wake of a parked shard.
    fn bell(&mut self, hub: &TableAddress);

    /// Submits the staged operations, and reaps completions. Returns true if there were any of either.
    fn enter(&mut self) -> bool;

    /// Takes the next output whose submission is over.
    fn next_sent(&mut self) -> Option<Sent>;

    /// Takes the next completion.
    fn next(&mut self) -> Option<Completion>;

    /// Returns the number of completions that `next` has not handed out yet, including those that it will skip.
    fn ready(&self) -> usize;

    /// Returns true if `next` has not handed out all completions yet.
    fn has_ready(&self) -> bool {
        self.ready() > 0
    }

    /// Returns true if the reactor must enter the plane again.
    fn has_more(&mut self) -> bool;

    /// Returns the memory that a burst of completions needed.
    fn trim(&mut self);

    /// Returns the number of system calls.
    fn enters(&self) -> u64;

    /// Makes sure that the hub wakes the shard at `until` at the latest.
    fn wake_at(&mut self, now: Instant, until: Instant);

    /// Returns true if the hub gets every event. Stages what it needs otherwise.
    fn watch(&mut self) -> bool;

    /// Blocks in the hub until there is a completion. Returns false at once if something is pending. The hub must
    /// [`Plane::watch`]. With `gather`, completions that come one by one may share the end of the wait.
    fn wait(&mut self, gather: bool) -> bool;
}
