//! Rules about Rust sources that neither the compiler nor clippy checks: sizes, words, `unwrap`, and the text of every
//! mail.

use super::tree::{File, Tree, code_of, has_word, module_dir, test_lines};

const FILE_LINES_MAX: usize = 600;
const LINE_COLUMNS_MAX: usize = 120;

/// Files allowed to be longer, with their length today: they may shrink, never grow.
const LONG_FILES: &[(&str, usize)] = &[];

/// Words that say a thing is unfinished or unwatched. Written in halves so that this file does not hold them.
const BANNED: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

/// Files of at most [`FILE_LINES_MAX`] lines.
pub fn file_lengths(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.ending(&[".rs", ".py", ".sh"]) {
        let lines = file.text.lines().count();
        let allowed = LONG_FILES.iter().find(|(path, _)| *path == file.path).map_or(FILE_LINES_MAX, |(_, max)| *max);
        if lines > allowed {
            complaints.push(format!("{}: {lines} lines, at most {allowed}: split it", file.path));
        }
    }
    complaints
}

/// Lines of at most [`LINE_COLUMNS_MAX`] columns, and only ASCII in Rust sources.
pub fn lines(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.ending(&[".rs", ".py", ".sh"]) {
        for (at, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > LINE_COLUMNS_MAX && !is_one_text(line) {
                complaints.push(format!("{}:{}: {columns} columns", file.path, at + 1));
            }
            if file.path.ends_with(".rs") && !line.is_ascii() {
                complaints.push(format!("{}:{}: not ASCII", file.path, at + 1));
            }
        }
    }
    complaints
}

/// A line is as long as the one literal in it: cut up, the text could not be searched for.
fn is_one_text(line: &str) -> bool {
    let code = code_of(line);
    if let Some((_, raw)) = code.split_once("r#\"") {
        return raw.len() > LINE_COLUMNS_MAX / 2;
    }
    let longest = code.replace("\\\"", "__").split('"').skip(1).step_by(2).map(str::len).max();
    longest.unwrap_or(0) > LINE_COLUMNS_MAX / 2
}

/// None of [`BANNED`].
pub fn banned_words(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.ending(&[".rs", ".py", ".sh", ".toml", "Dockerfile", ".ci/run", "bench/check"]) {
        for (at, line) in file.text.lines().enumerate() {
            for word in BANNED.iter().filter(|w| has_word(line, w)) {
                complaints.push(format!("{}:{}: says {word}", file.path, at + 1));
            }
        }
    }
    complaints
}

/// A test may be left out of `cargo test` only for a program that it needs, which its attribute names.
pub fn ignored_tests(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust() {
        for (at, line) in file.text.lines().enumerate() {
            if let Some((_, reason)) = line.split_once(concat!("#[ig", "nore"))
                && !(reason.starts_with(" = \"needs ") && reason.contains(": bench/check test\"]"))
            {
                complaints.push(format!("{}:{}: left out, and does not say what it needs", file.path, at + 1));
            }
        }
    }
    complaints
}

/// Every source file is the root of a crate, or a module of another file: the compiler says nothing of one that is not.
pub fn orphans(tree: &Tree) -> Vec<String> {
    let declared: Vec<String> = tree.rust().flat_map(|file| modules(tree, file)).collect();
    let is_module = |file: &File| declared.iter().any(|place| *place == file.path.replace("/mod.rs", ".rs"));
    let lost = tree.rust().filter(|file| !is_root(tree, &file.path) && !is_module(file));
    lost.map(|file| format!("{}: belongs to no crate", file.path)).collect()
}

/// The one file of a shard that hands commands of peers to the machine.
const ADMISSION: &str = "shards/runtime/src/reactor/admission.rs";

/// Commands reach the machine through [`ADMISSION`], which asks for each of them what it creates.
pub fn admissions(tree: &Tree) -> Vec<String> {
    let shipped = tree.rust().filter(|file| file.path.starts_with("shards/runtime/src/") && !tree.is_test(file));
    let others = shipped.filter(|file| file.path != ADMISSION && file.text.contains("Input::Command { conn"));
    others.map(|file| format!("{}: hands a command to the machine: only {ADMISSION} may", file.path)).collect()
}

