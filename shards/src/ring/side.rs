//! State that only some connections have: bytes that wait to be decoded, bytes that wait to be sent, a move.
//!
//! An idle connection has no entry. Entries and their buffers are reused; their growth in a burst is given back.

use crate::ports::Port;
use crate::quota::{PortQuotas, Quota};
use machine::Hello;
use machine::ids::{Claim, ShardId};

use super::inbox::Inbox;
use super::op::Origin;
use super::outbox::Outbox;

/// No entry.
pub(crate) const NO_SIDE: u32 = u32::MAX;

/// Destination of a moving connection.
#[derive(Debug)]
pub(crate) enum Departure {
    /// To the owner of its user agent, with its hello.
    Claimed {
        to: ShardId,
        /// Pairs descriptor and mail there.
        claim: Claim,
        hello: Box<Hello>,
    },
    /// To the least loaded shard, before a byte was read.
    Dealt {
        /// The least loaded shard.
        to: ShardId,
        /// Kind of its listener, as the reactor numbers them. Nothing was read.
        kind: u32,
    },
    /// To the least loaded shard, between two requests. Its state is in the mailbox of that shard.
    HandedOver {
        /// The least loaded shard.
        to: ShardId,
        /// Name of its state.
        from: Origin,
    },
}

/// The side entry of one connection.
pub(crate) struct Side {
    /// Received and not decoded.
    pub inbox: Inbox,
    /// TLS only: received and not opened.
    pub sealed: Inbox,
    /// Encoded and not handed to the kernel, or refused by it.
    pub out: Outbox,
    /// Set while it moves, or waits to.
    pub departure: Option<Departure>,
    /// Input thrown away during a goodbye.
    pub discarded: u32,
    /// Milliseconds, wrapping, since the process started: when a blocked socket last took a byte.
    pub blocked_since: u32,
}

impl Side {
    fn new(unfinished: &Quota) -> Side {
        Side {
            inbox: Inbox::new(unfinished),
            sealed: Inbox::new(unfinished),
            out: Outbox::default(),
            departure: None,
            discarded: 0,
            blocked_since: 0,
        }
    }

    fn charge_to(&mut self, unfinished: &Quota) {
        self.inbox.charge_to(unfinished);
        self.sealed.charge_to(unfinished);
    }

    /// Returns true if the connection needs it no more.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_input() && self.out.is_empty() && self.departure.is_none() && self.discarded == 0
    }

    /// Returns true if received bytes wait.
    pub(crate) fn has_input(&self) -> bool {
        !self.inbox.is_empty() || !self.sealed.is_empty()
    }

    /// Drops the received bytes that wait.
    pub(crate) fn drop_input(&mut self) {
        drop(self.inbox.take());
        drop(self.sealed.take());
    }
}

/// The side table of a shard, and its pool of outboxes.
pub(crate) struct Sides {
    entries: Vec<Side>,
    free: Vec<u32>,
    outboxes: Vec<Outbox>,
    /// Bounds of the bytes that the inboxes of each port hold together.
    unfinished: PortQuotas,
}

/// Free entries, and spare outboxes, that keep their buffers.
const POOLED: usize = 256;

impl Sides {
    /// An empty table whose inboxes hold at most `unfinished_bytes_max` together.
    pub(crate) fn new(unfinished_bytes_max: usize) -> Sides {
        let unfinished = PortQuotas::new(unfinished_bytes_max);
        Sides { entries: Vec::new(), free: Vec::new(), outboxes: Vec::new(), unfinished }
    }

    /// The entry of a connection of `port`; `at` is its place, or becomes it.
    pub(crate) fn entry(&mut self, at: &mut u32, port: Port) -> &mut Side {
        if *at == NO_SIDE {
            let unfinished = self.unfinished.of(port);
            *at = match self.free.pop() {
                Some(free) => {
                    self.entries[free as usize].charge_to(unfinished);
                    free
                }
                None => {
                    self.entries.push(Side::new(unfinished));
                    self.entries.len() as u32 - 1
                }
            };
        }
        &mut self.entries[*at as usize]
    }

    /// Charges what was received there to `port` from now on.
    pub(crate) fn charge_to(&mut self, at: u32, port: Port) {
        if let Some(side) = self.entries.get_mut(at as usize) {
            side.charge_to(self.unfinished.of(port));
        }
    }

    /// The entry there, if there is one.
    pub(crate) fn get(&mut self, at: u32) -> Option<&mut Side> {
        self.entries.get_mut(at as usize)
    }

    /// Takes the entry back.
    pub(crate) fn free(&mut self, at: &mut u32) {
        let index = std::mem::replace(at, NO_SIDE);
        let Some(side) = self.entries.get_mut(index as usize) else { return };
        side.departure = None;
        side.discarded = 0;
        if self.free.len() < POOLED {
            side.drop_input();
            side.out.clear();
        } else {
            *side = Side::new(self.unfinished.of(Port::WebSocket));
        }
        self.free.push(index);
        if self.free.len() == self.entries.len() && self.entries.len() > POOLED {
            self.entries.truncate(POOLED);
            self.entries.shrink_to_fit();
            self.free = (0..POOLED as u32).rev().collect();
        }
    }

    /// Takes the entry back if nothing is in it.
    pub(crate) fn free_if_idle(&mut self, at: &mut u32) {
        if self.entries.get(*at as usize).is_some_and(Side::is_idle) {
            self.free(at);
        }
    }

    pub(crate) fn take_outbox(&mut self) -> Outbox {
        self.outboxes.pop().unwrap_or_default()
    }

    pub(crate) fn put_outbox(&mut self, mut outbox: Outbox) {
        if self.outboxes.len() < POOLED {
            outbox.clear();
            self.outboxes.push(outbox);
        }
    }

    /// Bytes of memory that the received bytes there hold.
    pub(crate) fn held(&self, at: u32) -> usize {
        self.entries.get(at as usize).map_or(0, |side| side.inbox.held() + side.sealed.held())
    }

    /// Returns the bytes that the inboxes of each port hold together, and their bounds.
    pub(crate) fn unfinished(&self) -> &PortQuotas {
        &self.unfinished
    }

    pub(crate) fn used(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Bytes of heap the table and its buffers hold. Walks it: for the numbers, once a second.
    pub(crate) fn heap_bytes(&self) -> usize {
        let buffers = self.unfinished.used() + self.entries.iter().map(|side| side.out.heap_bytes()).sum::<usize>();
        let pool = self.outboxes.iter().map(Outbox::heap_bytes).sum::<usize>();
        self.entries.capacity() * size_of::<Side>() + self.free.capacity() * 4 + buffers + pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_gives_its_memory_back() {
        let mut sides = Sides::new(usize::MAX);
        let mut places = vec![NO_SIDE; 10_000];
        for at in &mut places {
            sides.entry(at, Port::WebSocket).inbox.keep(&[0; 1_000]);
        }
        assert_eq!(sides.used(), 10_000);
        assert!(sides.heap_bytes() > 10_000_000);
        assert!(sides.unfinished().used() >= 10_000_000);
        for at in &mut places {
            sides.free_if_idle(at);
            assert_ne!(*at, NO_SIDE, "an entry with bytes in it stays");
            sides.free(at);
        }
        assert_eq!(sides.used(), 0);
        assert!(sides.heap_bytes() < 1_000_000, "{} bytes are kept", sides.heap_bytes());
        assert_eq!(sides.unfinished().used(), 0);
    }
}
