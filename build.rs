//! Tells the binary the commit that it is built from, whether the tree had other changes, and its Cargo features.
//!
//! The names of the variables do not begin with `MURRE_`: cargo also gives them to what it runs, where such a variable
//! is a setting. `GIT_COMMIT` and `GIT_BUILD` of the environment win: an image is built without the repository.

use std::process::{Command, Stdio};

fn main() {
    println!("cargo::rerun-if-env-changed=GIT_COMMIT");
    println!("cargo::rerun-if-env-changed=GIT_BUILD");
    for path in ["Cargo.toml", "Cargo.lock", "src", "shards"] {
        println!("cargo::rerun-if-changed={path}");
    }
    // Every commit and every checkout adds a line to it.
    if let Some(log) =
        git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|path| std::fs::exists(path).is_ok_and(|is| is))
    {
        println!("cargo::rerun-if-changed={log}");
    }
    let (commit, tree) = match std::env::var("GIT_COMMIT") {
        Ok(commit) => (Some(commit), "clean"),
        Err(_) => (git(&["rev-parse", "HEAD"]), tree()),
    };
    let (commit, tree) =
        commit.filter(|commit| !commit.is_empty()).map_or(("unknown".into(), "unknown"), |it| (it, tree));
    println!("cargo::rustc-env=BUILD_COMMIT={commit}");
    println!("cargo::rustc-env=BUILD_TREE={tree}");
    println!("cargo::rustc-env=BUILD_NAME={}", std::env::var("GIT_BUILD").unwrap_or("unknown".into()));
    println!("cargo::rustc-env=BUILD_FEATURES={}", features());
}

/// `clean` if no file of the commit has changed.
fn tree() -> &'static str {
    match git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => "clean",
        Some(_) => "changed",
        None => "unknown",
    }
}

/// The Cargo features of this build, in alphabetical order; `none` without any.
fn features() -> String {
    let names = std::env::vars().filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase()));
    let mut names: Vec<String> = names.filter(|name| name != "default").collect();
    names.sort();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// The output of git; `None` where there is no git or no repository.
fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
