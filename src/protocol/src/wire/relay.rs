//! The messages of relays, connections that speak for several user agents: ordinary messages that name one by `uaid`,
//! and `bye` (docs/PROTOCOL.md, relays).

use std::borrow::Cow;

use serde::Deserialize;

use super::client_message::{self, BadMessage, ClientMessage, Id};
use super::text::{push_json, push_simple, push_u64};

/// One message of a relay.
#[derive(Debug, PartialEq, Eq)]
pub enum RelayMessage<'a> {
    /// `{}`: of the connection, as ever.
    Ping,
    /// One more user agent; the hello names it.
    Hello(ClientMessage<'a>),
    /// An ordinary message of this user agent.
    Of {
        uaid: [u8; 16],
        /// Neither hello nor ping.
        message: ClientMessage<'a>,
    },
    /// The relay no longer speaks for this user agent.
    Bye([u8; 16]),
}

/// Returns true if a hello without a UAID says that the connection is a relay.
pub fn opens(hello: &str) -> bool {
    #[derive(Deserialize)]
    struct Opening {
        #[serde(default)]
        relay: bool,
    }
    serde_json::from_str(hello).is_ok_and(|opening: Opening| opening.relay)
}

/// Reads one message of a relay.
///
/// # Errors
/// [`BadMessage`] as for any connection, and for anything but hello and ping that names no user agent.
pub fn read(message: &str) -> Result<RelayMessage<'_>, BadMessage> {
    match client_message::read(message) {
        Ok(ClientMessage::Ping) => Ok(RelayMessage::Ping),
        Ok(hello @ ClientMessage::Hello { .. }) => Ok(RelayMessage::Hello(hello)),
        Ok(other) => {
            let Whose { uaid } = serde_json::from_str(message).map_err(|_| BadMessage)?;
            Ok(RelayMessage::Of { uaid: uaid.0, message: other })
        }
        // A struct may also be read from an array, which no message is.
        Err(BadMessage) if !message.trim_ascii_start().starts_with('{') => Err(BadMessage),
        Err(BadMessage) => match serde_json::from_str(message) {
            Ok(Bye { message_type, uaid }) if message_type == "bye" => Ok(RelayMessage::Bye(uaid.0)),
            _ => Err(BadMessage),
        },
    }
}

#[derive(Deserialize)]
struct Whose {
    uaid: Id,
}

#[derive(Deserialize)]
struct Bye<'a> {
    #[serde(borrow, rename = "messageType")]
    message_type: Cow<'a, str>,
    uaid: Id,
}

/// Appends the reply to the hello that makes a connection a relay.
pub fn opened(members: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"hello","relay":true,"status":200,"members":"#);
    push_u64(u64::from(members), out);
    out.push(b'}');
}

/// Appends the object that `write` appends, with this `uaid` as its last member.
pub fn of_member(uaid: &[u8; 16], write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    write(out);
    if out.last() == Some(&b'}') {
        out.pop();
        out.extend_from_slice(br#","uaid":""#);
        push_simple(uaid, out);
        out.extend_from_slice(b"\"}");
    }
}

/// Appends a bye: code and reason are those with which a connection of its own would be closed. No UAID: it had none.
pub fn bye(uaid: Option<&[u8; 16]>, code: u16, reason: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageType":"bye","uaid":""#);
    if let Some(uaid) = uaid {
        push_simple(uaid, out);
    }
    out.extend_from_slice(br#"","code":"#);
    push_u64(u64::from(code), out);
    out.extend_from_slice(br#","reason":"#);
    push_json(reason, out);
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UAID: [u8; 16] = [0xab; 16];
    const SPELLED: &str = "abababababababababababababababab";

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn only_the_value_true_opens_a_relay() {
        assert!(opens(r#"{"messageType":"hello","relay":true,"x":[{}]}"#));
        for hello in [
            r#"{"messageType":"hello"}"#,
            r#"{"messageType":"hello","relay":false}"#,
            r#"{"messageType":"hello","relay":"true"}"#,
            r#"{"messageType":"hello","relay":null}"#,
            "{",
        ] {
            assert!(!opens(hello), "{hello}");
        }
    }

    #[test]
    fn messages_name_their_user_agent() {
        let nack = format!(r#"{{"messageType":"nack","version":"v","uaid":"{SPELLED}"}}"#);
        let message = ClientMessage::Nack { code: 0 };
        assert_eq!(read(&nack), Ok(RelayMessage::Of { uaid: UAID, message }));
        let bye = format!(r#" {{"uaid":"{}","messageType":"bye","x":1}} "#, SPELLED.to_uppercase());
        assert_eq!(read(&bye), Ok(RelayMessage::Bye(UAID)));
        let hello = format!(r#"{{"messageType":"hello","uaid":"{SPELLED}"}}"#);
        assert!(matches!(read(&hello), Ok(RelayMessage::Hello(ClientMessage::Hello { uaid: Some(UAID), .. }))));
        for ping in ["{}", r#"{"messageType":"ping"}"#, r#"{"messageType":"ping","uaid":"x"}"#] {
            assert_eq!(read(ping), Ok(RelayMessage::Ping));
        }
    }

    #[test]
    fn messages_of_nobody_are_refused() {
        for message in [
            r#"{"messageType":"nack","version":"v"}"#,
            r#"{"messageType":"nack","version":"v","uaid":""}"#,
            r#"{"messageType":"nack","version":"v","uaid":null}"#,
            r#"{"messageType":"bye"}"#,
            r#"{"messageType":"bye","uaid":"nobody"}"#,
            r#"{"messageType":"byes","uaid":"abababababababababababababababab"}"#,
            r#"["bye","abababababababababababababababab"]"#,
            r#"{"uaid":"abababababababababababababababab"}"#,
            "null",
            "",
        ] {
            assert_eq!(read(message), Err(BadMessage), "{message}");
        }
    }

    #[test]
    fn messages_are_spelled_as_documented() {
        assert_eq!(
            text(|out| opened(4_096, out)),
            r#"{"messageType":"hello","relay":true,"status":200,"members":4096}"#
        );
        let pong = |out: &mut Vec<u8>| out.extend_from_slice(br#"{"messageType":"register"}"#);
        assert_eq!(
            text(|out| of_member(&UAID, pong, out)),
            format!(r#"{{"messageType":"register","uaid":"{SPELLED}"}}"#)
        );
        assert_eq!(
            text(|out| bye(Some(&UAID), 1011, "SM", out)),
            format!(r#"{{"messageType":"bye","uaid":"{SPELLED}","code":1011,"reason":"SM"}}"#)
        );
        assert_eq!(text(|out| bye(None, 1013, "", out)), r#"{"messageType":"bye","uaid":"","code":1013,"reason":""}"#);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in ".{0,80}") {
            let _ = (read(&text), opens(&text));
        }
    }
}
