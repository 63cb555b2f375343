//! The one task that hands notifications to mobile bridges.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use machine::upstream::{BridgeFailure, BridgeKind, BridgeOutcome};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::judgement::{Judgement, Reason};
use super::profile::{Next, PendingCall, Profile, attempt};
use super::queue::{UpstreamCall, UpstreamQueue};
use super::settings::{Bounds, BridgeSettings};
use super::stats::{ProfileSnapshot, ProfileSnapshots, ProfileStats};
use super::waiting::{UserCall, share_of};

/// Task that makes the calls. Lives on the control plane.
pub(crate) struct BridgeDriver {
    queue: Arc<UpstreamQueue>,
    bounds: Bounds,
    /// By number; those that are no longer configured stay until their calls have ended.
    profiles: HashMap<u64, Profile>,
    /// Profiles in force.
    names: HashMap<(BridgeKind, Box<str>), u64>,
    next: u64,
    /// Calls of records whose profile is not configured.
    strays: HashMap<BridgeKind, ProfileStats>,
    tasks: Tasks,
    snapshots: Arc<ProfileSnapshots>,
}

impl BridgeDriver {
    pub fn new(queue: Arc<UpstreamQueue>, settings: BridgeSettings) -> BridgeDriver {
        let mut driver = BridgeDriver {
            queue,
            bounds: settings.bounds,
            profiles: HashMap::new(),
            names: HashMap::new(),
            next: 0,
            strays: HashMap::new(),
            tasks: JoinSet::new(),
            snapshots: Arc::default(),
        };
        driver.use_settings(settings);
        driver
    }

    /// Returns the state of each profile, for operators.
    pub fn snapshots(&self) -> Arc<ProfileSnapshots> {
        Arc::clone(&self.snapshots)
    }

    /// Makes calls for ever.
    ///
    /// # Errors
    /// If the operating system refuses to listen for the bell.
    pub async fn run(mut self) -> io::Result<()> {
        let queue = Arc::clone(&self.queue);
        let bell = queue.lane.bell()?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // While calls come close together, no call is taken before this time: those that come until then share the
        // wake-ups of this thread and of the shards, and the writes of a connection.
        let (mut gathers_until, mut taken_at) = (None, None);
        loop {
            tokio::select! {
                () = reached(gathers_until), if gathers_until.is_some() => gathers_until = None,
                call = queue.lane.pop(&bell), if gathers_until.is_none() => {
                    self.reload();
                    self.take(call?);
                    let mut taken = 1;
                    while taken < CALLS_AT_ONCE
                        && let Some(call) = queue.lane.try_pop()
                    {
                        self.take(call);
                        taken += 1;
                    }
                    let now = Instant::now();
                    let is_close = taken > 1 || taken_at.is_some_and(|at| now.saturating_duration_since(at) < GATHER);
                    gathers_until = (is_close && taken < CALLS_AT_ONCE).then(|| now + GATHER);
                    taken_at = Some(now);
                }
                // A task is never cancelled, and a panic ends the process.
                Some(Ok((profile, pending, judgement))) = self.tasks.join_next() => {
                    self.ended(profile, pending, judgement);
                    for _ in 1..CALLS_AT_ONCE {
                        let Some(Ok((profile, pending, judgement))) = self.tasks.try_join_next() else { break };
                        self.ended(profile, pending, judgement);
                    }
                }
                _ = tick.tick() => self.tick(),
            }
            queue.wake_shards();
        }
    }

    fn reload(&mut self) {
        if let Some(settings) = self.queue.take_settings() {
            self.use_settings(settings);
        }
    }

    fn use_settings(&mut self, settings: BridgeSettings) {
        let mut before = std::mem::take(&mut self.names);
        self.bounds = settings.bounds;
        for settings in settings.profiles {
            let name = (settings.name.kind, settings.name.app.clone());
            let before = before.remove(&name).and_then(|number| Some((number, self.profiles.get_mut(&number)?)));
            let profile = match before {
                Some((number, profile)) if profile.leads_to(&settings) => {
                    profile.reload(settings);
                    self.names.insert(name, number);
                    continue;
                }
                // Calls under way end with the old one.
                Some((_, profile)) => Profile::in_place_of(profile, settings),
                None => Profile::new(settings),
            };
            self.next += 1;
            let number = self.next;
            self.profiles.insert(number, profile);
            self.names.insert(name, number);
        }
    }

    fn take(&mut self, call: UpstreamCall) {
        let now = Instant::now();
        let to = &call.op.to;
        if to.token.is_empty() || to.app.is_empty() {
            // An imported record may lack its token or app: that user cannot be reached any more.
            return reply(call, BridgeOutcome::Gone);
        }
        let number = self.names.get(&(to.kind, to.app.clone())).copied();
        let Some((number, profile)) = number.and_then(|number| Some((number, self.profiles.get_mut(&number)?))) else {
            self.strays.entry(to.kind).or_insert_with(ProfileStats::new).count(Reason::Config);
            return reply(call, BridgeOutcome::Failed(BridgeFailure::Configuration));
        };
        let Some(pending) = profile.prepare(call, now) else { return };
        let uaid = pending.uaid();
        // While there is a place, every user that waits has its share in flight.
        let has_share = profile.waiting.in_flight_of(uaid) < share_of(self.bounds.in_flight_max);
        if profile.in_flight < self.bounds.in_flight_max && has_share {
            return start(&mut self.tasks, number, profile, pending, now);
        }
        let has_room = self.make_room(number, &pending, now);
        let Some(profile) = self.profiles.get_mut(&number) else { return };
        if has_room { profile.waiting.push(pending) } else { profile.refused(pending, now) }
    }

