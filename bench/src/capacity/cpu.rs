//! Cores: each operation's rate times its cost, and its additional cost when a hundred times the sessions are there.
//!
//! An operation was measured with as many sessions as fit near the caches (10,000 x 4.3 KB = 43 MB). With a million it
//! touches memory that was not touched for minutes: some forty cache lines of socket, file, poll, connection and
//! session, and the page tables on the way. That is added for each tenfold of the sessions, in microseconds
//! ([`COLD_US_DEFAULT`]), unless measurements say it.
//!
//! A million sessions are pinged some thousand times a second in any case, so the CPU that the server used while it
//! pushed includes pings: they are a line of their own, and are taken off the cost of a notification. The cost of an
//! operation depends on its rate (each that is alone wakes a shard), so the measurement nearest to the wanted rate is
//! taken: for pings one at the rate that the million brings, from fewer sessions that are pinged more often.

use super::documented::{FRESH_TOKEN_US, OPERATIONS, THAW_US};
use super::{Basis, Mix};
use crate::result::{Outcome, names};

/// Promised: this share of what a full run shows.
pub(super) const PROMISE: f64 = 0.20;

/// Forty lines, of which a tenfold of the sessions makes half miss, at 100 ns each.
const COLD_US_DEFAULT: f64 = 2.0;

/// Cost of one operation.
#[derive(Clone, Debug)]
pub(super) struct Cost {
    /// As measured, or assumed.
    pub us: f64,
    /// Sessions that were there when it was measured; none: it is assumed.
    pub at: Option<f64>,
    /// Its rate per second then.
    pub rate: f64,
    /// Measured, and about as often as is asked for: a measurement far off is no ground for a promise.
    pub near: bool,
}

impl Cost {
    fn assumed(us: f64) -> Cost {
        Cost { us, at: None, rate: 0.0, near: false }
    }

    /// Its origin, in a few words.
    fn from(&self) -> String {
        match self.at {
            None => "a documented constant: not measured".into(),
            Some(at) if self.near => format!("measured with {at:.0} sessions"),
            Some(_) => format!("measured at {:.0} a second: too far off to promise", self.rate),
        }
    }
}

/// One line of the model.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub name: &'static str,
    /// Operations a second.
    pub rate: f64,
    /// Cost that `us` starts from.
    pub cost: Cost,
    /// Microseconds with the sessions that are predicted.
    pub us: f64,
}

impl Item {
    fn cores(&self) -> f64 {
        self.rate * self.us / 1e6
    }
}

/// All lines.
#[derive(Clone, Debug)]
pub(super) struct Prediction {
    pub items: Vec<Item>,
    /// Microseconds for each tenfold of the sessions.
    pub cold_us: f64,
}

impl Prediction {
    pub fn new(basis: &Basis<'_>, mix: &Mix) -> Prediction {
        let cold_us = mix.cold_us.or_else(|| cold_us(basis.all)).unwrap_or(COLD_US_DEFAULT);
        let (stored, direct) = (mix.push_rate * mix.store_share, mix.push_rate * (1.0 - mix.store_share));
        let pings = mix.sessions as f64 / mix.ping_interval;
        let rates = [
            (names::CPU_NOTIFICATION, direct),
            (names::CPU_STORE, stored),
            (names::CPU_DRAIN, stored),
            (names::CPU_HELLO, mix.connect_rate * (1.0 - mix.return_share)),
            (names::CPU_RETURN, mix.connect_rate * mix.return_share),
            (names::CPU_PING, pings),
        ];
        let sessions = mix.sessions as f64;
        let line = |(name, rate)| {
            let (cost, us) = cost_among(basis, name, rate, sessions, cold_us);
            Item { name, rate, cost, us }
        };
        let mut items: Vec<Item> = rates.into_iter().map(line).collect();
        if mix.fresh_token_share > 0.0 {
            items.push(Item {
                name: "server CPU per VAPID token not seen before",
                rate: mix.push_rate * mix.fresh_token_share,
                cost: Cost::assumed(FRESH_TOKEN_US),
                us: FRESH_TOKEN_US,
            });
        }
        if mix.hibernation.is_on() {
            items.push(Item {
                name: "server CPU per thaw and freeze",
                rate: mix.thaws(),
                cost: Cost::assumed(THAW_US),
                us: THAW_US,
            });
        }
        Prediction { items, cold_us }
    }

