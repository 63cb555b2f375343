//! The laws of [`Transfer`], run against every backend, and walks and imports from one store into another.

use std::sync::Arc;

use machine::ids::{Clock, KeyDigest, Stamp, Uaid};
use machine::message::Message;
use machine::simplepush::{Contact, Mode};
use machine::time::UnixSeconds;
use machine::{RowKey, StoreOp, StoreReply};

use super::*;
use crate::conformance::{NOW, chid, contact, laws, message, topical, uaid};
use crate::embedded::{Embedded, Options};
use crate::fault::FaultKind;
use crate::model::Model;
use crate::testing::compare::compare;
use crate::testing::database::open_alone;
use crate::testing::patient;
use crate::testing::sample::bridged;
use crate::testing::users::{channel, done, fill, user};

fn rows(store: &mut dyn Transfer, user: u8) -> Vec<Message> {
    let mut found = Vec::new();
    rows::each_row(store, &[uaid(user)], NOW, &mut |_, message| {
        found.push(Message::clone(&message));
        Ok(())
    })
    .unwrap();
    found
}

fn clocks(store: &mut dyn Transfer, user: u8) -> Vec<u64> {
    rows(store, user).iter().map(|m| m.stamp.clock.0).collect()
}

fn found(store: &mut dyn Transfer, n: u8) -> Option<WholeUser> {
    store.find(&[uaid(n)]).unwrap().remove(0)
}

/// `may_have_messages` is a bound: a store may set it for a user without messages.
fn assert_same(found: WholeUser, expected: &WholeUser) {
    assert!(found.may_have_messages >= expected.may_have_messages);
    assert_eq!(WholeUser { may_have_messages: expected.may_have_messages, ..found }, *expected);
}

/// A user that is written whole is read whole, by name and in the list, and the port serves it.
fn users_are_read_as_they_were_written(store: &mut dyn Transfer) {
    let simple = Contact { mode: Mode::Simple, ..*contact(Mode::Simple, "ip=1&port=2") };
    let users = [
        user(3, &[]),
        WholeUser { low_water: Clock(40), user_clock: Clock(70), contact: simple, ..user(1, &[channel(2, 9)]) },
        user(2, &[channel(2, 5), channel(3, 7), channel(4, 6)]),
    ];
    assert_eq!(found(store, 1), None);
    store.put_users(&users).unwrap();
    let in_order = |store: &mut dyn Transfer, limit| {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let Listed { users: some, last, .. } = store.users(after, limit).unwrap();
            assert!(some.len() <= limit);
            assert_eq!(last, some.last().map(|user| user.uaid));
            if last.is_none() {
                break;
            }
            after = last;
            all.extend(some);
        }
        all.sort_by_key(|user| user.uaid);
        all
    };
    let expected = [users[1].clone(), users[2].clone(), users[0].clone()];
    for limit in [1, 2, 10] {
        for (found, expected) in in_order(store, limit).into_iter().zip(&expected) {
            assert_same(found, expected);
        }
        assert_eq!(in_order(store, limit).len(), expected.len());
    }
    let [Some(second), None, Some(first)] = &store.find(&[uaid(2), uaid(9), uaid(1)]).unwrap()[..] else { panic!() };
    assert_same(second.clone(), &users[2]);
    assert_same(first.clone(), &users[1]);
    let replies = store.ask(vec![StoreOp::LoadUser { uaid: uaid(1) }]).unwrap();
    let [StoreReply::User(Some(row))] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((row.low_water, row.user_clock, row.seen), (Clock(40), Clock(70), NOW));
    assert_eq!((&row.contact, &row.channels[..]), (&users[1].contact, &[chid(2)][..]));
    // Empty lists are nothing, not an error.
    store.put_users(&[]).unwrap();
    store.put_rows(&[]).unwrap();
    assert!(store.find(&[]).unwrap().is_empty());
}

