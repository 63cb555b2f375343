//! The rings of a shard as one: stages operations by connection, submits them, hands out completions.
//!
//! Every method stages only; [`Plane::enter`] submits. A connection's ring is the upper part of its slot.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::{opcode, squeue, types};

use machine::ids::{Claim, ConnId};
use machine::time::Instant;

use super::arena::{Arena, ArenaSpan, SpanSize};
use super::fence::RingUses;
use super::hub::Hub;
use super::layout::PlaneConfig;
use super::op::{AUX_MAX, Completion, Cqe, Kind, Origin, claimed, dealt, decode, encode_conn, encode_plain};
use super::peer::{self, Family};
use super::pending_output::PendingOutput;
use super::port::{Plane, Sent, TableAddress};
use super::uring::{self, Ring, Sending};

/// All rings of a shard. Rings come first, so that they are dropped before what their operations point to.
pub(crate) struct RingPlane {
    rings: Vec<Ring>,
    hub: Hub,
    arena: Arena,
    ready: VecDeque<Cqe>,
    sent: Vec<Sent>,
    shift: u32,
    table: u32,
    event: RawFd,
    enters: u64,
}

/// Completions that the queue of reaped ones always has room for.
const READY_KEPT: usize = 4_096;

const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_NOSIGNAL;
const POLL_INPUT: u32 = (libc::POLLIN | libc::POLLRDHUP) as u32;
const POLL_ROOM: u32 = libc::POLLOUT as u32;

impl RingPlane {
    /// Opens the rings. On the shard's thread. Completions of all rings but the hub are announced on
    /// `event`, its waker's eventfd.
    pub(crate) fn new(config: PlaneConfig, uses: RingUses, event: BorrowedFd<'_>) -> io::Result<RingPlane> {
        let mut rings = Vec::with_capacity(usize::from(config.rings));
        for number in 0..config.rings {
            // The hub polls the eventfd, and would wake itself.
            let announces_on = (number > 0).then(|| event.as_raw_fd());
            rings.push(Ring::new(number, config, uses, announces_on)?);
        }
        Ok(RingPlane {
            rings,
            hub: Hub::new(),
            arena: Arena::new(),
            ready: VecDeque::new(),
            sent: Vec::new(),
            shift: config.shift(),
            table: config.table,
            event: event.as_raw_fd(),
            enters: 0,
        })
    }

    fn direct(&self, conn: ConnId) -> types::Fixed {
        types::Fixed(conn.slot & ((1 << self.shift) - 1))
    }

    fn stage(&mut self, ring: u16, entry: &squeue::Entry) {
        self.make_room(ring, 1);
        self.rings[usize::from(ring)].push(entry);
    }

    fn make_room(&mut self, ring: u16, entries: usize) {
        if !self.rings[usize::from(ring)].has_room(entries) {
            self.enter_ring(usize::from(ring));
        }
    }

    fn remove_polls(&mut self, conn: ConnId, poll_in: bool, poll_out: bool) {
        for (armed, kind) in [(poll_in, Kind::PollIn), (poll_out, Kind::PollOut)] {
            if armed {
                let entry = opcode::PollRemove::new(encode_conn(kind, 0, conn))
                    .build()
                    .flags(squeue::Flags::SKIP_SUCCESS)
                    .user_data(encode_plain(Kind::Ignored, 0, 0));
                self.stage(self.ring_of(conn.slot), &entry);
            }
        }
    }

    /// Stages the move of a descriptor into a ring of another shard (RULES.md): polls removed, unlinked
    /// (they may have fired), then SEND_FD linked to Close. `encode_conn` is what the target reaps.
    fn send_fd(&mut self, conn: ConnId, polls: (bool, bool), target: TableAddress, word_there: u64) {
        self.remove_polls(conn, polls.0, polls.1);
        let ring = self.ring_of(conn.slot);
        // A chain that spans two submissions is no chain.
        self.make_room(ring, 2);
        let direct = self.direct(conn);
        let slot = types::DestinationSlot::auto_target();
        let send = opcode::MsgRingSendFd::new(types::Fd(ring_of_shard(&target)), direct, slot, word_there)
            .build()
            .flags(squeue::Flags::IO_LINK)
            .user_data(encode_conn(Kind::SendFd, 0, conn));
        let close = opcode::Close::new(direct).build().user_data(encode_conn(Kind::Close, 0, conn));
        let ring = &mut self.rings[usize::from(ring)];
        ring.push(&send);
        ring.push(&close);
    }

