//! Callers: the address behind a connection, as far as a setting needs it (`strangers.*`, `proxy.*`).
//!
//! Without such a setting nothing here runs. With one, a connection is not read before the kernel has told the address
//! of its peer. Behind a proxy that address is the proxy's; the caller's is in a PROXY header before the first byte, or
//! in the head of an upgrade. Peers that are not in `proxy.trusted` name no address but their own.
//!
//! A caller is counted while its connection lives, on the shard that holds the connection (`crate::strangers`).

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use crate::ports::{Edge, Port, ProxyHeader, Refused};
use crate::ring::{ArenaSpan, CompletionKey, Family, Flags, State, peer_address};
use crate::strangers::{Access, Limit, Stranger};
use machine::ids::ConnId;
use machine::limits::RELAYS_OF_ADDRESS_MAX;
use machine::time::{Instant, TimeSpan};

use super::caller_rules::CallerRules;
use super::{Machine, Reactor};

/// Callers of a shard.
pub(super) struct Callers {
    rules: CallerRules,
    /// True if a setting needs addresses. Fixed when the shard starts.
    asks: bool,
    named: Slots,
    /// Slots of relays, with the number of the address of each.
    relays: BTreeMap<u32, u64>,
    /// Connections whose address waits for a span.
    unasked: VecDeque<(ConnId, Family)>,
}

impl Callers {
    pub(super) fn new(rules: CallerRules) -> Callers {
        Callers {
            asks: rules.need_addresses(),
            rules,
            named: Slots::default(),
            relays: BTreeMap::new(),
            unasked: VecDeque::new(),
        }
    }

    /// Takes one of `limit` for the caller of this connection. Returns false beyond it.
    fn take(&self, conn: ConnId, limit: Limit, now: Instant) -> bool {
        match self.named.get(conn.slot) {
            Some(Caller::Stranger(stranger)) => self.rules.strangers.take(stranger, limit, now),
            Some(Caller::Proxy) | None => true,
        }
    }

    /// The connection ends, or leaves for another shard.
    pub(super) fn leave(&mut self, conn: ConnId, now: Instant) {
        self.relays.remove(&conn.slot);
        if let Some(Caller::Stranger(stranger)) = self.named.take(conn.slot) {
            self.rules.strangers.leave(stranger, now);
        }
    }

    /// Returns the caller of a connection that moves, as the last bytes that it carries; `None` while no setting needs
    /// callers.
    pub(super) fn packed(&self, conn: ConnId) -> Option<[u8; size_of::<u64>()]> {
        self.asks.then(|| self.named.number(conn.slot).to_le_bytes())
    }

    /// Takes the caller of a connection that has moved here off the end of `bytes`, and counts it here.
    pub(super) fn unpack<'a>(&mut self, conn: ConnId, now: Instant, bytes: &'a mut [u8]) -> &'a mut [u8] {
        if !self.asks {
            return bytes;
        }
        // Invariant: the bytes come from another shard of this process, whose rules are the same.
        let (rest, number) = bytes.split_last_chunk_mut().expect("a shard packs what it sends");
        let counted = |caller: &Caller| match caller {
            Caller::Stranger(stranger) => self.rules.strangers.enter_moved(*stranger, now),
            Caller::Proxy => true,
        };
        if let Some(caller) = Caller::of(u64::from_le_bytes(*number)).filter(counted) {
            self.named.set(conn.slot, caller);
        }
        rest
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.named.heap_bytes()
    }

    /// Gives back what a crowd needed.
    pub(super) fn trim(&mut self) {
        super::trim(&mut self.unasked);
    }
}

/// Party whose address a connection counts for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caller {
    /// A trusted proxy whose requests name their callers.
    Proxy,
    Stranger(Stranger),
}

impl Caller {
    /// The number of a proxy. No stranger has it ([`Stranger::number`]).
    const PROXY: u64 = u64::MAX;

    fn number(self) -> u64 {
        match self {
            Caller::Proxy => Caller::PROXY,
            Caller::Stranger(stranger) => stranger.number(),
        }
    }

    fn of(number: u64) -> Option<Caller> {
        match number {
            Caller::PROXY => Some(Caller::Proxy),
            number => Stranger::of_number(number).map(Caller::Stranger),
        }
    }
}

const CHUNK: usize = 512;

/// Callers by slot, eight bytes each, in chunks that go when they are empty.
#[derive(Default)]
struct Slots {
    chunks: Vec<Option<Box<Chunk>>>,
}

struct Chunk {
    /// 0: none.
    numbers: [u64; CHUNK],
    named: u16,
}

