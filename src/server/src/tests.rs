//! Start, stop and restart in one process; every refusal to start by its sentence.

mod cluster;
mod disk;
mod drain;
mod events;
mod health;
mod host;
mod keys;
mod public;
mod replay;
mod steering;
mod tls;
mod told;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use machine::ids::{Clock, Origin, Uaid};
use runtime::ledger::Log;
use serde_json::{Value, json};

use super::*;
use crate::status;
use client::agent::{Agent, Received, channel_id};
use config::Sources;
use fixtures::Fake;

/// Longer than anything takes that goes well.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node on ports of the kernel's choice, two shards, small logs.
fn config(dir: &Path, sets: &[&str]) -> Config {
    let common = [
        format!("data_dir={}", dir.display()),
        "websocket.listen=127.0.0.1:0".to_owned(),
        "endpoint.listen=127.0.0.1:0".to_owned(),
        "node.listen=127.0.0.1:0".to_owned(),
        "admin.listen=127.0.0.1:0".to_owned(),
        "shards.count=2".to_owned(),
        "delivery.ledger_bytes=4MiB".to_owned(),
        "max_connections=1000".to_owned(),
        "drain.delay=0".to_owned(),
        // The host may keep a client waiting.
        "websocket.hello_timeout=60".to_owned(),
    ];
    let sets = common.into_iter().chain(sets.iter().map(|text| (*text).to_owned())).collect();
    Config::load(&Sources { sets, ..Sources::default() }).unwrap()
}

fn refusal(config: &Config) -> (String, u8) {
    let surroundings = Environment { address_patience: Duration::ZERO, ..Environment::default() };
    let fault = start_with(config, surroundings).err().expect("must be refused");
    let sentence = fault.to_string();
    assert!(!sentence.contains('\n'), "one sentence: {sentence}");
    (sentence, fault.status())
}

/// Returns the response to one HTTP request.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn say(agent: &mut Agent, message: Value) {
    agent.send(&message).unwrap();
}

fn hear(agent: &mut Agent) -> Value {
    match agent.receive(PATIENCE).unwrap() {
        Received::Message(message) => message,
        other => panic!("no message: {other:?}"),
    }
}

fn hello(running: &RunningNode, uaid: &str) -> (Agent, String) {
    let mut agent = Agent::connect(running.addresses().websocket[0]).unwrap();
    let uaid = agent.hello(Some(uaid)).unwrap();
    (agent, uaid)
}

fn post(endpoint: &str, running: &RunningNode) -> String {
    let path = endpoint.strip_prefix(&running.addresses().endpoint_url).expect("an endpoint of this node");
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nttl: 60\r\ncontent-encoding: aes128gcm\r\n");
    ask(running.addresses().endpoint[0], &format!("{head}connection: close\r\ncontent-length: 4\r\n\r\nbody"))
}

/// Registers a channel and returns its endpoint.
fn register(agent: &mut Agent) -> String {
    agent.register(&channel_id(), None).unwrap()
}

#[test]
fn what_is_unacked_at_a_stop_comes_after_the_next_start_with_other_shards() {
    let dir = tempfile::tempdir().unwrap();
    let first = start(&config(dir.path(), &[])).unwrap();
    let (mut socket, uaid) = hello(&first, "");
    let endpoint = register(&mut socket);
    assert!(post(&endpoint, &first).starts_with("HTTP/1.1 201 "));
    let version = hear(&mut socket)["version"].clone();
    let stopping = std::thread::spawn(move || first.stop().unwrap());
    assert_eq!(socket.receive(PATIENCE).unwrap(), Received::Close(1001), "it is told to go away");
    drop(socket);
    assert_eq!(stopping.join().unwrap(), StopOutcome::InOrder);

    let second = start(&config(dir.path(), &["shards.count=3"])).unwrap();
    let (mut socket, again) = hello(&second, &uaid);
    assert_eq!(again, uaid, "the user is known after a restart");
    assert_eq!(hear(&mut socket)["version"], version);
    // Its endpoint was sealed with the key of the data directory.
    let path = endpoint.split_once("/wpush/").unwrap().1;
    let endpoint = format!("{}/wpush/{path}", second.addresses().endpoint_url);
    assert!(post(&endpoint, &second).starts_with("HTTP/1.1 201 "));
    second.stop().unwrap();
}

