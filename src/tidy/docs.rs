//! Rules about documents: required mentions, and the existence of the things that they name.

use super::tree::{File, Tree, has_word};

/// Directories of the machines of developers, written in halves so that this file does not hold them.
const MACHINE_PATHS: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/tmp/", "wt"),
    concat!("/ro", "ot/"),
    concat!("/home", "/"),
    concat!("/Use", "rs/"),
];

/// Every constant and function of `limits.rs` has its name in `docs/LIMITS.md`.
pub fn limits(tree: &Tree) -> Vec<String> {
    let (source, document) = ("shards/machine/src/limits.rs", "docs/LIMITS.md");
    let (Some(limits), Some(text)) = (tree.get(source), tree.get(document)) else {
        return vec![format!("{source} or {document} is missing")];
    };
    let names: Vec<&str> = limits.text.lines().filter_map(public_name).collect();
    let mut complaints = Vec::new();
    if names.is_empty() {
        complaints.push(format!("{source}: no limit was found"));
    }
    for name in &names {
        if !text.text.contains(&format!("`{name}`")) {
            complaints.push(format!("{document}: does not explain `{name}`"));
        }
    }
    for word in quoted(&text.text).filter(|w| w.ends_with("_MAX") && !names.contains(w)) {
        if !tree.rust().any(|f| has_word(&f.text, word)) {
            complaints.push(format!("{document}: explains `{word}`, which does not exist"));
        }
    }
    complaints
}

fn public_name(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub const fn ").or_else(|| line.strip_prefix("pub const "));
    let rest = rest.or_else(|| line.strip_prefix("pub fn "))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

/// Text between backticks, outside fenced blocks.
pub(super) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    prose(text).flat_map(|(_, line)| line.split('`').skip(1).step_by(2))
}

/// Lines outside fenced blocks, with their numbers.
pub(super) fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((at + 1, line))
    })
}

/// Exactly one `# title` in every document.
pub fn titles(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.ending(&[".md"]) {
        let titles = prose(&file.text).filter(|(_, line)| line.starts_with("# ")).count();
        if titles != 1 {
            complaints.push(format!("{}: {titles} titles, one is wanted", file.path));
        }
    }
    complaints
}

/// Relative links lead to files that exist, and their anchors to headings.
pub fn links(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.ending(&[".md"]) {
        for (line, target) in prose(&file.text).flat_map(|(at, line)| targets(line).map(move |t| (at, t))) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { file.path.clone() } else { join(&file.path, path) };
            if !tree.exists(&path) {
                complaints.push(format!("{}:{line}: {target} leads nowhere", file.path));
            } else if !anchor.is_empty() && !has_heading(tree, &path, anchor) {
                complaints.push(format!("{}:{line}: {path} has no heading #{anchor}", file.path));
            }
        }
    }
    complaints
}

/// The targets of `[text](target)` in one line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

