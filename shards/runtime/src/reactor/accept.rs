//! Taking connections in (ring/RULES.md rules 5 and 7).
//!
//! All listeners accept into the table of one ring at a time. At 95 % they move to the next ring; when every
//! table is at 95 % they stop until slots are free again. What is left of a table is for hand-offs.
//!
//! Each port has places that no connection of another port can take: half of `connections_max` for user agents, and on
//! top of it [`limits::endpoint_reserve`] and [`limits::node_reserve`]. The other half is for all of them. Otherwise
//! one stranger with idle connections on one port would shut out the peers of the others.

use std::os::fd::{AsFd, OwnedFd};

use crate::ports::{Edge, Listening, Port};
use crate::ring::{Family, Flags, NewConn, SocketMove, State, accept_limit, local_address};
use machine::ids::{ConnId, ShardId};
use machine::limits::{self, ACCEPTS_PER_TURN};
use machine::time::{Instant, TimeSpan};

use super::{Machine, Reactor};

/// A listening socket and its accepts.
pub(super) struct Listener {
    kind: Kind,
    /// `None` after a drain began.
    socket: Option<OwnedFd>,
    /// The ring it is armed in.
    armed: Option<u16>,
    /// Accepts that are armed there.
    accepts: usize,
    cancelled: bool,
    /// Counts how often it was armed, so that its accepts have another name in each ring.
    arming: u16,
}

impl Listener {
    pub(super) fn new(listening: Listening) -> Listener {
        let Listening { port, tls, socket } = listening;
        let is_v6 = local_address(&socket).is_ok_and(|address| address.is_ipv6());
        let kind = Kind { port, tls, family: if is_v6 { Family::V6 } else { Family::V4 } };
        Listener { kind, socket: Some(socket), armed: None, accepts: 0, cancelled: false, arming: 0 }
    }
}

/// Kind of a listener, and of the connections that it accepts.
#[derive(Clone, Copy)]
struct Kind {
    port: Port,
    tls: bool,
    family: Family,
}

/// Armings are counted modulo this: what fits beside the listener's number in user_data.
const ARMINGS: u16 = 1 << 12;

/// Target of the accepts.
pub(super) struct Accepting {
    /// The ring, if any has room.
    ring: Option<u16>,
    /// True if something changed that the armed accepts must follow.
    due: bool,
    /// After a failure nothing is armed before this.
    pause: Option<Instant>,
    ended: bool,
    /// Refused connections that are not closed yet.
    refused: u32,
}

/// Connections by which a ring of a shard that hibernates may be ahead of the emptiest one.
const SPREAD: u32 = 256;

/// Pause of the accepts after one failed: the system is out of descriptors or memory.
const PAUSE: TimeSpan = TimeSpan::from_ms(50);

impl Default for Accepting {
    fn default() -> Accepting {
        Accepting { ring: Some(0), due: true, pause: None, ended: false, refused: 0 }
    }
}

impl Accepting {
    /// End of a pause.
    pub(super) fn next(&self) -> Option<Instant> {
        self.pause
    }

    /// A refused connection is closed.
    pub(super) fn refused_one_less(&mut self) {
        self.refused -= 1;
    }

    /// Returns true if nothing is accepted any more.
    pub(super) fn is_over(&self) -> bool {
        self.ended
    }

    /// Accept nothing from now on.
    pub(super) fn end(&mut self) {
        self.ended = true;
        self.due = true;
    }
}

impl Kind {
    /// The number under which a kind travels in user_data.
    fn number(self) -> u32 {
        self.port as u32 * 4 + u32::from(self.tls) * 2 + u32::from(self.family == Family::V6)
    }

