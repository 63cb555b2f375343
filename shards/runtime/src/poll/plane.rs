//! Poll plane: stages operations, carries them out, and hands out completions.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use machine::ids::{Claim, ConnId};
use machine::time::{Instant, TimeSpan};

use super::accepts::Accepts;
use super::sys::{self, EVENTS_MAX, Epoll, Event};
use super::tables::{LAST, POLL_IN, POLL_OUT, READABLE, REGISTERED, Tables, WRITABLE};
use super::tray::Tray;
use crate::ring::{
    Arena, ArenaSpan, Completion, CompletionKey, Family, Origin, PendingOutput, Plane, PlaneConfig, Sent, SpanSize,
    TableAddress, claimed, dealt,
};

/// A staged operation.
enum Op {
    PollIn(ConnId),
    PollOut(ConnId),
    Recv(ConnId, ArenaSpan),
    Peer(ConnId, ArenaSpan, Family),
    Send(ConnId, PendingOutput),
    Shutdown(ConnId),
    Close(ConnId),
    Move(ConnId, TableAddress, u64),
}

/// Sockets of a shard on the poll plane.
pub(crate) struct PollPlane {
    epoll: Epoll,
    tables: Tables,
    tray: Arc<Tray>,
    arena: Arena,
    ops: Vec<Op>,
    accepts: Accepts,
    ready: VecDeque<Completion>,
    sent: Vec<Sent>,
    /// Maximum length of the next wait; `None`: no limit.
    timeout: Option<TimeSpan>,
    /// True if the last wait returned as many events as it can.
    has_more: bool,
    rings: u16,
    table: u32,
    shift: u32,
    enters: u64,
}

/// Maximum number of staged operations: the plane carries them out before it stages the next one.
const OPS_MAX: usize = 1_024;
/// Completions for which the queue keeps its memory.
const READY_KEPT: usize = 4_096;

/// Data of the event of the shard's eventfd, and the bit that marks a listener. Every other value is a slot, of 28
/// bits.
const WAKE: u64 = u64::MAX;
const LISTENER: u64 = 1 << 62;

impl PollPlane {
    /// Opens the epoll instance. `event` is the eventfd of the shard's waker.
    pub(crate) fn new(config: PlaneConfig, event: BorrowedFd<'_>) -> io::Result<PollPlane> {
        let epoll = Epoll::new()?;
        // Edge-triggered: each write is a change, so the shard need not read the eventfd.
        epoll.add(event.as_raw_fd(), WAKE)?;
        Ok(PollPlane {
            epoll,
            tables: Tables::new(config.rings, config.shift()),
            tray: Arc::new(Tray::new(config.rings, config.table, event)?),
            arena: Arena::new(),
            ops: Vec::new(),
            accepts: Accepts::default(),
            ready: VecDeque::new(),
            sent: Vec::new(),
            timeout: None,
            has_more: false,
            rings: config.rings,
            table: config.table,
            shift: config.shift(),
            enters: 0,
        })
    }

    fn stage(&mut self, op: Op) {
        if self.ops.len() >= OPS_MAX {
            self.submit();
        }
        self.ops.push(op);
    }

    /// Carries out the staged operations in their order.
    fn submit(&mut self) {
        let mut ops = std::mem::take(&mut self.ops);
        for op in ops.drain(..) {
            self.carry_out(op);
        }
        self.ops = ops;
    }

    fn carry_out(&mut self, op: Op) {
        match op {
            Op::PollIn(conn) => self.arm(conn, POLL_IN),
            Op::PollOut(conn) => self.arm(conn, POLL_OUT),
            Op::Recv(conn, span) => self.receive(conn, span),
            Op::Peer(conn, span, family) => {
                let Some(fd) = self.tables.fd(conn.slot) else { return self.arena.free(span) };
                self.enters += 1;
                let result = sys::peer(fd, self.arena.bytes(&span, family.address_bytes()));
                self.ready.push_back(Completion::Peer { done: key(conn), span, result });
            }
            Op::Send(conn, output) => self.send_now(conn, output),
            Op::Shutdown(conn) => {
                let Some(fd) = self.tables.fd(conn.slot) else { return };
                self.enters += 1;
                self.ready
                    .push_back(Completion::ShutDown { done: key(conn), result: sys::shutdown(fd, libc::SHUT_WR) });
            }
            Op::Close(conn) => {
                // The kernel removes the registration with the last descriptor of the socket.
                let Some(socket) = self.tables.take(conn.slot) else { return };
                self.enters += 1;
                drop(socket);
                self.freed(conn);
            }
            Op::Move(conn, target, word) => self.move_now(conn, &target, word),
        }
    }

