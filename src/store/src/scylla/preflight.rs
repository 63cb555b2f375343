//! Faults that would show later, found before a listener opens: configuration, tables, permissions, replicas, clocks.
//!
//! Every fault is one plain sentence, and all of them are reported at once. `murre serve` refuses to start with any,
//! `murre schema check` and `murre doctor` print them. Lives on: the runtime of the command, or the control plane's.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom as _, SystemRandom};
use scylla::client::session::Session;
use scylla::cluster::Node;
use scylla::errors::DbError;
use scylla::policies::load_balancing::{NodeIdentifier, SingleTargetLoadBalancingPolicy};
use scylla::statement::{Consistency, Statement};
use scylla::value::CqlTimestamp;
use std::sync::Arc;

use super::access::Access;
use super::connect::{connect_with, consistency};
use super::explain;
use super::schema_apply::{Versions, kind as kind_of, unreadable, versions};
use crate::shared::error::DatabaseError;
use crate::shared::options::Options;
use crate::shared::schema::{Role, TABLES, Table, VERSION};

/// Connects and checks everything that a server needs of the database, whose clocks may differ from that of this host
/// by `max_skew`. Without a fault there is a session.
pub(super) async fn examine(config: &Options, max_skew: Duration) -> (Option<(Session, Access)>, Vec<DatabaseError>) {
    let connected = async {
        let access = Access::read(config)?;
        Ok((connect_with(config, &access).await?, access))
    };
    match connected.await {
        Ok((session, access)) => {
            let faults = database(&session, config, max_skew, SystemTime::now).await;
            (Some((session, access)), faults)
        }
        Err(fault) => (None, vec![fault]),
    }
}

/// Faults of the database. `now` is the clock that its clocks are compared with.
pub(super) async fn database(
    session: &Session,
    config: &Options,
    max_skew: Duration,
    now: fn() -> SystemTime,
) -> Vec<DatabaseError> {
    let mut faults = Vec::new();
    if let Err(fault) = kind_of(session).await {
        return vec![fault];
    }
    faults.extend(clocks(session, max_skew, now).await);
    match replication(session, config).await {
        Ok(Some(found)) => faults.extend(found),
        Ok(None) => {
            let keyspace = &config.keyspace;
            faults.push(DatabaseError::lasting(format!("there is no keyspace {keyspace}; run `murre schema create`")));
            return faults;
        }
        Err(fault) => {
            faults.push(fault);
            return faults;
        }
    }
    faults.extend(ranges(session, config));
    let stated = versions(session, config).await;
    if let Ok(Some(found)) = stated
        && found.tables < VERSION
    {
        // A table that an older version lacks is outdated, not changed.
        faults.push(outdated(&config.keyspace, found.tables));
        return faults;
    }
    let missing = match columns(session, config).await {
        Ok(found) => compare(config, &found),
        Err(fault) => vec![fault],
    };
    let whole = missing.is_empty();
    faults.extend(missing);
    if whole {
        faults.extend(version_fault(stated, config));
        for table in TABLES.iter().filter(|table| table.name != "schema_version") {
            faults.extend(permissions(session, config, table).await);
        }
    }
    faults
}

/// Reads the time of every node that answers. Half of the round trip is forgiven.
async fn clocks(session: &Session, max_skew: Duration, now: fn() -> SystemTime) -> Vec<DatabaseError> {
    let mut faults = Vec::new();
    for node in session.get_cluster_state().get_nodes_info().iter().filter(|node| node.is_connected()) {
        let before = millis(now());
        let theirs = time_of(session, node).await;
        let after = millis(now());
        let Some(theirs) = theirs else {
            faults.push(DatabaseError::passing(format!("the database node {} does not tell its time", address(node))));
            continue;
        };
        let apart = (theirs - after).max(before - theirs).max(0) as u64;
        if apart > max_skew.as_millis() as u64 {
            let side = if theirs > after { "ahead of" } else { "behind" };
            faults.push(DatabaseError::passing(format!(
                "the clock of the database node {} is {:.1} s {side} ours, more than store.max_skew; set both by NTP",
                address(node),
                Duration::from_millis(apart).as_secs_f64()
            )));
        }
    }
    faults
}

/// The time of a node of the database, in milliseconds since the Unix epoch; `None` if it does not answer.
pub(super) async fn time_of(session: &Session, node: &Arc<Node>) -> Option<i64> {
    let mut ask = Statement::new("SELECT toTimestamp(now()) FROM system.local WHERE key = 'local'");
    ask.set_consistency(Consistency::One);
    let target = NodeIdentifier::Node(Arc::clone(node));
    ask.set_load_balancing_policy(Some(SingleTargetLoadBalancingPolicy::new(target, None)));
    let rows = session.query_unpaged(ask, ()).await.ok()?.into_rows_result().ok()?;
    let (CqlTimestamp(theirs),) = rows.single_row::<(CqlTimestamp,)>().ok()?;
    Some(theirs)
}

