//! The admin server over a socket, and the control plane's beginning and end.

mod admin;

mod source;

mod wakes;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use machine::BroadcastVersion;
use machine::counters;
use machine::stats::Counters as _;
use store::fault::FaultKind;

use super::*;
use fixtures::Fake;

counters! {
    /// Of a shard.
    pub struct Numbers { gauge sessions: "Sessions held.", }
}

struct Recorder {
    /// Trouble of a condition for each of [`TURNS`].
    troubles: [Mutex<Option<Trouble>>; 3],
    broadcasts: Mutex<Vec<Arc<[BroadcastVersion]>>>,
    /// Backups that were begun.
    backups: AtomicUsize,
    /// Held by a test for as long as a backup takes.
    copying: Mutex<()>,
}

/// The conditions of a [`Recorder`]: their names, and what they turn.
const TURNS: [(&str, Turns); 3] =
    [("store_circuit", Turns::Nothing), ("drain", Turns::Balancer), ("lease", Turns::Liveness)];

/// The conditions that this host sets.
fn conditions(host: &Arc<Recorder>) -> Arc<Conditions> {
    let condition = |(at, (name, turns)): (usize, (&'static str, Turns))| {
        let host = Arc::clone(host);
        Condition { name, turns, check: Box::new(move || host.troubles[at].lock().unwrap().clone()) }
    };
    Arc::new(Conditions::new(TURNS.into_iter().enumerate().map(condition).collect()))
}

/// Ids and versions of one call of [`Host::set_broadcasts`].
type Told = Vec<(String, String)>;

fn owned(values: Vec<(&str, &str)>) -> Told {
    values.into_iter().map(|(id, version)| (id.to_owned(), version.to_owned())).collect()
}

impl Recorder {
    fn new() -> Recorder {
        Recorder {
            troubles: Default::default(),
            broadcasts: Mutex::default(),
            backups: AtomicUsize::new(0),
            copying: Mutex::default(),
        }
    }

    /// Every call so far.
    fn heard(&self) -> Vec<Told> {
        let said = self.broadcasts.lock().unwrap();
        said.iter().map(|values| values.iter().map(|b| (b.id.to_string(), b.version.to_string())).collect()).collect()
    }
}

impl Host for Recorder {
    fn set_broadcasts(&self, values: Arc<[BroadcastVersion]>) {
        self.broadcasts.lock().unwrap().push(values);
    }

    fn read_storage(&self) {}

    fn refresh(&self) {}

    fn is_stopping(&self) -> bool {
        false
    }

    fn renew_certificates(&self) -> Result<(), String> {
        Ok(())
    }

    fn backup(&self, name: &str) -> Result<Backup, BackupFault> {
        self.backups.fetch_add(1, Ordering::Relaxed);
        drop(self.copying.lock().unwrap());
        let made = Backup { path: format!("/b/{name}").into(), users: 1, messages: 2, topics: 3 };
        let fault = |kind| Err(BackupFault { said: name.to_owned(), kind });
        match name {
            "taken" => fault(FaultKind::Lasting),
            "full" => fault(FaultKind::Full),
            "failed" => fault(FaultKind::Passing),
            _ => Ok(made),
        }
    }
}

fn control_plane() -> (ControlPlane, Arc<Recorder>) {
    island_with(ControlPlaneBuilder::new(false, OutgoingCalls::default()).unwrap())
}

fn island_with(prepared: ControlPlaneBuilder) -> (ControlPlane, Arc<Recorder>) {
    let host = Arc::new(Recorder::new());
    let board = Board::new(&[Numbers::MEANINGS]);
    Numbers { sessions: 7 }.write_to(&board, 0);
    let (shards, conditions) = (vec![Arc::new(board)], conditions(&host));
    let sources = MetricSources { shards, conditions, ..MetricSources::default() };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let shown: Arc<dyn Host> = Arc::clone(&host) as Arc<dyn Host>;
    let metrics = vec![TcpListener::bind("127.0.0.1:0").unwrap()];
    let (hosts, token) = (vec!["murre.internal".to_owned()], Secret::new(TOKEN));
    let admin = Admin { listeners: vec![listener], tls: None, metrics, hosts, token };
    (ControlPlane::start(prepared, admin, sources, shown).unwrap(), host)
}

/// Token of the operator.
const TOKEN: &str = "the-token-of-the-operator";

/// Status, head and body. Changes are asked for by the operator.
fn ask(control_plane: &ControlPlane, method: &str, path: &str, body: &str) -> (u16, String, String) {
    ask_at(control_plane.admin()[0], method, path, body)
}

fn ask_at(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let is_read = matches!(method, "GET" | "HEAD");
    ask_as((!is_read).then_some(TOKEN), address, method, path, body)
}

/// As [`ask_at`], with this token.
fn ask_as(token: Option<&str>, address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let length = body.len();
    let accept = if path == "/metrics?open" { "accept: application/openmetrics-text\r\n" } else { "" };
    let token = token.map_or(String::new(), |token| format!("authorization: Bearer {token}\r\n"));
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{accept}{token}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
}

#[test]
fn health_routes_answer_as_the_services_before_us() {
    let (control_plane, _) = control_plane();
    assert_eq!(ask(&control_plane, "GET", "/status", ""), {
        let (_, head, _) = ask(&control_plane, "GET", "/status", "");
        (200, head, format!("{{\"status\":\"OK\",\"version\":\"{}\"}}", env!("CARGO_PKG_VERSION")))
    });
    let (status, _, body) = ask(&control_plane, "GET", "/__heartbeat__", "");
    assert_eq!(status, 200);
    for part in ["\"status\":\"OK\"", "\"connections\":7", "\"router_table\":{\"status\":\"OK\"}"] {
        assert!(body.contains(part), "{body}");
    }
    assert_eq!(ask(&control_plane, "GET", "/health", "").2, body);
    let (status, _, body) = ask(&control_plane, "GET", "/__lbheartbeat__", "");
    assert_eq!((status, body.as_str()), (200, ""));
    let (status, _, body) = ask(&control_plane, "GET", "/__version__", "");
    assert_eq!(status, 200);
    for part in ["\"source\":", "\"version\":", "\"commit\":", "\"build\":"] {
        assert!(body.contains(part), "{body}");
    }
}

#[test]
fn each_condition_turns_the_routes_that_it_declares_and_is_on_all_of_them_by_name() {
    let (control_plane, host) = control_plane();
    let code = |path: &str| ask(&control_plane, "GET", path, "").0;
    let body = |path: &str| ask(&control_plane, "GET", path, "").2;
    for (at, (name, _)) in TURNS.into_iter().enumerate() {
        let (liveness, balancer, word) = [(200, 200, "DEGRADED"), (200, 503, "ERROR"), (503, 503, "ERROR")][at];
        *host.troubles[at].lock().unwrap() = Some(Trouble::new("it stands still"));
        for path in ["/status", "/health", "/__heartbeat__"] {
            assert_eq!(code(path), liveness, "{name} {path}");
            assert!(body(path).contains(&format!("\"status\":\"{word}\"")), "{name} {path} {}", body(path));
        }
        assert_eq!(code("/__lbheartbeat__"), balancer, "{name}");
        assert!(body("/status").contains("\"error\":\"it stands still\""), "{}", body("/status"));
        for path in ["/health", "/stats"] {
            let shown: serde_json::Value = serde_json::from_str(&body(path)).unwrap();
            let shown = shown["conditions"].as_array().unwrap().iter().find(|one| one["name"] == name).unwrap().clone();
            assert_eq!((&shown["status"], &shown["trouble"]), (&word.into(), &"it stands still".into()), "{path}");
            assert!(shown["since"].as_u64() > Some(1_600_000_000), "{shown}");
        }
        let metric = format!("\nmurre_health_condition{{condition=\"{name}\"}} {}\n", at + 1);
        assert!(body("/metrics").contains(&metric), "{}", body("/metrics"));
        *host.troubles[at].lock().unwrap() = None;
        assert_eq!((code("/status"), code("/__lbheartbeat__")), (200, 200), "{name}");
    }
    *host.troubles[0].lock().unwrap() = Some(Trouble::new("storage takes nothing"));
    assert!(body("/health").contains("\"router_table\":{\"cause\":\"storage takes nothing\""));
    *host.troubles[1].lock().unwrap() = Some(Trouble::shared("all nodes have it"));
    assert_eq!(code("/__lbheartbeat__"), 200, "it would empty the load balancer");
}

#[test]
fn metrics_and_the_page_are_served() {
    let (control_plane, _) = control_plane();
    let (status, head, body) = ask(&control_plane, "GET", "/metrics", "");
    assert_eq!(status, 200);
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(body.contains("murre_sessions{shard=\"0\"} 7\n"), "{body}");
    let (_, head, body) = ask(&control_plane, "GET", "/metrics?open", "");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(body.contains("murre_sessions{shard=\"0\"} 7\n") && body.ends_with("# EOF\n"), "{body}");
    let (status, head, body) = ask(&control_plane, "GET", "/", "");
    assert_eq!(status, 200);
    assert!(head.contains("text/html") && body.contains("<title>murre</title>"), "{head}");
    assert!(!body.contains("https://") && !body.contains("http://"), "the page must load nothing from elsewhere");
    let (_, _, body) = ask(&control_plane, "GET", "/stats", "");
    let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(stats["shards"][0]["sessions"], 7);
    assert!(stats["process"]["private_bytes"].as_u64().unwrap() > 0);
    assert_eq!(ask(&control_plane, "GET", "/nowhere", "").0, 404);
}

#[test]
fn broadcasts_reach_the_shards_and_are_listed() {
    let (control_plane, host) = control_plane();
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", "{\"a/b\":\"1\",\"c\":\"2\"}").0, 204);
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", "{\"a/b\":\"3\"}").0, 204);
    assert_eq!(ask(&control_plane, "GET", "/broadcasts", "").2, "{\"a/b\":\"3\",\"c\":\"2\"}");
    // A value that is set again is no news.
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", "{\"a/b\":\"3\"}").0, 204);
    assert_eq!(host.heard(), [vec![("a/b", "1"), ("c", "2")], vec![("a/b", "3")]].map(owned));
}

