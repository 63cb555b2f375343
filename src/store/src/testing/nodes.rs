//! A table of nodes that does as a test says.

use std::sync::{Mutex, MutexGuard};

use machine::NodeId;
use machine::peers::{DebtRow, DebtTime};

use crate::nodes::{
    Burial, ClockOffsetFuture, DebtDone, DebtRowsFuture, Debts, NodeRow, NodeRowFuture, NodeTable, Renewal, Renewed,
};

/// Answers of the table, and what it was told.
pub struct Answers {
    /// Answer to `enter`.
    pub entered: Result<(), String>,
    pub renewed: Renewed,
    /// The row of every URL. A run of it that is buried has left.
    pub row: Option<NodeRow>,
    /// Lead of the clocks of the database, asked anew each time; `None`: they do not answer.
    pub ahead: Option<Box<dyn Fn() -> i64 + Send>>,
    /// The nodes that left.
    pub left: Vec<NodeId>,
    /// Number of clocks of the database.
    pub clocks: usize,
    /// Debts by URL, and false while none can be written.
    pub debts: Vec<(Box<str>, DebtRow)>,
    pub takes_debts: bool,
    /// Time with which debts are written, in microseconds.
    pub now_us: u64,
}

/// The table. By default all is taken and nothing is known.
pub struct FakeNodes(Mutex<Answers>);

impl Default for FakeNodes {
    fn default() -> FakeNodes {
        FakeNodes(Mutex::new(Answers {
            entered: Ok(()),
            renewed: Renewed::Kept,
            row: None,
            ahead: None,
            left: Vec::new(),
            debts: Vec::new(),
            takes_debts: true,
            clocks: 3,
            now_us: 1_700_000_000_000_000,
        }))
    }
}

impl FakeNodes {
    pub fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().expect("no test panics with it")
    }
}

impl NodeTable for FakeNodes {
    fn enter(&self, _: &NodeId) -> Result<(), String> {
        self.answers().entered.clone()
    }

    fn leave(&self, node: &NodeId) -> Result<(), String> {
        self.answers().left.push(node.clone());
        Ok(())
    }

    fn renew(&self, _: &NodeId) -> Renewal {
        let renewed = self.answers().renewed;
        Box::pin(async move { renewed })
    }

    fn bury(&self, node: &NodeId) -> Burial {
        let mut answers = self.answers();
        let written = answers.row.as_mut().filter(|row| row.boot == node.boot).map(|row| row.left = true);
        Box::pin(async move { written.is_some() })
    }

    fn read(&self, _: &str) -> NodeRowFuture {
        let row = self.answers().row;
        Box::pin(async move { row })
    }

    fn write_debt(&self, url: &str, id: u64, time: DebtTime) -> DebtDone {
        let mut answers = self.answers();
        let done = answers.takes_debts;
        if done {
            let said_us = if time == DebtTime::Now { answers.now_us } else { 0 };
            answers.debts.retain(|(of, row)| (&**of, row.id) != (url, id));
            answers.debts.push((url.into(), DebtRow { id, said_us, version: 1 }));
        }
        Box::pin(async move { done })
    }

    fn clear_debt(&self, url: &str, id: u64, _: Option<i64>) -> DebtDone {
        self.answers().debts.retain(|(of, row)| (&**of, row.id) != (url, id));
        Box::pin(async { true })
    }

    fn debts(&self, url: &str) -> DebtRowsFuture {
        let answers = self.answers();
        let rows = answers.debts.iter().filter(|(of, _)| &**of == url).map(|(_, row)| *row).collect();
        let debts = Debts { now_us: answers.now_us, rows };
        Box::pin(async move { Some(debts) })
    }

    fn clock_offset(&self) -> ClockOffsetFuture {
        let ahead = self.answers().ahead.as_ref().map(|ahead| ahead());
        Box::pin(async move { ahead })
    }

    fn clock_count(&self) -> usize {
        self.answers().clocks
    }
}
