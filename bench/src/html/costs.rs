//! Cards about the cost of a session and of an operation: bytes against sessions, bytes by table, CPU by operation.

use std::collections::BTreeMap;
use std::io;

use super::axis::{Axis, number};
use super::card::{Card, curve, legend};
use super::plot::{self, Group, Lines};
use super::runs::{Run, Runs};
use crate::result::{Series, names};

/// Operations in the order of a session's life, and their budgets in microseconds of server CPU (docs/CAPACITY.md).
const OPERATIONS: &[(&str, Option<f64>)] = &[
    (names::CPU_HELLO, Some(35.0)),
    (names::CPU_RETURN, Some(80.0)),
    (names::CPU_REGISTER, None),
    (names::CPU_PING, None),
    (names::CPU_NOTIFICATION, Some(20.0)),
    (names::CPU_NOTIFICATION_VAPID, Some(22.0)),
    (names::CPU_STORE, Some(60.0)),
    (names::CPU_DRAIN, None),
];
const USER_BUDGET: f64 = 160.0;

/// Cost of each further session at each count: the slope from a first reading to it. That is the first at which the
/// server was warm, if two follow: the first few thousand sessions pay for data that is made once.
pub(super) fn per_session(series: &Series) -> Option<(f64, Vec<[f64; 2]>)> {
    let last = series.points.last()?[0];
    let from = |least: f64| series.points.iter().position(|point| point[0] >= least);
    let follow = |first: &usize, count: usize| series.points.len() - first > count;
    let warm = from(WARM_SESSIONS.min(last * 0.3)).filter(|first| follow(first, 2));
    let with_sessions = || from(f64::MIN_POSITIVE).filter(|first| follow(first, 1));
    let [from, base] = series.points[warm.or_else(with_sessions).unwrap_or(0)];
    let later = series.points.iter().filter(|point| point[0] > from);
    let slopes: Vec<[f64; 2]> = later.map(|[count, bytes]| [*count, (bytes - base) / (count - from)]).collect();
    (!slopes.is_empty()).then_some((from, slopes))
}

/// Sessions after which a server has made its arenas and caches.
const WARM_SESSIONS: f64 = 8_000.0;

/// Memory of a session, by count, kind and table.
pub(super) fn memory(runs: &Runs) -> io::Result<Vec<Card>> {
    let mut cards = Vec::new();
    let kinds = [
        (names::USER_BYTES, "User memory of a session", "Private_Dirty of the server process"),
        (names::KERNEL_BYTES, "Kernel memory of a session", "kernel slab of the server's end of each connection"),
        (
            names::KERNEL_BYTES_BOTH_ENDS,
            "Kernel memory of a connection, both ends",
            "slab of the whole host, generator included",
        ),
    ];
    for (name, title, what) in kinds {
        let slopes: Vec<Slopes<'_>> = runs
            .all
            .iter()
            .filter_map(|run| per_session(run.outcome.series(name)?).map(|(from, points)| Slopes { run, from, points }))
            .collect();
        // On one scale a server that needs a hundred times as much would hide whether the other is flat.
        let (least, most) = slopes
            .iter()
            .fold((f64::INFINITY, 0f64), |(least, most), one| (one.last().min(least), one.last().max(most)));
        let apart = most > 4.0 * least;
        for part in slopes.chunks(if apart { 1 } else { slopes.len().max(1) }) {
            let title = if apart { format!("{title}: {}", part[0].run.label) } else { title.into() };
            cards.push(memory_card(part, name, title, what)?);
        }
    }
    cards.extend(all_memory(runs)?);
    cards.extend(tables(runs)?);
    Ok(cards)
}

/// Cost of each further session of one run.
struct Slopes<'a> {
    run: &'a Run,
    from: f64,
    points: Vec<[f64; 2]>,
}

impl Slopes<'_> {
    fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point[1])
    }
}

