//! The refresh of a user on a real Cassandra: it outlives the copy that it replaces, and a delete of the user ends it
//! too.

use std::time::{Duration, Instant};

use machine::ids::{Clock, Uaid};
use machine::message::Message;
use machine::{NodeId, Presence, RowKey, StoreOp};
use scylla::client::session::Session;
use scylla::statement::{Consistency, Statement};

use super::Apart;
use crate::conformance::{BlockingStore, NOW, chid, message, register, uaid};
use crate::shared::options::Options;
use crate::shared::schema::family::{CHANNEL, CONTACT, PRESENCE, RECORD, USER_CLOCK};
use crate::testing::database::{open, open_alone};

/// Time limit for things that the database does by itself. Cassandra rounds the moment at which a cell expires up to a
/// whole minute before it judges a file by it.
const PATIENCE: Duration = Duration::from_secs(240);
/// The timestamp of the rows that expire.
pub(super) const WRITTEN_AT: i64 = 1_000_000_000_000_000;

pub(in super::super) fn hexadecimal(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}

/// A keyspace with a session of its own.
pub(in super::super) struct Bare<'a> {
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) session: Session,
    config: &'a Options,
}

impl<'a> Bare<'a> {
    pub(in super::super) fn new(config: &'a Options) -> Bare<'a> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let session = runtime.block_on(super::super::connect::connect(config)).expect("the database answers");
        Bare { runtime, session, config }
    }

    pub(in super::super) fn send(&self, statement: &str) {
        let statement = statement.replace("KS", &self.config.keyspace);
        let sent = self.session.query_unpaged(statement.as_str(), ());
        self.runtime.block_on(sent).unwrap_or_else(|error| panic!("{statement}: {error}"));
    }

    /// Writes one row of a user at [`WRITTEN_AT`].
    pub(super) fn put(&self, user: &str, family: i8, key: &[u8], value: &[u8], ttl: u32) {
        let (key, value) = (hexadecimal(key), hexadecimal(value));
        self.send(&format!(
            "UPDATE KS.user USING TIMESTAMP {WRITTEN_AT} AND TTL {ttl} SET value = {value} WHERE uaid = {user} AND \
             family = {family} AND key = {key}"
        ));
    }

    /// The remaining seconds of each row of a user.
    pub(super) fn ttls(&self, user: &str) -> Vec<i32> {
        self.ttls_at(user, Consistency::Quorum)
    }

    /// As [`Bare::ttls`] at this consistency.
    pub(super) fn ttls_at(&self, user: &str, level: Consistency) -> Vec<i32> {
        let query = format!("SELECT TTL(value) FROM {}.user WHERE uaid = {user}", self.config.keyspace);
        let mut query = Statement::new(query);
        query.set_consistency(level);
        let found = self.runtime.block_on(self.session.query_unpaged(query, ())).expect("an answer");
        let found = found.into_rows_result().expect("rows");
        found.rows::<(i32,)>().expect("numbers").map(|row| row.expect("a number").0).collect()
    }

    /// Number of files on disk that a read of this user opens.
    fn files(&self, user: &str) -> usize {
        let mut read = Statement::new(format!("SELECT * FROM {}.user WHERE uaid = {user}", self.config.keyspace));
        read.set_tracing(true);
        let traced = async {
            let found = self.session.query_unpaged(read, ()).await.expect("an answer");
            let id = found.tracing_id().expect("it was traced");
            self.session.get_tracing_info(&id).await.expect("the trace")
        };
        let trace = self.runtime.block_on(traced);
        let activities = trace.events.iter().filter_map(|event| event.activity.as_deref());
        let mut merged = activities.filter_map(|activity| {
            let files = activity.strip_prefix("Merged data from memtables and ")?;
            files.split(' ').next()?.parse().ok()
        });
        merged.next().unwrap_or(0)
    }

