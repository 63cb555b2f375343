//! The world around the machines: what exists in it, what can happen next, and how time passes.

use machine::ids::{Clock, ConnId, ShardId, Uaid};
use machine::limits;
use machine::placement::Placement;
use machine::time::{Instant, Now};
use machine::{BroadcastVersion, Effect, EffectQueue, Input, Mail, ShardMachine};
use runtime::mailbox::Lane;
use std::collections::VecDeque;

use crate::bodies::Bodies;
use crate::coverage::CoverageMarks;
use crate::frozen::Hibernation;
use crate::oracle::Oracle;
use crate::parts::{Agent, AppServer, RelayClient};
use crate::plan::Plan;
use crate::sabotage::Sabotage;
use crate::shard_log::ShardLog;
use crate::shared::{Streams, Verdict, lane_of};
use crate::socket::Frozen;
use crate::socket::{Place, Socket, SocketId};
use crate::store::{FaultProfile, Store, Worked};
use crate::trace::Recorder;

/// Everything there is.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) rng: Streams,
    /// Monotonic nanoseconds.
    pub(crate) now: u64,
    /// Wall clock minus monotonic clock, microseconds.
    pub(crate) wall_offset_us: u64,
    pub(crate) steps: u64,
    /// Number of starts of the process.
    pub(crate) boots: u64,
    pub(crate) placement: Placement,
    pub(crate) shards: Vec<Shard>,
    pub(crate) sockets: Vec<Socket>,
    pub(crate) moves: Vec<Moving>,
    /// Three lanes of each shard, which all others write to.
    pub(crate) lanes: Vec<[VecDeque<Mail>; 3]>,
    pub(crate) store: Store,
    pub(crate) agents: Vec<Agent>,
    pub(crate) posters: Vec<AppServer>,
    pub(crate) relays: Vec<RelayClient>,
    pub(crate) broadcasts: Vec<BroadcastVersion>,
    pub(crate) bodies: Bodies,
    pub(crate) hibernation: Hibernation,
    pub(crate) oracle: Oracle,
    pub(crate) marks: CoverageMarks,
    pub(crate) recorder: Recorder,
    /// Faults are off and every peer behaves.
    pub(crate) calm: bool,
    /// A stop was asked for; monotonic deadline.
    pub(crate) stopping: Option<u64>,
    /// The next step is the last one of this process.
    pub(crate) kill_next: bool,
}

/// One shard of this boot.
pub(crate) struct Shard {
    pub(crate) machine: ShardMachine,
    pub(crate) effects: EffectQueue,
    pub(crate) log: ShardLog,
    pub(crate) slots: Vec<Slot>,
    pub(crate) free: Vec<u32>,
    pub(crate) stalled_until: u64,
    pub(crate) floor: Clock,
    pub(crate) drained: bool,
}

/// A place in the connection plane.
#[derive(Clone, Copy, Default)]
pub(crate) struct Slot {
    pub(crate) generation: u32,
    pub(crate) socket: Option<SocketId>,
}

/// A descriptor between two rings.
pub(crate) struct Moving {
    pub(crate) socket: SocketId,
    pub(crate) source: usize,
    pub(crate) conn: ConnId,
    pub(crate) to: usize,
    pub(crate) claim: machine::ids::Claim,
    pub(crate) fails: bool,
}

/// Something that could happen next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WorldEvent {
    Accept(SocketId),
    TellBlocked(SocketId),
    Writable(SocketId),
    Decode(SocketId),
    Gone(SocketId),
    Receive(SocketId),
    Thaw(SocketId),
    Segment(SocketId),
    ProbeAnswered(SocketId),
    Resume,
    Mail(usize, Lane),
    Descriptor(usize),
    StoreWork(Uaid),
    StoreReply(Uaid),
    Timeout(usize),
}

impl World {
    /// The two clocks as a shard reads them.
    pub(crate) fn time(&self) -> Now {
        Now { mono: Instant(self.now), unix_us: self.wall_offset_us + self.now / 1_000 }
    }

    /// Takes down one line.
    pub(crate) fn log(&mut self, shard: Option<usize>, what: std::fmt::Arguments<'_>) {
        self.recorder.line(self.steps, self.now / 1_000_000, shard, what);
    }