    /// Completes the close of a connection, whose slot is free again.
    fn freed(&mut self, conn: ConnId) {
        self.tray.release(self.ring_of(conn.slot));
        self.ready.push_back(Completion::Closed { done: key(conn), result: 0 });
    }

    /// Arms a poll, which can complete at once.
    fn arm(&mut self, conn: ConnId, poll: u32) {
        let Some(fd) = self.tables.fd(conn.slot) else { return };
        self.tables.set_generation(conn.slot, conn.generation as u16);
        self.tables.set(conn.slot, poll);
        if !self.tables.has(conn.slot, REGISTERED) {
            self.enters += 1;
            match self.epoll.add(fd, u64::from(conn.slot)) {
                Ok(()) => self.tables.set(conn.slot, REGISTERED),
                // No memory, or fs.epoll.max_user_watches. The plane would get no event of this socket: it ends the
                // connection as if the peer had.
                Err(_) => {
                    sys::shutdown(fd, libc::SHUT_RDWR);
                    self.tables.set(conn.slot, READABLE | WRITABLE | LAST);
                }
            }
        }
        self.fire(conn.slot);
    }

    /// Completes the armed polls of a slot whose known state satisfies them.
    fn fire(&mut self, slot: u32) {
        let done = CompletionKey { slot, generation: self.tables.generation(slot) };
        if self.tables.has(slot, POLL_IN | READABLE) {
            self.tables.clear(slot, POLL_IN);
            self.ready.push_back(Completion::Readable(done));
        }
        if self.tables.has(slot, POLL_OUT | WRITABLE) {
            self.tables.clear(slot, POLL_OUT);
            self.ready.push_back(Completion::Writable(done));
        }
    }

    fn receive(&mut self, conn: ConnId, span: ArenaSpan) {
        let Some(fd) = self.tables.fd(conn.slot) else { return self.arena.free(span) };
        let len = self.arena.len(&span);
        self.enters += 1;
        let result = sys::recv(fd, self.arena.bytes(&span, len));
        if result == -libc::EAGAIN {
            self.tables.clear(conn.slot, READABLE | LAST);
        } else if result > 0 && (result as usize) < len && !self.tables.has(conn.slot, LAST) {
            // The receive took all bytes. The kernel reports the next ones as a change.
            self.tables.clear(conn.slot, READABLE);
        }
        self.ready.push_back(Completion::Received { done: key(conn), span, result });
    }

    fn send_now(&mut self, conn: ConnId, output: PendingOutput) {
        let Some(fd) = self.tables.fd(conn.slot) else {
            return self.sent.push(Sent { conn, output, refused: Some(-libc::EBADF) });
        };
        self.enters += 1;
        let len = output.as_bytes().len();
        let result = sys::send(fd, output.as_bytes());
        let refused = (usize::try_from(result) != Ok(len)).then_some(result);
        if refused.is_some() {
            self.tables.clear(conn.slot, WRITABLE);
        }
        self.sent.push(Sent { conn, output, refused });
    }

    /// Leaves a socket in the tray of another shard.
    fn move_now(&mut self, conn: ConnId, target: &TableAddress, word: u64) {
        let TableAddress::Tray(tray, table) = target else {
            // Invariant: all shards of a process have the same kind of plane.
            unreachable!("a shard that polls has neighbours that poll")
        };
        self.tables.clear(conn.slot, POLL_IN | POLL_OUT);
        let was_registered = self.tables.has(conn.slot, REGISTERED);
        let Some(socket) = self.tables.take(conn.slot) else { return };
        if was_registered {
            self.enters += 1;
            // The call fails only for a descriptor that is not registered.
            let _ = self.epoll.remove(socket.as_raw_fd());
        }
        self.enters += 1;
        match tray.leave(*table, socket, word) {
            Ok(()) => {
                self.ready.push_back(Completion::Moved { done: key(conn), result: 0 });
                self.freed(conn);
            }
            Err((socket, result)) => {
                self.tables.put_back(conn.slot, socket);
                self.ready.push_back(Completion::Moved { done: key(conn), result });
            }
        }
    }

