//! The report as a whole: the content of the page, and files that are not results.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use super::{Options, run};

fn result(scenario: &str, server: &str, more: &serde_json::Value) -> String {
    let mut all = json!({
        "schema": 1, "scenario": scenario, "server": server, "when": 1_700_000_000,
        "machine": { "kernel": "6.18", "cpu": "Some CPU", "cores": 2, "memory_bytes": 24u64 << 30 },
    });
    let (all_fields, more) = (all.as_object_mut().unwrap(), more.as_object().unwrap());
    all_fields.extend(more.clone());
    all.to_string()
}

fn report(files: &[(&str, String)], named: &[&str]) -> (std::io::Result<bool>, String) {
    let directory = tempfile::tempdir().unwrap();
    let results = directory.path().join("results");
    fs::create_dir(&results).unwrap();
    files.iter().for_each(|(name, text)| fs::write(results.join(name), text).unwrap());
    let out = directory.path().join("report.html");
    let mut from: Vec<PathBuf> = named.iter().map(|name| results.join(name)).collect();
    if from.is_empty() {
        from.push(results);
    }
    let done = run(&Options { from, out: out.clone(), title: "A <title>".into() });
    (done, fs::read_to_string(out).unwrap_or_default())
}

fn hold(server: &str, each: f64) -> String {
    let points: Vec<[f64; 2]> = [0.0, 1e4, 1e5, 1e6].iter().map(|count| [*count, 2e7 + each * count]).collect();
    result(
        "hold",
        server,
        &json!({
            "options": { "sessions": 1_000_000 },
            "checks": [{ "name": "sessions held", "got": 1_000_000, "want": 1_000_000, "ok": true }],
            "series": [
                { "name": "user bytes", "x_unit": "sessions", "unit": "B", "points": points },
                { "name": "sessions by shard", "x_unit": "shard", "unit": "sessions",
                  "points": [[0, 499_000], [1, 501_000]] },
                { "name": "connects", "x_unit": "s", "unit": "/s", "points": [[0, 30_000], [1, 31_000], [2, 0]] },
            ],
        }),
    )
}

/// On a busy host the content of the kernel's caches is mostly not of these sessions.
#[test]
fn values_far_beyond_an_axis_are_drawn_at_its_edge() {
    let points = [[0.0, 0.0], [1e3, -4.4e12], [2e3, 10.0]];
    let series = json!({ "name": "kernel bytes", "x_unit": "sessions", "unit": "B", "points": points });
    let hold = result("hold", "murre", &json!({ "options": { "sessions": 2_000 }, "series": [series] }));
    let (done, page) = report(&[("hold.json", hold)], &[]);
    assert!(done.is_ok() && page.contains("<svg"), "{done:?}");
}

#[test]
fn plots_tables_and_verdict_are_in_one_file_that_needs_nothing_else() {
    let push = result(
        "push",
        "another",
        &json!({
            "command": "murre-bench push --label '<b>'",
            "figures": [{ "name": "server CPU per notification", "value": 31.25, "unit": "us" }],
            "checks": [{ "name": "sessions lost", "got": 3, "want": 0, "ok": false }],
            "histograms": [{ "name": "POST to frame", "unit": "us", "count": 100_000,
                "points": [[0.0, 90.0], [0.5, 200.0], [0.99, 1_500.0], [0.9999, 4_000.0], [1.0, 9_000.0]] }],
        }),
    );
    let files = [("a.json", hold("murre", 152.0)), ("b.json", hold("another", 14_000.0)), ("c.json", push)];
    let (done, html) = report(&files, &[]);
    assert!(done.unwrap());
    for wanted in [
        "A &lt;title&gt;",
        "1 of 3 check",
        "sessions lost: 3, must be 0",
        "User memory of a session",
        "CPU for each operation",
        "31.2 us",
        "POST to frame (push)",
        "Connect rate (hold)",
        "Balance of the shards",
        "14,000 B",
        "--label &#39;&lt;b&gt;&#39;",
        "Some CPU",
    ] {
        assert!(html.contains(wanted), "no {wanted} in the page");
    }
    assert_eq!(html.matches("<svg").count(), 7, "memory and shards of each server, and one of each other kind");
    assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    assert!(!html.contains("<b>&#39;") && !html.contains("<script") && !html.contains("<link"));
    let outside = html.replace("http://www.w3.org/2000/svg", "");
    assert!(!outside.contains("http://") && !outside.contains("https://") && !outside.contains("url("));
}