/// `docs/a.md`, `../b/c` -> `b/c`.
fn join(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// Headings become anchors as the usual renderers make them: lower case, blanks to dashes, punctuation gone.
fn has_heading(tree: &Tree, path: &str, anchor: &str) -> bool {
    let Some(file) = tree.get(path) else { return false };
    let keeps = |c: &char| c.is_alphanumeric() || *c == '-' || *c == '_' || *c == ' ';
    prose(&file.text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| line.trim_start_matches('#').trim())
        .map(|title| title.chars().filter(keeps).collect::<String>().to_lowercase().replace(' ', "-"))
        .any(|slug| slug == anchor)
}

/// Every document that a source cites exists, and has the section whose number follows its name.
pub fn citations(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust().filter(|f| !f.path.starts_with("src/tidy/")) {
        for (at, line) in file.text.lines().enumerate() {
            for (name, section) in cited(line) {
                let ending = format!("/{name}");
                let found = |f: &&File| f.path == name || f.path.ends_with(&ending);
                let documents: Vec<&File> = tree.ending(&[".md"]).filter(found).collect();
                if documents.is_empty() {
                    complaints.push(format!("{}:{}: there is no {name}", file.path, at + 1));
                } else if !section.is_empty() && !documents.iter().any(|f| has_section(f, section)) {
                    complaints.push(format!("{}:{}: {name} has no section {section}", file.path, at + 1));
                }
            }
        }
    }
    complaints
}

/// Tables that lead a reader through the code: documents, and the ends of their headings.
const GUIDES: &[(&str, &str)] = &[
    ("docs/ARCHITECTURE.md", "Where to read"),
    ("docs/decisions/0022-walls-in-the-machine.md", "Relays and SimplePush"),
    ("docs/reports/0007-house.md", "Four walks"),
    ("docs/reports/0007-house.md", "Twenty questions"),
];

/// No file comes twice in one table of the walks, which is what one shard does with one input.
pub fn walks(tree: &Tree) -> Vec<String> {
    let document = "docs/reports/0007-house.md";
    let text = tree.get(document).map_or("", |file| file.text.as_str());
    let (mut complaints, mut passed, mut last) = (Vec::new(), Vec::new(), 0);
    for (line, row) in rows_below(text, "Four walks") {
        if line != last + 1 {
            passed.clear();
        }
        last = line;
        let file = quoted(row).next().unwrap_or_default();
        if passed.contains(&file) {
            complaints.push(format!("{document}:{line}: the walk was in {file} before"));
        }
        passed.push(file);
    }
    complaints
}

/// Every file that a row of [`GUIDES`] names exists, and every name in code beside it is a word of one of these files.
pub fn guides(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (document, heading) in GUIDES {
        let Some(file) = tree.get(document) else {
            complaints.push(format!("{document} is missing"));
            continue;
        };
        let rows: Vec<(usize, &str)> = rows_below(&file.text, heading).collect();
        if rows.is_empty() {
            complaints.push(format!("{document}: no table below {heading}"));
        }
        for (line, row) in rows {
            let (paths, names): (Vec<&str>, Vec<&str>) =
                quoted(row).partition(|word| word.ends_with(".rs") || word.contains('/'));
            let mut files = Vec::new();
            for path in paths {
                let found = tree.files.iter().filter(|f| is_or_holds(&f.path, path)).collect::<Vec<_>>();
                if found.is_empty() {
                    complaints.push(format!("{document}:{line}: there is no {path}"));
                }
                files.extend(found);
            }
            let is_known = |name: &str| files.iter().any(|f| has_word(&f.text, name));
            for name in names.into_iter().filter(|name| is_identifier(name) && !is_known(name)) {
                complaints.push(format!("{document}:{line}: {name} is in none of the files beside it"));
            }
        }
    }
    complaints
}

/// Rows of the tables below a heading that ends like this, up to the next heading of its level.
fn rows_below<'a>(text: &'a str, heading: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let level = |line: &str| line.chars().take_while(|c| *c == '#').count();
    let mut lines = prose(text).skip_while(move |(_, line)| level(line) == 0 || !line.ends_with(heading));
    let own = lines.next().map_or(0, |(_, line)| level(line));
    lines.take_while(move |(_, line)| !(1..=own).contains(&level(line))).filter(|(_, line)| line.starts_with("| "))
}

/// Returns true if this path, or the end of it, is `named`, or it is below a folder that is.
fn is_or_holds(path: &str, named: &str) -> bool {
    let folder = format!("{}/", named.trim_end_matches('/'));
    path == named
        || path.ends_with(&format!("/{named}"))
        || path.starts_with(&folder)
        || path.contains(&format!("/{folder}"))
}

