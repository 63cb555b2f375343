//! Contents of a cluster, its possible next events, and the passage of time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use machine::ids::{Chid, ConnId, Stamp, Uaid};
use machine::limits;
use machine::model::Model;
use machine::peers::DebtRow;
use machine::placement::Placement;
use machine::time::{Instant, Now};
use machine::{EffectQueue, Input};

use super::bridged::Bridges;
use super::parts::{Behind, Breakage, Burial, Call, DebtWrite, Forms, Node, Pending, Post, Reply, Work};
use super::phones::Phone;
use super::plan::Plan;
use super::sock::{Agent, Channel, Sock, SockId};
use crate::coverage::CoverageMarks;
use crate::rng::Rng;
use crate::shared::{Late, PLACEMENT_KEY, Streams, Verdict};
use crate::trace::Recorder;

/// Nodes and everything between them.
pub(crate) struct Cluster {
    pub(super) plan: Plan,
    pub(super) breakage: Option<Breakage>,
    pub(super) rng: Streams,
    /// Monotonic nanoseconds, the same everywhere; clocks differ.
    pub(super) now: u64,
    pub(crate) steps: u64,
    /// Turns so far: finer than time.
    pub(super) instant: u64,
    pub(super) boots: u64,
    pub(super) placement: Placement,
    pub(super) nodes: Vec<Node>,
    /// The table of nodes: the last boot of each, and true if it has ended in order.
    pub(super) table: Vec<(u64, bool)>,
    /// Time at which each node last renewed its lease, by its own clock, in microseconds.
    pub(super) seen: Vec<u64>,
    pub(super) burials: Vec<Burial>,
    /// Runs that a burial named.
    pub(super) buried: BTreeSet<(usize, u64)>,
    pub(super) store: Model,
    pub(super) works: Vec<Work>,
    pub(super) replies: Vec<Reply>,
    pub(super) late: Vec<Late>,
    pub(super) calls: Vec<Call>,
    /// The table of debts: the node that is owed, and its rows.
    pub(super) debts: BTreeMap<(usize, u64), DebtRow>,
    pub(super) debt_writes: Vec<DebtWrite>,
    pub(super) debts_written: i64,
    /// Pairs of nodes that do not reach each other, and until when.
    pub(super) cuts: BTreeMap<(usize, usize), u64>,
    pub(super) rolling: VecDeque<usize>,
    pub(super) agents: Vec<Agent>,
    pub(super) socks: Vec<Sock>,
    /// The highest version that was acked on the present session of a SimplePush user, by channel.
    pub(super) acked_versions: BTreeMap<(Uaid, Chid), u64>,
    /// Sockets that their user agents have left and listen to all the same.
    pub(super) twins: Vec<SockId>,
    /// Users that a register was answered for.
    pub(super) known: BTreeSet<Uaid>,
    pub(super) channels: BTreeMap<(Uaid, Chid), Channel>,
    pub(super) posts: Vec<Post>,
    pub(super) by_stamp: BTreeMap<Stamp, usize>,
    /// Forms in which messages without a topic were written.
    pub(super) forms: BTreeMap<Stamp, Forms>,
    /// Requests over HTTP, by node, shard and slot, and the end of the time in which each is answered.
    pub(super) pending: BTreeMap<(usize, usize, u32), (Pending, u64)>,
    pub(super) bridges: Bridges,
    pub(super) slots: u32,
    pub(super) calls_made: u64,
    pub(super) wall_max: u64,
    /// No clock is ever wrong.
    pub(super) one_time: bool,
    /// Something was lost that excuses a message that comes again after its ack.
    pub(super) disorder: bool,
    /// A delete of rows has failed or landed late, so that a row may be read once more.
    pub(super) settle_failed: bool,
    /// Step at which a node last took with it which rows others must delete with an ack.
    pub(super) word_lost: u64,
    /// Step at which a node last took with it what it owed to others, and the same for single users.
    pub(super) untold: u64,
    pub(super) untold_users: BTreeMap<Uaid, u64>,
    pub(super) calm: bool,
    /// Users whose presence row was perhaps cleared by mistake.
    pub(super) misled: BTreeSet<Uaid>,
    /// Live sessions are refreshed.
    pub(super) refreshing: bool,
    /// User agents read and do not ack.
    pub(super) withholds: bool,
    /// Reply of storage that a machine is being given.
    pub(super) behind: Behind,
    /// A machine is being told of a user who has no row of another node.
    pub(super) alone: bool,
    /// Users whose row has ridden with a register.
    pub(super) rode: BTreeSet<Uaid>,
    pub(crate) marks: CoverageMarks,
    pub(crate) recorder: Recorder,
}

