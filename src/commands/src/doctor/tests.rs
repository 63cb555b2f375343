//! The texts of `doctor`, and its findings on a configuration.

use std::path::Path;

use super::{shared_store, to_json, to_table};
use config::{Config, Sources};
use host::{Facts, Needs, Verdict, judge, runs_here};

#[test]
fn json_says_the_same() {
    let sets = vec!["shards.plane=io_uring".to_owned()];
    let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
    let facts = Facts { io_uring_disabled: Some(2), ..Facts::read(Path::new("/nowhere")) };
    let findings = judge(&facts, Needs::of(&config));
    let value: serde_json::Value = serde_json::from_str(&to_json(&findings)).unwrap();
    assert_eq!(value["runs_here"], false);
    assert_eq!(value["findings"].as_array().unwrap().len(), findings.len());
    assert_eq!(value["findings"][1]["mend"][0], "sysctl -w kernel.io_uring_disabled=0");
}

#[test]
fn a_shared_store_that_is_not_there_keeps_murre_from_running() {
    let sets = ["store.kind=scylla", "store.scylla.nodes=127.255.255.254:9042", "store.scylla.connect_timeout=1"];
    let sets = sets.map(str::to_owned).to_vec();
    let config = Config::load(&Sources { sets, ..Sources::default() }).unwrap();
    let findings = shared_store(&config);
    let said: Vec<&str> = findings.iter().map(|finding| finding.why.as_str()).collect();
    assert!(!runs_here(&findings) && said.len() == 3, "{said:?}");
    assert!(said[0].contains("endpoint.crypto_keys") && said[2].contains("Connection refused"), "{said:?}");
    assert!(to_table(&findings).contains("murre schema check"));
}

#[test]
fn the_table_ends_with_what_to_do() {
    let good = host::good("kernel", "6.18".to_owned(), ">= 6.1".to_owned());
    assert!(to_table(std::slice::from_ref(&good)).ends_with("murre runs here, nothing to mend.\n"));
    let with = |verdict| to_table(&[good.clone(), host::Finding { verdict, ..good.clone() }]);
    assert!(with(Verdict::Warn).ends_with("murre runs here; 1 to mend before it is loaded.\n"));
    assert!(with(Verdict::Fail).ends_with("murre does not run here: 1 to mend first, 0 more before it is loaded.\n"));
}
