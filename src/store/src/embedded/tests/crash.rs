//! SIGKILL at any moment: acknowledged rows are there.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use machine::ids::StoreTicket;

use super::*;

const DIR: &str = "MURRE_CRASH_TEST_DIR";
const START: &str = "MURRE_CRASH_TEST_START";
const ROUNDS: u64 = 16;
const WINDOW: usize = 24;

/// Output of the child so far.
#[derive(Default)]
struct Said {
    stored: BTreeSet<u64>,
    settling: BTreeSet<u64>,
    settled: BTreeSet<u64>,
}

#[test]
fn sigkill_loses_nothing_that_was_acknowledged() {
    if let (Ok(dir), Ok(start)) = (std::env::var(DIR), std::env::var(START)) {
        write_until_killed(Path::new(&dir), start.parse().expect("a number"));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let mut said = Said::default();
    for round in 0..ROUNDS {
        let before = said.stored.len();
        let start = round * 1_000_000 + 1;
        let program = std::env::current_exe().expect("it runs");
        let mut child = Command::new(program)
            .args(["--exact", "embedded::tests::crash::sigkill_loses_nothing_that_was_acknowledged", "--nocapture"])
            .env(DIR, dir.path())
            .env(START, start.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        // Some acknowledgements, another number in each round; then the kill lands wherever it lands.
        let enough = 40 + (round as usize * 37) % 400;
        while said.stored.len() < before + enough {
            hear(&mut said, &lines.next().expect("the child works").expect("readable"));
        }
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        lines.map_while(Result::ok).for_each(|line| hear(&mut said, &line));
        let store = open(dir.path());
        let found: BTreeSet<u64> = port(&store).clocks(uaid(1)).into_iter().collect();
        let lost: Vec<_> = said.stored.iter().filter(|n| !said.settling.contains(n) && !found.contains(n)).collect();
        assert!(lost.is_empty(), "round {round}: {lost:?} were acknowledged");
        let back: Vec<_> = said.settled.intersection(&found).collect();
        assert!(back.is_empty(), "round {round}: {back:?} were settled");
    }
    assert!(said.stored.len() > 1_000 && said.settled.len() > 100);
}

fn hear(said: &mut Said, line: &str) {
    let Some((what, number)) = line.split_once(' ') else { return };
    let Ok(number) = number.parse::<u64>() else { return };
    match what {
        "stored" => drop(said.stored.insert(number)),
        "settling" => drop(said.settling.insert(number)),
        "settled" => drop(said.settled.insert(number)),
        _ => {}
    }
}

/// Keeps `WINDOW` operations under way: messages of mixed sizes, and durable deletes of every fifth one.
fn write_until_killed(dir: &Path, start: u64) -> ! {
    let store = open(dir);
    let mut port = port(&store);
    port.register(1, 2);
    let mut out = std::io::stdout();
    let mut under_way: Vec<(StoreTicket, &str, u64)> = Vec::new();
    let mut next = start;
    loop {
        while under_way.len() < WINDOW {
            let payload = vec![next as u8; (next as usize * 131) % 6_000].into();
            let m = Arc::new(Message { payload, ..message(1, 2, next) });
            under_way.push((port.submit(StoreOp::Publish { message: m, checked: false }), "stored", next));
            next += 1;
        }
        let (ticket, answer) = port.collect();
        assert!(matches!(answer, Ok(StoreReply::Done)), "{answer:?}");
        let nth = under_way.iter().position(|(t, _, _)| *t == ticket).expect("it was submitted");
        let (_, what, number) = under_way.swap_remove(nth);
        let _ = writeln!(out, "{what} {number}");
        if what == "stored" && number.is_multiple_of(5) {
            let _ = writeln!(out, "settling {number}");
            let rows = vec![RowKey::of(&message(1, 2, number))];
            let op = StoreOp::Settle { rows, low_water: None, durable: true };
            under_way.push((port.submit(op), "settled", number));
        }
    }
}
