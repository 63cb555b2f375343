//! One ring with its table of direct descriptors, and the submission being staged.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use io_uring::types::{DestinationSlot, Fixed};
use io_uring::{IoUring, opcode, squeue};

use super::memory::{Memory, SPAN_BYTES, Span, Spans};
use super::wire::{Place, Wire};
use crate::fleet::user_data::{AUX_MAX, ConnKey, Done, Kind, decode, encode};

/// A send that a socket did not take in full.
pub(in crate::fleet) struct Short {
    pub name: ConnKey,
    /// Number of bytes that went out; an errno if negative.
    pub result: i32,
    /// All that was staged.
    pub bytes: Vec<u8>,
}

/// Way in which a connection is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fleet) struct Cut {
    /// By RST instead of FIN.
    pub reset: bool,
    /// The connect may still be under way.
    pub connecting: bool,
    /// A poll for room may be armed.
    pub room: bool,
}

struct Staged {
    name: ConnKey,
    slot: u32,
    at: usize,
    len: usize,
}

/// A ring, its table, and the bytes of the submission being staged.
pub(super) struct Ring {
    // Dropped first: after it nothing below is read by the kernel again.
    io: IoUring,
    wire: Rc<Wire>,
    spans: Rc<Spans>,
    sends: Memory,
    used: usize,
    staged: Vec<Staged>,
    /// One bit for each slot with a send in `staged`.
    sending: Box<[u64]>,
}

/// Bytes of the sends of one submission.
pub(super) const SENDS_BYTES: usize = 32 * 1024;
/// Entries that a connect takes: socket, two options, bind, connect, send, poll.
pub(super) const CONNECT_ENTRIES: usize = 7;
/// Entries that a close takes: linger, cancel, two polls, close.
pub(super) const CLOSE_ENTRIES: usize = 5;

const ENTER_GETEVENTS: u32 = 1;
/// The kernel runs some 20 pieces of deferred work per visit; a busy ring gets up to this number of visits to batch
/// more.
const VISITS_MAX: u32 = 16;
const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
const POLL_INPUT: u32 = (libc::POLLIN | libc::POLLRDHUP) as u32;
const POLL_ROOM: u32 = libc::POLLOUT as u32;

static ONE: i32 = 1;
static NO_LINGER: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

impl Ring {
    pub(super) fn new(table: u32, event: RawFd, wire: Rc<Wire>, spans: Rc<Spans>) -> io::Result<Ring> {
        let entries = table.clamp(64, 1_024).next_power_of_two();
        let io: IoUring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(entries * 4)
            .build(entries)?;
        io.submitter().register_files_sparse(table)?;
        io.submitter().register_eventfd(event)?;
        let sending = vec![0; (table as usize).div_ceil(64)].into_boxed_slice();
        let mut ring = Ring { io, wire, spans, sends: Memory::new(SENDS_BYTES), used: 0, staged: Vec::new(), sending };
        ring.io.completion().disable_eventfd();
        Ok(ring)
    }

    /// Announce completions on the eventfd or not.
    pub(super) fn announce(&mut self, on: bool) {
        if on { self.io.completion().enable_eventfd() } else { self.io.completion().disable_eventfd() }
    }

    pub(super) fn has_room(&mut self, entries: usize) -> bool {
        let queue = self.io.submission();
        queue.capacity() - queue.len() >= entries
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: what an entry points to stays in place for as long as the kernel may look at it. Addresses of sockets
        // and upgrade requests are in `wire`, which is never changed; options are statics; spans are in `spans` and
        // owned by the kernel until the receive completes; bytes in `sends` are not written to until the submission
        // has returned. All of them live behind `io`, or outlive it.
        let pushed = unsafe { self.io.submission().push(entry) };
        assert!(pushed.is_ok(), "the caller made room in the submission queue");
    }

    /// Returns true if a visit is due: something staged, deferred work, completions, or completions that overflowed.
    pub(super) fn busy(&mut self) -> bool {
        let queue = self.io.submission();
        if !queue.is_empty() || queue.taskrun() || queue.cq_overflow() {
            return true;
        }
        drop(queue);
        !self.io.completion().is_empty()
    }

