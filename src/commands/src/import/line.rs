//! One line: a user as JSON, of another service or of an export, and the same user as the stores of murre keep it.
//!
//! Reasons never show text of the line: a UAID is a bearer secret.

use std::collections::BTreeMap;
use std::sync::Arc;

use machine::RECORD_VERSION;
use machine::ids::{Chid, Clock, KeyDigest, Origin, Stamp, Uaid};
use machine::limits;
use machine::message::{Message, Urgency};
use machine::simplepush::Contact;
use machine::time::UnixSeconds;
use serde::{Deserialize, Serialize};

use super::own::{Own, exact_clock};
use super::router::{self, OtherRouter};
use protocol::webpush::headers::{Encryption, TTL_MAX, read_topic, read_urgency};
use protocol::webpush::key::{key_digest, parse_point, sha256};
use protocol::webpush::payload::Draft;
use protocol::wire::{base64url, text};
use store::IDLE_SECONDS_MAX;
use store::transfer::{Channel, IncomingUser, WholeUser};

/// Times before this are no milliseconds since 1970, or seconds by mistake: 1973.
const MILLISECONDS_MIN: u64 = 100_000_000_000;
/// Above this a sort key counts microseconds, as those of old do (docs/MIGRATING.md): the year 33658 in milliseconds.
const MILLISECONDS_MAX: u64 = 1_000_000_000_000_000;
/// Largest lead of the other service's clock over this host's clock.
const SKEW_SECONDS_MAX: u64 = 30;
/// Largest lead of the clocks of an export over this host's clock. They stay ahead after a host clock that was; a
/// damaged one would push all later stamps ahead.
const OWN_LEAD_SECONDS_MAX: u64 = 366 * 86_400;

/// A line as it is written (docs/MIGRATING.md). Unknown members are ignored: a dump may have more columns.
#[derive(Serialize, Deserialize)]
pub(crate) struct Line {
    uaid: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    router_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    router_data: Option<serde_json::Value>,
    #[serde(default)]
    record_version: Option<u64>,
    connected_at: u64,
    #[serde(default, skip_serializing)]
    current_timestamp: Option<u64>,
    channels: Vec<ChannelForm>,
    #[serde(default, skip_serializing)]
    messages: Option<Vec<MessageForm>>,
    #[serde(default)]
    murre: Option<Own>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ChannelForm {
    Plain(String),
    Full {
        chid: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(default)]
        registered_at: Option<u64>,
    },
}

#[derive(Deserialize)]
struct MessageForm {
    #[serde(alias = "channelID")]
    chid: String,
    ttl: u64,
    timestamp: u64,
    #[serde(default)]
    sortkey_timestamp: Option<u64>,
    #[serde(default)]
    topic: Option<String>,
    #[serde(default)]
    urgency: Option<String>,
    #[serde(default)]
    headers: Option<HeadersForm>,
    #[serde(default)]
    data: Option<String>,
}

#[derive(Deserialize, Default)]
struct HeadersForm {
    #[serde(default)]
    encoding: Option<String>,
    #[serde(default)]
    encryption: Option<String>,
    #[serde(default)]
    crypto_key: Option<String>,
    #[serde(default)]
    encryption_key: Option<String>,
}

/// Result of a good line.
#[derive(Debug)]
pub(super) enum Parsed {
    /// A user that is reached in another way than by WebSocket, FCM or APNs.
    OtherRouter(OtherRouter),
    /// A user of another record version: the server would reset it at its next hello.
    OtherVersion,
    /// A user that the server would drop at once.
    Idle,
    User(Box<ParsedUser>),
}

/// A user, and the numbers of its messages that were not taken.
#[derive(Debug)]
pub(super) struct ParsedUser {
    pub(super) coming: IncomingUser,
    pub(super) expired: u64,
    /// Messages at or below the read pointer.
    pub(super) read_before: u64,
    /// Messages of channels that the user does not have.
    pub(super) unsubscribed: u64,
}

impl Line {
    /// Returns the line of this user with these rows (`encode_row`). `more` says that further lines of the user follow.
    pub(crate) fn of(user: &WholeUser, rows: Vec<String>, more: bool) -> Line {
        let channel = |channel: &Channel| ChannelForm::Full {
            chid: hexadecimal(&channel.chid.0),
            key: channel.key.map(|key| hexadecimal(&key.0)),
            registered_at: Some(channel.registered_at.0),
        };
        Line {
            uaid: hexadecimal(&user.uaid.0),
            router_type: user.contact.bridge.as_ref().map(|bridge| router::type_name(bridge.kind).to_owned()),
            router_data: user.contact.bridge.as_deref().map(router::data),
            record_version: Some(user.record_version.into()),
            connected_at: user.seen.0.saturating_mul(1_000),
            current_timestamp: None,
            channels: user.channels.iter().map(channel).collect(),
            messages: None,
            murre: Some(Own::of(user, rows, more)),
        }
    }

