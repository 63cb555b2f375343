//! Contents of the world, its possible next events, and the passage of time.

use std::collections::{BTreeMap, BTreeSet};

use machine::ids::{Clock, ConnId, Uaid};
use machine::limits;
use machine::model::Model;
use machine::placement::Placement;
use machine::time::{Instant, Now};
use machine::{EffectQueue, Input};

use super::parts::{BrokenRule, Call, Device, Judged, Node, Phone, Post, Reply, Request, User, Work};
use super::plan::Plan;
use crate::coverage::CoverageMarks;
use crate::rng::Rng;
use crate::shared::{Late, PLACEMENT_KEY, SECOND, Streams, Verdict};
use crate::trace::Recorder;

/// Nodes, phones, app servers, the service and the store.
pub(crate) struct Bridges {
    pub(super) plan: Plan,
    pub(super) broken: Option<BrokenRule>,
    pub(super) rng: Streams,
    /// Monotonic nanoseconds, the same everywhere; clocks differ.
    pub(super) now: u64,
    /// Events so far: finer than time.
    pub(super) instant: u64,
    pub(crate) steps: u64,
    pub(super) boots: u64,
    pub(super) placement: Placement,
    pub(super) nodes: Vec<Node>,
    pub(super) store: Model,
    pub(super) works: Vec<Work>,
    pub(super) replies: Vec<Reply>,
    pub(super) late: Vec<Late>,
    pub(super) calls: Vec<Call>,
    /// The guard of the profile is active until then.
    pub(super) guard_until: u64,
    /// Every device token that was made, by its number.
    pub(super) devices: Vec<Device>,
    pub(super) phones: Vec<Phone>,
    /// Requests under way, by node, shard and slot.
    pub(super) requests: BTreeMap<(usize, usize, u32), Request>,
    pub(super) posts: Vec<Post>,
    /// Every user that storage had, with all its states.
    pub(super) users: BTreeMap<Uaid, User>,
    /// Answers of the service, by the record that each call was made for.
    pub(super) judged: BTreeMap<(Uaid, Clock, usize), Judged>,
    /// Users whose removal was asked for.
    pub(super) removals: BTreeSet<Uaid>,
    pub(super) slots: u32,
    /// Nothing fails any more.
    pub(super) calm: bool,
    /// Nothing is under way from before the calm.
    pub(super) settled: bool,
    pub(crate) marks: CoverageMarks,
    pub(crate) recorder: Recorder,
}

/// Something that could happen next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Mail(usize, usize, usize),
    Timeout(usize, usize),
    Work(usize),
    Reply(usize),
    Late(usize),
    Answer(usize),
    Return(usize),
}

/// Longest time of a request: the operations of storage behind each other, the call of the service, and standstills.
const REQUEST_MAX: u64 = 60 * SECOND;

