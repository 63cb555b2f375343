//! One user agent that blocks: for tests and scenarios with few clients, where the exact sequence matters.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use protocol::wire::url::HttpUrl;
use serde_json::{Value, json};
use socket2::SockRef;

use crate::frame;
use crate::http::{self, Client, PATIENCE, Response, read_more};

/// What came from the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// A text frame's JSON.
    Message(Value),
    /// A close frame with this code; 1005 when it has none.
    Close(u16),
    /// The end of the stream without a close frame.
    End,
    /// Nothing in time.
    Nothing,
}

/// A user agent on one blocking socket.
pub struct Agent {
    stream: TcpStream,
    inbox: Vec<u8>,
}

/// A notification as the agent got it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// `channelID`.
    pub channel: String,
    /// `version`, what an ack names.
    pub version: String,
    /// `data` as sent, base64url.
    pub data: String,
}

impl Note {
    /// Reads a notification; `None` for any other message.
    pub fn read(message: &Value) -> Option<Note> {
        let notification = message["messageType"] == "notification";
        let field = |key| text(message, key);
        notification.then(|| Note { channel: field("channelID"), version: field("version"), data: field("data") })
    }
}

impl Agent {
    /// Connects and upgrades.
    pub fn connect(address: SocketAddr) -> io::Result<Agent> {
        let mut agent = Agent::raw(address)?;
        agent.stream.write_all(&upgrade_request(&address.to_string()))?;
        agent.finish_upgrade()?;
        Ok(agent)
    }

    /// Connects and sends nothing.
    pub fn raw(address: SocketAddr) -> io::Result<Agent> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Agent { stream, inbox: Vec::new() })
    }

    /// Reads the answer to an upgrade; anything but 101 is an error.
    pub fn finish_upgrade(&mut self) -> io::Result<()> {
        loop {
            if let Some((response, used)) = http::parse(&self.inbox).map_err(io::Error::other)? {
                self.inbox.drain(..used);
                return match response.status {
                    101 => Ok(()),
                    other => Err(io::Error::other(format!("upgrade answered {other}"))),
                };
            }
            if self.fill()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Says hello and returns the UAID of the answer.
    pub fn hello(&mut self, uaid: Option<&str>) -> io::Result<String> {
        self.send(&json!({"messageType": "hello", "use_webpush": true, "uaid": uaid.unwrap_or("")}))?;
        let answer = self.expect("hello")?;
        Ok(text(&answer, "uaid"))
    }

    /// Registers a channel and returns its endpoint URL.
    pub fn register(&mut self, channel: &str, key: Option<&str>) -> io::Result<String> {
        let mut request = json!({"messageType": "register", "channelID": channel});
        if let Some(key) = key {
            request["key"] = json!(key);
        }
        self.send(&request)?;
        let answer = self.expect("register")?;
        match answer["status"].as_u64() {
            Some(200) => Ok(text(&answer, "pushEndpoint")),
            _ => Err(io::Error::other(format!("register answered {answer}"))),
        }
    }

    /// The next notification within [`PATIENCE`]; anything else is an error.
    pub fn note(&mut self) -> io::Result<Note> {
        let answer = self.expect("notification")?;
        Note::read(&answer).ok_or_else(|| io::Error::other("not a notification"))
    }

    /// Acks these.
    pub fn ack<'a>(&mut self, notes: impl IntoIterator<Item = &'a Note>) -> io::Result<()> {
        let update = |note: &Note| json!({"channelID": note.channel, "version": note.version, "code": 100});
        let updates: Vec<Value> = notes.into_iter().map(update).collect();
        self.send(&json!({"messageType": "ack", "updates": updates}))
    }

    /// Sends one text frame.
    pub fn send(&mut self, message: &Value) -> io::Result<()> {
        self.send_frame(frame::TEXT, message.to_string().as_bytes())
    }

    /// Sends one frame of any kind.
    pub fn send_frame(&mut self, opcode: u8, payload: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        frame::push(&mut out, opcode, payload);
        self.stream.write_all(&out)
    }

    /// Sends bytes as they are.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next thing the server says within `patience`; pings are answered and skipped.
    pub fn receive(&mut self, patience: Duration) -> io::Result<Received> {
        self.stream.set_read_timeout(Some(patience.max(Duration::from_millis(1))))?;
        loop {
            while let Some(frame) = frame::parse(&self.inbox).map_err(io::Error::other)? {
                let payload = self.inbox[frame.start..frame.end].to_vec();
                self.inbox.drain(..frame.end);
                match frame.opcode {
                    frame::TEXT => return Ok(Received::Message(serde_json::from_slice(&payload)?)),
                    frame::CLOSE => return Ok(Received::Close(frame::close_code(&payload))),
                    frame::PING => self.send_frame(frame::PONG, &payload)?,
                    _ => {}
                }
            }
            match self.fill() {
                Ok(0) => return Ok(Received::End),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Ok(Received::Nothing);
                }
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(Received::End),
                Err(error) => return Err(error),
            }
        }
    }

    /// The next message, which must be of this type.
    pub fn expect(&mut self, kind: &str) -> io::Result<Value> {
        match self.receive(PATIENCE)? {
            Received::Message(message) if message["messageType"] == kind => Ok(message),
            other => Err(io::Error::other(format!("waited for {kind}, got {other:?}"))),
        }
    }

    /// A close as a browser does it: close frame, wait for the answer, FIN.
    pub fn close(mut self) -> io::Result<()> {
        self.send_frame(frame::CLOSE, &1000u16.to_be_bytes())?;
        while !matches!(self.receive(PATIENCE)?, Received::Close(_) | Received::End | Received::Nothing) {}
        Ok(())
    }

    /// A close as a crashed host does it: RST, whatever was under way is lost.
    pub fn reset(self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    fn fill(&mut self) -> io::Result<usize> {
        read_more(&mut self.stream, &mut self.inbox)
    }
}

fn text(message: &Value, key: &str) -> String {
    message[key].as_str().unwrap_or("").to_owned()
}

/// The upgrade request of a user agent.
pub fn upgrade_request(host: &str) -> Vec<u8> {
    format!(
        "GET / HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\n\r\n"
    )
    .into_bytes()
}

/// A fresh channel id.
pub fn channel_id() -> String {
    uuid::Uuid::new_v4().to_string()
}

/// POSTs `body` to an endpoint URL over `client`, with these headers beside TTL.
pub fn post(client: &mut Client, url: &str, ttl: u32, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Response> {
    let url = HttpUrl::parse(url).ok_or_else(|| io::Error::other(format!("not an endpoint URL: {url}")))?;
    let ttl = ttl.to_string();
    let mut all = vec![("TTL", ttl.as_str())];
    if !body.is_empty() {
        all.push(("Content-Encoding", "aes128gcm"));
    }
    all.extend_from_slice(headers);
    client.exchange(&http::request("POST", &url.origin().authority(), url.target(), &all, body))
}
