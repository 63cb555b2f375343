//! Good and bad lines, runs that end in between, and an imported user at a running server.

use std::path::Path;
use std::sync::Arc;

use machine::ids::{Chid, Clock, Uaid};
use machine::limits;
use machine::message::{Message, Urgency};
use machine::upstream::{BridgeKind, Bridged};
use machine::{StoreOp, StoreReply};

use super::*;
use config::{Config, Sources};
use protocol::webpush::headers::Encoding;
use protocol::webpush::payload;
use store::fault::FaultKind;
use store::model::Model;
use store::transfer::{Listed, TransferFault, WholeUser};

pub(crate) mod exported;
mod served;

const SAMPLE: &str = include_str!("../../../../docs/import-sample.jsonl");
/// A little after the sample was written.
const NOW: UnixSeconds = UnixSeconds(1_763_710_000);

/// Arguments as a command line gives them.
fn args(flags: &[&str]) -> Args {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    let words = ["import", "-"].iter().chain(flags);
    <Line as clap::Parser>::try_parse_from(words).unwrap().args
}

/// Imports `text`. Returns the result, the counts, and the printed lines.
fn import(text: &str, flags: &[&str], store: &mut dyn Transfer) -> (Result<(), String>, Summary, Vec<String>) {
    let mut said = Vec::new();
    let mut say = |line| said.push(line);
    let mut import = Import::new(&args(flags), &mut say);
    import.now = NOW;
    let done = import.all(text.as_bytes(), store).map_err(|stop| stop.to_string());
    let summary = import.summary;
    (done, summary, said)
}

fn good(text: &str, store: &mut dyn Transfer) -> Summary {
    let (done, summary, said) = import(text, &[], store);
    assert_eq!((done, said), (Ok(()), vec![]));
    summary
}

fn uaid(n: u8) -> Uaid {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&[0xde, 0xad, 0xbe, 0xef]);
    bytes[8..12].copy_from_slice(&[0xde, 0xca, 0xfb, 0xad]);
    bytes[15] = n;
    Uaid(bytes)
}

fn found(store: &mut dyn Transfer, n: u8) -> Option<WholeUser> {
    store.find(&[uaid(n)]).unwrap().remove(0)
}

fn rows(store: &mut dyn Transfer, n: u8) -> Vec<Arc<Message>> {
    let (uaid, limit) = (uaid(n), 100);
    let topics = StoreOp::Topics { uaid, after: None, limit, now: NOW };
    let messages = StoreOp::Messages { uaid, after: Default::default(), limit, now: NOW };
    let pages = store.ask(vec![topics, messages]).unwrap();
    pages
        .into_iter()
        .flat_map(|reply| match reply {
            StoreReply::Page(page) => page.messages,
            other => panic!("{other:?}"),
        })
        .collect()
}

/// A line of user `n` with one channel.
fn line(n: u8) -> String {
    let (uaid, chid) = (format!("deadbeef00000000decafbad000000{n:02x}"), uuid::Uuid::from_bytes([n; 16]));
    format!("{{\"uaid\":\"{uaid}\",\"connected_at\":1763700000000,\"channels\":[\"{chid}\"]}}\n")
}

