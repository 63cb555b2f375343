//! Health of a node: every condition is seen on its routes.

use super::*;
use edge::Health;
use fixtures::TestCertificates;

fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let answer = ask(address, &format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// State of one condition, as `/health` of the admin listener has it.
fn condition(running: &RunningNode, name: &str) -> Value {
    let (_, body) = get(running.addresses().admin[0], "/health");
    let shown: Value = serde_json::from_str(&body).unwrap();
    let list = shown["conditions"].as_array().unwrap_or_else(|| panic!("no conditions: {body}"));
    list.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("no {name}: {body}")).clone()
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(std::time::Instant::now() < until, "{what} does not come");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_store_that_is_full_degrades_the_node_and_no_route_is_turned() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["store.max_bytes=1"])).unwrap();
    eventually("a full store", || condition(&running, "store_room")["status"] == "DEGRADED");
    let admin = running.addresses().admin[0];
    let (code, body) = get(admin, "/status");
    assert!(code == 200 && body.contains("\"status\":\"DEGRADED\"") && body.contains("the store is full"), "{body}");
    let ports = [running.addresses().websocket[0], running.addresses().endpoint[0], running.addresses().node[0]];
    for port in ports {
        eventually("its word on another port", || get(port, "/status").1.contains("\"status\":\"DEGRADED\""));
    }
    for port in ports.into_iter().chain([admin]) {
        for path in ["/status", "/health", "/__heartbeat__", "/__lbheartbeat__"] {
            assert_eq!(get(port, path).0, 200, "{path} at {port}");
        }
    }
    running.stop().unwrap();
}

#[test]
fn a_node_that_waits_for_its_certificate_is_degraded() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing listens there, so that no order ever ends.
    let acme = ["acme.agree=true", "acme.directory=https://127.0.0.1:1/", "public.domain=localhost"];
    let listen = ["store.kind=memory", "public.listen=127.0.0.1:0", "public.http_listen=none"];
    let running = start(&config(dir.path(), &[&acme[..], &listen].concat())).unwrap();
    let shown = condition(&running, "certificate");
    assert_eq!((&shown["status"], &shown["turns"]), (&json!("DEGRADED"), &json!("nothing")), "{shown}");
    assert!(shown["trouble"].as_str().unwrap().contains("the first certificate of localhost"), "{shown}");
    assert_eq!(get(running.addresses().admin[0], "/__lbheartbeat__").0, 200);
    running.stop().unwrap();
}

#[test]
fn a_certificate_is_a_good_condition() {
    let (dir, papers) = (tempfile::tempdir().unwrap(), TestCertificates::of(&["127.0.0.1"]));
    let [cert, key] = tls::files(&papers);
    let listen = ["store.kind=memory", "websocket.tls.listen=127.0.0.1:0"];
    let running = start(&config(dir.path(), &[&listen[..], &[&cert, &key]].concat())).unwrap();
    assert_eq!(condition(&running, "certificate")["status"], "OK");
    running.stop().unwrap();
}

#[test]
fn a_hibernation_that_is_off_although_it_is_configured_degrades_the_node() {
    let dir = tempfile::tempdir().unwrap();
    // No directory for records can be made there.
    let sets = ["store.kind=memory", "hibernate.after=60", "hibernate.dir=/proc/frozen"];
    let running = start(&config(dir.path(), &sets)).unwrap();
    let shown = condition(&running, "hibernation");
    assert_eq!((&shown["status"], &shown["turns"]), (&json!("DEGRADED"), &json!("nothing")), "{shown}");
    assert!(shown["trouble"].as_str().unwrap().starts_with("hibernation is off: "), "{shown}");
    running.stop().unwrap();
}