const KEY_1: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";
const KEY_2: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[test]
fn keys_are_changed_while_a_session_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let keyed = |keys: &str| config(dir.path(), &["store.kind=memory", &format!("endpoint.crypto_keys={keys}")]);
    let running = start(&keyed(KEY_1)).unwrap();
    let (mut socket, uaid) = hello(&running, "");
    let old = register(&mut socket);
    assert!(post(&old, &running).starts_with("HTTP/1.1 201 "));
    let first = hear(&mut socket);

    running.reload(&keyed(&format!("{KEY_2},{KEY_1}"))).unwrap();
    let new = register(&mut socket);
    for endpoint in [&old, &new] {
        assert!(post(endpoint, &running).starts_with("HTTP/1.1 201 "));
        assert_eq!(hear(&mut socket)["messageType"], "notification");
    }
    // An id that the old key sealed is still valid: its message is settled, as the end of this test shows.
    let (channel, version) = (&first["channelID"], &first["version"]);
    say(&mut socket, json!({ "messageType": "ack", "updates": [{ "channelID": channel, "version": version }] }));
    // The pong says that the ack was read while its key was still there.
    say(&mut socket, json!({}));
    assert_eq!(hear(&mut socket), json!({}));

    running.reload(&keyed(KEY_2)).unwrap();
    assert!(post(&old, &running).starts_with("HTTP/1.1 404 "), "its key is gone");
    assert!(post(&new, &running).starts_with("HTTP/1.1 201 "));
    assert_eq!(hear(&mut socket)["messageType"], "notification");

    let said = running.reload(&config(dir.path(), &["store.kind=memory"])).unwrap_err().to_string();
    assert!(said.starts_with("cannot reload keys: the setting of a key is gone"), "{said}");
    assert!(post(&new, &running).starts_with("HTTP/1.1 201 "), "the keys stay as they were");
    assert_eq!(hear(&mut socket)["messageType"], "notification");

    drop(socket);
    let ids = protocol::webpush::message_id::MessageIds::new(&[KEY_2.to_owned(), KEY_1.to_owned()]).unwrap();
    let stamp = |note: &Value| ids.open(note["version"].as_str().unwrap().as_bytes()).unwrap().stamp;
    let (mut socket, _) = hello(&running, &uaid);
    for _ in 0..4 {
        // Oldest first: were the first not settled, it would be here.
        assert_ne!(stamp(&hear(&mut socket)), stamp(&first));
    }
    running.stop().unwrap();
}

