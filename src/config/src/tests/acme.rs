//! Certificates that the server orders.

use super::*;

const LISTEN: &str = "public.listen=[::1]:8443";

#[test]
fn orders_need_names_a_listener_and_a_store_of_this_node() {
    let agree = ["acme.agree=true", "public.domain=A.example,b.example", LISTEN];
    let config = load(&sets(&agree));
    assert_eq!(config.acme_names(), ["a.example", "b.example"]);
    assert!(config.acme_file("a.example").ends_with("murre-data/acme/a.example.pem"));
    assert!(config.public_pairs().is_empty(), "there is no file yet");
    let alone = ["public.domain=a.example", "public.listen=none"];
    assert!(load(&sets(&alone)).acme_names().is_empty(), "without agreement");
    let without = |left_out: usize| {
        let rest: Vec<&str> = (0..3).filter(|n| *n != left_out).map(|n| agree[n]).collect();
        refusal(&sets(&rest))
    };
    assert!(without(0).starts_with("public.listen needs tls.cert and tls.key"), "{}", without(0));
    assert_eq!(without(1), "acme.agree needs public.domain: the names to order certificates for");
    let closed = refusal(&sets(&[agree[0], agree[1], "public.listen=none"]));
    assert!(closed.starts_with("acme.agree needs an address in public.listen, "), "{closed}");
    let http = ["acme.challenge=http-01", "public.http_listen=none"];
    let said = refusal(&sets(&[&agree[..], &http].concat()));
    assert!(said.starts_with("acme.challenge = http-01 needs public.http_listen"), "{said}");
    let scylla = ["store.kind=scylla", "store.scylla.nodes=127.0.0.1:9042"];
    let said = refusal(&sets(&[&agree[..], &scylla].concat()));
    assert!(said.contains("store.kind = scylla is for several") && said.contains("tls.cert"), "{said}");
    let said = refusal(&sets(&[&agree[..], &["tls.cert=/c", "tls.key=/k"]].concat()));
    assert!(said.starts_with("acme.agree and tls.cert exclude each other"), "{said}");
    let many: Vec<String> = (0..101).map(|at| format!("n{at}.example")).collect();
    let said = refusal(&sets(&[agree[0], LISTEN, &format!("public.domain={}", many.join(","))]));
    assert!(said.contains("at most 100 names"), "{said}");
}

#[test]
fn settings_of_orders_are_read_and_bad_ones_refused() {
    let config = load(&sets(&["acme.email=ops@example.org", "acme.challenge=http-01", "acme.profile=shortlived"]));
    assert_eq!(config.acme.email.as_deref(), Some("ops@example.org"));
    assert_eq!((config.acme.challenge, config.acme.profile.as_deref()), (Challenge::Http01, Some("shortlived")));
    let directory = load(&sets(&[])).acme.directory.unwrap();
    assert_eq!(directory.to_string(), "https://acme-v02.api.letsencrypt.org/directory");
    for bad in [
        "acme.directory=",
        "acme.directory=http://ca.example/dir",
        "acme.email=ops",
        "acme.email=@a.b",
        "acme.email=a@b.example,c@d.example",
        "acme.email=mailto:a b@c.example",
        "acme.agree=yes",
    ] {
        assert!(refusal(&sets(&[bad])).contains(" for acme."), "{bad}");
    }
    assert!(refusal(&sets(&["acme.challenge=tls-alpn-1"])).ends_with("; did you mean tls-alpn-01?"));
}