    /// Takes the sockets that other shards have left in the tray.
    fn collect(&mut self) {
        for arrival in self.tray.take() {
            let direct = self.tables.put(arrival.table, arrival.socket);
            self.ready.extend(Completion::arrival(arrival.word, arrival.table, direct as i32));
        }
    }

    /// Waits for events at most `millis` (-1: no limit), and completes the polls that they satisfy.
    fn poll(&mut self, millis: i32) {
        self.enters += 1;
        let count = self.epoll.wait(millis);
        self.has_more = count == EVENTS_MAX;
        for at in 0..count {
            let event = self.epoll.event(at);
            if event.data == WAKE {
                self.ready.push_back(Completion::Woken);
            } else if event.data & LISTENER != 0 {
                self.accepts.notify_ready((event.data & !LISTENER) as RawFd);
            } else {
                self.record(event);
            }
        }
    }

    /// Records an event of a socket.
    fn record(&mut self, event: Event) {
        // The plane has closed no socket since the wait: the slot still has the socket of the event.
        let slot = event.data as u32;
        let facts = [(event.readable, READABLE), (event.writable, WRITABLE), (event.is_last, LAST)];
        facts.into_iter().filter(|(is_so, _)| *is_so).for_each(|(_, fact)| self.tables.set(slot, fact));
        self.fire(slot);
    }

    /// Carries out the armed accepts for which connections may wait.
    fn accept_waiting(&mut self) {
        let PollPlane { accepts, tables, tray, ready, enters, .. } = self;
        let accept = |fd, ring| {
            if !tray.reserve(ring) {
                return Some(-libc::ENFILE);
            }
            *enters += 1;
            match sys::accept(fd) {
                Ok(socket) => Some(tables.put(ring, socket) as i32),
                Err(errno) => {
                    tray.release(ring);
                    (errno != -libc::EAGAIN).then_some(errno)
                }
            }
        };
        accepts.carry_out(accept, |listener, ring, result| {
            ready.push_back(Completion::Accepted { listener, ring, result });
        });
    }

    /// Registers a listener with its first accept.
    fn register(&mut self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let raw = fd.as_raw_fd();
        if !self.accepts.knows(raw) {
            sys::set_nonblocking(fd)?;
            self.epoll.add(raw, LISTENER | raw as u64)?;
            self.accepts.register(raw);
        }
        Ok(())
    }
}

/// Returns the name of a connection in its completions.
fn key(conn: ConnId) -> CompletionKey {
    CompletionKey { slot: conn.slot, generation: conn.generation as u16 }
}

impl Plane for PollPlane {
    fn rings(&self) -> u16 {
        self.rings
    }

    fn table(&self) -> u32 {
        self.table
    }

    fn address(&self, ring: u16) -> TableAddress {
        TableAddress::Tray(self.tray.clone(), ring)
    }

    fn slot(&self, ring: u16, direct: u32) -> u32 {
        u32::from(ring) << self.shift | direct
    }