fn millis(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

fn address(node: &Node) -> String {
    format!("{}:{}", node.address.ip(), node.address.port())
}

/// Faults of the replication of the keyspace; `None` when there is no keyspace.
async fn replication(session: &Session, config: &Options) -> Result<Option<Vec<DatabaseError>>, DatabaseError> {
    let query = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let rows = rows::<(HashMap<String, String>,)>(session, query, &config.keyspace).await?;
    let Some((replication,)) = rows.into_iter().next() else { return Ok(None) };
    Ok(Some(copies(config, &replication)))
}

/// `{'class': ..., 'replication_factor': '3'}` or `{'class': ..., 'dc1': '3', ...}`.
pub(super) fn copies(config: &Options, replication: &HashMap<String, String>) -> Vec<DatabaseError> {
    let Options { keyspace, replication_factor: wanted, .. } = config;
    let mut places: Vec<_> = replication.iter().filter(|(name, _)| *name != "class").collect();
    places.sort();
    if let Some(datacenter) = &config.datacenter {
        if !places.iter().any(|(name, _)| *name == datacenter || *name == "replication_factor") {
            return vec![DatabaseError::lasting(format!(
                "the keyspace {keyspace} has no copy in store.scylla.datacenter = {datacenter}; there are {}",
                places.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
            ))];
        }
        places.retain(|(name, _)| *name == datacenter || *name == "replication_factor");
    }
    let differs = |(_, factor): &&(&String, &String)| self::factor(factor) != u64::from(*wanted);
    let fault = |(name, factor): &(&String, &String)| {
        DatabaseError::lasting(format!(
            "the keyspace {keyspace} has {factor} copies ({name}) and store.scylla.replication_factor is {wanted}: levels \
             would be counted wrongly; change one of them"
        ))
    };
    places.iter().filter(differs).map(fault).collect()
}

/// `3`, `3/1` (one of them transient, which holds nothing), or a list of racks.
pub(super) fn factor(text: &str) -> u64 {
    if let Some(racks) = text.trim().strip_prefix('[') {
        return racks.split(',').filter(|rack| !rack.trim_matches([']', ' ', '\'']).is_empty()).count() as u64;
    }
    let mut numbers = text.split('/').map(|number| number.trim().parse::<u64>().unwrap_or(0));
    let all = numbers.next().unwrap_or(0);
    all.saturating_sub(numbers.next().unwrap_or(0))
}

/// Fault of a part of the ring that has too few replicas that answer.
fn ranges(session: &Session, config: &Options) -> Option<DatabaseError> {
    let (read, write) = (config.read_consistency, config.write_consistency);
    let needed = read.answers(config.replication_factor).max(write.answers(config.replication_factor));
    let state = session.get_cluster_state();
    let ring = state.replica_locator().ring();
    let ours = |node: &Node| config.datacenter.as_ref().is_none_or(|ours| node.datacenter.as_ref() == Some(ours));
    let short = ring.iter().filter(|(token, _)| {
        let replicas = state.get_token_endpoints(&config.keyspace, TABLES[0].name, *token);
        let up = replicas.iter().filter(|(node, _)| node.is_connected() && ours(node)).count();
        up < usize::from(needed)
    });
    let (short, whole) = (short.count(), ring.len());
    (short > 0).then(|| {
        let nodes = state.get_nodes_info();
        let up = nodes.iter().filter(|node| node.is_connected()).count();
        DatabaseError::passing(format!(
            "{short} of {whole} parts of the ring have fewer than {needed} replicas up, which {read} reads and {write} \
             writes need; {up} of {} database nodes answer: start or add some",
            nodes.len()
        ))
    })
}

/// Table, column, type and kind of everything in the keyspace.
async fn columns(session: &Session, config: &Options) -> Result<Found, DatabaseError> {
    let query = "SELECT table_name, column_name, type, kind FROM system_schema.columns WHERE keyspace_name = ?";
    let rows = rows::<(String, String, String, String)>(session, query, &config.keyspace).await?;
    Ok(rows.into_iter().map(|(table, column, cql, kind)| ((table, column), (cql, kind))).collect())
}

type Found = HashMap<(String, String), (String, String)>;

/// Differences from the tables of this build. Other columns are an operator's, or of a newer version.
fn compare(config: &Options, found: &Found) -> Vec<DatabaseError> {
    let keyspace = &config.keyspace;
    let mut faults = Vec::new();
    for table in TABLES {
        let name = table.name;
        if !found.keys().any(|(table, _)| table == name) {
            faults.push(DatabaseError::lasting(format!(
                "there is no table {keyspace}.{name}; run `murre schema create`"
            )));
            continue;
        }
        for column in table.columns {
            let wanted = format!("{} {}", kind(column.role), column.cql);
            let key = (name.to_owned(), column.name.to_owned());
            let is = found.get(&key).map(|(cql, kind)| format!("{kind} {cql}"));
            if is.as_ref() != Some(&wanted) {
                let is = is.map_or_else(|| "is missing".to_owned(), |is| format!("is {is}"));
                faults.push(DatabaseError::lasting(format!(
                    "the column {} of {keyspace}.{name} {is} and must be {wanted}; the table is not murre's, or was \
                     changed: set another store.scylla.keyspace",
                    column.name
                )));
            }
        }
    }
    faults
}

/// The database's name for a role.
fn kind(role: Role) -> &'static str {
    match role {
        Role::Partition => "partition_key",
        Role::Clustering => "clustering",
        Role::Value => "regular",
    }
}