    /// Everything that could happen now.
    pub(crate) fn enabled(&self) -> Vec<WorldEvent> {
        let mut found = Vec::new();
        for (id, socket) in self.sockets.iter().enumerate() {
            self.enabled_of(id, socket, &mut found);
        }
        for (to, lanes) in self.lanes.iter().enumerate().filter(|(to, _)| self.awake(*to)) {
            let waiting = Lane::ALL.into_iter().filter(|lane| !lanes[*lane as usize].is_empty());
            found.extend(waiting.map(|lane| WorldEvent::Mail(to, lane)));
        }
        for (index, moving) in self.moves.iter().enumerate() {
            if self.awake(if moving.fails { moving.source } else { moving.to }) {
                found.push(WorldEvent::Descriptor(index));
            }
        }
        if self.can_resume() {
            found.push(WorldEvent::Resume);
        }
        if self.now >= self.store.stalled_until {
            found.extend(self.store.submitted(self.now).map(WorldEvent::StoreWork));
        }
        found.extend(
            self.store.answered().filter(|(_, to)| self.awake(*to)).map(|(uaid, _)| WorldEvent::StoreReply(uaid)),
        );
        for (index, shard) in self.shards.iter().enumerate() {
            // A loop hears of a refused send in the turn of that send: before its next timeout.
            let due = shard.machine.next_timeout().is_some_and(|at| at.0 <= self.now);
            if due && self.awake(index) && !self.owes_blocked(index) {
                found.push(WorldEvent::Timeout(index));
            }
        }
        found
    }

    fn enabled_of(&self, id: SocketId, socket: &Socket, found: &mut Vec<WorldEvent>) {
        if socket.can_receive() {
            found.push(WorldEvent::Receive(id));
        }
        if let Some(frozen) = &socket.frozen {
            self.enabled_of_frozen(id, frozen, found);
        }
        match socket.place {
            Place::Waiting { shard } if self.awake(shard) => found.push(WorldEvent::Accept(id)),
            Place::At { shard, .. } if self.awake(shard) && socket.is_websocket() => {
                if !socket.peer_open && socket.frozen.is_none() {
                    found.push(WorldEvent::Gone(id));
                }
                if socket.can_decode() {
                    found.push(WorldEvent::Decode(id));
                }
                match &socket.blocked {
                    Some(blocked) if !blocked.told => found.push(WorldEvent::TellBlocked(id)),
                    Some(_) if socket.takes_bytes() => found.push(WorldEvent::Writable(id)),
                    _ => {}
                }
            }
            _ => {}
        }
    }

    fn enabled_of_frozen(&self, id: SocketId, frozen: &Frozen, found: &mut Vec<WorldEvent>) {
        let socket = &self.sockets[id];
        let is_here = match socket.place {
            Place::At { shard, .. } => self.awake(shard),
            // Before the end of a process its segments are dropped.
            Place::Left => self.hibernation.waiting.iter().any(|(waits, _)| *waits == id),
            _ => false,
        };
        if is_here && frozen.has_segment(socket) && self.now >= frozen.segment_at {
            found.push(WorldEvent::Segment(id));
        }
        if is_here && frozen.owes_frame(socket) && self.now >= frozen.thaw_at {
            found.push(WorldEvent::Thaw(id));
        }
        if is_here && frozen.probe_at.is_some_and(|at| self.now >= at) {
            found.push(WorldEvent::ProbeAnswered(id));
        }
    }

    /// Returns true if a socket of this shard refused bytes and the machine has not been told.
    fn owes_blocked(&self, shard: usize) -> bool {
        self.sockets.iter().any(|socket| {
            matches!(socket.place, Place::At { shard: at, .. } if at == shard)
                && socket.blocked.as_ref().is_some_and(|blocked| !blocked.told)
        })
    }

    /// Returns true if a shard runs.
    pub(crate) fn awake(&self, shard: usize) -> bool {
        self.shards.get(shard).is_some_and(|s| s.stalled_until <= self.now)
    }

