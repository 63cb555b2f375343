//! Rules about Rust sources: sizes, words, `unsafe`, `unwrap`, and what every mail must say.

use super::tree::{File, Tree, code_of, has_word, test_lines};

const FILE_LINES_MAX: usize = 1_000;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_COLUMNS_MAX: usize = 120;

/// Files allowed to be longer, with their length today: they may shrink, never grow.
const LONG_FILES: &[(&str, usize)] = &[];

/// Functions allowed to be longer, as (file, function, lines today): they may shrink, never grow.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[];

/// Words that say a thing is unfinished or unwatched. Written in halves so that this file does not hold them.
const BANNED: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("db", "g!"),
    concat!("to", "do!"),
    concat!("unimple", "mented!"),
    concat!("#[ig", "nore"),
];

/// Where `unsafe` may stand.
const UNSAFE_HOMES: &[&str] = &[
    "shards/src/ring/",
    "shards/src/mailbox/",
    "shards/src/ledger/",
    "bench/src/fleet/ring/",
    "bench/tests/allocations/counting.rs",
];

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

/// Functions of at most [`FUNCTION_LINES_MAX`] lines, signature included.
pub fn function_lengths(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust() {
        for (name, line, length) in functions(&file.text) {
            let known = LONG_FUNCTIONS.iter().find(|(path, known, _)| *path == file.path && *known == name);
            let allowed = known.map_or(FUNCTION_LINES_MAX, |(_, _, max)| *max);
            if length > allowed {
                complaints.push(format!("{}:{line}: fn {name} has {length} lines, at most {allowed}", file.path));
            }
        }
    }
    complaints
}

/// Every function with a body: name, first line, number of lines. Trusts rustfmt's indentation.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        if line.ends_with(';') || line.ends_with('}') {
            continue;
        }
        // The next line at this depth that starts with a brace closes the body; one that ends with ; was a declaration.
        let ends = |l: &&str| indent_of(l) == indent_of(line) && (l.trim_start().starts_with('}') || l.ends_with(';'));
        if let Some(more) = lines[at + 1..].iter().position(ends)
            && !lines[at + 1 + more].ends_with(';')
        {
            found.push((name, at + 1, more + 2));
        }
    }
    found
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn function_name(line: &str) -> Option<String> {
    let mut rest = line.trim_start();
    if let Some(visible) = rest.strip_prefix("pub") {
        rest = visible.trim_start();
        if let Some(scoped) = rest.strip_prefix('(') {
            rest = scoped.split_once(')')?.1.trim_start();
        }
    }
    for word in ["const ", "async ", "unsafe ", "extern \"C\" "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    Some(name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
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
            for word in BANNED.iter().filter(|w| banned_in(line, w)) {
                complaints.push(format!("{}:{}: says {word}", file.path, at + 1));
            }
        }
    }
    complaints
}

/// Macros and attributes are found as they are, words only when they stand alone.
fn banned_in(line: &str, word: &str) -> bool {
    if word.starts_with('#') { line.contains(word) } else { has_word(line, word) }
}

/// `unsafe` in code only in [`UNSAFE_HOMES`], and there never without a SAFETY comment in the five lines above.
pub fn unsafe_blocks(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust() {
        let lines: Vec<&str> = file.text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            if !has_word(without_strings(code_of(line)).as_str(), "unsafe") {
                continue;
            }
            if !UNSAFE_HOMES.iter().any(|home| file.path.starts_with(home)) {
                complaints.push(format!("{}:{}: unsafe does not belong here", file.path, at + 1));
            } else if !explained(&lines, at, 5, &["SAFETY:"]) && !explained(&lines, at, 15, &["# Safety"]) {
                complaints.push(format!("{}:{}: unsafe without // SAFETY: above it", file.path, at + 1));
            }
        }
    }
    complaints
}

/// Whether this line or one of the `above` lines before it holds one of these texts.
fn explained(lines: &[&str], at: usize, above: usize, texts: &[&str]) -> bool {
    lines[at.saturating_sub(above)..=at].iter().any(|line| texts.iter().any(|t| line.contains(t)))
}

