//! Makes the tables and brings older ones up to date. Every statement may be repeated: an interrupted run is run again.
//!
//! Lives on: the runtime of `murre schema`, or the control plane's.

use std::time::Duration;

use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError};
use scylla::statement::Statement;

use super::connect::consistency;
use super::explain;
use crate::shared::error::DatabaseError;
use crate::shared::options::Options;
use crate::shared::schema::{LEAST_PART, Layout, PART, STEPS, Server, Step};

/// Kind of the database, as every account may know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Apache Cassandra of this major version.
    Cassandra(u32),
    /// ScyllaDB of any version.
    Scylla,
}

/// Finds out the kind of the database. It reads nothing that a database with authorization keeps from an ordinary
/// account.
///
/// # Errors
/// It does not answer, or is neither ScyllaDB nor Cassandra 4 or later.
pub(super) async fn kind(session: &Session) -> Result<Kind, DatabaseError> {
    // Only ScyllaDB has this table; its release is the Cassandra that it is compatible with.
    let has = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system' AND table_name = 'versions'";
    if !text(session, has).await.map_err(|error| unsaid(&error))?.is_empty() {
        return Ok(Kind::Scylla);
    }
    let release = text(session, "SELECT release_version FROM system.local WHERE key = 'local'").await;
    let release = release.map_err(|error| unsaid(&error))?;
    match major(&release) {
        major @ CASSANDRA_MIN.. => Ok(Kind::Cassandra(major)),
        _ => {
            Err(DatabaseError::lasting(format!("Cassandra {release} is too old: murre needs {CASSANDRA_MIN} or later")))
        }
    }
}

/// Finds out the features of the database that tables may use. The version of ScyllaDB is in a table that an ordinary
/// account may not read, so only commands that make tables call this.
///
/// # Errors
/// As [`kind`], and the account may not read that table.
pub(super) async fn server(session: &Session) -> Result<Server, DatabaseError> {
    match kind(session).await? {
        Kind::Cassandra(major) => Ok(Server::Cassandra(major)),
        Kind::Scylla => {
            let version = text(session, "SELECT version FROM system.versions WHERE key = 'local'").await;
            let version = version.map_err(|error| match explain::db_error(&error) {
                Some((DbError::Unauthorized, said)) => DatabaseError::lasting(format!(
                    "cannot read the version of the database: {said}; run it as a superuser, or GRANT SELECT ON TABLE \
                     system.versions"
                )),
                _ => unsaid(&error),
            })?;
            Ok(Server::Scylla { incremental: major(&version) >= INCREMENTAL_SINCE })
        }
    }
}

fn unsaid(error: &ExecutionError) -> DatabaseError {
    DatabaseError::failed(format!("the database does not say what it is: {}", explain::say(error)), error)
}

/// ScyllaDB is numbered by years since 2025; before, only the enterprise releases were, and they had incremental
/// compaction too.
const INCREMENTAL_SINCE: u32 = 2018;

/// The oldest Cassandra whose replication can be given as one factor for every datacenter.
const CASSANDRA_MIN: u32 = 4;

/// The first number of a version, 0 when there is none.
fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The one text that this query returns; empty when it returns no row.
async fn text(session: &Session, query: &str) -> Result<String, ExecutionError> {
    let result = session.query_unpaged(query, ()).await?;
    let row = result.into_rows_result().ok().and_then(|rows| rows.maybe_first_row::<(String,)>().ok().flatten());
    Ok(row.map_or_else(String::new, |(text,)| text))
}

/// Versions of the tables that are there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Versions {
    /// Version that the last step has led to.
    pub(super) tables: i32,
    /// The least version of a build that may read them.
    pub(super) least: i32,
}

/// Reads the versions of the tables that are there; `None` when there are none.
///
/// # Errors
/// The database does not answer.
pub(super) async fn versions(session: &Session, config: &Options) -> Result<Option<Versions>, DatabaseError> {
    let Some(tables) = greatest(session, config, PART).await? else { return Ok(None) };
    // Without a word on it, only builds of that version may read them.
    let least = greatest(session, config, LEAST_PART).await?.unwrap_or(tables);
    Ok(Some(Versions { tables, least }))
}

