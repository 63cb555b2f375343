//! Users counted and dropped on a real database.

use std::time::Duration;

use super::purge::Found;
use super::schema::family::{CHANNEL, PRESENCE, RECORD};
use super::schema_apply::create;
use super::schema_tests::{config, run, session};
use super::upkeep::{Census, Purge, census, space};

const DAY: u64 = 86_400;

#[tokio::test]
async fn users_are_counted_by_age_and_only_who_is_gone_is_dropped() {
    let config = config(&[]);
    let scylla = &config.store.scylla;
    let session = session(&config).await;
    create(&session, scylla).await.unwrap();
    // By number: idle days, or no record at all; whether a node says it is connected.
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
            run(&session, scylla, &put(RECORD, "0x", (60 - days) * DAY)).await;
        }
        run(&session, scylla, &put(CHANNEL, "0x02", 60 * DAY)).await;
        if connected {
            run(&session, scylla, &put(PRESENCE, "0x03", 60 * DAY)).await;
        }
        let message = format!(
            "INSERT INTO KS.message (uaid, family, clock, origin, key, value) VALUES ({uaid}, 2, 1, 1, 0x, 0x) USING TIMESTAMP 1100"
        );
        run(&session, scylla, &message).await;
    }
    let wanted = Census { users: 4, idle: [1, 1, 0, 2], leftovers: 1, channels: 5, presences: 2, purged: 0 };
    assert_eq!(census(&session, scylla, Purge::Nobody).await.unwrap(), wanted);
    let purged = census(&session, scylla, Purge::Idle(Duration::from_secs(30 * DAY))).await.unwrap();
    assert_eq!(purged, Census { purged: 2, ..wanted });
    let left = Census { users: 3, idle: [1, 1, 0, 1], leftovers: 0, channels: 3, presences: 2, purged: 0 };
    assert_eq!(census(&session, scylla, Purge::Nobody).await.unwrap(), left);
    let query = format!("SELECT uaid FROM {}.message", scylla.keyspace);
    let rows = session.query_unpaged(query, ()).await.unwrap().into_rows_result().unwrap();
    assert_eq!(rows.rows_num(), 3, "messages of who was dropped are gone, also those that are later than all else");
}

#[tokio::test]
async fn a_user_that_comes_back_while_it_is_dropped_is_put_back() {
    let config = config(&[]);
    let scylla = &config.store.scylla;
    let session = session(&config).await;
    create(&session, scylla).await.unwrap();
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
        run(&session, scylla, &put(family, key, 1000)).await;
    }
    let message =
        format!("INSERT INTO KS.message (uaid, family, clock, origin, key, value) VALUES ({text}, 2, 1, 1, 0x, 0x)");
    run(&session, scylla, &message).await;
    // A node has read the user, then the rows go, then the node enters itself.
    let found = Found::read(&session, scylla, &uaid).await.unwrap();
    assert!(found.idle().is_some_and(|idle| idle.abs_diff(40 * DAY) < 60) && !found.connected() && !found.is_gone());
    let newest = found.drop_rows().await.unwrap();
    assert!(Found::read(&session, scylla, &uaid).await.unwrap().is_gone());
    assert!(!found.put_back(newest).await.unwrap(), "nobody came");
    run(&session, scylla, &put(PRESENCE, "0x03", 2000)).await;
    assert!(found.put_back(newest).await.unwrap());
    let now = Found::read(&session, scylla, &uaid).await.unwrap();
    assert!(now.connected() && now.idle().is_some_and(|idle| idle < DAY), "the record is there and young");
    let there = census(&session, scylla, Purge::Idle(Duration::from_secs(30 * DAY))).await.unwrap();
    assert_eq!((there.users, there.channels, there.purged), (1, 1, 0));
    // Once it is gone it goes, and what waits for it.
    run(&session, scylla, &format!("DELETE FROM KS.user USING TIMESTAMP 2000 WHERE uaid = {text} AND family = 4"))
        .await;
    assert!(Found::read(&session, scylla, &uaid).await.unwrap().purge().await.unwrap());
    assert!(Found::read(&session, scylla, &uaid).await.unwrap().is_gone());
}

#[tokio::test]
async fn tables_say_what_they_take() {
    let config = config(&[]);
    let scylla = &config.store.scylla;
    let session = session(&config).await;
    create(&session, scylla).await.unwrap();
    // Ten rows deleted, each on its own, are ten tombstones in the way of a read.
    for number in 0..10 {
        run(
            &session,
            scylla,
            &format!("DELETE FROM KS.user WHERE uaid = 0x01 AND family = 5 AND key = 0x{number:02x}"),
        )
        .await;
    }
    run(&session, scylla, "SELECT value FROM KS.user WHERE uaid = 0x01").await;
    let spaces = space(&session, scylla).await.unwrap();
    assert_eq!(spaces.keys().copied().collect::<Vec<_>>(), ["message", "user"]);
    assert!(spaces.values().all(|space| space.nodes == 1), "{spaces:?}");
    assert!(spaces["user"].tombstones_max >= Some(10), "{spaces:?}");
    assert_eq!(spaces["message"].tombstones_max, Some(0), "{spaces:?}");
}
