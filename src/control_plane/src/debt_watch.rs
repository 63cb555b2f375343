//! Debts of other nodes to this one (decision 0037): a node that has ended, or has lost notifications, leaves a row in
//! the table of debts, and every session here reads storage then.
//! Lives on: the control plane.

use std::sync::Arc;
use std::time::Duration;

use machine::NodeId;
use machine::peers::DEBT_INTERVAL;
use store::nodes::NodeTable;
use tokio::time::MissedTickBehavior;

use super::host::Host;

/// Watch over the debts to this node.
pub(super) struct DebtWatch {
    nodes: Arc<dyn NodeTable>,
    me: Arc<NodeId>,
}

impl DebtWatch {
    pub(super) fn new(nodes: Arc<dyn NodeTable>, me: Arc<NodeId>) -> DebtWatch {
        DebtWatch { nodes, me }
    }

    /// Looks for debts for ever.
    pub(super) async fn run(self, host: Arc<dyn Host>) {
        let mut tick = tokio::time::interval(Duration::from_nanos(DEBT_INTERVAL.0));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            self.look(|| host.read_storage()).await;
        }
    }

    /// Looks once. A debt is deleted when the sessions that it is for know of it: they end with this process.
    async fn look(&self, read_storage: impl Fn()) {
        // What cannot be read now is there at the next look.
        let Some(debts) = self.nodes.debts(&self.me.url).await else { return };
        let left: Vec<_> = debts.rows.into_iter().filter(|row| row.is_left(debts.now_us)).collect();
        if left.is_empty() {
            return;
        }
        tracing::warn!(debts = left.len(), "notifications of other nodes lost; every session reads storage");
        read_storage();
        for row in left {
            // A row that stays makes another round.
            self.nodes.clear_debt(&self.me.url, row.id, Some(row.version)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use machine::peers::DebtTime;
    use store::testing::nodes::FakeNodes;

    use super::*;

    #[tokio::test]
    async fn a_debt_whose_boot_has_ended_makes_every_session_read_storage_once() {
        let (table, rounds) = (Arc::new(FakeNodes::default()), Cell::new(0));
        let count = || rounds.set(rounds.get() + 1);
        let me = Arc::new(NodeId { url: "http://n".into(), boot: 1 });
        let watch = DebtWatch::new(Arc::clone(&table) as Arc<dyn NodeTable>, me);
        table.write_debt("http://n", 5, DebtTime::Now).await;
        table.write_debt("http://m", 6, DebtTime::Ended).await;
        watch.look(count).await;
        assert_eq!(rounds.get(), 0, "the boot that owes goes on, and the other debt is to another node");
        table.write_debt("http://n", 7, DebtTime::Ended).await;
        watch.look(count).await;
        watch.look(count).await;
        assert_eq!((rounds.get(), table.answers().debts.len()), (1, 2));
        table.answers().now_us += 60_000_000;
        watch.look(count).await;
        assert_eq!((rounds.get(), table.answers().debts.len()), (2, 1), "it says no more that it owes");
    }
}
