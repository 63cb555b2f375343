//! The tables against a real database: made, found again, brought up to date.

use scylla::client::session::Session;

use super::connect::connect;
use super::options::Options;
use super::schema::{Layout, Server, Step, TABLES, VERSION};
use super::schema_apply::{apply, create, layout, migrate, server, version};
use crate::testing::database::options;

/// Options of a store in a keyspace of its own.
pub(super) fn config() -> Options {
    options(cassandra::shared())
}

/// A session of this configuration.
pub(super) async fn session(config: &Options) -> Session {
    connect(config).await.unwrap_or_else(|fault| panic!("{fault}"))
}

/// Runs one statement, in which `KS` is the keyspace.
pub(super) async fn run(session: &Session, config: &Options, statement: &str) {
    let statement = statement.replace("KS", &config.keyspace);
    session.query_unpaged(statement.as_str(), ()).await.unwrap_or_else(|error| panic!("{statement}: {error}"));
}

/// The first column of a query's result, in which `KS` is the keyspace.
async fn texts(session: &Session, config: &Options, query: &str) -> Vec<String> {
    let query = query.replace("KS", &config.keyspace);
    let rows = session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect()
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn tables_are_made_once_and_have_what_this_database_has() {
    let config = config();
    let session = session(&config).await;
    assert_eq!(server(&session).await.unwrap(), Server::Cassandra(5));
    assert_eq!(version(&session, &config).await.unwrap(), None);
    let refused = migrate(&session, &config).await.expect_err("there is nothing to bring up to date").to_string();
    assert!(refused.contains("run `murre schema create`"), "{refused}");
    assert_eq!(create(&session, &config).await.unwrap(), (1..=VERSION).collect::<Vec<_>>());
    assert_eq!(create(&session, &config).await.unwrap(), [0; 0]);
    assert_eq!(migrate(&session, &config).await.unwrap(), [0; 0]);
    assert_eq!(version(&session, &config).await.unwrap(), Some(VERSION));

    let names = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'KS'";
    let mut wanted: Vec<_> = TABLES.iter().map(|table| table.name).collect();
    wanted.sort_unstable();
    assert_eq!(texts(&session, &config, names).await, wanted);
    for (table, strategy) in [("user", "L4"), ("message", "T4")] {
        let query = format!(
            "SELECT compaction, gc_grace_seconds FROM system_schema.tables WHERE keyspace_name = 'KS' AND table_name = '{table}'"
        );
        let rows = session.query_unpaged(query.replace("KS", &config.keyspace), ()).await.unwrap().into_rows_result();
        type Found = (std::collections::HashMap<String, String>, i32);
        let (compaction, gc_grace) = rows.unwrap().single_row::<Found>().unwrap();
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
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    let layout = layout(&config, Server::Cassandra(5));
    // An interrupted run: stopped between two statements of the second step.
    run(&session, &config, "CREATE TABLE KS.two (id int PRIMARY KEY)").await;
    assert_eq!(apply(&session, &config, &layout, 1, STEPS).await.unwrap(), [2, 3]);
    assert_eq!(version(&session, &config).await.unwrap(), Some(3));
    assert_eq!(apply(&session, &config, &layout, 3, STEPS).await.unwrap_err().to_string(), newer_than_this(&config, 3));
    let refused = create(&session, &config).await.expect_err("newer tables").to_string();
    assert_eq!(refused, newer_than_this(&config, 3));
}

fn newer_than_this(config: &Options, version: i32) -> String {
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
