//! Migrations from directory to directory, and refusals.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use machine::ids::{Chid, Clock, Origin, ShardId, Stamp, Uaid};
use machine::message::{Message, Urgency};
use machine::{RECORD_VERSION, StoreOp};
use shards::ledger::Log;
use shards::ports::Ledger as _;
use store::testing::database::{self, Keyspace};
use store::transfer::{Channel, WholeUser};

use super::*;

fn place(dir: &Path) -> Config {
    StoreLocation::parse(&format!("embedded:{}", dir.display())).unwrap().config().unwrap()
}

fn message(n: u8, clock: u64) -> Message {
    Message {
        uaid: Uaid([n; 16]),
        chid: Chid([7; 16]),
        stamp: Stamp { clock: Clock(clock), origin: Origin(9) },
        ttl: 3_600,
        accepted: unix_now(),
        urgency: Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: vec![n; 40].into(),
    }
}

/// A data directory with `users` users, each with a message, and with one more message in a ledger.
fn fill(dir: &Path, users: u8) {
    node::with_store(&place(dir), |store| {
        for n in 1..=users {
            let channel = Channel { chid: Chid([7; 16]), key: None, registered_at: Clock(5) };
            store.put_rows(&[Arc::new(message(n, 10))])?;
            store.put_users(&[WholeUser {
                uaid: Uaid([n; 16]),
                record_version: RECORD_VERSION,
                seen: unix_now(),
                low_water: Clock(0),
                user_clock: Clock(5),
                may_have_messages: true,
                contact: Default::default(),
                channels: vec![channel],
            }])?;
        }
        Ok(())
    })
    .unwrap();
    let ledger = dir.join("ledger");
    let mut log = Log::create(&ledger, ShardId(0), Origin(9), 4 << 20, Clock(1)).unwrap();
    log.append(machine::ids::LedgerSlot(0), &message(1, 11));
}

fn quietly(from: &Path, to: &Path, compare_only: bool) -> (Outcome, Vec<String>) {
    let mut said = Vec::new();
    let outcome = migrate(&place(from), &place(to), compare_only, &mut |line| said.push(line.to_owned())).unwrap();
    (outcome, said)
}

#[test]
fn a_directory_is_moved_with_what_its_ledgers_hold_and_a_second_run_finds_it_there() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, to] = [dirs[0].path(), dirs[1].path()];
    fill(from, 3);
    let (outcome, said) = quietly(from, to, false);
    assert_eq!(said, ["1 messages that the ledgers held are saved to the first store"]);
    let text = outcome.text();
    assert!(text.starts_with("copied 3 users with 3 channels and 4 messages; 0 users were there"), "{text}");
    assert!(text.contains("compared 3 users with 3 channels and 4 messages: 0 differ"), "{text}");
    assert!(outcome.compared.is_complete() && outcome.compared.digest == outcome.compared.digest_there);

    let (again, said) = quietly(from, to, false);
    assert!(said.is_empty());
    assert!(again.text().starts_with("copied 0 users with 0 channels and 0 messages; 3 users were there"));
    assert_eq!(again.compared.digest, outcome.compared.digest);
    let (only, _) = quietly(from, to, true);
    assert!(only.copied.is_none() && only.compared == again.compared);

    let uaid = Uaid([2; 16]);
    node::with_store(&place(to), |store| store.ask(vec![StoreOp::DropUser { uaid }]).map(drop)).unwrap();
    let (without, _) = quietly(from, to, true);
    assert_eq!((without.compared.users_different, without.compared.is_complete()), (1, false));
    assert!(without.text().contains("1 differ"));
}

/// A single node becomes a cluster and one node again.
#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_directory_is_moved_to_a_shared_store_and_back() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, back] = [dirs[0].path(), dirs[1].path()];
    fill(from, 3);
    let (shared, keyspace) = shared(from);
    let there = migrate(&place(from), &shared, false, &mut |_| {}).unwrap();
    assert!(there.text().starts_with("copied 3 users with 3 channels and 4 messages"), "{}", there.text());
    let returned = migrate(&shared, &place(back), false, &mut |_| {}).unwrap();
    for outcome in [&there, &returned] {
        assert!(outcome.compared.is_complete(), "{}", outcome.text());
        assert_eq!(outcome.compared.digest_there, there.compared.digest);
    }
    assert!(keys(&place(from), &shared).contains("all nodes need the same"));
    drop(keyspace);
}