    fn replace(&mut self, conn: ConnId, fd: RawFd) -> io::Result<()> {
        let direct = self.direct(conn).0;
        self.rings[usize::from(self.ring_of(conn.slot))].replace(direct, fd)
    }

    fn enter_ring(&mut self, at: usize) {
        let ring = &mut self.rings[at];
        ring.enter(&mut self.ready);
        self.enters += 1;
        self.sent.extend(ring.sends.drain(..).map(|Sending { conn, output, refused }| Sent { conn, output, refused }));
    }

    fn read(&mut self, cqe: Cqe) -> Option<Completion> {
        let Cqe { word, result, more, ring } = cqe;
        let Some((kind, aux, done)) = decode(word) else { return Completion::arrival(word, ring, result) };
        const ACCEPT: u8 = Kind::Accept as u8;
        const POLL_IN: u8 = Kind::PollIn as u8;
        const POLL_OUT: u8 = Kind::PollOut as u8;
        const RECV: u8 = Kind::Recv as u8;
        const SHUTDOWN: u8 = Kind::Shutdown as u8;
        const CLOSE: u8 = Kind::Close as u8;
        const SEND_FD: u8 = Kind::SendFd as u8;
        const TIMEOUT: u8 = Kind::Timeout as u8;
        const BELL: u8 = Kind::Bell as u8;
        const EVENT: u8 = Kind::Event as u8;
        const PEER: u8 = Kind::Peer as u8;
        const TAKEN_OUT: u8 = Kind::TakenOut as u8;
        Some(match kind {
            ACCEPT => Completion::Accepted { listener: done.slot, ring, result },
            POLL_IN => Completion::Readable(done),
            POLL_OUT => Completion::Writable(done),
            RECV => Completion::Received { done, span: ArenaSpan::of_completion(aux), result },
            PEER => Completion::Peer { done, span: ArenaSpan::of_completion(aux), result },
            SHUTDOWN => Completion::ShutDown { done, result },
            CLOSE => Completion::Closed { done, result },
            SEND_FD => Completion::Moved { done, result },
            TAKEN_OUT => Completion::TakenOut { done, socket: uring::installed(result) },
            TIMEOUT => {
                self.hub.fired(aux);
                Completion::Woken
            }
            BELL => Completion::Woken,
            EVENT => {
                self.hub.watching &= more;
                Completion::Woken
            }
            _ => return Completion::arrival(word, ring, result),
        })
    }

    /// Announces completions of all rings but the hub, then says whether all is quiet, so that the thread may sleep.
    pub(super) fn announce(&mut self) -> bool {
        for ring in &mut self.rings[1..] {
            ring.announce(true);
        }
        Ring::announced();
        self.ready.is_empty() && self.sent.is_empty() && !self.rings.iter_mut().any(Ring::busy)
    }

    /// The thread is awake: completions need no announcement.
    pub(super) fn awake(&mut self) {
        for ring in &mut self.rings[1..] {
            ring.announce(false);
        }
    }
}

impl Plane for RingPlane {
    fn rings(&self) -> u16 {
        self.rings.len() as u16
    }

    fn table(&self) -> u32 {
        self.table
    }

    fn address(&self, ring: u16) -> TableAddress {
        TableAddress::Ring(self.rings[usize::from(ring)].fd())
    }

    fn arena(&mut self) -> &mut Arena {
        &mut self.arena
    }

    fn enters(&self) -> u64 {
        self.enters
    }

    fn slot(&self, ring: u16, direct: u32) -> u32 {
        u32::from(ring) << self.shift | direct
    }

    fn ring_of(&self, slot: u32) -> u16 {
        (slot >> self.shift) as u16
    }