/// Something that could happen next.
#[derive(Clone, Copy, Debug)]
pub(super) enum ClusterEvent {
    Opened(SockId),
    Decode(SockId),
    Gone(SockId),
    Read(SockId),
    Mail(usize, usize, usize),
    Move(usize, usize, usize),
    Timeout(usize, usize),
    Work(usize),
    Reply(usize),
    Late(usize),
    Call(usize),
    Debt(usize),
    Client(usize),
    /// The service of bridged users answers a call.
    Service(usize),
    Return(usize),
}

impl Cluster {
    /// The cluster of a seed.
    pub(crate) fn new(seed: u64, (rare, keep_lines): (bool, bool), breakage: Option<Breakage>) -> Cluster {
        let stream = |salt| Rng::new(seed, salt);
        let plan = match rare {
            true => Plan::draw_rare(&mut stream(107)),
            false => Plan::draw(&mut stream(101)).with_features(&mut stream(109)),
        };
        let mut people = stream(110);
        let agents = (0..plan.agents).map(|_| Agent { simple: people.permille(plan.simple), ..Agent::default() });
        let phones = (0..plan.bridges.phones).map(|_| Phone::default()).collect();
        Cluster {
            breakage,
            rng: Streams::new(seed, [102, 103, 104, 105, 106]),
            now: 1_000_000_000,
            steps: 0,
            instant: 0,
            boots: 0,
            placement: Placement::new(PLACEMENT_KEY, plan.shards),
            nodes: Vec::new(),
            table: Vec::new(),
            seen: Vec::new(),
            burials: Vec::new(),
            buried: BTreeSet::new(),
            store: Model::shared(),
            works: Vec::new(),
            replies: Vec::new(),
            late: Vec::new(),
            calls: Vec::new(),
            debts: BTreeMap::new(),
            debt_writes: Vec::new(),
            debts_written: 0,
            cuts: BTreeMap::new(),
            rolling: VecDeque::new(),
            agents: agents.collect(),
            acked_versions: BTreeMap::new(),
            socks: Vec::new(),
            twins: Vec::new(),
            known: BTreeSet::new(),
            channels: BTreeMap::new(),
            posts: Vec::new(),
            by_stamp: BTreeMap::new(),
            forms: BTreeMap::new(),
            pending: BTreeMap::new(),
            bridges: Bridges { phones, ..Bridges::default() },
            slots: 0,
            calls_made: 0,
            wall_max: 0,
            one_time: plan.skew_us == 0 && plan.faults.runaway == 0 && plan.press.coarse_us == 0,
            disorder: false,
            settle_failed: false,
            word_lost: 0,
            untold: 0,
            untold_users: BTreeMap::new(),
            calm: false,
            misled: BTreeSet::new(),
            refreshing: false,
            withholds: false,
            behind: Behind::Other,
            alone: false,
            rode: BTreeSet::new(),
            marks: CoverageMarks::default(),
            recorder: Recorder::new(keep_lines),
            plan,
        }
    }

    /// Runs it to its end.
    pub(crate) fn run(&mut self) -> Verdict {
        let plan = self.plan.clone();
        self.log(None, format_args!("{plan:?}"));
        for n in 0..plan.nodes {
            self.add_node(n)?;
        }
        let mut turns = 0;
        while self.steps < plan.steps && turns < plan.steps * 20 {
            turns += 1;
            self.turn()?;
        }
        self.quiesce()
    }

