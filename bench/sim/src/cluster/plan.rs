//! Sizes and faults of one seed's cluster.

use machine::time::TimeSpan;

use crate::rng::Rng;

/// Drawn once per seed. Chances are per thousand draws of the thing they speak of; 0 is off.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) steps: u64,
    pub(super) nodes: usize,
    /// Shards of each node.
    pub(super) shards: u16,
    pub(super) agents: usize,
    pub(super) channels: usize,
    pub(super) window: u16,
    pub(super) durable: bool,
    pub(super) spill_after: TimeSpan,
    pub(super) retry_after: TimeSpan,
    pub(super) ping_interval: TimeSpan,
    pub(super) ledger_bytes_max: u64,
    pub(super) topics: u64,
    pub(super) ttl_zero: u64,
    pub(super) ttl_short: u64,
    pub(super) cancels: u64,
    /// Chance that an agent which acts and has something to ack acks it.
    pub(super) acking: u64,
    /// Chance of an outside action although something is deliverable.
    pub(super) eagerness: u64,
    /// The greatest time that a call or a storage operation takes when nothing is wrong, nanoseconds.
    pub(super) delay: u64,
    /// Distance of each clock from the right time at most, in microseconds. A clock that runs away goes beyond it.
    pub(super) skew_us: u64,
    /// The longest that time passes at once while nothing happens, nanoseconds.
    pub(super) stride: u64,
    /// Chance that a user agent which acts names a minimum urgency; POSTs then differ in urgency.
    pub(super) minimums: u64,
    /// `delivery.release_on_activity`. Where it is on, minima stay to the end, and traffic releases what they hold.
    pub(super) release_on_activity: TimeSpan,
    /// Most notifications that a node remembers for another one.
    pub(super) retry_queue_max: usize,
    pub(super) faults: Faults,
    pub(super) press: Press,
    pub(super) bridges: Bridging,
    /// Share of the user agents that speak SimplePush.
    pub(super) simple: u64,
    /// `simplepush.wake_timeout`.
    pub(super) wake_timeout: TimeSpan,
}

/// Users of mobile bridges, and faults of the service that carries their notifications.
#[derive(Clone, Debug, Default)]
pub(super) struct Bridging {
    /// None in most worlds.
    pub(super) phones: usize,
    /// Longest time of a call of the service, nanoseconds.
    pub(super) service_delay: u64,
    /// Chance that a phone acts while another call of it is under way.
    pub(super) impatience: u64,
    /// Chance that the service answers otherwise than it usually does for a device.
    pub(super) whims: u64,
    /// Chance that the service answers a call a second time.
    pub(super) answered_twice: u64,
    /// Chance that the guard becomes active.
    pub(super) guard: u64,
}

impl Bridging {
    /// Draws the bridges of a world: a third of the seeds has some.
    pub(super) fn draw(rng: &mut Rng) -> Bridging {
        if !rng.permille(350) {
            return Bridging::default();
        }
        let faulty = rng.permille(800);
        let mut chance = |of: &[u64]| if faulty { rng.pick(of) } else { 0 };
        let (answered_twice, guard) = (chance(&[0, 20]), chance(&[0, 5, 20]));
        Bridging {
            phones: rng.between(1, 4) as usize,
            service_delay: rng.pick(&[100_000_000, 5_000_000_000, 5_000_000_000]),
            impatience: rng.pick(&[0, 200, 600]),
            whims: rng.pick(&[0, 100, 300]),
            answered_twice,
            guard,
        }
    }
}

/// Pressure on single rules, which worlds of `rare` have. All of it is off in other worlds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Press {
    /// Chance that a user agent unregisters a channel, registers it again and leaves unseen.
    pub(super) flicker: u64,
    /// Chance that a message has a topic; 0 is the usual one.
    pub(super) topical: u64,
    /// Host clocks have this resolution, in microseconds; 0 is the finest.
    pub(super) coarse_us: u64,
    /// The longest time that an operation of node 0 on storage takes, in nanoseconds, while the clock of node 0 is as
    /// late and every other clock as early as the skew allows; 0 is no such node.
    pub(super) slow_store: u64,
}