/// A line with the contents of its string literals left out.
fn without_strings(line: &str) -> String {
    line.replace("\\\"", "").split('"').step_by(2).collect::<Vec<_>>().join("\"\"")
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

/// Code that runs in a server: not a test, not a load tool.
fn shipped(tree: &Tree, file: &File) -> bool {
    (file.path.starts_with("src/") || file.path.starts_with("shards/src/")) && !tree.is_test(file)
}

/// Every variant of `enum Mail` documents its recoverer.
pub fn mail_recoverers(tree: &Tree) -> Vec<String> {
    let path = "shards/src/machine/mail.rs";
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
fn a_function_that_is_too_long_is_refused() {
    let body = |lines: usize| {
        format!(
            "impl A {{\n    pub(crate) const fn f(\n        a: u8,\n    ) {{\n{}    }}\n}}\n",
            "        g();\n".repeat(lines)
        )
    };
    assert_eq!(functions(&body(1)), [("f".to_string(), 2, 5)]);
    let (short, long) = (body(FUNCTION_LINES_MAX - 4), body(FUNCTION_LINES_MAX - 3));
    assert_eq!(function_lengths(&Tree::of(&[("src/a.rs", short.as_str())])).len(), 0);
    assert_eq!(function_lengths(&Tree::of(&[("src/a.rs", long.as_str())])).len(), 1);
}

#[test]
fn a_declaration_is_no_function_body() {
    assert_eq!(
        functions("trait A {\n    fn f(\n        a: u8,\n    );\n}\nfn g() {\n    h();\n}\n"),
        [("g".to_string(), 6, 3)]
    );
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
fn unsafe_elsewhere_or_unexplained_is_refused() {
    let explained = "// SAFETY: the ring owns it.\nunsafe { f() }\n";
    assert_eq!(unsafe_blocks(&Tree::of(&[("shards/src/ring/a.rs", explained)])).len(), 0);
    assert_eq!(unsafe_blocks(&Tree::of(&[("shards/src/machine/a.rs", explained)])).len(), 1);
    assert_eq!(unsafe_blocks(&Tree::of(&[("shards/src/ring/a.rs", "unsafe { f() }\n")])).len(), 1);
    let far = format!("// SAFETY: far away.\n{}unsafe {{ f() }}\n", "g();\n".repeat(6));
    assert_eq!(unsafe_blocks(&Tree::of(&[("shards/src/ring/a.rs", far.as_str())])).len(), 1);
    assert_eq!(unsafe_blocks(&Tree::of(&[("src/a.rs", "let a = \"unsafe\";\n")])).len(), 0);
}

#[test]
fn an_unwrap_without_an_invariant_is_refused() {
    let bare = "fn f() {\n    g().unwrap();\n}\n";
    assert_eq!(unwraps(&Tree::of(&[("src/a.rs", bare)])).len(), 1);
    assert_eq!(unwraps(&Tree::of(&[("shards/src/a.rs", "let a = b.expect(\"c\");\n")])).len(), 1);
    assert_eq!(unwraps(&Tree::of(&[("bench/src/a.rs", bare)])).len(), 0);
    let tested = format!("#[cfg(test)]\nmod tests {{\n{bare}}}\n");
    assert_eq!(unwraps(&Tree::of(&[("src/a.rs", tested.as_str())])).len(), 0);
    let reasoned = "fn f() {\n    // Invariant: g checked it.\n    g().unwrap();\n}\n";
    assert_eq!(unwraps(&Tree::of(&[("src/a.rs", reasoned)])).len(), 0);
}

#[test]
fn a_mail_without_a_recoverer_is_refused() {
    let path = "shards/src/machine/mail.rs";
    let first = "    /// If dropped: sent again.\n    A {\n        /// Field.\n        b: u8,\n    },\n";
    let text = format!("pub enum Mail {{\n{first}    /// Nothing.\n    B(u8),\n}}\n");
    assert_eq!(mail_recoverers(&Tree::of(&[(path, text.as_str())])).len(), 1);
    assert_eq!(mail_recoverers(&Tree::of(&[(path, "pub enum Mail {\n}\n")])).len(), 1);
    assert_eq!(mail_recoverers(&Tree::of(&[])).len(), 1);
}
