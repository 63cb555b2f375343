//! Checks of Mozilla's protocol: hello, register, unregister, pings, and messages that are refused.

use client::agent::{Received, channel_id};
use protocol::webpush::identity::Identity;
use serde_json::{Value, json};

use super::answer::{Answer, Miss, ensure};
use super::raw::RawSocket;
use super::subject::{Subject, note_of, shown};
use crate::frame::TEXT;

/// Sends this hello on a new connection and returns the first text.
fn hello(subject: &Subject, text: &str) -> Result<Value, Miss> {
    let mut socket = RawSocket::upgraded(subject)?;
    socket.send(TEXT, text.as_bytes());
    socket.hello_reply()
}

pub(super) fn hello_reply(subject: &Subject) -> Answer {
    let reply = hello(subject, r#"{"messageType":"hello","use_webpush":true,"uaid":"","broadcasts":null}"#)?;
    let uaid = reply["uaid"].as_str().unwrap_or_default();
    let holds = reply["status"] == 200 && !uaid.is_empty() && reply["use_webpush"] == true;
    ensure(holds, || shown(&reply))
}

pub(super) fn hello_broadcasts(subject: &Subject) -> Answer {
    let reply = hello(subject, r#"{"messageType":"hello","use_webpush":true}"#)?;
    ensure(reply["broadcasts"].is_object(), || shown(&reply))
}

pub(super) fn hello_of_phones(subject: &Subject) -> Answer {
    for text in [r#"{"messageType":"hello","uaid":null}"#, r#"{"messageType":"hello"}"#] {
        let reply = hello(subject, text)?;
        ensure(reply["status"] == 200 && reply["uaid"].is_string(), || format!("{text}: {}", shown(&reply)))?;
    }
    Ok(())
}

pub(super) fn known_uaid(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    subject.back(&subscription).map(drop)
}

pub(super) fn unknown_uaid(subject: &Subject) -> Answer {
    let strange = "0123456789abcdef0123456789abcdef";
    let (_, uaid) = subject.greeted(Some(strange))?;
    ensure(uaid != strange && !uaid.is_empty(), || format!("the UAID of the reply is {uaid:?}"))
}

pub(super) fn second_hello(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(TEXT, br#"{"messageType":"hello","use_webpush":true}"#);
    socket.ends()
}

pub(super) fn hello_first(subject: &Subject) -> Answer {
    let mut socket = RawSocket::upgraded(subject)?;
    let register = json!({"messageType": "register", "channelID": channel_id()});
    socket.send(TEXT, register.to_string().as_bytes());
    socket.ends()
}

pub(super) fn bad_json(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(TEXT, br#"{"messageType":"#);
    socket.ends()
}

pub(super) fn unknown_type(subject: &Subject) -> Answer {
    let mut socket = RawSocket::greeted(subject)?;
    socket.send(TEXT, br#"{"messageType":"no such type"}"#);
    socket.ends()
}

pub(super) fn register_reply(subject: &Subject) -> Answer {
    let (mut agent, _) = subject.greeted(None)?;
    let channel = channel_id();
    agent.send(&json!({"messageType": "register", "channelID": channel}))?;
    let reply = agent.receive_type("register")?;
    let url = reply["pushEndpoint"].as_str().unwrap_or_default();
    let holds = reply["status"] == 200 && reply["channelID"] == channel && url.starts_with("http");
    ensure(holds, || shown(&reply))
}

pub(super) fn register_again(subject: &Subject) -> Answer {
    let (mut agent, mut subscription) = subject.subscribed(None)?;
    let again = agent.register(&subscription.channel, None)?;
    for (url, body) in [(subscription.url.clone(), "first"), (again, "second")] {
        subscription.url = url;
        subject.post(&subscription, 60, body)?;
        let note = note_of(&mut agent, body)?;
        ensure(note.channel == subscription.channel, || format!("it came on channel {}", note.channel))?;
    }
    Ok(())
}

pub(super) fn key_replaced(subject: &Subject) -> Answer {
    let (old, new) = (Identity::generate(), Identity::generate());
    let (mut agent, mut subscription) = subject.subscribed(Some(&old.public_key()))?;
    subscription.url = agent.register(&subscription.channel, Some(&new.public_key()))?;
    super::vapid::accepts(subject, &subscription, &new)
}

pub(super) fn bad_key(subject: &Subject) -> Answer {
    let (mut agent, _) = subject.greeted(None)?;
    agent.send(&json!({"messageType": "register", "channelID": channel_id(), "key": "bm8ga2V5"}))?;
    match agent.receive_type("register") {
        Ok(reply) => ensure(reply["status"] != 200, || shown(&reply)),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => Err(error.into()),
        // A connection that ends refuses, too.
        Err(_) => Ok(()),
    }
}

pub(super) fn unregister_reply(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    // Without `code`, as some phones.
    agent.send(&json!({"messageType": "unregister", "channelID": subscription.channel}))?;
    let reply = agent.receive_type("unregister")?;
    ensure(reply["status"] == 200 && reply["channelID"] == subscription.channel, || shown(&reply))
}

pub(super) fn unregister_unknown(subject: &Subject) -> Answer {
    let (mut agent, _) = subject.greeted(None)?;
    Ok(agent.unregister(&channel_id())?)
}

pub(super) fn nack(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 60, "nacked")?;
    let note = note_of(&mut agent, "nacked")?;
    agent.send(&json!({"messageType": "nack", "version": note.version, "code": 301}))?;
    Ok(agent.unregister(&subscription.channel)?)
}

fn answered_with_empty_object(subject: &Subject, ping: &str) -> Answer {
    let (mut agent, _) = subject.greeted(None)?;
    agent.send_text(ping)?;
    match agent.receive(subject.silence.max(std::time::Duration::from_secs(3)))? {
        Received::Message(reply) if reply == json!({}) => Ok(()),
        other => Err(Miss::Fail(format!("{ping} was answered with {other:?}"))),
    }
}

pub(super) fn empty_ping(subject: &Subject) -> Answer {
    answered_with_empty_object(subject, "{}")
}

pub(super) fn named_ping(subject: &Subject) -> Answer {
    answered_with_empty_object(subject, r#"{"messageType":"ping"}"#)
}

pub(super) fn unknown_broadcast(subject: &Subject) -> Answer {
    let (mut agent, _) = subject.greeted(None)?;
    agent.send(&json!({"messageType": "broadcast_subscribe", "broadcasts": {"conformance/none": "v"}}))?;
    let reply = agent.receive_type("broadcast")?;
    ensure(reply["broadcasts"]["errors"]["conformance/none"].is_string(), || shown(&reply))
}