/// The files that this one declares as modules, each without a directory of its own: `mod b;` in `a.rs` gives `a/b.rs`.
/// One with a path lies beside it: `#[path = "c/b.rs"]` gives `c/b.rs`.
fn modules<'a>(tree: &Tree, file: &'a File) -> impl Iterator<Item = String> + 'a {
    let beside = || format!("{}/", file.path.rsplit_once('/').map_or("", |(dir, _)| dir));
    let dir = if is_root(tree, &file.path) { beside() } else { module_dir(&file.path) };
    let declaration = |line: &'a str| line.rsplit_once("mod ").filter(|(before, _)| !before.contains('/'));
    let names = file.text.lines().filter_map(move |line| declaration(line)?.1.strip_suffix(';'));
    let paths = file.text.lines().filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
    names.map(move |name| format!("{dir}{name}.rs")).chain(paths.map(move |path| beside() + path))
}

/// Returns true if this is the root of a library or a program, or a target that a `Cargo.toml` lists.
fn is_root(tree: &Tree, path: &str) -> bool {
    let usual = ["build.rs", "src/lib.rs", "src/main.rs"]
        .iter()
        .any(|root| path == *root || path.ends_with(&format!("/{root}")));
    let lists = |manifest: &File| {
        let crate_dir = manifest.path.trim_end_matches("Cargo.toml");
        let target = path.strip_prefix(crate_dir).filter(|_| manifest.path.ends_with("Cargo.toml"));
        let found_by_cargo = |target: &str| {
            let name = target.strip_prefix("tests/").map(|name| name.trim_end_matches("/main.rs"));
            name.is_some_and(|name| !name.contains('/')) && !manifest.text.contains("autotests = false")
        };
        target.is_some_and(|t| manifest.text.contains(&format!("path = \"{t}\"")) || found_by_cargo(t))
    };
    usual || tree.ending(&["Cargo.toml"]).any(lists)
}

/// Files that may contain `unsafe`.
const UNSAFE_HOMES: [&str; 8] = [
    "shards/runtime/src/ring/mod.rs",
    "shards/runtime/src/poll/mod.rs",
    "shards/runtime/src/mailbox/mod.rs",
    "shards/hibernate/src/sys.rs",
    "shards/runtime/src/ledger/mod.rs",
    "src/wipe/src/lib.rs",
    "bench/src/fleet/ring/mod.rs",
    "bench/tests/allocations/counting.rs",
];

/// Lints of the workspace that only [`UNSAFE_HOMES`], or no file, may switch off.
pub fn lint_exceptions(tree: &Tree) -> Vec<String> {
    let (with_unsafe, long) = (concat!("allow(", "unsafe_code"), concat!("allow(", "clippy::too_many_lines"));
    let mut complaints = Vec::new();
    for file in tree.rust() {
        let at_home = UNSAFE_HOMES.contains(&file.path.as_str());
        if file.text.contains(long) || (file.text.contains(with_unsafe) && !at_home) {
            complaints.push(format!("{}: switches off a lint of the workspace", file.path));
        }
    }
    complaints
}

/// Returns true if this line or one of the `above` lines before it holds one of these texts.
fn explained(lines: &[&str], at: usize, above: usize, texts: &[&str]) -> bool {
    lines[at.saturating_sub(above)..=at].iter().any(|line| texts.iter().any(|t| line.contains(t)))
}

/// Parts of the standard library that the machine may name: none reads a clock, draws at random or does I/O.
const PURE_STD: &str = "borrow cmp collections fmt hash hint iter marker mem num ops slice str sync::Arc sync::atomic";

/// Walls within a crate: shipped code in these folders does not have these words.
const WALLS: &[(&[&str], &[&str])] = &[
    (&["shards/machine/src/shard/components/"], &["ShardMachine", "composer"]),
    (&["src/store/src/embedded/"], &["tokio"]),
];

