//! The answers, as a table for people or as JSON.

use std::io::Write;

use serde_json::json;

use super::{Miss, Outcome};

/// Word and detail of an answer.
fn said(outcome: &Outcome) -> (&'static str, &str) {
    match &outcome.answer {
        Ok(()) => ("pass", ""),
        Err(Miss::Fail(why)) => ("fail", why),
        Err(Miss::NotAsked(why)) => ("not asked", why),
    }
}

pub(super) fn print(outcomes: &[Outcome], as_json: bool) {
    let text = if as_json { to_json(outcomes) } else { to_text(outcomes) };
    // Standard output can be closed; the exit status has the result.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

fn to_json(outcomes: &[Outcome]) -> String {
    let rows: Vec<_> = outcomes
        .iter()
        .map(|outcome| {
            let (result, detail) = said(outcome);
            let row = outcome.requirement;
            json!({
                "id": row.id, "level": row.level.word(), "citation": row.citation, "sentence": row.sentence,
                "result": result, "detail": detail,
            })
        })
        .collect();
    format!("{:#}\n", json!(rows))
}

/// Reasons come from the server in part: control characters would move the cursor of a terminal.
fn to_text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let (result, detail) = said(outcome);
        let row = outcome.requirement;
        let detail: String = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
        text += &format!("{result:<10}{:<7}{:<24}{} ({})\n", row.level.word(), row.id, row.sentence, row.citation);
        if !detail.is_empty() {
            text += &format!("{:<41}{detail}\n", "");
        }
    }
    let count = |word| outcomes.iter().filter(|outcome| said(outcome).0 == word).count();
    text + &format!("{} pass, {} fail, {} not asked\n", count("pass"), count("fail"), count("not asked"))
}