    /// Returns when all that was written is on disk. A row of a user of its own, written last, shows it: memory goes to
    /// disk as a whole.
    fn flushed(&self, marker: u8) {
        let marker = format!("0xfe{marker:02x}");
        self.put(&marker, RECORD, &[], &[1], 10_000);
        until("what was written is on disk", || self.files(&marker) > 0);
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < patience, "{what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The row of a session, `renewed` times written again.
fn presence(renewed: u64) -> Presence {
    let node = std::sync::Arc::new(NodeId { url: "http://192.0.2.1:8082".into(), boot: 1 });
    Presence { node, connected_at: WRITTEN_AT.unsigned_abs() + renewed }
}

/// Writes two users whose rows expire soon, and refreshes the first and its presence through the store, and the second
/// at the timestamps it has. Returns false when the rows expired before that: the host was busy.
fn refresh_two(bare: &Bare<'_>, port: &mut BlockingStore, users: [Uaid; 2], ttl: u32) -> bool {
    let [refreshed, rewritten] = users.map(|user| hexadecimal(&user.0));
    let record = super::super::rows::record(crate::RECORD_VERSION, NOW);
    let clock = Clock(WRITTEN_AT.unsigned_abs());
    let contact = super::super::rows::contact(&machine::simplepush::Contact::default());
    let rows: [(i8, Vec<u8>, Vec<u8>); 5] = [
        (RECORD, vec![], record),
        (USER_CLOCK, vec![], super::super::rows::clock(clock)),
        (CONTACT, vec![], contact),
        (CHANNEL, chid(2).0.to_vec(), super::super::rows::channel(clock, None)),
        (PRESENCE, super::super::rows::presence_key(&presence(0).node), super::super::rows::clock(clock)),
    ];
    for (family, key, value) in &rows {
        bare.put(&refreshed, *family, key, value, ttl);
        bare.put(&rewritten, *family, key, value, ttl);
    }
    bare.flushed(users[0].0[15]);
    port.done(StoreOp::Touch { uaid: users[0], seen: NOW });
    port.done(StoreOp::SetPresence { uaid: users[0], presence: presence(1) });
    for (family, key, value) in &rows {
        bare.put(&rewritten, *family, key, value, 10_000);
    }
    let long = bare.ttls(&refreshed);
    long.len() == rows.len() && long.iter().all(|left| *left > 1_000)
}

/// The database turns an expired cell into a tombstone of the same timestamp when it compacts the file that has it
/// alone, and a tombstone wins a tie. The second user shows that this has happened: it is gone.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_refreshed_user_outlives_its_old_copy_that_is_compacted_alone() {
    let (store, keyspace) = open_alone();
    let bare = Bare::new(keyspace.config());
    // Memory goes to disk every second, and no file is compacted until the test says so.
    bare.send(
        "ALTER TABLE KS.user WITH gc_grace_seconds = 0 AND memtable_flush_period_in_ms = 1000 AND compaction = \
         {'class': 'SizeTieredCompactionStrategy', 'enabled': 'false'}",
    );
    let mut port = BlockingStore::new(store.port(std::sync::Arc::new(|| {})));
    let users = [5, 10, 20, 40].into_iter().zip((1..).step_by(2)).find_map(|(ttl, first)| {
        let users = [uaid(first), uaid(first + 1)];
        refresh_two(&bare, &mut port, users, ttl).then_some(users)
    });
    let [refreshed, rewritten] = users.expect("a refresh within 40 s");
    bare.flushed(0);
    assert!(port.user(refreshed).is_some() && port.user(rewritten).is_some());
    // From now on a file of which most has expired is compacted by itself, and no two files together.
    bare.send(
        "ALTER TABLE KS.user WITH compaction = {'class': 'SizeTieredCompactionStrategy', 'min_threshold': '1000', \
         'max_threshold': '1000', 'tombstone_compaction_interval': '1', 'tombstone_threshold': '0.1', \
         'unchecked_tombstone_compaction': 'true'}",
    );
    until("the old copy is compacted alone", || {
        // Each write leads to a file, and each file to a look at what there is to compact.
        bare.put("0xff", RECORD, &[], &[1], 10_000);
        std::thread::sleep(Duration::from_secs(1));
        port.user(rewritten).is_none()
    });
    assert!(bare.ttls(&hexadecimal(&rewritten.0)).is_empty(), "its presence is gone, too");
    let user = port.user(refreshed).expect("the refreshed user is there");
    assert_eq!((user.seen, user.channels, user.presence), (NOW, vec![chid(2)], vec![presence(1)]));
    drop(port);
    store.close();
}

fn touch(port: &mut BlockingStore) {
    (0..9).for_each(|_| port.done(StoreOp::Touch { uaid: uaid(1), seen: NOW }));
}

/// The end of a channel or a user is later than every refresh before it, also on a node whose clock stands behind.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn unregister_and_drop_win_over_a_refresh() {
    let store = open();
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    port.done(register(1, 2, 100));
    port.done(register(1, 3, 100));
    touch(&mut port);
    port.done(StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(102) });
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, [chid(3)]);
    touch(&mut port);
    assert_eq!(port.user(uaid(1)).expect("it is known").channels, [chid(3)]);
    port.done(StoreOp::DropUser { uaid: uaid(1) });
    assert_eq!(port.user(uaid(1)), None);
    port.done(register(1, 2, 103));
    assert_eq!(port.user(uaid(1)).expect("it is known again").channels, [chid(2)]);
    drop(port);
    store.close();
}

/// A refresh changes neither the version of a presence, which its clear must match, nor low water, which the greatest
/// value wins.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_refresh_leaves_presence_and_low_water_as_they_are() {
    let store = open();
    let mut port = BlockingStore::new(Box::new(Apart::new(&store)));
    port.done(register(1, 2, 1));
    port.done(StoreOp::SetPresence { uaid: uaid(1), presence: presence(0) });
    let settle = |m: &Message, low_water| StoreOp::Settle {
        rows: vec![RowKey::of(m)],
        low_water: Some(Clock(low_water)),
        durable: true,
    };
    let waiting = [message(1, 2, 60), message(1, 2, 63), message(1, 2, 90)];
    waiting.iter().for_each(|m| port.publish(m.clone()));
    port.done(settle(&waiting[0], 60));
    touch(&mut port);
    port.done(settle(&waiting[1], 63));
    assert_eq!(port.user(uaid(1)).expect("it is known").low_water, Clock(63));
    assert_eq!(port.clocks(uaid(1)), [90]);
    port.done(StoreOp::ClearPresence { uaid: uaid(1), presence: presence(0) });
    assert_eq!(port.user(uaid(1)).expect("it is known").presence, []);
    drop(port);
    store.close();
}