/// The machine names [`PURE_STD`] alone of the standard library, and [`WALLS`] stand. All other walls are between
/// crates, where the compiler has them.
pub fn walls(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust().filter(|f| shipped(tree, f)) {
        let is_pure = file.path.starts_with("shards/machine/");
        let walls = WALLS.iter().filter(|(folders, _)| folders.iter().any(|folder| file.path.starts_with(folder)));
        let refused: Vec<&str> = walls.flat_map(|(_, words)| *words).copied().collect();
        let in_test = test_lines(&file.text);
        for (at, line) in file.text.lines().enumerate().filter(|(at, _)| !in_test[*at]) {
            let code = code_of(line);
            let impure = is_pure && code.split("std::").skip(1).any(|rest| !is_pure_std(rest));
            if impure || refused.iter().any(|word| has_word(code, word)) {
                complaints.push(format!("{}:{}: must not use {}", file.path, at + 1, code.trim()));
            }
        }
    }
    complaints
}

/// Returns true if the rest of a path, behind `std::`, is of [`PURE_STD`], and no map with random hashing.
fn is_pure_std(rest: &str) -> bool {
    let has_random_order = ["HashMap", "HashSet"].iter().any(|map| has_word(rest, map));
    PURE_STD.split(' ').any(|part| rest.starts_with(part)) && !has_random_order
}

/// `unwrap` and `expect` in shipped code only near an `Invariant:` comment.
pub fn unwraps(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust().filter(|f| shipped(tree, f)) {
        let lines: Vec<&str> = file.text.lines().collect();
        let in_test = test_lines(&file.text);
        for (at, line) in lines.iter().enumerate().filter(|(at, _)| !in_test[*at]) {
            let code = code_of(line);
            if !code.contains(".unwrap()") && !code.contains(".expect(") {
                continue;
            }
            if !explained(&lines, at, 6, &["Invariant:"]) {
                complaints.push(format!("{}:{}: unwrap or expect without // Invariant:", file.path, at + 1));
            }
        }
    }
    complaints
}

/// Public items have a doc comment, and files a header. `missing_docs` of the compiler also asks for fields and
/// variants, whose names say what they are, so it stays off; methods are left to the reader.
pub fn documented(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust().filter(|f| !tree.is_test(f)) {
        let (lines, in_test) = (file.text.lines().collect::<Vec<_>>(), test_lines(&file.text));
        for (at, line) in lines.iter().enumerate().filter(|(at, _)| !in_test[*at]) {
            let Some(item) = line.strip_prefix("pub ") else { continue };
            let named = ITEMS.iter().any(|word| item.starts_with(word));
            let above = lines[..at].iter().rev().find(|line| !line.trim_start().starts_with("#["));
            if named && !above.is_some_and(|line| line.trim_start().starts_with("///")) {
                complaints.push(format!("{}:{}: public and not documented", file.path, at + 1));
            }
        }
        if !file.text.starts_with("//!") {
            complaints.push(format!("{}: has no header", file.path));
        }
    }
    complaints
}

/// Words with which an item begins that must be documented.
const ITEMS: &[&str] = &["fn ", "const ", "async fn ", "unsafe fn ", "struct ", "enum ", "trait ", "type ", "static "];

/// Code that runs in a server: not a test, not a load tool.
fn shipped(tree: &Tree, file: &File) -> bool {
    (file.path.starts_with("src/") || file.path.starts_with("shards/")) && !tree.is_test(file)
}