impl Bridges {
    /// The world of a seed.
    pub(crate) fn new(seed: u64, keep_lines: bool, broken: Option<BrokenRule>) -> Bridges {
        let plan = Plan::draw(&mut Rng::new(seed, 201));
        Bridges {
            broken,
            rng: Streams::new(seed, [202, 204, 203, 205, 206]),
            now: SECOND,
            instant: 0,
            steps: 0,
            boots: 0,
            placement: Placement::new(PLACEMENT_KEY, plan.shards),
            nodes: Vec::new(),
            store: if plan.nodes > 1 { Model::shared() } else { Model::new(u64::MAX) },
            works: Vec::new(),
            replies: Vec::new(),
            late: Vec::new(),
            calls: Vec::new(),
            guard_until: 0,
            devices: Vec::new(),
            phones: (0..plan.phones).map(|_| Phone::default()).collect(),
            requests: BTreeMap::new(),
            posts: Vec::new(),
            users: BTreeMap::new(),
            judged: BTreeMap::new(),
            removals: BTreeSet::new(),
            slots: 0,
            calm: false,
            settled: false,
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
            self.add_node(n);
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
        let right = 1_700_000_000_000_000 + self.now / 1_000;
        Now { mono: Instant(self.now), unix_us: right.saturating_add_signed(self.nodes[n].offset_us) }
    }

    fn enabled(&self) -> Vec<Next> {
        let mut found = Vec::new();
        for (n, node) in self.nodes.iter().enumerate() {
            if !node.up {
                found.extend((node.returns_at <= self.now).then_some(Next::Return(n)));
                continue;
            }
            for (s, shard) in node.shards.iter().enumerate().filter(|(_, shard)| shard.stalled_until <= self.now) {
                let waiting = (0..3).filter(|lane| !shard.lanes[*lane].is_empty());
                found.extend(waiting.map(|lane| Next::Mail(n, s, lane)));
                if shard.machine.next_timeout().is_some_and(|at| at.0 <= self.now) {
                    found.push(Next::Timeout(n, s));
                }
            }
        }
        let is_awake = |(n, s): (usize, usize)| self.nodes[n].shards[s].stalled_until <= self.now;
        for (at, work) in self.works.iter().enumerate() {
            let first = !self.works[..at].iter().any(|w| w.at.0 == work.at.0 && w.op.uaid() == work.op.uaid());
            found.extend((first && work.ready_at <= self.now).then_some(Next::Work(at)));
        }
        for (at, reply) in self.replies.iter().enumerate() {
            let first = !self.replies[..at].iter().any(|r| r.at.0 == reply.at.0 && r.uaid == reply.uaid);
            found.extend((first && is_awake(reply.at)).then_some(Next::Reply(at)));
        }
        found.extend((0..self.late.len()).filter(|at| self.late[*at].at <= self.now).map(Next::Late));
        let due = |call: &Call| call.ready_at <= self.now && is_awake(call.at);
        found.extend((0..self.calls.len()).filter(|at| due(&self.calls[*at])).map(Next::Answer));
        found
    }

    /// One turn: an event happens, a client acts, or time passes.
    pub(super) fn turn(&mut self) -> Verdict {
        self.now += 1_000 + self.rng.schedule.below(1_000_000);
        self.instant += 1;
        self.stops_end()?;
        self.in_time()?;
        let enabled = self.enabled();
        if !self.calm && (enabled.is_empty() || self.rng.schedule.permille(self.plan.eagerness)) {
            return self.act(enabled.is_empty());
        }
        if enabled.is_empty() {
            self.pass_time();
            return Ok(());
        }
        let next = enabled[self.rng.schedule.index(enabled.len())];
        match next {
            Next::Mail(n, s, lane) => match self.nodes[n].shards[s].lanes[lane].pop_front() {
                Some(mail) => self.step(n, s, Input::Mail(mail)),
                None => Ok(()),
            },
            Next::Timeout(n, s) => self.step(n, s, Input::Timeout),
            Next::Work(at) => self.work(at),
            Next::Reply(at) => {
                let Reply { at: (n, s), ticket, result, .. } = self.replies.remove(at);
                self.step(n, s, Input::Stored { ticket, result })
            }
            Next::Late(at) => self.lands_late(at),
            Next::Answer(at) => self.service_answers(at),
            Next::Return(n) => {
                self.boot(n);
                Ok(())
            }
        }
    }

    /// Every request is answered within its bound.
    fn in_time(&self) -> Verdict {
        let late = |request: &&Request| self.now > request.began() + REQUEST_MAX;
        match self.requests.values().find(late) {
            Some(request) => Err(format!("no answer within {} s: {request:?}", REQUEST_MAX / SECOND)),
            None => Ok(()),
        }
    }

    /// Time passes: to the next instant that something waits for, or a random while when nothing is under way.
    pub(super) fn pass_time(&mut self) {
        let up = || self.nodes.iter().filter(|node| node.up).flat_map(|node| &node.shards);
        let machines = up().filter_map(|shard| shard.machine.next_timeout()).map(|at| at.0);
        let nodes = up().map(|shard| shard.stalled_until).chain(self.nodes.iter().map(|node| node.returns_at));
        let works = self.works.iter().map(|work| work.ready_at).chain(self.late.iter().map(|late| late.at));
        let calls = self.calls.iter().map(|call| call.ready_at);
        let next = machines.chain(nodes).chain(works).chain(calls).filter(|at| *at > self.now).min();
        let stops = self.nodes.iter().any(|node| node.stopping.is_some());
        let busy = !self.requests.is_empty() || !self.works.is_empty() || stops;
        self.now = match next {
            Some(at) if busy => at,
            _ if busy => self.now + SECOND / 5,
            _ if self.rng.schedule.permille(500) => self.now + self.rng.schedule.below(3 * SECOND),
            _ => self.now + self.rng.schedule.between(20 * SECOND, 90 * SECOND),
        };
    }

    /// Gives a machine one input and carries out its effects.
    pub(super) fn step(&mut self, n: usize, s: usize, input: Input) -> Verdict {
        self.steps += 1;
        let now = self.time(n);
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
}