#[test]
#[ignore = "needs Cassandra: bench/check test"]
fn a_user_whose_record_cannot_be_read_is_left_out_and_named() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, back] = [dirs[0].path(), dirs[1].path()];
    fill(from, 5);
    let (shared, keyspace) = shared(from);
    migrate(&place(from), &shared, false, &mut |_| {}).unwrap();
    keyspace.send(&format!(
        "UPDATE KS.user SET value = 0xff WHERE uaid = 0x{} AND family = 0 AND key = 0x",
        "02".repeat(16)
    ));
    let outcome = migrate(&shared, &place(back), false, &mut |_| {}).unwrap();
    let copied = outcome.copied.unwrap();
    assert_eq!((copied.admitted.users_new, copied.users_unreadable), (4, 1));
    let text = outcome.text();
    assert!(text.contains("left out 1 users whose record in the first store is damaged or of another"), "{text}");
    assert!(!text.contains(&"02".repeat(8)), "a UAID is a secret: {text}");
    let (_, found) = text.split_once("SELECT ... WHERE ").unwrap();
    assert_eq!(keyspace.send(&format!("SELECT DISTINCT uaid FROM KS.user WHERE {found}")), 1, "{found}");
    assert_eq!((outcome.compared.users_different, outcome.compared.is_complete()), (0, false));
    let again = migrate(&shared, &place(back), true, &mut |_| {}).unwrap();
    assert_eq!(again.compared, outcome.compared);
    // Nor can it be written over.
    let fault = migrate(&place(from), &shared, false, &mut |_| {}).unwrap_err().to_string();
    assert!(fault.contains(&format!("the record of the user at {found} cannot be read")), "{fault}");
    drop(keyspace);
}

/// A shared store with empty tables, described by a file in this directory.
fn shared(dir: &Path) -> (Config, Keyspace) {
    let keyspace = database::empty();
    let file = dir.join("cluster.toml");
    let text = format!(
        "[endpoint]\ncrypto_keys = [\"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"]\n\
         [node]\nkeys = [\"0123456789abcdef\"]\nurl = \"http://a:8081\"\n\
         [store]\nkind = \"scylla\"\n\
         [store.scylla]\nnodes = [\"{}\"]\nkeyspace = \"{}\"\nreplication_factor = 1\n",
        keyspace.config().nodes.join("\", \""),
        keyspace.name()
    );
    fs::write(&file, text).unwrap();
    (StoreLocation::parse(&format!("scylla:{}", file.display())).unwrap().config().unwrap(), keyspace)
}

#[test]
fn the_keys_to_carry_over_are_named_and_not_shown() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, to] = [dirs[0].path(), dirs[1].path()];
    let said = keys(&place(from), &place(to));
    for name in ["keys/crypto", "keys/node"] {
        assert!(said.contains(&from.join(name).display().to_string()), "{said}");
    }
    assert!(said.contains(&format!("copy both files to {}", to.join("keys").display())), "{said}");
    let file = from.join("murre.toml");
    let secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    fs::write(&file, format!("data_dir = \"{}\"\n[endpoint]\ncrypto_keys = [\"{secret}\"]\n", from.display())).unwrap();
    let said = keys(&place(&file), &place(to));
    assert!(said.contains("endpoint.crypto_keys: endpoint.crypto_keys of the old configuration"), "{said}");
    assert!(!said.contains(secret));
}

#[test]
fn a_running_source_and_one_that_is_the_destination_are_refused() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let [from, to] = [dirs[0].path(), dirs[1].path()];
    fill(from, 1);
    let refused = |from: &Path, to: &Path| migrate(&place(from), &place(to), false, &mut |_| {}).unwrap_err();
    {
        let _server = node::DataDir::open(from).unwrap();
        let fault = refused(from, to);
        assert!(fault.to_string().contains(&format!("{} is in use by another process", from.display())), "{fault}");
        assert_eq!(fault.status(), status::DATA_DIR);
    }
    assert!(refused(from, from).to_string().contains("is in use"));
}

#[test]
fn what_is_no_place_is_refused_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    for (text, reason) in [
        ("/var/lib/murre", "it must be spelled KIND:WHERE"),
        ("memory:x", "memory is not a kind of store that users can be moved from or to"),
        ("embedded:", "behind the colon there must be a data directory"),
    ] {
        let said = StoreLocation::parse(text).unwrap_err();
        assert!(said.starts_with(reason), "{said}");
    }
    let file = dir.path().join("murre.toml");
    fs::write(&file, "[store]\nkind = \"memory\"\n").unwrap();
    let said = StoreLocation::parse(&format!("embedded:{}", file.display())).unwrap().config().unwrap_err().to_string();
    assert!(said.ends_with("its store.kind is not the KIND that was asked for"), "{said}");
    fs::write(&file, "[stork]\n").unwrap();
    let said = StoreLocation::parse(&format!("embedded:{}", file.display())).unwrap().config().unwrap_err().to_string();
    assert!(said.contains("stork"), "{said}");
    let path = |dir: &Path| StoreLocation::parse(&format!("embedded:{}", dir.display())).unwrap();
    let args = Args { from: path(&dir.path().join("none")), to: path(dir.path()), compare: false };
    let said = configs(&args).unwrap_err().to_string();
    assert!(said.ends_with("is not a data directory: it has no store in it"), "{said}");
    assert!(!dir.path().join("none").exists(), "nothing was made");
}