    /// The cost that is nearest to this rate, and its microseconds with this number of sessions.
    pub fn at_rate(&self, basis: &Basis<'_>, name: &str, rate: f64, sessions: f64) -> (Cost, f64) {
        cost_among(basis, name, rate, sessions, self.cold_us)
    }

    /// Cores' worth of CPU in a normal second.
    pub fn cores(&self) -> f64 {
        self.items.iter().map(Item::cores).sum()
    }

    /// Cores of a host that is busy for `--utilisation` of a normal second at worst within the promise.
    pub fn cores_wanted(&self, mix: &Mix) -> f64 {
        self.cores() * (1.0 + PROMISE) / mix.utilisation
    }

    /// Those of them that were measured about as often as is asked for.
    pub fn cores_promised(&self) -> f64 {
        self.items.iter().filter(|item| item.cost.near).map(Item::cores).sum()
    }

    /// The promise about all lines together, in a sentence.
    pub fn promise(&self) -> String {
        let (all, promised) = (self.cores(), self.cores_promised());
        if promised <= 0.0 {
            return "nothing is promised: no line was measured about as often as is asked for.".into();
        }
        let rest = if all - promised < SHARE_UNSEEN * all {
            String::new()
        } else {
            format!("; {:.3} more are not: measured at quite another rate, or not at all", all - promised)
        };
        format!("{promised:.3} cores are promised within {:.0} %{rest}.", PROMISE * 100.0)
    }

    /// Prints the model.
    pub fn show(&self, mix: &Mix) {
        println!("CPU for {} sessions", mix.sessions);
        println!("  {:<44} {:>10} {:>9} {:>9} {:>8}  from", "", "a second", "measured", "then", "cores");
        for item in &self.items {
            println!(
                "  {:<44} {:>10.0} {:>6.1} us {:>6.1} us {:>8.3}  {}",
                item.name.trim_start_matches(names::CPU_PER),
                item.rate,
                item.cost.us,
                item.us,
                item.cores(),
                item.cost.from()
            );
        }
        let wanted = self.cores() / mix.utilisation;
        println!("  {:<44} {:>10} {:>9} {:>9} {:>8.3}", "in all, busy", "", "", "", self.cores());
        println!("  {:.1} us are added for each tenfold of the sessions: their memory is colder.", self.cold_us);
        println!("  {}", self.promise());
        println!("  With {:.0} % of the cores busy in a normal second: {wanted:.1} cores.", mix.utilisation * 100.0);
        if mix.cores > 0 {
            let share = self.cores() / mix.cores as f64;
            let verdict = if self.cores_wanted(mix) <= mix.cores as f64 { "enough" } else { "NOT enough" };
            println!(
                "  {} cores are {verdict}: {:.0} % busy, {:.0} % at worst within the promise.",
                mix.cores,
                share * 100.0,
                share * (1.0 + PROMISE) * 100.0
            );
            let spare = (mix.cores as f64 * CROWD_SHARE - self.cores()).max(0.0);
            let back = self.items.iter().find(|item| item.name == names::CPU_RETURN).map_or(1.0, |item| item.us);
            println!(
                "  When all come back at once, {:.0} % of the cores take {:.0} hellos a second: {:.0} s for {} sessions.",
                CROWD_SHARE * 100.0,
                spare * 1e6 / back,
                mix.sessions as f64 * back / (spare * 1e6).max(1.0),
                mix.sessions
            );
        }
    }
}

/// A share of the cores that need not be spoken of.
const SHARE_UNSEEN: f64 = 0.01;

/// Of all cores, what a crowd of returning sessions may take.
const CROWD_SHARE: f64 = 0.9;

