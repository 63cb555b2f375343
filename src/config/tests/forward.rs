//! Forward endpoints.

use super::*;

#[test]
fn forward_endpoints_are_off_and_bounded_by_default() {
    let forward = load(&sets(&[])).forward;
    assert!(!forward.enabled && forward.create_token.is_none() && forward.hosts.is_empty());
    assert_eq!((forward.create_rate, forward.timeout, forward.max_in_flight), (10, Duration::from_secs(5), 128));
}

#[test]
fn settings_of_forward_endpoints_come_from_a_file() {
    let file = "[forward]\nenabled = true\ncreate_token = \"0123456789abcdef\"\ncreate_rate = 0\n\
                hosts = [\"Push.example.net\", \"b.example\"]\ntimeout = 2.5\nmax_in_flight = 1\n";
    let config = load(&File::new(file).sources());
    let forward = &config.forward;
    assert!(forward.enabled && config.has_secrets());
    assert_eq!(forward.create_token.as_ref().unwrap().reveal(), "0123456789abcdef");
    assert_eq!(forward.hosts, ["push.example.net", "b.example"]);
    assert_eq!((forward.create_rate, forward.timeout, forward.max_in_flight), (0, Duration::from_millis(2_500), 1));
}

#[test]
fn bad_settings_of_forward_endpoints_are_refused() {
    for (setting, expected) in [
        ("forward.enabled=maybe", "expected true or false"),
        ("forward.create_rate=1000001", "expected a number from 0 (no limit) to 1000000"),
        ("forward.hosts=https://a.example", "expected host names"),
        ("forward.hosts=a.example:443", "expected host names"),
        ("forward.timeout=0", "expected seconds from 0.001 to 25"),
        ("forward.timeout=25.1", "expected seconds from 0.001 to 25"),
        ("bridge.fcm.timeout=26", "expected seconds from 0.001 to 25"),
        ("bridge.apns.timeout=1m", "because senders and proxies wait 30 s"),
        ("forward.max_in_flight=0", "expected a number from 1 to 4096"),
        ("forward.max_in_flight=4097", "expected a number from 1 to 4096"),
        ("forward.create_token=short-secret", "expected a secret of 16 to 256 characters"),
        ("forward.create_token=with blanks in between", "expected a secret of 16 to 256 characters"),
    ] {
        let refused = refusal(&sets(&[setting]));
        assert!(refused.contains(expected), "{refused}");
        assert!(!refused.contains("short-secret") && !refused.contains("blanks in"), "{refused}");
    }
    let refused = refusal(&sets(&["forward.enabled=true", "roles=connect", "endpoint.listen="]));
    assert!(refused.contains("forward.enabled needs an address in endpoint.listen"), "{refused}");
}
