//! The JSON messages of user agents (PROTOCOL.md 1.5), read from borrowed text.
//!
//! Two passes: one for `messageType`, one for the fields of that type, so that a field of another type may hold
//! anything, as unknown fields may.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::slice;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use machine::BroadcastVersion;
use machine::limits::{ACK_UPDATES_MAX, BROADCAST_SUBSCRIPTIONS_MAX};
use machine::message::Urgency;

use super::number::Whole;
use super::text;

/// One message of a user agent.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientMessage<'a> {
    /// First message of a session.
    Hello {
        /// The UAID it says it has; `None` when absent, empty or no UUID.
        uaid: Option<[u8; 16]>,
        /// The channels it says it has.
        channels: Option<Vec<[u8; 16]>>,
        /// Broadcasts to subscribe to.
        broadcasts: Vec<BroadcastVersion>,
    },
    /// Asks for an endpoint.
    Register {
        /// As sent; the caller checks the spelling.
        channel: Cow<'a, str>,
        /// VAPID public key as sent.
        key: Option<Cow<'a, str>>,
    },
    Unregister {
        channel: [u8; 16],
        /// Reason; 0 when absent.
        code: u32,
    },
    /// Notifications that it has seen.
    Ack(Acks<'a>),
    /// A service worker failed.
    Nack {
        /// 301 to 303, 0 for anything else.
        code: u32,
    },
    BroadcastSubscribe(Vec<BroadcastVersion>),
    /// Names the minimum urgency of its notifications.
    Urgency {
        /// `None` is none of the four words of RFC 8030 section 5.3.
        minimum: Option<Urgency>,
    },
    /// `{}` or `{"messageType":"ping"}`.
    Ping,
}

/// One entry of an ack.
#[derive(Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    /// The message id as sent.
    pub version: Cow<'a, str>,
    /// 100, 101 or 102; any other number reads as 100.
    pub code: u16,
}

/// The updates of an ack. Almost all have one, which needs no list.
#[derive(Debug)]
pub enum Acks<'a> {
    One(Ack<'a>),
    /// Any number, in the order in which they were sent.
    Many(Vec<Ack<'a>>),
}

impl<'a> Deref for Acks<'a> {
    type Target = [Ack<'a>];

    fn deref(&self) -> &[Ack<'a>] {
        match self {
            Acks::One(ack) => slice::from_ref(ack),
            Acks::Many(acks) => acks,
        }
    }
}

impl PartialEq for Acks<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Acks<'_> {}

/// Not a message of PROTOCOL.md 1.5: close 1011 `Json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage;

/// Reads one message.
pub fn read(message: &str) -> Result<ClientMessage<'_>, BadMessage> {
    match plain_ack(message) {
        Some(ack) => Ok(ClientMessage::Ack(Acks::One(ack))),
        None => parse(message).map_err(|_| BadMessage),
    }
}

/// The ack of one notification exactly as Firefox spells it: one comes for each notification, and needs neither a JSON
/// reader nor a list. `None` for everything else, which is read as any message.
fn plain_ack(message: &str) -> Option<Ack<'_>> {
    let rest = message.strip_prefix(r#"{"messageType":"ack","updates":[{"channelID":""#)?;
    let (channel, rest) = rest.split_at_checked(36)?;
    text::parse_uuid(channel.as_bytes())?;
    let rest = rest.strip_prefix(r#"","version":""#)?;
    let (version, rest) = rest.split_at(text::position(b'"', rest.as_bytes())?);
    if version.bytes().any(|byte| byte == b'\\' || byte < b' ') {
        return None;
    }
    let code = match rest.strip_prefix('"')?.strip_suffix("}]}")? {
        "" | r#","code":100"# => 100,
        r#","code":101"# => 101,
        r#","code":102"# => 102,
        _ => return None,
    };
    Some(Ack { version: Cow::Borrowed(version), code })
}

fn parse(message: &str) -> Result<ClientMessage<'_>, serde_json::Error> {
    // A struct may also be read from an array, which no message is.
    let inside = message.trim_matches(JSON_BLANKS).strip_prefix('{');
    let inside = inside.ok_or_else(|| serde_json::Error::custom("not an object"))?;
    if inside.trim_start_matches(JSON_BLANKS) == "}" {
        return Ok(ClientMessage::Ping);
    }
    let Tag { message_type } = serde_json::from_str(message)?;
    match &*message_type {
        "hello" => {
            let hello: Hello<'_> = serde_json::from_str(message)?;
            let uaid = hello.uaid.and_then(|uaid| text::parse_uuid(uaid.0.as_bytes()));
            let channels = hello.channels.map(|channels| channels.into_iter().map(|id| id.0).collect());
            Ok(ClientMessage::Hello { uaid, channels, broadcasts: hello.broadcasts.unwrap_or_default().0 })
        }
        "register" => {
            let register: Register<'_> = serde_json::from_str(message)?;
            Ok(ClientMessage::Register { channel: register.channel, key: register.key.map(|key| key.0) })
        }
        "unregister" => {
            let unregister: Unregister = serde_json::from_str(message)?;
            let code = u32::try_from(unregister.code.map_or(0, Whole::get));
            let code = code.map_err(|_| serde_json::Error::custom("not a code"))?;
            Ok(ClientMessage::Unregister { channel: unregister.channel.0, code })
        }
        "ack" => {
            let acks: AckFields<'_> = serde_json::from_str(message)?;
            Ok(ClientMessage::Ack(Acks::Many(acks.updates.0)))
        }
        "nack" => {
            let nack: Nack<'_> = serde_json::from_str(message)?;
            let _ = nack.version;
            let code = nack.code.map(Whole::to_u32).filter(|code| (301..=303).contains(code)).unwrap_or(0);
            Ok(ClientMessage::Nack { code })
        }
        "broadcast_subscribe" => {
            let subscribe: Subscribe = serde_json::from_str(message)?;
            Ok(ClientMessage::BroadcastSubscribe(subscribe.broadcasts.0))
        }
        "urgency" => {
            let MinUrgency { min } = serde_json::from_str(message)?;
            Ok(ClientMessage::Urgency { minimum: text::read_urgency_name(&min) })
        }
        "ping" => Ok(ClientMessage::Ping),
        _ => Err(serde_json::Error::custom("unknown messageType")),
    }
}

const JSON_BLANKS: [char; 4] = [' ', '\t', '\r', '\n'];

#[derive(Deserialize)]
struct Tag<'a> {
    #[serde(borrow, rename = "messageType")]
    message_type: Cow<'a, str>,
}