#[test]
fn conditions_of_other_nodes_and_of_the_clock_turn_what_they_declare() {
    use std::sync::atomic::{AtomicBool, Ordering};

    use machine::counters;
    use machine::stats::Counters as _;
    use runtime::process_clock::ProcessClock;
    use store::testing::nodes::FakeNodes;

    counters! {
        /// Of a lease and a store.
        pub struct Gauges {
            gauge lease_lost: "", gauge lease_age_seconds: "", gauge store_room: "", gauge store_circuit_open: "",
        }
    }
    let (board, nodes) = (Arc::new(Board::new(&[Gauges::MEANINGS])), Arc::<FakeNodes>::default());
    let process_clock = Arc::new(ProcessClock::start());
    let draining = Arc::<AtomicBool>::default();
    let conditions = conditions::of_node(Signs {
        draining: Arc::clone(&draining),
        store: Some(Arc::clone(&board)),
        tls: NodeTls::default(),
        process_clock: Arc::clone(&process_clock),
        nodes: Some(nodes.clone()),
        lease: Some(Arc::clone(&board)),
        hibernation_off: None,
    });
    let now = |gauges: Gauges| {
        gauges.write_to(&board, 0);
        let bad = conditions.look().into_iter().filter(|state| state.health != Health::Good);
        (conditions.health(), bad.map(|state| state.name).collect::<Vec<_>>())
    };
    let good = Gauges::default;
    assert_eq!(now(good()), (Health::Good, vec![]));
    assert_eq!(now(Gauges { lease_lost: 1, ..good() }), (Health::Broken, vec!["lease"]));
    assert_eq!(now(Gauges { lease_age_seconds: 90, ..good() }), (Health::Good, vec![]));
    assert_eq!(now(Gauges { lease_age_seconds: 91, ..good() }), (Health::Degraded, vec!["lease_age"]));
    for store_room in 1..=4 {
        assert_eq!(now(Gauges { store_room, ..good() }), (Health::Degraded, vec!["store_room"]));
    }
    // The database is down for every node.
    let down = Gauges { store_circuit_open: 1, lease_age_seconds: 300, ..good() };
    assert_eq!(now(down), (Health::Degraded, vec!["store_circuit", "lease_age"]));
    process_clock.stop(true);
    assert_eq!(now(good()), (Health::Unready, vec!["clock"]));
    nodes.answers().clocks = 2;
    assert_eq!(now(good()), (Health::Degraded, vec!["clock"]), "the clocks of the database may be wrong");
    process_clock.stop(false);
    draining.store(true, Ordering::Relaxed);
    assert_eq!(now(good()), (Health::Unready, vec!["drain"]));
}

#[test]
fn the_page_of_load_balancers_and_liveness_are_turned_on_every_port() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["store.kind=memory"])).unwrap();
    let ports = [running.addresses().websocket[0], running.addresses().endpoint[0], running.addresses().node[0]];
    // The control plane sets the health of the gate to that of the conditions once a second.
    for (health, liveness, balancer) in
        [(Health::Degraded, 200, 200), (Health::Unready, 200, 503), (Health::Broken, 503, 503)]
    {
        for port in ports {
            for (path, code) in [("/status", liveness), ("/__heartbeat__", liveness), ("/__lbheartbeat__", balancer)] {
                eventually(&format!("{code} of {path} with {health:?}"), || {
                    running.stage.set_health(health);
                    get(port, path).0 == code
                });
            }
        }
    }
    running.stop().unwrap();
}

#[test]
fn a_change_needs_the_token_of_the_data_directory() {
    let dir = tempfile::tempdir().unwrap();
    let running = start(&config(dir.path(), &["metrics.listen=127.0.0.1:0"])).unwrap();
    let (admin, metrics) = (running.addresses().admin[0], running.addresses().metrics[0]);
    let put = |address: SocketAddr, path: &str, token: &str| {
        let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\n{token}connection: close\r\n");
        ask(address, &format!("{head}content-length: 9\r\n\r\n{{\"a\":\"1\"}}"))[9..12].to_owned()
    };
    let token = std::fs::read_to_string(dir.path().join("keys/admin")).unwrap();
    let shown = format!("Authorization: Bearer {}\r\n", token.trim());
    for path in ["/broadcasts", "/backups/monday"] {
        assert_eq!(put(admin, path, ""), "401", "{path}");
        assert_eq!(put(admin, path, "Authorization: Bearer another-token-of-16\r\n"), "401", "{path}");
        assert_eq!(put(metrics, path, &shown), "404", "{path}");
    }
    assert!(!dir.path().join("backups").exists(), "nothing was made");
    assert_eq!(
        (put(admin, "/broadcasts", &shown), put(admin, "/backups/monday", &shown)),
        ("204".into(), "201".into())
    );
    assert!(get(metrics, "/metrics").1.contains("murre_admin_unauthorized_total 4"));
    running.stop().unwrap();
}
