//! `murre maintain shared`: counts users by the time since they were last seen, measures tables, and drops users.
//!
//! Reads the whole table `user`, a page at a time, so that it takes long rather than much. Lives on: the runtime of the
//! command.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scylla::client::session::Session;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::response::{PagingState, PagingStateResponse};
use scylla::statement::{Consistency, Statement};

use super::connect::consistency;
use super::explain;
use super::purge::Purger;
use super::schema_apply::{self, Kind};
use crate::IDLE_SECONDS_MAX;
use crate::shared::census::{AGES, Census, Purge, Space};
use crate::shared::error::DatabaseError;
use crate::shared::options::Options;
use crate::shared::schema::{TABLES, family};

/// One partition of `user` during the scan.
#[derive(Default)]
struct UserScan {
    uaid: Vec<u8>,
    /// Seconds of TTL that its record has left.
    record: Option<i32>,
    channels: u64,
    presences: u64,
}

/// Counts users, and drops those of `purge`, until `stop` is set: then it ends behind the user it is at.
///
/// # Errors
/// The database refuses or does not answer, or `stop` was set. Nothing is half done then: it may be run again.
pub(super) async fn census(
    session: &Session,
    config: &Options,
    purge: Purge,
    stop: &AtomicBool,
) -> Result<Census, DatabaseError> {
    let keyspace = &config.keyspace;
    let query = format!("SELECT uaid, family, TTL(value) FROM {keyspace}.user");
    let mut scan = Statement::new(query).with_page_size(PAGE_ROWS);
    scan.set_consistency(consistency(config.read_consistency));
    scan.set_request_timeout(Some(PAGE_TIME_MAX));
    let fault =
        |error: &dyn fmt::Display| DatabaseError::passing(format!("the users in {keyspace} cannot be read: {error}"));
    let broom = match purge {
        Purge::Nobody => None,
        Purge::Idle(_) => Some(Purger::new(session, config).await?),
    };
    let mut census = Census::default();
    let mut seen = UserScan::default();
    let mut page = PagingState::start();
    loop {
        let asked = session.query_single_page(scan.clone(), (), page).await;
        let (result, next) = asked.map_err(|error| fault(&explain::say(&error)))?;
        let result = result.into_rows_result().map_err(|error| fault(&error))?;
        let rows = result.rows::<(Vec<u8>, i8, Option<i32>)>().map_err(|error| fault(&error))?;
        for row in rows {
            let (uaid, family, ttl) = row.map_err(|error| fault(&error))?;
            // The preflight's row is no user.
            if uaid.len() != UAID_BYTES {
                continue;
            }
            if uaid != seen.uaid {
                settle(broom.as_ref(), &mut census, &seen, purge).await?;
                if stop.load(Ordering::Relaxed) {
                    let dropped = census.purged;
                    return Err(DatabaseError::passing(format!(
                        "told to stop; {dropped} users were dropped, run it again to go on"
                    )));
                }
                seen = UserScan { uaid, ..UserScan::default() };
            }
            match family {
                family::RECORD => seen.record = Some(ttl.unwrap_or(i32::MAX)),
                family::CHANNEL => seen.channels += 1,
                family::PRESENCE => seen.presences += 1,
                _ => {}
            }
        }
        match next {
            PagingStateResponse::HasMorePages { state } => page = state,
            PagingStateResponse::NoMorePages => break,
        }
    }
    settle(broom.as_ref(), &mut census, &seen, purge).await?;
    Ok(census)
}

const UAID_BYTES: usize = 16;
const PAGE_ROWS: i32 = 1_000;
const PAGE_TIME_MAX: Duration = Duration::from_secs(60);

/// Counts one partition, and drops it if `purge` takes it.
async fn settle(
    broom: Option<&Purger<'_>>,
    census: &mut Census,
    seen: &UserScan,
    purge: Purge,
) -> Result<(), DatabaseError> {
    if seen.uaid.is_empty() {
        return Ok(());
    }
    census.channels += seen.channels;
    census.presences += seen.presences;
    let idle = seen.record.map(|left| IDLE_SECONDS_MAX.saturating_sub(u64::try_from(left).unwrap_or(0)));
    match idle {
        None => census.leftovers += 1,
        Some(idle) => {
            census.users += 1;
            let age = AGES.iter().position(|days| idle <= days * 86_400).unwrap_or(AGES.len() - 1);
            census.idle[age] += 1;
        }
    }
    let Some(broom) = broom.filter(|_| purge.takes(idle)) else { return Ok(()) };
    // The page may be minutes old.
    let found = broom.read(&seen.uaid).await?;
    if found.is_gone() || !purge.takes(found.idle()) {
        return Ok(());
    }
    if found.connected().await? {
        census.passed_by += 1;
    } else if found.purge().await? {
        census.purged += 1;
    }
    Ok(())
}

/// Sizes of the two large tables, by name.
///
/// # Errors
/// The kind of the database cannot be found out.
pub(super) async fn space(session: &Session, config: &Options) -> Result<BTreeMap<&'static str, Space>, DatabaseError> {
    let kind = schema_apply::kind(session).await?;
    let mut spaces = BTreeMap::new();
    for table in TABLES.iter().take(LARGE_TABLES) {
        let mut space = Space::default();
        for node in session.get_cluster_state().get_nodes_info().iter().filter(|node| node.is_connected()) {
            let ask = Ask { session, node: NodeIdentifier::Node(Arc::clone(node)), keyspace: &config.keyspace };
            space.nodes += 1;
            let sizes = "SELECT partitions_count, mean_partition_size FROM system.size_estimates";
            for (partitions, mean) in ask.rows::<(i64, i64)>(sizes, table.name).await {
                let (partitions, mean) = (u64::try_from(partitions).unwrap_or(0), u64::try_from(mean).unwrap_or(0));
                space.partitions += partitions;
                space.bytes += partitions * mean;
            }
            if matches!(kind, Kind::Cassandra(_)) {
                let tombstones = "SELECT p99th, max FROM system_views.tombstones_per_read";
                for (p99, max) in ask.rows::<(f64, f64)>(tombstones, table.name).await {
                    space.tombstones_p99 = space.tombstones_p99.max(Some(p99 as u64));
                    space.tombstones_max = space.tombstones_max.max(Some(max as u64));
                }
            }
        }
        spaces.insert(table.name, space);
    }
    Ok(spaces)
}

/// `user` and `message` are the first of [`TABLES`].
const LARGE_TABLES: usize = 2;

/// One node, asked about its own part.
struct Ask<'a> {
    session: &'a Session,
    node: NodeIdentifier,
    keyspace: &'a str,
}

impl Ask<'_> {
    /// Rows about one table; none when the node does not answer: these are estimates.
    async fn rows<R>(&self, select: &str, table: &str) -> Vec<R>
    where
        R: for<'frame, 'metadata> scylla::deserialize::row::DeserializeRow<'frame, 'metadata>,
    {
        let mut ask = Statement::new(format!("{select} WHERE keyspace_name = ? AND table_name = ?"));
        ask.set_consistency(Consistency::One);
        ask.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(self.node.clone(), None)));
        let answer = self.session.query_unpaged(ask, (self.keyspace, table)).await;
        let rows = answer.ok().and_then(|answer| answer.into_rows_result().ok());
        let Some(rows) = rows else { return Vec::new() };
        rows.rows::<R>().map(|rows| rows.flatten().collect()).unwrap_or_default()
    }
}
