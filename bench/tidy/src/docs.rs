//! Rules about documents: required mentions, and the existence of the things that they name.

use config::keys::KEYS;

use super::tree::{Tree, has_word};

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
    let shown = tree.rust().filter(|f| f.path.starts_with("src/control_plane/src/metrics") && !tree.is_test(f));
    let shown = shown
        .flat_map(|f| ["encode_descriptor(", "gauge(", "labelled("].map(|call| first_texts(&f.text, call)))
        .flatten();
    known.extend(shown.map(|name| (name.to_owned(), String::new())));
    known.extend(tree.rust().filter(|f| !tree.is_test(f)).flat_map(|f| histograms(&f.text)));
    let conditions = tree.rust().filter(|f| f.path == "src/server/src/conditions.rs");
    known.extend(
        conditions.flat_map(|f| first_texts(&f.text, "condition(")).map(|name| (name.to_owned(), String::new())),
    );
    let document = "docs/OPERATIONS.md";
    let Some(text) = tree.get(document) else { return vec![format!("{document} is missing")] };
    for word in quoted(&text.text).filter(|w| is_number_name(w)) {
        let key = KEYS.iter().any(|key| key.name == word);
        if !key && !known.iter().any(|(known, _)| known == word) {
            complaints.push(format!("{document}: there is no number or key {word}"));
        }
    }
    if known.is_empty() {
        complaints.push("nothing is counted".into());
    }
    complaints
}

/// Names of histograms.
fn histograms(text: &str) -> Vec<(String, String)> {
    let named = text.split("HistogramMeaning {").skip(1).filter_map(|rest| rest.split('"').nth(1));
    named.map(|name| (name.to_owned(), String::new())).collect()
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
fn a_number_counted_twice_and_one_that_does_not_exist_are_refused() {
    let one = ("shards/runtime/src/a.rs", "counters! {\n    counter a_b: \"Help.\",\n    gauge c: \"Help.\",\n}\n");
    let two = ("src/edge/src/a.rs", "counters! {\n    counter a_b: \"Help.\",\n}\n");
    let store = ("src/store/a.rs", "counters! {\n    counter a_b: \"Help.\",\n}\n");
    let document = ("docs/OPERATIONS.md", "`a_b`, `store_a_b`, `data_dir` and `--a_c`\n");
    assert_eq!(numbers(&Tree::of(&[one, store, document])), Vec::<String>::new());
    assert_eq!(numbers(&Tree::of(&[one, two, store, document])).len(), 1);
    assert_eq!(numbers(&Tree::of(&[one, document])).len(), 1);
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