    /// Reads JSON. The error is the reason why it is not such a line.
    pub(super) fn parse(bytes: &[u8]) -> Result<Line, String> {
        serde_json::from_slice(bytes).map_err(|error| {
            if error.is_data() { without_values(&error.to_string()) } else { format!("no JSON: {error}") }
        })
    }

    /// Returns the user as the stores of murre keep it. The error is the reason why that is impossible.
    pub(super) fn into_user(self, now: UnixSeconds) -> Result<Parsed, String> {
        let uaid = Uaid(id(&self.uaid, "uaid")?);
        let router = match router::read_type(self.router_type.as_deref()) {
            Ok(router) => router,
            Err(other) => return Ok(Parsed::OtherRouter(other)),
        };
        // A bridged user says no hello, which alone resets others.
        if router.is_none() && self.record_version.is_some_and(|version| version != u64::from(RECORD_VERSION)) {
            return Ok(Parsed::OtherVersion);
        }
        let own = self.murre.as_ref().map(Own::of_known_version).transpose()?;
        let latest = UnixSeconds(now.0 + if own.is_some() { OWN_LEAD_SECONDS_MAX } else { SKEW_SECONDS_MAX });
        let connected_at = clock(self.connected_at, "connected_at", latest)?;
        let seen = UnixSeconds((connected_at.0 / 1_000_000).min(now.0));
        let mut channels = BTreeMap::new();
        for form in &self.channels {
            let channel = form.channel(connected_at, latest, if own.is_some() { exact_clock } else { clock })?;
            // The first entry of a channel counts.
            channels.entry(channel.chid).or_insert(channel);
        }
        if channels.len() > limits::CHANNELS_MAX {
            return Err(format!("{} channels, a user may have {}", channels.len(), limits::CHANNELS_MAX));
        }
        if now.0.saturating_sub(seen.0) >= IDLE_SECONDS_MAX {
            return Ok(Parsed::Idle);
        }
        let user_clock = channels.values().map(|channel| channel.registered_at).max().unwrap_or(connected_at);
        let read = |kind| router::read_data(kind, self.router_data.as_ref(), connected_at);
        let bridge = router.map(read).transpose()?.map(Box::new);
        let user = WholeUser {
            uaid,
            record_version: RECORD_VERSION,
            seen,
            low_water: Clock(0),
            user_clock,
            may_have_messages: false,
            contact: Contact { bridge, ..Contact::default() },
            channels: channels.into_values().collect(),
        };
        let coming = IncomingUser { user, rows: Vec::new(), more: false };
        let mut found = ParsedUser { coming, expired: 0, read_before: 0, unsubscribed: 0 };
        let pointer = self.current_timestamp.map(microseconds);
        for (at, form) in self.messages.unwrap_or_default().iter().enumerate() {
            let message = form.message(uaid, latest).map_err(|reason| format!("message {}: {reason}", at + 1))?;
            found.take(message, pointer, now);
        }
        if let Some(own) = own {
            own.complete(&mut found.coming, latest)?;
            for (at, row) in own.rows.iter().enumerate() {
                let message = Own::message(row, uaid, latest).map_err(|reason| format!("row {}: {reason}", at + 1))?;
                found.take(message, None, now);
            }
        }
        Ok(Parsed::User(Box::new(found)))
    }
}

impl ParsedUser {
    fn take(&mut self, message: Message, pointer: Option<u64>, now: UnixSeconds) {
        let has = |chid| self.coming.user.channels.binary_search_by_key(&chid, |channel| channel.chid).is_ok();
        if message.expired(now) {
            self.expired += 1;
        } else if message.topic.is_none() && pointer.is_some_and(|pointer| message.stamp.clock.0 <= pointer) {
            self.read_before += 1;
        } else if !has(message.chid) {
            self.unsubscribed += 1;
        } else {
            self.coming.rows.push(Arc::new(message));
        }
    }
}

impl ChannelForm {
    fn channel(&self, connected_at: Clock, latest: UnixSeconds, read: ReadClock) -> Result<Channel, String> {
        let (chid, key, registered_at) = match self {
            ChannelForm::Plain(chid) => (chid, None, None),
            ChannelForm::Full { chid, key, registered_at } => (chid, key.as_deref(), *registered_at),
        };
        let chid = Chid(id(chid, "chid")?);
        let key = key.map(|key| digest(key).ok_or("the key of a channel is neither a VAPID public key nor a digest"));
        let registered_at = match registered_at {
            Some(at) => read(at, "registered_at", latest)?,
            None => connected_at,
        };
        Ok(Channel { chid, key: key.transpose()?, registered_at })
    }
}

