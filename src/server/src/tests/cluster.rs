//! Nodes on a shared database in one process: TLS between them, and notifications about messages of a dead node.

mod debts;

use std::net::Ipv4Addr;

use upstream::{CA, FCM_CREDENTIALS, Upstream};

use super::*;
use fixtures::TestCertificates;

const NODE_KEY: &str = "node.keys=0123456789abcdef";

/// Starts or finds the database of all tests.
async fn database() {
    blocking(|| _ = store::testing::database::shared()).await;
}

/// Settings of a node on that database.
fn shared(dir: &Path, sets: &[&str]) -> Config {
    let database = store::testing::database::shared();
    let crypto = format!("endpoint.crypto_keys={KEY_1}");
    let nodes = format!("store.scylla.nodes={}", database.nodes.join(","));
    let keyspace = format!("store.scylla.keyspace={}", database.keyspace);
    let common = ["shards.count=1", "store.kind=scylla", "store.scylla.replication_factor=1", NODE_KEY];
    // The host may keep the database and the other node waiting.
    let patient = ["store.scylla.request_timeout=30", "store.scylla.connect_timeout=30", "node.request_timeout=30"];
    let common = common.into_iter().chain(patient);
    let all: Vec<&str> = common.chain([crypto.as_str(), &nodes, &keyspace]).chain(sets.iter().copied()).collect();
    config(dir, &all)
}

/// Waiting for the database is not for a thread of the runtime.
async fn blocking<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(body).await.unwrap()
}

/// POSTs to a node that another node's endpoint URL does not name: the path is all that counts.
fn post_at(endpoint: &str, running: &RunningNode) -> String {
    let (_, path) = endpoint.split_once("/wpush/").unwrap();
    post(&format!("{}/wpush/{path}", running.addresses().endpoint_url), running)
}

