//! The table of nodes (`crate::nodes`).
//!
//! Lives on: the thread that starts and stops the node, and the control plane; the work is done on the store's runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use machine::NodeId;
use machine::peers::{DEBT_SECONDS, DebtRow, DebtTime};
use scylla::value::CqlTimestamp;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::blocking::block_on;
use super::client::{Client, Failed, StatementContext};
use super::stats::Statement;
use crate::IDLE_SECONDS_MAX;
use crate::nodes::{
    Burial, ClockOffsetFuture, DebtDone, DebtRowsFuture, Debts, NodeRow, NodeRowFuture, NodeTable, Renewal, Renewed,
};

/// Time limit of one call, with all retries.
const WITHIN: Duration = Duration::from_secs(20);
/// Pages of debts to one node that are read at once: 4,000 rows of 60 B.
const DEBT_PAGES_MAX: usize = 8;
/// Reads of the control plane at the same time.
const BESIDE: usize = 16;
/// Seconds that a lease is kept: longer than the presence rows of its boot.
const LEASE_SECONDS: i32 = IDLE_SECONDS_MAX as i32 + 86_400;

/// The table, for the starting thread and the control plane.
pub(super) struct Table {
    handle: Handle,
    work: Arc<Work>,
}

struct Work {
    client: Arc<Client>,
    permits: Semaphore,
    /// The last version of a row of a debt: a later write or delete is newer, also when the clock is set back.
    debt_version: AtomicI64,
}

impl Table {
    pub(super) fn new(handle: Handle, client: Arc<Client>) -> Table {
        Table {
            handle,
            work: Arc::new(Work { client, permits: Semaphore::new(BESIDE), debt_version: AtomicI64::new(0) }),
        }
    }
}

/// A row and the timestamp of its boot id.
struct Found {
    row: NodeRow,
    at: i64,
}

impl Work {
    fn context(&self) -> StatementContext<'_> {
        StatementContext { client: &self.client, permits: &self.permits, until: Instant::now() + WITHIN }
    }

    async fn read(&self, url: &str) -> Result<Option<Found>, Failed> {
        let (found, _) = self.context().read(Statement::NodeRead, &(url,), None, false).await?;
        let row = found.maybe_first_row::<(Option<i64>, Option<CqlTimestamp>, Option<i64>)>().map_err(|_| Failed)?;
        let Some((Some(boot), left_at, at)) = row else { return Ok(None) };
        let row = NodeRow { boot: boot.cast_unsigned(), left: left_at.is_some(), silent: None };
        Ok(Some(Found { row, at: at.unwrap_or_default() }))
    }

    /// The row, and the time since which that boot is silent.
    async fn look(&self, url: &str) -> Result<Option<NodeRow>, Failed> {
        let Some(Found { row, .. }) = self.read(url).await? else { return Ok(None) };
        let (found, _) = self.context().read(Statement::LeaseRead, &(url, row.boot.cast_signed()), None, false).await?;
        let seen = found.maybe_first_row::<(Option<CqlTimestamp>,)>().map_err(|_| Failed)?;
        let now = self.client.process_clock.unix_us() / 1_000;
        let silent = |CqlTimestamp(at)| Duration::from_millis(now.saturating_sub(u64::try_from(at).unwrap_or(0)));
        // A clock that is too far from the database's judges no other node.
        let seen = seen.filter(|_| !self.client.process_clock.is_stopped());
        Ok(Some(NodeRow { silent: seen.and_then(|(at,)| at).map(silent), ..row }))
    }

    async fn see(&self, node: &NodeId) -> Result<(), Failed> {
        let at = self.after(None);
        let values = (at, LEASE_SECONDS, CqlTimestamp(at / 1_000), &*node.url, node.boot.cast_signed());
        self.context().send(Statement::LeaseRenew, &values).await
    }

    async fn renew(&self, node: &NodeId) -> Result<Renewed, Failed> {
        match self.read(&node.url).await? {
            Some(Found { row, .. }) if row.boot != node.boot => Ok(Renewed::Taken),
            Some(Found { row, .. }) if row.left => Ok(Renewed::Buried),
            // A deleted row does not end the boot.
            Some(_) | None => self.see(node).await.map(|()| Renewed::Kept),
        }
    }

    /// A timestamp later than the row that is there, also when our clock was set back.
    fn after(&self, there: Option<&Found>) -> i64 {
        let now = i64::try_from(self.client.process_clock.unix_us()).unwrap_or(i64::MAX);
        now.max(there.map_or(0, |found| found.at.saturating_add(1)))
    }

    async fn enter(&self, node: &NodeId) -> Result<(), Failed> {
        let there = self.read(&node.url).await?;
        let at = self.after(there.as_ref());
        let values = (&*node.url, node.boot.cast_signed(), CqlTimestamp(at / 1_000), at);
        // The lease first: a row of a boot without one would never be found gone.
        self.see(node).await?;
        self.context().send(Statement::NodeEnter, &values).await
    }

    fn debt_version(&self) -> i64 {
        let now = self.after(None);
        let last = self.debt_version.fetch_max(now, Ordering::SeqCst);
        if last < now { now } else { self.debt_version.fetch_add(1, Ordering::SeqCst) + 1 }
    }

    async fn write_debt(&self, url: &str, id: u64, time: DebtTime) -> Result<(), Failed> {
        let at = self.debt_version();
        let said_at = CqlTimestamp(if time == DebtTime::Now { self.after(None) / 1_000 } else { 0 });
        self.context()
            .send(Statement::DebtWrite, &(at, DEBT_SECONDS.cast_signed(), said_at, url, id.cast_signed()))
            .await
    }

    async fn clear_debt(&self, url: &str, id: u64, version: Option<i64>) -> Result<(), Failed> {
        let at = version.unwrap_or_else(|| self.debt_version());
        self.context().send(Statement::DebtClear, &(at, url, id.cast_signed())).await
    }

    async fn debts(&self, url: &str) -> Result<Debts, Failed> {
        let row = |(id, said_at, version): (i64, Option<CqlTimestamp>, Option<i64>)| {
            let said_ms = said_at.map_or(0, |CqlTimestamp(ms)| u64::try_from(ms).unwrap_or(0));
            DebtRow { id: id.cast_unsigned(), said_us: said_ms * 1_000, version: version.unwrap_or_default() }
        };
        let (mut rows, mut state) = (Vec::new(), None);
        // Rows of boots that go on may fill the first pages. What is behind the last one is there at the next look.
        for _ in 0..DEBT_PAGES_MAX {
            let (found, next) = self.context().read(Statement::DebtsRead, &(url,), state, true).await?;
            for read in found.rows::<(i64, Option<CqlTimestamp>, Option<i64>)>().map_err(|_| Failed)? {
                rows.push(row(read.map_err(|_| Failed)?));
            }
            state = next;
            if state.is_none() {
                break;
            }
        }
        // A clock that is too far from the database's judges no other node.
        let clock = &self.client.process_clock;
        Ok(Debts { now_us: if clock.is_stopped() { 0 } else { clock.unix_us() }, rows })
    }

    async fn leave(&self, node: &NodeId) -> Result<(), Failed> {
        let Some(Found { row, at }) = self.read(&node.url).await? else { return Ok(()) };
        if row.boot != node.boot {
            return Ok(());
        }
        // One microsecond behind the boot id that was read: a boot that enters later writes later and keeps its row.
        let left_at = CqlTimestamp(self.after(None) / 1_000);
        self.context().send(Statement::NodeLeave, &(at.saturating_add(1), left_at, &*node.url)).await
    }
}

