//! The slab of connections: one small entry per direct descriptor, in chunks that never move and go when they are
//! empty.
//!
//! This is what an idle connection costs in user memory (ARCHITECTURE.md 8.10). Anything rare is in
//! [`super::ConnBufferPool`].

use crate::ports::Port;
use machine::ids::ConnId;

use super::conn_buffers::NO_BUFFERS;
use super::op::CompletionKey;

/// State of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Free,
    /// The kernel is being asked for the address of its peer. No byte was read.
    Asking,
    /// Its PROXY header is being read.
    Heading,
    Open,
    /// Set apart: about to be frozen. As `Open`, but nothing is read.
    Apart,
    /// Its socket has left the kernel. Its slot holds the eventfd of the shard.
    Frozen,
    /// The descriptor is on its way to another shard.
    Moving,
    /// Goodbye: the last bytes are being sent.
    SendingLast,
    /// Goodbye: Shutdown(WR) is under way.
    ShuttingDown,
    /// Goodbye: input is read and thrown away.
    DiscardingInput,
    /// Close is staged; the slot is free when it completes.
    Closing,
}

/// Facts about a connection, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Flags(u16);

impl Flags {
    /// A command is under way: no byte is decoded until the machine is `Ready` (RULES.md rule 8).
    pub(crate) const BUSY: Flags = Flags(1);
    /// The socket took less than all; the machine knows.
    pub(crate) const BLOCKED: Flags = Flags(1 << 1);
    pub(crate) const POLL_IN: Flags = Flags(1 << 2);
    pub(crate) const POLL_OUT: Flags = Flags(1 << 3);
    pub(crate) const RECV: Flags = Flags(1 << 4);
    /// An outbox is with the plane.
    pub(crate) const SENDING: Flags = Flags(1 << 5);
    /// In the list of connections with something to send.
    pub(crate) const DIRTY: Flags = Flags(1 << 6);
    /// The machine knows this connection: an upgraded WebSocket it was not told the end of.
    pub(crate) const KNOWN: Flags = Flags(1 << 7);
    /// Goodbye when everything is sent.
    pub(crate) const LAST: Flags = Flags(1 << 8);
    /// The peer has ended its side, or the socket is broken: nothing is left to discard.
    pub(crate) const ENDED: Flags = Flags(1 << 9);
    /// Counted among the endpoint connections of this shard.
    pub(crate) const COUNTED: Flags = Flags(1 << 11);
    /// A request is half received.
    pub(crate) const PARTIAL: Flags = Flags(1 << 10);
    /// Has one of the places of its port.
    pub(crate) const PLACED: Flags = Flags(1 << 12);
    /// Refused: no place was left. Only its answer is owed.
    pub(crate) const REFUSED: Flags = Flags(1 << 13);
    /// In the line of WebSockets that are looked at for their timeouts.
    pub(crate) const WATCHED: Flags = Flags(1 << 14);
    /// Speaks TLS.
    pub(crate) const TLS: Flags = Flags(1 << 15);

    /// Returns true if all of these are set.
    pub(crate) fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn set(&mut self, other: Flags) {
        self.0 |= other.0;
    }

    pub(crate) fn clear(&mut self, other: Flags) {
        self.0 &= !other.0;
    }
}

/// Outcome of the last request of a connection that is no session. An idle session has none: its byte would cost a
/// megabyte for a million.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Standing {
    /// There was none.
    #[default]
    New,
    /// It was brought to the machine, which has not refused it.
    Proven,
    /// It was refused, or answered by the edge alone.
    Refused,
}

/// One connection.
pub(crate) struct Conn<C> {
    /// The edge's state; `None` in a free slot.
    pub codec: Option<C>,
    generation: u32,
    /// Index into the side table, or `NO_BUFFERS`.
    pub buffers: u32,
    /// Milliseconds, wrapping, since the process started: when what the HTTP timeouts measure began. Of an idle
    /// session: when it last received or sent something.
    pub since: u32,
    pub flags: Flags,
    pub state: State,
    pub port: Port,
}

impl<C> Conn<C> {
    /// Returns true if it has an entry in the side table.
    pub(crate) fn has_buffers(&self) -> bool {
        self.buffers != NO_BUFFERS
    }

    fn free() -> Conn<C> {
        // Sixteen bytes for a million connections beside what the edge keeps.
        const { assert!(size_of::<Conn<C>>() <= size_of::<Option<C>>().next_multiple_of(8) + 16) }
        Conn {
            codec: None,
            generation: 0,
            buffers: NO_BUFFERS,
            since: 0,
            flags: Flags::default(),
            state: State::Free,
            port: Port::WebSocket,
        }
    }
}

