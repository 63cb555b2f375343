//! Rules about deployment: the image, the seccomp profile, the commands and variables in documents.

use clap::CommandFactory;

use super::tree::Tree;
use commands::Cli;
use config::keys::KEYS;

/// System calls without which a shard cannot start.
const RING_CALLS: &[&str] = &["io_uring_setup", "io_uring_enter", "io_uring_register"];

/// Options with which the image must be run, and which it must name.
const RUN_OPTIONS: &[&str] =
    &["--security-opt seccomp=tuning/seccomp.json", "--ulimit memlock=", "--ulimit nofile=", "--stop-timeout"];

/// Base images have a full version, sources exist, it does not run as root, it checks its health, its version is ours,
/// and it names the options that it needs.
pub fn dockerfile(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.get("Dockerfile") else { return vec!["Dockerfile is missing".into()] };
    let mut complaints = Vec::new();
    let mut stages: Vec<String> = Vec::new();
    let mut user = "root".to_string();
    for words in instructions(&file.text) {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["FROM", image, ref rest @ ..] => {
                if image != "scratch" && !is_pinned(image) && !stages.contains(&image.to_string()) {
                    complaints.push(format!("Dockerfile: {image} has no full version"));
                }
                if let ["AS", name] = rest {
                    stages.push((*name).into());
                }
                user = "root".into();
            }
            ["COPY", ref rest @ ..] if !rest.iter().any(|w| w.starts_with("--from=")) => {
                let paths: Vec<&&str> = rest.iter().filter(|w| !w.starts_with("--")).collect();
                let sources = paths.split_last().map_or(&[][..], |(_, sources)| sources);
                let missing = sources.iter().filter(|s| !tree.exists(s.trim_start_matches("./")));
                complaints.extend(missing.map(|s| format!("Dockerfile: copies {s}, which does not exist")));
                let hidden = sources.iter().filter(|s| !is_sent(tree, s));
                complaints.extend(hidden.map(|s| format!(".dockerignore: keeps {s} from the Dockerfile")));
            }
            ["USER", name, ..] => user = name.into(),
            _ => {}
        }
    }
    if stages.is_empty() {
        complaints.push("Dockerfile: builds in no stage of its own".into());
    }
    if user == "root" || user == "0" {
        complaints.push("Dockerfile: runs as root".into());
    }
    if !file.text.lines().any(|line| line.starts_with("HEALTHCHECK ") && line.contains("\"probe\", \"--quick\"")) {
        complaints.push("Dockerfile: no HEALTHCHECK by murre probe --quick".into());
    }
    let label = format!("org.opencontainers.image.version=\"{}\"", env!("CARGO_PKG_VERSION"));
    if !file.text.contains(&label) {
        complaints.push(format!("Dockerfile: has no label {label}"));
    }
    let missing = RUN_OPTIONS.iter().filter(|option| !file.text.contains(**option));
    complaints.extend(missing.map(|option| format!("Dockerfile: does not state {option}")));
    complaints
}

/// Returns true if `.dockerignore`, which leaves out everything it does not name, names this source.
fn is_sent(tree: &Tree, source: &str) -> bool {
    let wanted = format!("!{}", source.trim_start_matches("./").trim_end_matches('/'));
    tree.get(".dockerignore").is_none_or(|file| file.text.lines().any(|line| line.trim() == wanted))
}

/// Instructions with continued lines joined and JSON punctuation gone, one list of words each.
fn instructions(text: &str) -> Vec<Vec<String>> {
    let code: Vec<&str> = text.lines().filter(|l| !l.trim_start().starts_with('#')).collect();
    let joined = code.join("\n").replace("\\\n", " ");
    let clean = |w: &str| w.trim_matches(|c| "[],\"".contains(c)).to_string();
    joined.lines().map(|l| l.split_whitespace().map(clean).collect()).filter(|w: &Vec<String>| !w.is_empty()).collect()
}

/// `name@sha256:...`, or `name:1.2...` with at least two numbers.
pub(super) fn is_pinned(image: &str) -> bool {
    let Some((_, tag)) = image.split_once(':') else { return false };
    let version = tag.split('-').next().unwrap_or(tag);
    image.contains("@sha256:") || version.split('.').filter(|p| p.parse::<u32>().is_ok()).count() >= 2
}

