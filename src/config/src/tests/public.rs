//! Names of the server, and the port for everything public.

use super::*;

const CERTIFICATE: [&str; 2] = ["tls.cert=/c", "tls.key=/k"];

fn with(settings: &[&str]) -> Config {
    load(&sets(&[&CERTIFICATE[..], settings].concat()))
}

fn refused(settings: &[&str]) -> String {
    refusal(&sets(&[&CERTIFICATE[..], settings].concat()))
}

#[test]
fn a_name_opens_the_public_port_and_says_so_to_browsers() {
    let config = load(&sets(&[]));
    assert!(config.public.listen().is_empty() && config.public.url().is_none());
    assert_eq!(config.hsts(), 0);
    let config = with(&["public.domain=Push.Example.org,push.example.net"]);
    assert_eq!(config.public.domain, ["push.example.org", "push.example.net"]);
    assert_eq!(config.public.listen(), ["0.0.0.0:443".parse().unwrap(), "[::]:443".parse().unwrap()]);
    assert_eq!(config.public.url().map(|url| url.to_string()).as_deref(), Some("https://push.example.org"));
    assert_eq!((config.hsts(), config.public_pairs().len()), (31_536_000, 1));
    let config = with(&["public.domain=a.example", "public.listen=[::1]:8443", "tls.hsts=1d"]);
    assert_eq!(config.public.listen(), ["[::1]:8443".parse().unwrap()]);
    assert_eq!(config.hsts(), 86_400);
    assert_eq!(with(&["public.domain=a.example", "tls.hsts=0"]).hsts(), 0);
    assert_eq!(config.public.http_listen(), ["0.0.0.0:80".parse().unwrap(), "[::]:80".parse().unwrap()]);
    let none = ["public.domain=a.example", "public.listen=none", "public.http_listen=none"];
    let behind_a_proxy = load(&sets(&none));
    assert!(behind_a_proxy.public.listen().is_empty() && behind_a_proxy.public.http_listen().is_empty());
    let said = refusal(&sets(&["public.http_listen=127.0.0.1:80"]));
    assert!(said.starts_with("public.http_listen needs public.domain"), "{said}");
    let alone = with(&["public.listen=127.0.0.1:8443", "websocket.listen=", "endpoint.listen="]);
    assert_eq!((alone.public.listen().len(), alone.hsts()), (1, 0));
}

#[test]
fn names_of_the_server_are_names_of_hosts() {
    let long = format!("public.domain={}.example", "x".repeat(64));
    for name in ["public.domain=*.example.org", "public.domain=a.example.", "public.domain=a..b", &long] {
        assert!(refusal(&sets(&[name])).contains("expected host names as push.example.org"), "{name}");
    }
    let name = |bytes: usize| format!("public.domain={}{}", "a.".repeat(100), "x".repeat(bytes - 200));
    assert_eq!(load(&sets(&[&name(250), "public.listen=none", "public.http_listen=none"])).public.domain[0].len(), 250);
    for name in [&*name(251), "public.domain=a.example,A.example"] {
        assert!(refusal(&sets(&[name])).contains("each once and up to 250 bytes"), "{name}");
    }
    assert!(refusal(&sets(&["public.listen=443"])).contains("expected addresses as 0.0.0.0:443"));
}

#[test]
fn the_public_port_needs_a_certificate_both_roles_and_an_address_of_its_own() {
    let needs = "public.listen needs tls.cert and tls.key, or acme.agree";
    assert_eq!(refusal(&sets(&["public.domain=a.example"])), needs);
    for roles in ["roles=connect", "roles=endpoint"] {
        let said = refused(&["public.domain=a.example", roles]);
        assert!(said.starts_with("public.listen serves user agents and app servers, "), "{said}");
    }
    let said = refused(&["public.listen=0.0.0.0:443", "websocket.tls.listen=127.0.0.1:443"]);
    assert!(said.contains("public.listen = 0.0.0.0:443") && said.contains("listen on one address"), "{said}");
}

#[test]
fn user_agents_and_app_servers_may_share_an_address_without_tls() {
    let both = ["websocket.listen=127.0.0.1:80,127.0.0.1:81", "endpoint.listen=127.0.0.1:82,127.0.0.1:80"];
    assert_eq!(load(&sets(&both)).shared_listen(), ["127.0.0.1:80".parse().unwrap()]);
    assert!(load(&sets(&[both[0], both[1], "roles=connect"])).shared_listen().is_empty());
    assert!(load(&sets(&["websocket.listen=127.0.0.1:0", "endpoint.listen=127.0.0.1:0"])).shared_listen().is_empty());
    for (websocket, endpoint) in [("0.0.0.0:80", "127.0.0.1:80"), ("127.0.0.1:80", "[::]:80")] {
        let said = refusal(&sets(&[&format!("websocket.listen={websocket}"), &format!("endpoint.listen={endpoint}")]));
        assert!(said.contains("listen on one address"), "{said}");
    }
    let said = refusal(&sets(&[both[0], both[1], "admin.listen=127.0.0.1:80"]));
    assert!(said.contains("websocket.listen = 127.0.0.1:80 and admin.listen = 127.0.0.1:80"), "{said}");
}
