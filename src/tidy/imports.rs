//! Allowed imports (docs/ARCHITECTURE.md, "Imports"). Paths are resolved, so that neither braces nor `super`
//! hide an edge.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{File, Tree, code_of, test_lines};

/// One row: files under these prefixes must not use paths under these, unless they are under an exception.
struct Row {
    files: &'static [&'static str],
    refused: &'static [&'static str],
    except: &'static [&'static str],
}

/// Paths are written from the crate that owns the file: `murre::...` for the root package, `machine::...`.
/// Edges between crates that are not listed in a `Cargo.toml` are refused by the compiler.
const TABLE: &[Row] = &[
    Row {
        files: &["shards/machine/"],
        refused: &[
            "std::net",
            "std::fs",
            "std::io",
            "std::thread",
            "std::time",
            "std::env",
            "std::process",
            "std::sync",
            "std::collections::HashMap",
            "std::collections::HashSet",
        ],
        except: &["std::sync::Arc", "std::sync::atomic"],
    },
    Row { files: &["shards/machine/src/shard/"], refused: &["std::sync::atomic"], except: &[] },
    Row {
        files: &["src/client/"],
        refused: &["store", "murre::edge", "murre::config", "shards", "tokio", "hyper", "axum"],
        except: &[],
    },
    Row {
        files: &["shards/machine/src/shard/components/"],
        refused: &["machine::ShardMachine", "machine::shard::composer", "machine::shard::ShardMachine"],
        except: &[],
    },
    Row {
        files: &["shards/src/mailbox/"],
        refused: &["machine", "shards::ports", "shards::ring", "shards::ledger", "shards::reactor"],
        except: &[
            "machine::Carried",
            "machine::Mail",
            "machine::ids",
            "machine::limits",
            "shards::ring::Origin",
            "shards::ring::TableAddress",
            "shards::ring::eventfd",
        ],
    },
    Row { files: &["src/protocol/src/wire/"], refused: &["protocol::webpush"], except: &[] },
    Row {
        files: &["src/protocol/"],
        refused: &["std::fs", "std::thread", "std::env", "std::process", "std::time"],
        except: &[],
    },
    Row {
        files: &["src/tls/"],
        refused: &[
            "std::net",
            "std::fs",
            "std::thread",
            "std::env",
            "std::process",
            "machine",
            "shards::ring",
            "shards::mailbox",
            "shards::ledger",
            "shards::reactor",
        ],
        except: &[],
    },
    Row {
        files: &["src/edge/"],
        refused: &[
            "store",
            "murre::control_plane",
            "murre::node",
            "murre::commands",
            "shards::ring",
            "shards::mailbox",
            "shards::ledger",
        ],
        except: &[],
    },
    Row { files: &["src/store/"], refused: &["shards::ring", "shards::reactor", "shards::ledger"], except: &[] },
    Row {
        files: &[
            "src/edge/",
            "src/store/src/lib.rs",
            "src/store/src/model.rs",
            "src/store/src/embedded/",
            "src/config/",
            "src/node/",
        ],
        refused: &["tokio", "tokio_rustls", "axum", "hyper", "hyper_util", "http_body_util", "rustls"],
        except: &[],
    },
    Row {
        files: &["src/edge/", "src/control_plane/", "src/config/", "src/client/"],
        refused: &["murre::commands", "murre::node"],
        except: &[],
    },
    Row { files: &["src/node/"], refused: &["murre::commands"], except: &[] },
];

/// Every path that shipped code names, against [`TABLE`].
pub fn table(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for file in tree.rust().filter(|f| !tree.is_test(f)) {
        let used = paths(file);
        for row in TABLE.iter().filter(|row| row.files.iter().any(|prefix| file.path.starts_with(prefix))) {
            for (line, path) in &used {
                let refused = row.refused.iter().any(|r| is_under(path, r));
                if refused && !row.except.iter().any(|e| is_under(path, e)) {
                    complaints.push(format!("{}:{line}: must not use {path}", file.path));
                }
            }
        }
    }
    complaints.sort();
    complaints.dedup();
    complaints
}

/// Files that import each other in a circle by `use`; paths inside expressions are not followed.
pub fn circles(tree: &Tree) -> Vec<String> {
    in_circles(tree).iter().map(|path| format!("{path}: imports itself over other files")).collect()
}

/// Paths of the files that import themselves over others.
fn in_circles(tree: &Tree) -> Vec<&str> {
    // Nothing imports the root of a binary, and its name is that of the library beside it.
    let is_linked =
        |file: &&File| !tree.is_test(file) && file.path.contains("src/") && !file.path.ends_with("/main.rs");
    let files: Vec<&File> = tree.rust().filter(is_linked).collect();
    let mut modules: BTreeMap<String, usize> =
        files.iter().enumerate().map(|(at, file)| (module_of(&file.path).join("::"), at)).collect();
    for (at, file) in files.iter().enumerate() {
        // An exported macro is named as an item of the root of its crate, wherever it is.
        let root = module_of(&file.path).swap_remove(0);
        modules.extend(exported_macros(&file.text).map(|name| (format!("{root}::{name}"), at)));
    }
    let imports: Vec<BTreeSet<usize>> = files.iter().map(|file| imported_files(file, &modules)).collect();
    let in_circle = |at: usize| {
        let (mut seen, mut next) = (BTreeSet::new(), imports[at].clone());
        while let Some(other) = next.pop_first() {
            if seen.insert(other) {
                next.extend(&imports[other]);
            }
        }
        seen.contains(&at)
    };
    (0..files.len()).filter(|at| in_circle(*at)).map(|at| files[at].path.as_str()).collect()
}