impl MessageForm {
    fn message(&self, uaid: Uaid, latest: UnixSeconds) -> Result<Message, String> {
        let chid = Chid(id(&self.chid, "chid")?);
        let topic = match self.topic.as_deref() {
            None | Some("") => None,
            Some(text) => Some(read_topic(text.as_bytes()).ok_or("its topic is none (RFC 8030 section 5.4)")?),
        };
        let accepted = clock(self.timestamp.saturating_mul(1_000), "timestamp (in seconds)", latest)?;
        // 0 is no sort key (docs/MIGRATING.md), and a message with a topic has none.
        let sorted = self.sortkey_timestamp.filter(|sortkey| *sortkey > 0 && topic.is_none());
        let clock = match sorted {
            Some(sortkey) => clock(sortkey, "sortkey_timestamp", latest)?,
            None => accepted,
        };
        let payload = self.payload()?;
        // The same line gives the same stamp, so that an import that is run again writes the same rows.
        let name = [&chid.0[..], topic.as_ref().map_or(&[][..], |topic| topic.as_bytes()), &[0], &payload[..]].concat();
        let [a, b, c, d, ..] = sha256(&name);
        Ok(Message {
            uaid,
            chid,
            stamp: Stamp { clock, origin: Origin(u32::from_be_bytes([a, b, c, d])) },
            ttl: self.ttl.min(u64::from(TTL_MAX)) as u32,
            accepted: UnixSeconds(accepted.0 / 1_000_000),
            urgency: self.urgency.as_deref().map_or(Urgency::Normal, |text| read_urgency(text.as_bytes())),
            topic,
            receipt: false,
            tries: Default::default(),
            payload,
        })
    }

    fn payload(&self) -> Result<Box<[u8]>, String> {
        let none = HeadersForm::default();
        let form = self.headers.as_ref().unwrap_or(&none);
        let bytes = |text: &'_ Option<String>| text.as_ref().map(|text| text.as_bytes().to_vec());
        let kept = [&form.encoding, &form.encryption, &form.crypto_key, &form.encryption_key].map(bytes);
        let [encoding, encryption, crypto_key, encryption_key] = kept.each_ref().map(|text| text.as_deref());
        let headers = Encryption { encoding, encryption, crypto_key, encryption_key };
        let body = match self.data.as_deref().unwrap_or("").trim_end_matches('=') {
            "" => Vec::new(),
            data => base64url::decode(data.as_bytes()).ok_or("its data is not base64url")?,
        };
        let mut draft = Draft::new(&headers, body.len());
        draft.extend(&body);
        draft.verdict().map_err(|_| "its encryption headers do not fit its encoding")?;
        draft.finish().map_err(|_| format!("headers and data have more than {} bytes", limits::PAYLOAD_BYTES_MAX))
    }
}

/// A UUID in any spelling.
fn id(spelled: &str, name: &str) -> Result<[u8; 16], String> {
    text::parse_uuid(spelled.as_bytes()).ok_or_else(|| format!("{name} is not a UUID"))
}

/// A VAPID public key as base64url, or its SHA-256 as 64 hex digits.
fn digest(spelled: &str) -> Option<KeyDigest> {
    if let Some(point) = parse_point(spelled.as_bytes()) {
        return Some(key_digest(&point));
    }
    let mut digest = [0; 32];
    let pairs = spelled.as_bytes().chunks(2);
    if spelled.len() != 64 {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(KeyDigest(digest))
}

fn microseconds(time: u64) -> u64 {
    if time >= MILLISECONDS_MAX { time } else { time * 1_000 }
}

/// Reads a time of a line that is named so and may not be after the last argument.
type ReadClock = fn(u64, &str, UnixSeconds) -> Result<Clock, String>;

/// Converts a time of the other service to a [`Clock`].
fn clock(time: u64, name: &str, latest: UnixSeconds) -> Result<Clock, String> {
    if time < MILLISECONDS_MIN {
        return Err(format!("{name} is not milliseconds since 1970"));
    }
    exact_clock(microseconds(time), name, latest)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Removes the quoted texts of the line from a message of serde.
fn without_values(said: &str) -> String {
    let mut shown = String::new();
    for (at, part) in said.split('"').enumerate() {
        shown.push_str(if at % 2 == 1 { "\"..\"" } else { part });
    }
    shown
}