#[test]
fn the_sample_of_the_documentation_is_imported_as_documented() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let summary = good(SAMPLE, store);
    let admitted = ImportCounts { users_new: 4, channels_added: 6, rows_added: 2, ..ImportCounts::default() };
    let rest = Summary { expired: 1, read_before: 1, unsubscribed: 1, adm: 1, ..Summary::default() };
    assert_eq!(summary, Summary { lines: 5, admitted, ..rest });

    let first = found(store, 1).unwrap();
    assert_eq!((first.seen, first.user_clock), (UnixSeconds(1_763_700_000), Clock(1_763_700_000_000_000)));
    let second = found(store, 2).unwrap();
    let [plain, point, digest] = &second.channels[..] else { panic!("{:?}", second.channels) };
    assert_eq!((plain.registered_at, plain.key), (Clock(1_763_500_000_123_000), None));
    assert_eq!(second.user_clock, Clock(1_763_600_000_000_000));
    // SHA-256 of "abc", and of the 65 bytes behind the text.
    assert_eq!(digest.key.map(|key| key.0[..4].to_vec()), Some(vec![0xba, 0x78, 0x16, 0xbf]));
    assert!(point.key.is_some() && point.key != digest.key && second.may_have_messages);
    let bridged = found(store, 3).unwrap();
    let bridge = bridged.contact.bridge.unwrap();
    assert_eq!((bridge.kind, &*bridge.app, &*bridge.token), (BridgeKind::Fcm, "fenix", "c-T0ken:APA91b"));
    assert_eq!((bridge.registered, bridged.channels.len()), (Clock(1_763_700_000_000_000), 1));
    assert_eq!(found(store, 5), None, "its service is not served");
    assert!(found(store, 4).unwrap().channels.is_empty());

    let [topical, waiting] = &rows(store, 2)[..] else { panic!("two messages are left") };
    let view = payload::view(&waiting.payload).unwrap();
    assert_eq!((view.body, view.encoding), (&b"waiting"[..], Encoding::Aes128gcm));
    assert_eq!((waiting.stamp.clock, waiting.ttl), (Clock(1_763_660_000_500_000), 2_592_000));
    assert_eq!((waiting.accepted, waiting.urgency), (UnixSeconds(1_763_660_000), Urgency::Normal));
    let view = payload::view(&topical.payload).unwrap();
    assert_eq!((view.body, view.headers[0]), (&b"topical"[..], Some("salt=c2FsdHNhbHRzYWx0c2FsdA")));
    assert_eq!(
        (topical.topic.map(|t| t.as_bytes().to_vec()), topical.urgency),
        (Some(b"weather".to_vec()), Urgency::Low)
    );
    assert_eq!((topical.ttl, topical.stamp.clock), (2_592_000, Clock(1_763_640_000_000_000)));

    let again = good(SAMPLE, store);
    let unchanged = ImportCounts { users_unchanged: 4, rows_left_out: 2, ..ImportCounts::default() };
    assert_eq!(again, Summary { lines: 5, admitted: unchanged, ..rest });
}

/// Output of the recipes of docs/MIGRATING.md: from a real PostgreSQL, and from the clients of Redis and Bigtable on
/// stand-ins for their servers.
#[test]
fn what_the_recipes_print_is_imported() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let summary = good(include_str!("tests/dumps.jsonl"), store);
    let admitted = ImportCounts { users_new: 5, channels_added: 3, rows_added: 7, ..ImportCounts::default() };
    assert_eq!(summary, Summary { lines: 5, admitted, ..Summary::default() });
    for (user, clocks) in [
        (1, [1_763_640_000, 1_763_660_000, 1_763_670_000].as_slice()),
        (0x11, &[1_763_660_001, 1_763_660_000]),
        (0x21, &[1_763_660_000, 1_763_660_000]),
    ] {
        let found: Vec<_> = rows(store, user).iter().map(|m| m.stamp.clock.0 / 1_000_000).collect();
        assert_eq!(found, clocks, "user {user}: topics first");
    }
}

