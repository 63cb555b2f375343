//! The user agent of the probe: the messages of PROTOCOL.md 1.5 and 1.6 over tungstenite's client.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::{Message, WebSocket, WebSocketConfig};

use super::Failure;
use super::deadline::Deadline;
use super::post;
use super::tls::{Trust, Wire};

/// A session.
pub struct Agent {
    socket: WebSocket<Wire>,
    channel: String,
}

/// A notification as it arrived.
#[derive(Debug)]
pub struct Notification {
    /// The message id to ack.
    pub version: String,
    /// The body.
    pub data: Vec<u8>,
}

/// The largest message the probe takes, and how many it looks at while waiting for one.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
const MESSAGES_MAX: usize = 64;

impl Agent {
    /// Connects and upgrades.
    pub fn connect(url: &str, trust: &Trust, deadline: Deadline) -> Result<Agent, Failure> {
        let http = url.strip_prefix("ws").filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
        let http = http.ok_or_else(|| Failure::new(format!("{url} does not begin with ws:// or wss://")))?;
        let at = post::url(&format!("http{http}"))?;
        let request = url.into_client_request().map_err(|e| Failure::new(format!("{url}: {e}")))?;
        let stream = trust.connect(at.origin(), at.origin(), deadline)?;
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let (socket, _) =
            tungstenite::client::client_with_config(request, stream, Some(limits)).map_err(|e| match e {
                tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response)) => {
                    Failure::new(format!("the upgrade was answered with {}", response.status()))
                }
                tungstenite::HandshakeError::Failure(error) => explained(error),
                tungstenite::HandshakeError::Interrupted(_) => Failure::new("no answer in time"),
            })?;
        Ok(Agent { socket, channel: uuid::Uuid::new_v4().to_string() })
    }

    /// hello as a new user agent.
    pub fn hello(&mut self) -> Result<(), Failure> {
        self.say(&json!({ "messageType": "hello", "use_webpush": true }))?;
        let reply = self.receive("hello")?;
        let uaid = reply["uaid"].as_str().unwrap_or_default();
        if reply["status"] != 200 || uaid.len() != 32 {
            return Err(Failure::new(format!("hello was answered with status {}", reply["status"])));
        }
        Ok(())
    }

    /// register with the key of the sender; the endpoint URL.
    pub fn register(&mut self, key: &str) -> Result<String, Failure> {
        self.say(&json!({ "messageType": "register", "channelID": self.channel, "key": key }))?;
        let reply = self.receive("register")?;
        if reply["status"] != 200 || reply["channelID"] != self.channel.as_str() {
            return Err(Failure::new(format!("register was answered with status {}", reply["status"])));
        }
        reply["pushEndpoint"].as_str().map(str::to_string).ok_or_else(|| Failure::new("register gave no pushEndpoint"))
    }

    /// The notification with this message id.
    pub fn notification(&mut self, message_id: &str) -> Result<Notification, Failure> {
        let message = self.receive("notification")?;
        let version = message["version"].as_str().unwrap_or_default().to_string();
        if message["channelID"] != self.channel.as_str() {
            return Err(Failure::new("a notification of another channel came"));
        }
        if version != message_id {
            return Err(Failure::new("the notification's version is not the id in Location"));
        }
        if message["headers"]["encoding"] != "aes128gcm" {
            return Err(Failure::new(format!("headers.encoding is {}", message["headers"]["encoding"])));
        }
        let data = URL_SAFE_NO_PAD.decode(message["data"].as_str().unwrap_or_default());
        Ok(Notification { version, data: data.map_err(|_| Failure::new("data is not unpadded base64url"))? })
    }

    /// Acks; there is no answer.
    pub fn ack(&mut self, version: &str) -> Result<(), Failure> {
        let update = json!({ "channelID": self.channel, "version": version, "code": 100 });
        self.say(&json!({ "messageType": "ack", "updates": [update] }))
    }

    /// unregister and its reply, so that the probe leaves no channel behind.
    pub fn unregister(&mut self) -> Result<(), Failure> {
        self.say(&json!({ "messageType": "unregister", "channelID": self.channel, "code": 200 }))?;
        let reply = self.receive("unregister")?;
        if reply["status"] != 200 {
            return Err(Failure::new(format!("unregister was answered with status {}", reply["status"])));
        }
        // A courtesy: the server may be gone already.
        let _ = self.socket.close(None);
        Ok(())
    }

    fn say(&mut self, message: &Value) -> Result<(), Failure> {
        self.socket.send(Message::text(message.to_string())).map_err(explained)
    }

    /// The next message of this type; a bounded number of others (broadcasts, a stray notification) is passed over.
    fn receive(&mut self, wanted: &str) -> Result<Value, Failure> {
        for _ in 0..MESSAGES_MAX {
            match self.socket.read().map_err(explained)? {
                Message::Text(text) => {
                    let value: Value =
                        serde_json::from_str(&text).map_err(|_| Failure::new("the server sent no JSON"))?;
                    if value["messageType"] == wanted {
                        return Ok(value);
                    }
                }
                Message::Close(frame) => {
                    let code = frame.map_or(1005, |f| u16::from(f.code));
                    return Err(Failure::new(format!("the server closed with {code} instead of sending {wanted}")));
                }
                _ => {}
            }
        }
        Err(Failure::new(format!("{MESSAGES_MAX} messages came, none of them {wanted}")))
    }
}

fn explained(error: tungstenite::Error) -> Failure {
    match error {
        tungstenite::Error::Io(error) => error.into(),
        other => Failure::new(other.to_string()),
    }
}
