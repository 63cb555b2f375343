//! Shares of a store that is nearly full. It counts one row in 64 by its stamp, so what is counted here never changes.

use std::num::NonZeroU64;

use machine::ids::AddressDigest;

use super::*;

/// An empty journal has 64 MiB: room is scarce from the start, with 13 MiB left of 77.
fn scarce() -> Options {
    Options { bytes_max: 77 << 20, ..patient() }
}

/// Opens a store again with a bound of which a seventh is left: journals are shorter after a start.
fn scarce_again(dir: &Path) -> Embedded {
    let store = open(dir);
    let (journals, tables) = store.store_status.space.journals_and_tables();
    store.close();
    let least = (journals + tables) * 7 / 6;
    // A third is set aside for journals.
    let bytes_max = if least / 3 <= journals { least } else { tables * 21 / 11 };
    Embedded::open(dir, Options { bytes_max, ..patient() }).expect("it opens")
}

/// A user of this address.
fn made_from(port: &mut BlockingStore, user: u8, address: u64) {
    let StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker: _ } = register(user, 2, 1) else {
        unreachable!()
    };
    let maker = NonZeroU64::new(address << 40 | address << 20 | address).map(AddressDigest);
    port.done(StoreOp::Register { uaid, chid, key, at, seen, contact, presence, maker });
}

fn large(user: u8, nth: u64) -> Message {
    Message { payload: vec![7; 4_000].into(), ..message(user, 2, 1_000 * u64::from(user) + nth) }
}

fn offer(port: &mut BlockingStore, message: Message) -> bool {
    match port.ask(StoreOp::Publish { message: Arc::new(message), checked: false }) {
        Ok(StoreReply::Done | StoreReply::Scarce) => true,
        Err(StoreError::Full) => false,
        other => panic!("{other:?}"),
    }
}

/// Offers messages of user 1, whose address has more than its share, until one is refused: the records are read by
/// then.
fn until_records_are_read(port: &mut BlockingStore) {
    let mut nth = 1_000_000;
    wait_until("the records are read", || {
        nth += 1;
        !offer(port, large(1, nth))
    });
}

/// Offers messages, a hundred in one group; returns the number of those that were taken.
fn offer_all(port: &mut BlockingStore, messages: impl Iterator<Item = Message>) -> u64 {
    let ops: Vec<_> = messages.map(|message| StoreOp::Publish { message: Arc::new(message), checked: false }).collect();
    let mut taken = 0;
    for some in ops.chunks(100) {
        for answer in port.ask_all(some.to_vec()) {
            match answer {
                Ok(StoreReply::Done | StoreReply::Scarce) => taken += 1,
                Err(StoreError::Full) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    taken
}

/// Offers messages to a user; returns the number of those that were taken.
fn fill(port: &mut BlockingStore, user: u8, count: u64) -> u64 {
    offer_all(port, (1..=count).map(|nth| large(user, nth)))
}

/// As [`fill`], with messages that are small.
fn fill_small(port: &mut BlockingStore, user: u8, count: u64) -> u64 {
    offer_all(port, (1..=count).map(|nth| message(user, 2, 1_000 * u64::from(user) + 600 + nth)))
}

fn board(store: &Embedded, name: &str) -> u64 {
    store.board().read().find(|(meaning, _)| meaning.name == name).map_or(0, |(_, value)| value)
}

const ATTACKER: u64 = 7;

/// Four users of one address take what they can.
fn attack(port: &mut BlockingStore) -> u64 {
    (1..=4).for_each(|user| made_from(port, user, ATTACKER));
    (1..=4).map(|user| fill(port, user, 300)).sum()
}

#[test]
fn an_address_takes_its_share_and_its_good_users_find_room() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), scarce()).expect("it opens");
    let mut port = port(&store);
    let taken = attack(&mut port);
    assert!((1..400).contains(&taken), "{taken} of 1,200 were taken");
    wait_until("the board is refreshed", || board(&store, "store_share_full") == 1_200 - taken);
    // New users of the address, and some of other addresses that take more than such a user may.
    (5..=204).for_each(|user| made_from(&mut port, user, ATTACKER));
    let first = (5..=204).map(|user| message(user, 2, 1_000 * u64::from(user)));
    assert_eq!(offer_all(&mut port, first), 200);
    for user in 205..=212 {
        made_from(&mut port, user, 1_000 + u64::from(user));
        assert_eq!(fill(&mut port, user, 30), 30, "a row that counts for 64 is not held against it");
    }
    port.register(213, 2);
    assert_eq!(fill(&mut port, 213, 10), 10, "a user without an address");
    let kept = (1..=4).map(|user| port.clocks(uaid(user)).len() as u64).sum::<u64>();
    assert_eq!(kept, taken, "what was taken stays");
    assert_eq!(board(&store, "store_scarce"), 1);
}

