//! Users counted and dropped on a real database.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use machine::NodeId;
use scylla::client::session::Session;

use super::maintain::{self, space};
use super::purge::Purger;
use super::rows;
use super::schema_apply::create;
use super::schema_tests::{config, run, session};
use super::tests::proxy::Proxy;
use crate::shared::census::{Census, Purge};
use crate::shared::error::DatabaseError;
use crate::shared::options::Options;
use crate::shared::schema::family::{CHANNEL, PRESENCE, RECORD};

const DAY: u64 = 86_400;

async fn census(session: &Session, config: &Options, purge: Purge) -> Result<Census, DatabaseError> {
    maintain::census(session, config, purge, &AtomicBool::new(false)).await
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn users_are_counted_by_age_and_only_who_is_gone_is_dropped() {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    // By number: idle days, or no record at all; true if a node has a presence row.
    for (number, idle, connected) in
        [(1, Some(0), false), (2, Some(5), true), (3, Some(40), false), (4, Some(41), true), (5, None, false)]
    {
        let uaid = format!("0x{number:032x}");
        let put = |family: i8, key: &str, ttl: u64| {
            format!(
                "INSERT INTO KS.user (uaid, family, key, value) VALUES ({uaid}, {family}, {key}, 0x01) USING TIMESTAMP 1000 AND TTL {ttl}"
            )
        };
        if let Some(days) = idle {
            run(&session, &config, &put(RECORD, "0x", (60 - days) * DAY)).await;
        }
        run(&session, &config, &put(CHANNEL, "0x02", 60 * DAY)).await;
        if connected {
            run(&session, &config, &put(PRESENCE, "0x03", 60 * DAY)).await;
        }
        let message = format!(
            "INSERT INTO KS.message (uaid, family, clock, origin, key, value) VALUES ({uaid}, 2, 1, 1, 0x, 0x) USING TIMESTAMP 1100"
        );
        run(&session, &config, &message).await;
    }
    let wanted =
        Census { users: 4, idle: [1, 1, 0, 2], leftovers: 1, channels: 5, presences: 2, purged: 0, passed_by: 0 };
    assert_eq!(census(&session, &config, Purge::Nobody).await.unwrap(), wanted);
    let purged = census(&session, &config, Purge::Idle(Duration::from_secs(30 * DAY))).await.unwrap();
    assert_eq!(purged, Census { purged: 2, passed_by: 1, ..wanted });
    let left =
        Census { users: 3, idle: [1, 1, 0, 1], leftovers: 0, channels: 3, presences: 2, purged: 0, passed_by: 0 };
    assert_eq!(census(&session, &config, Purge::Nobody).await.unwrap(), left);
    let query = format!("SELECT uaid FROM {}.message", config.keyspace);
    let rows = session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap();
    assert_eq!(rows.rows_num(), 3, "messages of who was dropped are gone, also those that are later than all else");
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_user_that_comes_back_while_it_is_dropped_is_put_back() {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    let uaid = [7; 16];
    let text = "0x07070707070707070707070707070707";
    let put = |family: i8, key: &str, at: u64| {
        format!(
            "INSERT INTO KS.user (uaid, family, key, value) VALUES ({text}, {family}, {key}, 0x01) \
             USING TIMESTAMP {at} AND TTL {}",
            20 * DAY
        )
    };
    for (family, key) in [(RECORD, "0x"), (CHANNEL, "0x02")] {
        run(&session, &config, &put(family, key, 1000)).await;
    }
    let message =
        format!("INSERT INTO KS.message (uaid, family, clock, origin, key, value) VALUES ({text}, 2, 1, 1, 0x, 0x)");
    run(&session, &config, &message).await;
    // A node has read the user, then the rows go, then the node enters itself.
    let broom = Purger::new(&session, &config).await.unwrap();
    let found = broom.read(&uaid).await.unwrap();
    assert!(found.idle().is_some_and(|idle| idle.abs_diff(40 * DAY) < 60) && !found.is_gone());
    assert!(!found.connected().await.unwrap());
    let newest = found.newest();
    found.drop_rows(newest).await.unwrap();
    assert!(broom.read(&uaid).await.unwrap().is_gone());
    assert!(!found.put_back(newest).await.unwrap(), "nobody came");
    run(&session, &config, &put(PRESENCE, "0x03", 2000)).await;
    assert!(found.put_back(newest).await.unwrap());
    let now = broom.read(&uaid).await.unwrap();
    assert!(
        now.connected().await.unwrap() && now.idle().is_some_and(|idle| idle < DAY),
        "the record is there and young"
    );
    let there = census(&session, &config, Purge::Idle(Duration::from_secs(30 * DAY))).await.unwrap();
    assert_eq!((there.users, there.channels, there.purged), (1, 1, 0));
    // Once its presence is gone the user goes, and its messages.
    run(&session, &config, &format!("DELETE FROM KS.user USING TIMESTAMP 2000 WHERE uaid = {text} AND family = 4"))
        .await;
    assert!(broom.read(&uaid).await.unwrap().purge().await.unwrap());
    assert!(broom.read(&uaid).await.unwrap().is_gone());
}

/// A refresh writes one microsecond after what it read, so one that is under way must not outlive the purge.
#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_purge_wins_over_a_refresh_that_comes_late() {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    let put = |family: i8, key: &str, at: u64| {
        format!(
            "INSERT INTO KS.user (uaid, family, key, value) VALUES (0x07070707070707070707070707070707, {family}, {key}, \
             0x01) USING TIMESTAMP {at} AND TTL {}",
            20 * DAY
        )
    };
    run(&session, &config, &put(RECORD, "0x", 1000)).await;
    run(&session, &config, &put(CHANNEL, "0x02", 1000)).await;
    let broom = Purger::new(&session, &config).await.unwrap();
    assert!(broom.read(&[7; 16]).await.unwrap().purge().await.unwrap());
    run(&session, &config, &put(RECORD, "0x", 1001)).await;
    run(&session, &config, &put(CHANNEL, "0x02", 1001)).await;
    assert!(broom.read(&[7; 16]).await.unwrap().is_gone());
}

