//! The shard state machine: who is connected, what is unacked, direct or stored, and in which order.
//!
//! Pure: no IO, clock, entropy, threads or `async`. One [`ShardMachine::step`] per input; its effects are
//! carried out, in order, before the next. Lives on its own shard only.
//!
//! This file only routes. State is in `components`, whose fields are private to their files; the files here compose
//! them. `hello`, `greet`, `claim` and `remote` bring a user to its owner, `publish` decides direct or stored, `acks`
//! settle, `drain`, `spill` and `depart` carry what is not acked, `send` and `pace` say how fast, `subscribe`
//! registers and unregisters, `sweep`, `refresh` and `broadcast` visit idle sessions, `simple` is what differs in
//! SimplePush mode, `relay` what differs for members of a relay, `cluster` what differs when nodes share a store,
//! `receipts` tell senders how messages ended, `dead` refuses what is for no user, `reset` and `reconcile` let users
//! start over, `shutdown` ends sessions.

mod acks;
mod active;
mod activity;
mod broadcast;
mod claim;
mod clock;
mod cluster;
mod command;
mod components;
mod config;
mod conns;
mod dead;
mod deadlines;
mod depart;
mod drain;
mod greet;
mod hello;
mod input;
mod mail;
mod pace;
mod publish;
mod receipt;
mod receipts;
mod reconcile;
mod refresh;
mod relay;
mod remote;
mod reset;
mod send;
mod session;
mod shutdown;
mod simple;
mod slab;
mod spill;
mod stats;
mod store;
mod subscribe;
mod sweep;
mod tickets;
mod ticks;
mod users;

#[cfg(test)]
mod tests;

pub use cluster::{NodeId, PeerOp, PeerReply, Presence};
pub use command::{
    AckUpdate, AckVersion, BroadcastDelta, BroadcastVersion, Cancel, CloseReason, Command, Disposition, Event, Hello,
    NodeAnswer, NodeNotify, NodePush, Publish, Published, Refusal,
};
pub use config::MachineConfig;
pub use input::{Effect, EffectQueue, Input};
pub use mail::{Arrival, ClaimReply, ClaimRequest, Mail, Reply, Request};
pub use receipt::{Outcome, ReceiptAnswer, ReceiptQuery};
pub use relay::{MemberEvent, MemberReply, MemberRequest, RelayCommand, RelayEvent, RelayId, SeatId};
pub use stats::{DeliveryTimes, MachineStats};
pub use store::{Page, RECORD_VERSION, RowKey, StoreError, StoreOp, StoreReply, UserRow};

use crate::ids::{ConnId, EmissionId, Uaid};
use crate::limits;
use crate::time::{Instant, Now};

use active::Entry;
use clock::HybridClock;
use components::actives::Actives;
use components::broadcasts::Broadcasts;
use components::dead_endpoints::DeadEndpoints;
use components::departures::Departures;
use components::greetings::Greetings;
use components::hello_timer::HelloTimer;
use components::keepalive::Keepalive;
use components::ledger_room::LedgerRoom;
use components::rates::Rates;
use components::receipts::Receipts;
use components::refresh::Refreshes;
use components::requests::Requests;
use components::row_memory::RowMemory;
use components::settling::Settling;
use components::simple::Simple;
use components::sweep::Sweep;
use components::writes::Writes;
use conns::{ConnState, ConnTable, OPENED_TICKS_MAX};
use relay::{Relays, same_emission};
use session::{BLOCKED, NONE, Session};
use shutdown::Shutdown;
use slab::Slab;
use tickets::Tickets;
use users::{Resident, UserIndex};

/// One shard's state. Authoritative for its slice of the UAIDs; rebuilt empty at start.
pub struct ShardMachine {
    config: MachineConfig,
    stats: MachineStats,
    delivery_times: DeliveryTimes,
    clock: HybridClock,
    conns: ConnTable,
    users: UserIndex,
    sessions: Slab<Session>,
    actives: Actives,
    greetings: Greetings,
    hello_timer: HelloTimer,
    requests: Requests,
    tickets: Tickets,
    writes: Writes,
    departures: Departures,
    /// Storage had no room for the last save: no further message is taken that would need one.
    storage_full: bool,
    settling: Settling,
    dead: DeadEndpoints,
    rates: Rates,
    receipts: Receipts,
    ledger_room: LedgerRoom,
    row_memory: RowMemory,
    broadcasts: Broadcasts,
    sweep: Sweep,
    refreshes: Refreshes,
    keepalive: Keepalive,
    relays: Relays,
    shutdown: Option<Shutdown>,
    simple: Simple,
}

