//! The table of debts on a real Cassandra (decision 0037).

use std::sync::Arc;

use machine::peers::{DebtRow, DebtTime};
use runtime::process_clock::ProcessClock;

use super::super::Scylla;
use super::refresh::Bare;
use crate::nodes::{Debts, NodeTable};
use crate::shared::opening::ConnectOptions;
use crate::testing::database::shared;

/// The present of these tests at their begin, in microseconds.
const START: u64 = 1_700_000_000_000_000;

/// The table as two nodes see it, with the clock of the first one.
struct World {
    clock: Arc<ProcessClock>,
    owing: Scylla,
    owed: Scylla,
    /// The table of the node that owes.
    table: Arc<dyn NodeTable>,
    url: String,
}

impl World {
    fn new() -> World {
        use std::hash::{BuildHasher as _, RandomState};
        let clock = Arc::new(ProcessClock::standing(START));
        let open = |process_clock| Scylla::connect(shared(), ConnectOptions { process_clock }).expect("it opens");
        let owing = open(Arc::clone(&clock));
        let owed = open(Arc::new(ProcessClock::standing(START)));
        let table = owing.nodes();
        World { clock, owing, owed, table, url: format!("http://192.0.2.1/{:016x}", RandomState::new().hash_one(1)) }
    }

    fn write(&self, id: u64, time: DebtTime) {
        assert!(self.owing.runtime.block_on(self.table.write_debt(&self.url, id, time)));
    }

    /// The boot deletes what it has written.
    fn clear(&self, id: u64) {
        assert!(self.owing.runtime.block_on(self.table.clear_debt(&self.url, id, None)));
    }

    /// The node that is owed deletes what it has read.
    fn take(&self, row: &DebtRow) {
        let table = self.owed.nodes();
        assert!(self.owed.runtime.block_on(table.clear_debt(&self.url, row.id, Some(row.version))));
    }

    fn end(self) {
        drop(self.table);
        [self.owing, self.owed].into_iter().for_each(Scylla::close);
    }

    fn debts(&self) -> Vec<DebtRow> {
        let found = self.owed.runtime.block_on(self.owed.nodes().debts(&self.url));
        let Debts { now_us, rows } = found.expect("it is read");
        assert_eq!(now_us, START);
        rows
    }

    fn ids(&self) -> Vec<(u64, u64)> {
        self.debts().iter().map(|row| (row.id, row.said_us)).collect()
    }
}

/// A row that is deleted in the version that was read comes back when the boot says later that it owes.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn debts_come_and_go_by_rows() {
    let world = World::new();
    assert_eq!(world.ids(), []);
    world.write(5, DebtTime::Now);
    world.write(u64::MAX, DebtTime::Ended);
    assert_eq!(world.ids(), [(u64::MAX, 0), (5, START)], "ordered as signed numbers");
    let read = world.debts();
    world.write(5, DebtTime::Ended);
    for row in &read {
        world.take(row);
    }
    assert_eq!(world.ids(), [(5, 0)], "it was written since");
    // Also when the clock of the boot that owes was set back, or stands.
    world.clear(5);
    world.clock.apply_step(-3_600_000_000);
    world.write(5, DebtTime::Now);
    assert_eq!(world.ids(), [(5, START - 3_600_000_000)]);
    world.clear(5);
    assert_eq!(world.ids(), []);
    world.end();
}

/// Rows of boots that go on do not hide those of a boot that has ended.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn every_debt_to_a_node_is_read() {
    let world = World::new();
    for id in 0..600 {
        world.write(id, DebtTime::Now);
    }
    world.write(600, DebtTime::Ended);
    assert_eq!(world.ids().iter().filter(|(_, said_us)| *said_us == 0).collect::<Vec<_>>(), [&(600, 0)]);
    assert_eq!(world.debts().len(), 601);
    world.end();
}

/// A debt is one cell, however many notifications it stands for and however often it is written.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn debts_that_are_answered_leave_few_tombstones() {
    let world = World::new();
    let bare = Bare::new(shared());
    for _ in 0..300 {
        world.write(5, DebtTime::Now);
        world.write(6, DebtTime::Ended);
        world.clear(5);
        for row in &world.debts() {
            world.take(row);
        }
    }
    assert_eq!(world.ids(), []);
    let passed = bare.tombstones(&format!("SELECT id FROM KS.debt WHERE url = '{}'", world.url));
    assert!(passed <= 2, "{passed} tombstones after 600 debts of one boot");
    world.end();
}