/// A connection that was just put into its slot.
pub(crate) struct NewConn {
    pub conn: ConnId,
    /// A side entry that the previous user of the slot still had.
    pub stale_buffers: u32,
}

const CHUNK: usize = 512;

struct Chunk<C> {
    conns: Box<[Conn<C>]>,
    /// One bit each: the last request was carried out; it was refused.
    proven: [u64; CHUNK / 64],
    refused: [u64; CHUNK / 64],
    /// Slots that are not free.
    occupied: u32,
}

/// All connections of a shard. Chunks come with the first use of a slot in them, and go with the last; the first of
/// each ring stays.
pub(crate) struct Conns<C> {
    chunks: Vec<Option<Chunk<C>>>,
    /// First generation of a chunk: behind every one that it ever gave out.
    begins: Vec<u32>,
    /// Occupied slots of each ring, closing ones included.
    occupied: Vec<u32>,
    shift: u32,
    open: u32,
    /// Connections of each port that have a place, by `Port as usize`.
    placed: [u32; PORTS],
}

const PORTS: usize = Port::Node as usize + 1;

impl<C> Conns<C> {
    /// For `rings` tables whose slots have `shift` bits.
    pub(crate) fn new(rings: u16, shift: u32) -> Conns<C> {
        let slots = usize::from(rings) << shift;
        let chunks: Vec<_> = (0..slots.div_ceil(CHUNK)).map(|_| None).collect();
        Conns {
            begins: vec![0; chunks.len()],
            chunks,
            occupied: vec![0; usize::from(rings)],
            shift,
            open: 0,
            placed: [0; PORTS],
        }
    }

    /// Connections that are not closing.
    pub(crate) fn open_count(&self) -> u32 {
        self.open
    }

    /// Connections of each port that have a place, by `Port as usize`.
    pub(crate) fn placed(&self) -> [u32; PORTS] {
        self.placed
    }

    /// Gives the connection a place of its port until it is closing.
    pub(crate) fn take_place(&mut self, conn: ConnId) {
        let Some(entry) = self.get_mut(conn) else { return };
        let at = entry.port as usize;
        let was_placed = entry.flags.has(Flags::PLACED);
        entry.flags.set(Flags::PLACED);
        self.placed[at] += u32::from(!was_placed);
    }

    /// Takes the place of the connection back.
    pub(crate) fn leave_place(&mut self, conn: ConnId) {
        let Some(entry) = self.get_mut(conn) else { return };
        let (at, placed) = (entry.port as usize, entry.flags.has(Flags::PLACED));
        entry.flags.clear(Flags::PLACED);
        self.placed[at] -= u32::from(placed);
    }

    /// Counts the connection, and its place if it has one, as of another port from now on.
    pub(crate) fn change_port(&mut self, conn: ConnId, port: Port) {
        let Some(entry) = self.get_mut(conn) else { return };
        let was = std::mem::replace(&mut entry.port, port);
        let placed = u32::from(entry.flags.has(Flags::PLACED));
        self.placed[was as usize] -= placed;
        self.placed[port as usize] += placed;
    }

    pub(crate) fn occupied(&self, ring: u16) -> u32 {
        self.occupied[usize::from(ring)]
    }

    /// Puts a new connection into `slot`. The kernel may give a slot out before we see the completion of its
    /// Close; that completion then names an earlier generation and is ignored.
    pub(crate) fn open(&mut self, slot: u32, port: Port, codec: Option<C>, since: u32) -> NewConn {
        let ring = (slot >> self.shift) as usize;
        let begin = self.begins[slot as usize / CHUNK];
        let chunk = &mut self.chunks[slot as usize / CHUNK];
        let chunk = chunk.get_or_insert_with(|| Chunk::new(begin));
        let entry = &mut chunk.conns[slot as usize % CHUNK];
        assert!(matches!(entry.state, State::Free | State::Closing), "the kernel gave out a slot that is in use");
        if entry.state == State::Free {
            self.occupied[ring] += 1;
            chunk.occupied += 1;
        }
        self.open += 1;
        let stale_buffers = std::mem::replace(&mut entry.buffers, NO_BUFFERS);
        let generation = entry.generation.wrapping_add(1);
        *entry = Conn { codec, generation, since, state: State::Open, port, ..Conn::free() };
        chunk.set_standing(slot as usize % CHUNK, Standing::New);
        NewConn { conn: ConnId { slot, generation }, stale_buffers }
    }

    /// Returns the outcome of the last request of this connection.
    pub(crate) fn standing(&self, conn: ConnId) -> Standing {
        let chunk = self.chunks.get(conn.slot as usize / CHUNK).and_then(Option::as_ref);
        chunk.map(|chunk| chunk.standing(conn.slot as usize % CHUNK)).unwrap_or_default()
    }