    /// One turn: something happens, a peer acts, or time passes.
    pub(crate) fn turn(&mut self) -> Verdict {
        self.now += 1_000 + self.rng.schedule.below(1_000_000);
        self.sessions_went_on()?;
        self.search();
        if self.plan.busy && !self.calm {
            self.posters_hurry()?;
        }
        let enabled = self.enabled();
        if enabled.is_empty() {
            self.bodies_counted()?;
        }
        let outside = enabled.is_empty() || self.rng.schedule.permille(self.plan.eagerness);
        if outside && !self.calm {
            return self.act(enabled.is_empty());
        }
        if enabled.is_empty() {
            self.pass_time(true);
            return Ok(());
        }
        let mut next = enabled[self.rng.schedule.index(enabled.len())];
        if self.plan.slow_shard < self.shards.len() && self.is_slow(next) && self.rng.schedule.permille(950) {
            // The slow shard waits, if another has anything to do.
            next = enabled[self.rng.schedule.index(enabled.len())];
        }
        self.happen(next)
    }

    /// Returns true if this is for the slow shard to do.
    fn is_slow(&self, next: WorldEvent) -> bool {
        let shard = match next {
            WorldEvent::Mail(to, _) | WorldEvent::Timeout(to) => Some(to),
            WorldEvent::Descriptor(index) => self.moves.get(index).map(|moving| moving.to),
            WorldEvent::StoreReply(uaid) => Some(self.owner(uaid)),
            _ => None,
        };
        shard == Some(self.plan.slow_shard)
    }

    /// Lets it happen.
    pub(crate) fn happen(&mut self, next: WorldEvent) -> Verdict {
        match next {
            WorldEvent::Accept(id) => self.accept(id),
            WorldEvent::TellBlocked(id) => self.tell_blocked(id),
            WorldEvent::Writable(id) => self.writable(id),
            WorldEvent::Decode(id) => self.decode(id),
            WorldEvent::Gone(id) => self.notice_gone(id),
            WorldEvent::Receive(id) => self.receive(id),
            WorldEvent::Thaw(id) => self.thaw_for_frame(id),
            WorldEvent::Segment(id) => self.segment(id),
            WorldEvent::ProbeAnswered(id) => self.probe_answered(id),
            WorldEvent::Resume => self.resume(),
            WorldEvent::Mail(to, lane) => match self.lanes[to][lane as usize].pop_front() {
                Some(mail) => {
                    self.before_mail(&mail);
                    self.step(to, Input::Mail(mail))
                }
                None => Ok(()),
            },
            WorldEvent::Descriptor(index) => self.land(index),
            WorldEvent::StoreWork(uaid) => {
                let weather =
                    FaultProfile { faults: &self.plan.faults, short_pages: self.plan.short_pages, now: self.now };
                let worked = self.store.work(uaid, &weather, &mut self.rng.store, &mut self.marks);
                self.worked(&worked);
                Ok(())
            }
            WorldEvent::StoreReply(uaid) => match self.store.collect(uaid) {
                Some((shard, ticket, result)) => self.step(shard, Input::Stored { ticket, result }),
                None => Ok(()),
            },
            WorldEvent::Timeout(shard) => self.step(shard, Input::Timeout),
        }
    }

    /// Notes the work that storage has done.
    pub(crate) fn worked(&mut self, worked: &Worked) {
        self.oracle.stored(&worked.written);
        for (uaid, chid) in &worked.unregistered {
            if self.plan.reconcile {
                self.oracle.channel_forgotten(*uaid, *chid, self.steps);
            }
        }
        worked.untold.iter().for_each(|stamp| self.delivery_forgotten(Some(*stamp)));
        worked.dropped.iter().for_each(|uaid| self.oracle.user_dropped(*uaid, self.steps));
    }

    /// Time passes: to the next deadline, or a random while.
    pub(crate) fn pass_time(&mut self, idle: bool) {
        let deadlines = self.shards.iter().filter_map(|s| s.machine.next_timeout()).map(|at| at.0);
        let wakes = self.shards.iter().map(|s| s.stalled_until);
        let store = std::iter::once(self.store.stalled_until).chain(self.store.due());
        let agents = self.agents.iter().filter(|_| self.calm).map(|agent| agent.retry_at);
        let hibernation = self.hibernation_due();
        let next =
            deadlines.chain(wakes).chain(store).chain(agents).chain(hibernation).filter(|at| *at > self.now).min();
        let draw = self.rng.schedule.below(100);
        let while_ns = match draw {
            0..50 => self.rng.schedule.below(200_000_000),
            50..90 => self.rng.schedule.below(3_000_000_000),
            _ if self.plan.busy => self.rng.schedule.below(1_000_000_000),
            _ => self.rng.schedule.below(if idle { 100_000_000_000 } else { 12_000_000_000 }),
        };
        self.now = match next {
            Some(at) if idle && (self.calm || !self.plan.busy) && (self.calm || draw < 70) => at,
            _ => self.now + while_ns,
        };
        self.oracle.wall_max = self.oracle.wall_max.max(self.time().unix().0);
    }

