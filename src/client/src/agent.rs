//! A user agent on one connection: the messages of PROTOCOL.md 1.4 to 1.6 over the WebSocket client of tungstenite.

use std::fmt;
use std::io::{self, ErrorKind, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::Message;
use tungstenite::http::StatusCode;
use tungstenite::protocol::{WebSocket, WebSocketConfig};

use super::stream::Stream;
use protocol::wire::base64url;

/// The longest message that a user agent reads.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// An event of the connection.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// The JSON of a text frame.
    Message(Value),
    /// A close frame with this code; 1005 when it has none.
    Close(u16),
    /// The end of the stream without a close frame.
    End,
    /// Nothing in time.
    Nothing,
}

/// A notification.
#[derive(Debug, Clone)]
pub struct Note {
    /// `channelID`.
    pub channel: String,
    /// `version`, the message id that an ack names.
    pub version: String,
    /// `data`, decoded; empty when there is none.
    pub body: Vec<u8>,
    /// `headers`; null when there are none.
    pub headers: Value,
    pub message: Value,
}

impl Note {
    /// Reads a notification; `None` for any other message, and for data that is not base64url.
    pub fn read(message: Value) -> Option<Note> {
        let body = base64url::decode(message["data"].as_str().unwrap_or_default().as_bytes())?;
        let (channel, version) = (text(&message, "channelID"), text(&message, "version"));
        let headers = message["headers"].clone();
        (message["messageType"] == "notification").then_some(Note { channel, version, body, headers, message })
    }

    /// Empty when the body is not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_default()
    }
}

/// Status of a response that is no upgrade.
#[derive(Debug)]
pub struct NotUpgraded(pub StatusCode);

impl fmt::Display for NotUpgraded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the upgrade was answered with {}", self.0)
    }
}

impl std::error::Error for NotUpgraded {}

/// A user agent on one connection.
pub struct Agent {
    socket: WebSocket<Stream>,
    /// Most messages of other types that may come before an awaited one.
    strays_max: usize,
}

impl Agent {
    /// Connects without TLS and upgrades.
    ///
    /// # Errors
    /// No connection, or no upgrade.
    pub fn connect(address: SocketAddr) -> io::Result<Agent> {
        Agent::upgrade(&format!("ws://{address}/"), Stream::connect(address)?)
    }

    /// Upgrades this connection to the server of `url`.
    ///
    /// # Errors
    /// The server does not upgrade; [`NotUpgraded`] if it answers with another status.
    pub fn upgrade(url: &str, stream: Stream) -> io::Result<Agent> {
        use tungstenite::HandshakeError::{Failure, Interrupted};
        let limits = WebSocketConfig::default()
            .read_buffer_size(16 * 1024)
            .write_buffer_size(0)
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let (socket, _) =
            tungstenite::client::client_with_config(url, stream, Some(limits)).map_err(|error| match error {
                Failure(tungstenite::Error::Http(response)) => io::Error::other(NotUpgraded(response.status())),
                Failure(error) => explained(error),
                Interrupted(_) => ErrorKind::TimedOut.into(),
            })?;
        Ok(Agent { socket, strays_max: 0 })
    }

    /// Sets how many messages of other types, such as broadcasts, may come before an awaited one; 0 by default.
    pub fn pass_over(&mut self, strays_max: usize) {
        self.strays_max = strays_max;
    }

    /// Sends a hello and returns the UAID of its reply.
    ///
    /// # Errors
    /// No reply, or a refusal.
    pub fn hello(&mut self, uaid: Option<&str>) -> io::Result<String> {
        let hello = json!({"messageType": "hello", "use_webpush": true, "uaid": uaid.unwrap_or("")});
        Ok(text(&self.request(&hello)?, "uaid"))
    }

    /// Registers a channel, locked to this key if there is one, and returns its endpoint URL.
    ///
    /// # Errors
    /// No reply, or a refusal.
    pub fn register(&mut self, channel: &str, key: Option<&str>) -> io::Result<String> {
        let mut register = json!({"messageType": "register", "channelID": channel});
        if let Some(key) = key {
            register["key"] = json!(key);
        }
        let reply = self.request(&register)?;
        match reply["pushEndpoint"].as_str() {
            Some(url) if reply["channelID"] == channel => Ok(url.to_owned()),
            _ => Err(io::Error::other(format!("register was answered with {reply}"))),
        }
    }

    /// Unregisters a channel.
    ///
    /// # Errors
    /// No reply, or a refusal.
    pub fn unregister(&mut self, channel: &str) -> io::Result<()> {
        let reply = self.request(&json!({"messageType": "unregister", "channelID": channel, "code": 200}))?;
        match reply["channelID"] == channel {
            true => Ok(()),
            false => Err(io::Error::other(format!("unregister was answered with {reply}"))),
        }
    }

    /// Sends an unregister without waiting for its reply, within this time also after the end of all calls: the session
    /// has failed, and its user would stay at the server.
    pub fn give_up(&mut self, channel: &str, within: Duration) {
        self.socket.get_mut().prolong(Instant::now() + within);
        // The server may be gone already.
        let _ = self.send(&json!({"messageType": "unregister", "channelID": channel, "code": 200}));
    }