fn outdated(keyspace: &str, old: i32) -> DatabaseError {
    DatabaseError::lasting(format!(
        "the tables in {keyspace} are of version {old} and this murre needs {VERSION}; run `murre schema migrate`"
    ))
}

/// Tables of a later version are none as long as a build of this one may read them.
fn version_fault(stated: Result<Option<Versions>, DatabaseError>, config: &Options) -> Option<DatabaseError> {
    let keyspace = &config.keyspace;
    match stated {
        Ok(None) => Some(DatabaseError::lasting(format!(
            "the tables in {keyspace} are not finished; run `murre schema create` again"
        ))),
        Ok(Some(found)) if found.tables < VERSION => Some(outdated(keyspace, found.tables)),
        Ok(Some(found)) if found.least > VERSION => Some(DatabaseError::lasting(unreadable(keyspace, found, VERSION))),
        Ok(Some(_)) => None,
        Err(fault) => Some(fault),
    }
}

/// Fault of this account's permissions: it must write and read a table, and see its write at the configured levels. The
/// row is in a partition that no user has, and gone after a minute.
async fn permissions(session: &Session, config: &Options, table: &Table) -> Option<DatabaseError> {
    let name = format!("{}.{}", config.keyspace, table.name);
    let fault =
        |what: &str, why: &str, passes| Some(DatabaseError::new(format!("{name} cannot be {what}: {why}"), passes));
    let mut random = [0; 8];
    if SystemRandom::new().fill(&mut random).is_err() {
        return Some(DatabaseError::lasting("this host gives no random bytes".to_owned()));
    }
    let mark = u64::from_le_bytes(random);
    let (columns, values): (Vec<_>, Vec<_>) =
        table.columns.iter().map(|column| (column.name, probe_value(column.cql, column.role, mark))).unzip();
    let is: Vec<_> = table.columns.iter().zip(&values).filter(|(column, _)| column.role != Role::Value).collect();
    let is: Vec<_> = is.iter().map(|(column, value)| format!("{} = {value}", column.name)).collect();

    let (columns, values) = (columns.join(", "), values.join(", "));
    let mut write = Statement::new(format!("INSERT INTO {name} ({columns}) VALUES ({values}) USING TTL 60"));
    write.set_consistency(consistency(config.write_consistency));
    if let Err(error) = session.query_unpaged(write, ()).await {
        let hint = grant(&error, "MODIFY", &name, config);
        return fault("written", &format!("{}{hint}", explain::say(&error)), explain::passes(&error));
    }
    let mut read = Statement::new(format!("SELECT {} FROM {name} WHERE {}", table.columns[0].name, is.join(" AND ")));
    read.set_consistency(consistency(config.read_consistency));
    match session.query_unpaged(read, ()).await {
        Err(error) => {
            let hint = grant(&error, "SELECT", &name, config);
            fault("read", &format!("{}{hint}", explain::say(&error)), explain::passes(&error))
        }
        Ok(result) => match result.into_rows_result().map(|rows| rows.rows_num()) {
            Ok(1) => None,
            _ => fault("read", "a row that was just written is not there", false),
        },
    }
}

/// A literal of this type that no row of murre has in its key.
fn probe_value(cql: &str, role: Role, mark: u64) -> String {
    match (cql, role) {
        ("blob", Role::Partition) => "0x00".to_owned(),
        ("blob", _) => format!("0x{mark:016x}"),
        ("text", _) => format!("'preflight {mark:016x}'"),
        ("timestamp" | "bigint" | "int", _) => (mark >> 40).to_string(),
        _ => "-1".to_owned(),
    }
}

/// Remedy for a missing permission.
fn grant(error: &scylla::errors::ExecutionError, permission: &str, table: &str, config: &Options) -> String {
    match (explain::db_error(error), &config.user) {
        (Some((DbError::Unauthorized, _)), Some(user)) => format!("; GRANT {permission} ON TABLE {table} TO {user}"),
        _ => String::new(),
    }
}

/// All rows of a query about one keyspace; every row is small, and their number is that of the keyspace's columns.
async fn rows<R>(session: &Session, query: &str, keyspace: &str) -> Result<Vec<R>, DatabaseError>
where
    R: for<'frame, 'metadata> scylla::deserialize::row::DeserializeRow<'frame, 'metadata>,
{
    let said = |why: String| format!("the tables of {keyspace} cannot be looked at: {why}");
    let result = session.query_unpaged(query, (keyspace,)).await;
    let result = result.map_err(|error| DatabaseError::failed(said(explain::say(&error)), &error))?;
    let fault = |why: String| DatabaseError::lasting(said(why));
    let result = result.into_rows_result().map_err(|error| fault(error.to_string()))?;
    let rows = result.rows::<R>().map_err(|error| fault(error.to_string()))?;
    rows.collect::<Result<_, _>>().map_err(|error| fault(error.to_string()))
}
