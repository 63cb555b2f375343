//! Running seeds: one world each, a report over many, and the command that replays a failure.

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use machine::placement::Placement;

use crate::bodies::Bodies;
use crate::cluster::{Breakage, Cluster};
use crate::coverage::CoverageMarks;
use crate::frozen::Hibernation;
use crate::hibernation_plan::HibernationPlan;
use crate::oracle::Oracle;
use crate::parts::{Agent, AppServer, RelayClient};
use crate::plan::Plan;
use crate::rng::Rng;
use crate::sabotage::Sabotage;
use crate::shared::{PLACEMENT_KEY, Streams, Verdict};
use crate::store::Store;
use crate::trace::{Recorder, Trace};
use crate::world::World;

/// Options of a run.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Keep one line per event, for reading. Off, a trace is its hash.
    pub lines: bool,
    /// Stop after this many failures; 0 is never.
    pub failures_max: usize,
    /// Several nodes on one store, instead of one node.
    pub cluster: bool,
    /// With `cluster`: worlds of other plans, each of which presses on one rule that common worlds seldom reach.
    pub rare: bool,
}

/// A seed whose world broke a promise. Its display ends with the command that replays it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    /// Options that name the kind of its world, each with a blank behind it.
    pub kind: &'static str,
    /// Inputs that machines had been given.
    pub steps: u64,
    /// The promise that was broken, in words.
    pub what: String,
    /// The last events before it, when `Options::lines` was set.
    pub lines: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "seed {} at step {}: {}", self.seed, self.steps, self.what)?;
        let end = self.seed.saturating_add(1);
        write!(f, "replay: murre-bench sim {}--seeds {}..{end}", self.kind, self.seed)
    }
}

impl std::error::Error for Failure {}

/// Results of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Seeds run.
    pub seeds: u64,
    /// Inputs that machines were given, over all seeds.
    pub steps: u64,
    /// Coverage over all seeds that ended well.
    pub marks: CoverageMarks,
    /// The seeds that did not.
    pub failures: Vec<Failure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.marks)?;
        for failure in &self.failures {
            writeln!(f, "{failure}")?;
        }
        write!(f, "{} seeds, {} steps, {} failures", self.seeds, self.steps, self.failures.len())
    }
}

/// Runs these seeds one after the other on this thread.
pub fn run(seeds: Range<u64>, options: &Options) -> Report {
    let mut report = Report::default();
    for seed in seeds {
        report.seeds += 1;
        match run_seed(seed, options) {
            Ok(trace) => {
                report.steps += trace.steps;
                report.marks.absorb(&trace.marks);
            }
            Err(failure) => {
                report.steps += failure.steps;
                report.failures.push(failure);
                if report.failures.len() == options.failures_max {
                    break;
                }
            }
        }
    }
    report
}

/// Runs one seed. An assertion of the machine is a failure like any other where panics unwind.
pub fn run_seed(seed: u64, options: &Options) -> Result<Trace, Failure> {
    if options.cluster { run_cluster(seed, options, None) } else { run_world(seed, options, None) }
}

/// Runs one seed of a cluster, perhaps with a rule broken on purpose.
pub(crate) fn run_cluster(seed: u64, options: &Options, breakage: Option<Breakage>) -> Result<Trace, Failure> {
    if cfg!(panic = "abort") {
        name_seed_on_panic(seed);
    }
    let mut world = Cluster::new(seed, (options.rare, options.lines), breakage);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    let kind = if options.rare { "--cluster --rare " } else { "--cluster " };
    over(seed, kind, world.steps, ended, (world.recorder, world.marks))
}

/// Runs one seed, perhaps with a law broken on purpose.
pub(crate) fn run_world(seed: u64, options: &Options, sabotage: Option<Sabotage>) -> Result<Trace, Failure> {
    if cfg!(panic = "abort") {
        name_seed_on_panic(seed);
    }
    let mut world = World::new(seed, options, sabotage);
    let ended = catch_unwind(AssertUnwindSafe(|| world.run()));
    over(seed, "", world.steps, ended, (world.recorder, world.marks))
}

/// The result of a world, named by its seed and its kind.
fn over(
    seed: u64,
    kind: &'static str,
    steps: u64,
    ended: std::thread::Result<Verdict>,
    (mut recorder, marks): (Recorder, CoverageMarks),
) -> Result<Trace, Failure> {
    let lines = recorder.take_lines();
    let what = match ended {
        Ok(Ok(())) => return Ok(Trace { seed, steps, hash: recorder.hash(), marks, lines }),
        Ok(Err(what)) => what,
        Err(cause) => format!("an assertion failed: {}", panic_text(cause.as_ref())),
    };
    Err(Failure { seed, kind, steps, what, lines })
}

/// Makes a process that a panic ends name the seed in its last words.
fn name_seed_on_panic(seed: u64) {
    static HOOK: Once = Once::new();
    thread_local!(static SEED: Cell<u64> = const { Cell::new(0) });
    SEED.set(seed);
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            before(info);
            let seed = SEED.get();
            eprintln!("replay: murre-bench sim --seeds {seed}..{}", seed.saturating_add(1));
        }));
    });
}

fn panic_text(cause: &(dyn std::any::Any + Send)) -> &str {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

impl World {
    fn new(seed: u64, options: &Options, sabotage: Option<Sabotage>) -> World {
        let stream = |salt| Rng::new(seed, salt);
        let plan = Plan::draw(&mut stream(1));
        let mut people = stream(7);
        let hibernation = HibernationPlan::draw(&plan, &mut stream(8));
        World {
            rng: Streams::new(seed, [2, 3, 4, 5, 6]),
            now: plan.start,
            wall_offset_us: 1_700_000_000_000_000 - plan.start / 1_000,
            steps: 0,
            boots: 0,
            placement: Placement::new(PLACEMENT_KEY, plan.shards),
            shards: Vec::new(),
            sockets: Vec::new(),
            moves: Vec::new(),
            lanes: Vec::new(),
            store: Store::new(sabotage, plan.store_latency.0, plan.store_bytes),
            agents: (0..plan.agents).map(|_| Agent::draw(&plan, &mut people)).collect(),
            posters: (0..plan.posters).map(|_| AppServer::default()).collect(),
            relays: (0..plan.relays).map(|_| RelayClient::default()).collect(),
            broadcasts: Vec::new(),
            bodies: Bodies::default(),
            hibernation: Hibernation::new(hibernation, stream(9)),
            oracle: Oracle::new(plan.attempts_max),
            marks: CoverageMarks::default(),
            recorder: Recorder::new(options.lines),
            calm: false,
            stopping: None,
            kill_next: false,
            plan,
        }
    }

    fn run(&mut self) -> Verdict {
        let plan = self.plan.clone();
        self.log(None, format_args!("{plan:?}"));
        self.log_hibernation();
        self.boot(plan.shards)?;
        if let Some(crowd) = plan.crowd {
            return self.crowd(crowd);
        }
        let mut turns = 0;
        while self.steps < plan.steps && turns < plan.steps * 20 {
            turns += 1;
            self.turn()?;
        }
        self.quiesce()
    }
}
