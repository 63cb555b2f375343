//! The tables against a real database: made, found again, brought up to date.

use std::time::Duration;

use machine::StoreOp;
use scylla::client::session::Session;

use super::Scylla;
use super::connect::connect;
use super::schema_apply::{Versions, apply, create, migrate, server, unreadable, versions};
use super::tests::refresh::hexadecimal;
use crate::conformance::BlockingStore;
use crate::shared::opening::ConnectOptions;
use crate::shared::options::Options;
use crate::shared::schema::{Layout, STEPS, Server, Step, TABLES, VERSION};
use crate::testing::database::options;
use crate::testing::sample::settle;

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
    assert_eq!(versions(&session, &config).await.unwrap(), None);
    let refused = migrate(&session, &config).await.expect_err("there is nothing to bring up to date").to_string();
    assert!(refused.contains("run `murre schema create`"), "{refused}");
    assert_eq!(create(&session, &config).await.unwrap(), (1..=VERSION).collect::<Vec<_>>());
    assert_eq!(create(&session, &config).await.unwrap(), [0; 0]);
    assert_eq!(migrate(&session, &config).await.unwrap(), [0; 0]);
    assert_eq!(versions(&session, &config).await.unwrap(), Some(present()));

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

/// The versions that this build makes.
fn present() -> Versions {
    Versions { tables: VERSION, least: STEPS.last().expect("there are steps").least }
}

/// The steps of this build, and these behind them.
fn with_next(next: impl IntoIterator<Item = Step>) -> Vec<Step> {
    let known = STEPS.iter().map(|step| Step { version: step.version, least: step.least, statements: step.statements });
    known.chain(next).collect()
}

fn table(to: &Layout, name: &str) -> String {
    format!("CREATE TABLE IF NOT EXISTS {}.{name} (id int PRIMARY KEY)", to.keyspace)
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn steps_are_applied_in_order_and_again_after_an_interruption() {
    let steps = with_next([
        Step { version: VERSION + 1, least: VERSION, statements: |to| vec![table(to, "two"), table(to, "two_more")] },
        Step { version: VERSION + 2, least: VERSION + 2, statements: |to| vec![table(to, "three")] },
    ]);
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    let layout = Layout::of(&config, Server::Cassandra(5));
    // An interrupted run: stopped between two statements of the second step.
    run(&session, &config, "CREATE TABLE KS.two (id int PRIMARY KEY)").await;
    let applied = apply(&session, &config, &layout, Some(present()), &steps).await.unwrap();
    assert_eq!(applied, [VERSION + 1, VERSION + 2]);
    let found = versions(&session, &config).await.unwrap().expect("there are tables");
    assert_eq!(found, Versions { tables: VERSION + 2, least: VERSION + 2 });
    assert_eq!(apply(&session, &config, &layout, Some(found), &steps).await.unwrap(), [0; 0]);
    let refused = create(&session, &config).await.expect_err("not for this build").to_string();
    assert_eq!(refused, unreadable(&config.keyspace, found, VERSION));
}

/// A node of the present version and one of the next beside each other, forward and back. The next version is invented:
/// it has a table, a column and a family of rows more.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn nodes_of_two_versions_run_beside_each_other_and_the_older_one_starts_again() {
    let keyspace = crate::testing::database::empty();
    let config = keyspace.config();
    let start = || Scylla::open(config, Duration::from_secs(30), Vec::new(), ConnectOptions::default());
    let port = |store: &Scylla| BlockingStore::new(store.port(std::sync::Arc::new(|| {})));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let step = |next: Step| {
        runtime.block_on(async {
            let session = session(config).await;
            let from = versions(&session, config).await.unwrap();
            apply(&session, config, &Layout::of(config, Server::Cassandra(5)), from, &with_next([next])).await.unwrap()
        })
    };
    let before = start().expect("the tables are its own");
    port(&before).register(1, 2);
    let adds = |to: &Layout| {
        let column = format!("ALTER TABLE {}.node ADD IF NOT EXISTS zone text", to.keyspace);
        vec![table(to, "next"), column]
    };
    assert_eq!(step(Step { version: VERSION + 1, least: VERSION, statements: adds }), [VERSION + 1]);
    // The next version writes rows that this one does not know, into the user that both serve.
    let user = hexadecimal(&crate::conformance::uaid(1).0);
    for family in [-9, 99] {
        let at = "USING TIMESTAMP 5000000 AND TTL 9999 SET value = 0xff";
        keyspace.send(&format!("UPDATE KS.user {at} WHERE uaid = {user} AND family = {family} AND key = 0x"));
        let place = format!("uaid = {user} AND family = {family} AND clock = 0 AND origin = 0 AND key = 0x");
        keyspace.send(&format!("UPDATE KS.message {at} WHERE {place}"));
    }
    // Forward: the present version goes on, and starts again after a crash.
    let serves = |store: &Scylla, clock| {
        let mut port = port(store);
        port.publish(crate::conformance::message(1, 2, clock));
        assert_eq!(port.clocks(crate::conformance::uaid(1)), [clock]);
        port.done(settle(&[crate::conformance::message(1, 2, clock)], None, true));
        port.done(StoreOp::Touch { uaid: crate::conformance::uaid(1), seen: crate::conformance::NOW });
        assert_eq!(port.user(crate::conformance::uaid(1)).expect("it is known").channels.len(), 1);
        let damaged = &store.client.stats.others.damaged_rows;
        assert_eq!(damaged.load(std::sync::atomic::Ordering::Relaxed), 0, "what it does not know is not damaged");
    };
    serves(&before, recently());
    let again = start().unwrap_or_else(|fault| panic!("it starts beside the next version: {}", fault.said));
    serves(&again, recently());
    serves(&before, recently());
    // A refresh keeps what the next version has written.
    let kept = keyspace.send(&format!("SELECT value FROM KS.user WHERE uaid = {user} AND family IN (-9, 99)"));
    assert_eq!(kept, 2);
    runtime.block_on(async {
        let session = session(config).await;
        assert_eq!(create(&session, config).await.unwrap(), [0; 0]);
        assert_eq!(migrate(&session, config).await.unwrap(), [0; 0]);
    });
    // Back: every node of the next version is gone.
    again.close();
    start().unwrap_or_else(|fault| panic!("there is a way back: {}", fault.said)).close();
    // A step that changes the meaning of what is there locks this version out.
    let breaks = Step { version: VERSION + 2, least: VERSION + 2, statements: |to| vec![table(to, "breaks")] };
    assert_eq!(step(breaks), [VERSION + 2]);
    let refused = start().err().expect("it may not read them");
    let found = Versions { tables: VERSION + 2, least: VERSION + 2 };
    assert_eq!((refused.said, refused.passes), (unreadable(&config.keyspace, found, VERSION), false));
    before.close();
}

/// The present as the clock of a message.
fn recently() -> u64 {
    runtime::process_clock::ProcessClock::start().unix_us()
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
