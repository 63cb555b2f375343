//! Messages that agents write and read (PROTOCOL.md 1.5, 1.6). Nothing is parsed that is not needed: the load generator
//! has to be cheaper than the server.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::frame;
use crate::random::mixed;

/// A message of the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// With the UAID.
    Hello([u8; 16]),
    Register {
        status: u16,
        endpoint: &'a str,
    },
    Unregister {
        status: u16,
    },
    Notification {
        channel: &'a str,
        version: &'a str,
        data: &'a str,
    },
    Broadcast,
    Pong,
    /// The answer to a minimum urgency.
    Urgency {
        status: u16,
    },
    /// Any other message, which is ignored.
    Other,
}

/// Reads a text frame's payload.
pub(crate) fn read(payload: &[u8]) -> Result<Message<'_>, &'static str> {
    let text = std::str::from_utf8(payload).map_err(|_| "a text frame that is no text")?;
    if text == "{}" {
        return Ok(Message::Pong);
    }
    if !text.starts_with('{') {
        return Err("a message that is no object");
    }
    let status = || number_field(text, "\"status\":").unwrap_or(0);
    Ok(match string_field(text, "\"messageType\":\"").unwrap_or("") {
        "notification" => Message::Notification {
            channel: string_field(text, "\"channelID\":\"").unwrap_or(""),
            version: string_field(text, "\"version\":\"").unwrap_or(""),
            data: string_field(text, "\"data\":\"").unwrap_or(""),
        },
        "hello" => {
            let uaid = string_field(text, "\"uaid\":\"").unwrap_or("");
            Message::Hello(uaid_of(uaid).ok_or("a hello without a UAID")?)
        }
        "register" => {
            let endpoint = string_field(text, "\"pushEndpoint\":\"").unwrap_or("");
            Message::Register { status: status(), endpoint }
        }
        "unregister" => Message::Unregister { status: status() },
        "broadcast" => Message::Broadcast,
        "ping" => Message::Pong,
        "urgency" => Message::Urgency { status: status() },
        _ => Message::Other,
    })
}

/// The text of a string member, found without parsing the whole; good for values that need no escapes, which is all
/// that the server sends. `start` is its name with quotes, colon and the value's first quote.
fn string_field<'a>(json: &'a str, start: &str) -> Option<&'a str> {
    let at = json.find(start)? + start.len();
    json[at..].split_once('"').map(|(value, _)| value)
}

fn number_field(json: &str, start: &str) -> Option<u16> {
    let at = json.find(start)? + start.len();
    let digits = json[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(json.len() - at);
    json[at..at + digits].parse().ok()
}

/// A UAID of 32 hexadecimal digits.
pub(crate) fn uaid_of(text: &str) -> Option<[u8; 16]> {
    let digits: &[u8; 32] = text.as_bytes().try_into().ok()?;
    let mut uaid = [0; 16];
    for (byte, pair) in uaid.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(uaid)
}

/// The text of a UAID.
pub(crate) fn uaid_text(uaid: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*uaid))
}

/// The sequence number at the front of a body, from the base64url of a notification's `data`.
pub(crate) fn sequence(data: &str) -> Option<u64> {
    let mut bytes = [0; 9];
    URL_SAFE_NO_PAD.decode_slice(data.get(..12)?, &mut bytes).ok()?;
    Some(u64::from_be_bytes(*bytes.first_chunk()?))
}

/// The id of channel `number` of an agent: the same every time, so that it need not be kept.
pub(crate) fn channel_of(seed: u64, agent: u32, number: u16) -> uuid::Uuid {
    let high = mixed(seed ^ mixed(u64::from(agent) << 16 | u64::from(number)));
    let low = mixed(high ^ seed.rotate_left(32));
    uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()).into_uuid()
}

/// Appends a text frame.
pub(crate) fn text(out: &mut Vec<u8>, json: &str) {
    frame::push(out, frame::TEXT, json.as_bytes());
}

