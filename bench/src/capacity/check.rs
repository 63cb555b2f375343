//! A prediction beside what full runs showed.

use std::io;

use super::memory::{Prediction, mib};
use super::{Basis, Mix, cpu, memory};
use crate::result::{Outcome, names};

/// Predicted and real, and how far they may be apart.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    /// What.
    pub name: String,
    /// By the model.
    pub predicted: f64,
    /// By the full run.
    pub real: f64,
    /// Share that was promised; none: shown only.
    pub promise: Option<f64>,
    /// Bytes, or microseconds.
    pub is_bytes: bool,
}

impl Compared {
    /// The error as a share of what was real.
    pub fn off(&self) -> f64 {
        self.predicted / self.real - 1.0
    }

    /// Whether the promise was kept.
    pub fn held(&self) -> bool {
        self.promise.is_none_or(|promise| self.off().abs() <= promise)
    }
}

/// Prints every line that the full runs have a figure for; false when one is off by more than was promised.
pub(super) fn compare(basis: &Basis<'_>, mix: &Mix, real: &[Outcome]) -> io::Result<bool> {
    let lines = lines(basis, mix, real)?;
    if lines.is_empty() {
        return Err(io::Error::other("the results to compare with have none of the figures that are predicted"));
    }
    println!("  {:<52} {:>14} {:>14} {:>8} {:>9}", "", "predicted", "real", "off", "promised");
    for line in &lines {
        let shown = |value: f64| if line.is_bytes && value > 1e5 { mib(value) } else { format!("{value:.1}") };
        let promise = line.promise.map_or_else(|| "-".into(), |promise| format!("{:.0} %", promise * 100.0));
        println!(
            "  {:<52} {:>14} {:>14} {:>+6.1} % {:>9}{}",
            line.name,
            shown(line.predicted),
            shown(line.real),
            line.off() * 100.0,
            promise,
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

/// User, kernel and all bytes at the largest count of a full run.
fn bytes(basis: &Basis<'_>, mix: &Mix, real: &Outcome) -> io::Result<Vec<Compared>> {
    let last = |name: &str| real.series(name).and_then(|series| series.points.last().copied());
    let Some([sessions, user]) = last(names::USER_BYTES) else { return Ok(Vec::new()) };
    let shards = real.option(names::OPTION_SHARDS).map(|count| count as u64).or(mix.shards);
    let mix = Mix { sessions: sessions as u64, shards, ..mix.clone() };
    let predicted = Prediction::new(basis, &mix)?;
    let line = |name: &str, predicted: f64, real: f64, promise: Option<f64>| Compared {
        name: format!("{name} at {sessions:.0} sessions"),
        predicted,
        real,
        promise,
        is_bytes: true,
    };
    let promise = Some(memory::PROMISE);
    // In the sum of the process is what the store happened to buffer: it is shown, and promised as a part of everything
    // only.
    let mut lines = vec![line("user bytes", predicted.user_bytes(), user, None)];
    lines.extend(slope(&predicted, &mix, basis, real)?);
    let kernel = last(names::KERNEL_BYTES)
        .or_else(|| last(names::KERNEL_BYTES_BOTH_ENDS).map(|[sessions, both]| [sessions, both / 2.0]));
    if let Some([_, kernel]) = kernel.filter(|[count, _]| *count == sessions) {
        lines.push(line("kernel bytes", predicted.kernel_bytes(), kernel, promise));
        let all = predicted.user_bytes() + predicted.kernel_bytes();
        lines.push(line("user and kernel bytes", all, user + kernel, promise));
    }
    for item in predicted.user.iter().filter(|item| item.how.contains("metric")) {
        if let Some([_, bytes]) = last(&format!("{}murre_{}", names::TABLE_BYTES, item.name)) {
            lines.push(line(&format!("  {}", item.name), item.each * sessions, bytes, None));
        }
    }
    Ok(lines)
}

/// What each further session takes, from the reading at which the measured server was warm to the last.
fn slope(last: &Prediction, mix: &Mix, basis: &Basis<'_>, real: &Outcome) -> io::Result<Option<Compared>> {
    let points = real.series(names::USER_BYTES).map_or(&[][..], |series| &series.points);
    let warm = basis.sessions() * super::fit::WARM_SHARE;
    let (Some(first), Some(end)) = (points.iter().find(|point| point[0] >= warm), points.last()) else {
        return Ok(None);
    };
    let added = end[0] - first[0];
    if added <= 0.0 {
        return Ok(None);
    }
    let few = Prediction::new(
        basis,
        &Mix { sessions: first[0] as u64, max_connections: Some(mix.max_connections()), ..mix.clone() },
    )?;
    Ok(Some(Compared {
        name: format!("user bytes of a session, {:.0} to {:.0}", first[0], end[0]),
        predicted: (last.user_bytes() - few.user_bytes()) / added,
        real: (end[1] - first[1]) / added,
        promise: Some(memory::PROMISE),
        is_bytes: true,
    }))
}

/// What each operation of a full run costs, at its rate.
fn operations(basis: &Basis<'_>, mix: &Mix, real: &Outcome) -> Vec<Compared> {
    let Some(sessions) = real.option(names::OPTION_SESSIONS) else { return Vec::new() };
    let rate = real.option("rate");
    let all = cpu::Prediction::new(basis, &Mix { sessions: sessions as u64, ..mix.clone() });
    let compared = |item: &cpu::Item| {
        let real = real.figure(item.name).filter(|us| *us > 0.0)?;
        // The cost at the rate of that run, not at the rate of the mix.
        let cost = rate.map_or_else(|| item.cost.clone(), |rate| cpu::cost(basis, item.name, rate));
        let predicted = cost.us + (item.us - item.cost.us);
        // What was never measured is no prediction.
        let promise = cost.at.map(|_| cpu::PROMISE);
        Some(Compared { name: format!("{}, us", item.name), predicted, real, promise, is_bytes: false })
    };
    let mut lines: Vec<Compared> = all.items.iter().filter_map(compared).collect();
    let idle = basis.all.iter().find_map(|one| one.figure(names::CPU_PING)).and(real.figure(names::CPU_IDLE));
    if let Some(cores) = idle.filter(|cores| *cores > 0.0) {
        let pings =
            all.items.iter().find(|item| item.name == names::CPU_PING).map_or(0.0, |item| item.rate * item.us / 1e6);
        let name = format!("{}, cores of 1,000", names::CPU_IDLE);
        lines.push(Compared { name, predicted: pings * 1e3, real: cores * 1e3, promise: None, is_bytes: false });
    }
    lines
}