/// One step: its time, and where its effects go.
struct Turn<'a> {
    now: Now,
    effects: &'a mut EffectQueue,
    /// How many effects were queued before this step.
    before: usize,
}

impl Turn<'_> {
    /// Whether a loop of this step may take one more item: what one item causes fits in the other half.
    fn has_room(&self) -> bool {
        self.effects.len() - self.before < limits::EFFECTS_PER_INPUT_MAX / 2
    }
}

impl ShardMachine {
    /// An empty shard.
    pub fn new(config: MachineConfig) -> ShardMachine {
        assert!(config.shard.0 < config.placement.shard_count(), "the shard is one of its placement");
        assert!(usize::from(config.relay_members) <= limits::RELAY_MEMBERS_MAX, "relay.members is validated");
        assert!(config.window > 0 && config.window <= limits::WINDOW_MAX, "delivery.window is validated");
        ShardMachine {
            stats: MachineStats::default(),
            delivery_times: DeliveryTimes::default(),
            clock: HybridClock::new(config.clock_floor, config.apart_max()),
            conns: ConnTable::new(),
            users: UserIndex::new(config.sessions_max),
            sessions: Slab::new(),
            actives: Actives::new(),
            greetings: Greetings::new(),
            hello_timer: HelloTimer::new(config.hello_timeout, OPENED_TICKS_MAX),
            requests: Requests::new(config.shard, config.placement.shard_count()),
            tickets: Tickets::new(),
            writes: Writes::default(),
            departures: Departures::default(),
            storage_full: false,
            settling: Settling::default(),
            dead: DeadEndpoints::new(),
            rates: Rates::new(config.token_rate, config.user_bytes_per_day),
            receipts: Receipts::new(),
            ledger_room: LedgerRoom::new(config.ledger_bytes_max),
            row_memory: RowMemory::default(),
            broadcasts: Broadcasts::new(config.broadcast_spread),
            sweep: Sweep::new(&config),
            refreshes: Refreshes::default(),
            keepalive: Keepalive::new(&config),
            relays: Relays::new(),
            shutdown: None,
            simple: Simple::default(),
            config,
        }
    }

    /// Applies one input at `now`. Appends at most `limits::EFFECTS_PER_INPUT_MAX` effects.
    pub fn step(&mut self, now: Now, input: Input, effects: &mut EffectQueue) {
        let before = effects.len();
        let turn = &mut Turn { now, effects, before };
        match input {
            Input::Opened { conn } => self.opened(turn, conn),
            Input::Command { conn, command: Command::Hello(hello) } => self.hello(turn, conn, hello),
            Input::Command { conn, command: Command::Relay(command) } => self.relay_command(turn, conn, command),
            Input::Command { conn, command } => self.http_command(turn, conn, command),
            Input::Frame { conn } => self.frame(turn, conn),
            Input::Gone { conn, reason: _ } => self.gone(turn, conn),
            Input::Blocked { conn } => self.blocked(conn),
            Input::Unsent { conn, emission } => self.unsent(turn, conn, emission),
            Input::Writable { conn } => self.writable(turn, conn),
            Input::Mail(mail) => self.mail(turn, mail),
            Input::Arrived { conn, claim } => self.descriptor_arrived(turn, conn, claim),
            Input::MoveFailed { conn, to, claim } => self.move_failed(turn, conn, to, claim),
            Input::Stored { ticket, result } => self.stored(turn, ticket, result),
            Input::Peer { ticket, reply } => self.peer_replied(turn, ticket, reply),
            Input::Timeout => self.timeout(turn),
            Input::Heard { until, late } => self.heard(turn, until, late),
            Input::ClockStopped(stopped) => self.clock.stop(stopped),
            Input::Broadcasts(values) => self.set_broadcasts(turn, &values),
            Input::Drain { rate } => self.begin_drain(turn, rate),
        }
        self.submit_settles(turn);
        self.say_receipts(turn);
        self.carry_to_relays(turn);
        self.say_drained(turn);
        assert!(effects.len() - before <= limits::EFFECTS_PER_INPUT_MAX, "a step keeps within its effects");
    }

