//! The cards of a report and the figures behind them: each card is one plot with its title, unit, legend and a caption
//! about the measurement.

use std::io;

use super::axis::{Axis, TAIL_MAX, number, tail, time_unit};
use super::card::{Card, curve, legend};
use super::costs::{memory, operations};
use super::plot::{self, Curve, Lines, thinned};
use super::runs::{Run, Runs};
use crate::result::{Distribution, Outcome, Series, names};

/// Cards under one heading.
pub(super) struct Section {
    pub title: &'static str,
    pub cards: Vec<Card>,
}

/// Everything that can be drawn from these runs; sections without a plot are left out.
pub(super) fn sections(runs: &Runs) -> io::Result<Vec<Section>> {
    let joined = |parts: Vec<Vec<Card>>| parts.into_iter().flatten().collect();
    let mut sections = vec![
        Section {
            title: "What a session and an operation cost",
            cards: joined(vec![memory(runs)?, operations(runs)?]),
        },
        Section { title: "Latency", cards: latencies(runs)? },
        Section {
            title: "The course of the runs",
            cards: joined(vec![over_time(runs)?, shards(runs)?, others(runs)?]),
        },
    ];
    sections.retain(|section| !section.cards.is_empty());
    Ok(sections)
}

fn latencies(runs: &Runs) -> io::Result<Vec<Card>> {
    let mut cards = Vec::new();
    for (scenario, part) in runs.by_scenario() {
        for name in distinct(part, |outcome| outcome.histograms.iter().map(|one| one.name.as_str()).collect()) {
            let found: Vec<(&Run, &Distribution)> =
                part.iter().filter_map(|run| Some((run, run.outcome.histogram(name)?))).collect();
            if !found.is_empty() {
                cards.push(latency(scenario, name, &found)?);
            }
        }
    }
    Ok(cards)
}

/// One distribution of one scenario, in every run of it.
fn latency(scenario: &str, name: &str, found: &[(&Run, &Distribution)]) -> io::Result<Card> {
    // One tail of 10 samples is an accident: a curve ends where fewer than that are left.
    let end = |one: &Distribution| (1.0 - 10.0 / one.count.max(20) as f64).min(1.0 - 10f64.powf(-TAIL_MAX));
    let last = found.iter().map(|(_, one)| end(one)).fold(0.9, f64::max);
    let points = |one: &Distribution| -> Vec<[f64; 2]> {
        let end = end(one);
        let within = one.points.iter().copied().filter(|point| point[0] < end);
        within.chain(one.at(end).map(|value| [end, value])).collect()
    };
    let drawn: Vec<(&Run, Vec<[f64; 2]>)> = found.iter().map(|(run, one)| (*run, points(one))).collect();
    let largest = drawn.iter().flat_map(|(_, points)| points.iter().map(|point| point[1])).fold(0.0, f64::max);
    let measured = found.first().map_or("", |(_, one)| one.unit.as_str());
    let (unit, divisor) = if measured == "us" { time_unit(largest) } else { (measured, 1.0) };
    let scaled = |points: &[[f64; 2]]| points.iter().map(|[q, value]| [tail(*q), value / divisor]).collect();
    let curves = drawn.iter().map(|(run, points)| curve(run, scaled(points))).collect();
    let drawing = Lines { curves, x_name: "share of all that was this fast or faster".into(), ..Lines::default() };
    let (x, y) = (Axis::of_quantiles(last), Axis::from_zero(largest / divisor * 1.04, 5));
    let said = found.iter().map(|(run, one)| {
        let at = |quantile| one.at(quantile).map_or_else(String::new, |value| number(value / divisor));
        let count = number(one.count as f64);
        format!("{}: p50 {}, p99 {}, largest {} {unit} of {count}", run.label, at(0.5), at(0.99), at(1.0))
    });
    let said: Vec<String> = said.collect();
    Ok(Card {
        title: format!("{} ({scenario})", capital(name)),
        subtitle: format!("{unit}, by percentile; each further nine has the same room"),
        caption: format!(
            "{}. From the instant at which an operation was due, not from when it was sent, where the load is open. A curve ends \
             where fewer than ten operations were slower.",
            said.join("; ")
        ),
        legend: legend(found.iter().map(|(run, _)| *run)),
        svg: plot::lines(&drawing, &x, &y)?,
    })
}

/// Scenarios in which sessions connect only to be there for something else.
const CONNECT_ONCE: &[&str] = &["push", "store", "ping", "backlog", "mixed"];

fn over_time(runs: &Runs) -> io::Result<Vec<Card>> {
    let mut cards = Vec::new();
    let cpu = [names::SERVER_CPU, names::GENERATOR_CPU];
    for (scenario, part) in runs.by_scenario() {
        for name in distinct(part, |outcome| over(outcome, "s")) {
            if cpu.contains(&name) || (name == names::CONNECTS && CONNECT_ONCE.contains(&scenario)) {
                continue;
            }
            let (title, what) = match name {
                names::CONNECTS => {
                    ("Connect rate", "Sessions that became ready (accepted, upgraded, plan done) in each second.")
                }
                names::NOTIFICATIONS => {
                    ("Notifications delivered", "Notifications that arrived in user agents in each second.")
                }
                other => (other, "As the generator recorded it."),
            };
            cards.extend(time_card(part, &format!("{title} ({scenario})"), what, &[(name, false)])?);
        }
        let what = "Cores' worth of CPU in each interval: server and its children solid, generator dashed.";
        let title = format!("CPU used ({scenario})");
        cards.extend(time_card(part, &title, what, &[(cpu[0], false), (cpu[1], true)])?);
    }
    Ok(cards)
}

