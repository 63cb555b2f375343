//! The world of the scenarios: machines, the mail, moves and calls between them, their store, and a clock that stands
//! still until a test moves it. [`Mesh::run`] delivers everything that is not held back.

mod agents;
mod effects;
mod nodes;
mod senders;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::ids::{Chid, Claim, Clock, ConnId, EmissionId, Origin, ShardId, Stamp, StoreTicket, Uaid};
use crate::message::{Message, Urgency};
use crate::model::Model;
use crate::placement::Placement;
use crate::shard::tests::script::Script;
use crate::shard::*;
use crate::simplepush::WakeData;
use crate::time::{Instant, Now, TimeSpan, UnixSeconds};
use crate::upstream::UpstreamOp;

pub use effects::Said;
pub use nodes::{Line, node_id, notify};
pub use senders::{lasting, message, topical};

/// A WebSocket of the test, wherever it is now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Socket(pub usize);

/// Place of a WebSocket, and its output.
pub struct Place {
    pub shard: usize,
    pub conn: ConnId,
    pub said: Vec<Said>,
    pub emissions: Vec<EmissionId>,
    /// Urgencies in its notifications.
    pub told: Vec<Urgency>,
    pub ready: bool,
    pub fed: Vec<u8>,
}

/// Machines and everything between them.
pub struct Mesh {
    pub machines: Vec<ShardMachine>,
    pub now: Now,
    pub store: Script,
    pub placement: Placement,
    pub sockets: Vec<Place>,
    /// Answers to POSTs, cancels and node requests by connection slot.
    pub answers: BTreeMap<(usize, u32), String>,
    published: BTreeMap<(usize, u32), Published>,
    receipts: BTreeMap<(usize, u32), ReceiptAnswer>,
    registrations: BTreeMap<(usize, u32), RegistrationAnswer>,
    pub mail: VecDeque<(usize, Mail)>,
    /// Moves under way: the descriptor half, and the mail half.
    pub descriptors: VecDeque<(Socket, usize, Claim)>,
    pub arrivals: VecDeque<(usize, Mail)>,
    pub hold_moves: bool,
    pub hold_mail: bool,
    /// Live ledger records by shard and slot, which survive `kill -9`.
    pub ledger: BTreeMap<(usize, u32), Arc<Message>>,
    pub drained: Vec<usize>,
    /// Requested wake-up calls.
    pub woken: Vec<WakeData>,
    /// Versions of the updates that were sent, by their stamps.
    pub versions: BTreeMap<Stamp, (Chid, u64)>,
    /// Calls between nodes under way.
    pub calls: VecDeque<(usize, StoreTicket, PeerOp)>,
    /// Calls of services under way.
    pub upstream_calls: VecDeque<(usize, StoreTicket, UpstreamOp)>,
    /// Calls to read storage that got no answer; the peer client repeats them.
    pub owed: Vec<PeerOp>,
    /// Fate of the calls to each node.
    pub lines: Vec<Line>,
    /// Channels in the hellos of the test.
    pub channels: Option<Box<[Chid]>>,
    next_slot: u32,
    next_uaid: u128,
}

fn config(shard: u16, placement: Placement) -> MachineConfig {
    MachineConfig {
        origin: Origin(1_000 + u32::from(shard)),
        relay_members: 8,
        ..MachineConfig::new(ShardId(shard), placement)
    }
}

pub const CHANNEL: Chid = Chid([0xc1; 16]);
pub const OTHER: Chid = Chid([0xc2; 16]);

impl Mesh {
    pub fn new(shards: u16) -> Mesh {
        Mesh::with(shards, |_| {})
    }

    pub fn with(shards: u16, tune: impl Fn(&mut MachineConfig)) -> Mesh {
        let placement = Placement::new([9; 16], shards);
        let machines = (0..shards).map(|n| {
            let mut config = config(n, placement);
            tune(&mut config);
            ShardMachine::new(config)
        });
        Mesh {
            machines: machines.collect(),
            now: Now { mono: Instant(1_000_000_000), unix_us: 1_700_000_000_000_000 },
            store: Script::new(Model::new(u64::MAX)),
            placement,
            sockets: Vec::new(),
            answers: BTreeMap::new(),
            published: BTreeMap::new(),
            receipts: BTreeMap::new(),
            registrations: BTreeMap::new(),
            mail: VecDeque::new(),
            descriptors: VecDeque::new(),
            arrivals: VecDeque::new(),
            hold_moves: false,
            hold_mail: false,
            ledger: BTreeMap::new(),
            drained: Vec::new(),
            woken: Vec::new(),
            versions: BTreeMap::new(),
            calls: VecDeque::new(),
            upstream_calls: VecDeque::new(),
            owed: Vec::new(),
            lines: Vec::new(),
            channels: None,
            next_slot: 0,
            next_uaid: 1,
        }
    }

