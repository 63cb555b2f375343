//! Rules about `docs/docker-compose.yml`: it is YAML, runs commands that exist, and sets keys that murre knows.

use std::collections::BTreeMap;

use clap::CommandFactory;
use serde_yaml_ng::Value;

use super::deploy::is_pinned;
use super::tree::Tree;
use crate::commands::Cli;
use crate::config::{Config, Sources};

const PATH: &str = "docs/docker-compose.yml";

/// Variables that the operator must set, and sample values that their keys take.
const SAMPLES: &[(&str, &str)] =
    &[("CRYPTO_KEYS", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="), ("NODE_KEYS", "0123456789abcdef")];

/// Images have versions, our services run commands that exist with settings that murre takes, and files, volumes and
/// services that are named are there.
pub fn compose(tree: &Tree) -> Vec<String> {
    let Some(file) = tree.get(PATH) else { return vec![format!("{PATH} is missing")] };
    let mut complaints = with(tree, &file.text);
    if complaints.is_empty() {
        // And with the lines for TLS between the nodes.
        let marked = file.text.replace("#TLS ", "").replace("http://murre-a:8081", "https://murre-a:8443");
        complaints.extend(with(tree, &marked).into_iter().map(|what| format!("with TLS: {what}")));
    }
    complaints.into_iter().map(|what| format!("{PATH}: {what}")).collect()
}

fn with(tree: &Tree, text: &str) -> Vec<String> {
    let parsed = serde_yaml_ng::from_str(text).and_then(|mut all: Value| all.apply_merge().map(|()| all));
    let all = match parsed {
        Ok(all) => all,
        Err(error) => return vec![error.to_string()],
    };
    let services: BTreeMap<&str, &Value> = members(&all["services"]).collect();
    let mut complaints = Vec::new();
    if !services.contains_key("scylla") || services.values().filter(|service| serves(service)).count() < 2 {
        complaints.push("runs no scylla with two nodes of murre".to_owned());
    }
    for (name, service) in &services {
        let image = service["image"].as_str().unwrap_or("");
        if image == "murre" {
            complaints
                .extend(settings(service).into_iter().chain(command(service)).map(|what| format!("{name}: {what}")));
        } else if !is_pinned(image) {
            complaints.push(format!("{name}: {image} has no full version"));
        }
        let unknown = members(&service["depends_on"]).filter(|(other, _)| !services.contains_key(other));
        complaints.extend(unknown.map(|(other, _)| format!("{name}: depends on {other}, which is not there")));
        for volume in texts(&service["volumes"]) {
            let volume = volume.split(':').next().unwrap_or_default();
            // A directory of the operator's.
            if volume.starts_with("./") {
                continue;
            }
            if !members(&all["volumes"]).any(|(known, _)| known == volume) {
                complaints.push(format!("{name}: the volume {volume} is not declared"));
            }
        }
        for path in texts(&service["security_opt"]).filter_map(|option| option.strip_prefix("seccomp=")) {
            if !path.strip_prefix("../").is_some_and(|path| tree.exists(path)) {
                complaints.push(format!("{name}: there is no {path}"));
            }
        }
    }
    complaints
}

/// A node. The command that the image has by itself sets listeners, which the variables of a service cannot change.
fn serves(service: &Value) -> bool {
    service["image"] == "murre" && texts(&service["command"]).eq(["serve"])
}

/// Error of murre about the variables of a service.
fn settings(service: &Value) -> Option<String> {
    let variables = members(&service["environment"]).map(|(name, value)| {
        let value = value.as_str().map_or_else(String::new, str::to_owned);
        let asked = SAMPLES.iter().find(|(asked, _)| value.starts_with(&format!("${{{asked}:?")));
        (name.to_owned(), asked.map_or(value, |(_, sample)| (*sample).to_owned()))
    });
    let sources = Sources { variables: variables.collect(), ..Sources::default() };
    if let Some((name, _)) = sources.variables.iter().find(|(name, _)| !name.starts_with("MURRE_")) {
        return Some(format!("{name} is no setting of murre"));
    }
    match Config::load(&sources) {
        Err(error) => Some(error.to_string()),
        Ok(config) if serves(service) && config.node.url.is_none() => Some("has no node.url".to_owned()),
        Ok(_) => None,
    }
}

/// Part of the command of a service that does not exist.
fn command(service: &Value) -> Option<String> {
    let mut command = Cli::command();
    for word in texts(&service["command"]) {
        match command.find_subcommand(word) {
            Some(deeper) => command = deeper.clone(),
            None => return Some(format!("{word} is no command")),
        }
    }
    None
}

fn members(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_mapping().into_iter().flatten().filter_map(|(name, value)| Some((name.as_str()?, value)))
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_sequence().into_iter().flatten().filter_map(Value::as_str)
}

#[test]
fn a_file_with_something_that_does_not_exist_is_refused() {
    let good = include_str!("../../docs/docker-compose.yml");
    let check = |text: &str| compose(&Tree::of(&[(PATH, text), ("tuning/seccomp.json", "{}")]));
    assert_eq!(check(good), Vec::<String>::new());
    for (is, bad, complaint) in [
        ("services:", "services: [", "did not find expected"),
        ("scylladb/scylla:2026.1.0", "scylladb/scylla:latest", "scylla: scylladb/scylla:latest has no full version"),
        ("MURRE_STORE__KIND:", "MURRE_STORE__SORT:", "store.sort"),
        ("MURRE_STORE__KIND: scylla", "MURRE_STORE__KIND: postgres", "store.kind"),
        ("REPLICATION_FACTOR: \"1\"", "REPLICATION_FACTOR: \"ten\"", "store.scylla.replication_factor"),
        ("MURRE_NODE__URL: http://murre-b:8081", "MURRE_NODE__URL: murre-b", "node.url"),
        ("  MURRE_STORE__KIND", "  STORE__KIND", "STORE__KIND is no setting of murre"),
        ("\"schema\", \"create\"", "\"schema\", \"make\"", "make is no command"),
        ("      scylla:\n        condition", "      cassandra:\n        condition", "depends on cassandra"),
        (
            "  murre-b:\n    <<: *murre",
            "  murre-b:\n    image: murre\n    command: [\"probe\"]",
            "no scylla with two nodes",
        ),
        ("#TLS MURRE_NODE__TLS__KEY", "#TLS MURRE_NODE__TLS__KEYS", "with TLS: murre-a: "),
        ("#TLS - ./tls/a:", "#TLS - tls:", "with TLS: murre-a: the volume tls is not declared"),
        ("- murre-a:/var", "- murre-c:/var", "the volume murre-c is not declared"),
        ("seccomp=../tuning/seccomp.json", "seccomp=../tuning/gone.json", "there is no ../tuning/gone.json"),
    ] {
        assert!(good.contains(is), "{is}");
        let complaints = check(&good.replacen(is, bad, 1));
        assert!(complaints.iter().any(|said| said.contains(complaint)), "{bad}: {complaints:?}");
    }
}
