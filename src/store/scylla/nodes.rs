//! The table of nodes (`crate::store::nodes`).
//!
//! Lives on: the thread that starts and stops the node, and the island; the work is done on the store's runtime.

use std::sync::Arc;
use std::time::Duration;

use scylla::value::CqlTimestamp;
use shards::machine::NodeId;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::backend::block_on;
use super::client::{Client, Failed, Hand};
use super::stats::Statement;
use crate::store::nodes::{Ahead, Look, NodeRow, Nodes};

/// How long one call may take, with all retries.
const WITHIN: Duration = Duration::from_secs(20);
/// Reads of the island beside each other.
const BESIDE: usize = 16;

/// The table, for whoever starts, stops and calls nodes.
pub(super) struct Table {
    handle: Handle,
    work: Arc<Work>,
}

struct Work {
    client: Arc<Client>,
    permits: Semaphore,
}

impl Table {
    pub(super) fn new(handle: Handle, client: Arc<Client>) -> Table {
        Table { handle, work: Arc::new(Work { client, permits: Semaphore::new(BESIDE) }) }
    }
}

/// A row and the timestamp of its boot id.
struct Found {
    row: NodeRow,
    at: i64,
}

impl Work {
    fn hand(&self) -> Hand<'_> {
        Hand { client: &self.client, permits: &self.permits, until: Instant::now() + WITHIN }
    }

    async fn read(&self, url: &str) -> Result<Option<Found>, Failed> {
        let (found, _) = self.hand().read(Statement::NodeRead, &(url,), None, false).await?;
        let row = found.maybe_first_row::<(Option<i64>, Option<CqlTimestamp>, Option<i64>)>().map_err(|_| Failed)?;
        let Some((Some(boot), left_at, at)) = row else { return Ok(None) };
        let row = NodeRow { boot: boot.cast_unsigned(), left: left_at.is_some() };
        Ok(Some(Found { row, at: at.unwrap_or_default() }))
    }

    /// Later than the row that is there, also when our clock was set back.
    fn after(&self, there: Option<&Found>) -> i64 {
        let now = i64::try_from(self.client.wall.unix_us()).unwrap_or(i64::MAX);
        now.max(there.map_or(0, |found| found.at.saturating_add(1)))
    }

    async fn enter(&self, node: &NodeId) -> Result<(), Failed> {
        let there = self.read(&node.url).await?;
        let at = self.after(there.as_ref());
        let values = (&*node.url, node.boot.cast_signed(), CqlTimestamp(at / 1_000), at);
        self.hand().send(Statement::NodeEnter, &values).await
    }

    async fn leave(&self, node: &NodeId) -> Result<(), Failed> {
        let there = self.read(&node.url).await?;
        if there.as_ref().is_none_or(|found| found.row.boot != node.boot) {
            return Ok(());
        }
        let at = self.after(there.as_ref());
        self.hand().send(Statement::NodeLeave, &(at, CqlTimestamp(at / 1_000), &*node.url)).await
    }
}

impl Nodes for Table {
    fn enter(&self, node: &NodeId) -> Result<(), String> {
        block_on(&self.handle, self.work.enter(node))
            .map_err(|Failed| "the database does not take the row of this node in the table node".to_owned())
    }

    fn leave(&self, node: &NodeId) -> Result<(), String> {
        block_on(&self.handle, self.work.leave(node))
            .map_err(|Failed| "the database does not take that this node leaves".to_owned())
    }

    fn look(&self, url: &str) -> Look {
        let (work, url) = (Arc::clone(&self.work), url.to_owned());
        let looked = self.handle.spawn(async move { work.read(&url).await });
        Box::pin(async move { looked.await.ok()?.ok()?.map(|found| found.row) })
    }

    fn ahead(&self) -> Ahead {
        let client = Arc::clone(&self.work.client);
        let told = self.handle.spawn(async move { client.ahead().await });
        Box::pin(async move { told.await.ok()? })
    }
}
