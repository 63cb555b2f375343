//! Licence notices of the crates that are linked into the binary, from the sources of each crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const HEAD: &str = "\
murre is licensed under the Mozilla Public License 2.0. Its binary contains the crates below, and the standard library
of Rust (MIT OR Apache-2.0). Each crate has its licence behind its name; each text has the crates that carry it.
";

/// Beginnings of the names of files with a licence or a notice.
const FILES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// Texts for crates whose package has none, by the licence that is chosen, in the order of preference.
const TEXTS: [(&str, &str); 2] =
    [("Apache-2.0", include_str!("../licences/Apache-2.0.txt")), ("0BSD", include_str!("../licences/0BSD.txt"))];

/// A crate that is linked into the binary.
struct Linked {
    name: String,
    /// SPDX expression.
    licence: String,
    /// Texts of its files, or the one that stands for them.
    texts: Vec<String>,
}

/// Notices of the binary for this target.
///
/// # Errors
/// A crate without a licence or without a text, or metadata that cannot be read.
pub fn of_target(target: &str) -> Result<String, String> {
    let crates = linked(&metadata(target)?)?;
    Ok(text(&crates))
}

/// Output of `cargo metadata` for this target.
fn metadata(target: &str) -> Result<Value, String> {
    let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let words =
        ["metadata", "--format-version", "1", "--locked", "--filter-platform", target, "--manifest-path", manifest];
    let output = Command::new(cargo).args(words).output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cannot read the crates: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cannot read the output of cargo metadata: {error}"))
}

/// Crates that `murre` needs to run, without those of this repository.
fn linked(metadata: &Value) -> Result<Vec<Linked>, String> {
    let by_id = |list: &Value| -> BTreeMap<String, Value> {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|each| Some((each["id"].as_str()?.to_owned(), each.clone()))).collect()
    };
    let (packages, nodes) = (by_id(&metadata["packages"]), by_id(&metadata["resolve"]["nodes"]));
    let root = packages.iter().find(|(_, package)| package["name"] == "murre").map(|(id, _)| id.clone());
    let mut open = vec![root.ok_or("cannot find the package murre in the output of cargo metadata")?];
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        for edge in nodes.get(&id).and_then(|node| node["deps"].as_array()).into_iter().flatten() {
            let is_normal = edge["dep_kinds"].as_array().into_iter().flatten().any(|kind| kind["kind"].is_null());
            open.extend(edge["pkg"].as_str().filter(|_| is_normal).map(str::to_owned));
        }
    }
    let of_others = seen.iter().filter_map(|id| packages.get(id)).filter(|package| !package["source"].is_null());
    let mut crates = of_others.map(read).collect::<Result<Vec<Linked>, String>>()?;
    crates.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(crates)
}

/// Reads the licence of one package of the metadata, and its files.
fn read(package: &Value) -> Result<Linked, String> {
    let field = |name: &str| package[name].as_str().unwrap_or_default();
    let name = format!("{} {}", field("name"), field("version"));
    let manifest = Path::new(field("manifest_path"));
    let directory = manifest.parent().ok_or_else(|| format!("cannot find the sources of {name}"))?;
    let entries = fs::read_dir(directory).map_err(|error| format!("cannot list {}: {error}", directory.display()))?;
    let mut paths: Vec<_> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_notice(path)).collect();
    paths.extend(package["license_file"].as_str().map(|file| directory.join(file)));
    paths.sort();
    paths.dedup();
    let read = |path: &std::path::PathBuf| {
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let texts = paths.iter().map(read).collect::<Result<Vec<String>, String>>()?;
    complete(Linked { name, licence: field("license").to_owned(), texts })
}

fn is_notice(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
    path.is_file() && FILES.iter().any(|beginning| name.starts_with(beginning))
}

