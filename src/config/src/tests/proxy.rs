//! Proxies in front of the server.

use protocol::wire::forwarded::Kind;

use super::*;

#[test]
fn proxies_that_are_believed_are_named_by_address_or_prefix() {
    let config = load(&sets(&[]));
    assert!(config.proxy.trusted.is_empty() && !config.proxy.protocol && config.proxy.header.is_none());
    let file = File::new("[proxy]\ntrusted = [\"10.0.0.0/8\", \"::1\", \"2001:db8::/32\"]\nprotocol = \"on\"\n");
    let proxy = load(&file.sources()).proxy;
    assert_eq!((proxy.trusted.len(), proxy.protocol, proxy.header), (3, true, None));
    for (caller, wanted) in [
        ("10.1.2.3", true),
        ("::ffff:10.1.2.3", true),
        ("2001:db8::9", true),
        ("::1", true),
        ("::2", false),
        ("11.0.0.1", false),
    ] {
        let caller = caller.parse().unwrap();
        assert_eq!(proxy.trusted.iter().any(|prefix| prefix.contains(caller)), wanted, "{caller}");
    }
    let many = |count: usize| format!("proxy.trusted={}", vec!["::1"; count].join(","));
    assert_eq!(load(&sets(&[&many(256), "proxy.protocol=on"])).proxy.trusted.len(), 256);
    for refused in [&*many(257), "proxy.trusted=10.0.0.1/8", "proxy.trusted=localhost", "proxy.trusted=10.0.0.1:80"] {
        let said = refusal(&sets(&[refused, "proxy.protocol=on"]));
        assert!(said.contains("expected at most 256 addresses and prefixes as 192.0.2.7, 10.0.0.0/8 or"), "{said}");
    }
}

#[test]
fn both_ways_to_tell_an_address_can_be_on() {
    let with = |settings: &[&str]| load(&sets(&[&["proxy.trusted=127.0.0.1"], settings].concat())).proxy;
    for (name, kind) in [("x-forwarded-for", Kind::XForwardedFor), ("forwarded", Kind::Forwarded)] {
        let proxy = with(&[&format!("proxy.header={name}")]);
        assert_eq!((proxy.protocol, proxy.header), (false, Some(kind)));
    }
    let both = with(&["proxy.protocol=on", "proxy.header=forwarded"]);
    assert_eq!((both.protocol, both.header), (true, Some(Kind::Forwarded)));
    for (wrong, takes) in [
        ("proxy.protocol=v2", "expected off, or on"),
        ("proxy.protocol=true", "expected off, or on"),
        ("proxy.header=x-real-ip", "expected none, x-forwarded-for or forwarded"),
    ] {
        assert!(refusal(&sets(&[wrong])).contains(takes), "{wrong}");
    }
}

#[test]
fn a_way_needs_a_proxy_that_is_believed_and_a_proxy_a_way() {
    for (settings, start) in [
        (&["proxy.protocol=on"][..], "proxy.protocol = on needs proxy.trusted: "),
        (&["proxy.protocol=on", "proxy.header=forwarded"], "proxy.protocol = on needs proxy.trusted: "),
        (&["proxy.header=forwarded"], "proxy.header needs proxy.trusted: "),
        (&["proxy.trusted=127.0.0.1"], "proxy.trusted has no effect without proxy.protocol or proxy.header: "),
    ] {
        let said = refusal(&sets(settings));
        assert!(said.starts_with(start), "{said}");
    }
}
