//! A server that the control plane calls, on loopback, that answers what a test tells it to.

use std::any::Any;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// From a request, head and body, to the bytes of the answer; `None`: the connection stays open and silent.
type Answer = Box<dyn Fn(&str) -> Option<String> + Send>;

pub(crate) struct Fake {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    answer: Mutex<Answer>,
    heard: Mutex<Vec<String>>,
    held: Mutex<Vec<Box<dyn Any + Send>>>,
    over: AtomicBool,
    tls: Option<Arc<ServerConfig>>,
}

impl Fake {
    pub(crate) fn start(answer: impl Fn(&str) -> Option<String> + Send + 'static) -> Fake {
        Fake::with(None, Box::new(answer))
    }

    pub(crate) fn tls(config: ServerConfig, answer: impl Fn(&str) -> Option<String> + Send + 'static) -> Fake {
        Fake::with(Some(Arc::new(config)), Box::new(answer))
    }

    fn with(tls: Option<Arc<ServerConfig>>, answer: Answer) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (heard, held, over) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { answer: Mutex::new(answer), heard, held, over, tls });
        let serving = Arc::clone(&shared);
        let body = move || {
            for stream in listener.incoming().map(Result::unwrap) {
                if serving.over.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.accept(stream));
            }
        };
        Fake { address, shared, thread: Some(std::thread::spawn(body)) }
    }

    /// With `http://127.0.0.1:port` in front.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Every request so far, head in lower case and body.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.shared.heard.lock().unwrap().clone()
    }

    pub(crate) fn answer_now(&self, answer: impl Fn(&str) -> Option<String> + Send + 'static) {
        *self.shared.answer.lock().unwrap() = Box::new(answer);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the accept. Its thread may have ended with a failed test.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Shared {
    fn accept(&self, stream: TcpStream) {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        match &self.tls {
            None => self.serve(stream),
            Some(config) => {
                self.serve(StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream));
            }
        }
    }

    fn serve(&self, mut stream: impl Read + Write + Send + 'static) {
        // A client that goes away, as one without trust does, is no request.
        let Some(request) = request(&mut stream) else { return };
        self.heard.lock().unwrap().push(request.clone());
        let answer = (self.answer.lock().unwrap())(&request);
        match answer {
            // Nor is it a failure if the client does not take all of the answer.
            Some(bytes) => drop(stream.write_all(bytes.as_bytes()).and_then(|()| stream.flush())),
            None => self.held.lock().unwrap().push(Box::new(stream)),
        }
    }
}

fn request(stream: &mut impl Read) -> Option<String> {
    let (mut read, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        if let Some((head, body)) = String::from_utf8_lossy(&read).split_once("\r\n\r\n") {
            let head = head.to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).map_or("0", |rest| rest.lines().next().unwrap());
            if body.len() >= length.parse().unwrap() {
                return Some(format!("{head}\r\n\r\n{body}"));
            }
        }
        match stream.read(&mut piece) {
            Ok(0) | Err(_) => return None,
            Ok(count) => read.extend_from_slice(&piece[..count]),
        }
    }
}

/// An answer with this status line, these further fields (each with its line end) and this body.
pub(crate) fn answer(status: &str, fields: &str, body: &str) -> Option<String> {
    Some(format!("HTTP/1.1 {status}\r\n{fields}content-length: {}\r\n\r\n{body}", body.len()))
}

/// The answer of a broadcast source that knows one id.
pub(crate) fn broadcasts(id: &str, version: &str) -> Option<String> {
    answer("200 OK", "", &format!("{{\"broadcasts\":{{\"{id}\":\"{version}\"}}}}"))
}