fn exported_macros(text: &str) -> impl Iterator<Item = &str> {
    let exported = text.split("#[macro_export]\nmacro_rules! ").skip(1);
    exported.map(|rest| rest.split(' ').next().unwrap_or(rest))
}

/// The other files that a file imports from, as numbers of `modules`.
fn imported_files(file: &File, modules: &BTreeMap<String, usize>) -> BTreeSet<usize> {
    let own = module_of(&file.path).join("::");
    let nearest = |path: &str| {
        let mut ends = [path.len()].into_iter().chain(path.rmatch_indices("::").map(|(end, _)| end));
        ends.find_map(|end| modules.get(&path[..end]).copied())
    };
    let mut found = BTreeSet::new();
    for (_, path) in uses(file) {
        // A plain path may name a module below this one.
        let is_plain = !["crate", "self", "super"].contains(&path.split("::").next().unwrap_or_default());
        let below = nearest(&format!("{own}::{path}")).filter(|at| is_plain && modules.get(&own) != Some(at));
        found.extend(below.or_else(|| nearest(&absolute(&file.path, &path))));
    }
    found.retain(|at| modules.get(&own) != Some(at));
    found
}

fn is_under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Line and absolute path of everything with `::` in it, and of every plain `use`.
fn paths(file: &File) -> Vec<(usize, String)> {
    let mut found = imports(file);
    let in_test = test_lines(&file.text);
    let mut in_use = false;
    for (at, line) in file.text.lines().enumerate().filter(|(at, _)| !in_test[*at]) {
        let code = code_of(line).trim();
        if in_use || use_tree(code).is_some() {
            in_use = !code.ends_with(';');
        } else {
            found.extend(inline(code).into_iter().map(|path| (at + 1, absolute(&file.path, &path))));
        }
    }
    found
}

/// Line and absolute path of everything that is imported.
fn imports(file: &File) -> Vec<(usize, String)> {
    uses(file).into_iter().map(|(line, path)| (line, absolute(&file.path, &path))).collect()
}

/// Line and path, as it is written, of everything that is imported.
fn uses(file: &File) -> Vec<(usize, String)> {
    let in_test = test_lines(&file.text);
    let mut found = Vec::new();
    let mut statement = String::new();
    let mut started = 0;
    for (at, line) in file.text.lines().enumerate().filter(|(at, _)| !in_test[*at]) {
        let code = code_of(line).trim();
        let opens = use_tree(code).is_some();
        if opens || !statement.is_empty() {
            if opens {
                started = at + 1;
            }
            statement.push_str(use_tree(code).unwrap_or(code));
            if code.ends_with(';') {
                let mut leaves = Vec::new();
                expand("", statement.trim_end_matches(';'), &mut leaves);
                found.extend(leaves.into_iter().map(|leaf| (started, leaf)));
                statement.clear();
            }
        }
    }
    found
}

/// Imported paths, if this line starts an import.
fn use_tree(code: &str) -> Option<&str> {
    let rest = match code.strip_prefix("pub") {
        Some(rest) => rest.trim_start_matches("(crate)").trim_start_matches("(super)").trim_start(),
        None => code,
    };
    rest.strip_prefix("use ")
}

