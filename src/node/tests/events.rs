//! Lines of the log about clients at debug.

use std::io;
use std::sync::Mutex;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;

/// Log of the node of a test.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Runs `body` with a log of this level that is kept here.
    pub(crate) fn of<T>(&self, level: &str, body: impl FnOnce() -> T) -> T {
        let level: Targets = level.parse().unwrap();
        let lines = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE).with_ansi(false);
        tracing::subscriber::with_default(lines.with_writer(self.clone()).finish().with(level), body)
    }

    fn says(&self, wanted: &[&str]) {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if text.lines().any(|line| wanted.iter().all(|part| line.contains(part))) {
                return;
            }
            assert!(std::time::Instant::now() < until, "no line with {wanted:?} in:\n{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Log;

    fn make_writer(&'a self) -> Log {
        self.clone()
    }
}

/// "My browser does not connect" is answered by these lines.
#[test]
fn what_clients_meet_is_logged_at_debug_and_shows_no_secret() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::default());
    let running = log.of("debug", || start(&config(dir.path(), &["store.kind=memory"])).unwrap());
    let (mut socket, uaid) = hello(&running, "");
    let endpoint = register(&mut socket);
    log.says(&["WebSocket upgraded", "shard="]);
    log.says(&["hello answered", "mode=\"webpush\""]);

    let address = running.addresses().endpoint[0];
    let get = "GET /nowhere HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(ask(address, get).starts_with("HTTP/1.1 404 "));
    log.says(&["request refused", "status=404"]);
    let path = endpoint.strip_prefix(&running.addresses().endpoint_url).unwrap();
    let post = format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: vapid x\r\nconnection: close\r\n\r\n");
    assert!(ask(address, &post).starts_with("HTTP/1.1 401 "));
    log.says(&["request refused", "status=401", "errno=109", "Missing VAPID public key"]);
    let websocket = running.addresses().websocket[0];
    let get = "GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: close\r\n\r\n";
    assert!(ask(websocket, get).starts_with("HTTP/1.1 426 "));
    log.says(&["request refused", "port=\"websocket\"", "status=426"]);

    say(&mut socket, json!({ "messageType": "hello", "use_webpush": true }));
    log.says(&["session ended", "code=1011", "reason=WrongState", "minutes=0"]);
    log.says(&["session ended", "acks=0", "registers=1", "nacks=0"]);
    drop(socket);
    let (socket, _) = hello(&running, &uaid);
    drop(socket);
    log.says(&["session ended", "reason=PeerClosed", "by=\"peer\""]);
    let token = path.rsplit('/').next().unwrap();
    let text = log.text();
    assert!(!text.contains(&uaid) && !text.contains(token), "{text}");
    running.stop().unwrap();
}