fn is_identifier(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Names of documents in one line, each with the number behind it: `PROTOCOL.md 1.5`; empty without one.
fn cited(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let part_of_name = |c: char| c.is_alphanumeric() || "_-/.".contains(c);
    line.match_indices(".md").filter_map(move |(at, _)| {
        let (before, rest) = (&line[..at], &line[at + 3..]);
        if rest.starts_with(|c: char| c.is_alphanumeric()) {
            return None;
        }
        let start = before.rfind(|c| !part_of_name(c)).map_or(0, |end| end + 1);
        let number = rest.strip_prefix(' ').unwrap_or("");
        let end = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
        let name = line[start..at + 3].trim_start_matches(['.', '/']);
        (name.len() > 3).then_some((name, number[..end].trim_end_matches('.')))
    })
}

/// Returns true if a heading of this document begins with this number.
fn has_section(file: &File, number: &str) -> bool {
    prose(&file.text)
        .filter_map(|(_, line)| line.strip_prefix('#'))
        .filter_map(|line| line.trim_start_matches('#').split_whitespace().next())
        .any(|word| word.trim_end_matches('.') == number)
}

/// No two numbers of one board have the same name (a scraper would refuse the page), and every number that
/// `docs/OPERATIONS.md` sends an operator to exists.
pub fn numbers(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut known: Vec<(String, String)> = Vec::new();
    for file in tree.rust().filter(|f| !tree.is_test(f) && !f.path.starts_with("bench/")) {
        for name in counters(&file.text) {
            let name = if file.path.starts_with("src/store/") { format!("store_{name}") } else { name };
            let name = name.replace("store_store_", "store_");
            if let Some((_, other)) = known.iter().find(|(known, _)| *known == name) {
                complaints.push(format!("{}: {name} is counted in {other} too", file.path));
            }
            known.push((name, file.path.clone()));
        }
    }
    // A process has one store: two kinds of store may count under one name.
    let shared = tree.rust().filter(|f| f.path.starts_with("src/store/src/scylla/"));
    known.extend(
        shared.flat_map(|f| {
            declared(&f.text, ["Counter ", "Gauge "]).map(|name| (format!("store_{name}"), f.path.clone()))
        }),
    );
    // A number on no board is named in the code that shows it.
    let shown = tree.rust().filter(|f| f.path.starts_with("src/control_plane/metrics") && !tree.is_test(f));
    let shown = shown
        .flat_map(|f| ["encode_descriptor(", "gauge(", "labelled("].map(|call| first_texts(&f.text, call)))
        .flatten();
    known.extend(shown.map(|name| (name.to_owned(), String::new())));
    known.extend(tree.rust().filter(|f| !tree.is_test(f)).flat_map(|f| histograms(&f.text)));
    let conditions = tree.rust().filter(|f| f.path == "src/node/conditions.rs");
    known.extend(
        conditions.flat_map(|f| first_texts(&f.text, "condition(")).map(|name| (name.to_owned(), String::new())),
    );
    let document = "docs/OPERATIONS.md";
    let Some(text) = tree.get(document) else { return vec![format!("{document} is missing")] };
    let config = tree.rust().filter(|f| f.path.starts_with("src/config/") && !tree.is_test(f));
    let config: String = config.map(|f| f.text.as_str()).collect();
    for word in quoted(&text.text).filter(|w| is_number_name(w)) {
        let key = config.contains(&format!("\"{word}\" "));
        if !key && !known.iter().any(|(known, _)| known == word) {
            complaints.push(format!("{document}: there is no number or key {word}"));
        }
    }
    if known.is_empty() {
        complaints.push("nothing is counted".into());
    }
    complaints
}

/// Names of histograms, and new names of numbers that are deprecated.
fn histograms(text: &str) -> Vec<(String, String)> {
    let named = text.split("HistogramMeaning {").skip(1).filter_map(|rest| rest.split('"').nth(1));
    let renamed = text.split("renamed(").skip(1).filter(|rest| rest.trim_start().starts_with('"'));
    let renamed = renamed.filter_map(|rest| rest.split('"').nth(3));
    named.chain(renamed).map(|name| (name.to_owned(), String::new())).collect()
}

/// The first argument of each of these calls that is a text.
fn first_texts<'a>(text: &'a str, call: &'a str) -> impl Iterator<Item = &'a str> {
    let texts = text.split(call).skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    texts.filter_map(|rest| rest.split_once('"')).map(|(name, _)| name)
}

/// Names declared in `counters!` blocks outside tests.
fn counters(text: &str) -> Vec<String> {
    let in_test = super::tree::test_lines(text);
    let lines: Vec<&str> = text.lines().enumerate().filter(|(at, _)| !in_test[*at]).map(|(_, line)| line).collect();
    declared(&lines.join("\n"), ["counter ", "gauge "]).collect()
}

/// Names behind these words that have an explanation.
fn declared<'a>(text: &'a str, kinds: [&'a str; 2]) -> impl Iterator<Item = String> + 'a {
    text.lines().filter_map(move |line| {
        let rest = kinds.iter().find_map(|kind| line.trim().strip_prefix(kind))?;
        let (name, help) = rest.split_once(':')?;
        help.trim_start().starts_with('"').then(|| name.trim().to_string())
    })
}

/// `posts_unavailable`, `turns`; not `data_dir/`, `endpoint.url`, `--ws`.
fn is_number_name(word: &str) -> bool {
    word.contains('_')
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !word.starts_with('_')
        && !word.ends_with('_')
}

/// No file names a directory of the machine it was written on.
pub fn machine_paths(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in &tree.files {
        for (at, line) in file.text.lines().enumerate() {
            for path in MACHINE_PATHS.iter().filter(|p| names_path(line, p)) {
                complaints.push(format!("{}:{}: names {path}", file.path, at + 1));
            }
        }
    }
    complaints
}

/// A path starts where nothing of a longer relative path or URL stands before it.
fn names_path(line: &str, path: &str) -> bool {
    let part_of_path = |c: char| c.is_alphanumeric() || "._-/}".contains(c);
    line.match_indices(path).any(|(at, _)| !line[..at].chars().next_back().is_some_and(part_of_path))
}

#[test]
fn a_limit_without_a_line_and_a_line_without_a_limit_are_refused() {
    let source = ("shards/machine/src/limits.rs", "pub const A_MAX: u8 = 1;\npub fn credit(n: u16) -> usize {\n}\n");
    assert_eq!(limits(&Tree::of(&[source, ("docs/LIMITS.md", "`A_MAX` and `credit`")])).len(), 0);
    assert_eq!(limits(&Tree::of(&[source, ("docs/LIMITS.md", "`A_MAX` and credit")])).len(), 1);
    assert_eq!(limits(&Tree::of(&[source, ("docs/LIMITS.md", "`A_MAX`, `credit`, `GONE_MAX`")])).len(), 1);
    assert_eq!(limits(&Tree::of(&[source])).len(), 1);
}

#[test]
fn a_document_with_no_title_or_two_is_refused() {
    assert_eq!(titles(&Tree::of(&[("a.md", "# One\n```sh\n# comment\n```\n")])).len(), 0);
    assert_eq!(titles(&Tree::of(&[("a.md", "text\n"), ("b.md", "# One\n# Two\n")])).len(), 2);
}

#[test]
fn a_link_to_nowhere_is_refused() {
    let good = ("docs/a.md", "# A\n[b](../README.md) [c](b/d.md#two-words) [e](#a) [f](https://example.org/x)\n");
    let others = [("README.md", "# R\n"), ("docs/b/d.md", "# D\n## Two words\n")];
    assert_eq!(links(&Tree::of(&[good, others[0], others[1]])), Vec::<String>::new());
    assert_eq!(links(&Tree::of(&[good, others[0]])).len(), 1);
    assert_eq!(links(&Tree::of(&[("docs/a.md", "# A\n[b](#not-there)\n")])).len(), 1);
}

#[test]
fn a_citation_that_leads_nowhere_is_refused() {
    let document = ("docs/FACTS.md", "# Facts\n## 1. One\n### 1.5 Two\n");
    let check = |line: &str| citations(&Tree::of(&[("src/a.rs", line), document])).len();
    for good in ["// (FACTS.md 1.5; FACTS.md 1)", "// docs/FACTS.md, facts", "// FACTS.md 1.5. And more.", "a.mdx"] {
        assert_eq!(check(good), 0, "{good}");
    }
    for bad in ["// (FACTS.md 1.6)", "// FACTS.md 2", "// docs/OTHER.md", "// other/FACTS.md"] {
        assert_eq!(check(bad), 1, "{bad}");
    }
}

#[test]
fn a_walk_that_goes_back_to_a_file_is_refused() {
    let check = |rows: &str| {
        let text = format!("# H\n## Four walks\n### One\n{rows}\n## Rest\n| `a.rs` | `x` |\n| `a.rs` | `y` |\n");
        walks(&Tree::of(&[("docs/reports/0007-house.md", &text)])).len()
    };
    assert_eq!(check("| `a.rs` | `x` |\n| `b.rs` | `y` |\n\n### Two\n| `a.rs` | `z` |"), 0);
    assert_eq!(check("| `a.rs` | `x` |\n| `b.rs` | `y` |\n| `a.rs` | `z` |"), 1);
}

#[test]
fn a_guide_to_code_that_does_not_exist_is_refused() {
    let code = ("src/a/b.rs", "fn go() {}\nconst MOST: u8 = 1;\n");
    let plain = ("docs/ARCHITECTURE.md", "# A\n## 10. Where to read\n| q | a |\n");
    let walls = ("docs/decisions/0022-walls-in-the-machine.md", "# D\n## Relays and SimplePush\n| q | a |\n");
    let found = |row: &str| {
        let text =
            format!("# H\n## Four walks\n{row}\n## Twenty questions\n| q | `src/a/` |\n## Rest\n| `src/no.rs` |\n");
        guides(&Tree::of(&[code, plain, walls, ("docs/reports/0007-house.md", &text)])).len()
    };
    for good in ["| `src/a/b.rs` (2) | `go`; `MOST` |", "| `a/b.rs` | `go` |", "| `src/a` | at `node.url`, `go` |"] {
        assert_eq!(found(good), 0, "{good}");
    }
    for bad in ["| `src/b.rs` | |", "| `src/a/b.rs` | `gone` |", "| where | `go` |", ""] {
        assert_eq!(found(bad), 1, "{bad}");
    }
    assert_eq!(guides(&Tree::of(&[])).len(), 4);
}

#[test]
fn a_number_counted_twice_and_one_that_does_not_exist_are_refused() {
    let one = ("shards/src/a.rs", "counters! {\n    counter a_b: \"Help.\",\n    gauge c: \"Help.\",\n}\n");
    let two = ("src/edge/a.rs", "counters! {\n    counter a_b: \"Help.\",\n}\n");
    let store = ("src/store/a.rs", "counters! {\n    counter a_b: \"Help.\",\n}\n");
    let document = ("docs/OPERATIONS.md", "`a_b`, `store_a_b`, `data_dir` and `--a_c`\n");
    let keys = ("src/config/listeners.rs", "    \"data_dir\" (\"data-dir\" \"DIR\")\n");
    assert_eq!(numbers(&Tree::of(&[one, store, document, keys])), Vec::<String>::new());
    assert_eq!(numbers(&Tree::of(&[one, two, store, document, keys])).len(), 1);
    assert_eq!(numbers(&Tree::of(&[one, document, keys])).len(), 1);
    assert_eq!(numbers(&Tree::of(&[])).len(), 1);
}

#[test]
fn a_path_of_a_machine_is_refused() {
    for path in MACHINE_PATHS {
        let text = format!("see {path}somewhere\n");
        assert_eq!(machine_paths(&Tree::of(&[("docs/a.md", text.as_str())])).len(), 1, "{path}");
    }
    assert_eq!(machine_paths(&Tree::of(&[("docs/a.md", "a/home/b and ./work/\n")])).len(), 0);
}