#[test]
fn broadcasts_health_metrics_and_backup_of_a_running_node() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &[])).unwrap();
    let admin = running.addresses().admin[0];
    let token = admin_token(dir.path()).unwrap();
    let put = |path: &str, body: &str| {
        let (token, length) = (token.reveal(), body.len());
        let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n");
        ask(admin, &format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"))
    };
    assert!(put("/broadcasts", "{\"a/b\":\"1\"}").starts_with("HTTP/1.1 204 "));
    let (mut socket, _) = hello(&running, "");
    let subscribe = json!({ "messageType": "broadcast_subscribe", "broadcasts": { "a/b": "0" } });
    say(&mut socket, subscribe);
    assert_eq!(hear(&mut socket)["broadcasts"]["a/b"], "1");
    let get = |path: &str| ask(admin, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    assert!(get("/health").contains("\"status\":\"OK\""));
    let metrics = get("/metrics");
    for family in ["murre_sessions{shard=\"1\"}", "murre_connections{shard=\"0\"}", "murre_store_groups_total"] {
        assert!(metrics.contains(family), "{family} is missing");
    }
    register(&mut socket);
    let made = put("/backups/one", "");
    assert!(made.starts_with("HTTP/1.1 201 ") && made.contains("\"users\":1"), "{made}");
    assert!(put("/backups/one", "").starts_with("HTTP/1.1 409 "));
    drop(socket);
    running.stop().unwrap();
    // The backup is a data directory: a node starts on it.
    let restored = start(&config(&dir.path().join("backups/one"), &[])).unwrap();
    restored.stop().unwrap();
}

#[test]
fn a_session_hears_what_the_broadcast_source_says() {
    let source = Fake::start(|_| fixtures::broadcasts("a/b", "1"));
    let dir = tempfile::tempdir().unwrap();
    let url = format!("broadcast.url={}", source.url("/v1"));
    let often = ["broadcast.interval=0.02", "broadcast.spread=0"];
    let running = start(&config(dir.path(), &[&url, "broadcast.token=sesame", often[0], often[1]])).unwrap();
    let (mut socket, _) = hello(&running, "");
    let subscribe = json!({ "messageType": "broadcast_subscribe", "broadcasts": { "a/b": "0", "c": "0" } });
    say(&mut socket, subscribe);
    let answer = hear(&mut socket);
    assert_eq!(answer["broadcasts"]["a/b"], "1", "known since the start");
    assert_eq!(answer["broadcasts"]["errors"]["c"], "Broadcast not found");
    source.answer_now(|_| fixtures::broadcasts("a/b", "2"));
    let pushed = hear(&mut socket);
    assert_eq!(pushed, json!({ "messageType": "broadcast", "broadcasts": { "a/b": "2" } }));
    assert!(source.heard().iter().all(|request| request.contains("authorization: bearer sesame")));
    let metrics =
        ask(running.addresses().admin[0], "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    assert!(metrics.contains("\nmurre_broadcast_source_up 1\n"), "{metrics}");
    running.stop().unwrap();
}

#[test]
fn a_broken_broadcast_source_does_not_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["broadcast.url=http://127.0.0.1:1/"])).unwrap();
    let get = "GET /stats HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let stats = ask(running.addresses().admin[0], get);
    assert!(stats.contains("\"state\":\"fails\"") && stats.contains("Connection refused"), "{stats}");
    running.stop().unwrap();
}

#[test]
fn a_damaged_data_directory_is_salvaged_into_one_that_starts() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    start(&config(&old, &[])).unwrap().stop().unwrap();
    let mut damaged = 0;
    damage(&old.join("store/db"), &mut damaged);
    assert!(damaged > 0, "the store has files");
    let copy = salvage(&old, &new, &mut |_| ()).unwrap();
    assert_eq!(copy.path, new);
    let key = |dir: &Path| std::fs::read_to_string(dir.join("keys/crypto")).unwrap();
    assert_eq!(key(&old), key(&new), "endpoint URLs stay good");
    start(&config(&new, &[])).unwrap().stop().unwrap();
    let said = salvage(&old, &new, &mut |_| ()).unwrap_err().to_string();
    assert_eq!(said, "the second directory is not empty: name a new one");
    let said = salvage(dir.path(), &dir.path().join("third"), &mut |_| ()).unwrap_err().to_string();
    assert_eq!(said, "the first directory is not a data directory: it has no store in it");
}

#[test]
fn ledgers_of_a_node_that_was_killed_are_replayed_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &[]);
    start(&config).unwrap().stop().unwrap();
    let message = machine::message::Message {
        uaid: machine::ids::Uaid([1; 16]),
        chid: machine::ids::Chid([2; 16]),
        stamp: machine::ids::Stamp { clock: Clock(5), origin: Origin(6) },
        ttl: 60,
        accepted: machine::time::UnixSeconds(7),
        urgency: machine::message::Urgency::Normal,
        topic: None,
        receipt: false,
        tries: Default::default(),
        payload: b"body".as_slice().into(),
    };
    let ledgers = dir.path().join("ledger");
    let mut log = Log::create(&ledgers, ShardId(0), Origin(6), 4 << 20, Clock(0)).unwrap();
    runtime::ports::Ledger::append(&mut log, machine::ids::LedgerSlot(0), &message);
    drop(log);
    assert_eq!(replay_ledgers(&config).unwrap(), 1);
    assert_eq!(std::fs::read_dir(&ledgers).unwrap().count(), 0);
    assert_eq!(replay_ledgers(&config).unwrap(), 0);
}