    fn ring_of(&self, slot: u32) -> u16 {
        (slot >> self.shift) as u16
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn accept(&mut self, ring: u16, listener: u32, arming: u16, fd: BorrowedFd<'_>) {
        match self.register(fd) {
            Ok(()) => self.accepts.arm(ring, listener, arming, fd.as_raw_fd()),
            // The reactor arms the accept again after a pause.
            Err(error) => {
                let result = -error.raw_os_error().unwrap_or(libc::EIO);
                self.ready.push_back(Completion::Accepted { listener, ring, result });
            }
        }
    }

    fn cancel_accepts(&mut self, ring: u16, listener: u32, arming: u16) {
        let cancelled = |_| Completion::Accepted { listener, ring, result: -libc::ECANCELED };
        self.ready.extend((0..self.accepts.cancel(ring, listener, arming)).map(cancelled));
    }

    fn poll_in(&mut self, conn: ConnId) {
        self.stage(Op::PollIn(conn));
    }

    fn poll_out(&mut self, conn: ConnId) {
        self.stage(Op::PollOut(conn));
    }

    fn recv(&mut self, conn: ConnId, size: SpanSize) -> bool {
        let Some(span) = self.arena.take(size) else { return false };
        self.stage(Op::Recv(conn, span));
        true
    }

    fn ask_peer(&mut self, conn: ConnId, family: Family) -> bool {
        let Some(span) = self.arena.take(SpanSize::Small) else { return false };
        self.stage(Op::Peer(conn, span, family));
        true
    }

    fn send(&mut self, conn: ConnId, output: PendingOutput) {
        self.stage(Op::Send(conn, output));
    }

    fn shutdown(&mut self, conn: ConnId) {
        self.stage(Op::Shutdown(conn));
    }

    fn close(&mut self, conn: ConnId, _poll_in: bool, _poll_out: bool) {
        self.stage(Op::Close(conn));
    }

    fn move_claimed(&mut self, conn: ConnId, _polls: (bool, bool), target: TableAddress, claim: Claim, tls: bool) {
        self.stage(Op::Move(conn, target, claimed(claim, tls)));
    }

    fn move_dealt(&mut self, conn: ConnId, target: TableAddress, kind: u32) {
        self.stage(Op::Move(conn, target, dealt(kind)));
    }

    fn move_handed_over(&mut self, conn: ConnId, _poll_in: bool, target: TableAddress, from: Origin) {
        self.stage(Op::Move(conn, target, from.word()));
    }

    /// Does nothing: this plane freezes no connection.
    fn mark_live(&mut self, _slot: u32) {}

    fn take_out(&mut self, conn: ConnId) {
        self.ready.push_back(Completion::TakenOut { done: key(conn), socket: Err(io::ErrorKind::Unsupported.into()) });
    }

    fn vacate(&mut self, _conn: ConnId) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn put_in(&mut self, _conn: ConnId, _socket: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn occupy(&mut self, _ring: u16, _direct: u32) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn bell(&mut self, hub: &TableAddress) {
        if let TableAddress::Tray(tray, _) = hub {
            self.enters += 1;
            tray.wake();
        }
    }

    fn enter(&mut self) -> bool {
        let (before, staged) = (self.ready.len(), !self.ops.is_empty());
        self.submit();
        self.collect();
        self.poll(0);
        self.accept_waiting();
        staged || self.ready.len() > before
    }

    fn next_sent(&mut self) -> Option<Sent> {
        self.sent.pop()
    }

    fn next(&mut self) -> Option<Completion> {
        self.ready.pop_front()
    }

    fn ready(&self) -> usize {
        self.ready.len()
    }

    fn has_more(&mut self) -> bool {
        self.has_more
    }

    fn trim(&mut self) {
        self.tables.trim();
        if self.ready.is_empty() {
            self.ready.shrink_to(READY_KEPT);
        }
    }

    fn enters(&self) -> u64 {
        self.enters
    }

    fn wake_at(&mut self, now: Instant, until: Instant) {
        self.timeout = Some(until.since(now));
    }

    fn watch(&mut self) -> bool {
        true
    }

    /// Waits for one event: epoll cannot gather several.
    fn wait(&mut self, _gather: bool) -> bool {
        let is_quiet = self.ready.is_empty() && self.sent.is_empty() && self.ops.is_empty() && !self.has_more;
        // The tray comes last: from here on, a shard that leaves a socket wakes this one.
        if !is_quiet || !self.tray.sleep() {
            self.tray.awake();
            return false;
        }
        // Rounded up: after a wait that ends early the shard would only wait again.
        let millis =
            self.timeout.take().map_or(-1, |span| i32::try_from(span.0.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        self.poll(millis);
        self.tray.awake();
        if self.ready.is_empty() {
            self.ready.push_back(Completion::Woken);
        }
        true
    }
}

impl Drop for PollPlane {
    fn drop(&mut self) {
        self.tray.close();
    }
}
