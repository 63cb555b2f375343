//! A prediction beside what full runs showed.

use std::io;

use super::cpu::{Cost, Load};
use super::documented::STORE_BYTES;
use super::fit::WARM_SHARE;
use super::memory::{Prediction, mib};
use super::{Basis, Mix, cpu, memory};
use crate::result::{Outcome, names};

/// Promise about a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Promise {
    /// Nothing: it is shown.
    None,
    /// The real figure is within this share of the predicted.
    Within(f64),
    /// The real figure is at most the predicted: a bound.
    AtMost,
}

/// Unit of a line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Unit {
    Bytes,
    Microseconds,
    Cores,
}

/// Predicted and real, and how far they may be apart.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub name: String,
    pub predicted: f64,
    pub real: f64,
    pub promise: Promise,
    pub unit: Unit,
}

impl Compared {
    /// The error as a share of what was real.
    pub fn off(&self) -> f64 {
        self.predicted / self.real - 1.0
    }

    /// Returns true if the promise was kept.
    pub fn held(&self) -> bool {
        match self.promise {
            Promise::None => true,
            Promise::Within(share) => self.off().abs() <= share,
            Promise::AtMost => self.real <= self.predicted,
        }
    }

    fn shown(&self, value: f64) -> String {
        match self.unit {
            Unit::Bytes if value > 1e5 => mib(value),
            Unit::Cores => format!("{value:.3}"),
            Unit::Bytes | Unit::Microseconds => format!("{value:.1}"),
        }
    }
}

/// Prints every line that the full runs have a figure for; false when one is off by more than was promised.
pub(super) fn compare(basis: &Basis<'_>, mix: &Mix, real: &[Outcome]) -> io::Result<bool> {
    let lines = lines(basis, mix, real)?;
    if lines.is_empty() {
        return Err(io::Error::other("the results to compare with have none of the figures that are predicted"));
    }
    println!("  {:<60} {:>12} {:>12} {:>9} {:>9}", "", "predicted", "real", "off", "promised");
    for line in &lines {
        let (promise, off) = match line.promise {
            Promise::None => ("-".to_owned(), format!("{:+.1} %", line.off() * 100.0)),
            Promise::Within(share) => (format!("{:.0} %", share * 100.0), format!("{:+.1} %", line.off() * 100.0)),
            Promise::AtMost => ("bound".to_owned(), "-".to_owned()),
        };
        println!(
            "  {:<60} {:>12} {:>12} {off:>9} {promise:>9}{}",
            line.name,
            line.shown(line.predicted),
            line.shown(line.real),
            if line.held() { "" } else { "  BROKEN" }
        );
    }
    Ok(lines.iter().all(Compared::held))
}

/// Every line that can be compared.
pub(super) fn lines(basis: &Basis<'_>, mix: &Mix, real: &[Outcome]) -> io::Result<Vec<Compared>> {
    let mut lines = Vec::new();
    for one in real {
        lines.extend(bytes(basis, mix, one)?);
        lines.extend(operations(basis, mix, one));
    }
    Ok(lines)
}

/// User, kernel and all bytes at the largest count of a full run. The store's cache and write buffers are taken off
/// where the server says what they hold: they are bounded, at any number of sessions.
fn bytes(basis: &Basis<'_>, mix: &Mix, real: &Outcome) -> io::Result<Vec<Compared>> {
    let last = |name: &str| real.series(name).and_then(|series| series.points.last().copied());
    let points = memory::without_store(real);
    let Some([sessions, user]) = points.last().copied() else { return Ok(Vec::new()) };
    let shards = real.option(names::OPTION_SHARDS).map(|count| count as u64).or(mix.shards);
    let max_connections = real.option(names::OPTION_MAX_CONNECTIONS).map(|count| count as u64).or(mix.max_connections);
    let mix = Mix { sessions: sessions as u64, shards, max_connections, ..mix.clone() };
    let predicted = Prediction::new(basis, &mix)?;
    let line = |name: &str, predicted: f64, real: f64, promise: Promise| Compared {
        name: format!("{name} at {sessions:.0} sessions"),
        predicted,
        real,
        promise,
        unit: Unit::Bytes,
    };
    let promise = Promise::Within(memory::PROMISE);
    let store = last(names::STORE_BYTES).filter(|[count, _]| *count == sessions);
    // Of the sum of the process a few megabytes are what was made once, which differs with what the server went
    // through: it is shown, and promised as a part of everything only.
    let what =
        if store.is_some() { "user bytes without the store's cache" } else { "user bytes, the store's cache in it" };
    let mut lines = vec![line(what, predicted.user_bytes(), user, Promise::None)];
    if let Some([_, bytes]) = store {
        lines.push(line("store's cache and write buffers, at most,", STORE_BYTES, bytes, Promise::AtMost));
    }
    lines.extend(slope(&predicted, &mix, basis, &points)?);
    let kernel = last(names::KERNEL_BYTES)
        .or_else(|| last(names::KERNEL_BYTES_BOTH_ENDS).map(|[sessions, both]| [sessions, both / 2.0]));
    if let Some([_, kernel]) = kernel.filter(|[count, _]| *count == sessions) {
        lines.push(line("kernel bytes", predicted.kernel_bytes(), kernel, promise));
        let each = (predicted.kernel_bytes() / sessions, kernel / sessions);
        lines.push(line("kernel bytes of a session", each.0, each.1, Promise::None));
        let all = predicted.user_bytes() + predicted.kernel_bytes();
        lines.push(line("user and kernel bytes", all, user + kernel, promise));
    }
    for item in predicted.user.iter().filter(|item| item.how.contains("metric")) {
        if let Some([_, bytes]) = last(&format!("{}murre_{}", names::TABLE_BYTES, item.name)) {
            lines.push(line(&format!("  {}", item.name), item.each * sessions, bytes, Promise::None));
        }
    }
    Ok(lines)
}

