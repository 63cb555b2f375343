//! Every fault of the preflight, made on a real database.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use scylla::client::session::Session;

use super::preflight::{copies, database, factor};
use super::schema_apply::{create, migrate};
use super::schema_tests::{config, run, session};
use crate::shared::options::Options;
use crate::shared::schema::VERSION;

const SKEW: Duration = Duration::from_secs(30);

async fn faults(session: &Session, config: &Options) -> Vec<String> {
    faults_at(session, config, SystemTime::now).await
}

async fn faults_at(session: &Session, config: &Options, now: fn() -> SystemTime) -> Vec<String> {
    database(session, config, SKEW, now).await.iter().map(ToString::to_string).collect()
}

/// A database with the tables of this build, and a session with it.
async fn made() -> (Options, Session) {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    (config, session)
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn tables_as_they_should_be_have_no_fault() {
    let (config, session) = made().await;
    assert_eq!(faults(&session, &config).await, [""; 0]);
    // The rows of the check are no user's, and expire.
    let query = format!("SELECT ttl(value) FROM {}.user", config.keyspace);
    let rows = session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap();
    let left: Vec<Option<i32>> = rows.rows::<(Option<i32>,)>().unwrap().map(|row| row.unwrap().0).collect();
    assert!(left.iter().all(|ttl| ttl.is_some_and(|ttl| ttl <= 60)), "{left:?}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_keyspace_and_tables_that_are_missing_are_named() {
    let config = config();
    let keyspace = &config.keyspace;
    let session = session(&config).await;
    assert_eq!(
        faults(&session, &config).await,
        [format!("there is no keyspace {keyspace}; run `murre schema create`")]
    );
    create(&session, &config).await.unwrap();
    run(&session, &config, "DROP TABLE KS.message").await;
    run(&session, &config, "DROP TABLE KS.node").await;
    let wanted =
        ["message", "node"].map(|name| format!("there is no table {keyspace}.{name}; run `murre schema create`"));
    assert_eq!(faults(&session, &config).await, wanted);
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn columns_that_are_missing_or_of_another_type_are_named() {
    let (config, session) = made().await;
    run(&session, &config, "ALTER TABLE KS.node DROP left_at").await;
    run(&session, &config, "DROP TABLE KS.user").await;
    run(
        &session,
        &config,
        "CREATE TABLE KS.user (uaid uuid, family tinyint, key blob, value blob, more text, PRIMARY KEY (uaid, family))",
    )
    .await;
    let said = faults(&session, &config).await;
    let keyspace = &config.keyspace;
    let wanted = [
        format!("the column uaid of {keyspace}.user is partition_key uuid and must be partition_key blob; "),
        format!("the column key of {keyspace}.user is regular blob and must be clustering blob; "),
        format!("the column left_at of {keyspace}.node is missing and must be regular timestamp; "),
    ];
    assert_eq!(said.len(), wanted.len(), "{said:?}");
    for (said, wanted) in said.iter().zip(&wanted) {
        assert!(said.starts_with(wanted), "{said}");
    }
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn tables_of_another_version_are_refused() {
    let (config, session) = made().await;
    // An invented version before the first: it lacks tables. One sentence, and one command makes it whole.
    run(&session, &config, "DROP TABLE KS.lease").await;
    run(&session, &config, "TRUNCATE KS.schema_version").await;
    run(&session, &config, "INSERT INTO KS.schema_version (part, version) VALUES ('murre', 0)").await;
    let said = faults(&session, &config).await;
    let wanted = "are of version 0 and this murre needs 1; run `murre schema migrate`";
    assert!(said.len() == 1 && said[0].contains(wanted), "{said:?}");
    assert_eq!(migrate(&session, &config).await.unwrap(), [VERSION]);
    assert_eq!(faults(&session, &config).await, [""; 0]);
    run(&session, &config, "TRUNCATE KS.schema_version").await;
    let said = faults(&session, &config).await;
    assert!(said.len() == 1 && said[0].contains("are not finished; run `murre schema create` again"), "{said:?}");
    for (version, wanted) in [(0, "run `murre schema migrate`"), (VERSION + 1, "run the murre that made them")] {
        let put = format!("INSERT INTO KS.schema_version (part, version) VALUES ('murre', {version})");
        run(&session, &config, &put).await;
        let said = faults(&session, &config).await;
        assert!(said.len() == 1 && said[0].contains(wanted), "{said:?}");
    }
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn clocks_that_are_apart_are_told_with_the_side() {
    let (config, session) = made().await;
    for (now, side) in [
        ((|| SystemTime::now() - Duration::from_secs(40)) as fn() -> SystemTime, "s ahead of ours"),
        (|| SystemTime::now() + Duration::from_secs(40), "s behind ours"),
    ] {
        let said = faults_at(&session, &config, now).await;
        assert!(said.len() == 1 && said[0].contains(side) && said[0].contains("store.max_skew"), "{said:?}");
    }
    assert_eq!(faults_at(&session, &config, || SystemTime::now() + Duration::from_secs(20)).await, [""; 0]);
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn replicas_that_are_not_there_are_counted() {
    let config = Options { replication_factor: 3, ..config() };
    let session = session(&config).await;
    let refused = create(&session, &config).await.expect_err("no quorum takes the version").to_string();
    assert!(refused.contains("needs 2 replicas and 1 are up"), "{refused}");
    let said = faults(&session, &config).await;
    assert!(said[0].contains("have fewer than 2 replicas up") && said[0].contains("1 of 1 database nodes"), "{said:?}");
    // `create` ended behind the tables, and before their version.
    assert!(!said.iter().any(|said| said.contains("run `murre schema create`")), "{said:?}");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn copies_are_as_many_as_configured() {
    let (config, session) = made().await;
    let two = Options { replication_factor: 2, ..config.clone() };
    let said = faults(&session, &two).await;
    assert!(said[0].contains("has 1 copies (datacenter1) and store.scylla.replication_factor is 2"), "{said:?}");
    let of = |datacenter: &str| Options { datacenter: Some(datacenter.to_owned()), ..config.clone() };
    let said = faults(&session, &of("elsewhere")).await;
    assert!(said[0].contains("no copy in store.scylla.datacenter = elsewhere; there are datacenter1"), "{said:?}");
    assert_eq!(faults(&session, &of("datacenter1")).await, [""; 0]);
}

#[test]
fn replication_is_read_as_databases_spell_it() {
    assert_eq!([factor("3"), factor("3/1"), factor("['r1', 'r2']"), factor("[]"), factor("many")], [3, 2, 2, 0, 0]);
    let config = Options { replication_factor: 3, ..Options::default() };
    let of_a = Options { datacenter: Some("a".to_owned()), ..config.clone() };
    let map = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let two = map(&[("class", "NetworkTopologyStrategy"), ("a", "3"), ("b", "2")]);
    assert_eq!(copies(&config, &two).len(), 1, "every datacenter counts");
    assert_eq!(copies(&of_a, &two), []);
    assert_eq!(copies(&config, &map(&[("class", "SimpleStrategy"), ("replication_factor", "3")])), []);
}