/// Chance of each fault.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults {
    /// A storage operation fails without effect.
    pub(super) store_error: u64,
    /// A storage operation takes effect and its reply is an error.
    pub(super) store_reply_lost: u64,
    /// A write fails now and takes effect later.
    pub(super) store_late: u64,
    /// A node is cut from the store for a while.
    pub(super) store_cut: u64,
    /// A call between nodes is lost on its way.
    pub(super) call_lost: u64,
    /// The answer to a call is lost.
    pub(super) answer_lost: u64,
    /// A call takes longer than its caller waits.
    pub(super) call_late: u64,
    /// A word that is owed is said twice.
    pub(super) call_twice: u64,
    /// A push arrives twice.
    pub(super) push_twice: u64,
    /// Two nodes are cut from each other for a while.
    pub(super) cut: u64,
    /// A node dies.
    pub(super) kill: u64,
    /// A node is away for so long that the others may declare its boot over: dead, or alive and reached by no node.
    pub(super) long: u64,
    /// A node stands still for a while, and goes on as the same boot.
    pub(super) pause: u64,
    /// A node stops in order and starts again.
    pub(super) stop: u64,
    /// All of them do, one after the other.
    pub(super) rolling: u64,
    /// A clock is set.
    pub(super) clock_step: u64,
    /// Speed at which clocks drift, in millionths.
    pub(super) drift: u64,
    /// Speed at which one clock runs away from the right time, in millionths, until its node is told to stamp nothing.
    pub(super) runaway: u64,
    /// A node that does not serve the user answers a call, so that its caller clears the row of a live session.
    pub(super) misled: u64,
    /// A user agent goes away.
    pub(super) disconnect: u64,
    /// It stays away for minutes.
    pub(super) away: u64,
    /// Its node does not notice.
    pub(super) half_open: u64,
    /// It listens and acks on the old socket, too: a profile that was copied, or frames that are long on their way.
    pub(super) twin: u64,
}

impl Faults {
    fn draw(rng: &mut Rng, long: bool) -> Faults {
        let fair = rng.below(8) == 0;
        let runaway = if rng.below(6) == 0 { rng.pick(&[20_000, 60_000]) } else { 0 };
        let away = rng.pick(&[3, 10]);
        let misled = rng.below(6) == 0;
        let mut maybe = |values: &[u64]| {
            let value = rng.pick(values);
            if !fair && rng.permille(450) { value } else { 0 }
        };
        Faults {
            store_error: maybe(&[10, 50, 200]),
            store_reply_lost: maybe(&[10, 50, 200]),
            store_late: maybe(&[20, 100]),
            store_cut: maybe(&[3, 10]),
            call_lost: maybe(&[20, 100, 300]),
            answer_lost: maybe(&[20, 100, 300]),
            call_late: maybe(&[20, 100]),
            call_twice: maybe(&[50, 300]),
            push_twice: maybe(&[50, 300]),
            cut: maybe(&[3, 10, 30]),
            kill: maybe(&[2, 5, 10]),
            long: if long { away } else { 0 },
            pause: maybe(&[3, 10]),
            stop: maybe(&[2, 5]),
            rolling: maybe(&[1]),
            clock_step: maybe(&[5, 20]),
            drift: maybe(&[500, 20_000]),
            runaway,
            misled: maybe(&[10, 50]) * u64::from(misled),
            disconnect: maybe(&[30, 100, 250]),
            half_open: maybe(&[300, 900]),
            twin: maybe(&[500]),
            away: 0,
        }
    }
}

impl Plan {
    /// The plan of a seed.
    pub(super) fn draw(rng: &mut Rng) -> Plan {
        let long = rng.below(6) == 0;
        let plan = Plan {
            steps: rng.between(200, 1_500),
            nodes: rng.between(2, 4) as usize,
            shards: rng.pick(&[1, 1, 2, 3]),
            agents: rng.between(1, 4) as usize,
            channels: rng.between(1, 3) as usize,
            window: rng.pick(&[1, 2, 3, 8, 128]),
            durable: rng.permille(250),
            spill_after: TimeSpan::from_ms(rng.pick(&[500, 3_000, 10_000])),
            retry_after: TimeSpan::from_secs(rng.pick(&[20, 60])),
            ping_interval: TimeSpan::from_secs(rng.pick(&[0, 0, 20, 60, 300])),
            ledger_bytes_max: rng.pick(&[600, 2_000, 40 << 10]),
            topics: rng.pick(&[0, 1, 1, 3]),
            ttl_zero: rng.pick(&[0, 0, 100]),
            ttl_short: rng.pick(&[0, 0, 100]),
            cancels: rng.pick(&[0, 0, 50]),
            acking: rng.pick(&[100, 400, 900]),
            eagerness: rng.pick(&[50, 150, 400]),
            delay: rng.pick(&[5_000_000, 200_000_000, 2_000_000_000]),
            skew_us: rng.pick(&[0, 1_000, 5_000_000, 15_000_000]),
            stride: if long { 400_000_000_000 } else { 40_000_000_000 },
            faults: Faults::draw(rng, long),
            press: Press::default(),
            bridges: Bridging::default(),
            simple: 0,
            wake_timeout: TimeSpan(0),
            minimums: 0,
            release_on_activity: TimeSpan(0),
            retry_queue_max: 0,
        };
        let plan = if rng.below(8) == 0 { plan.with_copies() } else { plan };
        let minimums = rng.pick(&[0, 0, 0, 50, 150]);
        let plan = Plan { minimums, release_on_activity: TimeSpan::from_secs(rng.pick(&[0, 20])), ..plan };
        Plan { retry_queue_max: rng.pick(&[1, 2, 1_000]), ..plan }
    }

