//! An exported store is imported as it was.

use machine::ids::Origin;
use machine::message::Tries;
use machine::simplepush::Mode;
use machine::upstream::{BridgeKind, Bridged};
use proptest::prelude::*;
use store::embedded::Embedded;
use store::testing::compare::compare;
use store::testing::database::open_alone;
use store::testing::patient;
use store::testing::sample::{self, contact, message, topical, update};
use store::testing::users::{channel, fill, user};

use super::*;
use crate::export::{Exported, export};

/// Within the time of the laws nothing expires unless it should.
const NOW: UnixSeconds = sample::NOW;

/// Imports lines at this time, all good.
pub(crate) fn import_all(text: &[u8], now: UnixSeconds, store: &mut dyn Transfer) -> Summary {
    let mut say = |said| panic!("{said}");
    let mut import = Import::new(&args(&[]), &mut say);
    import.now = now;
    import.all(text, store).unwrap();
    import.summary
}

fn export_all(store: &mut dyn Transfer) -> (Vec<u8>, Exported) {
    let mut out = Vec::new();
    let exported = export(store, &mut out, &|| NOW, &mut |_| {}).unwrap();
    (out, exported)
}

fn sorted(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<_> = text.split(|byte| *byte == b'\n').collect();
    lines.sort();
    lines
}

/// Messages that take more than two lines, and the members of a user that another service does not have.
fn fill_more(store: &mut dyn Transfer) {
    let tries = Tries::default().and(3).and(4);
    let long = |n: u64| Message { payload: vec![n as u8; 8_192].into(), ..message(210, 2, 1_000 + n) };
    let mut rows: Vec<_> = (0..100).map(long).collect();
    rows.extend((0..40).map(|n| topical(210, 2, 2_000 + n, &format!("t{n}"))));
    rows.push(Message { receipt: true, tries, ttl: 2_592_000, ..message(210, 3, 3_000) });
    rows.push(Message { accepted: UnixSeconds(NOW.0 - 1_000), ..message(210, 2, 3_001) });
    rows.push(update(211, 2, 50, 7));
    let ahead = NOW.0 * 1_000_000 + 3_600_000_000;
    let stamp = machine::ids::Stamp { clock: Clock(ahead), origin: Origin(u32::MAX) };
    rows.push(Message { stamp, accepted: UnixSeconds(NOW.0 + 40), ..message(212, 3, 0) });
    rows.into_iter().for_each(|row| store.put_rows(&[Arc::new(row)]).unwrap());
    let simple = *contact(Mode::Simple, "ip=10.0.0.1&q=\"\\");
    store
        .put_users(&[
            WholeUser { may_have_messages: true, low_water: Clock(7), ..user(210, &[channel(2, 9), channel(3, 10)]) },
            WholeUser { may_have_messages: true, contact: simple, ..user(211, &[channel(2, 9)]) },
            WholeUser { may_have_messages: true, user_clock: Clock(ahead), ..user(212, &[channel(3, ahead)]) },
            WholeUser { seen: UnixSeconds(NOW.0 - store::IDLE_SECONDS_MAX), ..user(213, &[]) },
            WholeUser { seen: UnixSeconds(NOW.0 - 86_400), ..user(214, &[]) },
        ])
        .unwrap();
}

/// Exports a store, imports it into an empty one, and exports that.
fn round_trip(from: &mut dyn Transfer, to: &mut dyn Transfer) {
    fill(from);
    fill_more(from);
    let (first, exported) = export_all(from);
    assert_eq!((exported.users, exported.lines, exported.left.idle), (204, 206, 1));
    let summary = import_all(&first, NOW, to);
    let ImportCounts { users_new, channels_added, rows_added, .. } = summary.admitted;
    assert_eq!((users_new, channels_added, rows_added), (204, exported.channels, exported.rows));
    assert_eq!((summary.expired, summary.unsubscribed, summary.bad), (0, 0, 0));
    let compared = compare(from, to, NOW);
    assert!(compared.is_same(), "{compared:?}");
    assert_eq!((compared.users, compared.rows), (204, exported.rows));

    let (second, again) = export_all(to);
    assert!(sorted(&second) == sorted(&first), "a second export is the first");
    assert_eq!(again.rows, exported.rows);
    // An import of the same lines changes nothing.
    let repeated = import_all(&first, NOW, to).admitted;
    assert_eq!(
        repeated,
        ImportCounts { users_unchanged: 204, rows_left_out: exported.rows, ..ImportCounts::default() }
    );
    assert!(sorted(&export_all(to).0) == sorted(&first));
}