/// Every variant of `enum Mail` documents its recoverer.
pub fn mail_recoverers(tree: &Tree) -> Vec<String> {
    let path = "shards/machine/src/shard/mail.rs";
    let Some(file) = tree.get(path) else { return vec![format!("{path} is missing")] };
    let Some((_, body)) = file.text.split_once("pub enum Mail {\n") else {
        return vec![format!("{path}: there is no pub enum Mail")];
    };
    let mut complaints = Vec::new();
    let mut documented = false;
    let mut variants = 0;
    for line in body.lines().take_while(|l| *l != "}") {
        let Some(inner) = line.strip_prefix("    ").filter(|l| !l.starts_with(' ')) else { continue };
        if inner.starts_with("///") {
            documented |= inner.contains("If dropped:");
        } else if inner.starts_with(|c: char| c.is_ascii_uppercase()) {
            variants += 1;
            if !documented {
                complaints.push(format!("{path}: {inner} does not say \"If dropped:\""));
            }
            documented = false;
        }
    }
    if variants == 0 {
        complaints.push(format!("{path}: enum Mail has no variants"));
    }
    complaints
}

#[test]
fn a_file_that_is_too_long_is_refused() {
    let text = "\n".repeat(FILE_LINES_MAX + 1);
    assert_eq!(file_lengths(&Tree::of(&[("src/a.rs", text.as_str()), ("src/b.rs", "\n")])).len(), 1);
}

#[test]
fn a_wide_line_and_a_letter_beyond_ascii_are_refused() {
    let wide = "x".repeat(LINE_COLUMNS_MAX + 1);
    assert_eq!(
        lines(&Tree::of(&[("src/a.rs", wide.as_str()), ("src/b.rs", "// \u{e9}"), ("a.py", "# \u{e9}")])).len(),
        2
    );
}

#[test]
fn every_banned_word_is_refused() {
    for word in BANNED {
        let line = format!("    // {word} later");
        assert_eq!(banned_words(&Tree::of(&[("src/a.rs", line.as_str())])).len(), 1, "{word}");
    }
    assert_eq!(banned_words(&Tree::of(&[("src/a.rs", "let methods = 1;")])).len(), 0);
}

#[test]
fn a_test_that_is_left_out_without_a_reason_is_refused() {
    let found = |reason: &str| {
        let text = format!("#[test]\n{}{reason}]\nfn a() {{}}\n", concat!("#[ig", "nore"));
        ignored_tests(&Tree::of(&[("src/a.rs", text.as_str())])).len()
    };
    assert_eq!(found(" = \"needs Cassandra: bench/check test\""), 0);
    assert_eq!([found(""), found(" = \"slow\""), found(" = \"needs Cassandra\"")], [1; 3]);
}

#[test]
fn a_file_that_no_crate_contains_is_refused() {
    let manifest = ("a/Cargo.toml", "autotests = false\n[[test]]\npath = \"tests/all.rs\"\n");
    let sources = |root: &'static str| [manifest, ("a/tests/all.rs", root), ("a/tests/one.rs", "mod two;\n")];
    let found = |root, more: &str| orphans(&Tree::of(&[&sources(root)[..], &[(more, "")]].concat()));
    assert_eq!(found("mod one;\n", "a/tests/one/two.rs"), [""; 0]);
    assert_eq!(found("pub mod one;\n", "a/tests/one/two/mod.rs"), [""; 0]);
    assert_eq!(found("mod one;\n", "a/tests/two.rs"), ["a/tests/two.rs: belongs to no crate"]);
    assert_eq!(found("// mod one;\n", "a/tests/one/two.rs"), ["a/tests/one.rs: belongs to no crate"]);
    assert_eq!(found("mod one;\n", "b/tests/free.rs").len(), 1);
    let with_path = "mod one;\n#[path = \"one/absent.rs\"]\nmod two;\n";
    assert_eq!(found(with_path, "a/tests/one/absent.rs"), [""; 0]);
    let free = [("b/Cargo.toml", ""), ("b/tests/free.rs", ""), ("b/tests/more/main.rs", ""), ("b/src/lib.rs", "")];
    let free = Tree::of(&free);
    assert_eq!(orphans(&free), [""; 0]);
}

