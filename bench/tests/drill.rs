//! A cluster of real processes on a real database: the drill in the small. The drill itself counts what it promises.

use std::path::PathBuf;

use murre_bench::result::Outcome;
use murre_bench::scenario::drill::{self, Fault, Options};

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn nodes_lines_clocks_and_the_database_break_and_nothing_accepted_is_lost() {
    drill(
        false,
        vec![
            Fault::None,
            Fault::Split,
            Fault::Kill,
            Fault::KillForGood,
            Fault::Rolling,
            Fault::Cut,
            Fault::DatabaseStopped,
            Fault::Clocks,
            Fault::ClockSet,
        ],
    );
}

/// Needs root to make network namespaces; the drill reports its absence.
#[test]
#[ignore = "needs Cassandra, root and iproute2: bench/check test"]
fn links_of_the_kernel_go_down_and_nothing_accepted_is_lost() {
    drill(false, vec![Fault::LinksDown]);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn nodes_that_speak_tls_are_killed_and_nothing_accepted_is_lost() {
    drill(true, vec![Fault::Kill]);
}

fn drill(tls: bool, faults: Vec<Fault>) {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("drill.json");
    let options = Options {
        faults: faults.clone(),
        nodes: 2,
        databases: 1,
        users: 12,
        rate: 60,
        outage: 5,
        calm: 2,
        tls,
        murre: Some(PathBuf::from(env!("CARGO_BIN_EXE_murre-bench"))),
        json: Some(json.clone()),
    };
    assert!(drill::run(&options).unwrap(), "the table says which check did not hold");
    let outcome = Outcome::read(&json).unwrap();
    for fault in faults {
        assert!(outcome.figure(&format!("{fault}: accepted")).is_some_and(|accepted| accepted > 0.0), "{fault}");
    }
}