/// Every way in which a line can be bad, with the reason that is printed.
#[test]
fn bad_lines_say_what_is_wrong_and_show_no_secret() {
    let with = |members: &str| format!("{{\"uaid\":\"{SECRET}\",{members}}}");
    let message = |members: &str| {
        let chid = "70000000-0000-4000-8000-000000000000";
        with(&format!(
            "\"connected_at\":1763700000000,\"channels\":[\"{chid}\"],\"messages\":[{{\"chid\":\"{chid}\",{members}}}]"
        ))
    };
    let many: Vec<String> = (0..=limits::CHANNELS_MAX).map(|n| format!("\"{:032x}\"", n + 1)).collect();
    let many = format!("\"connected_at\":1763700000000,\"channels\":[{}]", many.join(","));
    let long = format!(
        "\"ttl\":1,\"timestamp\":1763700000,\"headers\":{{\"encoding\":\"aes128gcm\"}},\"data\":\"{}\"",
        "A".repeat(11_000)
    );
    let cases = [
        ("{".to_owned(), "no JSON: EOF"),
        ("[]".to_owned(), "invalid length 0, expected struct Line"),
        ("{\"uaid\":\"x\",\"connected_at\":1,\"channels\":[]}".to_owned(), "uaid is not a UUID"),
        ("{\"connected_at\":1763700000000,\"channels\":[]}".to_owned(), "missing field `uaid`"),
        (with("\"channels\":[]"), "missing field `connected_at`"),
        (with("\"connected_at\":1763700000000"), "missing field `channels`"),
        (with("\"connected_at\":\"1763700000000\",\"channels\":[]"), "invalid type: string \"..\", expected u64"),
        (with("\"connected_at\":1763700000,\"channels\":[]"), "connected_at is not milliseconds since 1970"),
        (with("\"connected_at\":1763710031000,\"channels\":[]"), "connected_at lies ahead of this host's clock"),
        (with("\"connected_at\":1763700000000,\"channels\":[\"1\"]"), "chid is not a UUID"),
        (with("\"connected_at\":1763700000000,\"channels\":[7]"), "data did not match any variant of untagged enum"),
        (
            with(&format!("\"connected_at\":1763700000000,\"channels\":[{{\"chid\":\"{SECRET}\",\"key\":\"x\"}}]")),
            "the key of a channel is neither",
        ),
        (
            with(&format!(
                "\"connected_at\":1763700000000,\"channels\":[{{\"chid\":\"{SECRET}\",\"registered_at\":5}}]"
            )),
            "registered_at is not milliseconds",
        ),
        (with(&many), "2049 channels, a user may have 2048"),
        (message("\"ttl\":-1,\"timestamp\":1763700000"), "invalid value: integer `-1`"),
        (message("\"ttl\":1,\"timestamp\":5"), "message 1: timestamp (in seconds) is not milliseconds since 1970"),
        (message("\"ttl\":1,\"timestamp\":1763700000,\"topic\":\"a b\""), "message 1: its topic is none"),
        (message("\"ttl\":1,\"timestamp\":1763700000,\"data\":\"!\""), "message 1: its data is not base64url"),
        (message("\"ttl\":1,\"timestamp\":1763700000,\"data\":\"AAAA\""), "message 1: its encryption headers"),
        (message(&long), "message 1: headers and data have more than 8192 bytes"),
    ];
    for (text, reason) in cases {
        let model = Model::new(u64::MAX);
        let store = &mut *model.transfer();
        // The lines around it are imported.
        let all = format!("{}{text}\n{}", line(1), line(2));
        let (done, summary, said) = import(&all, &[], store);
        assert_eq!((done, summary.lines, summary.bad, summary.admitted.users_new), (Ok(()), 3, 1, 2), "{reason}");
        assert!(said.len() == 1 && said[0].starts_with(&format!("line 2: {reason}")), "{reason}: {said:?}");
        assert!(!said[0].contains(SECRET), "{said:?}");
    }
}

const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75e";

#[test]
fn strict_stops_at_the_first_bad_line_and_keeps_what_came_before() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let all = format!("{}{{\n{}", line(1), line(2));
    let (done, summary, said) = import(&all, &["--strict"], store);
    assert!(done.unwrap_err().starts_with("stopped at the bad line"));
    assert_eq!((summary.lines, summary.bad, said.len()), (2, 1, 1));
    assert!(found(store, 1).is_some() && found(store, 2).is_none());
}

#[test]
fn very_many_bad_lines_are_counted_and_not_all_said() {
    let model = Model::new(u64::MAX);
    let (_, summary, said) = import(&"x\n".repeat(500), &[], &mut *model.transfer());
    assert_eq!((summary.bad, said.len() as u64), (500, BAD_LINES_SAID_MAX + 1));
    assert!(said[100].ends_with("from here on bad lines are only counted"));
}

#[test]
fn a_check_writes_nothing_and_says_what_it_would_be() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let (done, checked, _) = import(SAMPLE, &["--check"], store);
    assert_eq!(done, Ok(()));
    assert!(store.users(None, 9).unwrap().users.is_empty());
    assert!(checked.text(true).starts_with("nothing was written; it would be: 5 lines: 4 new users"));
    assert_eq!(good(SAMPLE, store), checked);
}

#[test]
fn lines_without_a_user_of_ours_are_counted_and_left_out() {
    let old = line(1).replace("1763700000000", "1750000000000");
    let version = line(2).replace("\"channels\"", "\"record_version\":0,\"channels\"");
    let model = Model::new(u64::MAX);
    let summary = good(&format!("{old}\n  \n{version}"), &mut *model.transfer());
    assert_eq!((summary.idle, summary.other_version, summary.admitted), (1, 1, ImportCounts::default()));
    let text = summary.text(false);
    assert!(text.contains("1 of another record version, 1 not seen for 60 days"), "{text}");
}

/// A line of user 1 that is reached by this bridge, last seen at this second.
fn bridge_line(seen: u64, kind: &str, data: &str) -> String {
    let with = format!("\"router_type\":\"{kind}\",\"router_data\":{data},\"record_version\":null,\"channels\"");
    line(1).replace("\"channels\"", &with).replace("1763700000", &seen.to_string())
}