/// Curves over seconds of these series, for every run that has them.
fn time_card(runs: &[Run], title: &str, what: &str, wanted: &[(&str, bool)]) -> io::Result<Option<Card>> {
    let (mut curves, mut legend, mut unit, mut end) = (Vec::new(), Vec::new(), String::new(), 0f64);
    for run in runs {
        for (name, dashed) in wanted {
            let Some(series) = run.outcome.series(name) else { continue };
            let start = series.points[0][0];
            let points: Vec<[f64; 2]> = series.points.iter().map(|[x, y]| [x - start.min(0.0), *y]).collect();
            end = points.iter().map(|point| point[0]).fold(end, f64::max);
            unit.clone_from(&series.unit);
            curves.push(Curve { dashed: *dashed, ..curve(run, thinned(&points)) });
            let part = if wanted.len() > 1 && *dashed { " (generator)" } else { "" };
            legend.push((run.colour, *dashed, format!("{}{part}", run.label)));
        }
    }
    // A series of zeros in every run needs no plot: notifications of a hold.
    if curves.iter().all(|curve| curve.points.iter().all(|point| point[1] == 0.0)) {
        return Ok(None);
    }
    let largest = curves.iter().flat_map(|curve| curve.points.iter().map(|point| point[1])).fold(0.0, f64::max);
    let (x, y) = (Axis::from_zero(end, 6), Axis::from_zero(largest * 1.05, 5));
    // One curve may be filled, several would hide each other.
    let filled = curves.len() == 1;
    let drawing = Lines { curves, x_name: "seconds since the run began".into(), filled, ..Lines::default() };
    Ok(Some(Card {
        title: capital(title),
        subtitle: format!("{}, over time", in_words(&unit)),
        caption: what.into(),
        legend,
        svg: plot::lines(&drawing, &x, &y)?,
    }))
}

fn shards(runs: &Runs) -> io::Result<Vec<Card>> {
    let mut cards = Vec::new();
    for run in &runs.all {
        let Some(series) = run.outcome.series(names::SHARD_SESSIONS) else { continue };
        let values: Vec<(String, f64)> = series.points.iter().map(|[shard, held]| (number(*shard), *held)).collect();
        let mean = values.iter().map(|(_, held)| held).sum::<f64>() / values.len() as f64;
        let furthest = values.iter().map(|(_, held)| (held / mean.max(1.0) - 1.0).abs()).fold(0.0, f64::max);
        cards.push(Card {
            title: "Balance of the shards".into(),
            subtitle: format!("sessions held by each shard, {} {}", run.outcome.scenario, run.label),
            caption: format!(
                "From the server's own metrics. A user agent belongs to a shard by a keyed hash of its id; the furthest shard is \
                 {} % off the mean.",
                number(furthest * 100.0)
            ),
            legend: Vec::new(),
            svg: plot::columns(&values, run.colour, "shard")?,
        });
    }
    Ok(cards)
}

/// Series that no card above shows: over another unit than seconds, and not of memory.
fn others(runs: &Runs) -> io::Result<Vec<Card>> {
    let known = [names::USER_BYTES, names::KERNEL_BYTES, names::KERNEL_BYTES_BOTH_ENDS, names::SHARD_SESSIONS];
    let mut cards = Vec::new();
    let all = distinct(&runs.all, |outcome| {
        let unknown = |one: &&Series| one.x_unit != "s" && !known.contains(&one.name.as_str());
        let unknown = outcome.series.iter().filter(unknown).filter(|one| !one.name.starts_with(names::TABLE_BYTES));
        unknown.filter(|one| !one.points.is_empty()).map(|one| one.name.as_str()).collect()
    });
    for name in all {
        let found: Vec<(&Run, &Series)> =
            runs.all.iter().filter_map(|run| Some((run, run.outcome.series(name)?))).collect();
        let points = || found.iter().flat_map(|(_, series)| series.points.iter());
        let x = Axis::of_counts(&points().map(|point| point[0]).collect::<Vec<_>>());
        let y = Axis::from_zero(points().map(|point| point[1]).fold(0.0, f64::max) * 1.05, 5);
        let curves = found.iter().map(|(run, series)| curve(run, thinned(&series.points))).collect();
        let first = found[0].1;
        let drawing = Lines { curves, x_name: first.x_unit.clone(), marked: true, ..Lines::default() };
        cards.push(Card {
            title: capital(name),
            subtitle: format!("{}, by {}", in_words(&first.unit), first.x_unit),
            caption: "As the generator recorded it.".into(),
            legend: legend(found.iter().map(|(run, _)| *run)),
            svg: plot::lines(&drawing, &x, &y)?,
        });
    }
    Ok(cards)
}

/// Names in all runs, in the order of their first appearance.
fn distinct<'a>(runs: &'a [Run], of: impl Fn(&'a Outcome) -> Vec<&'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in runs.iter().flat_map(|run| of(&run.outcome)) {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn over<'a>(outcome: &'a Outcome, x_unit: &str) -> Vec<&'a str> {
    let wanted = outcome.series.iter().filter(|one| one.x_unit == x_unit && !one.points.is_empty());
    wanted.map(|one| one.name.as_str()).collect()
}

fn in_words(unit: &str) -> &str {
    match unit {
        "/s" => "per second",
        "B" => "bytes",
        "us" => "microseconds",
        "" => "count",
        other => other,
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
