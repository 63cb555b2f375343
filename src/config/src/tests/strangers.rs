//! Limits on callers by their address.

use runtime::strangers::StrangerLimits;

use super::*;

const NUMBERS: [&str; 4] =
    ["strangers.connections", "strangers.handshakes", "strangers.new_users", "strangers.registers"];

fn numbers(settings: &[&str]) -> [u32; 4] {
    let limits = load(&sets(settings)).stranger_limits();
    let StrangerLimits { connections, handshakes_per_second, new_users_per_hour, registers_per_hour, .. } = limits;
    [connections, handshakes_per_second, new_users_per_hour, registers_per_hour]
}

#[test]
fn limits_are_off_until_the_server_has_a_name_and_a_public_port() {
    let public = ["tls.cert=/c", "tls.key=/k", "public.domain=a.example"];
    assert_eq!(numbers(&[]), [0; 4]);
    assert_eq!(numbers(&public), [1_024, 20, 300, 3_000]);
    assert_eq!(numbers(&["public.domain=a.example", "public.listen=none"]), [0; 4], "all would be of the proxy");
    for (at, key) in NUMBERS.into_iter().enumerate() {
        for (value, number) in [("7", 7), ("0", 0), ("1000000", 1_000_000)] {
            let setting = format!("{key}={value}");
            let mut wanted = [1_024, 20, 300, 3_000];
            wanted[at] = number;
            assert_eq!(numbers(&[&public[..], &[&setting]].concat()), wanted, "an explicit value wins");
            let mut wanted = [0; 4];
            wanted[at] = number;
            assert_eq!(numbers(&[&setting]), wanted);
        }
        for bad in ["-1", "1000001", "many", "1/s"] {
            let refused = refusal(&sets(&[&format!("{key}={bad}")]));
            assert!(refused.contains("expected a number from 0 (off) to 1000000"), "{refused}");
        }
    }
}

#[test]
fn exempt_networks_come_from_every_source_and_are_of_both_families() {
    let shown = |sources: &Sources| {
        let exempt = load(sources).stranger_limits().exempt;
        exempt.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    let wanted = "10.0.0.0/8 2001:db8::/32 192.0.2.7/32 ::1/128";
    let list = "10.0.0.0/8, 2001:db8::/32,192.0.2.7,::1";
    assert_eq!(shown(&sets(&[&format!("strangers.exempt={list}")])), wanted);
    assert_eq!(shown(&variables(&[("MURRE_STRANGERS__EXEMPT", list)])), wanted);
    let file = "[strangers]\nexempt = [\"10.0.0.0/8\", \"2001:db8::/32\", \"192.0.2.7\", \"::1\"]\nregisters = 5\n";
    assert_eq!(shown(&File::new(file).sources()), wanted);
    assert_eq!(load(&File::new(file).sources()).stranger_limits().registers_per_hour, 5);
    assert_eq!(shown(&sets(&["strangers.exempt="])), "");
}

#[test]
fn a_network_that_is_none_is_refused_with_its_line() {
    let refused = File::new("[strangers]\nconnections = 1\nexempt = [\"10.0.0.0/8\", \"10.0.0.1/8\"]\n").refusal();
    assert_eq!(
        refused,
        "murre.toml line 3: invalid value \"10.0.0.0/8,10.0.0.1/8\" for strangers.exempt; expected at most 256 \
         addresses and prefixes as 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32, without bits beyond the length, separated \
         by commas, or nothing"
    );
    let many = vec!["10.0.0.0/8"; 257].join(",");
    for bad in ["10.0.0.0/33", "push.example.org", "127.0.0.1:80", "::/129", &many] {
        let refused = refusal(&sets(&[&format!("strangers.exempt={bad}")]));
        assert!(refused.contains("expected at most 256 addresses and prefixes"), "{refused}");
    }
    assert_eq!(load(&sets(&[&format!("strangers.exempt={}", &many[11..])])).stranger_limits().exempt.len(), 256);
}
