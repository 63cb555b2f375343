//! Numbers as they are: figures and checks of each scenario with one column for each run, and the provenance of each
//! run.

use super::axis::{date, number, value};
use super::escaped;
use super::runs::{Run, Runs};
use crate::report::sentence;

/// Columns of one table; runs beyond it get a table of their own.
const COLUMNS_MAX: usize = 6;

/// Every check that failed, with the run it belongs to.
pub(super) fn failures(runs: &Runs) -> Vec<String> {
    let of = |run: &Run| {
        let failed = run.outcome.checks.iter().filter(|check| !check.ok);
        failed.map(|check| format!("{} {}: {}", run.outcome.scenario, run.label, sentence(check))).collect::<Vec<_>>()
    };
    runs.all.iter().flat_map(of).collect()
}

/// Figures and checks, a table for each scenario.
pub(super) fn figures(runs: &Runs) -> String {
    let mut html = String::new();
    for (scenario, of) in runs.by_scenario() {
        html.push_str(&format!("<h3 id=\"{0}\">{0}</h3>\n", escaped(scenario)));
        for part in of.chunks(COLUMNS_MAX) {
            html.push_str(&table(part));
        }
    }
    html
}

fn table(runs: &[Run]) -> String {
    let head: String = runs
        .iter()
        .map(|run| {
            format!(
                "<th class=\"n\"><i class=\"key c{}\"></i>{} {}</th>",
                run.colour % 8,
                run.letter,
                escaped(&run.label)
            )
        })
        .collect();
    let mut html =
        format!("<div class=\"scroll\"><table><thead><tr><th>figure</th>{head}<th>unit</th></tr></thead>\n<tbody>\n");
    for (name, unit) in rows(runs) {
        let cells: String = runs.iter().map(|run| figure_cell(run, &name, &unit)).collect();
        // Two blanks in front say that a figure is a part of the one before.
        let class = if name.starts_with("  ") { " class=\"part\"" } else { "" };
        html.push_str(&format!(
            "<tr><td{class}>{}</td>{cells}<td>{}</td></tr>\n",
            escaped(name.trim()),
            escaped(&unit)
        ));
    }
    html.push_str("</tbody>\n");
    let checks = check_names(runs);
    if !checks.is_empty() {
        html.push_str("<tbody class=\"checks\">\n");
        for name in checks {
            let cells: String = runs.iter().map(|run| check_cell(run, &name)).collect();
            html.push_str(&format!("<tr><td>{}</td>{cells}<td>check</td></tr>\n", escaped(&name)));
        }
        html.push_str("</tbody>\n");
    }
    html.push_str("</table></div>\n");
    html
}

/// Names and units of all figures that are no check, in order of the first run that has them.
fn rows(runs: &[Run]) -> Vec<(String, String)> {
    let checks = check_names(runs);
    let mut rows: Vec<(String, String)> = Vec::new();
    for figure in runs.iter().flat_map(|run| &run.outcome.figures) {
        let row = (figure.name.clone(), figure.unit.clone());
        if !rows.contains(&row) && !checks.contains(&row.0) {
            rows.push(row);
        }
    }
    rows
}

fn check_names(runs: &[Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for check in runs.iter().flat_map(|run| &run.outcome.checks) {
        if !names.contains(&check.name) {
            names.push(check.name.clone());
        }
    }
    names
}

fn figure_cell(run: &Run, name: &str, unit: &str) -> String {
    let found = run.outcome.figures.iter().find(|figure| figure.name == name && figure.unit == unit);
    found.map_or_else(
        || "<td class=\"n\"></td>".into(),
        |figure| format!("<td class=\"n\">{}</td>", escaped(&value(&figure.value))),
    )
}

fn check_cell(run: &Run, name: &str) -> String {
    let Some(check) = run.outcome.checks.iter().find(|check| check.name == name) else {
        return "<td class=\"n\"></td>".into();
    };
    let (got, want) = (escaped(&value(&check.got)), escaped(&value(&check.want)));
    match (check.ok, want.is_empty()) {
        (true, _) => format!("<td class=\"n ok\">{got} &#10003;</td>"),
        (false, true) => "<td class=\"n bad\">FAILED</td>".into(),
        (false, false) => format!("<td class=\"n bad\">{got}, must be {want} FAILED</td>"),
    }
}

/// Provenance of each run: machine, command, commit.
pub(super) fn provenance(runs: &Runs) -> String {
    let mut html = String::from("<div class=\"runs\">\n");
    for run in &runs.all {
        let outcome = &run.outcome;
        let machine = &outcome.machine;
        let commit = outcome.commit.as_ref().map_or_else(String::new, |commit| format!(", commit {}", escaped(commit)));
        let options: Vec<String> = outcome
            .options
            .iter()
            .map(|(name, one)| format!("{} {}", escaped(&name.replace('_', " ")), escaped(&value(one))))
            .collect();
        html.push_str(&format!(
            "<article class=\"run\"><h3><i class=\"key c{}\"></i>{} &middot; {} &middot; {}</h3>\n<p>{}{commit}, from {}</p>\n\
             <p>Linux {}, {} cores of {}, {} GiB</p>\n",
            run.colour % 8,
            run.letter,
            escaped(&outcome.scenario),
            escaped(&run.label),
            date(outcome.when),
            escaped(&run.file),
            escaped(&machine.kernel),
            machine.cores,
            escaped(&machine.cpu),
            number((machine.memory_bytes as f64 / f64::from(1 << 30) * 10.0).round() / 10.0),
        ));
        if !options.is_empty() {
            html.push_str(&format!("<p>{}</p>\n", options.join(", ")));
        }
        if !outcome.command.is_empty() {
            html.push_str(&format!("<pre>{}</pre>\n", escaped(&outcome.command)));
        }
        html.push_str("</article>\n");
    }
    html.push_str("</div>\n");
    html
}
