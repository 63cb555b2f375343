//! A midnight that passes over live sessions: a shard's machine in made time on a real database.
//!
//! `TEST_MIDNIGHT_SESSIONS` is their number; the drill has 20,000.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant as Real};

use machine::ids::{Chid, Clock, ConnId, ShardId, StoreTicket, Uaid};
use machine::placement::Placement;
use machine::time::{Instant, Now, TimeSpan, UnixSeconds};
use machine::{AgentCommand, Effect, EffectQueue, Hello, Input, MachineConfig, NodeId, ShardMachine, StoreOp};
use runtime::ports::Store;

use super::super::Scylla;
use super::super::stats::STATEMENTS;
use super::Apart;
use crate::testing::database::open;

/// A midnight of 2027, and half of the time that passes over it, in seconds.
const MIDNIGHT: u64 = 20_500 * 86_400;
const AROUND: u64 = 600;

struct Drill {
    machine: ShardMachine,
    port: Apart,
    now: Now,
    outstanding: usize,
}

impl Drill {
    fn step(&mut self, input: Input) {
        let mut effects = EffectQueue::new();
        self.machine.step(self.now, input, &mut effects);
        for effect in effects {
            match effect {
                Effect::Store(ticket, op) => {
                    self.port.submit(ticket, op);
                    self.outstanding += 1;
                }
                Effect::Close(_, reason) => panic!("a session is closed: {reason:?}"),
                _ => {}
            }
        }
    }

    /// Answers until at most this number of operations is under way.
    fn answer(&mut self, outstanding: usize) {
        let mut last = Real::now();
        while self.outstanding > outstanding {
            match self.port.collect() {
                Some((ticket, result)) => {
                    assert!(result.is_ok(), "{result:?}");
                    (self.outstanding, last) = (self.outstanding - 1, Real::now());
                    self.step(Input::Stored { ticket, result });
                }
                None => {
                    assert!(last.elapsed() < Duration::from_secs(60), "storage answers");
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        }
    }

    /// Moves the time to the next timeout, `end` at the latest.
    fn pass(&mut self, end: u64) {
        let left = TimeSpan::from_secs(end - self.now.unix().0);
        let end = self.now.mono.after(left);
        let due = self.machine.next_timeout().unwrap_or(end).clamp(self.now.mono.after(TimeSpan(1_000)), end);
        self.now.unix_us += due.since(self.now.mono).micros();
        self.now.mono = due;
        self.step(Input::Timeout);
        self.answer(0);
    }
}

fn user(n: usize) -> Uaid {
    let mut id = [0x5a; 16];
    id[..8].copy_from_slice(&(n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    Uaid(id)
}

fn sent(store: &Scylla) -> u64 {
    STATEMENTS.iter().map(|one| store.client.stats.count(*one)).sum()
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn midnight_passes_and_the_database_is_asked_as_before() {
    let sessions = std::env::var("TEST_MIDNIGHT_SESSIONS").map_or(500, |text| text.parse().expect("a number"));
    let store = open();
    let mut config = MachineConfig::new(ShardId(0), Placement::new([7; 16], 1));
    config.sessions_max = sessions as u32;
    config.ping_interval = TimeSpan(0);
    config.node = Some(Arc::new(NodeId { url: "http://127.0.0.1:1".into(), boot: 1 }));
    let now = Now { mono: Instant(1_000_000_000), unix_us: (MIDNIGHT - AROUND) * 1_000_000 };
    let (machine, port) = (ShardMachine::new(config), Apart::new(&store));
    let mut drill = Drill { machine, port, now, outstanding: 0 };
    for n in 0..sessions {
        let op = StoreOp::Register {
            uaid: user(n),
            chid: Chid([1; 16]),
            key: None,
            at: Clock(now.unix_us - 3_600_000_000),
            seen: UnixSeconds(MIDNIGHT - AROUND),
            contact: None,
            presence: None,
            maker: None,
        };
        drill.port.submit(StoreTicket { index: u32::MAX, generation: u32::MAX }, op);
        drill.outstanding += 1;
        drill.answer(1_000);
    }
    drill.answer(0);
    for n in 0..sessions {
        let conn = ConnId { slot: n as u32, generation: 1 };
        drill.step(Input::Opened { conn });
        let hello = Hello::new(Some(user(n)), user(n));
        drill.step(Input::Command { conn, command: AgentCommand::Hello(Box::new(hello)).into() });
        drill.answer(500);
    }
    drill.answer(0);
    assert_eq!(drill.machine.stats().sessions, sessions as u64);
    // Statements of each minute, and the most of one step of the machine.
    let (mut minutes, mut most) = (BTreeMap::new(), 0);
    while drill.now.unix().0 < MIDNIGHT + AROUND {
        let (minute, before) = ((drill.now.unix().0 + AROUND - MIDNIGHT) / 60, sent(&store));
        drill.pass(MIDNIGHT + AROUND);
        let count = sent(&store) - before;
        *minutes.entry(minute).or_insert(0) += count;
        most = most.max(count);
    }
    let refreshes = drill.machine.stats().refreshes;
    println!("{sessions} sessions, {refreshes} refreshes; statements of each minute: {minutes:?}; of one step: {most}");
    // A refresh and its look are five statements. In these minutes `due` users are due, and up to twice as many by
    // chance.
    let due = sessions as u64 * 2 * AROUND / machine::limits::REFRESH_INTERVAL_SECONDS + 1;
    assert!(refreshes <= 3 * due + 5, "{refreshes} refreshes, {due} due");
    assert!(minutes.values().sum::<u64>() <= 6 * refreshes);
    drop(drill);
    store.close();
}