    fn of_number(number: u32) -> Option<Kind> {
        let port = [Port::WebSocket, Port::Endpoint, Port::Node, Port::Public].get(number as usize / 4)?;
        let family = if number & 1 == 1 { Family::V6 } else { Family::V4 };
        Some(Kind { port: *port, tls: number & 2 == 2, family })
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    pub(super) fn accepted(&mut self, listener: u32, ring: u16, result: i32) {
        let Some(entry) = self.listeners.get_mut(listener as usize) else { return };
        let kind = entry.kind;
        entry.accepts -= 1;
        if entry.accepts == 0 {
            entry.armed = None;
            entry.cancelled = false;
        }
        self.accepting.due = true;
        match u32::try_from(result) {
            Ok(direct) => {
                self.stats.accepts += 1;
                self.parking.requested(self.now.mono);
                let slot = self.plane.slot(ring, direct);
                if self.hibernator.is_some() && matches!(kind.port, Port::WebSocket | Port::Public) {
                    self.plane.mark_live(slot);
                }
                if matches!(kind.port, Port::Endpoint | Port::Node) {
                    self.deal(slot, kind);
                } else if self.finds_place(Port::WebSocket) {
                    self.admit(slot, kind, false);
                } else {
                    self.turn_away(slot, kind);
                }
            }
            Err(_) if result == -libc::ECANCELED => {}
            Err(_) => {
                self.stats.accept_errors += 1;
                self.accepting.pause = Some(self.now.mono.after(PAUSE));
            }
        }
    }

    /// Returns true if a connection of this port finds a place: one of its port's own, or one of those for all ports.
    pub(super) fn has_place(&self, port: Port) -> bool {
        let all = self.limits.connections_max;
        let own = [all / 2, limits::endpoint_reserve(all), limits::node_reserve(all)];
        let placed = self.conns.placed();
        let at = port as usize;
        let beyond: u32 = placed.iter().zip(own).map(|(placed, own)| placed.saturating_sub(own)).sum();
        placed[at] < own[at] || beyond < all - all / 2
    }

    /// Returns true if a connection of this port finds a place, also that of an idle one.
    fn finds_place(&mut self, port: Port) -> bool {
        self.has_place(port) || self.end_idle_for_another(port)
    }

    /// Counts a connection of a public port as one of the port that its last head asked for. Returns false if that one
    /// has no place left.
    pub(super) fn take_role(&mut self, conn: ConnId) -> bool {
        let Some(entry) = self.conns.get(conn) else { return true };
        let (was, flags) = (entry.port, entry.flags);
        let role = entry.codec.as_ref().map_or(was, |codec| self.edge.role(codec, was));
        if role == was || flags.has(Flags::REFUSED) {
            return true;
        }
        if !self.finds_place(role) {
            self.stats.accepts_refused += 1;
            return false;
        }
        self.conns.change_port(conn, role);
        let Some(entry) = self.conns.get_mut(conn) else { return true };
        self.buffer_pool.charge_to(entry.buffers, role);
        let counted = role != Port::WebSocket;
        if counted {
            entry.flags.set(Flags::COUNTED);
            self.stats.endpoint_connections += 1;
        } else {
            entry.flags.clear(Flags::COUNTED);
            self.stats.endpoint_connections -= 1;
        }
        // Its place in the line of the other port is void. What it has begun is noted anew, for this one.
        entry.flags.clear(Flags::PARTIAL);
        self.mailbox.count_assigned(self.mailbox.shard(), counted);
        if role == Port::Endpoint {
            self.note_sender(conn);
        }
        true
    }

    /// Puts a new connection to work.
    fn admit(&mut self, slot: u32, kind: Kind, counted: bool) {
        let codec = self.edge.open(kind.port, kind.tls);
        let since = self.now_ms();
        let opened = self.conns.open(slot, kind.port.first_role(), Some(codec), since);
        let conn = self.settle_in(opened);
        self.employ(conn, kind, counted);
    }

    fn employ(&mut self, conn: ConnId, kind: Kind, counted: bool) {
        if kind.tls {
            self.begin_tls(conn);
        }
        self.conns.take_place(conn);
        if counted && let Some(entry) = self.conns.get_mut(conn) {
            entry.flags.set(Flags::COUNTED);
            self.stats.endpoint_connections += 1;
        }
        self.meet(conn, kind.port, kind.family);
    }

    /// Reads the first bytes of a connection.
    pub(super) fn serve(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.state != State::Heading {
            self.http.add(self.now.mono, conn);
        }
        entry.state = State::Open;
        self.want_input(conn);
    }

    /// A slot that the kernel reused before we saw its Close may still have a side entry.
    pub(super) fn settle_in(&mut self, mut opened: NewConn) -> ConnId {
        self.buffer_pool.free(&mut opened.stale_buffers);
        let ring = self.plane.ring_of(opened.conn.slot);
        if self.is_full(ring) {
            self.accepting.due = true;
        }
        opened.conn
    }

    /// Refuses a connection for which no place is left.
    fn turn_away(&mut self, slot: u32, kind: Kind) {
        self.stats.accepts_refused += 1;
        let port = kind.port.first_role();
        let opened = self.conns.open(slot, port, None, self.now_ms());
        let conn = self.settle_in(opened);
        if kind.tls {
            // Without a handshake nothing can be said, and a handshake costs more than a place.
            self.tls.count_refused(port);
            self.close(conn);
        } else {
            self.refuse(conn, kind.port);
        }
    }

    /// Refuses a connection that its caller may not have. It is heard once, as on a public port without places: `GET /`
    /// gets the page, and every other request 503. Over TLS nothing is said, because no handshake has begun.
    pub(super) fn refuse_caller(&mut self, conn: ConnId) {
        if self.in_handshake(conn) {
            self.close(conn);
        } else {
            self.refuse(conn, Port::Public);
        }
    }

    /// Answers a refused connection and ends it; without a word when too many such answers are being heard. Half of
    /// these slots are for connections that are first asked what they want: it may be a health page, and a process
    /// without places is well. One of them that says nothing makes room for the next.
    fn refuse(&mut self, conn: ConnId, listener: Port) {
        let Some(entry) = self.conns.get(conn) else { return };
        let (port, most) = (entry.port, self.refused_max());
        if self.accepting.refused >= most {
            self.stats.accepts_dropped += 1;
            return self.close(conn);
        }
        let mut codec = self.edge.open_placeless(listener);
        if codec.is_some() && self.accepting.refused >= most / 2 && !self.end_silent_placeless(port) {
            codec = None;
        }
        self.conns.leave_place(conn);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        self.accepting.refused += 1;
        entry.flags.set(Flags::REFUSED);
        if codec.is_some() {
            entry.codec = codec;
            return self.serve(conn);
        }
        let answer = self.edge.too_many(port);
        self.buffer_pool.entry(&mut entry.buffers, port).out.push(answer);
        self.begin_close(conn);
    }

    /// Refused connections of one shard that are being told so at once. Their slots come out of what its tables hold
    /// beyond all places (5 % and 64), so that a stranger who connects again and again cannot fill the tables with
    /// refusals.
    fn refused_max(&self) -> u32 {
        64 + self.limits.connections_max / 32
    }

    /// Gives an endpoint connection to the least loaded shard, which also decides whether it has a place for it. On its
    /// way there it takes none of this shard's.
    fn deal(&mut self, slot: u32, kind: Kind) {
        let to = self.mailbox.least_loaded();
        let target = self.mailbox.target_ring_of(to).filter(|_| to != self.mailbox.shard());
        let Some(target) = target else {
            return self.admit_endpoint(slot, kind);
        };
        self.mailbox.count_assigned(to, true);
        let since = self.now_ms();
        let opened = self.conns.open(slot, kind.port, None, since);
        let conn = self.settle_in(opened);
        let Some(entry) = self.conns.get_mut(conn) else { return };
        entry.state = State::Moving;
        self.buffer_pool.entry(&mut entry.buffers, kind.port).departure =
            Some(SocketMove::Dealt { to, kind: kind.number() });
        self.plane.move_dealt(conn, target, kind.number());
    }

    /// Serves an endpoint connection here, if there is a place.
    fn admit_endpoint(&mut self, slot: u32, kind: Kind) {
        if !self.finds_place(kind.port) {
            return self.turn_away(slot, kind);
        }
        self.mailbox.count_assigned(self.mailbox.shard(), true);
        self.admit(slot, kind, true);
    }

    /// A connection that another shard dealt us. It was counted there.
    pub(super) fn dealt(&mut self, kind: u32, ring: u16, result: i32) {
        let (Ok(direct), Some(kind)) = (u32::try_from(result), Kind::of_number(kind)) else { return };
        self.stats.dealt_in += 1;
        let slot = self.plane.slot(ring, direct);
        // The shard that dealt it has counted it here. It stays counted: were it not for a moment, another shard would
        // deal one more.
        if self.finds_place(kind.port) {
            self.admit(slot, kind, true);
        } else {
            self.mailbox.count_assigned(self.mailbox.shard(), false);
            self.turn_away(slot, kind);
        }
    }

    /// It could not be dealt away: it is served here.
    pub(super) fn keep_dealt(&mut self, conn: ConnId, to: ShardId, kind: u32) {
        self.mailbox.count_assigned(to, false);
        let (Some(entry), Some(kind)) = (self.conns.get_mut(conn), Kind::of_number(kind)) else { return };
        self.mailbox.count_assigned(self.mailbox.shard(), true);
        entry.codec = Some(self.edge.open(kind.port, kind.tls));
        self.buffer_pool.free_if_idle(&mut entry.buffers);
        self.employ(conn, kind, true);
    }

    fn is_full(&self, ring: u16) -> bool {
        self.conns.occupied(ring) >= self.accept_limit()
    }

    pub(super) fn accept_limit(&self) -> u32 {
        accept_limit(self.plane.table(), self.limits.backlog)
    }

    /// A slot of this ring is free again.
    pub(super) fn slot_freed(&mut self, ring: u16) {
        if self.accepting.ring.is_none() {
            let limit = self.accept_limit();
            // Not at once, so that one connection more or less does not cost an arming each time.
            self.accepting.due |= self.conns.occupied(ring) + limit / 64 < limit;
        }
    }

    /// Arms, moves or ends accepting as the tables demand.
    pub(super) fn steer_accepting(&mut self) {
        if self.accepting.pause.is_some_and(|until| until <= self.now.mono) {
            self.accepting.pause = None;
            self.accepting.due = true;
        }
        if self.accepting.pause.is_some() || !std::mem::take(&mut self.accepting.due) {
            return;
        }
        let emptiest = (0..self.plane.rings()).min_by_key(|ring| self.conns.occupied(*ring));
        if let Some(ring) = emptiest {
            self.mailbox.set_target_ring(ring);
        }
        // The kernel keeps the memory of as many requests as a ring ever had at once. Where most sessions are frozen,
        // their polls are spread over all rings, so that few are armed in one.
        let fullest = match self.hibernator {
            Some(_) => emptiest.map_or(0, |ring| self.conns.occupied(ring)) + SPREAD,
            None => u32::MAX,
        };
        let stay = self.accepting.ring.filter(|ring| !self.is_full(*ring) && self.conns.occupied(*ring) < fullest);
        let target = stay.or(emptiest.filter(|ring| !self.is_full(*ring))).filter(|_| !self.accepting.ended);
        if target != self.accepting.ring {
            self.stats.accept_ring_changes += 1;
            self.accepting.ring = target;
        }
        for (number, listener) in self.listeners.iter_mut().enumerate() {
            match (listener.armed, target) {
                (Some(ring), _) if Some(ring) != target && !listener.cancelled => {
                    listener.cancelled = true;
                    self.plane.cancel_accepts(ring, number as u32, listener.arming);
                }
                (armed, Some(ring)) if !listener.cancelled => {
                    let Some(socket) = &listener.socket else { continue };
                    if armed.is_none() {
                        listener.armed = Some(ring);
                        listener.arming = (listener.arming + 1) % ARMINGS;
                    }
                    while listener.accepts < ACCEPTS_PER_TURN {
                        listener.accepts += 1;
                        self.plane.accept(ring, number as u32, listener.arming, socket.as_fd());
                    }
                }
                (None, None) if self.accepting.ended => listener.socket = None,
                _ => {}
            }
        }
    }
}
