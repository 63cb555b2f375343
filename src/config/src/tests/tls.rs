//! TLS listeners and their certificates.

use std::path::Path;

use super::*;

fn pair<'a>(cert: &'a str, key: &'a str) -> Pair<'a> {
    (Path::new(cert), Path::new(key))
}

#[test]
fn tls_of_other_nodes_is_all_there_or_not_at_all() {
    let tls = ["node.tls.listen=0.0.0.0:8443", "node.tls.cert=/c", "node.tls.key=/k"];
    let listen = "node.tls.cert and node.tls.key need an address in node.tls.listen";
    let both = "node.tls.cert and node.tls.key need each other";
    for (left_out, said) in [(0, listen), (1, both), (2, both)] {
        let rest: Vec<&str> = (0..3).filter(|n| *n != left_out).map(|n| tls[n]).collect();
        assert_eq!(refusal(&sets(&rest)), said);
    }
    assert_eq!(
        refusal(&sets(&tls[..1])),
        "node.tls.listen needs node.tls.cert and node.tls.key, or tls.cert and tls.key"
    );
    assert_eq!(load(&sets(&tls)).node_pairs(), [pair("/c", "/k")]);
    // It is a listener like any other, and needs none without TLS.
    assert_eq!(load(&sets(&[tls[0], tls[1], tls[2], "node.listen="])).node.tls.listen.len(), 1);
    assert!(load(&sets(&[])).node_pairs().is_empty());
}

#[test]
fn certificates_and_tls_listeners_need_each_other() {
    for listen in ["websocket.tls.listen", "endpoint.tls.listen", "admin.tls.listen"] {
        let address = format!("{listen}=127.0.0.1:8443");
        assert_eq!(refusal(&sets(&[&address])), format!("{listen} needs tls.cert and tls.key"));
        let config = load(&sets(&[&address, "tls.cert=/c", "tls.key=/k"]));
        assert_eq!(config.public_pairs(), [pair("/c", "/k")]);
        assert!(config.node_pairs().is_empty());
    }
    let said = refusal(&sets(&["tls.cert=/c", "tls.key=/k"]));
    assert!(said.starts_with("tls.cert and tls.key need an address in public.listen, "), "{said}");
    for (cert, key) in [("/a,/b", "/k"), ("", "/k"), ("/a", "")] {
        let sets = sets(&["websocket.tls.listen=[::]:443", &format!("tls.cert={cert}"), &format!("tls.key={key}")]);
        assert!(refusal(&sets).starts_with("tls.cert and tls.key need each other"), "{cert} {key}");
    }
}

#[test]
fn other_nodes_see_the_certificates_of_all_unless_they_have_their_own() {
    let shared = ["tls.cert=/a,/b", "tls.key=/ka,/kb", "node.tls.listen=10.0.0.1:8443"];
    let config = load(&sets(&shared));
    assert_eq!(config.node_pairs(), [pair("/a", "/ka"), pair("/b", "/kb")]);
    assert!(config.public_pairs().is_empty(), "no public listener shows them");
    let own = ["node.tls.cert=/c", "node.tls.key=/k"];
    let said = refusal(&sets(&[shared[0], shared[1], shared[2], own[0], own[1]]));
    assert!(said.starts_with("tls.cert and tls.key need an address in "), "no listener shows them: {said}");
    let config = load(&sets(&[shared[0], shared[1], shared[2], own[0], own[1], "websocket.tls.listen=[::]:443"]));
    assert_eq!((config.node_pairs(), config.public_pairs().len()), (vec![pair("/c", "/k")], 2));
}

#[test]
fn a_role_can_be_served_over_tls_alone() {
    let certificate = ["tls.cert=/c", "tls.key=/k", "websocket.listen=", "endpoint.listen="];
    let listen = ["websocket.tls.listen=[::]:443", "endpoint.tls.listen=[::]:8443"];
    let config = load(&sets(&[&certificate[..], &listen].concat()));
    assert!(config.websocket.listen.is_empty() && config.endpoint.listen.is_empty());
    assert_eq!(
        refusal(&sets(&[&certificate[..], &listen[1..]].concat())),
        "the role connect needs an address in websocket.listen, websocket.tls.listen or public.listen"
    );
}

