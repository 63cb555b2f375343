//! A node that says what a test wants, over connections that it keeps.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// One request.
#[derive(Clone, Debug)]
pub(super) struct Heard {
    pub head: String,
    pub body: Vec<u8>,
}

pub(super) struct FakeNode {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    answer: String,
    state: Mutex<State>,
    changed: Condvar,
    tls: Option<Arc<ServerConfig>>,
}

#[derive(Default)]
struct State {
    credentials_version: Vec<Heard>,
    connections: usize,
    /// No request is answered before this number of connections waits at the same time.
    hold: usize,
    held: usize,
    /// Connections to be closed instead of an answer.
    hang_ups: usize,
    silent: bool,
    over: bool,
}

impl FakeNode {
    /// Answers every request with this status and these further fields.
    pub fn answering(status: &str, fields: &str) -> FakeNode {
        FakeNode::with("127.0.0.1:0", status, fields, None)
    }

    /// The same at a certain URL.
    pub fn at(url: &str, status: &str, fields: &str) -> FakeNode {
        FakeNode::with(url.strip_prefix("http://").unwrap(), status, fields, None)
    }

    /// Reads and never answers.
    pub fn silent() -> FakeNode {
        let node = FakeNode::answering("200 OK", "");
        node.state(|state| state.silent = true);
        node
    }

    /// Speaks TLS.
    pub fn tls(made: &rcgen::CertifiedKey<rcgen::KeyPair>) -> FakeNode {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        FakeNode::with("127.0.0.1:0", "200 OK", "", Some(Arc::new(config)))
    }

    fn with(address: &str, status: &str, fields: &str, tls: Option<Arc<ServerConfig>>) -> FakeNode {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let answer = format!("HTTP/1.1 {status}\r\n{fields}content-length: 4\r\n\r\nword");
        let shared = Arc::new(Shared { answer, state: Mutex::default(), changed: Condvar::new(), tls });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().map(Result::unwrap) {
                if serving.state.lock().unwrap().over {
                    return;
                }
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.accept(stream));
            }
        });
        FakeNode { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn credentials_version(&self) -> Vec<Heard> {
        self.shared.state.lock().unwrap().credentials_version.clone()
    }

    pub fn connections(&self) -> usize {
        self.shared.state.lock().unwrap().connections
    }

    /// Answers no request until this number of connections waits at the same time; then all.
    pub fn hold(&self, connections: usize) {
        self.state(|state| state.hold = connections);
    }

    pub fn hang_up_once(&self) {
        self.state(|state| state.hang_ups = 1);
    }

    pub fn hang_up_always(&self) {
        self.state(|state| state.hang_ups = usize::MAX);
    }

    pub fn hang_up_never(&self) {
        self.state(|state| state.hang_ups = 0);
    }

    fn state(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_all();
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        self.state(|state| state.over = true);
        // Wakes the accept.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn accept(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        self.state.lock().unwrap().connections += 1;
        match &self.tls {
            None => self.serve(stream),
            Some(config) => {
                self.serve(StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream));
            }
        }
    }

    fn serve(&self, mut stream: impl Read + Write) {
        while let Some(credentials_version) = request(&mut stream) {
            let mut state = self.state.lock().unwrap();
            state.credentials_version.push(credentials_version);
            if state.hang_ups > 0 {
                state.hang_ups -= usize::from(state.hang_ups != usize::MAX);
                return;
            }
            state.held += 1;
            if state.held >= state.hold {
                state.hold = 0;
                self.changed.notify_all();
            }
            let is_held = |state: &mut State| !state.over && (state.silent || state.hold > 0);
            let mut state = self.changed.wait_while(state, is_held).unwrap();
            state.held -= 1;
            let over = state.over;
            drop(state);
            let sent = stream.write_all(self.answer.as_bytes()).and_then(|()| stream.flush());
            if over || sent.is_err() || self.answer.contains("connection: close") {
                return;
            }
        }
    }
}

pub(super) fn request(stream: &mut impl Read) -> Option<Heard> {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&read[..end + 4]).into_owned();
            let length = head.to_ascii_lowercase();
            let length = length.split("content-length: ").nth(1).map_or("0", |rest| rest.lines().next().unwrap());
            if read.len() >= end + 4 + length.parse::<usize>().unwrap() {
                return Some(Heard { head, body: read.split_off(end + 4) });
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(count) => read.extend_from_slice(&piece[..count]),
        }
    }
}
