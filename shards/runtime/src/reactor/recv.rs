//! Bytes in: poll while idle, receive when readable, decode, keep what is half a request.

use crate::ports::{Edge, Ingest, Ingested, Port};
use crate::ring::{ArenaSpan, CompletionKey, ConnBufferPool, Conns, Flags, SpanSize, Standing, State};
use machine::ids::ConnId;
use machine::limits::CONNECTION_COST_PER_TURN;
use machine::time::Now;
use machine::{Carried, CloseReason, Command, Event, Input};

use super::admission::{Admitted, Refusal};
use super::{Machine, Reactor, hand_off};

/// Result of decoding some bytes.
pub(super) struct Decoded {
    consumed: usize,
    upgraded: bool,
    /// Something whole was among the bytes that is no command.
    frames: bool,
    /// The edge has answered a request itself.
    answered: bool,
    cost: u32,
    failed_signatures: u32,
    next: Next,
}

enum Next {
    More,
    /// The turn of the connection is over. The rest may hold whole requests.
    Later,
    Command(Command),
    Close(CloseReason),
}

/// Step that follows what was decoded.
enum Action {
    More,
    /// The turn of the connection is over.
    Later,
    Command(Admitted),
    /// The answer to a command that was not admitted.
    Answer(Event),
    Close(CloseReason),
}

impl Action {
    fn of(refusal: Refusal) -> Action {
        match refusal {
            Refusal::Answer(event) => Action::Answer(event),
            Refusal::Close(reason) => Action::Close(reason),
        }
    }
}

/// Decodes from the front of `bytes` up to the first command, until the turn of the connection has cost what it may, or
/// up to the first answer of the edge if that ends it.
fn decode<E: Edge>(
    edge: &mut E,
    now: Now,
    codec: &mut E::Codec,
    bytes: &mut [u8],
    out: &mut Vec<u8>,
    answer_ends: bool,
) -> Decoded {
    let mut decoded = Decoded {
        consumed: 0,
        upgraded: false,
        frames: false,
        answered: false,
        cost: 0,
        failed_signatures: 0,
        next: Next::More,
    };
    while decoded.consumed < bytes.len() {
        if decoded.cost >= CONNECTION_COST_PER_TURN || (answer_ends && decoded.answered) {
            decoded.next = Next::Later;
            break;
        }
        let rest = &mut bytes[decoded.consumed..];
        let (left, written) = (rest.len(), out.len());
        let Ingested { ingest, cost, failed_signatures } = edge.ingest(now, codec, rest, out);
        decoded.cost = decoded.cost.saturating_add(cost);
        decoded.failed_signatures += failed_signatures;
        let (consumed, next) = match ingest {
            Ingest::More { consumed } => (consumed, Some(Next::More)),
            // An edge that consumed nothing has nothing next.
            Ingest::Next { consumed: 0 } => (0, Some(Next::More)),
            Ingest::Next { consumed } => {
                decoded.frames = true;
                decoded.answered |= out.len() > written;
                (consumed, None)
            }
            Ingest::Upgraded { consumed } => {
                decoded.upgraded = true;
                (consumed, None)
            }
            Ingest::Command { consumed, command } => (consumed, Some(Next::Command(command))),
            Ingest::Close { reason } => (left, Some(Next::Close(reason))),
        };
        decoded.consumed += consumed.min(left);
        if let Some(next) = next {
            decoded.next = next;
            break;
        }
    }
    decoded
}

/// Parts of the reactor that decode: all but the spans, in which the bytes may lie.
struct Intake<'a, E: Edge> {
    edge: &'a mut E,
    now: Now,
    conns: &'a mut Conns<E::Codec>,
    buffer_pool: &'a mut ConnBufferPool,
    /// Bytes that the edge answers at once.
    out: &'a mut Vec<u8>,
    /// The first answer of the edge ends the turn of the connection.
    answer_ends: bool,
}