    /// Notes the outcome of a request of this connection, if it is still there.
    pub(crate) fn set_standing(&mut self, conn: ConnId, standing: Standing) {
        if self.get(conn).is_some()
            && let Some(Some(chunk)) = self.chunks.get_mut(conn.slot as usize / CHUNK)
        {
            chunk.set_standing(conn.slot as usize % CHUNK, standing);
        }
    }

    /// Close is staged: from now on only its completion finds the connection under this name.
    pub(crate) fn closing(&mut self, conn: ConnId) {
        self.leave_place(conn);
        if let Some(entry) = self.get_mut(conn) {
            entry.state = State::Closing;
            entry.codec = None;
            entry.flags = Flags::default();
            self.open -= 1;
        }
    }

    /// Close has completed: the slot is free. False when it was another use of the slot.
    pub(crate) fn closed(&mut self, done: CompletionKey) -> bool {
        let ring = (done.slot >> self.shift) as usize;
        let Some(entry) = self.entry_mut(done.slot) else { return false };
        if entry.state != State::Closing || entry.generation as u16 != done.generation {
            return false;
        }
        entry.state = State::Free;
        self.occupied[ring] -= 1;
        self.one_left(done.slot);
        true
    }

    /// A slot is free again: when it was the last of its chunk, that goes.
    fn one_left(&mut self, slot: u32) {
        let number = slot as usize / CHUNK;
        let Some(chunk) = &mut self.chunks[number] else { return };
        chunk.occupied -= 1;
        let in_ring = (slot & ((1 << self.shift) - 1)) as usize;
        // The slots of a small ring share a chunk with those of another.
        let is_first = in_ring < CHUNK;
        if chunk.occupied > 0 || is_first || chunk.conns.iter().any(|conn| conn.buffers != NO_BUFFERS) {
            return;
        }
        let generations = chunk.conns.iter().map(|conn| conn.generation);
        let later = |one: u32, other: u32| if other.wrapping_sub(one) < 1 << 31 { other } else { one };
        self.begins[number] = generations.reduce(later).unwrap_or_default();
        self.chunks[number] = None;
    }

    /// The full name of the connection that a completion is for, if it still is in the slot.
    pub(crate) fn name(&self, done: CompletionKey) -> Option<ConnId> {
        let entry = self.chunks.get(done.slot as usize / CHUNK)?.as_ref()?.conns.get(done.slot as usize % CHUNK)?;
        let current = entry.generation as u16 == done.generation;
        let alive = !matches!(entry.state, State::Free | State::Closing);
        (current && alive).then_some(ConnId { slot: done.slot, generation: entry.generation })
    }

    /// The connection of that name, unless it is closing or gone.
    pub(crate) fn get(&self, conn: ConnId) -> Option<&Conn<C>> {
        let entry = self.chunks.get(conn.slot as usize / CHUNK)?.as_ref()?.conns.get(conn.slot as usize % CHUNK)?;
        let alive = !matches!(entry.state, State::Free | State::Closing);
        (entry.generation == conn.generation && alive).then_some(entry)
    }

    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Conn<C>> {
        let entry = self.entry_mut(conn.slot)?;
        let alive = !matches!(entry.state, State::Free | State::Closing);
        (entry.generation == conn.generation && alive).then_some(entry)
    }

    fn entry_mut(&mut self, slot: u32) -> Option<&mut Conn<C>> {
        self.chunks.get_mut(slot as usize / CHUNK)?.as_mut()?.conns.get_mut(slot as usize % CHUNK)
    }

    /// Number of slots, occupied or not.
    pub(crate) fn slots(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// The name of the connection in that slot, unless it is closing or gone.
    pub(crate) fn occupant(&self, slot: u32) -> Option<ConnId> {
        let entry = self.chunks.get(slot as usize / CHUNK)?.as_ref()?.conns.get(slot as usize % CHUNK)?;
        let alive = !matches!(entry.state, State::Free | State::Closing);
        alive.then_some(ConnId { slot, generation: entry.generation })
    }

    /// Bytes of heap the slab holds.
    pub(crate) fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count();
        chunks * CHUNK * size_of::<Conn<C>>() + self.chunks.len() * (size_of::<Option<Chunk<C>>>() + 4)
    }
}

impl<C> Chunk<C> {
    fn new(begin: u32) -> Chunk<C> {
        let conns = (0..CHUNK).map(|_| Conn { generation: begin, ..Conn::free() });
        Chunk { conns: conns.collect(), proven: [0; CHUNK / 64], refused: [0; CHUNK / 64], occupied: 0 }
    }

