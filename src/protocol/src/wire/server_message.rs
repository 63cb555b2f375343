//! The JSON messages of the server (PROTOCOL.md 1.6): written by the edge.

use machine::BroadcastDelta;
use machine::message::Urgency;
use machine::simplepush::Mode;

use super::text::{push_dashed, push_json, push_simple, push_u64, urgency_name};

/// Appends the reply to hello: exactly five keys.
pub fn hello(uaid: &[u8; 16], mode: Mode, broadcasts: &BroadcastDelta, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"hello","uaid":""#);
    push_simple(uaid, out);
    out.extend_from_slice(br#"","status":200,"use_webpush":"#);
    out.extend_from_slice(if mode == Mode::WebPush { b"true" } else { b"false" });
    out.extend_from_slice(br#","broadcasts":"#);
    push_delta(broadcasts, out);
    out.push(b'}');
}

/// Appends the reply to register; `endpoint` appends the URL, which needs no escaping.
pub fn registered(channel: &[u8; 16], status: u16, endpoint: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"register","channelID":""#);
    push_dashed(channel, out);
    out.extend_from_slice(br#"","status":"#);
    push_u64(u64::from(status), out);
    out.extend_from_slice(br#","pushEndpoint":""#);
    endpoint(out);
    out.extend_from_slice(b"\"}");
}

/// Appends the reply to unregister.
pub fn unregistered(channel: &[u8; 16], status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"unregister","channelID":""#);
    push_dashed(channel, out);
    out.extend_from_slice(br#"","status":"#);
    push_u64(u64::from(status), out);
    out.push(b'}');
}

/// Appends the reply to urgency.
pub fn urgency(status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"urgency","status":"#);
    push_u64(u64::from(status), out);
    out.push(b'}');
}

/// Appends a notification; `version` appends the sealed id and `content` what follows it (`,"data":...,"headers":...`).
/// Only a user agent that asked for it is told the urgency.
pub fn notification(
    channel: &[u8; 16],
    version: impl FnOnce(&mut Vec<u8>),
    urgency: Option<Urgency>,
    content: impl FnOnce(&mut Vec<u8>),
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(br#"{"messageType":"notification","channelID":""#);
    push_dashed(channel, out);
    out.extend_from_slice(br#"","version":""#);
    version(out);
    out.push(b'"');
    if let Some(urgency) = urgency {
        out.extend_from_slice(br#","urgency":""#);
        out.extend_from_slice(urgency_name(urgency).as_bytes());
        out.push(b'"');
    }
    content(out);
    out.push(b'}');
}

/// Appends a broadcast message.
pub fn broadcast(broadcasts: &BroadcastDelta, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"broadcast","broadcasts":"#);
    push_delta(broadcasts, out);
    out.push(b'}');
}

fn push_delta(delta: &BroadcastDelta, out: &mut Vec<u8>) {
    out.push(b'{');
    let start = out.len();
    for changed in &delta.changed {
        if out.len() > start {
            out.push(b',');
        }
        push_json(&changed.id, out);
        out.push(b':');
        push_json(&changed.version, out);
    }
    if !delta.unknown.is_empty() {
        out.extend_from_slice(if out.len() > start { br#","errors":{"# } else { br#""errors":{"# });
        for (at, id) in delta.unknown.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            push_json(id, out);
            out.extend_from_slice(br#":"Broadcast not found""#);
        }
        out.push(b'}');
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use machine::BroadcastVersion;
    use serde_json::Value;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn messages_are_spelled_as_documented() {
        let none = BroadcastDelta::default();
        assert_eq!(
            text(|out| hello(&[0xab; 16], Mode::WebPush, &none, out)),
            concat!(
                r#"{"messageType":"hello","uaid":"abababababababababababababababab","status":200,"#,
                r#""use_webpush":true,"broadcasts":{}}"#
            )
        );
        assert!(text(|out| hello(&[0xab; 16], Mode::Simple, &none, out)).contains(r#""use_webpush":false,"#));
        let channel = [0x11; 16];
        assert_eq!(
            text(|out| registered(&channel, 200, |out| out.extend_from_slice(b"http://e"), out)),
            concat!(
                r#"{"messageType":"register","channelID":"11111111-1111-1111-1111-111111111111","#,
                r#""status":200,"pushEndpoint":"http://e"}"#
            )
        );
        assert_eq!(
            text(|out| unregistered(&channel, 500, out)),
            r#"{"messageType":"unregister","channelID":"11111111-1111-1111-1111-111111111111","status":500}"#
        );
        assert_eq!(
            text(|out| notification(&channel, |out| out.push(b'v'), None, |_| (), out)),
            r#"{"messageType":"notification","channelID":"11111111-1111-1111-1111-111111111111","version":"v"}"#
        );
        let low = text(|out| notification(&channel, |out| out.push(b'v'), Some(Urgency::VeryLow), |_| (), out));
        assert!(low.ends_with(r#","version":"v","urgency":"very-low"}"#), "{low}");
        assert_eq!(text(|out| urgency(404, out)), r#"{"messageType":"urgency","status":404}"#);
    }

    #[test]
    fn broadcasts_carry_versions_and_errors() {
        let version = |id: &str| BroadcastVersion { id: id.into(), version: "1\"".into() };
        let delta = |changed, unknown| BroadcastDelta { changed, unknown };
        let both = delta(vec![version("a"), version("b")], vec!["c".into(), "d".into()]);
        assert_eq!(
            text(|out| broadcast(&both, out)),
            concat!(
                r#"{"messageType":"broadcast","broadcasts":{"a":"1\"","b":"1\"","#,
                r#""errors":{"c":"Broadcast not found","d":"Broadcast not found"}}}"#
            )
        );
        let only = delta(vec![], vec!["c".into()]);
        let message = text(|out| broadcast(&only, out));
        assert_eq!(
            serde_json::from_str::<Value>(&message).unwrap()["broadcasts"]["errors"]["c"],
            "Broadcast not found"
        );
    }
}
