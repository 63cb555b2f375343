//! The member `murre` of a line: the exact state of a user that murre exported, as far as other members lack it.

use machine::ids::{Clock, Uaid};
use machine::limits::PAYLOAD_BYTES_MAX;
use machine::message::{Message, Topic};
use machine::simplepush::{Contact, Mode, WakeData};
use machine::time::UnixSeconds;
use serde::{Deserialize, Serialize};

use protocol::webpush::headers::{TTL_MAX, read_topic};
use protocol::wire::base64url;
use protocol::wire::text::{read_urgency_name, urgency_name};
use store::transfer::{IncomingUser, WholeUser};

/// Version of these members; a change of their meaning raises it.
const VERSION: u8 = 1;

#[derive(Serialize, Deserialize)]
pub(super) struct Own {
    version: u8,
    user_clock: u64,
    low_water: u64,
    /// The user agent speaks SimplePush.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    simple: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wake: Option<String>,
    /// Minimum urgency that the user agent has named, as a word of RFC 8030 section 5.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_urgency: Option<String>,
    /// State of the bridge in `router_data`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bridge: Option<OwnBridge>,
    /// Messages in the layout of ledgers and stores ([`Message::encode`]), base64url.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rows: Vec<String>,
    /// Further lines of the user follow, and the last of them writes the user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    more: bool,
}

/// State of a bridge that no other service has.
#[derive(Serialize, Deserialize)]
struct OwnBridge {
    /// Clock of the registration of the token.
    registered: u64,
    /// Time of its first refusal, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<u64>,
}

impl Own {
    pub(super) fn of(user: &WholeUser, rows: Vec<String>, more: bool) -> Own {
        Own {
            version: VERSION,
            user_clock: user.user_clock.0,
            low_water: user.low_water.0,
            simple: user.contact.mode == Mode::Simple,
            wake: user.contact.wake.as_ref().map(|wake| wake.as_str().to_owned()),
            min_urgency: user.contact.minimum.map(|minimum| urgency_name(minimum).to_owned()),
            bridge: user
                .contact
                .bridge
                .as_ref()
                .map(|bridge| OwnBridge { registered: bridge.registered.0, refused: bridge.refused.map(|at| at.0) }),
            rows,
            more,
        }
    }

    pub(super) fn of_known_version(&self) -> Result<&Own, String> {
        if self.version == VERSION {
            return Ok(self);
        }
        Err(format!("its member murre has version {}, and this build reads version {VERSION}", self.version))
    }

    /// Sets what other members do not carry; the rows are left to the caller.
    pub(super) fn complete(&self, coming: &mut IncomingUser, latest: UnixSeconds) -> Result<(), String> {
        let wake = self.wake.as_ref().map(|text| WakeData::new(text).ok_or("its wake data are empty or too long"));
        let mode = if self.simple { Mode::Simple } else { Mode::WebPush };
        let minimum = self.min_urgency.as_ref().filter(|_| mode == Mode::WebPush);
        let minimum = minimum.map(|word| read_urgency_name(word).ok_or("its min_urgency is no urgency"));
        let mut bridge = coming.user.contact.bridge.take();
        if let (Some(bridge), Some(own)) = (&mut bridge, &self.bridge) {
            bridge.registered = exact_clock(own.registered, "the registration of its bridge", latest)?;
            bridge.refused = own.refused.map(UnixSeconds);
        }
        coming.more = self.more;
        coming.user.contact = Contact { mode, wake: wake.transpose()?, minimum: minimum.transpose()?, bridge };
        coming.user.user_clock = exact_clock(self.user_clock, "user_clock", latest)?;
        coming.user.low_water = exact_clock(self.low_water, "low_water", latest)?;
        // Also when all rows of this line have expired: those of an earlier line may not.
        coming.user.may_have_messages = !self.rows.is_empty();
        Ok(())
    }

    /// Reads an entry of `rows` of this user.
    pub(super) fn message(row: &str, uaid: Uaid, latest: UnixSeconds) -> Result<Message, String> {
        let message = base64url::decode(row.as_bytes()).and_then(|bytes| Message::decode(&bytes));
        let message = message.ok_or("it is damaged or written by a later version of murre")?;
        exact_clock(message.stamp.clock.0, "its stamp", latest)?;
        let named = |topic: Topic| topic == Topic::UPDATE || read_topic(topic.as_bytes()).is_some();
        let sound = message.uaid == uaid
            && message.ttl <= TTL_MAX
            && message.accepted <= latest
            && message.topic.is_none_or(named)
            && message.payload.len() <= PAYLOAD_BYTES_MAX;
        if sound { Ok(message) } else { Err("it is no message of this user".into()) }
    }
}

/// Returns a message as an entry of `rows`.
pub(crate) fn encode_row(message: &Message) -> String {
    let mut bytes = Vec::with_capacity(message.encoded_len());
    message.encode(&mut bytes);
    base64url::encode(&bytes)
}

/// Takes a [`Clock`] of an export as it is.
pub(super) fn exact_clock(clock: u64, name: &str, latest: UnixSeconds) -> Result<Clock, String> {
    if clock > latest.0 * 1_000_000 {
        return Err(format!("{name} lies ahead of this host's clock"));
    }
    Ok(Clock(clock))
}