    /// Gives a machine one input and carries out its effects.
    pub(crate) fn step(&mut self, shard: usize, input: Input) -> Verdict {
        self.steps += 1;
        let now = self.time();
        self.oracle.wall_max = self.oracle.wall_max.max(now.unix().0);
        self.log(Some(shard), format_args!("<- {input:?}"));
        let this = &mut self.shards[shard];
        let mut effects = std::mem::take(&mut this.effects);
        effects.reserve(limits::EFFECTS_PER_INPUT_MAX);
        this.machine.step(now, input, &mut effects);
        if effects.len() > limits::EFFECTS_PER_INPUT_MAX {
            return Err(format!("a step appended {} effects", effects.len()));
        }
        let dies = self.kill_next && self.dies_now(&effects);
        let cut = if dies { self.dies_at(&effects) } else { effects.len() };
        for effect in effects.drain(..cut) {
            self.carry_out(shard, effect)?;
        }
        if dies {
            self.torn(shard, effects.pop_front())?;
        }
        effects.clear();
        self.shards[shard].effects = effects;
        if dies {
            return self.kill();
        }
        self.after_step(shard)
    }

    /// A kill waits for a step that writes to the ledger, but not for long.
    fn dies_now(&mut self, effects: &EffectQueue) -> bool {
        effects.iter().any(is_ledgers) || self.rng.faults.permille(100)
    }

    /// Index of the effect before which the process dies.
    fn dies_at(&mut self, effects: &EffectQueue) -> usize {
        match effects.iter().position(is_ledgers) {
            Some(at) if self.rng.faults.permille(500) => at,
            _ => self.rng.faults.index(effects.len() + 1),
        }
    }

    /// Checks everything that must hold when a machine rests.
    fn after_step(&mut self, shard: usize) -> Verdict {
        let acked = std::mem::take(&mut self.oracle.acked_in_step);
        for post in acked {
            let stamp = self.oracle.posts[post].stamp;
            if self.shards[shard].log.posts().any(|live| live == post) {
                return Err(format!("{stamp:?} was acked and its ledger record is live"));
            }
        }
        for uaid in self.oracle.resident.keys().filter(|uaid| self.owner(**uaid) == shard) {
            let unacked = self.shards[shard].machine.window_len(*uaid);
            if unacked > usize::from(self.plan.window) {
                return Err(format!("{uaid:?} has {unacked} unacked in its window"));
            }
        }
        if self.plan.busy {
            self.not_starved()?;
        }
        let tickets = self.store.outstanding_count(shard);
        if tickets > limits::STORE_TICKETS_MAX {
            return Err(format!("shard {shard} has {tickets} storage tickets out"));
        }
        Ok(())
    }

    /// The shard that decides about a UAID.
    pub(crate) fn owner(&self, uaid: Uaid) -> usize {
        usize::from(self.placement.owner(uaid).0)
    }

    /// Puts a mail in its lane.
    pub(crate) fn post_mail(&mut self, from: usize, to: ShardId, mail: Mail) -> Verdict {
        let to = usize::from(to.0);
        if to >= self.shards.len() || to == from {
            return Err(format!("a mail from shard {from} to shard {to}"));
        }
        let credit = limits::reply_credit(self.placement.shard_count()) * (self.shards.len() - 1);
        let lane = lane_of(&mail);
        let capacity = if lane == Lane::Arrivals { limits::GRANTS_MAX } else { credit };
        let lost =
            self.store.sabotage == Some(Sabotage::ReplyLost) && lane == Lane::Replies && self.steps.is_multiple_of(20);
        if lost {
            return Ok(());
        }
        let queue = &mut self.lanes[to][lane as usize];
        if queue.len() == capacity {
            return Err(format!("the lane {lane:?} of shard {to} overflows with a mail of shard {from}"));
        }
        queue.push_back(mail);
        Ok(())
    }
}

fn is_ledgers(effect: &Effect) -> bool {
    matches!(effect, Effect::LedgerAppend(..) | Effect::LedgerDead(_))
}
