//! The tables against a real database: made, found again, brought up to date.

use scylla::client::session::Session;

use super::cassandra;
use super::connect::connect;
use super::schema::{Layout, Server, Step, TABLES, VERSION};
use super::schema_apply::{apply, create, layout, migrate, server, version};
use crate::config::{Config, Scylla, Sources};

/// Configuration of a node of a cluster with one database node, in a keyspace of its own.
pub(super) fn config(more: &[&str]) -> Config {
    at(cassandra::shared(), more)
}

/// As [`config`], for a database somewhere else.
pub(super) fn at(nodes: &str, more: &[&str]) -> Config {
    let mut sets = vec![
        format!("store.scylla.nodes={nodes}"),
        format!("store.scylla.keyspace={}", cassandra::keyspace()),
        "store.kind=scylla".into(),
        "store.scylla.replication_factor=1".into(),
        "store.scylla.request_timeout=30".into(),
        "store.scylla.connect_timeout=20".into(),
        "endpoint.crypto_keys=YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWE=".into(),
        "node.keys=0123456789abcdef".into(),
    ];
    sets.extend(more.iter().map(|text| (*text).to_owned()));
    Config::load(&Sources { sets, ..Sources::default() }).unwrap()
}

/// A session of this configuration.
pub(super) async fn session(config: &Config) -> Session {
    connect(&config.store.scylla).await.unwrap_or_else(|fault| panic!("{fault}"))
}

/// Runs one statement, in which `KS` is the keyspace.
pub(super) async fn run(session: &Session, config: &Scylla, statement: &str) {
    let statement = statement.replace("KS", &config.keyspace);
    session.query_unpaged(statement.as_str(), ()).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
}

/// The first column of a query's result, in which `KS` is the keyspace.
async fn texts(session: &Session, config: &Scylla, query: &str) -> Vec<String> {
    let query = query.replace("KS", &config.keyspace);
    let rows = session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect()
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn tables_are_made_once_and_have_what_this_database_has() {
    let config = config(&[]);
    let scylla = &config.store.scylla;
    let session = session(&config).await;
    assert_eq!(server(&session).await.unwrap(), Server::Cassandra(5));
    assert_eq!(version(&session, scylla).await.unwrap(), None);
    let refused = migrate(&session, scylla).await.expect_err("there is nothing to bring up to date").to_string();
    assert!(refused.contains("run `murre schema create`"), "{refused}");
    assert_eq!(create(&session, scylla).await.unwrap(), (1..=VERSION).collect::<Vec<_>>());
    assert_eq!(create(&session, scylla).await.unwrap(), [0; 0]);
    assert_eq!(migrate(&session, scylla).await.unwrap(), [0; 0]);
    assert_eq!(version(&session, scylla).await.unwrap(), Some(VERSION));

    let names = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'KS'";
    let mut wanted: Vec<_> = TABLES.iter().map(|table| table.name).collect();
    wanted.sort_unstable();
    assert_eq!(texts(&session, scylla, names).await, wanted);
    for (table, strategy) in [("user", "L4"), ("message", "T4")] {
        let query = format!(
            "SELECT compaction, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = 'KS' AND table_name = '{table}'"
        );
        let rows = session.query_unpaged(query.replace("KS", &scylla.keyspace), ()).await.unwrap().into_rows_result();
        type Options = (std::collections::HashMap<String, String>, i32);
        let (compaction, gc_grace) = rows.unwrap().single_row::<Options>().unwrap();
        assert!(compaction["class"].ends_with("UnifiedCompactionStrategy"), "{compaction:?}");
        assert_eq!(compaction["scaling_parameters"], strategy);
        assert!(gc_grace >= 3 * 3_600, "deletes outlive the hint window");
    }
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn steps_are_applied_in_order_and_again_after_an_interruption() {
    const STEPS: &[Step] = &[
        Step { version: 1, statements: |_| vec!["not looked at".to_owned()] },
        Step { version: 2, statements: |to| vec![table(to, "two"), table(to, "two_more")] },
        Step { version: 3, statements: |to| vec![table(to, "three")] },
    ];
    fn table(to: &Layout, name: &str) -> String {
        format!("CREATE TABLE IF NOT EXISTS {}.{name} (id int PRIMARY KEY)", to.keyspace)
    }
    let config = config(&[]);
    let scylla = &config.store.scylla;
    let session = session(&config).await;
    create(&session, scylla).await.unwrap();
    let layout = layout(scylla, Server::Cassandra(5));
    // An interrupted run: stopped between two statements of the second step.
    run(&session, scylla, "CREATE TABLE KS.two (id int PRIMARY KEY)").await;
    assert_eq!(apply(&session, scylla, &layout, 1, STEPS).await.unwrap(), [2, 3]);
    assert_eq!(version(&session, scylla).await.unwrap(), Some(3));
    assert_eq!(apply(&session, scylla, &layout, 3, STEPS).await.unwrap_err().to_string(), newer_than_this(scylla, 3));
    let refused = create(&session, scylla).await.expect_err("newer tables").to_string();
    assert_eq!(refused, newer_than_this(scylla, 3));
}

fn newer_than_this(config: &Scylla, version: i32) -> String {
    super::schema_apply::newer(&config.keyspace, version)
}

#[test]
fn each_database_is_told_only_what_it_knows() {
    let script = |server, replication_factor, datacenter: Option<&str>| {
        let datacenter = datacenter.map(str::to_owned);
        Layout { keyspace: "m".to_owned(), replication_factor, datacenter, server }.script()
    };
    let scylla = script(Server::Scylla { incremental: true }, 3, Some("it's"));
    assert!(scylla.contains("{'class': 'NetworkTopologyStrategy', 'it''s': 3}"), "{scylla}");
    assert_eq!(scylla.matches("IncrementalCompactionStrategy").count(), 2);
    assert!(
        scylla.contains("tombstone_gc = {'mode': 'repair'}") && scylla.contains("tombstone_gc = {'mode': 'timeout'}")
    );
    assert!(!script(Server::Scylla { incremental: true }, 1, None).contains("tombstone_gc"));
    assert!(script(Server::Scylla { incremental: false }, 3, None).contains("SizeTieredCompactionStrategy"));
    for major in [4, 5, 6] {
        let cassandra = script(Server::Cassandra(major), 3, None);
        assert!(!cassandra.contains("Incremental") && !cassandra.contains("tombstone_gc"), "{cassandra}");
        assert_eq!(cassandra.contains("UnifiedCompactionStrategy"), major >= 5);
        assert!(cassandra.contains("'replication_factor': 3"));
    }
}