#[test]
fn listeners_of_a_role_that_is_off_need_and_use_no_certificate() {
    let certificate = ["tls.cert=/c", "tls.key=/k"];
    let node = ["node.tls.listen=10.0.0.1:8443", "node.tls.cert=/n", "node.tls.key=/m"];
    for (role, off) in [("connect", "endpoint"), ("endpoint", "websocket"), ("endpoint", "node")] {
        let off = [format!("roles={role}"), format!("{off}.tls.listen=127.0.0.1:1")];
        let off = off.each_ref().map(String::as_str);
        let config = load(&sets(&off));
        assert!(config.public_pairs().is_empty() && config.node_pairs().is_empty(), "{off:?}");
        let said = refusal(&sets(&[&off[..], &certificate].concat()));
        assert!(said.starts_with("tls.cert and tls.key need an address in "), "{off:?}: {said}");
        let config = load(&sets(&[&off[..], &certificate, &["admin.tls.listen=127.0.0.1:2"]].concat()));
        assert_eq!(config.public_pairs(), [pair("/c", "/k")], "{off:?}");
    }
    // All nodes of a cluster can have one file.
    assert!(load(&sets(&[&["roles=endpoint"], &node[..]].concat())).node_pairs().is_empty());
    assert_eq!(load(&sets(&[&["roles=connect"], &node[..]].concat())).node_pairs(), [pair("/n", "/m")]);
}

#[test]
fn ticket_keys_and_the_rules_of_handshakes_are_read() {
    let config = load(&sets(&[]));
    assert_eq!(config.tls.handshake_timeout, Duration::from_secs(10));
    assert_eq!(config.tls.unknown_name, UnknownName::Refuse);
    assert!(config.tls.ticket_keys.is_empty() && !config.has_secrets());
    let key = "++++++++++++++++++++++++++++++++++++++++++8=";
    let config = load(&sets(&[&format!("tls.ticket_keys={key}"), "tls.unknown_name=default"]));
    assert_eq!(config.tls.ticket_keys[0].reveal(), key.replace('+', "-"));
    assert_eq!(config.tls.unknown_name, UnknownName::Default);
    assert!(config.has_secrets() && !format!("{config:?}").contains("----"));
    assert!(refusal(&sets(&["tls.unknown_name=defualt"])).ends_with("; did you mean default?"));
}

#[test]
fn tls_1_2_is_served_on_demand_only() {
    let version = |settings: &[&str]| load(&sets(settings)).tls.min_version;
    assert_eq!(version(&[]), MinVersion::Tls13);
    assert_eq!(version(&["tls.min_version=1.2"]), MinVersion::Tls12);
    let file = File::new("[tls]\nmin_version = 1.2\n");
    assert_eq!(load(&file.sources()).tls.min_version, MinVersion::Tls12);
    let refused = refusal(&sets(&["tls.min_version=1.1"]));
    assert!(refused.contains("tls.min_version") && refused.contains("1.2 for TLS 1.2 too"), "{refused}");
}

#[test]
fn authorities_of_clients_need_a_listener_that_asks_and_no_public_port() {
    let files = ["tls.cert=/c", "tls.key=/k", "websocket.tls.listen=127.0.0.1:1"];
    let with = |more: &[&str]| sets(&[&files[..], more].concat());
    let (endpoint, node) = ("endpoint.tls.listen=127.0.0.1:2", "node.tls.listen=127.0.0.1:3");
    for (more, said) in [
        (&["endpoint.tls.client_required=true", endpoint][..], "endpoint.tls.client_required needs "),
        (&["node.tls.client_required=true", node], "node.tls.client_required needs "),
        (&["endpoint.tls.client_ca=/a"], "endpoint.tls.client_ca needs an address in endpoint.tls.listen"),
        (&["node.tls.client_ca=/a"], "node.tls.client_ca needs an address in node.tls.listen"),
        (&["endpoint.tls.client_ca=/a", endpoint, "public.domain=a.example"], "endpoint.tls.client_ca excludes "),
    ] {
        let refused = refusal(&with(more));
        assert!(refused.starts_with(said), "{more:?}: {refused}");
    }
    let closed = ["public.domain=a.example", "public.listen=none", endpoint, node];
    let config = load(&with(&[&closed[..], &["endpoint.tls.client_ca=/a", "node.tls.client_ca=/b"]].concat()));
    assert_eq!(config.endpoint.clients.authorities(), Some((Path::new("/a"), false)));
    assert_eq!(config.node.tls.clients.authorities(), Some((Path::new("/b"), false)));
    // The first certificate is shown to other nodes, unless there is one for them alone.
    assert_eq!(config.node_client_pair(), Some(pair("/c", "/k")));
    let own = load(&with(&[node, "node.tls.cert=/n", "node.tls.key=/m"]));
    assert_eq!(own.node_client_pair(), Some(pair("/n", "/m")));
}