impl<E: Edge> Intake<'_, E> {
    /// Decodes in place when the connection may be read and nothing waits before these bytes. Keeps aside what is left.
    fn decode(&mut self, conn: ConnId, bytes: &mut [u8]) -> Option<Decoded> {
        let entry = self.conns.get_mut(conn)?;
        let in_line = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| !buffers.input.is_empty());
        let (true, false, Some(codec)) = (may_read(entry.state, entry.flags), in_line, entry.codec.as_mut()) else {
            self.buffer_pool.entry(&mut entry.buffers, entry.port).input.keep(bytes);
            return self.decode_aside(conn);
        };
        let decoded = decode(self.edge, self.now, codec, bytes, self.out, self.answer_ends);
        let rest = &bytes[decoded.consumed..];
        if !rest.is_empty() {
            self.buffer_pool.entry(&mut entry.buffers, entry.port).input.keep(rest);
        }
        Some(decoded)
    }

    fn decode_aside(&mut self, conn: ConnId) -> Option<Decoded> {
        let entry = self.conns.get_mut(conn)?;
        let (true, Some(buffers)) = (may_read(entry.state, entry.flags), self.buffer_pool.get(entry.buffers)) else {
            return None;
        };
        let codec = entry.codec.as_mut()?;
        let decoded = decode(self.edge, self.now, codec, buffers.input.bytes(), self.out, self.answer_ends);
        buffers.input.consume(decoded.consumed);
        self.buffer_pool.free_if_idle(&mut entry.buffers);
        Some(decoded)
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Arms the poll of a connection that may be read from (ring/RULES.md rule 8: neither busy nor blocked).
    pub(super) fn want_input(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if may_read(entry.state, entry.flags) && !entry.flags.has(Flags::POLL_IN) && !entry.flags.has(Flags::RECV) {
            entry.flags.set(Flags::POLL_IN);
            self.plane.poll_in(conn);
        }
    }

    /// The command or move that held up the input is over: the bytes that wait take their turn, or more are polled for.
    pub(super) fn resume(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get(conn) else { return };
        let waiting = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| buffers.has_input());
        let peer_closed = entry.flags.has(Flags::TLS) && self.tls.peer_closed(conn.slot);
        if waiting || peer_closed { self.wait_to_decode(conn) } else { self.want_input(conn) }
    }

    pub(super) fn readable(&mut self, done: CompletionKey) {
        let Some(conn) = self.conns.name(done) else { return };
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.flags.clear(Flags::POLL_IN);
        if !may_read(entry.state, entry.flags) {
            return;
        }
        // What comes before a request, or behind a goodbye, needs no decoding.
        if entry.state == State::Open { self.wait_to_be_read(conn) } else { self.start_receive(conn) }
    }

    pub(super) fn start_receive(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.flags.has(Flags::RECV) {
            return;
        }
        entry.flags.set(Flags::RECV);
        // A peer that goes on sending behind its goodbye is read in few steps; one that only closes takes a small span.
        let flood = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| buffers.discarded >= FLOOD_BYTES);
        let size = if entry.port == Port::WebSocket && !flood { SpanSize::Small } else { SpanSize::Large };
        if !self.plane.recv(conn, size) {
            self.stats.receives_starved += 1;
            self.starved.push_back(conn);
        }
    }

    /// Receives that found no span get those that were freed meanwhile.
    pub(super) fn feed_starved(&mut self) {
        for _ in 0..self.starved.len() {
            let Some(conn) = self.starved.pop_front() else { return };
            if let Some(entry) = self.conns.get_mut(conn) {
                entry.flags.clear(Flags::RECV);
                self.start_receive(conn);
            }
        }
    }

    pub(super) fn received(&mut self, done: CompletionKey, span: ArenaSpan, result: i32) {
        let Some(conn) = self.conns.name(done) else { return self.plane.arena().free(span) };
        let Some(entry) = self.conns.get_mut(conn) else { return self.plane.arena().free(span) };
        if entry.port != Port::WebSocket {
            self.parking.requested(self.now.mono);
        }
        let len = usize::try_from(result).unwrap_or_default();
        if len > 0 && matches!(entry.state, State::Open | State::Moving) {
            self.stats.receives += 1;
            self.stats.received_bytes += len as u64;
            // Until then the receive is under way: nothing else of this connection is read or decoded.
            if entry.state == State::Open {
                return self.wait_with_span(conn, span, len);
            }
        }
        self.take_received(conn, span, result);
    }

    /// The turn of a connection has come whose receive has this result.
    pub(super) fn take_received(&mut self, conn: ConnId, span: ArenaSpan, result: i32) {
        let Some(entry) = self.conns.get_mut(conn) else { return self.plane.arena().free(span) };
        entry.flags.clear(Flags::RECV);
        match (usize::try_from(result), entry.state) {
            (Ok(len), State::Open | State::Moving) if len > 0 => return self.ingest(conn, span, len),
            (Ok(len), State::Heading) if len > 0 => return self.read_heading(conn, span, len),
            (Err(_), State::Heading) if result == -libc::EAGAIN => self.want_input(conn),
            (_, State::Heading) => self.close(conn),
            (Ok(_), State::Open) => self.ended(conn),
            (Err(_), State::Open) if result == -libc::EAGAIN => self.want_input(conn),
            (Err(_), State::Open) => self.lost(conn),
            (_, State::DiscardingInput) => self.discard(conn, result),
            _ => {}
        }
        self.plane.arena().free(span);
    }

    /// Decodes a span in place when nothing waits before it; keeps aside what is left, if the shard has room for it.
    fn ingest(&mut self, conn: ConnId, span: ArenaSpan, len: usize) {
        let Some(entry) = self.conns.get(conn) else { return self.plane.arena().free(span) };
        if entry.flags.has(Flags::TLS) {
            return self.ingest_sealed(conn, span, len);
        }
        let held = self.buffer_pool.held(entry.buffers);
        let answer_ends = self.ends_with_answer(conn);
        let bytes = self.plane.arena().bytes(&span, len);
        let (edge, conns, buffer_pool, out) =
            (&mut self.edge, &mut self.conns, &mut self.buffer_pool, &mut self.scratch);
        let decoded = Intake { edge, now: self.now, conns, buffer_pool, out, answer_ends }.decode(conn, bytes);
        self.plane.arena().free(span);
        self.act_within_bounds(conn, held, decoded);
    }

    /// As [`Reactor::ingest`], of bytes that are in no span. Returns false if the turn of the connection is over.
    pub(super) fn decode_bytes(&mut self, conn: ConnId, held: usize, bytes: &mut [u8]) -> bool {
        let decoded = self.intake(conn).decode(conn, bytes);
        let is_over = is_later(decoded.as_ref());
        self.act_within_bounds(conn, held, decoded);
        !is_over
    }

    /// Decodes what was kept aside, plain bytes before ciphertext, if the connection may be read.
    pub(super) fn decode_inbox(&mut self, conn: ConnId) {
        if !self.in_handshake(conn)
            && let Some(decoded) = self.intake(conn).decode_aside(conn)
        {
            let is_over = is_later(Some(&decoded));
            self.act_on(conn, decoded);
            if is_over {
                return;
            }
        }
        if self.open_waiting(conn) {
            self.end_if_peer_closed(conn);
        }
    }

    fn intake(&mut self, conn: ConnId) -> Intake<'_, E> {
        let answer_ends = self.ends_with_answer(conn);
        let (edge, conns, buffer_pool, out) =
            (&mut self.edge, &mut self.conns, &mut self.buffer_pool, &mut self.scratch);
        Intake { edge, now: self.now, conns, buffer_pool, out, answer_ends }
    }

    /// Acts on what was decoded, unless what is left of it is more than the shard has room for: that ends the
    /// connection, and a command before it is not carried out. One that moves is not ended: it has one receive under
    /// way at most, and takes its bytes along.
    pub(super) fn act_within_bounds(&mut self, conn: ConnId, held: usize, decoded: Option<Decoded>) {
        let Some(entry) = self.conns.get(conn) else { return };
        let quota = self.buffer_pool.unfinished().of(entry.port);
        let refused = entry.state == State::Open && quota.refuses(held, self.buffer_pool.held(entry.buffers));
        match decoded {
            Some(mut decoded) => {
                if refused && !matches!(decoded.next, Next::Close(_)) {
                    self.stats.input_refused += 1;
                    decoded.next = Next::Close(CloseReason::Overloaded);
                }
                self.act_on(conn, decoded);
            }
            None if refused => self.refuse_input(conn),
            None => {}
        }
    }

    /// Ends a connection that keeps more aside than the shard has room for.
    pub(super) fn refuse_input(&mut self, conn: ConnId) {
        self.stats.input_refused += 1;
        self.forget(conn, CloseReason::Overloaded);
        self.lingering_close(conn, CloseReason::Overloaded);
    }

    fn act_on(&mut self, conn: ConnId, decoded: Decoded) {
        let Decoded { consumed, mut upgraded, frames, answered, cost, failed_signatures, next } = decoded;
        self.lines.charge(cost);
        self.count_failed_signatures(conn, failed_signatures);
        let refused = upgraded && !self.count_upgrade(conn);
        let mut action = match next {
            _ if refused => Action::Close(CloseReason::AddressLimit),
            Next::More => Action::More,
            Next::Later => Action::Later,
            Next::Command(command) => self.admit_command(conn, command).map_or_else(Action::of, Action::Command),
            Next::Close(reason) => Action::Close(reason),
        };
        upgraded &= !refused;
        // Requests that become no command, also those whose body is awaited. The direct path has none of them.
        if frames || !matches!(action, Action::Command(_)) {
            self.count_refused(conn);
        }
        // A connection that ends in this call needs no other place.
        if !matches!(action, Action::Close(_)) && !self.take_role(conn) {
            upgraded = false;
            action = Action::Close(CloseReason::Overloaded);
        }
        if answered {
            self.conns.set_standing(conn, Standing::Refused);
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if upgraded {
            entry.flags.set(Flags::KNOWN);
            self.inputs.push_back(Input::Opened { conn });
        }
        if !self.scratch.is_empty() {
            self.buffer_pool.entry(&mut entry.buffers, entry.port).out.push(&self.scratch);
            self.scratch.clear();
            self.scratch.shrink_to(SCRATCH_KEPT);
            self.mark_dirty(conn);
        }
        match action {
            Action::More => {
                if frames {
                    self.answered_at_once(conn);
                }
                self.note_partial(conn, consumed > 0);
                self.want_input(conn);
            }
            Action::Later => {
                if frames {
                    self.answered_at_once(conn);
                }
                // What it has sent ahead counts as unfinished: under pressure the oldest of it makes room.
                self.note_partial(conn, true);
                self.wait_to_decode(conn);
            }
            Action::Command(command) => {
                self.conns.set_standing(conn, Standing::Proven);
                self.begin_command(conn);
                self.submit_command(conn, command);
            }
            Action::Answer(event) => {
                self.begin_command(conn);
                self.emit(conn, &event);
                self.ready(conn);
            }
            Action::Close(reason) => {
                self.forget(conn, reason);
                self.lingering_close(conn, reason);
            }
        }
    }

    /// A command of this connection is under way until its answer.
    fn begin_command(&mut self, conn: ConnId) {
        self.stats.commands += 1;
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.flags.set(Flags::BUSY);
        // A pong between the fragments of a message does not finish it.
        let mid_message = |codec| self.edge.is_websocket(codec) && self.edge.mid_request(codec);
        if !entry.codec.as_ref().is_some_and(mid_message) {
            entry.flags.clear(Flags::PARTIAL);
        }
    }

    /// The edge has answered a request, or taken a frame, without the machine.
    fn answered_at_once(&mut self, conn: ConnId) {
        let now_ms = self.now_ms();
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let is_known = entry.flags.has(Flags::KNOWN);
        if is_known {
            self.inputs.push_back(Input::Frame { conn });
        }
        // A control frame between the fragments of a message does not prolong it.
        if !is_known || !entry.flags.has(Flags::PARTIAL) {
            entry.since = now_ms;
        }
    }

    /// Notes when a request, or a message, began to arrive. `progressed`: something before it was whole.
    fn note_partial(&mut self, conn: ConnId, progressed: bool) {
        let now_ms = self.now_ms();
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let waiting = self.buffer_pool.get(entry.buffers).is_some_and(|buffers| buffers.has_input());
        let begun = entry.codec.as_ref().is_some_and(|codec| self.edge.mid_request(codec));
        if !waiting && !begun {
            entry.flags.clear(Flags::PARTIAL);
            return;
        }
        let port = entry.port;
        if !entry.flags.has(Flags::PARTIAL) || (progressed && !begun) {
            entry.flags.set(Flags::PARTIAL);
            entry.since = now_ms;
            self.has_begun(conn);
        }
        self.watch_websocket(conn);
        self.make_room(port, conn);
    }

    /// These bytes came with the connection from another shard: they are older than anything it received here.
    pub(super) fn feed(&mut self, conn: ConnId, mut carried: Carried) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if carried.0.is_empty() || entry.state != State::Open {
            return;
        }
        let bytes = self.callers.unpack(conn, self.now.mono, &mut carried.0);
        let held = self.buffer_pool.held(entry.buffers);
        let (plain, ciphertext) = if entry.flags.has(Flags::TLS) {
            // Invariant: the state comes from the export of a shard of this process.
            let len = self.tls.import(conn.slot, entry.port, bytes).expect("an exported state");
            hand_off::unpack(&bytes[len..])
        } else {
            (&bytes[..], &[][..])
        };
        let buffers = self.buffer_pool.entry(&mut entry.buffers, entry.port);
        buffers.input.keep_first(plain);
        buffers.sealed.keep_first(ciphertext);
        let (busy, waiting) = (entry.flags.has(Flags::BUSY), buffers.has_input());
        self.buffer_pool.free_if_idle(&mut entry.buffers);
        if self.buffer_pool.unfinished().of(entry.port).refuses(held, self.buffer_pool.held(entry.buffers)) {
            self.refuse_input(conn);
        } else if !busy && waiting {
            self.wait_to_decode(conn);
        }
    }

    /// Tells the machine that a WebSocket it knows is gone.
    pub(super) fn forget(&mut self, conn: ConnId, reason: CloseReason) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.flags.has(Flags::KNOWN) {
            entry.flags.clear(Flags::KNOWN);
            self.inputs.push_back(Input::Gone { conn, reason });
        }
    }
}

fn is_later(decoded: Option<&Decoded>) -> bool {
    decoded.is_some_and(|decoded| matches!(decoded.next, Next::Later))
}

/// Bytes behind a lingering close beyond which the rest is read into large spans.
const FLOOD_BYTES: u32 = 2 * 1024;

/// Bytes that the scratch buffer keeps.
const SCRATCH_KEPT: usize = 16 * 1024;

pub(super) fn may_read(state: State, flags: Flags) -> bool {
    match state {
        State::Open => !flags.has(Flags::BUSY) && !flags.has(Flags::BLOCKED) && !flags.has(Flags::LAST),
        State::Heading | State::DiscardingInput => true,
        _ => false,
    }
}
