//! The bodies that nodes of one cluster send each other (PROTOCOL.md 4.2): written by the one that
//! calls, read by the one that is called.
//!
//! ```text
//! PUT /push/{uaid}    {"channelID":"dashed","version":"sealed id","ttl":60,"topic":"t" or null,"timestamp":1700000000,
//!                      "urgency":"normal","stored":false,"boot":"16 hex digits","data":"base64url","headers":{..}}
//! PUT /notif/{uaid}   nothing, or {"boot":"16 hex digits","unsure":"sealed id"}, each of them optional
//! ```
//! `version` seals user, channel, clock, origin and topic. `data` and `headers` are there when the message has a body.

use std::borrow::Cow;

use machine::RowKey;
use machine::ids::{Chid, Uaid};
use machine::message::Message;
use machine::time::UnixSeconds;
use serde::Deserialize;

use super::errno::ApiError;
use super::headers::{Encryption, TTL_MAX, read_urgency};
use super::message_id::{MessageId, MessageIds};
use super::payload::{Draft, push_content};
use crate::wire::base64url;
use crate::wire::number::Whole;
use crate::wire::text::{parse_uuid, push_dashed, push_json, push_u64, urgency_name};

/// A notification that another node hands over.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PushCall {
    /// As that node accepted it, but for a receipt, which stays there.
    pub message: Message,
    /// It is in storage already.
    pub stored: bool,
    /// Run of the called node; `None` when the caller does not say.
    pub boot: Option<u64>,
}

/// Notice that there is a message in storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NotifyCall {
    /// A push of this message got no answer, and it was stored then.
    pub unsure: Option<RowKey>,
    /// As [`PushCall::boot`].
    pub boot: Option<u64>,
}