fn memory_card(slopes: &[Slopes<'_>], name: &str, title: String, what: &str) -> io::Result<Card> {
    let first = &slopes[0];
    let mut values: Vec<f64> = first.points.iter().map(|point| point[1]).collect();
    values.sort_by(f64::total_cmp);
    let middle = values[values.len() / 2];
    let all = || slopes.iter().flat_map(|one| one.points.iter());
    let largest = all().map(|point| point[1]).fold(0.0, f64::max);
    let limit = (name == names::USER_BYTES && largest < 6.0 * USER_BUDGET)
        .then(|| (USER_BUDGET, format!("budget {} B", number(USER_BUDGET))));
    let top = limit.as_ref().map_or(largest, |(limit, _)| largest.max(*limit));
    let x = Axis::of_counts(&all().map(|point| point[0]).collect::<Vec<_>>());
    let y = Axis::from_zero(top.max(middle * 1.05) * 1.08, 5);
    let curves = slopes.iter().map(|one| curve(one.run, one.points.clone())).collect();
    let band = Some((middle * 0.95, middle * 1.05));
    let drawing = Lines { curves, x_name: "sessions".into(), marked: true, band, limit, ..Lines::default() };
    Ok(Card {
        title,
        subtitle: "bytes per session, by number of sessions held".into(),
        caption: format!(
            "Measured as {what}: what was added since the reading at {} sessions, divided by the sessions added since. Flat is \
             good: the tinted band is 5 % around the median of {} ({} B).",
            number(first.from),
            first.run.label,
            number(middle)
        ),
        legend: legend(slopes.iter().map(|one| one.run)),
        svg: plot::lines(&drawing, &x, &y)?,
    })
}

/// User, kernel and both beside each other, when a run has both.
fn all_memory(runs: &Runs) -> io::Result<Option<Card>> {
    let last = |run: &Run, name: &str| Some(per_session(run.outcome.series(name)?)?.1.last()?[1]);
    let found: Vec<(&Run, f64, f64)> = runs
        .all
        .iter()
        .filter_map(|run| Some((run, last(run, names::USER_BYTES)?, last(run, names::KERNEL_BYTES)?)))
        .collect();
    if found.is_empty() {
        return Ok(None);
    }
    let group = |name: &str, of: fn(f64, f64) -> f64| Group {
        name: name.into(),
        bars: found.iter().map(|(run, user, kernel)| (run.colour, of(*user, *kernel))).collect(),
        limit: None,
    };
    let groups = [
        group("User memory", |user, _| user),
        group("Kernel memory", |_, kernel| kernel),
        group("Both", |user, kernel| user + kernel),
    ];
    Ok(Some(Card {
        title: "All memory of a session".into(),
        subtitle: "bytes per session, at the largest number of sessions".into(),
        caption:
            "The same measurements: what the process made dirty, and what the kernel holds for the server's sockets."
                .into(),
        legend: legend(found.iter().map(|(run, ..)| *run)),
        svg: plot::bars(&groups, "B")?,
    }))
}

fn tables(runs: &Runs) -> io::Result<Option<Card>> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for run in &runs.all {
        for series in &run.outcome.series {
            let Some(table) = series.name.strip_prefix(names::TABLE_BYTES) else { continue };
            let Some(bytes) = per_session(series).and_then(|(_, slopes)| Some(slopes.last()?[1])) else { continue };
            if bytes > 0.5 {
                let group = Group { name: table.into(), bars: Vec::new(), limit: None };
                groups.entry(table.into()).or_insert(group).bars.push((run.colour, bytes));
            }
        }
    }
    if groups.is_empty() {
        return Ok(None);
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.bars[0].1.total_cmp(&a.bars[0].1));
    let with = |run: &&Run| run.outcome.series.iter().any(|one| one.name.starts_with(names::TABLE_BYTES));
    Ok(Some(Card {
        title: "Where the user memory is".into(),
        subtitle: "bytes per session by table, at the largest number of sessions".into(),
        caption:
            "As the server itself tells it in its metrics, all shards together; what a table holds without sessions is \
                  taken off."
                .into(),
        legend: legend(runs.all.iter().filter(with)),
        svg: plot::bars(&groups, "B")?,
    }))
}

/// Server CPU of each operation, every run beside the others.
pub(super) fn operations(runs: &Runs) -> io::Result<Vec<Card>> {
    let mut costs: Vec<Cost> = Vec::new();
    for run in &runs.all {
        for cost in costs_of(run) {
            match costs.iter_mut().find(|known| known.kind == cost.kind) {
                Some(known) => known.group.bars.extend(cost.group.bars),
                None => costs.push(cost),
            }
        }
    }
    // Operations that every run names alike come first, then those of one scenario's steps.
    costs.sort_by_key(|cost| cost.place);
    let groups: Vec<Group> = costs.into_iter().map(|cost| cost.group).collect();
    let has_limit = groups.iter().any(|group| group.limit.is_some());
    let used = || runs.all.iter().filter(|run| costs_of(run).next().is_some());
    let parts = groups.len().div_ceil(GROUPS_OF_A_CARD);
    let card = |(at, part): (usize, &[Group])| {
        Ok(Card {
            title: if parts == 1 {
                "CPU for each operation".into()
            } else {
                format!("CPU for each operation ({} of {parts})", at + 1)
            },
            subtitle: "microseconds of server CPU, all its threads and the kernel's work on their behalf".into(),
            caption: format!(
                "Run time of every thread of the server and its children (schedstat) over the measured time, divided by the \
                 operations completed in it.{} On loopback the sender also pays for the receiver's TCP.",
                if has_limit { " A red line is the budget of the design." } else { "" }
            ),
            legend: legend(used()),
            svg: plot::bars(part, "us")?,
        })
    };
    groups.chunks(GROUPS_OF_A_CARD).enumerate().map(card).collect()
}

/// A drawing of more is taller than a page.
const GROUPS_OF_A_CARD: usize = 8;

/// Cost of one operation.
struct Cost {
    kind: String,
    /// Its place in [`OPERATIONS`], or behind all of them.
    place: usize,
    group: Group,
}

/// Costs of the operations of one run. Of those of one kind the last counts: each step of a ramp would fill a page.
fn costs_of(run: &Run) -> impl Iterator<Item = Cost> {
    let mut costs = BTreeMap::new();
    for figure in &run.outcome.figures {
        let value = figure.value.as_f64().filter(|value| *value >= 0.0);
        let Some((operation, value)) = figure.operation().zip(value) else { continue };
        let place = OPERATIONS.iter().position(|(name, _)| *name == figure.name).unwrap_or(OPERATIONS.len());
        let limit = OPERATIONS.get(place).and_then(|(_, budget)| *budget);
        let group = Group { name: capitalised(operation), bars: vec![(run.colour, value)], limit };
        // Names of one kind differ in a number only: `ramp to 1000`, `ramp to 2000`.
        let kind: String = figure.name.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        costs.insert(kind.clone(), Cost { kind, place, group });
    }
    costs.into_values()
}

fn capitalised(mut name: String) -> String {
    if let Some(first) = name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    name
}