/// `a::{b, c::{d, e}}` -> `a::b`, `a::c::d`, `a::c::e`.
fn expand(prefix: &str, tree: &str, leaves: &mut Vec<String>) {
    let tree = tree.trim();
    if tree.is_empty() {
        return;
    }
    let Some((head, rest)) = tree.split_once('{') else {
        let leaf = tree.split(" as ").next().unwrap_or(tree).trim();
        let whole = format!("{prefix}{leaf}");
        leaves.push(whole.trim_end_matches("::*").trim_end_matches("::self").to_string());
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    for part in split_outside_braces(&rest[..close(rest)]) {
        expand(&prefix, part, leaves);
    }
}

/// Position at which the brace that is open at the start of `text` closes.
fn close(text: &str) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn split_outside_braces(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Paths written out in code, such as `std::time::Instant::now`.
fn inline(code: &str) -> Vec<String> {
    let part_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(|c: char| !part_of_path(c))
        .map(|path| path.trim_matches(':'))
        .filter(|path| path.contains("::"))
        .map(str::to_string)
        .collect()
}

/// Resolves `crate`, `self` and `super` by the place of the file.
fn absolute(file: &str, path: &str) -> String {
    let mut module = module_of(file);
    let mut parts: Vec<&str> = path.trim_start_matches("::").split("::").collect();
    match parts[0] {
        "crate" => module.truncate(1),
        "self" => {}
        "super" => {
            while parts.get(1) == Some(&"super") {
                parts.remove(0);
                module.pop();
            }
            module.pop();
        }
        _ => return parts.join("::"),
    }
    module.extend(parts[1..].iter().map(|p| p.to_string()));
    module.join("::")
}

/// `src/edge/http.rs` -> `murre, edge, http`; `src/protocol/src/wire/client_message.rs` -> `protocol, wire, push`.
fn module_of(file: &str) -> Vec<String> {
    let (root, rest) = match file.rsplit_once("src/") {
        Some(("", rest)) => ("murre", rest),
        Some((owner, rest)) => (owner.trim_end_matches('/').rsplit('/').next().unwrap_or(owner), rest),
        None => ("murre", file),
    };
    let mut module = vec![root.to_string()];
    let stem = rest.trim_end_matches(".rs");
    module.extend(stem.split('/').filter(|p| !["mod", "lib", "main"].contains(p)).map(str::to_string));
    module
}

#[test]
fn every_row_of_the_table_refuses_what_it_lists() {
    for row in TABLE {
        for prefix in row.files {
            let path = if prefix.ends_with('/') { format!("{prefix}sample.rs") } else { prefix.to_string() };
            for refused in row.refused {
                let text = format!("use {refused}::Thing;\n");
                assert!(!table(&Tree::of(&[(path.as_str(), text.as_str())])).is_empty(), "{path}: {refused}");
            }
            for allowed in row.except {
                let text = format!("use {allowed};\n");
                assert!(table(&Tree::of(&[(path.as_str(), text.as_str())])).is_empty(), "{path}: {allowed}");
            }
        }
    }
}

#[test]
fn neither_braces_nor_super_nor_an_inline_path_hides_an_edge() {
    let complaints = |path: &str, text: &str| table(&Tree::of(&[(path, text)])).len();
    assert_eq!(complaints("src/edge/a.rs", "use crate::{\n    control_plane::{self, acme},\n    config,\n};\n"), 2);
    assert_eq!(complaints("shards/machine/src/shard/a.rs", "use std::{fs, sync::Mutex};\n"), 2);
    assert_eq!(complaints("shards/machine/src/shard/a.rs", "fn f() {\n    let a = std::time::Instant::now();\n}\n"), 1);
    assert_eq!(complaints("shards/machine/src/shard/a.rs", "use crate::time::Instant;\nuse std::sync::Arc;\n"), 0);
    assert_eq!(complaints("src/edge/a.rs", "#[cfg(test)]\nmod tests {\n    use crate::control_plane;\n}\n"), 0);
}

#[test]
fn imports_are_expanded() {
    let mut leaves = Vec::new();
    expand("", "a::{b, c::{d, e as f}, self}", &mut leaves);
    assert_eq!(leaves, ["a::b", "a::c::d", "a::c::e", "a"]);
}

#[test]
fn a_circle_of_imports_is_found() {
    let circle = |files: &[(&str, &str)]| circles(&Tree::of(files));
    let low = ("shards/machine/src/shard/low.rs", "use crate::ids::Uaid;\n");
    let top = ("shards/machine/src/shard/mod.rs", "mod low;\nmod top;\npub use top::Top;\n");
    assert!(circle(&[low, top, ("shards/machine/src/shard/top.rs", "use super::low::Low;\n")]).is_empty());
    let back = ("shards/machine/src/shard/low.rs", "use super::{other, top::Top};\n");
    let found = circle(&[back, top, ("shards/machine/src/shard/top.rs", "use crate::shard::low::Low;\n")]);
    assert_eq!(found.len(), 3, "{found:?}");
    let (parent, child) =
        (("shards/machine/src/shard/a/mod.rs", "mod b;\nuse b::B;\n"), "shards/machine/src/shard/a/b.rs");
    assert_eq!(circle(&[parent, (child, "use super::A;\n")]).len(), 2);
    assert!(circle(&[parent, (child, "use super::super::low::Low;\n"), low]).is_empty());
    // Every crate is looked at; a macro is where it is exported, and a crate may have the name of a module below.
    let (one, two) = (("src/a/src/one.rs", "use crate::two::Two;\n"), ("src/a/src/two.rs", "use crate::one::One;\n"));
    assert_eq!(circle(&[one, two]).len(), 2);
    let (root, exports) = (("src/a/src/lib.rs", "pub use one::One;\n"), "#[macro_export]\nmacro_rules! two {\n}\n");
    assert!(circle(&[root, ("src/a/src/one.rs", "use crate::two;\n"), ("src/a/src/b.rs", exports)]).is_empty());
    let named = ("src/a/src/b/mod.rs", "mod a;\nuse crate::one::One;\n");
    assert!(circle(&[named, ("src/a/src/b/a.rs", "use super::B;\n"), ("src/a/src/one.rs", "")]).is_empty());
}
