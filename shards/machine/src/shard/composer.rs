//! The composer: the one type that contains every component of a shard.
//!
//! The files that import this one are parts of the composer, each with one subject. No file that this one imports
//! imports it back.

use crate::ids::{ConnId, Uaid};
use crate::limits;
use crate::simplepush::Mode;
use crate::time::{Instant, Now};

use super::clock::HybridClock;
use super::command::Hello;
use super::components::active_sessions::ActiveSessions;
use super::components::broadcasts::Broadcasts;
use super::components::conns::{ConnState, ConnTable, OPENED_TICKS_MAX};
use super::components::dead_endpoints::DeadEndpoints;
use super::components::dropped_users::DroppedUsers;
use super::components::hello_timer::HelloTimer;
use super::components::keepalive::Keepalive;
use super::components::ledger_room::LedgerRoom;
use super::components::pending_hellos::PendingHellos;
use super::components::pending_saves::PendingSaves;
use super::components::rate_limits::RateLimits;
use super::components::receipts::Receipts;
use super::components::refresh::Refreshes;
use super::components::registering::Registering;
use super::components::relays::Relays;
use super::components::requests::Requests;
use super::components::row_memory::RowMemory;
use super::components::session::{NONE, Session};
use super::components::settling::Settling;
use super::components::shutdown::Shutdown;
use super::components::simplepush::SimplePushTable;
use super::components::storage_room::StorageRoom;
use super::components::storage_round::StorageRound;
use super::components::sweep::Sweep;
use super::components::tickets::Tickets;
use super::components::upstream_calls::UpstreamCalls;
use super::components::user_index::{Resident, UserIndex};
use super::components::writes::Writes;
use super::config::MachineConfig;
use super::input::EffectQueue;
use super::pending_bridge::BridgeCall;
use super::pending_op::{PendingOp, PendingPeerOp, Waiting};
use super::slab::Slab;
use super::stats::{DeliveryTimes, MachineStats};

/// State of one shard. Authoritative for its slice of the UAIDs; rebuilt empty at start.
pub struct ShardMachine {
    pub(super) config: MachineConfig,
    pub(super) stats: MachineStats,
    pub(super) delivery_times: DeliveryTimes,
    pub(super) clock: HybridClock,
    pub(super) conns: ConnTable,
    pub(super) users: UserIndex,
    pub(super) sessions: Slab<Session>,
    pub(super) active_sessions: ActiveSessions,
    pub(super) pending_hellos: PendingHellos,
    pub(super) hello_timer: HelloTimer,
    pub(super) requests: Requests,
    pub(super) tickets: Tickets<Waiting>,
    pub(super) upstream_calls: UpstreamCalls<Box<BridgeCall>>,
    pub(super) registering: Registering,
    pub(super) writes: Writes,
    pub(super) pending_saves: PendingSaves,
    pub(super) storage_room: StorageRoom,
    pub(super) settling: Settling,
    pub(super) dead: DeadEndpoints,
    pub(super) dropped_users: DroppedUsers,
    pub(super) rates: RateLimits,
    pub(super) receipts: Receipts,
    pub(super) ledger_room: LedgerRoom,
    pub(super) row_memory: RowMemory,
    pub(super) broadcasts: Broadcasts,
    pub(super) sweep: Sweep,
    pub(super) storage_round: StorageRound,
    pub(super) refreshes: Refreshes,
    pub(super) keepalive: Keepalive,
    pub(super) relays: Relays,
    pub(super) shutdown: Shutdown,
    pub(super) simple: SimplePushTable,
}

/// One step: its time, and the queue for its effects.
pub(super) struct StepContext<'a> {
    pub now: Now,
    pub effects: &'a mut EffectQueue,
    /// Number of effects that were queued before this step.
    pub before: usize,
}

impl StepContext<'_> {
    /// Returns true if a loop of this step may take one more item: the effects of one item fit in the other half.
    pub fn has_room(&self) -> bool {
        self.effects.len() - self.before < limits::EFFECTS_PER_INPUT_MAX / 2
    }
}