fn imported_bridge(kind: &str, data: &str) -> Bridged {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    assert_eq!(good(&bridge_line(1_763_700_000, kind, data), store).admitted.users_new, 1, "{data}");
    let user = found_one(store);
    assert_eq!(user.channels.len(), 1);
    *user.contact.bridge.expect("a bridge")
}

/// User 1 of [`line`].
fn found_one(store: &mut dyn Transfer) -> WholeUser {
    found(store, 1).expect("it is there")
}

#[test]
fn every_form_of_router_data_is_read() {
    let of = |kind, app: &str, token: &str, aps: Option<&str>| {
        let registered = Clock(1_763_700_000_000_000);
        Bridged { kind, app: app.into(), token: token.into(), aps: aps.map(Into::into), registered, refused: None }
    };
    let (fcm, apns) = (BridgeKind::Fcm, BridgeKind::Apns);
    for (kind, data, bridge) in [
        ("fcm", r#"{"token":"t","app_id":"fenix"}"#, of(fcm, "fenix", "t", None)),
        ("fcm", r#""{\"token\":\"t\",\"app_id\":\"fenix\"}""#, of(fcm, "fenix", "t", None)),
        ("fcm", r#"{"token":"t","creds":{"senderID":"12","auth":"k"}}"#, of(fcm, "12", "t", None)),
        ("fcm", r#"{"token":"t","app_id":null,"creds":{"senderID":"12"}}"#, of(fcm, "12", "t", None)),
        ("fcm", "null", of(fcm, "", "", None)),
        ("apns", r#"{"token":"t","rel_channel":"firefox","aps":null}"#, of(apns, "firefox", "t", None)),
        ("apns", r#"{"token":"t","rel_channel":"beta","aps":{"a":1}}"#, of(apns, "beta", "t", Some(r#"{"a":1}"#))),
        ("apns", r#"{"token":"t","rel_channel":"beta","aps":"{\"a\":1}"}"#, of(apns, "beta", "t", Some(r#"{"a":1}"#))),
        ("apns", r#"{"rel_channel":"beta"}"#, of(apns, "beta", "", None)),
    ] {
        assert!(imported_bridge(kind, data) == bridge, "{kind} {data}");
    }
    let long = format!("{{\"token\":\"{}\"}}", "x".repeat(limits::DEVICE_TOKEN_BYTES_MAX + 1));
    for (data, reason) in
        [("7", "no object"), (r#""x""#, "no JSON object"), (r#"{"token":7}"#, "no text"), (&long, "1024")]
    {
        let (_, summary, said) =
            import(&bridge_line(1_763_700_000, "fcm", data), &[], &mut *Model::new(u64::MAX).transfer());
        assert!(summary.bad == 1 && said[0].contains(reason) && !said[0].contains("xx"), "{said:?}");
    }
}

#[test]
fn router_types_that_are_left_out_are_counted_by_name() {
    let lines: String = ["gcm", "adm", "adm", "simplepush"].map(|kind| bridge_line(1_763_700_000, kind, "{}")).concat();
    let model = Model::new(u64::MAX);
    let summary = good(&lines, &mut *model.transfer());
    assert_eq!((summary.gcm, summary.adm, summary.other_router, summary.admitted), (1, 2, 1, ImportCounts::default()));
    let text = summary.text(false);
    assert!(text.contains("users: 1 of gcm, 2 of adm, 1 of another router type"), "{text}");
}

#[test]
fn a_later_dump_brings_a_newer_token_and_an_earlier_one_does_not() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let at = |seen, token: &str| bridge_line(seen, "fcm", &format!(r#"{{"token":"{token}","app_id":"fenix"}}"#));
    good(&at(1_763_700_000, "first"), store);
    assert_eq!(good(&at(1_763_700_005, "second"), store).admitted.users_changed, 1);
    assert_eq!(good(&at(1_763_700_000, "first"), store).admitted.users_unchanged, 1);
    let user = found_one(store);
    assert_eq!((&*user.contact.bridge.unwrap().token, user.seen), ("second", UnixSeconds(1_763_700_005)));
}

#[test]
fn a_user_in_two_lines_is_one_user() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let second = line(1).replace("01010101-0101", "02020202-0202");
    let summary = good(&format!("{}{second}{}", line(1), line(3)), store);
    assert_eq!((summary.admitted.users_new, summary.admitted.users_changed), (2, 1));
    assert_eq!(found(store, 1).unwrap().channels.len(), 2);
}

#[test]
fn a_channel_that_was_unregistered_here_does_not_come_back() {
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    good(SAMPLE, store);
    let [first, second] = found(store, 1).unwrap().channels[..] else { panic!() };
    let at = Clock(NOW.0 * 1_000_000);
    store.ask(vec![StoreOp::Unregister { uaid: uaid(1), chid: first.chid, at }]).unwrap();
    let again = good(SAMPLE, store);
    assert_eq!((again.admitted.channels_added, again.admitted.channels_left_out), (0, 1));
    assert!(again.text(false).contains("1 channels that may have been unregistered since"));
    assert_eq!(found(store, 1).unwrap().channels, [second]);
}

#[test]
fn a_full_store_stops_it_and_says_where_to_go_on() {
    let more = (0..=99).map(|n| line(n).replace("deadbeef", "feedbeef"));
    let lines: String = (0..=255).map(line).chain(more).collect();
    let full = Model::new(0);
    let (done, _, _) = import(&lines, &[], &mut *full.transfer());
    let said = done.unwrap_err();
    assert!(said.starts_with("the store takes no more") && said.ends_with("(with --skip-lines 0)"), "{said}");

    struct Later(Box<dyn Transfer>, u32);
    impl Transfer for Later {
        fn users(&mut self, after: Option<Uaid>, limit: usize) -> Result<Listed, TransferFault> {
            self.0.users(after, limit)
        }
        fn find(&mut self, uaids: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
            self.0.find(uaids)
        }
        fn put_rows(&mut self, rows: &[Arc<Message>]) -> Result<(), TransferFault> {
            self.0.put_rows(rows)
        }
        fn put_users(&mut self, users: &[WholeUser]) -> Result<(), TransferFault> {
            self.1 = self.1.checked_sub(1).ok_or_else(|| TransferFault::new("gone", FaultKind::Passing))?;
            self.0.put_users(users)
        }
        fn ask(&mut self, ops: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
            self.0.ask(ops)
        }
    }
    let model = Model::new(u64::MAX);
    let (done, _, _) = import(&lines, &[], &mut Later(model.transfer(), 1));
    assert_eq!(done.unwrap_err(), "gone (with --skip-lines 256)");
    let store = &mut *model.transfer();
    assert_eq!(store.users(None, 1_000).unwrap().users.len(), 256);
    let (done, summary, _) = import(&lines, &["--skip-lines", "256"], store);
    assert_eq!((done, summary.lines, summary.admitted.users_new), (Ok(()), 100, 100));
}

#[test]
fn input_that_breaks_off_keeps_what_was_read() {
    struct Breaks(std::io::Cursor<Vec<u8>>);
    impl std::io::Read for Breaks {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.read(buffer)? {
                0 => Err(io::Error::other("torn")),
                count => Ok(count),
            }
        }
    }
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    let mut say = |_| {};
    let mut import = Import::new(&args(&[]), &mut say);
    import.now = NOW;
    let input = BufReader::new(Breaks(std::io::Cursor::new(line(1).into_bytes())));
    let stop = import.all(input, store).unwrap_err().to_string();
    assert_eq!(stop, "the input cannot be read to its end: torn");
    assert!(found(store, 1).is_some());
}

fn config(dir: &Path, sets: &[&str]) -> Config {
    let common = [format!("data_dir={}", dir.display())];
    let sets = common.into_iter().chain(sets.iter().map(|text| (*text).to_owned())).collect();
    Config::load(&Sources { sets, ..Sources::default() }).unwrap()
}

#[test]
fn a_store_that_forgets_and_a_directory_in_use_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |sets: &[&str]| server::with_store(&config(dir.path(), sets), |_| Ok(())).unwrap_err();
    assert_eq!(refused(&["store.kind=memory"]).to_string(), "store.kind = memory keeps nothing: set one that does");
    let _held = server::DataDir::open(dir.path()).unwrap();
    let fault = refused(&[]);
    assert!(fault.to_string().contains("is in use by another process"), "{fault}");
    assert_eq!(fault.status(), status::DATA_DIR);
}

#[test]
fn chid_spellings_are_one_channel() {
    let twice = line(1).replace(']', ",\"01010101010101010101010101010101\"]");
    let model = Model::new(u64::MAX);
    let store = &mut *model.transfer();
    good(&twice, store);
    assert_eq!(found(store, 1).unwrap().channels.iter().map(|c| c.chid).collect::<Vec<_>>(), [Chid([1; 16])]);
}