#[test]
fn an_export_of_memory_is_imported_into_the_embedded_store() {
    let dir = tempfile::tempdir().unwrap();
    let to = Embedded::open(dir.path(), patient()).unwrap();
    round_trip(&mut *Model::new(u64::MAX).transfer(), &mut *to.transfer());
}

#[test]
fn an_export_of_the_embedded_store_is_imported_into_memory() {
    let dir = tempfile::tempdir().unwrap();
    let from = Embedded::open(dir.path(), patient()).unwrap();
    round_trip(&mut *from.transfer(), &mut *Model::new(u64::MAX).transfer());
}

#[test]
fn an_export_of_a_shared_store_is_imported_into_a_shared_store() {
    let shared = || Model::of(machine::model::Model::shared());
    round_trip(&mut *shared().transfer(), &mut *shared().transfer());
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn an_export_of_the_embedded_store_is_imported_into_scylla_and_comes_back() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [first, last] = [0, 1].map(|n| Embedded::open(dirs[n].path(), patient()).unwrap());
    let (shared, _keyspace) = open_alone();
    round_trip(&mut *first.transfer(), &mut *shared.transfer());
    import_all(&export_all(&mut *shared.transfer()).0, NOW, &mut *last.transfer());
    let compared = compare(&mut *first.transfer(), &mut *last.transfer(), NOW);
    assert!(compared.is_same() && compared.users == 204, "{compared:?}");
    shared.close();
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_user_of_scylla_whose_record_cannot_be_read_is_left_out_and_named() {
    let (shared, keyspace) = open_alone();
    let store = &mut *shared.transfer();
    store.put_users(&[1, 2, 3].map(|n| user(n, &[channel(2, 9)]))).unwrap();
    let (whole, _) = export_all(store);
    let uaid = "02".repeat(16);
    keyspace.send(&format!("UPDATE KS.user SET value = 0xff WHERE uaid = 0x{uaid} AND family = 0 AND key = 0x"));
    let (text, exported) = export_all(store);
    assert_eq!((exported.users, exported.left.unreadable, text.split(|byte| *byte == b'\n').count()), (2, 1, 3));
    let place = &exported.left.unreadable_at[0];
    assert!(!place.contains(&uaid[..16]), "a UAID is a secret: {place}");
    assert_eq!(keyspace.send(&format!("SELECT DISTINCT uaid FROM KS.user WHERE {place}")), 1, "{place}");
    // Nor can it be written over.
    let mut say = |said| panic!("{said}");
    let mut import = Import::new(&args(&[]), &mut say);
    import.now = NOW;
    let stop = import.all(&whole[..], store).unwrap_err().to_string();
    assert!(stop.contains(&format!("the record of the user at {place} cannot be read")), "{stop}");
}

/// A user of several lines is there with its last line, and an interrupted import goes on.
#[test]
fn a_user_in_parts_is_seen_whole_or_not_at_all() {
    let source = Model::new(u64::MAX);
    fill_more(&mut *source.transfer());
    let (text, _) = export_all(&mut *source.transfer());
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let is_part = |line: &[u8]| String::from_utf8_lossy(line).contains("\"more\":true");
    let parts = lines.iter().filter(|line| is_part(line)).count();
    assert_eq!(parts, 2);
    let whole = |store: &mut dyn Transfer| store.find(&[sample::uaid(210)]).unwrap().remove(0);
    for cut in 1..=lines.len() {
        let target = Model::new(u64::MAX);
        let store = &mut *target.transfer();
        import_all(&lines[..cut].concat(), NOW, store);
        let last = lines.iter().rposition(|line| String::from_utf8_lossy(line).contains(&"d2".repeat(16)));
        assert_eq!(whole(store).is_some(), last.unwrap() < cut, "after {cut} lines");
        import_all(&lines[cut..].concat(), NOW, store);
        assert!(compare(&mut *source.transfer(), store, NOW).is_same());
    }
}

/// The rows of the last line have expired before the import, and those of the first line have not.
#[test]
fn messages_of_an_earlier_part_are_found_without_those_of_the_last() {
    // The store in memory counts its rows instead of keeping this bit.
    let dir = tempfile::tempdir().unwrap();
    let target = Embedded::open(dir.path(), patient()).unwrap();
    let store = &mut *target.transfer();
    let whole = WholeUser { may_have_messages: true, ..user(1, &[channel(2, 9)]) };
    let line = |message: Message, more| {
        let rows = vec![crate::import::encode_row(&message)];
        serde_json::to_string(&Line::of(&whole, rows, more)).unwrap() + "\n"
    };
    let short = Message { ttl: 1, ..message(1, 2, 31) };
    let text = line(message(1, 2, 30), true) + &line(short, false);
    let summary = import_all(text.as_bytes(), UnixSeconds(NOW.0 + 5), store);
    assert_eq!((summary.admitted.users_new, summary.admitted.rows_added, summary.expired), (1, 1, 1));
    let page = StoreOp::Messages { uaid: whole.uaid, after: Default::default(), limit: 9, now: NOW };
    let [StoreReply::Page(page)] = &store.ask(vec![page]).unwrap()[..] else { panic!() };
    assert_eq!(page.messages.len(), 1);
    assert!(store.find(&[whole.uaid]).unwrap()[0].as_ref().unwrap().may_have_messages);
}

#[test]
fn bad_members_of_an_export_are_refused_and_not_shown() {
    let of = |message: &Message| {
        let rows = vec![crate::import::encode_row(message)];
        serde_json::to_string(&Line::of(&user(1, &[channel(2, 9)]), rows, false)).unwrap()
    };
    let good = of(&message(1, 2, 30));
    let year = 366 * 86_400;
    let late = (NOW.0 + year) * 1_000_000 + 1;
    let topic = machine::message::Topic::new(b"a b");
    for (text, reason) in [
        (
            good.replace("\"version\":1", "\"version\":2"),
            "its member murre has version 2, and this build reads version 1",
        ),
        (good.replace("\"low_water\":0,", ""), "missing field `low_water`"),
        (good.replace("\"low_water\":0", &format!("\"low_water\":{late}")), "low_water lies ahead"),
        (good.replace("\"user_clock\":9", &format!("\"user_clock\":{}", u64::MAX)), "user_clock lies ahead"),
        (good.replace("\"registered_at\":9", &format!("\"registered_at\":{late}")), "registered_at lies ahead"),
        (good.replace("\"rows\":[\"", "\"wake\":\"\",\"rows\":[\""), "its wake data are empty or too long"),
        (good.replace("\"rows\":[\"", "\"rows\":[\"!"), "row 1: it is damaged or written by a later version"),
        (good.replace("\"rows\":[\"AQ", "\"rows\":[\"Ag"), "row 1: it is damaged or written by a later version"),
        (of(&message(2, 2, 30)), "row 1: it is no message of this user"),
        (of(&message(1, 2, late)), "row 1: its stamp lies ahead"),
        (of(&Message { ttl: u32::MAX, ..message(1, 2, 30) }), "row 1: it is no message"),
        (of(&Message { accepted: UnixSeconds(u64::MAX), ..message(1, 2, 30) }), "row 1: it is no message"),
        (of(&Message { topic, ..message(1, 2, 30) }), "row 1: it is no message"),
        (of(&Message { payload: vec![0; 8_193].into(), ..message(1, 2, 30) }), "row 1: it is no message"),
    ] {
        assert_ne!(text, good);
        let model = Model::new(u64::MAX);
        let mut said = Vec::new();
        let mut say = |line| said.push(line);
        let mut import = Import::new(&args(&[]), &mut say);
        import.now = NOW;
        import.all(text.as_bytes(), &mut *model.transfer()).unwrap();
        assert_eq!((import.summary.bad, import.summary.admitted), (1, ImportCounts::default()), "{reason}");
        assert!(said[0].starts_with(&format!("line 1: {reason}")) && !said[0].contains("0101"), "{said:?}");
    }
}

/// A user with as many channels as it may have and full rows is far below the longest line.
#[test]
fn the_longest_line_of_an_export_is_accepted() {
    let channels = (0..limits::CHANNELS_MAX as u128)
        .map(|n| store::transfer::Channel { chid: Chid(n.to_be_bytes()), ..channel(2, NOW.0 * 1_000_000) });
    let most = WholeUser { may_have_messages: true, ..user(1, &channels.collect::<Vec<_>>()) };
    let (source, target) = (Model::new(u64::MAX), Model::new(u64::MAX));
    let store = &mut *source.transfer();
    let chid = most.channels[0].chid;
    let rows: Vec<_> = (0..100u64)
        .map(|n| Arc::new(Message { chid, payload: vec![1; limits::PAYLOAD_BYTES_MAX].into(), ..message(1, 2, n + 1) }))
        .collect();
    store.put_rows(&rows).unwrap();
    store.put_users(&[most]).unwrap();
    let (text, exported) = export_all(store);
    let longest = text.split(|byte| *byte == b'\n').map(<[u8]>::len).max().unwrap();
    assert!(longest < 1 << 20 && exported.lines == 3, "{longest} bytes, {} lines", exported.lines);
    import_all(&text, NOW, &mut *target.transfer());
    assert!(compare(store, &mut *target.transfer(), NOW).is_same());
}

/// Any record of a bridged user.
fn any_bridge() -> impl Strategy<Value = Box<Bridged>> {
    let kind = proptest::sample::select(vec![BridgeKind::Fcm, BridgeKind::Apns]);
    let texts = ("[A-Za-z0-9._-]{0,64}", "\\PC{0,60}", proptest::option::of("\\PC{1,60}"));
    (kind, texts, 0..1u64 << 50, proptest::option::of(1..1u64 << 40)).prop_map(|(kind, texts, registered, refused)| {
        let (app, token, aps) = texts;
        let aps = aps.filter(|_| kind == BridgeKind::Apns).map(Into::into);
        let (registered, refused) = (Clock(registered), refused.map(UnixSeconds));
        Box::new(Bridged { kind, app: app.into(), token: token.into(), aps, registered, refused })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any user and message is the same behind a line, with the token of its device.
    #[test]
    fn a_line_carries_every_member(
        numbers in (0..1u64 << 50, 0..1u64 << 50, 0..1u64 << 50, any::<u32>(), 1..2_592_000u32),
        key in any::<Option<[u8; 32]>>(),
        wake in proptest::option::of("\\PC{1,60}"),
        flags in (any::<bool>(), 0..4u8, 0..6u8),
        minimum in (0..6u8).prop_map(machine::simplepush::Contact::minimum_of),
        topic in proptest::option::of("[0-9A-Za-z_-]{1,32}"),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
        bridge in proptest::option::of(any_bridge()),
    ) {
        let (user_clock, low_water, registered_at, origin, ttl) = numbers;
        let (receipt, simple, tried) = flags;
        let known = store::transfer::Channel {
            key: key.map(machine::ids::KeyDigest),
            registered_at: Clock(registered_at),
            ..channel(2, 9)
        };
        let mode = if simple == 0 { Mode::Simple } else { Mode::WebPush };
        let minimum = minimum.filter(|_| mode == Mode::WebPush);
        let wake = wake.and_then(|text| machine::simplepush::WakeData::new(&text));
        let whole = WholeUser {
            user_clock: Clock(user_clock),
            low_water: Clock(low_water),
            may_have_messages: true,
            contact: machine::simplepush::Contact { mode, wake, minimum, bridge },
            ..user(1, &[known])
        };
        let sent = Message {
            stamp: machine::ids::Stamp { clock: Clock(low_water), origin: Origin(origin) },
            ttl,
            receipt,
            tries: (0..tried).fold(Tries::default(), Tries::and),
            urgency: [Urgency::VeryLow, Urgency::Low, Urgency::Normal, Urgency::High][usize::from(simple)],
            topic: topic.and_then(|text| machine::message::Topic::new(text.as_bytes())),
            payload: payload.into(),
            ..message(1, 2, 0)
        };
        let rows = vec![crate::import::encode_row(&sent)];
        let text = serde_json::to_vec(&Line::of(&whole, rows, false)).unwrap();
        let Ok(Parsed::User(found)) = Line::parse(&text).unwrap().into_user(NOW) else { panic!() };
        prop_assert_eq!(&found.coming.user, &whole);
        prop_assert_eq!(&*found.coming.rows[0], &sent);
    }
}
