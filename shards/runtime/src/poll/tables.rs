//! Tables of descriptors: the socket of each slot, and its last known state.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};

/// Facts about the socket of a slot, one bit each, in the lower half of its mark. This one: the epoll has the socket.
pub(super) const REGISTERED: u32 = 1;
/// Bytes or the end of the stream may be readable: no receive has found the opposite.
pub(super) const READABLE: u32 = 1 << 1;
/// The socket may have room: no send has found the opposite.
pub(super) const WRITABLE: u32 = 1 << 2;
/// The end of the stream or an error is readable: a short receive does not prove that the socket is empty.
pub(super) const LAST: u32 = 1 << 3;
/// The poll for input is armed.
pub(super) const POLL_IN: u32 = 1 << 4;
/// The poll for room is armed.
pub(super) const POLL_OUT: u32 = 1 << 5;

const GENERATION_SHIFT: u32 = 16;
const FACTS: u32 = (1 << GENERATION_SHIFT) - 1;

/// Free slots of one table.
struct Table {
    /// First slot that was never used.
    fresh: u32,
    /// Used slots that are free again. The lowest is taken first, so that few connections stay in few pages.
    free: BinaryHeap<Reverse<u32>>,
}

/// All slots of a shard. The memory of a slot is touched with its first use.
pub(super) struct Tables {
    tables: Vec<Table>,
    /// Descriptor of each slot plus 1; 0 in a free slot.
    sockets: Vec<u32>,
    /// Facts of each slot, and the low bits of the generation of the connection that polls.
    marks: Vec<u32>,
    shift: u32,
}

/// Free slots of a table that keep their memory.
const FREE_KEPT: usize = 1_024;

impl Tables {
    pub fn new(rings: u16, shift: u32) -> Tables {
        let slots = usize::from(rings) << shift;
        let tables = (0..rings).map(|_| Table { fresh: 0, free: BinaryHeap::new() }).collect();
        Tables { tables, sockets: vec![0; slots], marks: vec![0; slots], shift }
    }

    /// Puts a socket into a slot of `ring`, which has a free one, and returns the number of the slot there.
    pub fn put(&mut self, ring: u16, socket: OwnedFd) -> u32 {
        let table = &mut self.tables[usize::from(ring)];
        let direct = table.free.pop().map_or_else(
            || {
                table.fresh += 1;
                table.fresh - 1
            },
            |Reverse(direct)| direct,
        );
        let slot = (u32::from(ring) << self.shift | direct) as usize;
        debug_assert_eq!(self.sockets[slot], 0, "a free slot has no socket");
        self.sockets[slot] = socket.into_raw_fd() as u32 + 1;
        self.marks[slot] = 0;
        direct
    }

    /// Puts a socket back into the slot that it was taken from last.
    pub fn put_back(&mut self, slot: u32, socket: OwnedFd) {
        let direct = slot & ((1 << self.shift) - 1);
        self.tables[(slot >> self.shift) as usize].free.retain(|Reverse(free)| *free != direct);
        self.sockets[slot as usize] = socket.into_raw_fd() as u32 + 1;
    }

    /// Returns the descriptor in a slot; `None` for a free slot.
    pub fn fd(&self, slot: u32) -> Option<RawFd> {
        self.sockets.get(slot as usize)?.checked_sub(1).map(|fd| fd as RawFd)
    }

    /// Takes the socket out of its slot, which becomes free.
    pub fn take(&mut self, slot: u32) -> Option<OwnedFd> {
        let fd = self.fd(slot)?;
        self.sockets[slot as usize] = 0;
        self.marks[slot as usize] = 0;
        let direct = slot & ((1 << self.shift) - 1);
        self.tables[(slot >> self.shift) as usize].free.push(Reverse(direct));
        // SAFETY: the slot owned this descriptor, and no longer does.
        Some(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Returns true if all of these facts are set.
    pub fn has(&self, slot: u32, facts: u32) -> bool {
        self.marks[slot as usize] & facts == facts
    }

    pub fn set(&mut self, slot: u32, facts: u32) {
        self.marks[slot as usize] |= facts;
    }

    pub fn clear(&mut self, slot: u32, facts: u32) {
        self.marks[slot as usize] &= !facts;
    }

    /// Notes the generation of the connection whose poll is armed.
    pub fn set_generation(&mut self, slot: u32, generation: u16) {
        let mark = &mut self.marks[slot as usize];
        *mark = *mark & FACTS | u32::from(generation) << GENERATION_SHIFT;
    }

    /// Returns the generation of the connection that polled last.
    pub fn generation(&self, slot: u32) -> u16 {
        (self.marks[slot as usize] >> GENERATION_SHIFT) as u16
    }

    /// Returns the memory that a burst needed.
    pub fn trim(&mut self) {
        for table in &mut self.tables {
            if table.free.len() < table.free.capacity() / 4 {
                table.free.shrink_to(FREE_KEPT.max(table.free.len() * 2));
            }
        }
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        for (ring, table) in self.tables.iter().enumerate() {
            let first = ring << self.shift;
            for socket in &self.sockets[first..first + table.fresh as usize] {
                // SAFETY: an occupied slot owns its descriptor, and nothing reads it again.
                drop(socket.checked_sub(1).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as RawFd) }));
            }
        }
    }
}