    /// Returns true if a call may wait. A call of the user with the most may be refused for it.
    fn make_room(&mut self, number: u64, pending: &PendingCall, now: Instant) -> bool {
        let (uaid, bytes) = (pending.uaid(), pending.bytes());
        loop {
            let has_bytes = self.has_bytes(number, bytes);
            let Some(profile) = self.profiles.get_mut(&number) else { return false };
            if profile.waiting.of(uaid) >= share_of(self.bounds.waiting_max) {
                return false;
            }
            let given_up = match (has_bytes, profile.waiting.len() < self.bounds.waiting_max) {
                (true, true) => return true,
                (_, false) => profile.waiting.make_place(uaid),
                (false, true) => profile.waiting.make_bytes(uaid, bytes),
            };
            let Some(given_up) = given_up else { return false };
            profile.refused(given_up, now);
        }
    }

    /// Returns true if a call of this profile with this many bytes may wait. Half of the room is for all; of the other
    /// half, each profile has its share.
    fn has_bytes(&self, number: u64, bytes: usize) -> bool {
        let half = self.bounds.waiting_bytes_max / 2;
        let share = half / self.names.len().max(1);
        let beyond = |held: usize| held.saturating_sub(share);
        let of =
            |(of, profile): (&u64, &Profile)| beyond(profile.waiting.bytes() + if *of == number { bytes } else { 0 });
        self.profiles.iter().map(of).sum::<usize>() <= half
    }

    fn ended(&mut self, number: u64, pending: PendingCall, judgement: Judgement) {
        let now = Instant::now();
        let Some(profile) = self.profiles.get_mut(&number) else { return };
        match profile.ended(pending, judgement, now) {
            Next::Again(pending) => spawn(&mut self.tasks, number, *pending),
            Next::Over => start_waiting(&mut self.tasks, self.bounds, number, profile, now),
        }
    }

    fn tick(&mut self) {
        self.reload();
        let now = Instant::now();
        for (number, profile) in &mut self.profiles {
            while let Some(pending) = profile.waiting.next_expired(now) {
                profile.expired(pending, now);
            }
            start_waiting(&mut self.tasks, self.bounds, *number, profile, now);
            profile.service.connections.close_idle(now);
        }
        let (names, profiles) = (&self.names, &mut self.profiles);
        let in_force = |number: &u64| names.values().any(|of| of == number);
        profiles.retain(|number, profile| in_force(number) || profile.in_flight > 0 || !profile.waiting.is_empty());
        for number in names.values() {
            if let Some(profile) = profiles.get_mut(number) {
                profile.tick(now);
            }
        }
        self.show(now);
    }

    fn show(&mut self, now: Instant) {
        let shown = self.names.values().filter_map(|number| self.profiles.get(number)).map(|profile| ProfileSnapshot {
            name: Arc::clone(&profile.name),
            stats: profile.stats.clone(),
            in_flight: profile.in_flight,
            waiting: profile.waiting.len(),
            waiting_bytes: profile.waiting.bytes(),
            is_breaker_open: profile.breaker.is_open(),
            is_guard_active: profile.guard.is_active(now),
            ages: profile.service.bridge.ages(),
        });
        // Their names are whatever a record holds, so they share an empty one.
        let strays = self.strays.iter().map(|(kind, stats)| ProfileSnapshot::of_strays(*kind, stats.clone()));
        let mut all: Vec<ProfileSnapshot> = shown.chain(strays).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        *self.snapshots.look() = all;
    }
}

/// Waits until this time, if there is one.
async fn reached(time: Option<Instant>) {
    if let Some(time) = time {
        tokio::time::sleep_until(time).await;
    }
}

/// Answers a call that belongs to no profile.
fn reply(call: UpstreamCall, outcome: BridgeOutcome) {
    if let Some((queue, ticket)) = call.back {
        queue.leave(ticket, outcome);
    }
}

type Tasks = JoinSet<(u64, PendingCall, Judgement)>;

/// Starts calls that wait, as far as there is room: the users take turns.
fn start_waiting(tasks: &mut Tasks, bounds: Bounds, number: u64, profile: &mut Profile, now: Instant) {
    loop {
        let share = match profile.breaker.refuses(now) {
            // Each of them has its reply at once.
            Some(_) => usize::MAX,
            None if profile.in_flight < bounds.in_flight_max => share_of(bounds.in_flight_max),
            None => return,
        };
        let Some(pending) = profile.waiting.next(share) else { return };
        start(tasks, number, profile, pending, now);
    }
}

fn start(tasks: &mut Tasks, number: u64, profile: &mut Profile, pending: PendingCall, now: Instant) {
    if let Some(pending) = profile.admit(pending, now) {
        spawn(tasks, number, pending);
    }
}

fn spawn(tasks: &mut Tasks, number: u64, pending: PendingCall) {
    tasks.spawn(async move {
        let judgement = attempt(&pending).await;
        (number, pending, judgement)
    });
}

/// Calls taken from the lane before what has ended is looked at, and the reverse.
const CALLS_AT_ONCE: usize = 64;
/// Time for which calls that come close together are gathered, so that they share wake-ups.
const GATHER: Duration = Duration::from_millis(4);
/// Interval between checks of waits and credentials.
const TICK: Duration = Duration::from_millis(100);