    /// Kills the process and starts it again: only storage is left, and the contents of the ledgers are saved to it.
    pub fn restart(&mut self) {
        let configs = self.machines.iter().map(|machine| MachineConfig {
            origin: Origin(machine.config.origin.0 + 1_000),
            clock_floor: Clock(self.now.unix_us),
            ..machine.config.clone()
        });
        self.machines = configs.collect::<Vec<_>>().into_iter().map(ShardMachine::new).collect();
        for message in std::mem::take(&mut self.ledger).into_values() {
            self.store.save(message);
        }
        self.store.replies.clear();
        self.mail.clear();
    }

    /// Returns an unused UAID that `shard` owns.
    pub fn uaid_of(&mut self, shard: usize) -> Uaid {
        loop {
            self.next_uaid += 1;
            let uaid = Uaid((self.next_uaid * 0x9e37_79b9_7f4a_7c15).to_be_bytes());
            if usize::from(self.placement.owner(uaid).0) == shard % usize::from(self.placement.shard_count()) {
                return uaid;
            }
        }
    }

    /// Returns a user in storage with both channels, last seen now.
    pub fn known_user(&mut self, shard: usize) -> Uaid {
        self.user_seen(shard, self.now.unix())
    }

    /// Same as `known_user`, last seen at the given time.
    pub fn user_seen(&mut self, shard: usize, seen: UnixSeconds) -> Uaid {
        let uaid = self.uaid_of(shard);
        self.store.add_user(uaid, &[CHANNEL, OTHER], seen);
        uaid
    }

    /// Returns an unused connection.
    pub fn conn(&mut self) -> ConnId {
        self.next_slot += 1;
        ConnId { slot: self.next_slot, generation: 1 }
    }

    /// Lets time pass in steps of a fifth of a second, timeouts delivered as they come due.
    pub fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds * 5 {
            self.pass_step();
        }
    }

    /// One of these steps.
    pub fn pass_step(&mut self) {
        self.now.mono = self.now.mono.after(TimeSpan::from_ms(200));
        self.now.unix_us += 200_000;
        self.time_out();
        self.turns();
    }

    /// Delivers the timeouts that are due, and their consequences.
    fn time_out(&mut self) {
        for shard in 0..self.machines.len() {
            if self.machines[shard].next_timeout().is_some_and(|due| due <= self.now.mono) {
                self.step(shard, Input::Timeout);
            }
        }
        self.run();
    }

    /// The turns that a shard takes at once, each a moment after the one before, until it has nothing to do.
    pub fn turns(&mut self) {
        loop {
            let soon = self.now.mono.after(TimeSpan(1));
            if !self.machines.iter().any(|machine| machine.next_timeout().is_some_and(|due| due == soon)) {
                return;
            }
            self.now.mono = soon;
            self.time_out();
        }
    }

    /// Delivers mail, moves and storage replies until nothing is left but what is held.
    pub fn run(&mut self) {
        for delivered in 0.. {
            assert!(delivered < 100_000, "shards and nodes answer each other for ever");
            if let Some((shard, ticket, result)) = self.store.replies.pop_front() {
                self.step(shard, Input::Stored { ticket, result });
            } else if !self.hold_mail && !self.mail.is_empty() {
                if let Some((to, mail)) = self.mail.pop_front() {
                    self.step(to, Input::Mail(mail));
                }
            } else if !self.hold_moves && !self.descriptors.is_empty() {
                self.deliver_descriptor();
            } else if !self.hold_moves && !self.arrivals.is_empty() {
                self.deliver_arrival();
            } else if self.deliver_call() {
            } else {
                return;
            }
        }
    }

    pub fn deliver_descriptor(&mut self) {
        let (socket, to, claim) = self.descriptors.pop_front().expect("a descriptor is under way");
        let conn = self.conn();
        let place = &mut self.sockets[socket.0];
        (place.shard, place.conn) = (to, conn);
        self.step(to, Input::Arrived { conn, claim });
    }

    pub fn deliver_arrival(&mut self) {
        let (to, mail) = self.arrivals.pop_front().expect("an arrival is under way");
        self.step(to, Input::Mail(mail));
    }

    pub fn step(&mut self, shard: usize, input: Input) {
        self.step_watched(shard, input, |_| {});
    }

    /// Same as `step`. `look` is called after each effect and sees the state that a kill at that instant would leave.
    pub fn step_watched(&mut self, shard: usize, input: Input, look: impl Fn(&Mesh)) {
        let mut effects = EffectQueue::new();
        self.machines[shard].step(self.now, input, &mut effects);
        for effect in effects {
            self.carry_out(shard, effect);
            look(self);
        }
    }
}