    fn accept(&mut self, ring: u16, listener: u32, arming: u16, fd: BorrowedFd<'_>) {
        let entry = opcode::Accept::new(types::Fd(fd.as_raw_fd()), std::ptr::null_mut(), std::ptr::null_mut())
            .file_index(Some(types::DestinationSlot::auto_target()))
            .build()
            .user_data(encode_plain(Kind::Accept, usize::from(arming), listener));
        self.stage(ring, &entry);
    }

    fn cancel_accepts(&mut self, ring: u16, listener: u32, arming: u16) {
        let accepts = types::CancelBuilder::user_data(encode_plain(Kind::Accept, usize::from(arming), listener)).all();
        let entry = opcode::AsyncCancel2::new(accepts).build().user_data(encode_plain(Kind::Ignored, 0, 0));
        self.stage(ring, &entry);
    }

    fn poll_in(&mut self, conn: ConnId) {
        let entry =
            opcode::PollAdd::new(self.direct(conn), POLL_INPUT).build().user_data(encode_conn(Kind::PollIn, 0, conn));
        self.stage(self.ring_of(conn.slot), &entry);
    }

    fn poll_out(&mut self, conn: ConnId) {
        let entry =
            opcode::PollAdd::new(self.direct(conn), POLL_ROOM).build().user_data(encode_conn(Kind::PollOut, 0, conn));
        self.stage(self.ring_of(conn.slot), &entry);
    }

    fn recv(&mut self, conn: ConnId, size: SpanSize) -> bool {
        let Some(span) = self.arena.take(size) else { return false };
        let (target, len) = self.arena.target(&span);
        let entry = opcode::Recv::new(self.direct(conn), target, len)
            .flags(libc::MSG_DONTWAIT)
            .build()
            .user_data(encode_conn(Kind::Recv, span.index(), conn));
        self.stage(self.ring_of(conn.slot), &entry);
        true
    }

    fn ask_peer(&mut self, conn: ConnId, family: Family) -> bool {
        let Some(span) = self.arena.take(SpanSize::Small) else { return false };
        let (target, _) = self.arena.target(&span);
        let entry =
            peer::entry(self.direct(conn), family, target).user_data(encode_conn(Kind::Peer, span.index(), conn));
        self.stage(self.ring_of(conn.slot), &entry);
        true
    }

    fn send(&mut self, conn: ConnId, output: PendingOutput) {
        let ring = self.ring_of(conn.slot);
        self.make_room(ring, 1);
        let direct = self.direct(conn);
        if self.rings[usize::from(ring)].sends.len() == AUX_MAX {
            self.enter_ring(usize::from(ring));
        }
        let sends = &mut self.rings[usize::from(ring)].sends;
        debug_assert!(sends.iter().all(|other| other.conn != conn), "one send per socket and submission");
        let bytes = output.as_bytes();
        let entry = opcode::Send::new(direct, bytes.as_ptr(), bytes.len() as u32)
            .flags(SEND_FLAGS)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(encode_conn(Kind::Send, sends.len(), conn));
        // The bytes are on the heap: moving the outbox does not move them, and no code changes it in there.
        sends.push(Sending { conn, output, refused: None });
        self.rings[usize::from(ring)].push(&entry);
    }

    fn shutdown(&mut self, conn: ConnId) {
        let entry = opcode::Shutdown::new(self.direct(conn), libc::SHUT_WR).build().user_data(encode_conn(
            Kind::Shutdown,
            0,
            conn,
        ));
        self.stage(self.ring_of(conn.slot), &entry);
    }

    fn close(&mut self, conn: ConnId, poll_in: bool, poll_out: bool) {
        self.remove_polls(conn, poll_in, poll_out);
        let entry = opcode::Close::new(self.direct(conn)).build().user_data(encode_conn(Kind::Close, 0, conn));
        self.stage(self.ring_of(conn.slot), &entry);
    }

    fn move_claimed(&mut self, conn: ConnId, polls: (bool, bool), target: TableAddress, claim: Claim, tls: bool) {
        self.send_fd(conn, polls, target, claimed(claim, tls));
    }

    fn move_dealt(&mut self, conn: ConnId, target: TableAddress, kind: u32) {
        self.send_fd(conn, (false, false), target, dealt(kind));
    }

    fn move_handed_over(&mut self, conn: ConnId, poll_in: bool, target: TableAddress, from: Origin) {
        self.send_fd(conn, (poll_in, false), target, from.word());
    }

