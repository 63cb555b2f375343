//! State that only some connections have: bytes that wait to be decoded, bytes that wait to be sent, a move.
//!
//! An idle connection has no entry. Entries and their buffers are reused; their growth in a burst is given back.

use crate::ports::Port;
use crate::quota::{PortQuotas, Quota};
use machine::Hello;
use machine::ids::{Claim, ShardId};

use super::op::Origin;
use super::pending_input::PendingInput;
use super::pending_output::PendingOutput;

/// No entry.
pub(crate) const NO_BUFFERS: u32 = u32::MAX;

/// Destination of a moving connection.
#[derive(Debug)]
pub(crate) enum SocketMove {
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
pub(crate) struct ConnBuffers {
    /// Received and not decoded.
    pub input: PendingInput,
    /// TLS only: received and not opened.
    pub sealed: PendingInput,
    /// Encoded and not handed to the kernel, or refused by it.
    pub out: PendingOutput,
    /// Set while it moves, or waits to.
    pub departure: Option<SocketMove>,
    /// Input thrown away during a lingering close.
    pub discarded: u32,
    /// Milliseconds, wrapping, since the process started: when a blocked socket last took a byte.
    pub blocked_since: u32,
}

impl ConnBuffers {
    fn new(unfinished: &Quota) -> ConnBuffers {
        ConnBuffers {
            input: PendingInput::new(unfinished),
            sealed: PendingInput::new(unfinished),
            out: PendingOutput::default(),
            departure: None,
            discarded: 0,
            blocked_since: 0,
        }
    }

    fn charge_to(&mut self, unfinished: &Quota) {
        self.input.charge_to(unfinished);
        self.sealed.charge_to(unfinished);
    }

    /// Returns true if the connection needs it no more.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_input() && self.out.is_empty() && self.departure.is_none() && self.discarded == 0
    }

    /// Returns true if received bytes wait.
    pub(crate) fn has_input(&self) -> bool {
        !self.input.is_empty() || !self.sealed.is_empty()
    }

    /// Drops the received bytes that wait.
    pub(crate) fn drop_input(&mut self) {
        drop(self.input.take());
        drop(self.sealed.take());
    }
}

/// The side table of a shard, and its pool of outboxes.
pub(crate) struct ConnBufferPool {
    entries: Vec<ConnBuffers>,
    free: Vec<u32>,
    outboxes: Vec<PendingOutput>,
    /// Bounds of the bytes that the inboxes of each port hold together.
    unfinished: PortQuotas,
}

/// Free entries, and spare outboxes, that keep their buffers.
const POOLED: usize = 256;

impl ConnBufferPool {
    /// An empty table whose inboxes hold at most `unfinished_bytes_max` together.
    pub(crate) fn new(unfinished_bytes_max: usize) -> ConnBufferPool {
        let unfinished = PortQuotas::new(unfinished_bytes_max);
        ConnBufferPool { entries: Vec::new(), free: Vec::new(), outboxes: Vec::new(), unfinished }
    }

    /// The entry of a connection of `port`; `at` is its place, or becomes it.
    pub(crate) fn entry(&mut self, at: &mut u32, port: Port) -> &mut ConnBuffers {
        if *at == NO_BUFFERS {
            let unfinished = self.unfinished.of(port);
            *at = match self.free.pop() {
                Some(free) => {
                    self.entries[free as usize].charge_to(unfinished);
                    free
                }
                None => {
                    self.entries.push(ConnBuffers::new(unfinished));
                    self.entries.len() as u32 - 1
                }
            };
        }
        &mut self.entries[*at as usize]
    }

    /// Charges what was received there to `port` from now on.
    pub(crate) fn charge_to(&mut self, at: u32, port: Port) {
        if let Some(buffers) = self.entries.get_mut(at as usize) {
            buffers.charge_to(self.unfinished.of(port));
        }
    }

    /// The entry there, if there is one.
    pub(crate) fn get(&mut self, at: u32) -> Option<&mut ConnBuffers> {
        self.entries.get_mut(at as usize)
    }

    /// Takes the entry back.
    pub(crate) fn free(&mut self, at: &mut u32) {
        let index = std::mem::replace(at, NO_BUFFERS);
        let Some(buffers) = self.entries.get_mut(index as usize) else { return };
        buffers.departure = None;
        buffers.discarded = 0;
        if self.free.len() < POOLED {
            buffers.drop_input();
            buffers.out.clear();
        } else {
            *buffers = ConnBuffers::new(self.unfinished.of(Port::WebSocket));
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
        if self.entries.get(*at as usize).is_some_and(ConnBuffers::is_idle) {
            self.free(at);
        }
    }

    pub(crate) fn take_output(&mut self) -> PendingOutput {
        self.outboxes.pop().unwrap_or_default()
    }

    pub(crate) fn put_outbox(&mut self, mut output: PendingOutput) {
        if self.outboxes.len() < POOLED {
            output.clear();
            self.outboxes.push(output);
        }
    }

    /// Bytes of memory that the received bytes there hold.
    pub(crate) fn held(&self, at: u32) -> usize {
        self.entries.get(at as usize).map_or(0, |buffers| buffers.input.held() + buffers.sealed.held())
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
        let buffers =
            self.unfinished.used() + self.entries.iter().map(|buffers| buffers.out.heap_bytes()).sum::<usize>();
        let pool = self.outboxes.iter().map(PendingOutput::heap_bytes).sum::<usize>();
        self.entries.capacity() * size_of::<ConnBuffers>() + self.free.capacity() * 4 + buffers + pool
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_gives_its_memory_back() {
        let mut buffer_pool = ConnBufferPool::new(usize::MAX);
        let mut places = vec![NO_BUFFERS; 10_000];
        for at in &mut places {
            buffer_pool.entry(at, Port::WebSocket).input.keep(&[0; 1_000]);
        }
        assert_eq!(buffer_pool.used(), 10_000);
        assert!(buffer_pool.heap_bytes() > 10_000_000);
        assert!(buffer_pool.unfinished().used() >= 10_000_000);
        for at in &mut places {
            buffer_pool.free_if_idle(at);
            assert_ne!(*at, NO_BUFFERS, "an entry with bytes in it stays");
            buffer_pool.free(at);
        }
        assert_eq!(buffer_pool.used(), 0);
        assert!(buffer_pool.heap_bytes() < 1_000_000, "{} bytes are kept", buffer_pool.heap_bytes());
        assert_eq!(buffer_pool.unfinished().used(), 0);
    }
}