async fn greatest(session: &Session, config: &Options, part: &str) -> Result<Option<i32>, DatabaseError> {
    let keyspace = &config.keyspace;
    let query = format!("SELECT version FROM {keyspace}.schema_version WHERE part = '{part}'");
    let mut statement = Statement::new(query);
    statement.set_consistency(consistency(config.read_consistency));
    match session.query_unpaged(statement, ()).await {
        Ok(result) => {
            let rows = result.into_rows_result().map_err(|error| DatabaseError::lasting(error.to_string()))?;
            let versions = rows.rows::<(i32,)>().map_err(|error| DatabaseError::lasting(error.to_string()))?;
            Ok(versions.flatten().map(|(version,)| version).max())
        }
        Err(error) => match explain::db_error(&error) {
            // No such keyspace or table.
            Some((DbError::Invalid, _)) => Ok(None),
            _ => {
                let said = format!("the version of the tables in {keyspace}: {}", explain::say(&error));
                Err(DatabaseError::failed(said, &error))
            }
        },
    }
}

/// Makes the keyspace and every table that is not there. Returns the versions that were applied, none when all was
/// there.
///
/// # Errors
/// The database refuses a statement, or a build of this version may not read the tables.
pub(super) async fn create(session: &Session, config: &Options) -> Result<Vec<i32>, DatabaseError> {
    let layout = Layout::of(config, server(session).await?);
    let from = versions(session, config).await?;
    if from.is_none() {
        define(session, &layout.create_keyspace()).await?;
    }
    apply(session, config, &layout, from, STEPS).await
}

/// Brings tables of an older version up to date. Returns the versions that were applied.
///
/// # Errors
/// As [`create`], and there are no tables.
pub(super) async fn migrate(session: &Session, config: &Options) -> Result<Vec<i32>, DatabaseError> {
    let layout = Layout::of(config, server(session).await?);
    let Some(from) = versions(session, config).await? else {
        return Err(DatabaseError::lasting(format!(
            "there are no tables in {}; run `murre schema create`",
            config.keyspace
        )));
    };
    apply(session, config, &layout, Some(from), STEPS).await
}

/// Applies the steps behind `from`, in their order; after each its version is on record. The least version is on record
/// before a step changes anything: a build that may not read the tables then does not start between two statements.
pub(super) async fn apply(
    session: &Session,
    config: &Options,
    layout: &Layout,
    from: Option<Versions>,
    steps: &[Step],
) -> Result<Vec<i32>, DatabaseError> {
    let known = steps.last().map_or(0, |step| step.version);
    let from = from.unwrap_or(Versions { tables: 0, least: 0 });
    if from.least > known {
        return Err(DatabaseError::lasting(unreadable(&config.keyspace, from, known)));
    }
    let (mut applied, mut least) = (Vec::new(), from.least);
    for step in steps.iter().filter(|step| step.version > from.tables) {
        let mut statements = (step.statements)(layout).into_iter();
        // The first step makes the table of the versions.
        if from.tables == 0 && applied.is_empty() {
            for statement in statements.by_ref() {
                define(session, &statement).await?;
            }
        }
        if step.least > least {
            record(session, config, step, layout.record_least(step.least)).await?;
            least = step.least;
        }
        for statement in statements {
            define(session, &statement).await?;
        }
        record(session, config, step, layout.record_version(step.version)).await?;
        applied.push(step.version);
    }
    Ok(applied)
}

async fn record(session: &Session, config: &Options, step: &Step, statement: String) -> Result<(), DatabaseError> {
    let mut record = Statement::new(statement);
    record.set_consistency(consistency(config.write_consistency));
    let recorded = session.query_unpaged(record, ()).await;
    recorded
        .map(|_| ())
        .map_err(|error| DatabaseError::lasting(format!("version {}: {}", step.version, explain::say(&error))))
}

/// Fault of tables that a build of version `known` may not read.
pub(super) fn unreadable(keyspace: &str, found: Versions, known: i32) -> String {
    let Versions { tables, least } = found;
    format!(
        "the tables in {keyspace} are of version {tables}, which a murre of version {least} or later may read, and this \
         murre knows {known}; run the murre that made them, or a newer one"
    )
}

/// Runs a statement that makes or changes a table, until every node knows of it.
async fn define(session: &Session, statement: &str) -> Result<(), DatabaseError> {
    let mut asked = Statement::new(statement);
    asked.set_request_timeout(Some(DEFINE_TIME_MAX));
    let done = session.query_unpaged(asked, ()).await;
    let first = statement.lines().next().unwrap_or_default().trim_end_matches(" (");
    done.map(|_| ()).map_err(|error| DatabaseError::lasting(format!("{first}: {}", explain::say(&error))))
}

/// Changes of tables go to every node of the database before they are done.
const DEFINE_TIME_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_databases_spell_them() {
        assert_eq!(major("5.0.6"), 5);
        assert_eq!(major("2025.1.3-0.20250914.abc"), 2025);
        assert_eq!(major("6.2.0-rc1"), 6);
        assert_eq!(major(""), 0);
    }
}