    fn mark_live(&mut self, slot: u32) {
        static LIVE: u32 = hibernate::LIVE_MARK;
        let direct = types::Fixed(slot & ((1 << self.shift) - 1));
        let (level, name) = (libc::SOL_SOCKET as u32, libc::SO_MARK as u32);
        let entry = opcode::SetSockOpt::new(direct, level, name, (&raw const LIVE).cast(), size_of::<u32>() as u32)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(encode_plain(Kind::Ignored, 0, 0));
        self.stage(self.ring_of(slot), &entry);
    }

    fn take_out(&mut self, conn: ConnId) {
        self.remove_polls(conn, true, false);
        let entry =
            opcode::FixedFdInstall::new(self.direct(conn), 0).build().user_data(encode_conn(Kind::TakenOut, 0, conn));
        self.stage(self.ring_of(conn.slot), &entry);
    }

    fn vacate(&mut self, conn: ConnId) -> io::Result<()> {
        self.replace(conn, self.event)
    }

    fn put_in(&mut self, conn: ConnId, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.replace(conn, socket.as_raw_fd())
    }

    fn occupy(&mut self, ring: u16, direct: u32) -> io::Result<()> {
        self.rings[usize::from(ring)].replace(direct, self.event)
    }

    fn bell(&mut self, hub: &TableAddress) {
        let entry = opcode::MsgRingData::new(types::Fd(ring_of_shard(hub)), 0, encode_plain(Kind::Bell, 0, 0), None)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS)
            .user_data(encode_plain(Kind::Ignored, 0, 0));
        self.stage(0, &entry);
    }

    fn enter(&mut self) -> bool {
        let mut busy = false;
        for at in 0..self.rings.len() {
            if self.rings[at].busy() {
                self.enter_ring(at);
                busy = true;
            }
        }
        busy
    }

    fn next_sent(&mut self) -> Option<Sent> {
        self.sent.pop()
    }

    fn next(&mut self) -> Option<Completion> {
        loop {
            let cqe = self.ready.pop_front()?;
            if let Some(completion) = self.read(cqe) {
                return Some(completion);
            }
        }
    }

    fn ready(&self) -> usize {
        self.ready.len()
    }

    fn has_more(&mut self) -> bool {
        self.rings.iter_mut().any(Ring::busy)
    }

    fn trim(&mut self) {
        if self.ready.is_empty() {
            self.ready.shrink_to(READY_KEPT);
        }
    }

    fn wake_at(&mut self, now: Instant, until: Instant) {
        if let Some((at, number)) = self.hub.armed {
            if at <= until {
                return;
            }
            let entry = opcode::TimeoutRemove::new(encode_plain(Kind::Timeout, number, 0))
                .build()
                .user_data(encode_plain(Kind::Ignored, 0, 0));
            self.stage(0, &entry);
        }
        // Room first: a submission in between would let go of the timespec.
        self.make_room(0, 1);
        let (number, timespec) = self.hub.set_timeout(until, until.since(now));
        let entry = opcode::Timeout::new(timespec).build().user_data(encode_plain(Kind::Timeout, number, 0));
        self.stage(0, &entry);
    }

    fn watch(&mut self) -> bool {
        let was_watching = self.hub.watching;
        if !was_watching {
            let entry = opcode::PollAdd::new(types::Fd(self.event), libc::POLLIN as u32)
                .multi(true)
                .build()
                .user_data(encode_plain(Kind::Event, 0, 0));
            self.stage(0, &entry);
            self.hub.watching = true;
        }
        was_watching
    }

    fn wait(&mut self, gather: bool) -> bool {
        let quiet = self.announce();
        if quiet && let Some(hub) = self.rings.first_mut() {
            hub.wait(gather, &mut self.ready);
            self.enters += 1;
        }
        self.awake();
        quiet
    }
}

/// The descriptor of the ring of another shard.
fn ring_of_shard(address: &TableAddress) -> RawFd {
    match address {
        TableAddress::Ring(fd) => *fd,
        // Invariant: all shards of a process have the same kind of plane.
        TableAddress::Tray(..) => unreachable!("a shard with rings has neighbours with rings"),
    }
}
