//! Files of an export, refusals, and users that cannot be read. The content is tested where it is read: by the tests of
//! the import.

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use machine::ids::{Clock, LedgerSlot, Origin, ShardId};
use machine::message::Message;
use machine::{StoreOp, StoreReply};
use runtime::ledger::Log;
use runtime::ports::Ledger as _;
use store::testing::compare::compare;
use store::testing::sample::{message, topical};
use store::testing::users::{channel, user};
use store::transfer::Listed;

use super::*;
use crate::import::tests::exported::import_all;
use config::Sources;

fn config(dir: &Path, kind: &str) -> Config {
    let sets = vec![format!("data_dir={}", dir.display()), format!("store.kind={kind}")];
    Config::load(&Sources { sets, ..Sources::default() }).unwrap()
}

fn named(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// A data directory with two users, of whom one has a message in the store and one in a ledger.
fn fill(dir: &Path) {
    server::with_store(&config(dir, "embedded"), |store| {
        let sent = message(1, 2, 30);
        store.put_rows(&[Arc::new(Message { accepted: unix_now(), ..sent })])?;
        for n in [1, 2] {
            let has = n == 1;
            store.put_users(&[WholeUser { seen: unix_now(), may_have_messages: has, ..user(n, &[channel(2, 9)]) }])?;
        }
        Ok(())
    })
    .unwrap();
    let mut log = Log::create(&dir.join("ledger"), ShardId(0), Origin(9), 4 << 20, Clock(1)).unwrap();
    let held = topical(2, 2, 40, "tide");
    log.append(LedgerSlot(0), &Message { accepted: unix_now(), ..held });
}

/// The whole command, from a data directory with a ledger to another data directory.
#[test]
fn an_export_saves_the_ledgers_and_its_file_is_for_the_owner_alone() {
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [from, to, out] = dirs.each_ref().map(|dir| dir.path());
    fill(from);
    let file = out.join("users.jsonl");
    fs::write(&file, "an earlier export").unwrap();
    let mut said = Vec::new();
    let exported = export_to(&file, &config(from, "embedded"), &mut |line| said.push(line.to_owned())).unwrap();
    assert_eq!(said, ["1 messages that the ledgers held are saved to the store"]);
    assert_eq!(
        exported.text(),
        "exported 2 users with 2 channels and 2 messages in 2 lines; left out 0 not seen for 60 days and 0 of another \
         record version"
    );
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(named(out), ["users.jsonl"]);

    let text = fs::read(&file).unwrap();
    server::with_store(&config(to, "embedded"), |store| Ok(import_all(&text, unix_now(), store))).unwrap();
    let compared = server::with_source(&config(from, "embedded"), |saved, from| {
        assert_eq!(saved, 0, "the ledger was emptied");
        Ok(server::with_store(&config(to, "embedded"), |to| Ok(compare(from, to, unix_now()))).unwrap())
    });
    let compared = compared.unwrap();
    assert!(compared.is_same(), "{compared:?}");
    assert_eq!((compared.users, compared.rows), (2, 2));
}

#[test]
fn a_refused_export_leaves_the_earlier_file() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, out] = dirs.each_ref().map(|dir| dir.path());
    fill(from);
    let file = out.join("users.jsonl");
    fs::write(&file, "an earlier export").unwrap();
    let refused = |path: &Path, kind: &str| export_to(path, &config(from, kind), &mut |_| {}).unwrap_err();
    {
        let _server = server::DataDir::open(from).unwrap();
        let fault = refused(&file, "embedded");
        assert!(fault.to_string().contains("is in use by another process"), "{fault}");
        assert_eq!(fault.status(), status::DATA_DIR);
    }
    assert!(refused(&file, "memory").to_string().starts_with("store.kind = memory keeps nothing"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "an earlier export");
    assert_eq!(named(out), ["users.jsonl"]);
    let said = refused(Path::new("/dev/null"), "embedded").to_string();
    assert_eq!(said, "cannot write /dev/null: it is there and no file; name a file, or - for standard output");
    let said = refused(&out.join("none").join("users.jsonl"), "embedded").to_string();
    assert!(said.contains("No such file or directory"), "{said}");
    // Without a store the command refuses instead of making one.
    let said = source(config(out, "embedded")).unwrap_err().to_string();
    assert!(said.ends_with("is not a data directory: it has no store in it"), "{said}");
}

/// A store of which some users cannot be read.
struct Damaged;

impl Transfer for Damaged {
    fn users(&mut self, after: Option<Uaid>, _: usize) -> Result<Listed, TransferFault> {
        let next = after.map_or(1, |uaid| uaid.0[0] + 1);
        let of = |n: u8| WholeUser { seen: unix_now(), ..user(n, &[channel(2, 9)]) };
        Ok(match next {
            1 => Listed::readable(vec![of(1)]),
            2 => Listed { users: vec![], unreadable: vec!["token(uaid) = 5".into()], last: Some(of(2).uaid) },
            3 => Listed::readable(vec![of(3)]),
            _ => Listed::default(),
        })
    }
    fn find(&mut self, _: &[Uaid]) -> Result<Vec<Option<WholeUser>>, TransferFault> {
        unreachable!()
    }
    fn put_rows(&mut self, _: &[Arc<Message>]) -> Result<(), TransferFault> {
        unreachable!()
    }
    fn put_users(&mut self, _: &[WholeUser]) -> Result<(), TransferFault> {
        unreachable!()
    }
    fn ask(&mut self, _: Vec<StoreOp>) -> Result<Vec<StoreReply>, TransferFault> {
        unreachable!()
    }
}

#[test]
fn a_user_that_cannot_be_read_is_named_and_costs_no_other() {
    let mut out = Vec::new();
    let exported = export(&mut Damaged, &mut out, &unix_now, &mut |_| {}).unwrap();
    assert_eq!((exported.users, exported.left.unreadable, out.split(|byte| *byte == b'\n').count()), (2, 1, 3));
    let text = exported.text();
    assert!(
        text.ends_with(
            "left out 1 users whose record in the store is damaged or of another version of murre; each is found with \
             SELECT ... WHERE token(uaid) = 5"
        ),
        "{text}"
    );
}

#[test]
fn a_reader_that_goes_away_ends_the_export() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let fault = export(&mut Damaged, &mut Closed, &unix_now, &mut |_| {}).unwrap_err();
    assert_eq!(fault.to_string(), "cannot write the output: broken pipe; run the command again");
}