/// `hello`, without a UAID when it is not known.
pub(crate) fn hello(out: &mut Vec<u8>, uaid: Option<[u8; 16]>) {
    let uaid = uaid.as_ref().map(uaid_text).unwrap_or_default();
    text(out, &format!(r#"{{"messageType":"hello","use_webpush":true,"uaid":"{uaid}"}}"#));
}

/// `register`.
pub(crate) fn register(out: &mut Vec<u8>, channel: uuid::Uuid, key: Option<&str>) {
    let key = key.map_or(String::new(), |key| format!(r#","key":"{key}""#));
    text(out, &format!(r#"{{"messageType":"register","channelID":"{channel}"{key}}}"#));
}

/// `unregister`.
pub(crate) fn unregister(out: &mut Vec<u8>, channel: uuid::Uuid) {
    text(out, &format!(r#"{{"messageType":"unregister","channelID":"{channel}"}}"#));
}

/// `broadcast_subscribe` to one.
pub(crate) fn subscribe(out: &mut Vec<u8>, id: &str, version: &str) {
    text(out, &format!(r#"{{"messageType":"broadcast_subscribe","broadcasts":{{"{id}":"{version}"}}}}"#));
}

/// `ack` of one notification, delivered.
pub(crate) fn ack(out: &mut Vec<u8>, channel: &str, version: &str) {
    let update = format!(r#"{{"channelID":"{channel}","version":"{version}","code":100}}"#);
    text(out, &format!(r#"{{"messageType":"ack","updates":[{update}]}}"#));
}

/// `urgency`: the minimum of the user agent.
pub(crate) fn urgency(out: &mut Vec<u8>, min: &str) {
    text(out, &format!(r#"{{"messageType":"urgency","min":"{min}"}}"#));
}

/// The front of an answer to an upgrade: its status and the length of its head; `None` when it is not whole.
pub(crate) fn upgrade(bytes: &[u8]) -> Result<Option<(u16, usize)>, &'static str> {
    const HEAD_MAX: usize = 16 * 1024;
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() > HEAD_MAX { Err("an upgrade's answer without an end") } else { Ok(None) };
    };
    let digits = bytes.strip_prefix(b"HTTP/1.1 ").and_then(|rest| std::str::from_utf8(rest.get(..3)?).ok());
    let status = digits.and_then(|digits| digits.parse().ok()).ok_or("an upgrade's answer that is not HTTP/1.1")?;
    Ok(Some((status, end + 4)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_in_any_order_of_their_members() {
        let json = r#"{"version":"abc","messageType":"notification","data":"","channelID":"x-y"}"#;
        let wanted = Message::Notification { channel: "x-y", version: "abc", data: "" };
        assert_eq!(read(json.as_bytes()), Ok(wanted));
        let json = r#"{"messageType":"register","channelID":"c","status":200,"pushEndpoint":"http://h/x"}"#;
        assert_eq!(read(json.as_bytes()), Ok(Message::Register { status: 200, endpoint: "http://h/x" }));
        assert_eq!(read(br#"{"status":500}"#), Ok(Message::Other));
        assert_eq!(read(br#"{"messageType":"unregister","status":500}"#), Ok(Message::Unregister { status: 500 }));
        assert_eq!(read(br#"{"messageType":"urgency","status":404}"#), Ok(Message::Urgency { status: 404 }));
        assert_eq!(read(b"{}"), Ok(Message::Pong));
    }

    #[test]
    fn what_is_no_message_is_an_error_and_no_panic() {
        for bytes in [&b""[..], b"[]", b"\xff{", br#"{"messageType":"hello","uaid":"12"}"#, b"null"] {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
        for bytes in [&br#"{"messageType":"#[..], br#"{"status":99999999,"messageType":"register"}"#] {
            assert!(read(bytes).is_ok());
        }
        assert!(upgrade(b"SMTP 220\r\n\r\n").is_err() && upgrade(b"HTTP/1.1 1").unwrap().is_none());
        assert!(upgrade(b"HTTP/1.1 \r\n\r\n").is_err() && upgrade(&[b'x'; 20_000]).is_err());
        assert_eq!(upgrade(b"HTTP/1.1 503 No\r\n\r\nmore"), Ok(Some((503, 19))));
    }

    #[test]
    fn uaids_are_sixteen_bytes_and_their_text() {
        let text = "00f0123456789abcdef0123456789abc";
        assert_eq!(uaid_of(text).map(|uaid| uaid_text(&uaid)).as_deref(), Some(text));
        assert_eq!((uaid_of(&text[1..]), uaid_of(&text.replace('a', "g"))), (None, None));
    }

    #[test]
    fn channels_differ() {
        let mut channels = std::collections::HashSet::new();
        for agent in 0..1_000 {
            for number in 0..3 {
                let channel = channel_of(7, agent, number);
                assert_eq!(channel.get_version_num(), 4);
                channels.insert(channel);
            }
        }
        assert_eq!(channels.len(), 3_000);
        assert_eq!(channel_of(7, 1, 1), channel_of(7, 1, 1));
        assert_ne!(channel_of(7, 1, 1), channel_of(8, 1, 1));
    }

    #[test]
    fn the_sequence_number_is_the_front_of_the_body() {
        let data = URL_SAFE_NO_PAD.encode([&77u64.to_be_bytes()[..], &[9; 20]].concat());
        assert_eq!(sequence(&data), Some(77));
        assert_eq!((sequence("short"), sequence("************")), (None, None));
    }
}