    /// Sends a request. Returns its reply, which must have the same type and status 200.
    fn request(&mut self, request: &Value) -> io::Result<Value> {
        let kind = text(request, "messageType");
        self.send(request)?;
        let reply = self.receive_type(&kind)?;
        match reply["status"] == 200 {
            true => Ok(reply),
            false => Err(io::Error::other(format!("{kind} was answered with status {}", reply["status"]))),
        }
    }

    /// Waits for a notification, as [`Agent::receive_type`].
    ///
    /// # Errors
    /// Another event arrived.
    pub fn note(&mut self) -> io::Result<Note> {
        let message = self.receive_type("notification")?;
        Note::read(message).ok_or_else(|| io::Error::other("data is not base64url"))
    }

    /// Acks these notifications.
    ///
    /// # Errors
    /// The connection ended.
    pub fn ack<'a>(&mut self, notes: impl IntoIterator<Item = &'a Note>) -> io::Result<()> {
        let update = |note: &Note| json!({"channelID": note.channel, "version": note.version, "code": 100});
        let updates: Vec<Value> = notes.into_iter().map(update).collect();
        self.send(&json!({"messageType": "ack", "updates": updates}))
    }

    /// Sends one message.
    ///
    /// # Errors
    /// The connection ended.
    pub fn send(&mut self, message: &Value) -> io::Result<()> {
        self.send_text(&message.to_string())
    }

    /// Sends one text, which need not be JSON.
    ///
    /// # Errors
    /// The connection ended.
    pub fn send_text(&mut self, text: &str) -> io::Result<()> {
        self.socket.send(Message::text(text)).map_err(explained)
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The connection ended.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.get_mut().write_all(bytes)
    }

    /// Waits for the next event. Pings are answered and passed over.
    ///
    /// # Errors
    /// The server broke the rules of WebSocket or JSON.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Received> {
        let until = Instant::now() + patience.max(Duration::from_millis(1));
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            self.socket.get_mut().set_patience(Some(left));
            let read = self.socket.read();
            self.socket.get_mut().set_patience(None);
            match read {
                Ok(Message::Text(text)) => return Ok(Received::Message(serde_json::from_str(&text)?)),
                Ok(Message::Close(frame)) => return Ok(Received::Close(frame.map_or(1005, |frame| frame.code.into()))),
                Ok(_) => {}
                Err(error) => match explained(error) {
                    error if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        return Ok(Received::Nothing);
                    }
                    error if ENDS.contains(&error.kind()) => return Ok(Received::End),
                    error => return Err(error),
                },
            }
        }
    }

    /// Waits for a message of this type. Up to `strays_max` other messages may come before it.
    ///
    /// # Errors
    /// Another event arrived, or none in time.
    pub fn receive_type(&mut self, kind: &str) -> io::Result<Value> {
        let patience = self.socket.get_ref().usual_patience();
        let mut received = self.receive(patience)?;
        for _ in 0..self.strays_max {
            match received {
                Received::Message(message) if message["messageType"] != kind => received = self.receive(patience)?,
                _ => break,
            }
        }
        match received {
            Received::Message(message) if message["messageType"] == kind => Ok(message),
            Received::Nothing => Err(ErrorKind::TimedOut.into()),
            Received::End => Err(ErrorKind::UnexpectedEof.into()),
            Received::Close(code) => {
                Err(io::Error::other(format!("the server closed with {code} instead of sending {kind}")))
            }
            other => Err(io::Error::other(format!("waited for {kind}, got {other:?}"))),
        }
    }

    /// Closes as a browser does: close frame, the server's answer, FIN.
    ///
    /// # Errors
    /// The connection ended before.
    pub fn close(mut self) -> io::Result<()> {
        self.socket.close(None).map_err(explained)?;
        let patience = self.socket.get_ref().usual_patience();
        while !matches!(self.receive(patience)?, Received::End | Received::Nothing) {}
        Ok(())
    }

    /// Sends a close frame and leaves, without waiting for the server's answer.
    ///
    /// # Errors
    /// The connection ended before.
    pub fn leave(mut self) -> io::Result<()> {
        self.socket.close(None).map_err(explained)
    }

    /// Closes as a crashed host does: RST, and everything in flight is lost.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn reset(self) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_linger(self.socket.get_ref().socket(), Some(Duration::ZERO))?)
    }
}

/// Errors that are the end of a connection.
const ENDS: [ErrorKind; 3] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];

fn explained(error: tungstenite::Error) -> io::Error {
    use tungstenite::error::ProtocolError::ResetWithoutClosingHandshake;
    match error {
        tungstenite::Error::Io(error) => error,
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Protocol(ResetWithoutClosingHandshake) => ErrorKind::UnexpectedEof.into(),
        other => io::Error::other(other),
    }
}

fn text(message: &Value, key: &str) -> String {
    message[key].as_str().unwrap_or_default().to_owned()
}

/// Returns a random channel id.
pub fn channel_id() -> String {
    uuid::Uuid::new_v4().to_string()
}