#[test]
fn many_addresses_with_little_each_do_not_fill_a_store() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Embedded::open(dir.path(), scarce()).expect("it opens");
    let mut port = port(&store);
    (1..=200).for_each(|user| made_from(&mut port, user, 1_000 + u64::from(user)));
    let messages = (1..=100).flat_map(|nth| (1..=200).map(move |user| large(user, nth)));
    let taken = offer_all(&mut port, messages);
    assert!((200..3_000).contains(&taken), "{taken} of 20,000 were taken");
    wait_until("the board is refreshed", || board(&store, "store_share_full") == 20_000 - taken);
    assert_eq!(board(&store, "store_full"), 0, "it is not full");
    made_from(&mut port, 201, 1);
    assert!(offer(&mut port, large(201, 1)));
}

#[test]
fn what_addresses_have_is_known_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    // Room is plenty: nothing is refused.
    let mut before = port(&store);
    assert_eq!(attack(&mut before), 1_200);
    store.close();
    let store = scarce_again(dir.path());
    let mut port = port(&store);
    until_records_are_read(&mut port);
    made_from(&mut port, 5, ATTACKER);
    assert!(offer(&mut port, message(5, 2, 5_000)));
    // Acks give the room of the address back.
    for user in 1..=4 {
        let rows = port.clocks(uaid(user)).into_iter().map(|clock| RowKey::of(&message(user, 2, clock))).collect();
        port.done(StoreOp::Settle { rows, low_water: None, durable: true });
    }
    assert_eq!(fill_small(&mut port, 5, 10), 10);
}

#[test]
fn a_user_who_has_acked_may_have_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut before = port(&store);
    attack(&mut before);
    made_from(&mut before, 5, ATTACKER);
    made_from(&mut before, 6, ATTACKER);
    assert_eq!(fill(&mut before, 5, 500), 500);
    let rows = (1..=500).map(|nth| RowKey::of(&large(5, nth))).collect();
    before.done(StoreOp::Settle { rows, low_water: None, durable: false });
    store.close();
    let store = scarce_again(dir.path());
    let mut port = port(&store);
    until_records_are_read(&mut port);
    let (acked, never) = (fill_small(&mut port, 5, 100), fill_small(&mut port, 6, 100));
    assert!(0 < never && 3 * never <= acked && acked < 100, "{acked} and {never} of 100 were taken");
}

#[test]
fn topics_and_saved_rows_count() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = open(dir.path());
    let mut before = port(&store);
    attack(&mut before);
    made_from(&mut before, 5, ATTACKER);
    made_from(&mut before, 6, ATTACKER);
    let topic = |nth: u64| Message { payload: vec![7; 4_000].into(), ..topical(5, 2, 5_000 + nth, &format!("t{nth}")) };
    (1..=10).for_each(|nth| before.publish(topic(nth)));
    (1..=10).for_each(|nth| before.done(StoreOp::Save { messages: vec![Arc::new(large(6, nth))] }));
    store.close();
    let store = scarce_again(dir.path());
    let mut port = port(&store);
    for user in [5, 6] {
        let mut nth = 1_000;
        wait_until("its rows are read", || {
            nth += 1;
            !offer(&mut port, large(user, nth))
        });
    }
    let saved = port.ask(StoreOp::Save { messages: vec![Arc::new(large(6, 77))] });
    assert!(matches!(saved, Ok(StoreReply::Scarce)), "what was accepted is saved: {saved:?}");
    // A low water settles rows of POSTs, and saved rows stay.
    assert!(!offer(&mut port, large(6, 78)));
}