/// Valid JSON, refuses by default, and allows io_uring unconditionally.
pub fn seccomp(tree: &Tree) -> Vec<String> {
    let path = "tuning/seccomp.json";
    let Some(file) = tree.get(path) else { return vec![format!("{path} is missing")] };
    let profile: serde_json::Value = match serde_json::from_str(&file.text) {
        Ok(profile) => profile,
        Err(error) => return vec![format!("{path}: {error}")],
    };
    let mut complaints = Vec::new();
    if profile["defaultAction"] != "SCMP_ACT_ERRNO" {
        complaints.push(format!("{path}: does not refuse by default"));
    }
    let empty = Vec::new();
    let rules = profile["syscalls"].as_array().unwrap_or(&empty);
    let unconditional = |rule: &&serde_json::Value| {
        let none = |key: &str| rule[key].as_array().is_none_or(|a| a.is_empty()) && !rule[key].is_object();
        let free = |key: &str| none(key) || rule[key].as_object().is_some_and(|o| o.is_empty());
        rule["action"] == "SCMP_ACT_ALLOW" && none("args") && free("includes") && free("excludes")
    };
    for call in RING_CALLS.iter().chain(&["epoll_wait", "eventfd2", "mmap", "fallocate"]) {
        let allows = |r: &serde_json::Value| r["names"].as_array().is_some_and(|n| n.iter().any(|v| v == call));
        if !rules.iter().filter(unconditional).any(allows) {
            complaints.push(format!("{path}: does not allow {call}"));
        }
    }
    complaints
}

/// Every `murre COMMAND --flag` that a document, the image or the unit writes down is understood by this build.
pub fn flags(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let ends = [
        ".md",
        "Dockerfile",
        ".service",
        ".ci/run",
        "bench/check",
        "kubernetes/cluster.yaml",
        "kubernetes/single.yaml",
    ];
    let mut seen = 0;
    for file in tree.ending(&ends) {
        let joined = file.text.replace("\\\n", " ");
        for line in joined.lines() {
            for call in calls(line) {
                seen += 1;
                complaints.extend(unknown(&call).map(|what| format!("{}: {what} in: {}", file.path, line.trim())));
            }
        }
    }
    if seen == 0 {
        complaints.push("no document shows a command".into());
    }
    complaints
}

/// Calls of the binary in one line: the words behind `murre`, `/usr/local/bin/murre` or `cargo run --release --`.
fn calls(line: &str) -> Vec<Vec<String>> {
    let clean = |w: &str| w.trim_matches(|c| "`[](),\"'|".contains(c)).to_string();
    let words: Vec<String> = line.split_whitespace().map(clean).collect();
    let commands: Vec<String> = Cli::command().get_subcommands().map(|c| c.get_name().to_string()).collect();
    let is_start = |at: usize| {
        let program =
            words[at].rsplit('/').next() == Some("murre") || (words[at] == "--" && words.contains(&"cargo".into()));
        program && words.get(at + 1).is_some_and(|next| commands.contains(next))
    };
    let ends = |w: &&String| !["&&", "||", "|", ";", "#", "&"].contains(&w.as_str());
    (0..words.len())
        .filter(|at| is_start(*at))
        .map(|at| words[at + 1..].iter().take_while(ends).cloned().collect())
        .collect()
}

/// Part of this call that the binary does not understand.
fn unknown(call: &[String]) -> Option<String> {
    let cli = Cli::command();
    let mut command = cli.find_subcommand(&call[0])?;
    for word in &call[1..] {
        if let Some(deeper) = command.find_subcommand(word) {
            command = deeper;
        }
        let Some(flag) = word.strip_prefix("--").filter(|f| !f.is_empty()) else { continue };
        let name = flag.split(['=', '.', ':', ';']).next().unwrap_or(flag);
        if name != "help" && !command.get_arguments().any(|a| a.get_long() == Some(name)) {
            return Some(format!("murre {} has no --{name}", command.get_name()));
        }
    }
    None
}

/// Every variable `MURRE_SECTION__KEY` that a document, a unit or a file of containers names is that of a key.
pub fn variables(tree: &Tree) -> Vec<String> {
    let part_of_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let is_known = |name: &str| name == "MURRE_SECTION__KEY" || KEYS.iter().any(|key| key.variable() == name);
    let mut complaints = Vec::new();
    for file in tree.ending(&[".md", ".yml", ".yaml", ".service", ".conf", "Dockerfile"]) {
        for (at, line) in file.text.lines().enumerate() {
            let names = line.split(|c| !part_of_name(c)).filter(|w| w.starts_with("MURRE_") && w.contains("__"));
            let unknown = names.filter(|name| !is_known(name));
            complaints.extend(unknown.map(|name| format!("{}:{}: {name} is of no key", file.path, at + 1)));
        }
    }
    complaints
}

