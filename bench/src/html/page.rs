//! The page: headline, verdict, plots, tables, in one file.

use std::io;

use super::axis::{compact, date, number, time_unit};
use super::card::Card;
use super::cards;
use super::costs::per_session;
use super::escaped;
use super::runs::{Run, Runs};
use super::tables;
use crate::result::{Outcome, names};

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(super) fn write(title: &str, runs: &Runs, left_out: &[String]) -> io::Result<String> {
    let sections = cards::sections(runs)?;
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n",
        escaped(title)
    );
    html.push_str(&header(title, runs));
    html.push_str(&verdict(runs, left_out));
    html.push_str(&tiles(runs));
    for section in &sections {
        html.push_str(&format!("<section>\n<h2>{}</h2>\n<div class=\"cards\">\n", escaped(section.title)));
        section.cards.iter().for_each(|card| html.push_str(&figure(card)));
        html.push_str("</div>\n</section>\n");
    }
    html.push_str(&format!("<section>\n<h2>Every figure</h2>\n{}</section>\n", tables::figures(runs)));
    html.push_str(&format!("<section>\n<h2>How each run was made</h2>\n{}</section>\n", tables::provenance(runs)));
    html.push_str("</body>\n</html>\n");
    Ok(html)
}

fn header(title: &str, runs: &Runs) -> String {
    let mut machines: Vec<String> = Vec::new();
    for machine in runs.all.iter().map(|run| &run.outcome.machine) {
        let gib = number((machine.memory_bytes as f64 / f64::from(1 << 30)).round());
        let said = format!("{} cores of {}, {gib} GiB, Linux {}", machine.cores, machine.cpu, machine.kernel);
        if !machines.contains(&said) {
            machines.push(said);
        }
    }
    let latest = runs.all.iter().map(|run| run.outcome.when).max().unwrap_or(0);
    let earliest = runs.all.iter().map(|run| run.outcome.when).min().unwrap_or(0);
    let when = if latest - earliest < 60 { date(latest) } else { format!("{} to {}", date(earliest), date(latest)) };
    format!(
        "<header>\n<h1>{}</h1>\n<p>{} runs, {when}</p>\n<p>{}</p>\n</header>\n",
        escaped(title),
        runs.all.len(),
        escaped(&machines.join("; "))
    )
}

fn verdict(runs: &Runs, left_out: &[String]) -> String {
    let failed = tables::failures(runs);
    let checks: usize = runs.all.iter().map(|run| run.outcome.checks.len()).sum();
    let mut html = match failed.len() {
        0 if checks == 0 => String::new(),
        0 => format!("<p class=\"verdict good\">All {checks} checks held.</p>\n"),
        count => {
            let list: String = failed.iter().map(|one| format!("<li>{}</li>", escaped(one))).collect();
            format!("<div class=\"verdict bad\"><p>{count} of {checks} checks FAILED</p>\n<ul>{list}</ul></div>\n")
        }
    };
    if !left_out.is_empty() {
        let list: String = left_out.iter().map(|one| format!("<li>{}</li>", escaped(one))).collect();
        html.push_str(&format!("<div class=\"verdict aside\"><p>Left out</p>\n<ul>{list}</ul></div>\n"));
    }
    html
}

/// Value and unit of a headline in one run.
type Headline = (&'static str, fn(&Outcome) -> Option<(f64, String)>);

const HEADLINES: &[Headline] = &[
    ("sessions held at once", |outcome| {
        let counts = [names::USER_BYTES, names::KERNEL_BYTES_BOTH_ENDS].iter().filter_map(|name| outcome.series(name));
        let most = counts.filter_map(|series| Some(series.points.last()?[0])).fold(0.0, f64::max);
        (most > 0.0).then(|| (most, String::new()))
    }),
    ("user memory of a session", |outcome| slope(outcome, names::USER_BYTES)),
    ("kernel memory of a session", |outcome| slope(outcome, names::KERNEL_BYTES)),
    ("CPU of a notification", |outcome| Some((outcome.figure(names::CPU_NOTIFICATION)?, "us".into()))),
    ("CPU of a stored notification", |outcome| Some((outcome.figure(names::CPU_STORE)?, "us".into()))),
    ("CPU of accept and hello", |outcome| Some((outcome.figure(names::CPU_HELLO)?, "us".into()))),
    ("p99, POST to frame", |outcome| {
        let value = outcome.histogram(names::TO_FRAME)?.at(0.99)?;
        let (unit, divisor) = time_unit(value);
        Some((value / divisor, unit.into()))
    }),
];

fn slope(outcome: &Outcome, name: &str) -> Option<(f64, String)> {
    let (_, slopes) = per_session(outcome.series(name)?)?;
    Some((slopes.last()?[1], "B".into()))
}

/// The few numbers that most readers came for, of murre, and of the others in small.
fn tiles(runs: &Runs) -> String {
    let subject = runs.subject();
    let mut html = String::new();
    for (name, of) in HEADLINES {
        // Of several runs the one with most sessions speaks: it is the one that was hard.
        let sessions = |run: &Run| run.outcome.option(names::OPTION_SESSIONS).unwrap_or(0.0);
        let best = |server: &str| {
            let found = runs.all.iter().filter(|run| run.outcome.server == server);
            let found = found.filter_map(|run| Some((sessions(run), of(&run.outcome)?)));
            found.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, headline)| headline)
        };
        let Some((value, unit)) = best(subject) else { continue };
        let text = |value: f64, unit: &str| {
            let amount = if unit.is_empty() && value >= 1e6 { compact(value) } else { number(value) };
            format!("{amount}<small> {unit}</small>")
        };
        let mut others: Vec<&str> = runs.all.iter().map(|run| run.outcome.server.as_str()).collect();
        others.sort_unstable();
        others.dedup();
        let beside: String = others
            .into_iter()
            .filter(|server| *server != subject)
            .filter_map(|server| best(server).map(|(value, unit)| (server, value, unit)))
            .take(3)
            .map(|(server, value, unit)| format!("<span>{}: {} {unit}</span>", escaped(server), number(value)))
            .collect();
        html.push_str(&format!("<li><b>{}</b><em>{name}</em>{beside}</li>\n", text(value, &unit)));
    }
    if html.is_empty() { html } else { format!("<ul class=\"tiles\">\n{html}</ul>\n") }
}

fn figure(card: &Card) -> String {
    let entry = |(colour, dashed, name): &(usize, bool, String)| {
        let dashed = if *dashed || *colour >= 8 { " dashed" } else { "" };
        format!("<li><i class=\"key c{}{dashed}\"></i>{}</li>", colour % 8, escaped(name))
    };
    let legend: String = card.legend.iter().map(entry).collect();
    let legend = if legend.is_empty() { legend } else { format!("<ul class=\"legend\">{legend}</ul>\n") };
    let named = format!("<svg aria-label=\"{}\"", escaped(&card.title));
    format!(
        "<figure>\n<h3>{}</h3>\n<p class=\"sub\">{}</p>\n{legend}{}<figcaption>{}</figcaption>\n</figure>\n",
        escaped(&card.title),
        escaped(&card.subtitle),
        card.svg.replacen("<svg", &named, 1),
        escaped(&card.caption)
    )
}
