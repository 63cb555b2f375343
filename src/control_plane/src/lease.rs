//! The lease of this node: its row says every 30 s that the boot goes on. The table may also say that it is over, which
//! ends the node: others have dropped what they owed to it, and clear the presence rows of its sessions.
//! Lives on: the control plane.

use std::sync::{Arc, mpsc};

use machine::NodeId;
use machine::counters;
use machine::stats::{Board, Counters as _};
use store::nodes::{NodeTable, RENEW_INTERVAL, Renewed};
use tokio::time::{Instant, MissedTickBehavior};

use super::debt_watch::DebtWatch;
use super::host::{Host, Signal};

counters! {
    /// Renewals of the lease of this node.
    pub struct LeaseStats {
        counter lease_renewals: "Times the table of nodes was told that this node goes on.",
        counter lease_renewals_failed: "Times it could not be told.",
        gauge lease_age_seconds: "Seconds since it was told.",
        gauge lease_lost: "1 when the table of nodes says that this run is over; the node ends then.",
    }
}

/// Renews the lease.
pub struct Lease {
    nodes: Arc<dyn NodeTable>,
    me: Arc<NodeId>,
    renewed: Instant,
    stats: LeaseStats,
    board: Arc<Board>,
}

impl Lease {
    /// Of a boot that has just entered the cluster.
    pub fn new(nodes: Arc<dyn NodeTable>, me: Arc<NodeId>) -> Lease {
        let board = Arc::new(Board::new(&[LeaseStats::MEANINGS]));
        Lease { nodes, me, renewed: Instant::now(), stats: LeaseStats::default(), board }
    }

    pub fn board(&self) -> Arc<Board> {
        Arc::clone(&self.board)
    }

    /// Renews until the boot is over, and says so to `came`. Also watches what this node is owed.
    pub(super) async fn run(mut self, came: mpsc::Sender<Signal>, host: Arc<dyn Host>) {
        let debts = DebtWatch::new(Arc::clone(&self.nodes), Arc::clone(&self.me));
        tokio::spawn(debts.run(Arc::clone(&host)));
        let mut tick = tokio::time::interval(RENEW_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let over = self.renew().await;
            // A node that is told to stop says by itself that it leaves.
            if over && !host.is_stopping() {
                // Without a receiver the node ends already.
                let _ = came.send(Signal::Over);
                return;
            }
        }
    }

    /// Renews once. Returns true if the boot is over.
    async fn renew(&mut self) -> bool {
        let renewed = self.nodes.renew(&self.me).await;
        match renewed {
            Renewed::Kept => {
                self.renewed = Instant::now();
                self.stats.lease_renewals += 1;
            }
            Renewed::Unknown => self.stats.lease_renewals_failed += 1,
            Renewed::Taken => tracing::error!(node = %self.me.url, "node.url taken by another boot"),
            Renewed::Buried => {
                tracing::error!(node = %self.me.url, "boot declared over by another node, which cannot reach it");
            }
        }
        let over = matches!(renewed, Renewed::Taken | Renewed::Buried);
        self.stats.lease_lost = u64::from(over);
        self.stats.lease_age_seconds = self.renewed.elapsed().as_secs();
        self.stats.write_to(&self.board, 0);
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::testing::nodes::FakeNodes;

    #[tokio::test]
    async fn a_run_ends_when_the_table_says_so_and_for_no_silence_of_the_database() {
        let table = Arc::new(FakeNodes::default());
        let me = Arc::new(NodeId { url: "http://n".into(), boot: 1 });
        let mut lease = Lease::new(Arc::clone(&table) as Arc<dyn NodeTable>, me);
        for (says, over) in
            [(Renewed::Kept, false), (Renewed::Unknown, false), (Renewed::Taken, true), (Renewed::Buried, true)]
        {
            table.answers().renewed = says;
            assert_eq!(lease.renew().await, over, "{says:?}");
        }
        let stats = lease.stats;
        assert_eq!((stats.lease_renewals, stats.lease_renewals_failed, stats.lease_lost), (1, 1, 1));
    }
}