/// Cost of each further session, over the upper half of the readings, as the prediction is fitted over the upper half
/// of its own: there what is bounded is full, and what is made once is made. Of a run that is not ten times the
/// measured one half would be noise: from the reading at which the measured server was warm.
fn slope(last: &Prediction, mix: &Mix, basis: &Basis<'_>, points: &[[f64; 2]]) -> io::Result<Option<Compared>> {
    let Some(end) = points.last() else { return Ok(None) };
    let from = |least: f64| points.iter().find(|point| point[0] >= least && point[0] < end[0]);
    let warm = basis.sessions() * WARM_SHARE;
    let upper = from(end[0] * WARM_SHARE).filter(|_| end[0] >= 10.0 * basis.sessions());
    let Some(first) = upper.or_else(|| from(warm)) else { return Ok(None) };
    let added = end[0] - first[0];
    let few = Prediction::new(
        basis,
        &Mix { sessions: first[0] as u64, max_connections: Some(mix.max_connections()), ..mix.clone() },
    )?;
    Ok(Some(Compared {
        name: format!("user bytes of a session, {:.0} to {:.0}", first[0], end[0]),
        predicted: (last.user_bytes() - few.user_bytes()) / added,
        real: (end[1] - first[1]) / added,
        promise: Promise::Within(memory::PROMISE),
        unit: Unit::Bytes,
    }))
}

/// Cost of each operation of a full run, at its rate.
fn operations(basis: &Basis<'_>, mix: &Mix, real: &Outcome) -> Vec<Compared> {
    let Some(sessions) = real.option(names::OPTION_SESSIONS) else { return Vec::new() };
    let model = cpu::Prediction::new(basis, &Mix { sessions: sessions as u64, ..mix.clone() });
    let load = Load::of(real);
    let compared = |item: &cpu::Item| {
        if item.name == names::CPU_NOTIFICATION && load.is_some() {
            return None;
        }
        let real_us = real.figure(item.name).filter(|us| *us > 0.0)?;
        // The cost at the rate of that run, not at the rate of the mix.
        let (cost, us) = model.at_rate(basis, item.name, cpu::rate_of(real, item.name), sessions);
        Some(Compared {
            name: format!("{}, us", item.name),
            predicted: us,
            real: real_us,
            promise: measured(&cost),
            unit: Unit::Microseconds,
        })
    };
    let mut lines: Vec<Compared> = model.items.iter().filter_map(compared).collect();
    if let Some(load) = load {
        lines.extend(busy(basis, &model, load, sessions));
    }
    lines.extend(idle(basis, &model, real, sessions));
    lines
}

/// Cores of a server that pushes and pings. Their use is one number, so the promise is about the sum; the figure of a
/// notification alone is the rest after the predicted pings are taken off.
fn busy(basis: &Basis<'_>, model: &cpu::Prediction, load: Load, sessions: f64) -> [Compared; 2] {
    let (ping, ping_us) = model.at_rate(basis, names::CPU_PING, load.pings, sessions);
    let (cost, us) = model.at_rate(basis, names::CPU_NOTIFICATION, load.notifications, sessions);
    let known = load.pings * ping_us < SHARE_KNOWN * load.cores * 1e6 || ping.near;
    let all = Compared {
        name: format!("server cores, {:.0} notifications and {:.0} pings a second", load.notifications, load.pings),
        predicted: (load.notifications * us + load.pings * ping_us) / 1e6,
        real: load.cores,
        promise: if known { measured(&cost) } else { Promise::None },
        unit: Unit::Cores,
    };
    let alone = Compared {
        name: format!("  {}, us, its pings taken off", names::CPU_NOTIFICATION),
        predicted: us,
        real: load.notification_us(ping_us),
        promise: Promise::None,
        unit: Unit::Microseconds,
    };
    [all, alone]
}

/// Cores of a server that only holds its sessions: what it does without any, and its pings.
fn idle(basis: &Basis<'_>, model: &cpu::Prediction, real: &Outcome, sessions: f64) -> Option<Compared> {
    let cores = real.figure(names::CPU_IDLE).filter(|cores| *cores > 0.0)?;
    let pings = real.figure(names::PING_RATE)?;
    let (ping, us) = model.at_rate(basis, names::CPU_PING, pings, sessions);
    let own = basis.hold.figure(names::CPU_IDLE).unwrap_or(0.0);
    let of_few = basis.hold.figure(names::PING_RATE).unwrap_or(0.0) * ping.us / 1e6;
    let predicted = (own - of_few).max(0.0) + pings * us / 1e6;
    // Below that it is the work that a process does once a second, with any number of sessions.
    let promise = if predicted.max(cores) < IDLE_CORES_MIN { Promise::None } else { measured(&ping) };
    let name = format!("idle server cores, {pings:.0} pings a second");
    Some(Compared { name, predicted, real: cores, promise, unit: Unit::Cores })
}

/// Promise about a line with this cost. A cost that was never measured, or at quite another rate, is no prediction.
fn measured(cost: &Cost) -> Promise {
    if cost.near { Promise::Within(cpu::PROMISE) } else { Promise::None }
}

/// Pings that are less than this share of a run may be assumed ones.
const SHARE_KNOWN: f64 = 0.02;
/// Idle cores from which on they are promised.
const IDLE_CORES_MIN: f64 = 0.02;