/// Rows wait unseen for their user, keep their stamps, and no low water covers them.
fn rows_come_first_and_are_seen_with_their_user(store: &mut dyn Transfer) {
    let sent = [message(1, 2, 30), message(1, 3, 20), topical(1, 2, 25, "tide")];
    let sent = sent.map(Arc::new);
    store.put_rows(&sent).unwrap();
    store.put_rows(&sent[..2]).unwrap();
    assert!(rows(store, 1).is_empty() && found(store, 1).is_none());
    assert!(store.users(None, 9).unwrap().users.is_empty());
    let whole = WholeUser {
        may_have_messages: true,
        low_water: Clock(50),
        user_clock: Clock(60),
        ..user(1, &[channel(2, 1), channel(3, 1)])
    };
    store.put_users(std::slice::from_ref(&whole)).unwrap();
    assert_eq!(found(store, 1), Some(whole));
    let kept = rows(store, 1);
    assert_eq!(kept, [&sent[2], &sent[1], &sent[0]].map(|m| Message::clone(m)));
    // An ack removes such a row like any other.
    done(
        store,
        StoreOp::Settle { rows: vec![RowKey::of(&sent[0]), RowKey::of(&sent[2])], low_water: None, durable: true },
    );
    assert_eq!(clocks(store, 1), [20]);
}

/// An older topic row does not take the slot, and one that expired is not returned.
fn rows_obey_the_laws_of_rows(store: &mut dyn Transfer) {
    let old = Message { ttl: 5, accepted: UnixSeconds(NOW.0 - 5), ..message(1, 2, 9) };
    let both = [topical(1, 2, 30, "tide"), topical(1, 2, 20, "tide"), old].map(Arc::new);
    store.put_rows(&both).unwrap();
    store.put_users(&[WholeUser { may_have_messages: true, ..user(1, &[channel(2, 1)]) }]).unwrap();
    assert_eq!(clocks(store, 1), [30]);
    store.put_rows(&[Arc::new(topical(1, 2, 29, "tide"))]).unwrap();
    assert_eq!(clocks(store, 1), [30]);
}

/// A known user keeps its data: the greater of each number, its channels as they were, and its contact.
fn a_known_user_gets_only_what_it_lacks(store: &mut dyn Transfer) {
    let first = WholeUser {
        low_water: Clock(20),
        user_clock: Clock(50),
        contact: *contact(Mode::Simple, "here"),
        ..user(1, &[channel(2, 9), channel(3, 10)])
    };
    store.put_users(std::slice::from_ref(&first)).unwrap();
    let other_key = Channel { key: None, ..channel(2, 60) };
    let second =
        WholeUser { seen: UnixSeconds(NOW.0 - 9), low_water: Clock(10), ..user(1, &[other_key, channel(4, 60)]) };
    store.put_users(&[second]).unwrap();
    let expected =
        WholeUser { user_clock: Clock(60), channels: vec![channel(2, 9), channel(3, 10), channel(4, 60)], ..first };
    assert_same(found(store, 1).unwrap(), &expected);
}

fn on_model(law: fn(&mut dyn Transfer)) {
    law(&mut *Model::new(u64::MAX).transfer());
}

fn on_shared(law: fn(&mut dyn Transfer)) {
    law(&mut *Model::of(machine::model::Model::shared()).transfer());
}

fn on_embedded(law: fn(&mut dyn Transfer)) {
    let dir = tempfile::tempdir().unwrap();
    // NOW of the laws lies ahead of the clock, so nothing is idle or expired to the keeper.
    let store = Embedded::open(dir.path(), patient()).unwrap();
    law(&mut *store.transfer());
    store.close();
}

fn on_scylla(law: fn(&mut dyn Transfer)) {
    let (store, _keyspace) = open_alone();
    law(&mut *store.transfer());
    store.close();
}

fn on_replicas(law: fn(&mut dyn Transfer)) {
    crate::scylla::tests::replicas::with_store(|store| law(&mut *store.transfer()));
}

laws! {
    users_are_read_as_they_were_written,
    rows_come_first_and_are_seen_with_their_user,
    rows_obey_the_laws_of_rows,
    a_known_user_gets_only_what_it_lacks,
    what_left_since_stays_away,
    a_newer_bridge_raises_the_clock_of_its_user,
    a_second_run_changes_nothing,
    a_check_writes_nothing,
}

