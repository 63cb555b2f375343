//! Short races: the safe forms lose nothing, and the naive form is caught.

use std::time::Duration;

use hibernate::freeze::Form;
use hibernate::netfilter::{LiveBy, Queue, Rules};
use hibernate::network::{Link, Network, inside};
use hibernate::path::Faults;
use hibernate::peers::Pace;
use hibernate::race::{Outcome, PORT, Race, run};

const RACE: Race = Race {
    link: Link::Veth,
    form: Form::Mark,
    batch: 16,
    pace: Pace {
        connections: 64,
        period: Duration::from_millis(40),
        bytes_max: 200,
        patience: Duration::from_secs(60),
    },
    duration: Duration::from_secs(2),
    freezes_max: 4_000,
    faults: Faults {
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(2),
        loss_per_mille: 10,
        duplicates_per_mille: 10,
    },
    queues: 1,
    one_address: false,
    starve: false,
    flush: None,
    seed: 1,
};

/// Returns why races cannot run here, if they cannot: privilege or a part of the kernel is missing.
fn missing() -> Option<String> {
    let prepared = Network::new(Link::Impaired).and_then(|network| {
        inside(&network.server, || {
            Rules::open()?.install(PORT, LiveBy::Mark, 2)?;
            Queue::open(0)?;
            hibernate::sys::load_drop_filter()?;
            hibernate::sys::grace_period()
        })?
    });
    let reason = prepared.err().map(|error| error.to_string());
    if let Some(reason) = &reason {
        eprintln!("skipped: namespaces, packet rules, queue, eBPF or membarrier are not to be had here: {reason}");
    }
    reason
}

fn race(race: Race) -> Option<Outcome> {
    if missing().is_some() {
        return None;
    }
    Some(run(&race, &mut std::io::sink()).unwrap())
}

fn clean_race(wanted: Race) {
    let Some(outcome) = race(wanted) else { return };
    assert!(outcome.clean(), "{outcome:?}");
    assert!(outcome.freezes > 50 && outcome.thaws_by_segment > 0, "{outcome:?}");
}

#[test]
fn freezes_by_mark_lose_nothing() {
    clean_race(RACE);
    clean_race(Race { link: Link::Loopback, ..RACE });
}

#[test]
fn freezes_by_mark_lose_nothing_on_a_bad_path() {
    clean_race(Race { link: Link::Impaired, ..RACE });
}

#[test]
fn freezes_by_mark_work_with_a_listener_on_one_address_and_two_queues() {
    clean_race(Race { one_address: true, queues: 2, ..RACE });
}

#[test]
fn freezes_without_protection_lose_bytes() {
    let pace = Pace { period: Duration::from_millis(2), patience: Duration::from_secs(1), ..RACE.pace };
    let duration = Duration::from_secs(15);
    let Some(outcome) = race(Race { form: Form::Naive, batch: 1, pace, duration, freezes_max: 60_000, ..RACE }) else {
        return;
    };
    assert!(!outcome.clean(), "{outcome:?}");
}
