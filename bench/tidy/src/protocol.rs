//! Rules about `docs/PROTOCOL.md`: the things that a row names exist, and no fact of the contract is without a row.

use super::docs::{prose, quoted};
use super::tree::{File, Tree};

const DOCUMENT: &str = "docs/PROTOCOL.md";
const REQUIRED: &str = "docs/protocol-ids.txt";

/// One row `| id | requirement | code | tests |`.
struct Row<'t> {
    line: usize,
    /// Number of the section of the contract that it stands under: the first word of the last heading that begins with
    /// one; empty under a heading that does not.
    section: &'t str,
    id: &'t str,
    code: &'t str,
    tests: &'t str,
}

fn rows(file: &File) -> Vec<Row<'_>> {
    let mut found = Vec::new();
    let mut section = "";
    for (line, text) in prose(&file.text) {
        if text.starts_with('#') {
            section = text.trim_start_matches('#').split_whitespace().next().filter(|w| is_section(w)).unwrap_or("");
        }
        let cells: Vec<&str> = text.trim().trim_matches('|').split(" | ").map(str::trim).collect();
        if let [id, _, code, tests] = cells[..]
            && is_id(id)
        {
            found.push(Row { line, section, id, code, tests });
        }
    }
    found
}

/// Ids are unique, the files exist, and named tests are tests.
pub fn table(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.get(DOCUMENT) else { return vec![format!("{DOCUMENT} is missing")] };
    let rows = rows(file);
    let mut complaints = Vec::new();
    if rows.is_empty() {
        complaints.push(format!("{DOCUMENT}: no row was found"));
    }
    for (at, Row { line, id, code, tests, .. }) in rows.iter().enumerate() {
        if rows[..at].iter().any(|row| row.id == *id) {
            complaints.push(format!("{DOCUMENT}:{line}: {id} is there twice"));
        }
        if quoted(code).next().is_none() || quoted(tests).next().is_none() {
            complaints.push(format!("{DOCUMENT}:{line}: {id} names no code or no test"));
        }
        for place in quoted(code).filter(|place| !tree.exists(place)) {
            complaints.push(format!("{DOCUMENT}:{line}: {id}: there is no {place}"));
        }
        for test in quoted(tests).filter(|test| !is_test(tree, test)) {
            complaints.push(format!("{DOCUMENT}:{line}: {id}: there is no test {test}"));
        }
    }
    complaints
}

/// Every id of the list has a row under the heading of its section. The list is written from the contract, the table
/// from the code: a fact that the code lost stays in the list.
pub fn required(tree: &Tree) -> Vec<String> {
    let (Some(list), Some(file)) = (tree.get(REQUIRED), tree.get(DOCUMENT)) else {
        return vec![format!("{REQUIRED} or {DOCUMENT} is missing")];
    };
    let rows = rows(file);
    let mut complaints = Vec::new();
    let mut sections: Vec<(&str, usize)> = Vec::new();
    for (at, line) in list.text.lines().enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with("# ")) {
        let word = line.split_whitespace().next().unwrap_or("");
        match sections.last_mut() {
            _ if is_section(word) => sections.push((word, 0)),
            Some((section, ids)) if is_id(line) => {
                *ids += 1;
                if !rows.iter().any(|row| row.id == line && row.section == *section) {
                    complaints.push(format!("{DOCUMENT}: no row {line} under a heading {section}"));
                }
            }
            _ => complaints.push(format!("{REQUIRED}:{}: neither a section nor an id of one: {line}", at + 1)),
        }
    }
    for (section, _) in sections.iter().filter(|(_, ids)| *ids == 0) {
        complaints.push(format!("{REQUIRED}: nothing is required of {section}"));
    }
    if sections.is_empty() {
        complaints.push(format!("{REQUIRED}: no section was found"));
    }
    complaints
}

/// `1.10`, `12`.
fn is_section(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// `WS-HELLO-3`: capitals and digits in at least two parts.
fn is_id(text: &str) -> bool {
    let part = |p: &str| !p.is_empty() && p.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit());
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.contains('-') && text.split('-').all(part)
}

/// Returns true if a function of this name is run as a test: in Rust by one of its attributes, in Python by its name.
fn is_test(tree: &Tree, name: &str) -> bool {
    let (rust, python) = (format!("fn {name}("), format!("def {name}("));
    let declared = |file: &File| {
        let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
        lines.iter().enumerate().any(|(at, line)| {
            let attributes = || lines[..at].iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
            let marked = || attributes().any(|l| l.starts_with("#[test") || l.starts_with("#[tokio::test"));
            line.trim_start_matches("async ").starts_with(&rust) && marked()
        })
    };
    let named = |file: &File| name.starts_with("test_") && file.text.contains(&python);
    tree.rust().any(declared) || tree.ending(&[".py"]).any(named)
}

#[test]
fn a_protocol_row_that_names_nothing_real_is_refused() {
    let code =
        ("src/a.rs", "#[test]\nfn it_works() {}\n\n    #[tokio::test]\n    async fn it_waits() {}\nfn helper() {}\n");
    let row = |text: &'static str| table(&Tree::of(&[code, ("docs/PROTOCOL.md", text)])).len();
    assert_eq!(row("| WS-A-1 | Must. | `src/a.rs` | `it_works`, `it_waits` |\n"), 0);
    assert_eq!(row("| WS-A-1 | Must. | `src/b.rs` | `it_works` |\n"), 1);
    assert_eq!(row("| WS-A-1 | Must. | `src/a.rs` | `it_fails` |\n"), 1);
    assert_eq!(row("| WS-A-1 | Must. | `src/a.rs` | `helper` |\n"), 1);
    assert_eq!(row("| WS-A-1 | Must. | `src/a.rs` | none |\n"), 1);
    assert_eq!(row("| WS-A-1 | M. | `src/a.rs` | `it_works` |\n| WS-A-1 | M. | `src/a.rs` | `it_works` |\n"), 1);
    assert_eq!(row("no table\n"), 1);
}

#[test]
fn a_fact_of_the_contract_without_a_row_is_refused() {
    let document = "## WebSocket\n### 1.1 Upgrade\n| WS-A-1 | M. | `a` | `t` |\n### 1.2 Frames\n| WS-B-1 | M. | `a` | `t` |\n\
                    ## Rest\n| WS-C-1 | M. | `a` | `t` |\n";
    let missing = |list: &str| required(&Tree::of(&[("docs/PROTOCOL.md", document), (REQUIRED, list)])).len();
    assert_eq!(missing("# Said by nobody.\n\n1.1 Upgrade\nWS-A-1\n1.2 Frames\nWS-B-1\n"), 0);
    assert_eq!(missing("1.1 Upgrade\nWS-A-1\nWS-A-2\n"), 1);
    assert_eq!(missing("1.1 Upgrade\nWS-B-1\n"), 1, "under another heading");
    assert_eq!(missing("1.3 Closes\nWS-C-1\n"), 1, "under a heading without a number");
    assert_eq!(missing("1.1 Upgrade\n1.2 Frames\nWS-B-1\n"), 1, "a section of which nothing is required");
    assert_eq!(missing("WS-A-1\n"), 2, "an id of no section, and no section");
    assert_eq!(missing(""), 1);
    assert_eq!(required(&Tree::of(&[("docs/PROTOCOL.md", document)])).len(), 1);
}