    /// Takes down one line.
    pub(super) fn log(&mut self, node: Option<usize>, what: std::fmt::Arguments<'_>) {
        self.recorder.line(self.steps, self.now / 1_000_000, node, what);
    }

    /// The two clocks as a node reads them.
    pub(super) fn time(&self, n: usize) -> Now {
        let host = self.right_us().saturating_add_signed(self.offset_us(n));
        Now { mono: Instant(self.now), unix_us: host - host % self.plan.press.coarse_us.max(1) }
    }

    /// The right time, microseconds.
    pub(super) fn right_us(&self) -> u64 {
        1_700_000_000_000_000 + self.now / 1_000
    }

    /// Lead of the clock of a node over the right time, in microseconds.
    pub(super) fn offset_us(&self, n: usize) -> i64 {
        let node = &self.nodes[n];
        let offset = node.offset_us + (self.now - node.drift_since) as i64 / 1_000 * node.drift / 1_000_000;
        let most = self.plan.skew_us as i64;
        if node.runs_away { offset } else { offset.clamp(-most, most) }
    }

    /// Returns true if a node runs and does something.
    pub(super) fn awake(&self, n: usize) -> bool {
        self.nodes[n].up && self.nodes[n].paused_until <= self.now
    }

    /// Returns true if two nodes reach each other.
    pub(super) fn reaches(&self, a: usize, b: usize) -> bool {
        self.cuts.get(&(a.min(b), a.max(b))).is_none_or(|until| *until <= self.now)
    }

    /// Returns true if a node reaches the store.
    pub(super) fn has_store(&self, n: usize) -> bool {
        self.nodes[n].store_cut_until <= self.now
    }

    /// Everything that could happen now.
    pub(super) fn enabled(&self) -> Vec<ClusterEvent> {
        let mut found = Vec::new();
        for (id, sock) in self.socks.iter().enumerate() {
            self.enabled_of(id, sock, &mut found);
        }
        for (n, node) in self.nodes.iter().enumerate() {
            if !node.up {
                if node.returns_at <= self.now && self.has_store(n) {
                    found.push(ClusterEvent::Return(n));
                }
                continue;
            }
            if !self.awake(n) {
                continue;
            }
            if node.client.is_due(Instant(self.now)) {
                found.push(ClusterEvent::Client(n));
            }
            for (s, shard) in node.shards.iter().enumerate() {
                let waiting = (0..3).filter(|lane| !shard.lanes[*lane].is_empty());
                found.extend(waiting.map(|lane| ClusterEvent::Mail(n, s, lane)));
                found.extend((0..shard.moves.len()).map(|at| ClusterEvent::Move(n, s, at)));
                if shard.machine.next_timeout().is_some_and(|at| at.0 <= self.now) {
                    found.push(ClusterEvent::Timeout(n, s));
                }
            }
        }
        found.extend((0..self.debt_writes.len()).filter(|at| self.debt_moves(*at)).map(ClusterEvent::Debt));
        self.enabled_of_store(&mut found);
        found.extend((0..self.calls.len()).filter(|at| self.call_moves(*at)).map(ClusterEvent::Call));
        let is_due = |at: &usize| {
            let call = &self.bridges.calls[*at];
            call.ready_at <= self.now && self.awake(call.at.0)
        };
        found.extend((0..self.bridges.calls.len()).filter(is_due).map(ClusterEvent::Service));
        found
    }

    /// One turn: an event happens, a user agent or a sender acts, or time passes.
    pub(super) fn turn(&mut self) -> Verdict {
        self.now += 1_000 + self.rng.schedule.below(1_000_000);
        self.instant += 1;
        self.in_time()?;
        self.keep()?;
        self.stops_end()?;
        let enabled = self.enabled();
        let outside = enabled.is_empty() || self.rng.schedule.permille(self.plan.eagerness);
        if outside && !self.calm {
            return self.act(enabled.is_empty());
        }
        if enabled.is_empty() {
            self.pass_time();
            return Ok(());
        }
        let next = enabled[self.rng.schedule.index(enabled.len())];
        self.happen(next)
    }

