//! One raw WebSocket of a user agent: bytes go out as they are, frames come in as they are, and nothing is answered by
//! itself. For tests where it matters what exactly is on the wire.

use std::io::{ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use client::http::{self, Response};
use murre_bench::frame::{self, upgrade_request};
use serde_json::{Value, json};

use super::PATIENCE;

/// One message or end from the server.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// The text of a message, as it was spelled.
    Text(String),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    /// Code and reason; 1005 when there was none.
    Close(u16, String),
    /// The server ended its side in order.
    End,
    /// The connection was reset.
    Reset,
}

pub struct Wire {
    stream: TcpStream,
    inbox: Vec<u8>,
}

impl Wire {
    /// A TCP connection on which nothing was sent yet.
    pub fn open(address: SocketAddr) -> Wire {
        Wire::of(TcpStream::connect(address).unwrap())
    }

    /// As [`Wire::open`] on an existing connection.
    pub fn of(stream: TcpStream) -> Wire {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Wire { stream, inbox: Vec::new() }
    }

    /// A connection after its upgrade.
    pub fn upgraded(address: SocketAddr) -> Wire {
        let mut wire = Wire::open(address);
        wire.write(&upgrade_request(&address.to_string()));
        assert_eq!(wire.response().status, 101);
        wire
    }

    /// A connection after its hello.
    pub fn greeted(address: SocketAddr) -> Wire {
        let mut wire = Wire::upgraded(address);
        wire.say(&json!({"messageType": "hello", "use_webpush": true}));
        assert_eq!(wire.message()["messageType"], "hello");
        wire
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns true if the connection still took these bytes.
    pub fn try_write(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends one whole text message.
    pub fn say(&mut self, message: &Value) {
        self.write(&text(&message.to_string()));
    }

    /// Shuts down the client's side, as a client does after its last byte.
    pub fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Another handle of the same connection, to write from another thread.
    pub fn writer(&self) -> TcpStream {
        self.stream.try_clone().unwrap()
    }

    /// Writes what the server takes: it may have refused and closed before the last byte.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Wire {
        self.try_write(bytes.as_ref());
        self
    }

    /// The next response; `None` at the end of the stream. That to a HEAD must be read with [`Wire::rest`].
    pub fn next(&mut self) -> Option<Response> {
        loop {
            if let Some((response, used)) = http::parse(&self.inbox).unwrap() {
                self.inbox.drain(..used);
                return Some(response);
            }
            if let Some(end) = self.fill() {
                let half = String::from_utf8_lossy(&self.inbox);
                assert!(end == Heard::Reset || half.is_empty(), "half a response: {half:?}");
                return None;
            }
        }
    }

    /// The next response, which must come.
    pub fn response(&mut self) -> Response {
        self.next().expect("a response")
    }

    /// Everything until the end of the stream.
    pub fn rest(&mut self) -> String {
        while self.fill().is_none() {}
        String::from_utf8(std::mem::take(&mut self.inbox)).unwrap()
    }

    /// The next message or end from the server; it must come in time.
    pub fn hear(&mut self) -> Heard {
        loop {
            if let Some(frame) = frame::parse(&self.inbox).unwrap() {
                let payload = self.inbox[frame.start..frame.end].to_vec();
                self.inbox.drain(..frame.end);
                return match frame.opcode {
                    frame::TEXT => Heard::Text(String::from_utf8(payload).unwrap()),
                    frame::PING => Heard::Ping(payload),
                    frame::PONG => Heard::Pong(payload),
                    frame::CLOSE => {
                        let reason = payload.get(2..).unwrap_or_default().to_vec();
                        Heard::Close(frame::close_code(&payload), String::from_utf8(reason).unwrap())
                    }
                    other => panic!("a server sends no frame of kind {other}"),
                };
            }
            if let Some(end) = self.fill() {
                assert!(self.inbox.is_empty() || end == Heard::Reset, "ended inside a frame: {:?}", self.inbox);
                return end;
            }
        }
    }

    /// The next message, which must come before anything else.
    pub fn message(&mut self) -> Value {
        match self.hear() {
            Heard::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("waited for a message, got {other:?}"),
        }
    }

    /// The close frame, past all messages before it.
    pub fn goodbye(&mut self) -> (u16, String) {
        loop {
            match self.hear() {
                Heard::Close(code, reason) => return (code, reason),
                Heard::Text(_) | Heard::Ping(_) | Heard::Pong(_) => {}
                end => panic!("{end:?} without a close frame"),
            }
        }
    }

    /// Reads more; returns the end of the stream, if it ended.
    fn fill(&mut self) -> Option<Heard> {
        match http::read_more(&mut self.stream, &mut self.inbox) {
            Ok(0) => return Some(Heard::End),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {
                return Some(Heard::Reset);
            }
            Err(error) => panic!("nothing in {PATIENCE:?}: {error}"),
        }
        None
    }
}

/// A final, masked frame.
pub fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push(&mut out, opcode, payload);
    out
}

/// A whole text message.
pub fn text(message: &str) -> Vec<u8> {
    masked(frame::TEXT, message.as_bytes())
}

/// A masked frame whose first byte is as given: FIN, the reserved bits and the opcode.
pub fn raw(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, first, payload.len(), 0x80);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(payload);
    out
}

/// Asks for a broadcast that does not exist: is always answered.
pub const PROBE: &str = r#"{"messageType":"broadcast_subscribe","broadcasts":{"tests/none":"v"}}"#;

/// Answer to [`PROBE`].
pub const PROBED: &str = r#"{"messageType":"broadcast","broadcasts":{"errors":{"tests/none":"Broadcast not found"}}}"#;