    /// The earliest instant at which `Input::Timeout` must be delivered.
    pub fn next_timeout(&self) -> Option<Instant> {
        [
            self.broadcasts.due(),
            self.hello_timer.due(),
            self.greetings.due(),
            self.actives.due(),
            self.sweep.due(),
            self.keepalive.due(),
            self.tickets.due(),
            self.relays.due(),
            self.receipts.due(),
            self.drain_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Delivery latency of the shard; one writer.
    pub fn delivery_times(&self) -> &DeliveryTimes {
        &self.delivery_times
    }

    /// The shard's counters; one writer. Gauges are brought up to date here.
    pub fn stats(&mut self) -> &MachineStats {
        self.stats.sessions = self.sessions.len() as u64;
        self.stats.conns = self.conns.len() as u64;
        self.stats.relays = self.relays.len() as u64;
        self.stats.relay_members = self.relays.members() as u64;
        self.stats.relay_seats = self.conns.seats.len() as u64;
        self.stats.actives = self.actives.len() as u64;
        self.stats.ledger_bytes = self.ledger_room.bytes();
        self.stats.row_bytes = self.row_memory.bytes();
        self.stats.ledger_records = self.ledger_room.live() as u64;
        self.stats.store_outstanding = self.tickets.outstanding() as u64;
        self.stats.receipts = self.receipts.len() as u64;
        self.stats.receipt_waiters = self.receipts.waiters() as u64;
        self.stats.broadcasts_refused = self.broadcasts.refused();
        self.stats.buckets_forgotten = self.rates.buckets_forgotten();
        &self.stats
    }

    /// Whether an identified session of this user is on this shard.
    pub fn is_resident(&self, uaid: Uaid) -> bool {
        matches!(self.resident(uaid), Some(Resident::Session(_)))
    }

    /// Unacked notifications in the window of this user's session.
    pub fn window_len(&self, uaid: Uaid) -> usize {
        match self.resident(uaid) {
            Some(Resident::Session(index)) => {
                let active = self.sessions.at(index).map_or(NONE, |(_, session)| session.active);
                self.active_of(active).map_or(0, |active| active.window.len())
            }
            _ => 0,
        }
    }

    /// Nothing is under way: no request, no storage work, no save, no hello.
    pub fn is_quiet(&self) -> bool {
        let relays = self.relays.idle();
        relays && self.tickets.idle() && self.requests.idle() && self.departures.is_empty() && self.greetings.is_empty()
    }

    fn timeout(&mut self, turn: &mut Turn<'_>) {
        self.hello_timeouts(turn);
        self.greeting_timeouts(turn);
        // Relays that end first: what is said to their members from here on would go nowhere and count as delivered.
        self.relay_turn(turn);
        self.active_timeouts(turn);
        self.spread_broadcasts(turn);
        // Clocks first: those whose Pong came in time are gone before the next Pings go out.
        self.pong_timeouts(turn);
        self.sweep_sessions(turn);
        self.receipt_timeouts(turn);
        self.submit_backlog(turn);
        self.drain_turn(turn);
    }

    /// A command of a WebSocket. Anything but hello needs a session.
    fn session_command(&mut self, turn: &mut Turn<'_>, conn: ConnId, command: Command) {
        let index = match (self.conns.get(conn), &command) {
            (Some(ConnState::Session(index)), _) => index,
            // Pings are of the connection; whatever else a relay asks is a command of its own.
            (Some(ConnState::Relay(index)), Command::Ping) => return self.relay_ping(turn, index),
            (Some(ConnState::Relay(index)), Command::Pong) => return self.relay_pong(turn, index),
            (Some(ConnState::Relay(_)), _) => return self.refuse_command(turn, conn),
            // A Pong before hello answers nothing of ours and is harmless (RFC 6455 section 5.5.3).
            (_, Command::Pong) => return turn.effects.push_back(Effect::Ready(conn)),
            (_, _) => return self.refuse_command(turn, conn),
        };
        let at = self.session_ref(index);
        self.postpone_ping(turn, at);
        if !matches!(command, Command::Pong) {
            self.simple_active(at, turn.now.mono);
        }
        match command {
            // These two answer, and are Ready, when storage has.
            Command::Register { chid, key } => return self.register(turn, at, chid, key),
            Command::Unregister { chid, code } => return self.unregister(turn, at, chid, code),
            Command::Ack(updates) => self.ack(turn, at, &updates),
            Command::AckVersions(updates) => self.ack_versions(turn, at, &updates),
            Command::Nack { code: _ } => self.stats.nacks += 1,
            Command::BroadcastSubscribe(wanted) => self.broadcast_subscribe(turn, at, &wanted),
            Command::Ping => self.client_ping(turn, at),
            Command::Pong => self.pong(at),
            Command::Hello(_)
            | Command::Relay(_)
            | Command::Publish(_)
            | Command::Cancel(_)
            | Command::Receipt(_)
            | Command::NodePush(_)
            | Command::NodeNotify(_)
            | Command::NodeDisconnect { .. } => {}
        }
        if self.sessions.get(at).is_some() {
            turn.effects.push_back(Effect::Ready(conn));
        }
    }

    /// What this socket asks is not for it to ask now.
    fn refuse_command(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        self.stats.wrong_state += 1;
        self.close_conn(turn, conn, CloseReason::WrongState);
    }

    /// A socket is gone; whatever it was in the middle of ends.
    fn gone(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.end_session(turn, at, None);
            }
            Some(ConnState::Greeting(index)) => {
                self.abandon_greeting(index);
                self.conns.remove(conn);
                self.admit_waiting_hellos(turn);
            }
            Some(ConnState::Relay(index)) => self.end_relay(turn, index, None),
            Some(ConnState::Opened(_) | ConnState::Waiting | ConnState::Claiming) => {
                self.conns.remove(conn);
            }
            None => {}
        }
    }