    /// Submits what is staged, runs deferred work and reaps every completion there is. Every SEND is then over; what
    /// was not taken is in `short`.
    pub(super) fn enter(&mut self, ready: &mut VecDeque<Done>, short: &mut Vec<Short>) -> io::Result<()> {
        for visit in 1.. {
            let staged = self.io.submission().len() as u32;
            // SAFETY: no argument is passed; the entries are those of `push`.
            let entered = unsafe { self.io.submitter().enter::<libc::sigset_t>(staged, 0, ENTER_GETEVENTS, None) };
            if let Err(error) = entered {
                // EINTR: again. EAGAIN, EBUSY: the kernel is short of memory or of room for completions, which
                // reaping makes.
                if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) {
                    return Err(error);
                }
            }
            self.reap(ready, short);
            let queue = self.io.submission();
            let more = queue.taskrun() && visit < VISITS_MAX;
            if queue.is_empty() && !queue.cq_overflow() && !more {
                break;
            }
        }
        for Staged { slot, .. } in self.staged.drain(..) {
            self.sending[slot as usize / 64] &= !(1 << (slot % 64));
        }
        self.used = 0;
        Ok(())
    }

    fn reap(&mut self, ready: &mut VecDeque<Done>, short: &mut Vec<Short>) {
        for entry in self.io.completion() {
            let done = decode(entry.user_data(), entry.result());
            match done.kind {
                Kind::Ignored => {}
                Kind::Poll | Kind::Room | Kind::Connect | Kind::Setup if done.result == -libc::ECANCELED => {}
                Kind::Send => {
                    if let Some(Staged { name, at, len, .. }) = self.staged.get(done.aux) {
                        let bytes = self.sends.read(*at, *len).to_vec();
                        short.push(Short { name: *name, result: done.result, bytes });
                    }
                }
                _ => ready.push_back(done),
            }
        }
    }

    /// Stages a whole connection: a socket in `slot`, connected from and to `place`, the upgrade request sent, and
    /// its first poll. The first thing that completes is that poll or the one failure. Over TLS the poll for room takes
    /// the place of the request.
    pub(super) fn connect(&mut self, slot: u32, name: ConnKey, place: Place) {
        let quiet = squeue::Flags::SKIP_SUCCESS;
        let wire = self.wire.clone();
        let target = wire.target(place);
        let setup = encode(Kind::Setup, 0, name);
        let option = |level: i32, option: i32| {
            let value = (&raw const ONE).cast();
            let entry = opcode::SetSockOpt::new(Fixed(slot), level as u32, option as u32, value, 4).build();
            entry.flags(quiet).user_data(setup)
        };
        let socket = opcode::Socket::new(target.domain(), libc::SOCK_STREAM, libc::IPPROTO_TCP)
            .file_index(DestinationSlot::try_from_slot_target(slot).ok())
            .build();
        self.push(&socket.flags(quiet).user_data(setup));
        self.push(&option(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        if let Some(source) = wire.source(place) {
            self.push(&option(libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT));
            let bind = opcode::Bind::new(Fixed(slot), source.pointer(), source.len()).build();
            self.push(&bind.flags(quiet).user_data(setup));
        }
        let linked = quiet | squeue::Flags::IO_LINK;
        let connect = opcode::Connect::new(Fixed(slot), target.address.pointer(), target.address.len()).build();
        self.push(&connect.flags(linked).user_data(encode(Kind::Connect, 0, name)));
        if wire.upgrades_first {
            let request = &target.upgrade;
            let send = opcode::Send::new(Fixed(slot), request.as_ptr(), request.len() as u32).flags(SEND_FLAGS).build();
            self.push(&send.flags(linked).user_data(setup));
        } else {
            let room = opcode::PollAdd::new(Fixed(slot), POLL_ROOM).build();
            self.push(&room.flags(squeue::Flags::IO_LINK).user_data(encode(Kind::Room, 0, name)));
        }
        self.poll(slot, name);
    }

    /// Stages the poll of an idle connection.
    fn poll(&mut self, slot: u32, name: ConnKey) {
        let entry = opcode::PollAdd::new(Fixed(slot), POLL_INPUT).build();
        self.push(&entry.user_data(encode(Kind::Poll, 0, name)));
    }

    /// Stages the poll of a blocked connection.
    pub(super) fn poll_room(&mut self, slot: u32, name: ConnKey) {
        let entry = opcode::PollAdd::new(Fixed(slot), POLL_ROOM).build();
        self.push(&entry.user_data(encode(Kind::Room, 0, name)));
    }

    /// Stages a receive, and the next poll behind it: what is left then completes that at once.
    pub(super) fn receive(&mut self, slot: u32, name: ConnKey, span: Span) {
        let target = self.spans.pointer(&span);
        let entry = opcode::Recv::new(Fixed(slot), target, SPAN_BYTES as u32).flags(libc::MSG_DONTWAIT).build();
        self.push(&entry.user_data(encode(Kind::Recv, span.index(), name)));
        self.poll(slot, name);
    }

    /// Returns true if `len` bytes for `slot` can be staged: a socket has one send in a submission, or a short first
    /// one would tear the stream.
    pub(super) fn can_send(&mut self, slot: u32, len: usize) -> bool {
        let sending = self.sending[slot as usize / 64] >> (slot % 64) & 1 == 1;
        !sending && self.used + len <= self.sends.len() && self.staged.len() < AUX_MAX && self.has_room(1)
    }

    /// Stages a send; the caller asked [`Ring::can_send`].
    pub(super) fn send(&mut self, slot: u32, name: ConnKey, bytes: &[u8]) {
        let (at, len) = (self.used, bytes.len());
        self.sends.write(at, bytes);
        let entry = opcode::Send::new(Fixed(slot), self.sends.pointer(at, len), len as u32).flags(SEND_FLAGS).build();
        let user_data = encode(Kind::Send, self.staged.len(), name);
        self.push(&entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(user_data));
        self.used += len;
        self.staged.push(Staged { name, slot, at, len });
        self.sending[slot as usize / 64] |= 1 << (slot % 64);
    }

    /// Stages the end. A pending operation pins the file and no FIN would be sent, so all of them go first.
    pub(super) fn close(&mut self, slot: u32, name: ConnKey, cut: Cut) {
        let nobody = ConnKey { agent: 0, generation: 0 };
        let ignored =
            |entry: squeue::Entry| entry.flags(squeue::Flags::SKIP_SUCCESS).user_data(encode(Kind::Ignored, 0, nobody));
        if cut.reset {
            let (value, len) = ((&raw const NO_LINGER).cast(), size_of::<libc::linger>() as u32);
            let (level, option) = (libc::SOL_SOCKET as u32, libc::SO_LINGER as u32);
            self.push(&ignored(opcode::SetSockOpt::new(Fixed(slot), level, option, value, len).build()));
        }
        if cut.connecting {
            self.push(&ignored(opcode::AsyncCancel::new(encode(Kind::Connect, 0, name)).build()));
        }
        self.push(&ignored(opcode::PollRemove::new(encode(Kind::Poll, 0, name)).build()));
        if cut.room {
            self.push(&ignored(opcode::PollRemove::new(encode(Kind::Room, 0, name)).build()));
        }
        self.push(&ignored(opcode::Close::new(Fixed(slot)).build()));
    }
}