fn coming(user: WholeUser, rows: &[Message]) -> IncomingUser {
    IncomingUser { user, rows: rows.iter().cloned().map(Arc::new).collect(), more: false }
}

/// A channel that was unregistered, and a message that was acked, do not come back by a second run; new ones arrive.
fn what_left_since_stays_away(store: &mut dyn Transfer) {
    let sent = [message(1, 2, 30), message(1, 3, 31)];
    let first = coming(user(1, &[channel(2, 9), channel(3, 9)]), &sent);
    let admitted = import_users(store, std::slice::from_ref(&first), false).unwrap();
    assert_eq!((admitted.users_new, admitted.channels_added, admitted.rows_added), (1, 2, 2));
    done(store, StoreOp::Settle { rows: vec![RowKey::of(&sent[0])], low_water: None, durable: true });
    // One more channel of the time before, and the same channels once more.
    let second = coming(user(1, &[channel(2, 9), channel(3, 9), channel(4, 9)]), &sent);
    let admitted = import_users(store, &[second], false).unwrap();
    assert_eq!((admitted.users_changed, admitted.channels_added, admitted.rows_left_out), (1, 1, 2));
    assert_eq!(clocks(store, 1), [31]);
    done(store, StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(80) });
    let admitted = import_users(store, &[first], false).unwrap();
    assert_eq!((admitted.users_unchanged, admitted.channels_added, admitted.channels_left_out), (1, 0, 1));
    assert_eq!(found(store, 1).unwrap().channels, [channel(3, 9), channel(4, 9)]);
    // The channel was registered elsewhere after it was unregistered here, so it is added.
    let later = coming(user(1, &[channel(2, 81)]), &[]);
    assert_eq!(import_users(store, &[later], false).unwrap().channels_added, 1);
}

/// The clock of a user covers its bridge, so that no store writes below it.
fn a_newer_bridge_raises_the_clock_of_its_user(store: &mut dyn Transfer) {
    let with = |registered| {
        let contact = Contact { bridge: Some(bridged(registered)), ..Contact::default() };
        coming(WholeUser { contact, ..user(1, &[channel(2, 9)]) }, &[])
    };
    import_users(store, &[with(9)], false).unwrap();
    for (registered, there) in [(80, 80), (70, 80)] {
        import_users(store, &[with(registered)], false).unwrap();
        let WholeUser { user_clock, contact, .. } = found(store, 1).unwrap();
        assert_eq!(contact.bridge, Some(bridged(there)));
        assert!(user_clock >= Clock(there), "{user_clock:?}");
    }
}

fn a_second_run_changes_nothing(store: &mut dyn Transfer) {
    let list = [
        coming(user(1, &[channel(2, 9)]), &[message(1, 2, 30), topical(1, 2, 31, "t")]),
        coming(user(2, &[channel(2, 7), channel(5, 12)]), &[]),
    ];
    import_users(store, &list, false).unwrap();
    let (before, kept) = (store.users(None, 9).unwrap().users, rows(store, 1));
    let again = import_users(store, &list, false).unwrap();
    assert_eq!(again, ImportCounts { users_unchanged: 2, rows_left_out: 2, ..ImportCounts::default() });
    assert_eq!((store.users(None, 9).unwrap().users, rows(store, 1)), (before, kept));
}

fn a_check_writes_nothing(store: &mut dyn Transfer) {
    let list = [coming(user(1, &[channel(2, 9)]), &[message(1, 2, 30)])];
    let counted = import_users(store, &list, true).unwrap();
    assert_eq!((counted.users_new, counted.rows_added), (1, 1));
    assert!(store.users(None, 9).unwrap().users.is_empty());
    assert_eq!(import_users(store, &list, false).unwrap(), counted);
}

fn now() -> UnixSeconds {
    NOW
}

