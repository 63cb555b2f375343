//! A user agent and an app server on blocking sockets: their allocations are on their own thread.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use client::http::read_more;
use murre_bench::frame::{self, PING, PONG, TEXT};
use serde_json::{Value, json};

/// Longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Appends the bytes that have come. The node runs in this process, and so do the senders of signals to its threads.
fn read(stream: &mut TcpStream, to: &mut Vec<u8>) {
    assert!(read_more(stream, to).unwrap() > 0, "the server has closed the connection");
}

/// A user agent that has said hello.
pub struct Agent {
    stream: TcpStream,
    heard: Vec<u8>,
    frame: Vec<u8>,
}

impl Agent {
    pub fn new(address: SocketAddr) -> Agent {
        let mut agent = Agent { stream: connect(address), heard: Vec::new(), frame: Vec::new() };
        let upgrade = "GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
        agent.stream.write_all(upgrade.as_bytes()).unwrap();
        let head = loop {
            agent.read_more();
            if let Some(at) = agent.heard.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
        };
        assert!(agent.heard.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&agent.heard));
        agent.heard.drain(..head);
        let hello = agent.ask(&json!({ "messageType": "hello", "use_webpush": true }));
        assert_eq!(hello["status"], 200);
        agent
    }

    /// Registers a channel and returns the path of its endpoint.
    pub fn register(&mut self) -> String {
        let channel = uuid::Uuid::new_v4().to_string();
        let answer = self.ask(&json!({ "messageType": "register", "channelID": channel }));
        assert_eq!(answer["status"], 200);
        let endpoint = answer["pushEndpoint"].as_str().unwrap();
        endpoint[endpoint.find("/wpush").unwrap()..].to_owned()
    }

    pub fn ask(&mut self, message: &Value) -> Value {
        self.say(&message.to_string());
        self.hear()
    }

    pub fn say(&mut self, text: &str) {
        self.send(TEXT, text.as_bytes());
    }

    fn send(&mut self, opcode: u8, payload: &[u8]) {
        self.frame.clear();
        frame::push(&mut self.frame, opcode, payload);
        self.stream.write_all(&self.frame).unwrap();
    }

    /// Returns the next text; Pings before it are answered.
    pub fn hear(&mut self) -> Value {
        loop {
            match self.next() {
                (TEXT, payload) => return serde_json::from_slice(&payload).unwrap(),
                (PING, payload) => self.send(PONG, &payload),
                (PONG, _) => {}
                (opcode, payload) => panic!("frame {opcode}: {}", String::from_utf8_lossy(&payload)),
            }
        }
    }

    /// Waits for a Ping and answers it.
    pub fn pong(&mut self) {
        let (opcode, payload) = self.next();
        assert_eq!(opcode, PING);
        self.send(PONG, &payload);
    }

    /// Returns when the server has processed everything that was sent before.
    pub fn settle(&mut self) {
        self.send(PING, b"settle");
        loop {
            match self.next() {
                (PONG, payload) if payload == b"settle" => return,
                (PING, payload) => self.send(PONG, &payload),
                (opcode, payload) => panic!("frame {opcode}: {}", String::from_utf8_lossy(&payload)),
            }
        }
    }

    /// Takes one notification and acks it.
    pub fn take(&mut self) {
        let notification = self.hear();
        assert_eq!(notification["messageType"], "notification");
        let [channel, version] = ["channelID", "version"].map(|name| notification[name].as_str().unwrap());
        // As Firefox spells it.
        self.say(&format!(
            r#"{{"messageType":"ack","updates":[{{"channelID":"{channel}","version":"{version}","code":100}}]}}"#
        ));
    }

    fn next(&mut self) -> (u8, Vec<u8>) {
        loop {
            if let Some(frame) = frame::parse(&self.heard).unwrap() {
                let payload = self.heard[frame.start..frame.end].to_vec();
                self.heard.drain(..frame.end);
                return (frame.opcode, payload);
            }
            self.read_more();
        }
    }

    fn read_more(&mut self) {
        read(&mut self.stream, &mut self.heard);
    }
}

/// An app server with one connection that it keeps.
pub struct Sender {
    stream: TcpStream,
}

impl Sender {
    pub fn new(address: SocketAddr) -> Sender {
        Sender { stream: connect(address) }
    }

    /// Posts a notification as they are, and expects 201.
    pub fn post(&mut self, path: &str) {
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nttl: 3600\r\ncontent-encoding: aes128gcm\r\ncontent-length: 200\r\n\r\n"
        );
        let mut request = head.into_bytes();
        request.resize(request.len() + 200, b'x');
        self.stream.write_all(&request).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            read(&mut self.stream, &mut answer);
        }
        assert!(answer.starts_with(b"HTTP/1.1 201"), "{}", String::from_utf8_lossy(&answer));
    }
}