    /// Ends a socket, with whatever it is in the middle of.
    fn close_conn(&mut self, turn: &mut Turn<'_>, conn: ConnId, reason: CloseReason) {
        match self.conns.get(conn) {
            Some(ConnState::Session(index)) => {
                let at = self.session_ref(index);
                self.end_session(turn, at, Some(reason));
                return;
            }
            Some(ConnState::Relay(index)) => {
                self.end_relay(turn, index, Some(reason));
                return;
            }
            Some(ConnState::Greeting(index)) => self.abandon_greeting(index),
            _ => {}
        }
        self.conns.remove(conn);
        turn.effects.push_back(Effect::Close(conn, reason));
    }

    fn blocked(&mut self, conn: ConnId) {
        if let Some(ConnState::Relay(index)) = self.conns.get(conn) {
            self.relay_blocked(index);
        }
        if let Some(ConnState::Session(index)) = self.conns.get(conn) {
            let at = self.session_ref(index);
            if let Some(session) = self.sessions.get_mut(at) {
                session.put(BLOCKED, true);
            }
        }
    }

    /// The socket took nothing of this frame: the entry is unsent again, in its place. A row of which only storage has
    /// the body by now is read when it is its turn. A TTL 0 frame has no entry; it had its one try.
    fn unsent(&mut self, turn: &mut Turn<'_>, conn: ConnId, emission: EmissionId) {
        if let Some(ConnState::Relay(index)) = self.conns.get(conn) {
            self.relay_unsent(turn, index, emission);
        }
        let Some(ConnState::Session(index)) = self.conns.get(conn) else { return };
        self.stats.unsent += 1;
        let at = self.session_ref(index);
        let active_index = self.sessions.get(at).map_or(NONE, |session| session.active);
        let Some(active) = self.active_of_mut(active_index) else { return };
        let named = |entry: &Entry| entry.sent && same_emission(conn, entry.emission, emission);
        let Some(place) = active.window.iter().position(named) else { return };
        active.unsend(place);
    }

    /// The socket takes bytes: what waited in the window goes out in its order, then storage is read on.
    fn writable(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        if let Some(ConnState::Relay(index)) = self.conns.get(conn) {
            self.relay_writable(turn, index);
        }
        let Some(ConnState::Session(index)) = self.conns.get(conn) else { return };
        let at = self.session_ref(index);
        let Some(session) = self.sessions.get_mut(at) else { return };
        session.put(BLOCKED, false);
        let active_index = session.active;
        if let Some(active) = self.active_of_mut(active_index) {
            active.pace.resume(turn.now.mono);
        }
        self.tell_broadcasts(turn, at);
        self.continue_drain(turn, at);
    }
}