/// Appends the body of `PUT /push/{uaid}`.
///
/// # Errors
/// A version update of SimplePush, which no body of this form can say, is left out.
pub fn write_push(pushed: &PushCall, ids: &MessageIds, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    let message = &pushed.message;
    if message.simple_version().is_some() {
        return Err(EncodeError);
    }
    out.extend_from_slice(br#"{"channelID":""#);
    push_dashed(&message.chid.0, out);
    out.extend_from_slice(br#"","version":""#);
    ids.seal(&id_of(&RowKey::of(message)), out);
    out.extend_from_slice(br#"","ttl":"#);
    push_u64(u64::from(message.ttl), out);
    out.extend_from_slice(br#","topic":"#);
    match &message.topic {
        Some(topic) => push_json(&String::from_utf8_lossy(topic.as_bytes()), out),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(br#","timestamp":"#);
    push_u64(message.accepted.0, out);
    out.extend_from_slice(br#","urgency":""#);
    out.extend_from_slice(urgency_name(message.urgency).as_bytes());
    out.extend_from_slice(if pushed.stored { br#"","stored":true"# } else { br#"","stored":false"# });
    if let Some(boot) = pushed.boot {
        out.extend_from_slice(format!(r#","boot":"{boot:016x}""#).as_bytes());
    }
    push_content(&message.payload, out);
    out.push(b'}');
    Ok(())
}

/// Error: the body of `PUT /push` cannot carry this message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EncodeError;

/// Appends the body of `PUT /notif/{uaid}`.
pub fn write_told(told: &NotifyCall, ids: &MessageIds, out: &mut Vec<u8>) {
    let mut before = b'{';
    if let Some(boot) = told.boot {
        out.push(before);
        out.extend_from_slice(format!(r#""boot":"{boot:016x}""#).as_bytes());
        before = b',';
    }
    if let Some(row) = &told.unsure {
        out.push(before);
        out.extend_from_slice(br#""unsure":""#);
        ids.seal(&id_of(row), out);
        out.push(b'"');
        before = b',';
    }
    if before == b',' {
        out.push(b'}');
    }
}

/// PROTOCOL.md 4.2; the topic is taken from `version`, which seals it.
#[derive(Deserialize)]
struct PushBody<'a> {
    #[serde(borrow, rename = "channelID")]
    channel: Cow<'a, str>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    timestamp: Whole,
    #[serde(default)]
    ttl: Option<Whole>,
    #[serde(default)]
    urgency: Option<String>,
    #[serde(default)]
    stored: bool,
    #[serde(default)]
    boot: Option<String>,
    #[serde(default)]
    data: Option<String>,
    #[serde(default)]
    headers: Option<HeadersBody>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct HeadersBody {
    encoding: Option<String>,
    encryption: Option<String>,
    crypto_key: Option<String>,
    encryption_key: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NotifyBody {
    boot: Option<String>,
    unsure: Option<String>,
}

/// Reads the body of `PUT /push/{uaid}`. `version` must be an id sealed for this user and channel.
///
/// # Errors
/// [`ApiError::BadNodeBody`], and [`ApiError::TooLarge`] for more payload than a message may have.
pub fn read_push(uaid: Uaid, body: &[u8], ids: &MessageIds) -> Result<PushCall, ApiError> {
    let bad = ApiError::BadNodeBody;
    let read: PushBody<'_> = serde_json::from_slice(body).map_err(|_| bad)?;
    let chid = parse_uuid(read.channel.as_bytes()).map(Chid).ok_or(bad)?;
    let id = ids.open(read.version.as_bytes()).ok_or(bad)?;
    if id.uaid != uaid || id.chid != chid {
        return Err(bad);
    }
    let data = base64url::decode(read.data.as_deref().unwrap_or_default().as_bytes()).ok_or(bad)?;
    let headers = read.headers.unwrap_or_default();
    let encryption = Encryption {
        encoding: headers.encoding.as_deref().map(str::as_bytes),
        encryption: headers.encryption.as_deref().map(str::as_bytes),
        crypto_key: headers.crypto_key.as_deref().map(str::as_bytes),
        encryption_key: headers.encryption_key.as_deref().map(str::as_bytes),
    };
    let mut draft = Draft::kept(&encryption, data.len());
    draft.extend(&data);
    draft.verdict().map_err(|_| bad)?;
    let message = Message {
        uaid,
        chid,
        stamp: id.stamp,
        ttl: read.ttl.map_or(0, Whole::to_u32).min(TTL_MAX),
        accepted: UnixSeconds(read.timestamp.to_u64()),
        urgency: read.urgency.map_or_else(Default::default, |text| read_urgency(text.as_bytes())),
        topic: id.topic,
        // The node that accepted it keeps its receipt.
        receipt: false,
        tries: Default::default(),
        payload: draft.finish()?,
    };
    Ok(PushCall { message, stored: read.stored, boot: boot_of(read.boot.as_deref())? })
}

/// Reads the body of `PUT /notif/{uaid}`, which may be empty. `unsure` must be an id sealed for this user.
///
/// # Errors
/// [`ApiError::BadNodeBody`].
pub fn read_told(uaid: Uaid, body: &[u8], ids: &MessageIds) -> Result<NotifyCall, ApiError> {
    let bad = ApiError::BadNodeBody;
    if body.is_empty() {
        return Ok(NotifyCall::default());
    }
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err(bad);
    }
    let read: NotifyBody = serde_json::from_slice(body).map_err(|_| bad)?;
    let unsure = read.unsure.map(|text| ids.open(text.as_bytes()).filter(|id| id.uaid == uaid).ok_or(bad));
    let row = |id: MessageId| RowKey { uaid: id.uaid, chid: id.chid, stamp: id.stamp, topic: id.topic };
    Ok(NotifyCall { unsure: unsure.transpose()?.map(row), boot: boot_of(read.boot.as_deref())? })
}

/// A boot id as it is written: 16 hex digits.
pub fn parse_boot(text: &str) -> Option<u64> {
    let spelled = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if spelled { u64::from_str_radix(text, 16).ok() } else { None }
}

fn boot_of(text: Option<&str>) -> Result<Option<u64>, ApiError> {
    text.map(|text| parse_boot(text).ok_or(ApiError::BadNodeBody)).transpose()
}

fn id_of(row: &RowKey) -> MessageId {
    MessageId { stamp: row.stamp, uaid: row.uaid, chid: row.chid, topic: row.topic }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::ids::{Clock, Origin, Stamp};
    use machine::message::{Topic, Urgency};
    use machine::simplepush::Update;
    use proptest::prelude::*;

    const KEY: &str = "HJVPy4ZwF4Yz_JdvXTL8hRcwIhv742vC60Tg5Ycrvw8=";

    fn ids() -> MessageIds {
        MessageIds::new(&[KEY.to_owned()]).unwrap()
    }

    /// Payloads that a POST may come with: each form of encryption, spelled cleanly or not, or no body.
    fn payloads() -> impl Strategy<Value = Box<[u8]>> {
        let odd = "[ \"]{0,2}[a-zA-Z0-9_-]{1,20}[ =\"]{0,3}";
        (0..4u8, odd, odd, prop::collection::vec(any::<u8>(), 0..400)).prop_map(|(form, salt, key, body)| {
            let (salt, dh) = (format!("salt={salt}; rs=4096"), format!("dh={key},p256ecdsa={salt} "));
            let (encryption, crypto_key) = (Some(salt.as_bytes()), Some(dh.as_bytes()));
            let headers = match form {
                0 => Encryption { encoding: Some(b"aesgcm"), encryption, crypto_key, encryption_key: None },
                1 => Encryption { encoding: Some(b"AES128gcm"), ..Encryption::default() },
                2 => Encryption {
                    encoding: Some(b"aesgcm128"),
                    encryption,
                    crypto_key: None,
                    encryption_key: Some(dh.as_bytes()),
                },
                _ => {
                    Encryption { encoding: Some(b"aes128gcm"), crypto_key: Some(b" \" x=y= "), ..Encryption::default() }
                }
            };
            let mut draft = Draft::new(&headers, body.len());
            draft.extend(&body);
            match draft.verdict() {
                Ok(()) => draft.finish().unwrap(),
                Err(_) => Box::new([0]),
            }
        })
    }

    proptest! {
        #[test]
        fn a_push_is_read_as_it_was_written(
            uaid: [u8; 16], chid: [u8; 16], clock: u64, origin: u32, ttl in 0..=TTL_MAX, accepted in 0..1u64 << 40,
            urgency in 0..4u8, topic in "[a-zA-Z0-9_-]{0,30}=?", payload in payloads(), stored: bool, boot: Option<u64>,
        ) {
            let urgency = [Urgency::VeryLow, Urgency::Low, Urgency::Normal, Urgency::High][usize::from(urgency)];
            let stamp = Stamp { clock: Clock(clock), origin: Origin(origin) };
            let message = Message {
                uaid: Uaid(uaid), chid: Chid(chid), stamp, ttl, accepted: UnixSeconds(accepted), urgency,
                topic: Topic::new(topic.as_bytes()), receipt: false, tries: Default::default(), payload,
            };
            let pushed = PushCall { message, stored, boot };
            let mut body = Vec::new();
            prop_assert_eq!(write_push(&pushed, &ids(), &mut body), Ok(()));
            prop_assert_eq!(read_push(Uaid(uaid), &body, &ids()), Ok(pushed));
        }

        #[test]
        fn word_is_read_as_it_was_written(
            uaid: [u8; 16], chid: [u8; 16], clock: u64, topic in "[a-zA-Z0-9_-]{0,32}", boot: Option<u64>, unsure: bool,
        ) {
            let stamp = Stamp { clock: Clock(clock), origin: Origin(7) };
            let row = RowKey { uaid: Uaid(uaid), chid: Chid(chid), stamp, topic: Topic::new(topic.as_bytes()) };
            let told = NotifyCall { unsure: unsure.then_some(row), boot };
            let mut body = Vec::new();
            write_told(&told, &ids(), &mut body);
            prop_assert_eq!(read_told(Uaid(uaid), &body, &ids()), Ok(told));
        }

        #[test]
        fn never_panics(body in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = (read_push(Uaid([1; 16]), &body, &ids()), read_told(Uaid([1; 16]), &body, &ids()));
        }
    }

    #[test]
    fn a_version_update_is_not_said() {
        let update = Update { version: 3, data: "" };
        let message = update.to_message(Uaid([1; 16]), Chid([2; 16]), UnixSeconds(1), 10);
        let pushed = PushCall { message, stored: false, boot: None };
        let mut body = Vec::new();
        assert_eq!(write_push(&pushed, &ids(), &mut body), Err(EncodeError));
        assert!(body.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let stamp = Stamp { clock: Clock(1), origin: Origin(7) };
        let row = RowKey { uaid: Uaid([1; 16]), chid: Chid([2; 16]), stamp, topic: None };
        let mut body = Vec::new();
        write_told(&NotifyCall { unsure: Some(row), boot: Some(1) }, &ids(), &mut body);
        assert_eq!(read_told(Uaid([3; 16]), &body, &ids()), Err(ApiError::BadNodeBody));
        for body in
            ["[]", "{", r#"{"unsure":"x"}"#, r#"{"boot":"1"}"#, r#"{"boot":"000000000000000g"}"#, r#"{"boot":1}"#]
        {
            assert_eq!(read_told(Uaid([1; 16]), body.as_bytes(), &ids()), Err(ApiError::BadNodeBody), "{body}");
        }
        assert_eq!(read_told(Uaid([1; 16]), b"{}", &ids()), Ok(NotifyCall::default()));
        for text in ["", "+000000000000001", "0", "00000000000000000"] {
            assert_eq!(parse_boot(text), None, "{text}");
        }
        assert_eq!(parse_boot("00000000000000Ff"), Some(255));
    }
}