fn stats(running: &RunningNode) -> Value {
    let answer =
        ask(running.addresses().admin[0], "GET /stats HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(std::time::Instant::now() < until, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn nodes_call_each_other_over_tls_beside_one_without_and_lose_nothing_while_trust_is_missing() {
    database().await;
    let (papers, strange) = (TestCertificates::of(&["127.0.0.1"]), TestCertificates::of(&["127.0.0.1"]));
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let tls = [
        "node.tls.listen=127.0.0.1:0".to_owned(),
        format!("node.tls.cert={}", papers.cert().display()),
        format!("node.tls.key={}", papers.key().display()),
    ];
    let trusting = |papers: &TestCertificates| format!("node.ca={}", papers.ca().display());
    let first = shared(dirs[0].path(), &tls.each_ref().map(String::as_str));
    let second = |papers: &TestCertificates| shared(dirs[1].path(), &[&trusting(papers)]);
    let (strangely, well) = (second(&strange), second(&papers));
    let (a, b) = (blocking(move || start(&first).unwrap()).await, blocking(move || start(&strangely).unwrap()).await);
    let url = format!("https://{}", a.addresses().node_tls[0]);

    // B does not trust A: B cannot reach A, so it stores the message and queues a notification to A.
    let (mut at_a, _) = hello(&a, "");
    let endpoint = register(&mut at_a);
    assert!(post_at(&endpoint, &b).starts_with("HTTP/1.1 201 "));
    eventually("word is owed", || stats(&b)["island"]["peer_owed"] == 1).await;
    let seen = stats(&b);
    assert!(seen["island"]["peer_connects_untrusted"].as_u64() >= Some(1), "{seen}");
    assert_eq!((&seen["nodes"][0]["url"], &seen["nodes"][0]["owed"]), (&json!(url), &json!(1)), "{seen}");
    eventually("a refused handshake is counted", || a.total("node_tls_handshakes_failed") != 0).await;

    // After the reload B trusts A, and sends the queued notification without another message.
    let b = blocking(move || b.reload(&well).map(|_| b).unwrap()).await;
    assert_eq!(hear(&mut at_a)["messageType"], "notification");
    eventually("nothing is owed", || stats(&b)["island"]["peer_owed"] == 0).await;
    assert!(post_at(&endpoint, &b).starts_with("HTTP/1.1 201 "));
    assert_eq!(hear(&mut at_a)["messageType"], "notification");
    eventually("the call is shown", || stats(&b)["nodes"][0]["calls"]["200"] == 1).await;
    let shown = stats(&b)["nodes"][0].clone();
    assert_eq!((&shown["state"], stats(&b)["nodes_known"].as_u64()), (&json!("closed"), Some(1)), "{shown}");
    assert!(shown["calls"]["unreachable"].as_u64() >= Some(1), "{shown}");
    eventually("latency is shown", || stats(&b)["nodes"][0]["p99_microseconds"] != 0).await;
    eventually("a handshake is counted", || a.total("node_tls_handshakes") >= 1).await;

    // The other way there is no TLS yet.
    let (mut at_b, _) = hello(&b, "");
    let endpoint = register(&mut at_b);
    assert!(post_at(&endpoint, &a).starts_with("HTTP/1.1 201 "));
    assert_eq!(hear(&mut at_b)["messageType"], "notification");
    eventually("the call is shown", || stats(&a)["nodes"][0]["calls"]["200"] == 1).await;
    assert!(stats(&a)["nodes"][0]["url"].as_str().unwrap().starts_with("http://"));
    drop((at_a, at_b));
    blocking(move || (a.stop().unwrap(), b.stop().unwrap())).await;
}

/// An address that this process alone has. A node must be told its URL before it listens, so the port cannot be drawn
/// by the kernel: one that was given back could be taken meanwhile. All of 127.0.0.0/8 is this host, and the number of
/// a process fits three bytes.
fn own_address() -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddr::from(([127, 64 + high % 64, middle, low], 20_001))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_second_node_with_the_same_url_is_refused_and_the_same_node_starts_again() {
    database().await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let address = own_address();
    let url = format!("node.url=http://{address}");
    let first = shared(dirs[0].path(), &[&url, &format!("node.listen={address}")]);
    let again = first.clone();
    let a = blocking(move || start(&first).unwrap()).await;
    // The second listens elsewhere, and names the first: by mistake, or as one name of a load balancer.
    let refused = |dir: &Path, key: &str| {
        let config = shared(dir, &[&url, key]);
        blocking(move || refusal(&config))
    };
    let (said, status) = refused(dirs[1].path(), NODE_KEY).await;
    let wanted = format!("cannot take http://{address} as node.url: the run ");
    assert!(said.starts_with(&wanted) && said.contains("not to a load balancer"), "{said}");
    assert_eq!(status, crate::status::ADDRESS);
    let (said, _) = refused(dirs[2].path(), "node.keys=another-key-of-nodes").await;
    assert!(said.contains("takes none of our node.keys"), "{said}");
    assert_eq!(stats(&a)["island"]["lease_lost"], 0);
    blocking(move || a.stop().unwrap()).await;
    let a = blocking(move || start(&again).unwrap()).await;
    eventually("its lease is renewed", || stats(&a)["island"]["lease_renewals"] != 0).await;
    blocking(move || a.stop().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_run_that_is_declared_over_ends() {
    database().await;
    let dir = tempfile::tempdir().unwrap();
    let config = shared(dir.path(), &[]);
    let running = blocking(move || start(&config).unwrap()).await;
    let me = running.cluster.as_ref().unwrap().me().clone();
    let nodes = running.storage.nodes().unwrap();
    assert!(nodes.bury(&me).await);
    let (say, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let last = running.wait_for_signal();
        let _ = say.send((last, running));
    });
    // The node renews its lease every half minute.
    let ended = blocking(move || heard.recv_timeout(4 * PATIENCE)).await;
    let (last, running) = ended.expect("it finds out that it is over");
    assert_eq!(last, Signal::Over);
    blocking(move || running.stop().unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn what_a_dead_node_left_is_told_to_the_node_that_has_its_user_now() {
    database().await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let configs = dirs.each_ref().map(|dir| shared(dir.path(), &[]));
    let [alive, dead] = configs.clone();
    let (a, b) = (blocking(move || start(&alive).unwrap()).await, blocking(move || start(&dead).unwrap()).await);
    let (mut at_b, uaid) = hello(&b, "");
    let endpoint = register(&mut at_b);
    assert!(post_at(&endpoint, &b).starts_with("HTTP/1.1 201 "));
    let left = hear(&mut at_b);
    // As a kill: an unacked message is in its ledger and nowhere else.
    blocking(move || drop(b)).await;
    let (mut at_a, again) = hello(&a, &uaid);
    assert_eq!(again, uaid);
    say(&mut at_a, json!({}));
    assert_eq!(hear(&mut at_a), json!({}), "storage has nothing for it yet");
    let [_, dead] = configs;
    assert_eq!(blocking(move || replay_ledgers(&dead).unwrap()).await, 1);
    // Without a hello, and without another message.
    assert_eq!(hear(&mut at_a)["version"], left["version"]);
    drop(at_a);
    blocking(move || a.stop().unwrap()).await;
}

/// Notifications about messages of a ledger are in memory only, so the ledger stays until a start succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn what_a_killed_node_left_is_told_by_the_first_start_that_comes_through() {
    database().await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let configs = dirs.each_ref().map(|dir| shared(dir.path(), &[]));
    let [alive, killed] = configs.clone();
    let (a, b) = (blocking(move || start(&alive).unwrap()).await, blocking(move || start(&killed).unwrap()).await);
    let (mut at_b, uaid) = hello(&b, "");
    let endpoint = register(&mut at_b);
    assert!(post_at(&endpoint, &b).starts_with("HTTP/1.1 201 "));
    let left = hear(&mut at_b);
    blocking(move || drop(b)).await;
    let (mut at_a, _) = hello(&a, &uaid);
    say(&mut at_a, json!({}));
    assert_eq!(hear(&mut at_a), json!({}), "storage has nothing for it yet");
    // A directory in the place of the file: this start fails after everything is saved and before a notification.
    let logs = || std::fs::read_dir(dirs[1].path().join("ledger")).unwrap().count();
    let (run, before) = (dirs[1].path().join("run"), logs());
    std::fs::remove_file(&run).unwrap();
    std::fs::create_dir(&run).unwrap();
    for _ in 0..2 {
        let [_, killed] = configs.clone();
        let said = blocking(move || refusal(&killed).0).await;
        assert!(said.starts_with(&format!("cannot write {}: ", run.display())), "{said}");
        assert_eq!(logs(), before, "a start that fails leaves no log of its own");
    }
    std::fs::remove_dir(&run).unwrap();
    let [_, killed] = configs;
    let b = blocking(move || start(&killed).unwrap()).await;
    assert_eq!(logs(), 1, "the old log is gone");
    // Without a hello, and without another message.
    assert_eq!(hear(&mut at_a)["version"], left["version"]);
    drop(at_a);
    blocking(move || (a.stop().unwrap(), b.stop().unwrap())).await;
}

#[test]
fn authorities_are_read_wherever_they_are_named_and_before_anything_is_touched() {
    let (papers, dir) = (TestCertificates::of(&["127.0.0.1"]), tempfile::tempdir().unwrap());
    for kind in ["memory", "scylla"] {
        // No database listens at this address: the start must fail before it connects.
        let kind = format!("store.kind={kind}");
        let sets = [kind.as_str(), NODE_KEY, "store.scylla.nodes=127.0.0.1:1"];
        let keys = format!("endpoint.crypto_keys={KEY_1}");
        let with =
            |ca: &Path| config(dir.path(), &[&sets[..], &[&keys, &format!("node.ca={}", ca.display())]].concat());
        let (sentence, code) = refusal(&with(&papers.key()));
        assert!(
            sentence.starts_with("node.ca cannot be used: there is no certificate in it; name a file"),
            "{sentence}"
        );
        assert_eq!(code, status::CONFIG);
        assert!(replay_ledgers(&with(&papers.key())).unwrap_err().to_string().starts_with("node.ca cannot be used"));
        assert!(!dir.path().join("lock").exists(), "nothing was touched");
    }
    let with = |ca: &Path| config(dir.path(), &["store.kind=memory", &format!("node.ca={}", ca.display())]);
    let running = start(&with(&papers.ca())).unwrap();
    running.reload(&with(&papers.ca())).unwrap();
    let said = running.reload(&with(&papers.key())).unwrap_err().to_string();
    assert!(said.starts_with("node.ca cannot be used"), "{said}");
    running.stop().unwrap();
}

/// Returns the message id in the `Location` of a response.
fn version_of(answer: &str) -> String {
    let mut headers = answer.lines().filter_map(|line| line.split_once(": "));
    let location = headers.find(|(name, _)| name.eq_ignore_ascii_case("location"));
    let (_, location) = location.unwrap_or_else(|| panic!("a 201 has a location: {answer}"));
    location.rsplit('/').next().unwrap().to_owned()
}

/// POSTs until it is taken; each refusal is a 503.
async fn post_until_taken(endpoint: &str, running: &RunningNode) -> String {
    let mut answer = String::new();
    eventually("a POST is taken", || {
        answer = post_at(endpoint, running);
        assert!(answer.starts_with("HTTP/1.1 201 ") || answer.starts_with("HTTP/1.1 503 "), "{answer}");
        answer.starts_with("HTTP/1.1 201 ")
    })
    .await;
    version_of(&answer)
}

fn with_clock(clock: &HostClock) -> Environment {
    Environment { host_clock: clock.clone(), ..Environment::default() }
}

const HOUR_US: i64 = 3_600_000_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_clock_that_is_set_an_hour_wrong_and_right_again_loses_reorders_and_stops_nothing() {
    database().await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = dirs.each_ref().map(|dir| shared(dir.path(), &[]));
    let clock = HostClock::default();
    let surroundings = with_clock(&clock);
    let a = blocking(move || start_with(&first, surroundings).unwrap()).await;
    let b = blocking(move || start(&second).unwrap()).await;
    let (mut socket, uaid) = hello(&b, "");
    let endpoint = register(&mut socket);
    drop(socket);
    let mut posted = vec![post_until_taken(&endpoint, &a).await];
    for off in [HOUR_US, -HOUR_US] {
        clock.set_off(off);
        eventually("it is noticed", || stats(&a)["island"]["clock_apart_seconds"].as_u64() >= Some(3_590)).await;
        posted.push(post_until_taken(&endpoint, &a).await);
        clock.set_off(0);
        eventually("they agree", || stats(&a)["island"]["clock_apart_seconds"] == 0).await;
        posted.push(post_until_taken(&endpoint, &a).await);
        posted.push(post_until_taken(&endpoint, &b).await);
    }
    let control_plane = &stats(&a)["island"];
    assert_eq!((&control_plane["clock_jumps"], &control_plane["clock_jumps_taken"]), (&json!(2), &json!(0)));
    let (mut socket, again) = hello(&b, &uaid);
    assert_eq!(again, uaid);
    // A message that was refused may be there all the same.
    let mut wanted = posted.iter().peekable();
    while wanted.peek().is_some() {
        let heard = hear(&mut socket);
        wanted.next_if(|version| heard["version"] == ***version);
        let ack = json!({ "channelID": heard["channelID"], "version": heard["version"] });
        say(&mut socket, json!({ "messageType": "ack", "updates": [ack] }));
    }
    drop(socket);
    blocking(move || _ = (a.stop().unwrap(), b.stop().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_node_whose_clock_was_an_hour_behind_serves_once_that_is_set_right() {
    database().await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [first, second] = dirs.each_ref().map(|dir| shared(dir.path(), &[]));
    let clock = HostClock::default();
    clock.set_off(-HOUR_US);
    let surroundings = with_clock(&clock);
    let a = blocking(move || start_with(&first, surroundings).unwrap()).await;
    let b = blocking(move || start(&second).unwrap()).await;
    let (mut at_b, _) = hello(&b, "");
    let endpoint = register(&mut at_b);
    clock.set_off(0);
    eventually("it is taken over", || stats(&a)["island"]["clock_jumps_taken"] == 1).await;
    let version = post_until_taken(&endpoint, &a).await;
    assert_eq!(hear(&mut at_b)["version"], version);
    drop(at_b);
    blocking(move || _ = (a.stop().unwrap(), b.stop().unwrap())).await;
}

#[test]
fn certificates_are_read_again_and_bad_ones_are_refused() {
    let (papers, dir) = (TestCertificates::of(&["127.0.0.1"]), tempfile::tempdir().unwrap());
    let with = |cert: &Path| {
        let (cert, key) =
            (format!("node.tls.cert={}", cert.display()), format!("node.tls.key={}", papers.key().display()));
        config(dir.path(), &["store.kind=memory", "node.tls.listen=127.0.0.1:0", &cert, &key])
    };
    let (sentence, code) = refusal(&with(&papers.key()));
    assert!(
        sentence.starts_with("node.tls.cert: ") && sentence.contains("there is no certificate in it"),
        "{sentence}"
    );
    assert_eq!(code, status::CONFIG);
    let running = start(&with(&papers.cert())).unwrap();
    let address = running.addresses().node_tls[0];
    assert!(running.banner().contains(&format!("  other nodes  https://{address}/\n")), "{}", running.banner());
    running.reload(&with(&papers.cert())).unwrap();
    let said = running.reload(&with(&papers.key())).unwrap_err().to_string();
    assert!(said.starts_with("node.tls.cert: "), "{said}");
    // Other nodes never call a node without the role.
    let files = format!("node.tls.cert={}", papers.cert().display());
    let key = format!("node.tls.key={}", papers.key().display());
    let other = tempfile::tempdir().unwrap();
    let sets = ["store.kind=memory", "roles=endpoint", "node.tls.listen=127.0.0.1:0", &files, &key];
    let alone = start(&config(other.path(), &sets)).unwrap();
    assert!(alone.addresses().node_tls.is_empty());
    running.stop().unwrap();
    alone.stop().unwrap();
}

/// The service manager starts it again after this status, and not after that of damage.
#[test]
fn a_database_that_is_away_is_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let keys = format!("endpoint.crypto_keys={KEY_1}");
    let sets = ["store.kind=scylla", NODE_KEY, &keys, "store.scylla.nodes=127.0.0.1:1", "node.listen=127.0.0.2:0"];
    let (said, code) = refusal(&config(dir.path(), &sets));
    assert!(said.starts_with("store.scylla.nodes = 127.0.0.1:1: "), "{said}");
    assert_eq!(code, status::STORAGE);
    let fault = replay_ledgers(&config(dir.path(), &sets)).unwrap_err();
    assert_eq!(fault.status(), status::STORAGE, "{fault}");

    let (log, config) = (fixtures::Log::default(), config(dir.path(), &sets));
    let surroundings = Environment { store_patience: Duration::from_millis(900), ..Environment::default() };
    let fault = log.of("warn", || start_with(&config, surroundings)).err().expect("still away");
    assert!(matches!(fault, NodeError::StoreAway(_)), "{fault}");
    let text = log.text();
    assert!(
        text.contains("database not reached; the start waits for it") && text.contains("retry_seconds=1"),
        "{text}"
    );
}

/// Sends a call of the registration API to a node; returns status and body.
fn registration(running: &RunningNode, method: &str, rest: &str, secret: &str, body: &str) -> (u16, Value) {
    let length = body.len();
    let answer = ask(
        running.addresses().endpoint[0],
        &format!(
            "{method} /v1/fcm/firefox/registration{rest} HTTP/1.1\r\nhost: localhost\r\nauthorization: webpush {secret}\r\n\
             content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        ),
    );
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Cassandra: bench/check test"]
async fn a_device_that_changes_at_one_node_is_reached_by_the_next_notification_at_another() {
    database().await;
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let papers = tempfile::tempdir().unwrap();
    let services = Upstream::start(Ipv4Addr::LOCALHOST.into(), papers.path()).await.unwrap();
    let file = |name: &str| papers.path().join(name).display().to_string();
    let bridge = [
        "bridge.auth_keys=0123456789abcdef".to_owned(),
        format!("bridge.ca_file={}", file(CA)),
        format!("bridge.fcm.credentials={}", file(FCM_CREDENTIALS)),
        format!("bridge.fcm.base_url=https://localhost:{}", services.google.port()),
        // The host of the tests may be slow.
        "bridge.fcm.timeout=25".to_owned(),
    ];
    let bridge = bridge.each_ref().map(String::as_str);
    let [first, second] = dirs.each_ref().map(|dir| shared(dir.path(), &bridge));
    let (a, b) = (blocking(move || start(&first).unwrap()).await, blocking(move || start(&second).unwrap()).await);
    let (status, made) = registration(&a, "POST", "", "", r#"{"token":"token-of-the-first-device"}"#);
    assert_eq!(status, 200, "{made}");
    let text = |name: &str| made[name].as_str().unwrap().to_owned();
    let (endpoint, secret, user) = (text("endpoint"), text("secret"), format!("/{}", text("uaid")));
    let reached = || {
        let call: Value = serde_json::from_str(&services.state.calls().last().unwrap().body).unwrap();
        call["message"]["token"].clone()
    };
    for round in 0..24 {
        let (changes, sends) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let token = format!("token-of-device-{round}");
        let device = json!({ "token": token }).to_string();
        assert_eq!(registration(changes, "PUT", &user, &secret, &device), (200, json!({})), "{round}");
        for running in [sends, changes] {
            let answer = post_at(&endpoint, running);
            assert!(answer.starts_with("HTTP/1.1 201 "), "{round}: {answer}");
            assert_eq!(reached(), token);
        }
    }
    assert_eq!(registration(&a, "PUT", &user, &secret, r#"{"token":"answer.unregistered.1"}"#).0, 200);
    assert!(post_at(&endpoint, &b).starts_with("HTTP/1.1 410 "));
    for running in [&a, &b] {
        let (status, answer) = registration(running, "POST", &format!("{user}/subscription"), &secret, "");
        assert_eq!((status, &answer["errno"]), (410, &json!(103)), "{answer}");
        assert!(post_at(&endpoint, running).starts_with("HTTP/1.1 410 "));
    }
    blocking(move || (a.stop().unwrap(), b.stop().unwrap())).await;
}