    /// Users whose profiles were copied: a user is away for minutes, and the copy goes on acking. It does not know the
    /// channels that were registered since.
    fn with_copies(self) -> Plan {
        let faults =
            Faults { call_lost: 300, disconnect: 60, away: 500, half_open: 500, twin: 1_000, ..Faults::default() };
        let (steps, stride) = (1_500, 120_000_000_000);
        Plan { steps, nodes: 4, agents: 1, channels: 8, durable: true, topics: 0, acking: 900, stride, faults, ..self }
    }

    /// The same world with features that need no other plan.
    pub(super) fn with_features(self, rng: &mut Rng) -> Plan {
        let bridges = Bridging::draw(rng);
        let simple = rng.pick(&[0, 0, 0, 300, 800]);
        Plan { bridges, simple, wake_timeout: TimeSpan::from_secs(rng.pick(&[0, 0, 30])), ..self }
    }

    /// The plan of a seed that presses on one rule.
    pub(super) fn draw_rare(rng: &mut Rng) -> Plan {
        // A message that a minimum holds is no sign that its session was not told.
        let quiet = Plan { ttl_zero: 0, ttl_short: 0, topics: 0, cancels: 0, minimums: 0, ..Plan::draw(rng) };
        let plan = Plan { stride: 40_000_000_000, ..quiet };
        match rng.below(4) {
            0 => plan.with_refused_copies(rng),
            1 => plan.with_flicker(rng),
            2 => plan.with_slow_store(rng),
            _ => plan.with_coarse_time(rng),
        }
    }

    /// Every push arrives twice, for topics of one channel: a copy may come behind a refusal.
    fn with_refused_copies(self, rng: &mut Rng) -> Plan {
        let (store_error, disconnect) = (rng.pick(&[50, 200]), rng.pick(&[20, 100]));
        let faults = Faults { push_twice: 1_000, store_error, disconnect, half_open: 500, ..Faults::default() };
        let press = Press { topical: 900, ..Press::default() };
        let (window, spill_after, delay) = (rng.pick(&[1, 2, 3]), TimeSpan::from_ms(500), 2_000_000_000);
        let sizes = Plan { nodes: 2, agents: 1, channels: 1, topics: 1, ..self };
        Plan { acking: 100, window, spill_after, delay, faults, press, ..sizes }
    }

    /// Registers that take effect behind the hello of the next connection.
    fn with_flicker(self, rng: &mut Rng) -> Plan {
        let store_error = rng.pick(&[0, 0, 100]);
        let faults = Faults { disconnect: 10, half_open: 500, store_error, ..Faults::default() };
        let press = Press { flicker: rng.pick(&[100, 300]), ..Press::default() };
        // Short: the last hello decides about what waits.
        let steps = rng.between(100, 300);
        Plan { steps, agents: 1, channels: 2, acking: 900, delay: 2_000_000_000, faults, press, ..self }
    }

    /// A node so slow that low water reaches the stamps of its messages before it reads the user again.
    fn with_slow_store(self, rng: &mut Rng) -> Plan {
        let faults = Faults { call_lost: rng.pick(&[0, 100, 300]), disconnect: 5, ..Faults::default() };
        let press = Press { slow_store: 19_000_000_000, ..Press::default() };
        let (steps, window, delay) = (1_500, rng.pick(&[1, 3]), 5_000_000);
        let sizes = Plan { steps, nodes: 2, agents: 1, channels: 1, window, delay, ..self };
        Plan { skew_us: 15_000_000, durable: true, acking: 900, faults, press, ..sizes }
    }

    /// Clocks that agree and stand for seconds: presence rows of one instant.
    fn with_coarse_time(self, rng: &mut Rng) -> Plan {
        let faults =
            Faults { call_lost: rng.pick(&[300, 900]), disconnect: 250, half_open: 1_000, ..Faults::default() };
        let press = Press { coarse_us: rng.pick(&[1_000_000, 10_000_000]), ..Press::default() };
        let ping_interval = TimeSpan::from_secs(0);
        Plan { steps: 400, agents: 1, channels: 4, skew_us: 0, ping_interval, faults, press, ..self }
    }
}