#[test]
fn broadcasts_that_are_not_are_refused_and_change_nothing() {
    let (control_plane, host) = control_plane();
    let long = "x".repeat(129);
    let many: Vec<String> = (0..1025).map(|n| format!("\"{n}\":\"1\"")).collect();
    for body in ["", "[]", "{\"a\":1}", "{\"\":\"1\"}", "{\"a\":\"\"}", "\u{fffd}"] {
        assert_eq!(ask(&control_plane, "PUT", "/broadcasts", body).0, 400, "{body}");
    }
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", &format!("{{\"{long}\":\"1\"}}")).0, 400);
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", &format!("{{{}}}", many.join(","))).0, 400);
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", &" ".repeat(400_000)).0, 413);
    assert_eq!(ask(&control_plane, "GET", "/broadcasts", "").2, "{}");
    assert!(host.broadcasts.lock().unwrap().is_empty());
}

/// An control plane that asks this source at start and then all the time, and makes no wake-up calls.
fn island_of(source: &Fake) -> (ControlPlane, Arc<Recorder>) {
    let url = HttpUrl::parse(&source.url("/v1?key=k")).unwrap();
    let wake = Some((url.clone(), Arc::new(WakeUpQueue::new().unwrap())));
    let source = Some(BroadcastSource { url, token: None, interval: Duration::from_millis(10) });
    let mut prepared = ControlPlaneBuilder::new(false, OutgoingCalls { source, wake }).unwrap();
    prepared.ask_source().unwrap();
    island_with(prepared)
}

