//! Short races: the form by mark loses nothing, and the naive form is caught.
//!
//! The races of millions of freezes are in docs/reports/0011-hibernation.md.

use std::time::Duration;

use freeze_race::freeze::Form;
use freeze_race::network::Link;
use freeze_race::path::Faults;
use freeze_race::peers::Pace;
use freeze_race::race::{Outcome, Race, run};

const RACE: Race = Race {
    link: Link::Veth,
    form: Form::Mark,
    batch: 16,
    pace: Pace {
        connections: 64,
        period: Duration::from_millis(40),
        bytes_max: 200,
        // A peer waits up to 120 s between two retransmissions.
        patience: Duration::from_secs(150),
    },
    duration: Duration::from_secs(2),
    freezes_max: 4_000,
    faults: Faults {
        delay: Duration::from_millis(1),
        jitter: Duration::from_millis(2),
        loss_per_mille: 10,
        duplicates_per_mille: 10,
    },
    one_address: false,
    unpaced: false,
    seed: 1,
};

fn race(race: &Race) -> Outcome {
    run(race, &mut std::io::sink()).unwrap()
}

fn clean(wanted: &Race) {
    let outcome = race(wanted);
    assert!(outcome.clean(), "{outcome:?}");
    assert!(outcome.freezes > 0 && outcome.thaws_by_segment > 0, "{outcome:?}");
}

#[test]
#[ignore = "needs root and network namespaces: bench/check test"]
fn freezes_by_mark_are_clean() {
    clean(&RACE);
    clean(&Race { link: Link::Loopback, ..RACE });
}

#[test]
#[ignore = "needs root and network namespaces: bench/check test"]
fn freezes_by_mark_are_clean_on_a_bad_path() {
    clean(&Race { link: Link::Impaired, ..RACE });
}

#[test]
#[ignore = "needs root and network namespaces: bench/check test"]
fn freezes_by_mark_work_with_a_listener_on_one_address() {
    clean(&Race { one_address: true, ..RACE });
}

#[test]
#[ignore = "needs root and network namespaces: bench/check test"]
fn freezes_without_protection_lose_bytes() {
    let pace = Pace { period: Duration::from_millis(2), patience: Duration::from_secs(1), ..RACE.pace };
    let duration = Duration::from_secs(15);
    // The wait of each batch for an empty queue is a protection, too.
    let naive = Race { form: Form::Naive, unpaced: true, batch: 1, pace, duration, freezes_max: 60_000, ..RACE };
    // One race nearly always sees it. Five do on any host.
    let mut races = (1..=5).map(|seed| race(&Race { seed, ..naive }));
    assert!(races.any(|outcome| !outcome.clean()), "five races lost nothing");
}