/// A node that leaves or is killed leaves presence rows, and the table of nodes says that its run is over.
#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn who_was_last_connected_to_a_run_that_is_over_is_dropped_and_who_may_be_connected_is_passed_by() {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    let key = |boot: u64, url: &str| {
        let key = rows::presence_key(&NodeId { url: url.into(), boot });
        key.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    for (url, boot, left_at) in [
        ("http://runs", 7, "null"),
        ("http://again", 9, "null"),
        ("http://left", 5, "1000"),
        ("http://silent", 6, "null"),
    ] {
        let node = format!("INSERT INTO KS.node (url, boot, left_at) VALUES ('{url}', {boot}, {left_at})");
        run(&session, &config, &node).await;
    }
    // One run was seen just now and one two days ago; both kept silent about their end.
    for (url, boot, seen_at) in
        [("http://runs", 7, "toTimestamp(now())"), ("http://silent", 6, "toTimestamp(now()) - 2d")]
    {
        let lease = format!("INSERT INTO KS.lease (url, boot, seen_at) VALUES ('{url}', {boot}, {seen_at})");
        run(&session, &config, &lease).await;
    }
    let put = |user: u8, family: i8, key: &str, at: u64| {
        let uaid = format!("{user:02x}").repeat(16);
        format!(
            "INSERT INTO KS.user (uaid, family, key, value) VALUES (0x{uaid}, {family}, 0x{key}, 0x01) \
             USING TIMESTAMP {at} AND TTL {}",
            20 * DAY
        )
    };
    let stays = [key(7, "http://runs"), key(1, "http://unknown")];
    let goes = [key(8, "http://again"), key(5, "http://left"), key(6, "http://silent")];
    for (user, presence) in (1..).zip(stays.iter().chain(&goes)) {
        run(&session, &config, &put(user, RECORD, "", 1000)).await;
        run(&session, &config, &put(user, CHANNEL, "02", 1000)).await;
        run(&session, &config, &put(user, PRESENCE, presence, 1100)).await;
    }
    // One of them comes back to the node that was started again, behind the delete.
    let broom = Purger::new(&session, &config).await.unwrap();
    let found = broom.read(&[3; 16]).await.unwrap();
    assert!(!found.connected().await.unwrap());
    let newest = found.newest();
    found.drop_rows(newest).await.unwrap();
    assert!(!found.put_back(newest).await.unwrap(), "nobody came");
    run(&session, &config, &put(3, PRESENCE, &key(9, "http://again"), 2000)).await;
    assert!(found.put_back(newest).await.unwrap());
    let idle = Purge::Idle(Duration::from_secs(30 * DAY));
    let counted = census(&session, &config, idle).await.unwrap();
    assert_eq!((counted.users, counted.presences), (5, 5), "the row of the run that is over is not put back");
    assert_eq!((counted.purged, counted.passed_by), (2, 2));
    // It leaves, too.
    run(&session, &config, "UPDATE KS.node SET left_at = 2000 WHERE url = 'http://again'").await;
    run(&session, &config, "UPDATE KS.node SET left_at = 2000 WHERE url = 'http://runs'").await;
    let counted = census(&session, &config, Purge::Idle(Duration::ZERO)).await.unwrap();
    assert_eq!((counted.users, counted.purged, counted.passed_by), (3, 2, 1));
}

/// A user with this many channels, not seen for 40 days; returns the condition that selects its rows.
async fn many(session: &Session, config: &Options, channels: u32) -> String {
    let uaid = "0x07070707070707070707070707070707";
    let ttl = 20 * DAY;
    let put = |family: i8, key: &str| {
        format!(
            "INSERT INTO KS.user (uaid, family, key, value) VALUES ({uaid}, {family}, {key}, 0x01) USING TIMESTAMP 1000 AND TTL {ttl}"
        )
    };
    run(session, config, &put(RECORD, "0x")).await;
    for channel in 0..channels {
        run(session, config, &put(CHANNEL, &format!("0x{channel:032x}"))).await;
    }
    format!("SELECT family FROM KS.user WHERE uaid = {uaid} AND family IN ({RECORD}, {CHANNEL})")
}