#[test]
fn a_backup_of_an_unused_directory_has_a_name_that_is_one_and_is_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), &[]);
    start(&config).unwrap().stop().unwrap();
    for name in ["", "..", "a/b", "a.part", &"x".repeat(65)] {
        assert!(!is_backup_name(name), "{name}");
        assert!(backup_unused(&config, name).unwrap_err().to_string().starts_with("the name of a backup has 1 to 64"));
    }
    let copy = backup_unused(&config, "Monday_1-2").unwrap();
    assert_eq!(copy.path, dir.path().join("backups/Monday_1-2"));
    let said = backup_unused(&config, "Monday_1-2").unwrap_err().to_string();
    assert_eq!(said, "there is a backup of this name: choose another, or remove that one");
}

#[test]
fn a_name_occurs_once_among_the_numbers_of_a_node() {
    let dir = tempfile::tempdir().unwrap();
    let calls = [
        "store.kind=memory",
        "broadcast.url=http://127.0.0.1:1/",
        "simplepush.wake_url=http://127.0.0.1:1/",
        "simplepush.enabled=true",
    ];
    let running = start(&config(dir.path(), &calls)).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    let numbers = running.shards.boards()[0].read().map(|(meaning, _)| meaning.name);
    let twice: Vec<_> = numbers.filter(|name| !seen.insert(*name)).collect();
    assert!(twice.is_empty(), "two numbers of one metric: {twice:?}");
    let get = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let metrics = ask(running.addresses().admin[0], get);
    let mut seen = std::collections::BTreeSet::new();
    let helped = metrics.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next());
    let twice: Vec<_> = helped.filter(|name| !seen.insert(*name)).collect();
    assert!(twice.is_empty() && seen.contains("murre_wake_calls_ok_total"), "two families of one name: {twice:?}");
    running.stop().unwrap();
}

#[test]
fn roles_open_only_their_listeners() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["roles=endpoint"])).unwrap();
    let addresses = running.addresses().clone();
    assert!(addresses.websocket.is_empty() && addresses.node.is_empty());
    assert_eq!(addresses.endpoint.len(), 1);
    assert_eq!(addresses.endpoint_url, format!("http://{}", addresses.endpoint[0]));
    running.stop().unwrap();
    // A host may be without IPv6.
    let second = TcpListener::bind("[::1]:0").map_or("127.0.0.2:0", |_| "[::1]:0");
    let listen = format!("websocket.listen=127.0.0.1:0,{second}");
    let running = start(&config(dir.path(), &["roles=connect", &listen])).unwrap();
    assert!(running.addresses().endpoint.is_empty());
    assert_eq!(running.addresses().websocket.len(), 2);
    assert_eq!(running.addresses().websocket[1].is_ipv6(), second.contains("::"));
    running.stop().unwrap();
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &[])).unwrap();
    let (said, code) = refusal(&config(dir.path(), &[]));
    let wanted = format!("the data directory {} is in use by another process; stop it", dir.path().display());
    assert!(said.starts_with(&wanted), "{said}");
    assert_eq!(code, status::DATA_DIR);
    running.stop().unwrap();
}

#[test]
fn a_data_directory_that_cannot_be_written_is_refused() {
    // Not even root may write in /proc.
    let (said, code) = refusal(&config(Path::new("/proc/self"), &[]));
    assert!(said.starts_with("cannot write /proc/self/lock: "), "{said}");
    assert!(said.contains("make data_dir writable for this user"), "{said}");
    assert_eq!(code, status::DATA_DIR);
}

#[test]
fn a_port_in_use_is_refused_whoever_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    for key in ["websocket.listen", "endpoint.listen", "node.listen", "admin.listen"] {
        let (said, code) = refusal(&config(dir.path(), &[&format!("{key}={taken}")]));
        let wanted = format!("{key}: {taken} is in use by another process; stop it, or set another address");
        assert_eq!((said, code), (wanted, status::ADDRESS));
    }
    // Another murre of the same user listens with SO_REUSEPORT, which would let this one share its port silently.
    let running = start(&config(&dir.path().join("one"), &[])).unwrap();
    let taken = running.addresses().endpoint[0];
    let (said, _) = refusal(&config(&dir.path().join("two"), &[&format!("endpoint.listen={taken}")]));
    assert!(said.starts_with(&format!("endpoint.listen: {taken} is in use")), "{said}");
    running.stop().unwrap();
    let (said, code) = refusal(&config(dir.path(), &["endpoint.listen=192.0.2.1:80"]));
    assert!(said.starts_with("endpoint.listen: cannot listen on 192.0.2.1:80: "), "{said}");
    assert_eq!(code, status::ADDRESS);
}

