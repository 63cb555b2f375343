//! One raw WebSocket: bytes go out as they are, frames come in as they are, and nothing is answered by itself.

use std::io::{self, ErrorKind, Write};
use std::time::{Duration, Instant};

use client::http::{self, Response, read_more};
use client::stream::Stream;
use serde_json::Value;

use super::answer::{Answer, Miss, ensure};
use super::subject::Subject;
use crate::frame;

/// The key of the example in RFC 6455 section 1.3.
pub(super) const KEY: &str = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
/// The answer to [`KEY`].
pub(super) const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// The version of RFC 6455.
pub(super) const VERSION: &str = "Sec-WebSocket-Version: 13\r\n";
const HELLO: &str = r#"{"messageType":"hello","use_webpush":true}"#;

/// An event of the connection.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    Frame(u8, Vec<u8>),
    Close(u16),
    /// The stream ended or was reset.
    End,
    Nothing,
}

/// A raw WebSocket.
pub struct RawSocket {
    stream: Stream,
    inbox: Vec<u8>,
}

impl RawSocket {
    /// Sends an upgrade with these header lines, and reads its response.
    pub fn asked(subject: &Subject, lines: &[&str]) -> io::Result<(RawSocket, Response)> {
        let url = &subject.ws_url;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{}\r\n",
            url.target(),
            url.origin().authority(),
            lines.concat()
        );
        let mut socket = RawSocket { stream: subject.stream()?, inbox: Vec::new() };
        socket.stream.write_all(request.as_bytes())?;
        loop {
            if let Some((response, used)) = http::parse(&socket.inbox).map_err(io::Error::other)? {
                socket.inbox.drain(..used);
                return Ok((socket, response));
            }
            if read_more(&mut socket.stream, &mut socket.inbox)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// A connection after its upgrade.
    pub fn upgraded(subject: &Subject) -> Result<RawSocket, Miss> {
        let (socket, response) = RawSocket::asked(subject, &[KEY, VERSION])?;
        ensure(response.status == 101, || format!("the upgrade was answered {}", response.status))?;
        Ok(socket)
    }

    /// A connection after its hello.
    pub fn greeted(subject: &Subject) -> Result<RawSocket, Miss> {
        let mut socket = RawSocket::upgraded(subject)?;
        socket.send(frame::TEXT, HELLO.as_bytes());
        socket.hello_reply()?;
        Ok(socket)
    }

    /// Sends one final, masked frame.
    pub fn send(&mut self, opcode: u8, payload: &[u8]) {
        self.send_first(0x80 | opcode, payload);
    }

    /// Sends one masked frame with this first byte: the bits FIN and RSV1 to RSV3, and the opcode.
    pub fn send_first(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        frame::push(&mut bytes, 0, payload);
        bytes[0] = first;
        self.send_bytes(&bytes);
    }

    /// The server may have refused and closed before the last byte; what it said is read all the same.
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Waits for the next event; `None` waits until the deadline of the check.
    pub fn event(&mut self, within: Option<Duration>) -> Result<Event, Miss> {
        let until = within.map(|within| Instant::now() + within);
        loop {
            if let Some(frame) = frame::parse(&self.inbox).map_err(Miss::Fail)? {
                let payload = self.inbox[frame.start..frame.end].to_vec();
                self.inbox.drain(..frame.end);
                return Ok(match frame.opcode {
                    frame::CLOSE => Event::Close(frame::close_code(&payload)),
                    opcode => Event::Frame(opcode, payload),
                });
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            self.stream.set_patience(left);
            match read_more(&mut self.stream, &mut self.inbox) {
                Ok(0) => return Ok(Event::End),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Event::Nothing);
                }
                Err(_) => return Ok(Event::End),
            }
        }
    }

    /// The next frame of this opcode; others are passed over.
    pub fn frame(&mut self, wanted: u8) -> Result<Vec<u8>, Miss> {
        loop {
            match self.event(None)? {
                Event::Frame(opcode, payload) if opcode == wanted => return Ok(payload),
                Event::Frame(..) => {}
                other => return Err(Miss::Fail(format!("waited for a frame of opcode {wanted}, got {other:?}"))),
            }
        }
    }

    /// Waits for the reply to hello.
    pub fn hello_reply(&mut self) -> Result<Value, Miss> {
        let text = self.frame(frame::TEXT)?;
        let reply: Value = serde_json::from_slice(&text).map_err(|_| Miss::Fail("a text is not JSON".into()))?;
        ensure(reply["messageType"] == "hello", || format!("the first text is {reply}"))?;
        Ok(reply)
    }

    /// The code with which the server ends the connection; `None` without a close frame.
    pub fn end(&mut self) -> Result<Option<u16>, Miss> {
        loop {
            match self.event(None)? {
                Event::Frame(..) => {}
                Event::Close(code) => return Ok(Some(code)),
                Event::End => return Ok(None),
                Event::Nothing => return Err(Miss::Fail("the connection goes on".into())),
            }
        }
    }

    /// Checks that the server ends the connection.
    pub fn ends(&mut self) -> Answer {
        self.end().map(drop)
    }

    /// Checks that the server ends the connection with this code.
    pub fn ends_with(&mut self, code: u16) -> Answer {
        let end = self.end()?;
        ensure(end == Some(code), || format!("closed with {end:?}, not {code}"))
    }
}