#[test]
fn foreign_files_are_left_out_and_say_which_and_why() {
    let files = [
        ("a.json", hold("murre", 152.0)),
        ("b.json", "{\"x\": 1}".into()),
        ("c.json", "no".into()),
        ("d.txt", "no".into()),
    ];
    let (done, html) = report(&files, &[]);
    assert!(done.unwrap(), "they only lay there");
    assert!(
        html.contains("b.json: no result of murre-bench")
            && html.contains("c.json: no JSON")
            && !html.contains("d.txt")
    );

    let (done, html) = report(&files, &["a.json", "b.json", "missing.json"]);
    assert!(!done.unwrap(), "these were asked for");
    assert!(
        html.contains("b.json: no result") && html.contains("missing.json: cannot be read") && html.contains("<svg")
    );
}

#[test]
fn nothing_to_report_is_an_error_and_writes_nothing() {
    let (done, html) = report(&[("b.json", "{}".into())], &[]);
    assert!(done.unwrap_err().to_string().contains("no result to report"));
    assert!(html.is_empty());
}

#[test]
fn runs_of_one_scenario_are_told_apart_by_what_differs() {
    let push = |rate: u64, when: u64| {
        result(
            "push",
            "murre",
            &json!({ "when": when, "options": { "rate": rate, "body": 200 },
            "figures": [{ "name": "p", "value": 1, "unit": "" }] }),
        )
    };
    let (done, html) = report(&[("1.json", push(10, 1)), ("2.json", push(20, 2)), ("3.json", push(20, 3))], &[]);
    assert!(done.unwrap());
    assert!(
        html.contains("murre, rate 10<")
            && html.contains("murre, rate 20, run 1<")
            && html.contains("murre, rate 20, run 2<")
    );
}

#[test]
fn empty_and_extreme_curves_do_no_harm() {
    let odd = result(
        "hold",
        "murre",
        &json!({
            "series": [
                { "name": "user bytes", "x_unit": "sessions", "unit": "B", "points": [[0, 0]] },
                { "name": "kernel bytes", "x_unit": "sessions", "unit": "B", "points": [[5, 100], [5, 100], [6, 50]] },
                { "name": "connects", "x_unit": "s", "unit": "/s", "points": [] },
                { "name": "server CPU", "x_unit": "s", "unit": "cores", "points": [[0, 0]] },
                { "name": "what is this", "x_unit": "things", "unit": "B", "points": [[-3, -1], [0, 1e300]] },
                { "name": "sessions by shard", "x_unit": "shard", "unit": "sessions", "points": [[0, 0]] },
            ],
            "histograms": [{ "name": "POST to frame", "unit": "us", "count": 0, "points": [[1.0, 0.0]] },
                { "name": "none", "unit": "us", "count": 0, "points": [] }],
        }),
    );
    let (done, html) = report(&[("a.json", odd)], &[]);
    assert!(done.unwrap());
    assert!(html.contains("What is this") && html.contains("Balance of the shards"));
}

#[test]
fn the_dark_page_has_every_colour_of_the_plots() {
    let style = include_str!("style.css");
    for colour in super::plot::COLOURS {
        let name = format!("#{:02X}{:02X}{:02X}", colour.0, colour.1, colour.2);
        assert!(
            style.contains(&format!("[fill=\"{name}\"]")) && style.contains(&format!("[stroke=\"{name}\"]")),
            "{name}"
        );
        assert!(style.contains(&name.to_lowercase()), "the legend of the light page has no {name}");
    }
}