impl Slots {
    fn number(&self, slot: u32) -> u64 {
        let chunk = self.chunks.get(slot as usize / CHUNK).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk.numbers[slot as usize % CHUNK])
    }

    fn get(&self, slot: u32) -> Option<Caller> {
        Caller::of(self.number(slot))
    }

    fn set(&mut self, slot: u32, caller: Caller) {
        let at = slot as usize / CHUNK;
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || None);
        }
        let empty = || Box::new(Chunk { numbers: [0; CHUNK], named: 0 });
        let chunk = self.chunks[at].get_or_insert_with(empty);
        let was = std::mem::replace(&mut chunk.numbers[slot as usize % CHUNK], caller.number());
        chunk.named += u16::from(was == 0);
    }

    fn take(&mut self, slot: u32) -> Option<Caller> {
        let entry = self.chunks.get_mut(slot as usize / CHUNK)?;
        let chunk = entry.as_mut()?;
        let was = Caller::of(std::mem::take(&mut chunk.numbers[slot as usize % CHUNK]))?;
        chunk.named -= 1;
        if chunk.named == 0 {
            *entry = None;
        }
        Some(was)
    }

    fn heap_bytes(&self) -> usize {
        let chunks = self.chunks.iter().flatten().count();
        chunks * size_of::<Chunk>() + self.chunks.capacity() * size_of::<Option<Box<Chunk>>>()
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Serves a new connection, as soon as its caller is known if a setting needs that.
    pub(super) fn meet(&mut self, conn: ConnId, port: Port, family: Family) {
        // Other nodes prove their identity by a key.
        if !self.callers.asks || port == Port::Node {
            return self.serve(conn);
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::Asking;
        if !self.plane.ask_peer(conn, family) {
            self.stats.receives_starved += 1;
            self.callers.unasked.push_back((conn, family));
        }
    }

    /// Addresses that found no span get those that were freed meanwhile.
    pub(super) fn feed_unasked(&mut self) {
        for _ in 0..self.callers.unasked.len() {
            let Some((conn, family)) = self.callers.unasked.pop_front() else { return };
            if !self.plane.ask_peer(conn, family) {
                self.callers.unasked.push_front((conn, family));
                return;
            }
        }
    }

    /// The kernel has told the address of a peer, or that the peer is gone.
    pub(super) fn peer_told(&mut self, done: CompletionKey, span: ArenaSpan, result: i32) {
        let len = usize::try_from(result).unwrap_or_default();
        let address = peer_address(self.plane.arena().bytes(&span, len));
        self.plane.arena().free(span);
        let Some(conn) = self.conns.name(done) else { return };
        let Some(address) = address else { return self.close(conn) };
        let proxies = &self.callers.rules.proxies;
        let trusted = proxies.trusts(address);
        if proxies.protocol && !trusted {
            self.stats.proxy_headers_refused += 1;
            self.close(conn);
        } else if proxies.protocol {
            self.await_heading(conn);
        } else {
            self.welcome(conn, address, trusted);
        }
    }

    /// Reads the PROXY header of a connection first.
    fn await_heading(&mut self, conn: ConnId) {
        if let Some(entry) = self.conns.get_mut(conn) {
            entry.state = State::Heading;
            self.http.add(self.now.mono, conn);
            self.want_input(conn);
        }
    }

    /// Bytes of a PROXY header came, and perhaps bytes behind it.
    pub(super) fn read_heading(&mut self, conn: ConnId, span: ArenaSpan, len: usize) {
        let Some(entry) = self.conns.get_mut(conn) else { return self.plane.arena().free(span) };
        let input = &mut self.buffer_pool.entry(&mut entry.buffers, entry.port).input;
        input.keep(self.plane.arena().bytes(&span, len));
        self.plane.arena().free(span);
        match self.edge.proxy_header(input.bytes()) {
            ProxyHeader::Incomplete => self.want_input(conn),
            ProxyHeader::Malformed => {
                self.stats.proxy_headers_refused += 1;
                self.close(conn);
            }
            ProxyHeader::Whole { len, source } => {
                input.consume(len);
                match source {
                    Some(address) => self.welcome(conn, address, self.callers.rules.proxies.trusts(address)),
                    // The proxy speaks for itself: a health check.
                    None => self.serve(conn),
                }
                self.go_on_behind_heading(conn);
            }
        }
    }

    /// Hands on the bytes that came with the header.
    fn go_on_behind_heading(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn).filter(|entry| entry.state == State::Open) else { return };
        let Some(buffers) = self.buffer_pool.get(entry.buffers).filter(|buffers| !buffers.input.is_empty()) else {
            return;
        };
        if entry.flags.has(Flags::TLS) {
            let rest = buffers.input.take();
            buffers.sealed.keep(&rest);
        }
        self.wait_to_decode(conn);
    }

    /// Serves a connection from this address. A trusted proxy is not counted; its requests may name others.
    fn welcome(&mut self, conn: ConnId, address: IpAddr, trusted: bool) {
        if trusted {
            if self.callers.rules.proxies.header {
                self.callers.named.set(conn.slot, Caller::Proxy);
            }
            return self.serve(conn);
        }
        let is_tls = self.conns.get(conn).is_some_and(|entry| entry.flags.has(Flags::TLS));
        let counted = self.count(conn, address);
        if counted && (!is_tls || self.callers.take(conn, Limit::Handshakes, self.now.mono)) {
            self.serve(conn);
        } else {
            self.refuse_caller(conn);
        }
    }

    /// Counts the connection for this address. Returns false beyond the limit.
    fn count(&mut self, conn: ConnId, address: IpAddr) -> bool {
        match self.callers.rules.strangers.enter(address, self.now.mono) {
            Ok(Some(stranger)) => self.callers.named.set(conn.slot, Caller::Stranger(stranger)),
            Ok(None) => {}
            Err(_) => return false,
        }
        true
    }

    /// Counts an upgrade for the address that its head names, if a trusted proxy sent it. Returns false beyond the
    /// limit.
    pub(super) fn count_upgrade(&mut self, conn: ConnId) -> bool {
        let forwarded = self.edge.forwarded();
        if self.callers.named.get(conn.slot) != Some(Caller::Proxy) {
            return true;
        }
        forwarded.is_none_or(|address| {
            self.callers.named.take(conn.slot);
            self.count(conn, address)
        })
    }

    /// Counts what the edge refused on this connection by the rules of the operator.
    pub(super) fn count_refused(&mut self, conn: ConnId) {
        let Refused { by_rule, caller } = self.edge.take_refused();
        if by_rule == [0; 3] {
            return;
        }
        let stranger = match self.callers.named.get(conn.slot) {
            Some(Caller::Stranger(stranger)) => Some(stranger),
            Some(Caller::Proxy) => caller.map(Stranger::of),
            None => None,
        };
        for (access, refused) in Access::ALL.into_iter().zip(by_rule).filter(|(_, refused)| *refused > 0) {
            self.callers.rules.strangers.refuse(access, refused, stranger);
        }
    }

    /// Counts authorizations of this connection that were verified in vain.
    pub(super) fn count_failed_signatures(&mut self, conn: ConnId, failed: u32) {
        self.stats.failed_signatures += u64::from(failed);
        if failed > 0
            && let Some(Caller::Stranger(stranger)) = self.callers.named.get(conn.slot)
        {
            self.callers.rules.strangers.fail(stranger, failed, self.now.mono);
        }
    }

    /// Returns true if the address of this connection fails: its app servers that have proven nothing come last.
    pub(super) fn is_failing(&self, conn: ConnId) -> bool {
        match self.callers.named.get(conn.slot) {
            Some(Caller::Stranger(stranger)) => self.callers.rules.strangers.is_failing(stranger, self.now.mono),
            Some(Caller::Proxy) | None => false,
        }
    }

    /// Returns the address that this caller counts for; `named` is what a trusted proxy names. `None`: it is not known,
    /// or exempt.
    pub(super) fn stranger(&self, conn: ConnId, named: Option<IpAddr>) -> Option<Stranger> {
        match self.callers.named.get(conn.slot)? {
            Caller::Stranger(stranger) => Some(stranger),
            Caller::Proxy => named.and_then(|address| self.callers.rules.strangers.identify(address)),
        }
    }

    /// Gives a place among the relays of this shard to a connection of this address. Returns false if the address has
    /// its share.
    pub(super) fn take_relay(&mut self, conn: ConnId, stranger: Option<Stranger>) -> bool {
        let Some(number) = stranger.map(Stranger::number) else { return true };
        let relays = &mut self.callers.relays;
        if relays.values().filter(|other| **other == number).count() >= RELAYS_OF_ADDRESS_MAX {
            return false;
        }
        relays.insert(conn.slot, number);
        true
    }

    /// Takes one of each of these limits for an address, or none of them.
    pub(super) fn take_of(&self, stranger: Option<Stranger>, limits: &[Limit]) -> Result<(), TimeSpan> {
        stranger.map_or(Ok(()), |stranger| self.callers.rules.strangers.take_all(stranger, limits, self.now.mono))
    }
}