/// Gives a crate without texts that of its licence.
fn complete(mut linked: Linked) -> Result<Linked, String> {
    if linked.texts.is_empty() {
        let is_offered = |id: &str| linked.licence.split([' ', '/', '(', ')']).any(|word| word == id);
        // All licences of an expression with AND apply, and only one text would be there.
        let text = TEXTS.iter().find(|(id, _)| is_offered(id) && !linked.licence.contains(" AND "));
        let (_, text) = text.ok_or_else(|| {
            format!(
                "the package of {} has no text of its licence ({}); add one to bench/package/licences",
                linked.name, linked.licence
            )
        })?;
        linked.texts.push((*text).to_owned());
    }
    if linked.licence.is_empty() {
        linked.licence = "see its text".to_owned();
    }
    Ok(linked)
}

/// Table of the crates, then each text once.
fn text(crates: &[Linked]) -> String {
    let mut carriers: BTreeMap<String, (&str, Vec<&str>)> = BTreeMap::new();
    for linked in crates {
        for text in &linked.texts {
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let (_, names) = carriers.entry(words).or_insert((text, Vec::new()));
            names.push(&linked.name);
        }
    }
    let mut notices = format!("{HEAD}\n");
    for linked in crates {
        notices += &format!("{}: {}\n", linked.name, linked.licence);
    }
    let mut groups: Vec<_> = carriers.into_values().collect();
    groups.sort_by(|(_, a), (_, b)| b.len().cmp(&a.len()).then(a.cmp(b)));
    for (text, mut names) in groups {
        names.dedup();
        notices += &format!("\n{}\n{}\n\n{}\n", "-".repeat(80), names.join(", "), text.trim());
    }
    notices
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked_crate(name: &str, licence: &str, texts: &[&str]) -> Linked {
        Linked { name: name.into(), licence: licence.into(), texts: texts.iter().map(|text| (*text).into()).collect() }
    }

    #[test]
    fn a_text_that_several_crates_carry_is_there_once() {
        let crates = [
            linked_crate("a 1.0.0", "MIT", &["Permission is\ngranted"]),
            linked_crate("b 2.0.0", "MIT", &["Permission  is granted"]),
            linked_crate("c 3.0.0", "BSD-3-Clause", &["Redistribution"]),
        ];
        let notices = text(&crates);
        assert_eq!(notices.matches("granted").count(), 1, "{notices}");
        assert!(notices.contains("a 1.0.0, b 2.0.0\n\nPermission"), "{notices}");
        assert!(
            notices.contains("c 3.0.0: BSD-3-Clause\n") && notices.contains("c 3.0.0\n\nRedistribution"),
            "{notices}"
        );
    }

    #[test]
    fn a_crate_without_a_text_gets_that_of_its_licence_or_is_refused() {
        let found = complete(linked_crate("a 1.0.0", "MIT OR Apache-2.0", &[])).expect("a text");
        assert!(found.texts[0].contains("Apache License"), "{:?}", found.texts);
        for unknown in ["GPL-3.0-only", "Apache-2.0 AND Unicode-3.0", ""] {
            let refused = complete(linked_crate("a 1.0.0", unknown, &[])).err().expect("a refusal");
            assert!(refused.contains("a 1.0.0 has no text"), "{refused}");
        }
    }

    #[test]
    fn crates_that_only_build_or_test_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("LICENSE-MIT"), "granted").unwrap();
        let manifest = directory.path().join("Cargo.toml");
        let package = |name: &str, source: Value| {
            serde_json::json!({ "id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                                "manifest_path": manifest })
        };
        let edge = |name: &str, kind: Value| serde_json::json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let others = ["used", "deeper", "built", "tested"].map(|name| package(name, "registry".into()));
        let packages: Vec<Value> = others.into_iter().chain([package("murre", Value::Null)]).collect();
        let edges = [edge("used", Value::Null), edge("built", "build".into()), edge("tested", "dev".into())];
        let metadata = serde_json::json!({ "packages": packages, "resolve": { "nodes": [
            { "id": "murre", "deps": edges },
            { "id": "used", "deps": [edge("deeper", Value::Null)] },
        ] } });
        let names: Vec<String> = linked(&metadata).unwrap().into_iter().map(|each| each.name).collect();
        assert_eq!(names, ["deeper 1.0.0", "used 1.0.0"]);
    }
}