    pub(super) fn happen(&mut self, next: ClusterEvent) -> Verdict {
        match next {
            ClusterEvent::Opened(id) => self.opened(id),
            ClusterEvent::Decode(id) => self.decode(id),
            ClusterEvent::Gone(id) => self.gone(id),
            ClusterEvent::Read(id) => self.read(id),
            ClusterEvent::Mail(n, s, lane) => match self.nodes[n].shards[s].lanes[lane].pop_front() {
                Some(mail) => self.step(n, s, Input::Mail(mail)),
                None => Ok(()),
            },
            ClusterEvent::Move(n, s, at) => {
                let (id, claim) = self.nodes[n].shards[s].moves.swap_remove(at);
                let conn = self.name(n, s, id);
                self.step(n, s, Input::Arrived { conn, claim })
            }
            ClusterEvent::Timeout(n, s) => self.step(n, s, Input::Timeout),
            ClusterEvent::Work(at) => self.work(at),
            ClusterEvent::Reply(at) => self.reply(at),
            ClusterEvent::Late(at) => self.lands_late(at),
            ClusterEvent::Call(at) => self.call_goes_on(at),
            ClusterEvent::Client(n) => self.tends_calls(n),
            ClusterEvent::Debt(at) => self.debt_lands(at),
            ClusterEvent::Service(at) => self.service_answers(at),
            ClusterEvent::Return(n) => self.boot(n),
        }
    }

    /// Time passes: to the next instant that something waits for, or a random while.
    pub(super) fn pass_time(&mut self) {
        let up = || self.nodes.iter().filter(|node| node.up);
        let machines = up().flat_map(|node| &node.shards).filter_map(|shard| shard.machine.next_timeout());
        let nodes = self.nodes.iter().flat_map(|node| [node.paused_until, node.store_cut_until, node.returns_at]);
        let owed = up().filter_map(|node| node.client.due(Instant(self.now))).map(|at| at.0);
        let owed = owed.chain(self.debt_writes.iter().map(|write| write.at));
        let work = self.works.iter().flat_map(|work| [work.ready_at, work.gives_up_at]);
        let calls = self.calls.iter().map(Call::due).chain(self.late.iter().map(|late| late.at));
        let agents = self.agents.iter().map(|agent| agent.retry_at);
        let burials = self.burials.iter().map(|burial| burial.at);
        let all = machines.map(|at| at.0).chain(nodes).chain(owed).chain(work).chain(calls).chain(agents);
        let all = all.chain(burials).chain(self.bridges.calls.iter().map(|call| call.ready_at));
        let next = all.filter(|at| *at > self.now).min();
        let before = self.now;
        self.now = match (next, self.rng.schedule.below(100)) {
            (Some(at), draw) if self.calm || draw < 70 => at,
            (_, draw) if draw < 90 => self.now + self.rng.schedule.below(3_000_000_000),
            _ => self.now + self.rng.schedule.below(self.plan.stride),
        };
        self.stands_still(self.now.saturating_sub(next.unwrap_or(before)));
    }

    /// Gives a machine one input and carries out its effects.
    pub(super) fn step(&mut self, n: usize, s: usize, input: Input) -> Verdict {
        self.steps += 1;
        let now = self.time(n);
        self.wall_max = self.wall_max.max(now.unix().0);
        self.log(Some(n), format_args!("{s} at {} <- {input:?}", now.unix_us));
        let mut effects = EffectQueue::with_capacity(limits::EFFECTS_PER_INPUT_MAX);
        self.nodes[n].shards[s].machine.step(now, input, &mut effects);
        for effect in effects {
            self.carry_out(n, s, effect)?;
        }
        Ok(())
    }

    /// A name that no connection of any boot has had.
    pub(super) fn fresh_conn(&mut self) -> ConnId {
        self.slots += 1;
        ConnId { slot: self.slots, generation: 1 }
    }

    /// A node that serves and reads its input.
    pub(super) fn some_node(&mut self) -> Option<usize> {
        let n = self.rng.clients.index(self.nodes.len());
        let serves = self.awake(n) && self.nodes[n].shards.iter().all(|shard| !shard.drained);
        serves.then_some(n)
    }
}
