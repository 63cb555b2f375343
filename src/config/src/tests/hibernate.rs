//! Frozen connections.

use super::*;

#[test]
fn hibernation_is_off_until_it_has_a_time() {
    let off = load(&sets(&[])).hibernate;
    assert_eq!((off.after, off.queue), (None, 0x6d45));
    assert_eq!(load(&sets(&["hibernate.after=0s"])).hibernate.after, None);
    for (value, seconds) in [("30", 30), ("90s", 90), ("4m", 240)] {
        let on = load(&sets(&[&format!("hibernate.after={value}")])).hibernate;
        assert_eq!(on.after, Some(Duration::from_secs(seconds)));
    }
    let file = File::new("[hibernate]\nafter = \"2m\"\nqueue = 65535\n");
    let on = load(&file.sources()).hibernate;
    assert_eq!((on.after, on.queue), (Some(Duration::from_secs(120)), u16::MAX));
}

#[test]
fn bad_settings_of_hibernation_are_refused() {
    let expected_after = "expected seconds from 30 to 86400, or 0 (off)";
    for (setting, expected) in [
        ("hibernate.after=29.999", expected_after),
        ("hibernate.after=1", expected_after),
        ("hibernate.after=86401", expected_after),
        ("hibernate.after=2d", expected_after),
        ("hibernate.after=-60", expected_after),
        ("hibernate.after=on", expected_after),
        ("hibernate.queue=65536", "expected a number from 0 to 65535"),
        ("hibernate.queue=-1", "expected a number from 0 to 65535"),
        ("hibernate.queue=", "expected a number from 0 to 65535"),
    ] {
        let refused = refusal(&sets(&[setting]));
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn sessions_go_on_in_the_next_process_only_where_records_outlive_this_one() {
    let settings = ["hibernate.after=60", "hibernate.dir=/run/murre/frozen", "drain.mode=hibernate"];
    let on = load(&sets(&settings));
    assert_eq!(on.hibernate.dir, Some("/run/murre/frozen".into()));
    assert_eq!(on.drain.mode, DrainMode::Hibernate);
    assert_eq!(load(&sets(&[])).drain.mode, DrainMode::Close);
    for missing in [0, 1] {
        let mut settings = settings.to_vec();
        settings.remove(missing);
        let said = refusal(&sets(&settings));
        assert!(said.contains("set hibernate.after and hibernate.dir"), "{said}");
    }
    let said = refusal(&sets(&["drain.mode=hibernat"]));
    assert!(said.contains("close or hibernate"), "{said}");
}

#[test]
fn probes_come_in_place_of_pings() {
    let on = load(&sets(&["hibernate.after=60", "hibernate.ping_interval=1h"]));
    assert_eq!(on.hibernate.ping_interval, Duration::from_secs(3_600));
    assert!(load(&sets(&[])).hibernate.ping_interval.is_zero());
    for settings in
        [&["hibernate.ping_interval=300"][..], &["hibernate.ping_interval=1h", "websocket.auto_ping_interval=0"]]
    {
        let said = refusal(&sets(settings));
        assert!(said.starts_with("hibernate.ping_interval must be longer than"), "{said}");
    }
}

#[test]
fn silence_must_fit_between_two_pings() {
    let start = "hibernate.after must be shorter than websocket.auto_ping_interval, ";
    for settings in [&["hibernate.after=300"][..], &["hibernate.after=60", "websocket.auto_ping_interval=60"]] {
        let said = refusal(&sets(settings));
        assert!(said.starts_with(start), "{said}");
    }
    let without_pings = load(&sets(&["hibernate.after=1d", "websocket.auto_ping_interval=0"]));
    assert_eq!(without_pings.hibernate.after, Some(Duration::from_secs(86_400)));
    assert_eq!(load(&sets(&["hibernate.after=299"])).hibernate.after, Some(Duration::from_secs(299)));
}
