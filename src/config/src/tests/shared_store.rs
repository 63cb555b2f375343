//! Settings that nodes of a shared store must have in common.

use super::*;

#[test]
fn nodes_that_share_a_store_need_keys_and_a_way_to_each_other() {
    let said = |more: &[&str]| {
        let config =
            Config::load(&Sources { sets: more.iter().map(|text| (*text).to_owned()).collect(), ..Sources::default() });
        shared_store_faults(&config.unwrap()).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let keys = ["endpoint.crypto_keys=YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=", "node.keys=0123456789abcdef"];
    assert_eq!(said(&keys), [""; 0]);
    let missing = said(&[]);
    assert_eq!(missing.len(), 2);
    assert!(
        missing[0].starts_with("endpoint.crypto_keys is not set") && missing[1].starts_with("node.keys is not set")
    );
    let everywhere = said(&[keys[0], keys[1], "node.listen=0.0.0.0:8081"]);
    assert!(everywhere.len() == 1 && everywhere[0].contains("set node.url"), "{everywhere:?}");
    let tls = [keys[0], keys[1], "node.tls.listen=0.0.0.0:8443", "node.tls.cert=c", "node.tls.key=k"];
    assert!(said(&tls).len() == 1 && said(&tls)[0].contains("node.tls.listen is not one"), "{:?}", said(&tls));
    assert_eq!(said(&[keys[0], keys[1], "node.listen=0.0.0.0:8081", "roles=endpoint"]), [""; 0]);
    assert_eq!(said(&[keys[0], keys[1], "node.listen=0.0.0.0:8081", "node.url=http://10.0.0.1:8081"]), [""; 0]);
}