impl NodeTable for Table {
    fn enter(&self, node: &NodeId) -> Result<(), String> {
        block_on(&self.handle, self.work.enter(node))
            .map_err(|Failed| "the database does not take the row of this node in the table node".to_owned())
    }

    fn leave(&self, node: &NodeId) -> Result<(), String> {
        block_on(&self.handle, self.work.leave(node))
            .map_err(|Failed| "the database does not take that this node leaves".to_owned())
    }

    fn renew(&self, node: &NodeId) -> Renewal {
        let (work, node) = (Arc::clone(&self.work), node.clone());
        let renewed = self.handle.spawn(async move { work.renew(&node).await });
        Box::pin(async move { renewed.await.unwrap_or(Err(Failed)).unwrap_or(Renewed::Unknown) })
    }

    fn bury(&self, node: &NodeId) -> Burial {
        let (work, node) = (Arc::clone(&self.work), node.clone());
        let buried = self.handle.spawn(async move { work.leave(&node).await });
        Box::pin(async move { buried.await.is_ok_and(|written| written.is_ok()) })
    }

    fn read(&self, url: &str) -> NodeRowFuture {
        let (work, url) = (Arc::clone(&self.work), url.to_owned());
        let looked = self.handle.spawn(async move { work.look(&url).await });
        Box::pin(async move { looked.await.ok()?.ok()? })
    }

    fn write_debt(&self, url: &str, id: u64, time: DebtTime) -> DebtDone {
        let (work, url) = (Arc::clone(&self.work), url.to_owned());
        let written = self.handle.spawn(async move { work.write_debt(&url, id, time).await });
        Box::pin(async move { written.await.is_ok_and(|written| written.is_ok()) })
    }

    fn clear_debt(&self, url: &str, id: u64, version: Option<i64>) -> DebtDone {
        let (work, url) = (Arc::clone(&self.work), url.to_owned());
        let cleared = self.handle.spawn(async move { work.clear_debt(&url, id, version).await });
        Box::pin(async move { cleared.await.is_ok_and(|cleared| cleared.is_ok()) })
    }

    fn debts(&self, url: &str) -> DebtRowsFuture {
        let (work, url) = (Arc::clone(&self.work), url.to_owned());
        let read = self.handle.spawn(async move { work.debts(&url).await });
        Box::pin(async move { read.await.ok()?.ok() })
    }

    fn clock_offset(&self) -> ClockOffsetFuture {
        let client = Arc::clone(&self.work.client);
        let told = self.handle.spawn(async move { client.ahead().await });
        Box::pin(async move { told.await.ok()? })
    }

    fn clock_count(&self) -> usize {
        self.work.client.clock_count()
    }
}