/// Imports the users of one store into another, as an export and its import do.
fn copy(from: &mut dyn Transfer, to: &mut dyn Transfer) -> Result<(ImportCounts, LeftOut), TransferFault> {
    let mut counts = ImportCounts::default();
    let left = walk(from, &now, &mut |from, users| {
        let uaids: Vec<Uaid> = users.iter().map(|user| user.uaid).collect();
        let mut list: Vec<_> = users.iter().map(|user| coming(user.clone(), &[])).collect();
        for (some, list) in uaids.chunks(USERS_AT_ONCE_MAX).zip(list.chunks_mut(USERS_AT_ONCE_MAX)) {
            each_row(from, some, NOW, &mut |at, message| {
                list[at].rows.push(message);
                Ok(())
            })?;
        }
        counts += import_users(to, &list, false)?;
        Ok(())
    })?;
    Ok((counts, left))
}

#[test]
fn embedded_to_embedded_is_the_same_store() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, to] = [0, 1].map(|n| Embedded::open(dirs[n].path(), patient()).unwrap());
    fill(&mut *from.transfer());
    let (copied, _) = copy(&mut *from.transfer(), &mut *to.transfer()).unwrap();
    let compared = compare(&mut *from.transfer(), &mut *to.transfer(), NOW);
    assert!(compared.is_same() && compared.rows > 500, "{compared:?}");
    assert_eq!((compared.users, compared.channels, compared.rows), (200, copied.channels_added, copied.rows_added));
    {
        let (from, to) = (&mut *from.transfer(), &mut *to.transfer());
        for n in [3, 5, 6, 7, 200] {
            let [source, target] = [found(from, n), found(to, n)].map(Option::unwrap);
            let may_have_messages = true;
            assert_eq!(WholeUser { may_have_messages, ..source }, WholeUser { may_have_messages, ..target });
            assert_eq!(rows(from, n), rows(to, n), "user {n}");
        }
        let page = StoreOp::Messages { uaid: uaid(5), after: Stamp::default(), limit: 500, now: NOW };
        let [StoreReply::Page(page)] = &to.ask(vec![page]).unwrap()[..] else { panic!() };
        assert_eq!((page.messages.len(), page.messages[0].stamp.clock), (100, Clock(1)));
    }
    to.close();
    // And after it was closed.
    let to = Embedded::open(dirs[1].path(), patient()).unwrap();
    assert!(to.clock_floor() >= Clock(300), "no shard's clock may start below what came");
    assert!(compare(&mut *from.transfer(), &mut *to.transfer(), NOW).is_same());
}

/// Changes that a live user has made in the shared store since it was read are later than the writes of the transfer.
/// A change of its presence does not count.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_write_to_scylla_that_comes_late_undoes_nothing() {
    let (shared, _keyspace) = open_alone();
    let store = &mut *shared.transfer();
    let sent = Arc::new(message(1, 3, 30));
    let whole = user(1, &[channel(2, 9), channel(3, 9)]);
    store.put_rows(&[Arc::clone(&sent)]).unwrap();
    store.put_users(std::slice::from_ref(&whole)).unwrap();
    let node = Arc::new(machine::NodeId { url: "http://a:1".into(), boot: 7 });
    let presence = machine::Presence { node, connected_at: 70 };
    done(store, StoreOp::SetPresence { uaid: uaid(1), presence });
    assert_same(found(store, 1).unwrap(), &whole);
    done(store, StoreOp::Unregister { uaid: uaid(1), chid: chid(2), at: Clock(80) });
    done(store, StoreOp::Settle { rows: vec![RowKey::of(&sent)], low_water: None, durable: true });
    store.put_rows(&[Arc::clone(&sent)]).unwrap();
    store.put_users(std::slice::from_ref(&whole)).unwrap();
    assert_eq!(found(store, 1).unwrap().channels, [channel(3, 9)]);
    assert!(rows(store, 1).is_empty());
    done(store, StoreOp::DropUser { uaid: uaid(1) });
    store.put_users(&[whole]).unwrap();
    assert_eq!(found(store, 1), None);
}