/// Serde borrows a `Cow` only as a field of its own; this one borrows inside an `Option`, too.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Hello<'a> {
    #[serde(borrow, default)]
    uaid: Option<Text<'a>>,
    #[serde(default, rename = "channelIDs")]
    channels: Option<Vec<Id>>,
    #[serde(default)]
    broadcasts: Option<Versions>,
}

#[derive(Deserialize)]
struct Register<'a> {
    #[serde(borrow, rename = "channelID")]
    channel: Cow<'a, str>,
    #[serde(borrow, default)]
    key: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Unregister {
    #[serde(rename = "channelID")]
    channel: Id,
    #[serde(default)]
    code: Option<Whole>,
}

#[derive(Deserialize)]
struct AckFields<'a> {
    #[serde(borrow)]
    updates: Bounded<'a>,
}

#[derive(Deserialize)]
struct Update<'a> {
    #[serde(rename = "channelID")]
    _channel: Checked,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default)]
    code: Option<Whole>,
}

#[derive(Deserialize)]
struct Nack<'a> {
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default)]
    code: Option<Whole>,
}

#[derive(Deserialize)]
struct MinUrgency<'a> {
    #[serde(borrow)]
    min: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Subscribe {
    broadcasts: Versions,
}

/// A UUID in any spelling.
pub(super) struct Id(pub(super) [u8; 16]);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        let text = Text::deserialize(deserializer)?;
        text::parse_uuid(text.0.as_bytes()).map(Id).ok_or_else(|| D::Error::custom("not a UUID"))
    }
}

/// A UUID that is only checked; a vector of these takes no memory.
struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Checked, D::Error> {
        Id::deserialize(deserializer).map(|_| Checked)
    }
}

/// Ack updates, at most `ACK_UPDATES_MAX`.
struct Bounded<'a>(Vec<Ack<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Bounded<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bounded<'a>, D::Error> {
        struct Updates<'a>(PhantomData<&'a ()>);
        impl<'de: 'a, 'a> Visitor<'de> for Updates<'a> {
            type Value = Bounded<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of updates")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bounded<'a>, A::Error> {
                let mut acks = Vec::with_capacity(1);
                while let Some(update) = seq.next_element::<Update<'a>>()? {
                    if acks.len() == ACK_UPDATES_MAX {
                        return Err(A::Error::custom("too many updates"));
                    }
                    let code = match update.code.map(Whole::get) {
                        Some(101) => 101,
                        Some(102) => 102,
                        _ => 100,
                    };
                    acks.push(Ack { version: update.version, code });
                }
                Ok(Bounded(acks))
            }
        }
        deserializer.deserialize_seq(Updates(PhantomData))
    }
}

/// Broadcast ids and versions, at most `BROADCAST_SUBSCRIPTIONS_MAX`; of an id named twice the last counts.
#[derive(Default)]
struct Versions(Vec<BroadcastVersion>);

impl<'de> Deserialize<'de> for Versions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Versions, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Versions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of broadcast versions")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Versions, A::Error> {
                let mut versions: Vec<BroadcastVersion> = Vec::new();
                while let Some((id, version)) = map.next_entry::<Box<str>, Box<str>>()? {
                    if let Some(known) = versions.iter_mut().find(|known| known.id == id) {
                        known.version = version;
                    } else if versions.len() == BROADCAST_SUBSCRIPTIONS_MAX {
                        return Err(A::Error::custom("too many broadcasts"));
                    } else {
                        versions.push(BroadcastVersion { id, version });
                    }
                }
                Ok(Versions(versions))
            }
        }
        deserializer.deserialize_map(Map)
    }
}

#[cfg(test)]
mod tests;