/// README and CI name one and the same command, so that what passes there passes here.
pub fn one_check(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for path in ["README.md", ".ci/run", "docs/TESTING.md"] {
        let calls_it = tree.get(path).is_some_and(|f| f.text.lines().any(|l| l.trim() == "bench/check"));
        if !calls_it {
            complaints.push(format!("{path}: has no line bench/check"));
        }
    }
    if tree.get("bench/check").is_none() {
        complaints.push("bench/check is missing".into());
    }
    complaints
}

#[test]
fn a_floating_base_a_missing_source_and_root_are_refused() {
    let options = RUN_OPTIONS.iter().map(|o| format!("# {o}\n")).collect::<String>();
    let label = format!("LABEL org.opencontainers.image.version=\"{}\"\n", env!("CARGO_PKG_VERSION"));
    let health = "HEALTHCHECK CMD [\"murre\", \"probe\", \"--quick\"]\n";
    let stages = "FROM rust:1.95.0-slim AS build\nCOPY src src/\nFROM debian:12.1\nUSER murre\n";
    let good = format!("{options}{stages}{label}{health}");
    let check = |text: &str| dockerfile(&Tree::of(&[("Dockerfile", text), ("src", "")])).len();
    assert_eq!(check(&good), 0);
    assert_eq!(check(&good.replace("debian:12.1", "debian:latest")), 1);
    assert_eq!(check(&good.replace("debian:12.1", "debian")), 1);
    assert_eq!(check(&good.replace("debian:12.1", "scratch")), 0);
    assert_eq!(check(&good.replace("--quick", "--quiet")), 1);
    assert_eq!(check(&good.replace("version=\"", "version=\"9")), 1);
    assert_eq!(check(&good.replace("COPY src", "COPY gone")), 1);
    assert_eq!(check(&good.replace("USER murre", "USER root")), 1);
    assert_eq!(check(&good.replace("USER murre\n", "")), 1);
    assert_eq!(check(&good.replace("--ulimit memlock=", "")), 1);
    let ignored = |list: &str| {
        dockerfile(&Tree::of(&[("Dockerfile", good.as_str()), ("src", ""), (".dockerignore", list)])).len()
    };
    assert_eq!(ignored("*\n!src\n"), 0);
    assert_eq!(ignored("*\n!shards\n"), 1);
}

#[test]
fn a_profile_that_forbids_io_uring_or_is_no_json_is_refused() {
    let profile = |calls: &str, default: &str| {
        let rule = format!("{{\"names\": [{calls}], \"action\": \"SCMP_ACT_ALLOW\", \"args\": []}}");
        let text = format!("{{\"defaultAction\": \"{default}\", \"syscalls\": [{rule}]}}");
        seccomp(&Tree::of(&[("tuning/seccomp.json", text.as_str())])).len()
    };
    let rest = "\"epoll_wait\", \"eventfd2\", \"mmap\", \"fallocate\"";
    let all = format!("{rest}, \"io_uring_setup\", \"io_uring_enter\", \"io_uring_register\"");
    assert_eq!(profile(&all, "SCMP_ACT_ERRNO"), 0);
    assert_eq!(profile(rest, "SCMP_ACT_ERRNO"), 3);
    assert_eq!(profile(&all, "SCMP_ACT_ALLOW"), 1);
    assert_eq!(seccomp(&Tree::of(&[("tuning/seccomp.json", "{")])).len(), 1);
}

#[test]
fn a_flag_that_does_not_exist_is_refused() {
    let check = |text: &str| flags(&Tree::of(&[("README.md", text)])).len();
    assert_eq!(check("Run `murre doctor --root /mnt`, then murre keygen.\n"), 0);
    assert_eq!(check("    cargo run --release -- doctor --frobnicate\n"), 1);
    assert_eq!(check("    murre endpoint inspect --frobnicate\n"), 1);
    assert_eq!(check("    murre doctor && ls --all\n"), 0);
    assert_eq!(check("no command\n"), 1);
}

#[test]
fn a_variable_of_no_key_is_refused() {
    let check = |text: &str| variables(&Tree::of(&[("docs/compose.yml", text)])).len();
    assert_eq!(check("MURRE_SECTION__KEY, MURRE_BIN\n    MURRE_STORE__KIND: scylla\n"), 0);
    assert_eq!(check("#TLS MURRE_STORE__SORT: scylla\n"), 1);
}

#[test]
fn a_readme_that_tests_otherwise_than_ci_is_refused() {
    let files = |readme: &'static str| {
        let rest = [(".ci/run", "bench/check\n"), ("docs/TESTING.md", "bench/check\n"), ("bench/check", "")];
        one_check(&Tree::of(&[("README.md", readme), rest[0], rest[1], rest[2]])).len()
    };
    assert_eq!(files("    bench/check\n"), 0);
    assert_eq!(files("    cargo test\n"), 1);
}
