//! A third-party WebSocket client, over a stream that is the harness itself.

use std::io::{self, Read, Write};

use machine::{AgentEvent, CloseReason};
use runtime::ports::Port;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use super::*;

/// Stream that feeds the client's bytes to the edge, and returns the edge's bytes to the client.
struct Stream {
    harness: Harness,
    read: usize,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let written = self.harness.written();
        let length = buffer.len().min(written.len() - self.read);
        buffer[..length].copy_from_slice(&written[self.read..self.read + length]);
        self.read += length;
        if length == 0 && !self.harness.ended() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(length) }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.harness.feed(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn connect() -> WebSocket<Stream> {
    let stream = Stream { harness: Harness::new(Port::WebSocket), read: 0 };
    let (socket, response) = tungstenite::client("ws://localhost/", stream).unwrap();
    assert_eq!(response.status(), 101);
    socket
}

#[test]
fn a_session_of_tungstenite() {
    let mut socket = connect();
    socket.send(Message::text(r#"{"messageType":"hello","uaid":null}"#)).unwrap();
    let hello = socket.read().unwrap().into_text().unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&hello).unwrap()["status"], 200);
    socket.send(Message::Ping(b"x"[..].into())).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong(b"x"[..].into()));
    socket.get_mut().harness.emit(AgentEvent::Ping);
    assert_eq!(socket.read().unwrap(), Message::Ping(b""[..].into()));
    socket.send(Message::text("{}")).unwrap();
    assert_eq!(socket.read().unwrap().into_text().unwrap(), "{}");
    socket.close(None).unwrap();
    assert!(matches!(socket.read(), Ok(Message::Close(None))));
    assert!(socket.get_ref().harness.steps.contains(&Step::Closed(CloseReason::PeerClosed)));
}

#[test]
fn tungstenite_reads_our_goodbye() {
    let mut socket = connect();
    socket.send(Message::binary(vec![1])).unwrap();
    let Ok(Message::Close(Some(close))) = socket.read() else { panic!("no close frame") };
    assert_eq!((close.code, close.reason.as_str()), (CloseCode::Unsupported, "UnsupportedMessage"));
}
