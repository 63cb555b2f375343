//! Checks of RFC 6455: opening handshake, frames, closing handshake.

use client::http::Response;

use super::answer::{Answer, Miss, ensure};
use super::raw::{ACCEPT, Event, KEY, RawSocket, VERSION};
use super::subject::Subject;
use crate::frame::{BINARY, CLOSE, PING, PONG, TEXT, push_header};

const HELLO: &[u8] = br#"{"messageType":"hello","use_webpush":true}"#;
/// A message that no user agent sends: 4 MiB.
const LONG_MESSAGE_BYTES: usize = 4 << 20;
const TEXT_THAT_IS_NOT_UTF8: &[u8] = b"{\"messageType\":\"\xff\xfe\"}";

fn upgrade(subject: &Subject, lines: &[&str]) -> Result<Response, Miss> {
    Ok(RawSocket::asked(subject, lines)?.1)
}

pub(super) fn accept(subject: &Subject) -> Answer {
    let response = upgrade(subject, &[KEY, VERSION])?;
    ensure(response.status == 101, || format!("answered {}", response.status))?;
    let accept = response.header("sec-websocket-accept");
    ensure(accept == Some(ACCEPT), || format!("Sec-WebSocket-Accept is {accept:?}"))
}

pub(super) fn nothing_unasked(subject: &Subject) -> Answer {
    let response = upgrade(subject, &[KEY, VERSION])?;
    for name in ["sec-websocket-extensions", "sec-websocket-protocol"] {
        ensure(response.header(name).is_none(), || format!("{name} was not offered"))?;
    }
    Ok(())
}

pub(super) fn sub_protocol(subject: &Subject) -> Answer {
    let response = upgrade(subject, &[KEY, VERSION, "Sec-WebSocket-Protocol: push-notification\r\n"])?;
    let echoed = response.header("sec-websocket-protocol");
    let holds = response.status == 101 && echoed == Some("push-notification");
    ensure(holds, || format!("answered {}, sub-protocol {echoed:?}", response.status))
}

pub(super) fn key_required(subject: &Subject) -> Answer {
    let status = upgrade(subject, &[VERSION])?.status;
    ensure((400..500).contains(&status), || format!("an upgrade without a key was answered {status}"))
}

pub(super) fn version(subject: &Subject) -> Answer {
    let response = upgrade(subject, &[KEY, "Sec-WebSocket-Version: 99\r\n"])?;
    ensure((400..500).contains(&response.status), || format!("answered {}", response.status))?;
    let known = response.header("sec-websocket-version").unwrap_or_default();
    ensure(known.contains("13"), || "the refusal does not name version 13".into())
}

pub(super) fn not_masked_by_server(subject: &Subject) -> Answer {
    RawSocket::greeted(subject).map(drop)
}

pub(super) fn pong(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    let payload: Vec<u8> = (0..125).map(|n| n * 2 + 1).collect();
    socket.send(PING, &payload);
    ensure(socket.frame(PONG)? == payload, || "the pong has another payload".into())
}

pub(super) fn unasked_pong(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(PONG, b"unasked");
    socket.send(PING, b"after");
    socket.frame(PONG).map(drop)
}

pub(super) fn fragments(subject: &Subject) -> Answer {
    let mut socket = RawSocket::upgraded(subject)?;
    let (first, rest) = HELLO.split_at(9);
    socket.send_first(TEXT, first);
    socket.send_first(0, &rest[..5]);
    socket.send_first(0x80, &rest[5..]);
    socket.hello_reply().map(drop)
}

pub(super) fn ping_between_fragments(subject: &Subject) -> Answer {
    let mut socket = RawSocket::upgraded(subject)?;
    let (first, rest) = HELLO.split_at(9);
    socket.send_first(TEXT, first);
    socket.send(PING, b"between");
    ensure(socket.frame(PONG)? == b"between", || "the pong has another payload".into())?;
    socket.send_first(0x80, rest);
    socket.hello_reply().map(drop)
}

pub(super) fn close_answered(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(CLOSE, &1000u16.to_be_bytes());
    let end = socket.end()?;
    ensure(end.is_some(), || "the stream ended without a close frame".into())
}

pub(super) fn close_code_echoed(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(CLOSE, &1001u16.to_be_bytes());
    socket.ends_with(1001)
}

pub(super) fn server_ends_tcp(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(CLOSE, &1000u16.to_be_bytes());
    socket.ends()?;
    let event = socket.event(Some(subject.silence))?;
    ensure(event == Event::End, || format!("after the closing handshake came {event:?}"))
}

fn unmasked_frame(subject: &Subject) -> Result<RawSocket, Miss> {
    let mut socket = RawSocket::upgraded(subject)?;
    let mut bytes = Vec::new();
    push_header(&mut bytes, 0x80 | TEXT, HELLO.len(), 0);
    bytes.extend_from_slice(HELLO);
    socket.send_bytes(&bytes);
    Ok(socket)
}

pub(super) fn unmasked(subject: &Subject) -> Answer {
    let mut socket = unmasked_frame(subject)?;
    match socket.event(None)? {
        Event::Close(_) | Event::End => Ok(()),
        other => Err(Miss::Fail(format!("an unmasked frame was answered with {other:?}"))),
    }
}

pub(super) fn unmasked_code(subject: &Subject) -> Answer {
    unmasked_frame(subject)?.ends_with(1002)
}

/// Sends one masked frame after hello.
fn bad(subject: &Subject, first: u8, payload: &[u8]) -> Result<RawSocket, Miss> {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send_first(first, payload);
    Ok(socket)
}

pub(super) fn reserved_bits(subject: &Subject) -> Answer {
    bad(subject, 0xc0 | TEXT, b"{}")?.ends()
}

pub(super) fn reserved_opcode(subject: &Subject) -> Answer {
    bad(subject, 0x83, b"{}")?.ends()
}

pub(super) fn stray_continuation(subject: &Subject) -> Answer {
    bad(subject, 0x80, b"{}")?.ends()
}

pub(super) fn long_control_frame(subject: &Subject) -> Answer {
    bad(subject, 0x80 | PING, &[b'x'; 126])?.ends()
}

pub(super) fn fragmented_control_frame(subject: &Subject) -> Answer {
    bad(subject, PING, b"x")?.ends()
}

pub(super) fn bad_close_code(subject: &Subject) -> Answer {
    bad(subject, 0x80 | CLOSE, &1005u16.to_be_bytes())?.ends_with(1002)
}

pub(super) fn not_utf8(subject: &Subject) -> Answer {
    bad(subject, 0x80 | TEXT, TEXT_THAT_IS_NOT_UTF8)?.ends()
}

pub(super) fn not_utf8_code(subject: &Subject) -> Answer {
    bad(subject, 0x80 | TEXT, TEXT_THAT_IS_NOT_UTF8)?.ends_with(1007)
}

pub(super) fn binary(subject: &Subject) -> Answer {
    bad(subject, 0x80 | BINARY, b"{}")?.ends_with(1003)
}

pub(super) fn too_long(subject: &Subject) -> Answer {
    let mut message = HELLO.to_vec();
    message.resize(LONG_MESSAGE_BYTES, b' ');
    let mut socket = RawSocket::upgraded(subject)?;
    socket.send(TEXT, &message);
    match socket.event(None)? {
        Event::Close(_) | Event::End => Ok(()),
        other => Err(Miss::Fail(format!("a message of 4 MiB was answered with {other:?}"))),
    }
}