impl ShardMachine {
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
            active_sessions: ActiveSessions::new(),
            pending_hellos: PendingHellos::new(),
            hello_timer: HelloTimer::new(config.hello_timeout, OPENED_TICKS_MAX),
            requests: Requests::new(config.shard, config.placement.shard_count()),
            tickets: Tickets::new(),
            upstream_calls: UpstreamCalls::new(),
            registering: Registering::default(),
            writes: Writes::default(),
            pending_saves: PendingSaves::default(),
            storage_room: StorageRoom::default(),
            settling: Settling::default(),
            dead: DeadEndpoints::new(),
            dropped_users: DroppedUsers::new(),
            rates: RateLimits::new(config.token_rate, config.user_bytes_per_day),
            receipts: Receipts::new(),
            ledger_room: LedgerRoom::new(config.ledger_bytes_max),
            row_memory: RowMemory::default(),
            broadcasts: Broadcasts::new(config.broadcast_spread),
            sweep: Sweep::new(&config),
            storage_round: StorageRound::default(),
            refreshes: Refreshes::default(),
            keepalive: Keepalive::new(&config),
            relays: Relays::new(),
            shutdown: Shutdown::default(),
            simple: SimplePushTable::default(),
            config,
        }
    }

    /// Returns the earliest instant at which `Input::Timeout` must be delivered.
    pub fn next_timeout(&self) -> Option<Instant> {
        [
            self.broadcasts.due(),
            self.hello_timer.due(),
            self.pending_hellos.due(),
            self.active_sessions.due(),
            self.sweep.due(),
            self.storage_round.due(),
            self.keepalive.due(),
            self.tickets.due(),
            self.relays.due(),
            self.receipts.due(),
            self.shutdown.due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns true if the user has a session here, or a hello under way.
    pub fn has_user(&self, uaid: Uaid) -> bool {
        self.resident(uaid).is_some()
    }

    /// Returns the hello that makes the session of this connection again, in another process; `None` if no hello does:
    /// the connection has no session yet, or it is one of a relay or of SimplePush.
    pub fn hello_of(&self, conn: ConnId) -> Option<Hello> {
        let Some(ConnState::Session(index)) = self.conns.get(conn) else { return None };
        let (_, session) = self.sessions.at(index)?;
        // The minimum urgency of a user who is not in storage is in this session only.
        let is_unwritten = session.stored.is_unplaced() && session.link.named_minimum().is_some();
        if session.link.mode() != Mode::WebPush || session.stored.is_entering() || is_unwritten {
            return None;
        }
        let broadcasts = self.broadcasts.told(session.broadcasts);
        Some(Hello { broadcasts, ..Hello::new(Some(session.uaid), session.uaid) })
    }

    /// Returns the delivery latency of the shard; one writer.
    pub fn delivery_times(&self) -> &DeliveryTimes {
        &self.delivery_times
    }

    /// Returns the shard's counters; one writer. Updates the gauges first.
    pub fn stats(&mut self) -> &MachineStats {
        self.stats.sessions = self.sessions.len() as u64;
        self.stats.conns = self.conns.len() as u64;
        self.stats.relays = self.relays.len() as u64;
        self.stats.relay_members = self.relays.members() as u64;
        self.stats.relay_seats = self.conns.virtual_conns.len() as u64;
        self.stats.actives = self.active_sessions.len() as u64;
        self.stats.ledger_bytes = self.ledger_room.bytes();
        self.stats.row_bytes = self.row_memory.bytes();
        self.stats.ledger_records = self.ledger_room.live() as u64;
        self.stats.store_outstanding = self.tickets.outstanding() as u64;
        self.stats.upstream_outstanding = self.upstream_calls.len() as u64;
        self.stats.receipts = self.receipts.len() as u64;
        self.stats.receipt_waiters = self.receipts.waiters() as u64;
        self.stats.broadcasts_refused = self.broadcasts.refused();
        self.stats.buckets_forgotten = self.rates.buckets_forgotten();
        &self.stats
    }

    /// Returns true if an identified session of this user is on this shard.
    pub fn is_resident(&self, uaid: Uaid) -> bool {
        matches!(self.resident(uaid), Some(Resident::Session(_)))
    }

    /// Returns the number of unacked notifications in the window of this user's session.
    pub fn window_len(&self, uaid: Uaid) -> usize {
        match self.resident(uaid) {
            Some(Resident::Session(index)) => {
                let active = self.sessions.at(index).map_or(NONE, |(_, session)| session.active);
                self.active_of(active).map_or(0, |active| active.window.len())
            }
            _ => 0,
        }
    }

    /// Returns true if an operation of this user waits here to be tried: its deletes, too, wait behind it.
    pub fn defers(&self, uaid: Uaid) -> bool {
        self.tickets.defers(uaid)
    }

    /// Returns true if the node that has this user is being told of a stored message: nothing of that outlives this
    /// process.
    pub fn notifies(&self, uaid: Uaid) -> bool {
        let is_notify = |work: &Waiting| match work {
            Waiting::Store(PendingOp::LoadForNotify(notify) | PendingOp::SaveAgain(notify)) => notify.uaid == uaid,
            Waiting::Peer(PendingPeerOp::Notify(notify)) => notify.uaid == uaid,
            Waiting::Store(_) | Waiting::Peer(_) => false,
        };
        self.tickets.defers(uaid) || self.tickets.has(is_notify)
    }

    /// Returns true if nothing is under way: no request, no storage work, no save, no hello.
    pub fn is_quiet(&self) -> bool {
        let relays = self.relays.idle();
        relays
            && self.tickets.idle()
            && self.upstream_calls.idle()
            && self.requests.idle()
            && self.pending_saves.is_empty()
            && self.pending_hellos.is_empty()
    }
}