#[test]
fn an_address_that_becomes_free_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let config = config(dir.path(), &[&format!("websocket.listen={taken}")]);
    let starting = std::thread::spawn(move || start(&config).map(RunningNode::stop));
    std::thread::sleep(Duration::from_millis(100));
    drop(other);
    starting.join().unwrap().unwrap().unwrap();
}

#[test]
fn a_damaged_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    start(&config(dir.path(), &[])).unwrap().stop().unwrap();
    std::fs::write(dir.path().join("keys/crypto"), "not a key\n").unwrap();
    let (said, code) = refusal(&config(dir.path(), &[]));
    assert!(said.contains("keys/crypto is not a key; restore it from a backup"), "{said}");
    assert_eq!(code, status::DAMAGED);
}

#[test]
fn a_corrupt_store_is_refused_and_salvage_named() {
    let dir = tempfile::tempdir().unwrap();
    start(&config(dir.path(), &[])).unwrap().stop().unwrap();
    let mut damaged = 0;
    damage(&dir.path().join("store/db"), &mut damaged);
    assert!(damaged > 0, "the store has files");
    let (said, code) = refusal(&config(dir.path(), &[]));
    assert!(said.contains("is damaged") && said.contains("murre maintain salvage"), "{said}");
    assert_eq!(code, status::DAMAGED);
}

/// Overwrites every file below.
fn damage(dir: &Path, count: &mut u32) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            damage(&path, count);
        } else {
            std::fs::write(&path, [0xa5; 4096]).unwrap();
            *count += 1;
        }
    }
}

#[test]
fn a_corrupt_ledger_is_refused_with_its_file() {
    let dir = tempfile::tempdir().unwrap();
    start(&config(dir.path(), &[])).unwrap().stop().unwrap();
    std::fs::write(dir.path().join("ledger/shard-0-00000000.log"), [7; 8192]).unwrap();
    let (said, code) = refusal(&config(dir.path(), &[]));
    assert!(said.contains("ledger/shard-0-00000000.log"), "{said}");
    assert_eq!(code, status::DAMAGED);
}

#[test]
fn a_cpu_that_is_not_there_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (said, code) = refusal(&config(dir.path(), &["shards.cores=8000"]));
    assert!(said.starts_with("shards.cores: this process may not run on CPU 8000: it is offline "), "{said}");
    assert_eq!(code, status::CONFIG);
}

#[test]
fn connections_are_shared_out_with_a_little_room() {
    assert_eq!(share(1_000, 1), 1_000);
    assert_eq!(share(100_000, 4), 25_500);
    assert_eq!(share(3, 4), 1);
}

#[test]
fn beyond_the_welcome_new_sessions_go_elsewhere_until_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let welcome = |count| config(dir.path(), &["store.kind=memory", &format!("websocket.welcome={count}")]);
    let running = start(&welcome(1)).unwrap();
    let address = running.addresses().websocket[0];
    let heartbeat = || {
        ask(address, "GET /__lbheartbeat__ HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")[9..12].to_owned()
    };
    assert_eq!(heartbeat(), "200");
    let (mut socket, _) = hello(&running, "");
    // The numbers of the shards are known a second later.
    let until = std::time::Instant::now() + PATIENCE;
    while running.total("conns") == 0 || heartbeat() == "200" {
        assert!(std::time::Instant::now() < until, "never full");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(Agent::connect(address).is_err());
    say(&mut socket, json!({}));
    assert_eq!(hear(&mut socket), json!({}), "who is there stays");
    running.reload(&welcome(2)).unwrap();
    assert_eq!(heartbeat(), "200");
    hello(&running, "");
    running.stop().unwrap();
}