async fn rows_num(session: &Session, config: &Options, query: &str) -> usize {
    let query = query.replace("KS", &config.keyspace);
    session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap().rows_num()
}

async fn wait_for_rows(session: &Session, config: &Options, query: &str, wanted: impl Fn(usize) -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while !wanted(rows_num(session, config, query).await) {
        assert!(std::time::Instant::now() < until, "not in time");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The configuration of a session through a proxy.
fn behind_proxy(config: &Options) -> (Proxy, Options) {
    let proxy = Proxy::new(config.nodes[0].parse().expect("an address"));
    let mut config = config.clone();
    config.nodes = vec![proxy.address.to_string()];
    (proxy, config)
}

const COMES_BACK: &str =
    "INSERT INTO KS.user (uaid, family, key, value) VALUES (0x07070707070707070707070707070707, 4, 0x03, 0x01)";

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_user_is_put_back_with_all_of_it_or_not_at_all() {
    const CHANNELS: u32 = 300;
    let direct = config();
    let session = session(&direct).await;
    create(&session, &direct).await.unwrap();
    let rows = many(&session, &direct, CHANNELS).await;
    let (proxy, config) = behind_proxy(&direct);
    let cut = self::session(&config).await;
    let broom = Purger::new(&cut, &config).await.unwrap();
    let found = broom.read(&[7; 16]).await.unwrap();
    let newest = found.newest();
    found.drop_rows(newest).await.unwrap();
    run(&session, &direct, COMES_BACK).await;
    assert_eq!(rows_num(&session, &direct, &rows).await, 0);
    let cutting = async {
        wait_for_rows(&session, &direct, &rows, |rows| rows > 0).await;
        // The line ends as soon as anything of it is there.
        proxy.refuse(true);
    };
    let _ = tokio::join!(found.put_back(newest), cutting);
    assert_eq!(rows_num(&session, &direct, &rows).await, CHANNELS as usize + 1);
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_user_that_comes_back_while_nobody_hears_of_its_delete_is_put_back() {
    for comes_back in [true, false] {
        let direct = config();
        let session = session(&direct).await;
        create(&session, &direct).await.unwrap();
        let rows = many(&session, &direct, 3).await;
        let (proxy, config) = behind_proxy(&direct);
        let cut = self::session(&config).await;
        let broom = Purger::new(&cut, &config).await.unwrap();
        let found = broom.read(&[7; 16]).await.unwrap();
        proxy.mute(true);
        let cutting = async {
            wait_for_rows(&session, &direct, &rows, |rows| rows == 0).await;
            if comes_back {
                run(&session, &direct, COMES_BACK).await;
            }
            // The line ends without an answer, and another can be had.
            proxy.refuse(true);
            proxy.mute(false);
            proxy.refuse(false);
        };
        let (purged, ()) = tokio::join!(found.purge(), cutting);
        assert_eq!(purged.unwrap(), !comes_back);
        assert_eq!(rows_num(&session, &direct, &rows).await, if comes_back { 4 } else { 0 });
    }
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_census_that_is_told_to_stop_says_how_far_it_came() {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    many(&session, &config, 1).await;
    let idle = Purge::Idle(Duration::from_secs(30 * DAY));
    let said = maintain::census(&session, &config, idle, &AtomicBool::new(true)).await.unwrap_err().to_string();
    assert_eq!(said, "told to stop; 0 users were dropped, run it again to go on");
    assert_eq!(census(&session, &config, idle).await.unwrap().purged, 1);
}

#[tokio::test]
#[ignore = "needs Cassandra: bench/check test"]
async fn tables_say_what_they_take() {
    let config = config();
    let session = session(&config).await;
    create(&session, &config).await.unwrap();
    // Ten rows deleted, each on its own, are ten tombstones in the way of a read.
    for number in 0..10 {
        run(
            &session,
            &config,
            &format!("DELETE FROM KS.user WHERE uaid = 0x01 AND family = 5 AND key = 0x{number:02x}"),
        )
        .await;
    }
    run(&session, &config, "SELECT value FROM KS.user WHERE uaid = 0x01").await;
    let spaces = space(&session, &config).await.unwrap();
    assert_eq!(spaces.keys().copied().collect::<Vec<_>>(), ["message", "user"]);
    assert!(spaces.values().all(|space| space.nodes == 1), "{spaces:?}");
    assert!(spaces["user"].tombstones_max >= Some(10), "{spaces:?}");
    assert_eq!(spaces["message"].tombstones_max, Some(0), "{spaces:?}");
}
