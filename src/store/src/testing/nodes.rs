//! A table of nodes that does as a test says.

use std::sync::{Mutex, MutexGuard};

use machine::NodeId;

use crate::nodes::{Burial, ClockOffsetFuture, NodeRow, NodeRowFuture, NodeTable, Renewal, Renewed};

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
}

/// The table. By default all is taken and nothing is known.
pub struct FakeNodes(Mutex<Answers>);

impl Default for FakeNodes {
    fn default() -> FakeNodes {
        let answers =
            Answers { entered: Ok(()), renewed: Renewed::Kept, row: None, ahead: None, left: Vec::new(), clocks: 3 };
        FakeNodes(Mutex::new(answers))
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

    fn clock_offset(&self) -> ClockOffsetFuture {
        let ahead = self.answers().ahead.as_ref().map(|ahead| ahead());
        Box::pin(async move { ahead })
    }

    fn clock_count(&self) -> usize {
        self.answers().clocks
    }
}