/// Tenfolds between what was measured and what is predicted; what is assumed was assumed for a full host.
fn colder(at: Option<f64>, sessions: f64) -> f64 {
    at.map_or(0.0, |at| (sessions / at.max(1.0)).log10().max(0.0))
}

fn cost_among(basis: &Basis<'_>, name: &str, rate: f64, sessions: f64, cold_us: f64) -> (Cost, f64) {
    let cost = cost(basis, name, rate);
    let us = cost.us + colder(cost.at, sessions) * cold_us;
    (cost, us)
}

/// Work of a server in the time in which its CPU was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Cores it kept busy.
    pub cores: f64,
    /// Notifications a second.
    pub notifications: f64,
    /// Pings a second.
    pub pings: f64,
}

impl Load {
    /// Of a result that tells it: older ones do not.
    pub fn of(one: &Outcome) -> Option<Load> {
        let notifications = one.figure(names::NOTIFICATION_RATE).filter(|rate| *rate > 0.0)?;
        Some(Load { cores: one.figure(names::CORES)?, notifications, pings: one.figure(names::PING_RATE)? })
    }

    /// Microseconds of each notification when each ping took `ping_us`.
    pub fn notification_us(&self, ping_us: f64) -> f64 {
        ((self.cores * 1e6 - self.pings * ping_us) / self.notifications).max(0.0)
    }
}

/// Rate per second of an operation while its cost was measured. A result without a rate was as fast as the server could
/// be.
pub(super) fn rate_of(one: &Outcome, name: &str) -> f64 {
    let told = match name {
        names::CPU_PING => one.figure(names::PING_RATE),
        _ => one.option("rate").or_else(|| one.figure(names::NOTIFICATION_RATE)),
    };
    told.unwrap_or(UNBOUNDED)
}

/// Rate that stands for "as fast as it can".
const UNBOUNDED: f64 = 1e5;

/// Rates that differ by more than this factor are not near: between 34 and 4,094 pings a second a ping gets four times
/// cheaper (docs/reports/0003), so a fifth in less than twice.
const NEAR: f64 = 2.0;

/// The measured cost of an operation at the rate that is nearest to `rate`: at a few operations a second every one
/// wakes a shard and pays for that alone, under load they share it. The CPU of pings is not in the cost of a
/// notification.
fn cost(basis: &Basis<'_>, name: &str, rate: f64) -> Cost {
    let distance = |one: &Outcome| (rate_of(one, name).max(1.0).log10() - rate.max(1.0).log10()).abs();
    let with = basis.all.iter().filter(|one| one.figure(name).is_some());
    let nearest = with.min_by(|a, b| distance(a).total_cmp(&distance(b)));
    let found = nearest.and_then(|one| {
        let load = Load::of(one).filter(|_| name == names::CPU_NOTIFICATION);
        let net = load.map(|load| load.notification_us(cost(basis, names::CPU_PING, load.pings).us));
        let at = one.option(names::OPTION_SESSIONS)?;
        let near = distance(one) <= NEAR.log10();
        Some(Cost { us: net.or_else(|| one.figure(name))?, at: Some(at), rate: rate_of(one, name), near })
    });
    let assumed = || OPERATIONS.iter().find(|(known, _)| *known == name).map_or(0.0, |(_, us)| *us);
    found.unwrap_or_else(|| Cost::assumed(assumed()))
}

/// Microseconds for each tenfold of the sessions between the pushes with fewest and with most of them, at the same
/// rate.
fn cold_us(all: &[Outcome]) -> Option<f64> {
    let pushes = || {
        all.iter().filter_map(|one| {
            Some((one.option(names::OPTION_SESSIONS)?, one.figure(names::CPU_NOTIFICATION)?, one.option("rate")))
        })
    };
    let few = pushes().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let most = pushes().filter(|one| one.2 == few.2).max_by(|a, b| a.0.total_cmp(&b.0))?;
    let tenfolds = (most.0 / few.0.max(1.0)).log10();
    // Less than fourfold, and noise would be taken for a trend; nothing gets cheaper by being cold.
    (tenfolds >= 0.6).then(|| ((most.1 - few.1) / tenfolds).clamp(0.0, 10.0))
}