#[test]
fn an_unwrap_without_an_invariant_is_refused() {
    let bare = "fn f() {\n    g().unwrap();\n}\n";
    assert_eq!(unwraps(&Tree::of(&[("src/a.rs", bare)])).len(), 1);
    assert_eq!(unwraps(&Tree::of(&[("shards/runtime/src/a.rs", "let a = b.expect(\"c\");\n")])).len(), 1);
    assert_eq!(unwraps(&Tree::of(&[("bench/src/a.rs", bare)])).len(), 0);
    let tested = format!("#[cfg(test)]\nmod tests {{\n{bare}}}\n");
    assert_eq!(unwraps(&Tree::of(&[("src/a.rs", tested.as_str())])).len(), 0);
    let reasoned = "fn f() {\n    // Invariant: g checked it.\n    g().unwrap();\n}\n";
    assert_eq!(unwraps(&Tree::of(&[("src/a.rs", reasoned)])).len(), 0);
}

#[test]
fn a_public_item_without_a_comment_is_refused() {
    let found = |text: &str| documented(&Tree::of(&[("src/a.rs", text)])).len();
    assert_eq!(found("//! A.\n\n/// A.\n#[derive(Debug)]\npub struct A {\n    pub b: u8,\n}\n"), 0);
    assert_eq!(found("//! A.\n\npub struct A;\n\npub const fn b() {}\n"), 2);
    assert_eq!(found("use std::fs;\n"), 1);
}

#[test]
fn a_command_that_was_not_admitted_is_refused() {
    let text = "self.inputs.push_back(Input::Command { conn, command });\n";
    let found = |path| admissions(&Tree::of(&[(path, text)])).len();
    assert_eq!(found("shards/runtime/src/reactor/recv.rs"), 1);
    assert_eq!([found(ADMISSION), found("shards/runtime/src/reactor/tests/one.rs")], [0; 2]);
}

#[test]
fn an_impure_machine_and_a_broken_wall_are_refused() {
    let found = |path: &str, text: &str| walls(&Tree::of(&[(path, text)])).len();
    let machine = "shards/machine/src/shard/a.rs";
    for bad in [
        "let now = std::time::Instant::now();\n",
        "use std::{mem, fs};\n",
        "use std::sync::Mutex;\n",
        "use std::collections::{BTreeMap, HashMap};\n",
    ] {
        assert_eq!([found(machine, bad), found("shards/runtime/src/a.rs", bad)], [1, 0], "{bad}");
    }
    assert_eq!(found(machine, "use std::sync::Arc;\n#[cfg(test)]\nuse std::fs;\n"), 0);
    let wall = "fn f(machine: &mut ShardMachine) {}\n";
    assert_eq!([found("shards/machine/src/shard/components/a.rs", wall), found(machine, wall)], [1, 0]);
    let runtime = "tokio::spawn(f());\n";
    assert_eq!([found("src/store/src/embedded/a.rs", runtime), found("src/store/src/scylla/a.rs", runtime)], [1, 0]);
}

#[test]
fn a_mail_without_a_recoverer_is_refused() {
    let path = "shards/machine/src/shard/mail.rs";
    let first = "    /// If dropped: sent again.\n    A {\n        /// Field.\n        b: u8,\n    },\n";
    let text = format!("pub enum Mail {{\n{first}    /// Nothing.\n    B(u8),\n}}\n");
    assert_eq!(mail_recoverers(&Tree::of(&[(path, text.as_str())])).len(), 1);
    assert_eq!(mail_recoverers(&Tree::of(&[(path, "pub enum Mail {\n}\n")])).len(), 1);
    assert_eq!(mail_recoverers(&Tree::of(&[])).len(), 1);
}

#[test]
fn a_lint_that_is_switched_off_elsewhere_is_refused() {
    let (home, other) = ("shards/runtime/src/ring/mod.rs", "shards/machine/src/shard/acks.rs");
    let text = concat!("#![allow(", "unsafe_code)]\n");
    assert_eq!(lint_exceptions(&Tree::of(&[(home, text), (other, "\n")])), [""; 0]);
    assert_eq!(lint_exceptions(&Tree::of(&[(other, text)])).len(), 1);
    assert_eq!(lint_exceptions(&Tree::of(&[(home, concat!("#[allow(", "clippy::too_many_lines)]\n"))])).len(), 1);
}