/// More channels than one batch holds.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_user_of_scylla_with_every_channel_it_may_have_is_whole() {
    let (shared, _keyspace) = open_alone();
    let store = &mut *shared.transfer();
    let channels: Vec<_> = (0..machine::limits::CHANNELS_MAX as u128)
        .map(|n| Channel {
            chid: machine::ids::Chid(n.to_be_bytes()),
            key: Some(KeyDigest([1; 32])),
            registered_at: Clock(5),
        })
        .collect();
    let whole = user(1, &channels);
    store.put_users(std::slice::from_ref(&whole)).unwrap();
    assert_same(found(store, 1).unwrap(), &whole);
    assert_eq!(store.users(None, 5).unwrap().users.len(), 1);
}

/// Fails after this many calls that write.
struct Failing<'a> {
    store: &'a mut dyn Transfer,
    writes: u32,
}

impl Failing<'_> {
    fn write(&mut self) -> Result<(), TransferFault> {
        self.writes = self.writes.checked_sub(1).ok_or_else(|| TransferFault::new("gone", FaultKind::Passing))?;
        Ok(())
    }
}

impl Transfer for Failing<'_> {
    fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault> {
        self.store.users(after, limit)
    }

    fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
        self.store.find(uaids)
    }

    fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault> {
        self.write()?;
        self.store.put_rows(rows)
    }

    fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault> {
        self.write()?;
        self.store.put_users(users)
    }

    fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        self.store.ask(ops)
    }
}

#[test]
fn a_copy_goes_on_after_a_failure_at_any_write() {
    let source = Model::new(u64::MAX);
    let from = &mut *source.transfer();
    fill(from);
    let mut failures = 0;
    for writes in 0.. {
        let target = Model::new(u64::MAX);
        let to = &mut *target.transfer();
        let first = copy(from, &mut Failing { store: to, writes });
        let half = compare(from, to, NOW);
        assert_eq!(half.is_same(), first.is_ok(), "a user is there with everything or not at all");
        if first.is_ok() {
            break;
        }
        failures += 1;
        copy(from, to).unwrap();
        assert!(compare(from, to, NOW).is_same());
    }
    assert!(failures > 5, "{failures}");
}

#[test]
fn a_comparison_finds_every_user_that_differs() {
    let (source, target) = (Model::new(u64::MAX), Model::new(u64::MAX));
    let (from, to) = (&mut *source.transfer(), &mut *target.transfer());
    fill(from);
    copy(from, to).unwrap();
    let mut different = |op| {
        done(to, op);
        compare(from, to, NOW).different
    };
    let [five, six, seven] = [5, 6, 7].map(uaid);
    assert_eq!(different(StoreOp::Unregister { uaid: five, chid: chid(1), at: Clock(900) }), [five]);
    let acked = StoreOp::Settle { rows: vec![RowKey::of(&message(6, 1, 1))], low_water: None, durable: true };
    assert_eq!(different(acked), [five, six]);
    assert_eq!(different(StoreOp::DropUser { uaid: seven }), [five, six, seven]);
}

#[test]
fn who_would_be_dropped_or_reset_is_left_behind() {
    let (source, target) = (Model::new(u64::MAX), Model::new(u64::MAX));
    let (from, to) = (&mut *source.transfer(), &mut *target.transfer());
    let idle = UnixSeconds(NOW.0 - crate::IDLE_SECONDS_MAX);
    from.put_users(&[user(1, &[]), WholeUser { seen: idle, ..user(2, &[]) }]).unwrap();
    let (copied, left) = copy(from, to).unwrap();
    assert_eq!((copied.users_new, left), (1, LeftOut { idle: 1, ..LeftOut::default() }));
    assert!(found(to, 1).is_some() && found(to, 2).is_none());
}

#[test]
fn a_full_store_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let full = Embedded::open(dir.path(), Options { bytes_max: 1, ..patient() }).unwrap();
    let model = Model::new(0);
    for store in [&mut *full.transfer(), &mut *model.transfer()] {
        for said in [store.put_users(&[user(1, &[])]), store.put_rows(&[Arc::new(message(1, 2, 3))])] {
            assert!(said.unwrap_err().to_string().starts_with("the store takes no more: make room"));
        }
        assert!(store.users(None, 1).unwrap().users.is_empty());
    }
}
