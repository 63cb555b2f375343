//! The text files of the repository, read once per check.

use std::cell::OnceCell;
use std::fs;
use std::path::Path;

/// Text file of the repository.
pub struct File {
    /// Relative to the root of the repository, with `/`.
    pub path: String,
    pub text: String,
}

/// All files of the repository, by path.
pub struct Tree {
    pub files: Vec<File>,
    /// Paths that exist but are no text, for links.
    pub others: Vec<String>,
    /// Result of [`Tree::find_test_modules`].
    test_modules: OnceCell<Vec<String>>,
}

/// Directories that are not part of the repository, and files no human writes.
const SKIPPED: &[&str] =
    &["target", "murre-data", ".git", "__pycache__", ".venv", ".jars", "node_modules", "Cargo.lock", "LICENSE"];

impl Tree {
    /// Reads the repository that this crate was built from.
    pub fn load() -> Tree {
        let mut tree = Tree { files: Vec::new(), others: Vec::new(), test_modules: OnceCell::new() };
        tree.walk(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")), "");
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(tree.files.len() > 30, "the repository was not found: {} files", tree.files.len());
        tree
    }

    /// A tree of samples, for the tests of checks.
    pub fn of(samples: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File { path: (*path).into(), text: (*text).into() };
        Tree { files: samples.iter().map(file).collect(), others: Vec::new(), test_modules: OnceCell::new() }
    }

    fn walk(&mut self, dir: &Path, prefix: &str) {
        for entry in fs::read_dir(dir).expect("the repository can be listed") {
            let entry = entry.expect("the repository can be listed");
            let name = entry.file_name().into_string().expect("file names are UTF-8");
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            if SKIPPED.contains(&name.as_str()) {
                self.others.push(path);
                continue;
            }
            let kind = entry.file_type().expect("a file has a type");
            if kind.is_dir() {
                self.others.push(path.clone());
                self.walk(&entry.path(), &path);
                continue;
            }
            match fs::read(entry.path()).map(String::from_utf8) {
                Ok(Ok(text)) => self.files.push(File { path, text }),
                _ => self.others.push(path),
            }
        }
    }

    /// The file at exactly this path.
    pub fn get(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|f| f.path == path)
    }

    pub fn exists(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        path.is_empty() || self.get(path).is_some() || self.others.iter().any(|o| o == path)
    }

    /// Files whose names end with one of these.
    pub fn ending<'a>(&'a self, ends: &'a [&'a str]) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |f| ends.iter().any(|e| f.path.ends_with(e)))
    }

    pub fn rust(&self) -> impl Iterator<Item = &File> {
        self.ending(&[".rs"])
    }

    /// Returns true if a Rust file is compiled for tests only: declared under `#[cfg(test)]`, or below such a module.
    pub fn is_test(&self, file: &File) -> bool {
        let in_test_dir = file.path.split('/').any(|part| part == "tests" || part == "tests.rs");
        let modules = self.test_modules.get_or_init(|| self.find_test_modules());
        in_test_dir || modules.iter().any(|m| file.path == format!("{m}.rs") || under(&file.path, m))
    }

    /// Paths without extension of modules declared under `#[cfg(test)]`, as `#[path]` places them.
    fn find_test_modules(&self) -> Vec<String> {
        let mut modules = Vec::new();
        for file in self.rust() {
            let lines: Vec<&str> = file.text.lines().map(str::trim).collect();
            for (at, _) in lines.iter().enumerate().filter(|(_, line)| is_test_cfg(line)) {
                let place = lines.get(at + 1).and_then(|l| l.strip_prefix("#[path = \"")?.strip_suffix(".rs\"]"));
                if let Some(place) = place {
                    let dir = file.path.rsplit_once('/').map_or("", |(dir, _)| dir);
                    modules.push(format!("{dir}/{place}"));
                }
                let declared = lines.get(at + 1).map_or("", |l| l.trim_start_matches("pub(crate) "));
                let name = declared.trim_start_matches("pub ").strip_prefix("mod ").and_then(|n| n.strip_suffix(';'));
                if let Some(name) = name {
                    modules.push(format!("{}{name}", module_dir(&file.path)));
                }
            }
        }
        modules
    }
}

/// `src/a/mod.rs` -> `src/a/`, `src/a.rs` -> `src/a/`, `src/lib.rs` -> `src/`.
pub fn module_dir(path: &str) -> String {
    let stem = path.trim_end_matches(".rs");
    match stem.rsplit_once('/') {
        Some((dir, "mod" | "lib" | "main")) => format!("{dir}/"),
        _ => format!("{stem}/"),
    }
}

fn under(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns true if the item behind this line is compiled for tests only.
pub fn is_test_cfg(line: &str) -> bool {
    ["#[cfg(test)]", "#[cfg(all(test", "#[cfg(any(test"].iter().any(|start| line.starts_with(start))
}

/// Marks for every line of a Rust text whether it is inside a `#[cfg(test)]` item. Trusts rustfmt's indentation.
pub fn test_lines(text: &str) -> Vec<bool> {
    let lines: Vec<&str> = text.lines().collect();
    let mut marks = vec![false; lines.len()];
    let mut at = 0;
    while at < lines.len() {
        if !is_test_cfg(lines[at].trim()) {
            at += 1;
            continue;
        }
        let indent = lines[at].len() - lines[at].trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let mut end = at + 1;
        while end < lines.len() && lines[end] != close && !ends_on_its_own_line(lines[end], indent) {
            end += 1;
        }
        let end = (end + 1).min(lines.len());
        marks[at..end].fill(true);
        at = end;
    }
    marks
}

/// An item without a body of its own lines: `mod x;`, `use a;`, `const A: B = C;`.
fn ends_on_its_own_line(line: &str, indent: usize) -> bool {
    line.len() - line.trim_start().len() == indent && (line.ends_with(';') || line.ends_with("{}"))
}

/// Returns true if `word` stands in `line` with no letter, digit or underscore next to it.
pub fn has_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

/// The part of a line that is code: nothing of a comment line, nothing behind ` // `.
pub fn code_of(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return "";
    }
    line.split(" // ").next().unwrap_or(line)
}

#[test]
fn test_code_is_told_from_shipped_code() {
    let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n#[cfg(test)]\nmod d;\nfn e() {}\n";
    assert_eq!(test_lines(text), [false, true, true, true, true, false, true, true, false]);
    let tree = Tree::of(&[
        ("src/a/mod.rs", "#[cfg(test)]\nmod laws;\nmod real;\n"),
        ("src/a/laws.rs", ""),
        ("src/a/real.rs", ""),
        ("src/a/laws/deep.rs", ""),
        ("src/b/tests/x.rs", ""),
        ("src/c.rs", "#[cfg(test)]\n#[path = \"c_tests.rs\"]\nmod tests;\n"),
        ("src/c_tests.rs", ""),
    ]);
    let tests: Vec<&str> = tree.rust().filter(|f| tree.is_test(f)).map(|f| f.path.as_str()).collect();
    assert_eq!(tests, ["src/a/laws.rs", "src/a/laws/deep.rs", "src/b/tests/x.rs", "src/c_tests.rs"]);
}

#[test]
fn words_are_whole() {
    assert!(has_word("an unsafe block", "unsafe"));
    assert!(!has_word("deny(unsafe_code)", "unsafe"));
    assert_eq!(code_of("let a = 1; // why"), "let a = 1;");
    assert_eq!(code_of("    /// unsafe"), "");
}
