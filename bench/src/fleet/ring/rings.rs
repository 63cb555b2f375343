//! All rings of a swarm, and one eventfd that any of them signals. Agent `n` has slot `n % table` of ring `n / table`
//! for ever, so there is nothing to allocate and nothing to look up.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use super::memory::{Span, Spans};
use super::uring::{CLOSE_ENTRIES, CONNECT_ENTRIES, Cut, Ring, SENDS_BYTES, Short};
use super::wire::Wire;
use crate::fleet::user_data::{ConnKey, Done};

/// The rings; each is made when its first agent connects.
pub(in crate::fleet) struct Rings {
    rings: Vec<Option<Ring>>,
    table: u32,
    wire: Rc<Wire>,
    spans: Rc<Spans>,
    event: OwnedFd,
    ready: VecDeque<Done>,
    short: Vec<Short>,
}

/// Completions that may wait before what they needed is given back.
const READY_KEPT: usize = 1_024;

impl Rings {
    /// For `count` agents, `table` in each ring: at most the limit of open files.
    pub fn new(wire: Wire, count: usize, table: u32) -> io::Result<Rings> {
        let wire = Rc::new(wire);
        let rings = (0..count.div_ceil(table as usize)).map(|_| None).collect();
        let spans = Rc::new(Spans::new());
        let (ready, short) = (VecDeque::new(), Vec::new());
        Ok(Rings { rings, table, wire, spans, event: eventfd()?, ready, short })
    }

    /// Descriptor that becomes readable when there is something to do, once [`Rings::quiet`] has been true.
    pub fn event(&self) -> RawFd {
        self.event.as_raw_fd()
    }

    /// The upgrade request to the server of this agent.
    pub fn upgrade_of(&self, name: ConnKey) -> Box<[u8]> {
        self.wire.target(self.wire.place(name.agent as usize)).upgrade.clone()
    }

    /// The receive spans.
    pub fn spans(&self) -> Rc<Spans> {
        self.spans.clone()
    }

    fn slot(&self, name: ConnKey) -> (usize, u32) {
        ((name.agent / self.table) as usize, name.agent % self.table)
    }

    /// The ring of an agent with room for `entries`, and its slot there.
    fn room(&mut self, name: ConnKey, entries: usize) -> io::Result<(&mut Ring, u32)> {
        let (at, slot) = self.slot(name);
        let ring = &mut self.rings[at];
        if ring.is_none() {
            *ring = Some(Ring::new(self.table, self.event.as_raw_fd(), self.wire.clone(), self.spans.clone())?);
        }
        let Some(ring) = ring else { return Err(io::Error::other("a ring that was made")) };
        if !ring.has_room(entries) {
            ring.enter(&mut self.ready, &mut self.short)?;
        }
        Ok((ring, slot))
    }

    /// Stages a connection, upgrade request and first poll included.
    pub fn connect(&mut self, name: ConnKey) -> io::Result<()> {
        let place = self.wire.place(name.agent as usize);
        let (ring, slot) = self.room(name, CONNECT_ENTRIES)?;
        ring.connect(slot, name, place);
        Ok(())
    }

    /// Stages a receive and the next poll. False when no span is free; completions bring them back.
    pub fn receive(&mut self, name: ConnKey) -> io::Result<bool> {
        let Some(span) = self.spans.take() else { return Ok(false) };
        let (ring, slot) = self.room(name, 2)?;
        ring.receive(slot, name, span);
        Ok(true)
    }

    /// Stages a poll for room.
    pub fn poll_room(&mut self, name: ConnKey) -> io::Result<()> {
        let (ring, slot) = self.room(name, 1)?;
        ring.poll_room(slot, name);
        Ok(())
    }

    /// Stages a send of as much as a submission can have. Returns that number of bytes. A part that the socket does not
    /// take comes back through [`Rings::short`].
    pub fn send(&mut self, name: ConnKey, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(SENDS_BYTES);
        let (at, slot) = self.slot(name);
        let Some(ring) = &mut self.rings[at] else { return Ok(len) };
        if !ring.can_send(slot, len) {
            ring.enter(&mut self.ready, &mut self.short)?;
        }
        // One that came back short and was not taken in yet must not be overtaken.
        if self.short.iter().any(|short| short.name == name) {
            return Ok(0);
        }
        ring.send(slot, name, &bytes[..len]);
        Ok(len)
    }

    /// Stages the end of a connection.
    pub fn close(&mut self, name: ConnKey, cut: Cut) -> io::Result<()> {
        let (ring, slot) = self.room(name, CLOSE_ENTRIES)?;
        ring.close(slot, name, cut);
        Ok(())
    }

    /// Submits and reaps every ring that has something staged or is flagged; the others cost a look at their flags.
    /// True when there was one.
    pub fn enter(&mut self) -> io::Result<bool> {
        let mut busy = false;
        for ring in self.rings.iter_mut().flatten() {
            if ring.busy() {
                ring.enter(&mut self.ready, &mut self.short)?;
                busy = true;
            }
        }
        Ok(busy)
    }

    /// The next completion, if one was reaped.
    pub fn next(&mut self) -> Option<Done> {
        self.ready.pop_front()
    }

    /// The next send of which not all went out.
    pub fn short(&mut self) -> Option<Short> {
        self.short.pop()
    }

    /// The span of a completed receive.
    pub fn span(&self, done: &Done) -> Span {
        Span::of_completion(done.aux)
    }

    /// Gives back what a burst needed.
    pub fn trim(&mut self) {
        if self.ready.is_empty() {
            self.ready.shrink_to(READY_KEPT);
        }
    }

    /// Announces completions on the eventfd, then says whether all is quiet, so that the thread may sleep.
    pub fn quiet(&mut self) -> bool {
        for ring in self.rings.iter_mut().flatten() {
            ring.announce(true);
        }
        // Pairs with the kernel's full barrier between setting TASKRUN and reading that flag: either it sees the flag
        // and signals, or `busy` sees TASKRUN.
        fence(Ordering::SeqCst);
        self.ready.is_empty() && self.short.is_empty() && !self.rings.iter_mut().flatten().any(Ring::busy)
    }

    /// The thread is awake: reaping would only signal the eventfd again.
    pub fn awake(&mut self) {
        for ring in self.rings.iter_mut().flatten() {
            ring.announce(false);
        }
    }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