#[test]
fn the_source_and_the_operator_both_set_and_the_last_one_wins() {
    let source = Fake::start(|_| fixtures::broadcasts("a", "1"));
    let (control_plane, host) = island_of(&source);
    assert_eq!(host.heard(), [vec![("a", "1")]].map(owned), "known before anybody is served");
    assert_eq!(ask(&control_plane, "PUT", "/broadcasts", "{\"a\":\"9\",\"b\":\"2\"}").0, 204);
    let until = |wanted: &str| {
        for _ in 0..10_000 {
            if ask(&control_plane, "GET", "/broadcasts", "").2 == wanted {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("{wanted} does not come: {:?}", host.heard());
    };
    // The source says its own again with the next poll, and what it does not name is the operator's.
    until("{\"a\":\"1\",\"b\":\"2\"}");
    source.answer_now(|_| fixtures::broadcasts("a", "3"));
    until("{\"a\":\"3\",\"b\":\"2\"}");
    let wanted = [vec![("a", "1")], vec![("a", "9"), ("b", "2")], vec![("a", "1")], vec![("a", "3")]];
    assert_eq!(host.heard(), wanted.map(owned));
}

#[test]
fn calls_have_metrics_and_the_source_a_place_on_the_page() {
    let source = Fake::start(|_| None);
    source.answer_now(|_| fixtures::answer("503 Busy", "", ""));
    let (control_plane, _) = island_of(&source);
    let (_, _, body) = ask(&control_plane, "GET", "/stats", "");
    let stats: serde_json::Value = serde_json::from_str(&body).unwrap();
    let shown = &stats["broadcast_source"];
    assert_eq!((&shown["state"], &shown["url"]), (&"fails".into(), &source.url("/v1").into()));
    assert_eq!(shown["why"], "it answers 503 Service Unavailable");
    assert!(stats["island"]["broadcast_source_status"].as_u64().unwrap() >= 1, "{body}");
    assert_eq!(stats["island_meanings"][0]["name"], "broadcast_source_ok");
    let (_, _, body) = ask(&control_plane, "GET", "/metrics", "");
    assert!(body.contains("\nmurre_broadcast_source_ok_total 0\n"), "{body}");
    assert!(body.contains("\nmurre_wake_calls_dropped_total 0\n"), "{body}");
    assert!(!body.contains("\nmurre_broadcast_source_status_total 0\n"), "{body}");
    let (without, _) = self::control_plane();
    assert!(ask(&without, "GET", "/stats", "").2.contains("\"broadcast_source\":null"));
    assert!(!ask(&without, "GET", "/metrics", "").2.contains("broadcast_source"), "what is off is not shown");
}

#[test]
fn a_backup_is_made_by_name() {
    let (control_plane, _) = control_plane();
    let (status, _, body) = ask(&control_plane, "PUT", "/backups/monday", "");
    assert_eq!(status, 201);
    assert_eq!(body, "{\"messages\":2,\"path\":\"/b/monday\",\"topics\":3,\"users\":1}");
    let (status, _, body) = ask(&control_plane, "PUT", "/backups/taken", "");
    assert_eq!((status, body.as_str()), (409, "{\"error\":\"taken\"}"));
    for (name, code) in [("full", 507), ("failed", 500)] {
        let (status, _, body) = ask(&control_plane, "PUT", &format!("/backups/{name}"), "");
        assert_eq!((status, body), (code, format!("{{\"error\":\"{name}\"}}")));
    }
    // A form on any web page can POST without asking first; only PUT makes a backup.
    assert_eq!(ask(&control_plane, "POST", "/backups/monday", "").0, 405);
}

#[test]
fn one_backup_is_made_at_a_time() {
    let (control_plane, host) = control_plane();
    let (address, copying) = (control_plane.admin()[0], host.copying.lock().unwrap());
    std::thread::scope(|scope| {
        let first = scope.spawn(move || ask_at(address, "PUT", "/backups/monday", "").0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while host.backups.load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < deadline, "no backup is begun");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (status, _, body) = ask(&control_plane, "PUT", "/backups/tuesday", "");
        assert!(status == 409 && body.contains("another backup is being made"), "{status} {body}");
        drop(copying);
        assert_eq!(first.join().unwrap(), 201);
    });
    assert_eq!(ask(&control_plane, "PUT", "/backups/tuesday", "").0, 201);
}

#[test]
fn garbage_does_not_stop_it_and_dropping_it_does() {
    let (control_plane, _) = control_plane();
    let address = control_plane.admin()[0];
    let mut garbage = TcpStream::connect(address).unwrap();
    garbage.write_all(&[0, 255, 13, 10, 13, 10]).unwrap();
    let idle = TcpStream::connect(address).unwrap();
    assert_eq!(ask(&control_plane, "GET", "/status", "").0, 200);
    drop(control_plane);
    assert!(TcpStream::connect(address).is_err(), "the port is free again");
    drop(idle);
}