    fn standing(&self, at: usize) -> Standing {
        let is_set = |bits: &[u64]| bits[at / 64] & (1 << (at % 64)) != 0;
        match (is_set(&self.proven), is_set(&self.refused)) {
            (true, _) => Standing::Proven,
            (false, true) => Standing::Refused,
            (false, false) => Standing::New,
        }
    }

    fn set_standing(&mut self, at: usize, standing: Standing) {
        let bit = 1 << (at % 64);
        for (bits, of) in [(&mut self.proven, Standing::Proven), (&mut self.refused, Standing::Refused)] {
            bits[at / 64] = if standing == of { bits[at / 64] | bit } else { bits[at / 64] & !bit };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an edge's: one pointer and a byte, with a niche.
    enum Codec {
        Idle,
        #[expect(dead_code, reason = "only its size matters")]
        Partial(Box<u64>, u32),
    }

    #[test]
    fn an_idle_connection_is_32_bytes() {
        assert_eq!(size_of::<Conn<Codec>>(), 32);
    }

    #[test]
    fn a_reused_slot_has_another_name() {
        let mut conns = Conns::new(2, 4);
        let first = conns.open(17, Port::WebSocket, Some(Codec::Idle), 0).conn;
        assert_eq!((conns.open_count(), conns.occupied(0), conns.occupied(1)), (1, 0, 1));
        conns.take_place(first);
        conns.take_place(first);
        assert_eq!(conns.placed(), [1, 0, 0], "one place for one connection");
        conns.closing(first);
        assert_eq!(conns.placed(), [0; PORTS]);
        assert!(conns.get(first).is_none());
        assert!(conns.closed(CompletionKey { slot: 17, generation: first.generation as u16 }));
        assert_eq!((conns.open_count(), conns.occupied(1)), (0, 0));
        let second = conns.open(17, Port::WebSocket, Some(Codec::Idle), 0).conn;
        assert_ne!(first, second);
        assert!(conns.get(first).is_none() && conns.get(second).is_some());
    }

    /// Of the slot in a chunk that stays, and of one whose chunk goes with its last connection.
    #[test]
    fn old_names_stay_stale_over_the_wrap_around_of_generations() {
        for slot in [3, 4_000] {
            let mut conns = Conns::new(1, 12);
            let mut names = vec![conns.open(slot, Port::WebSocket, Some(Codec::Idle), 0).conn];
            conns.entry_mut(slot).unwrap().generation = u32::MAX - 1;
            names[0].generation = u32::MAX - 1;
            for _ in 0..4 {
                let last = names[names.len() - 1];
                conns.closing(last);
                assert!(conns.closed(CompletionKey { slot, generation: last.generation as u16 }));
                let next = conns.open(slot, Port::WebSocket, Some(Codec::Idle), 0).conn;
                let stale = |name: &ConnId| {
                    let done = CompletionKey { slot, generation: name.generation as u16 };
                    conns.get(*name).is_none() && conns.name(done).is_none()
                };
                assert!(names.iter().all(stale) && conns.get(next).is_some());
                names.push(next);
            }
            assert!(names.iter().any(|name| name.generation < 4));
        }
    }

    #[test]
    fn chunks_that_a_crowd_needed_go_and_old_names_stay_stale() {
        let mut conns = Conns::new(2, 12);
        let names: Vec<_> =
            (0..8_192).map(|slot| conns.open(slot, Port::WebSocket, Some(Codec::Idle), 0).conn).collect();
        let full = conns.heap_bytes();
        for conn in &names {
            conns.closing(*conn);
            assert!(conns.closed(CompletionKey { slot: conn.slot, generation: conn.generation as u16 }));
        }
        assert!(conns.heap_bytes() * 7 < full, "the first chunk of each ring is kept");
        let again = conns.open(4_000, Port::WebSocket, Some(Codec::Idle), 0).conn;
        assert!(conns.get(names[4_000]).is_none() && conns.get(again).is_some());
        assert!(conns.name(CompletionKey { slot: 4_000, generation: names[4_000].generation as u16 }).is_none());
    }

    #[test]
    fn a_slot_given_out_before_its_close_was_seen_is_not_freed_by_it() {
        let mut conns = Conns::new(1, 4);
        let first = conns.open(3, Port::WebSocket, Some(Codec::Idle), 0).conn;
        conns.closing(first);
        let second = conns.open(3, Port::WebSocket, Some(Codec::Idle), 0).conn;
        assert!(!conns.closed(CompletionKey { slot: 3, generation: first.generation as u16 }));
        assert!(conns.get(second).is_some());
        assert_eq!((conns.open_count(), conns.occupied(0)), (1, 1));
    }
}
