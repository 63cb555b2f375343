//! Checks of Mozilla's protocol: notifications, acks, and messages that wait for a user agent.

use std::time::Duration;

use client::agent::Agent;
use client::http::Request;
use serde_json::json;

use super::answer::{Answer, Miss, ensure};
use super::subject::{Subject, Subscription, note_of, shown};

pub(super) fn fields(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 60, "fields")?;
    let note = note_of(&mut agent, "fields")?;
    let holds = note.channel == subscription.channel
        && !note.version.is_empty()
        && note.headers["encoding"] == "aes128gcm"
        && note.message["data"].is_string();
    ensure(holds, || shown(&note.message))
}

pub(super) fn without_body(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.accepted(&subscription, &Request::post(&subscription.url, 60)?)?;
    let note = agent.note()?;
    let holds = note.channel == subscription.channel && !note.version.is_empty() && note.message["data"].is_null();
    ensure(holds, || shown(&note.message))
}

pub(super) fn versions_differ(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 60, "one")?;
    subject.post(&subscription, 60, "two")?;
    let (one, two) = (agent.note()?, agent.note()?);
    ensure(one.version != two.version, || "two messages have one version".into())
}

/// Posts one message, and acks it with this update beside `channelID` and `version`.
fn acked(subject: &Subject, agent: &mut Agent, to: &Subscription, code: Option<u32>) -> Answer {
    subject.post(to, 60, "acked")?;
    let note = note_of(agent, "acked")?;
    let mut update = json!({"channelID": note.channel, "version": note.version});
    if let Some(code) = code {
        update["code"] = code.into();
    }
    agent.send(&json!({"messageType": "ack", "updates": [update]}))?;
    Ok(())
}

fn acked_comes_no_more(subject: &Subject, code: Option<u32>) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    acked(subject, &mut agent, &subscription, code)?;
    // The reply shows that the ack before it was read.
    agent.register(&client::agent::channel_id(), None)?;
    agent.close()?;
    subject.silent(&mut subject.back(&subscription)?)
}

pub(super) fn ack(subject: &Subject) -> Answer {
    acked_comes_no_more(subject, Some(100))
}

pub(super) fn ack_without_code(subject: &Subject) -> Answer {
    acked_comes_no_more(subject, None)
}

pub(super) fn unacked_again(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 60, "unacked")?;
    let first = note_of(&mut agent, "unacked")?;
    agent.close()?;
    let again = note_of(&mut subject.back(&subscription)?, "unacked")?;
    ensure(first.version == again.version, || "the message came again under another version".into())
}

pub(super) fn ack_of_an_earlier_connection(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 60, "later")?;
    let note = note_of(&mut agent, "later")?;
    agent.close()?;
    let mut agent = subject.back(&subscription)?;
    agent.ack([&note])?;
    // It may have been on its way already.
    while subject.next_note(&mut agent)?.is_some() {}
    agent.register(&client::agent::channel_id(), None)?;
    agent.close()?;
    subject.silent(&mut subject.back(&subscription)?)
}

pub(super) fn not_twice(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 60, "once")?;
    note_of(&mut agent, "once")?;
    subject.silent(&mut agent)
}

pub(super) fn in_order(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    let bodies = ["one", "two", "three"];
    for body in bodies {
        subject.post(&subscription, 60, body)?;
    }
    let mut agent = subject.back(&subscription)?;
    bodies.iter().try_for_each(|body| note_of(&mut agent, body).map(drop))
}

pub(super) fn stored(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    subject.post(&subscription, 60, "stored")?;
    note_of(&mut subject.back(&subscription)?, "stored").map(drop)
}

pub(super) fn ttl_zero_delivered(subject: &Subject) -> Answer {
    let (mut agent, subscription) = subject.subscribed(None)?;
    subject.post(&subscription, 0, "now")?;
    note_of(&mut agent, "now").map(drop)
}

pub(super) fn ttl_zero_dropped(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    subject.post(&subscription, 0, "never")?;
    subject.silent(&mut subject.back(&subscription)?)
}

pub(super) fn expires(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    subject.post(&subscription, 1, "expired")?;
    // A TTL is a time: only its passing shows that it is kept.
    std::thread::sleep(Duration::from_millis(2_500));
    subject.silent(&mut subject.back(&subscription)?)
}

fn with_topic(subject: &Subject, to: &Subscription, topic: &str, body: &str) -> Answer {
    let request = Request::post(&to.url, 60)?.header("Topic", topic).encrypted(body);
    subject.accepted(to, &request).map(drop)
}

pub(super) fn topic_replaces(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    with_topic(subject, &subscription, "score", "older")?;
    with_topic(subject, &subscription, "score", "newer")?;
    let mut agent = subject.back(&subscription)?;
    note_of(&mut agent, "newer")?;
    subject.silent(&mut agent)
}

pub(super) fn other_topic_stays(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    let bodies = ["a topic", "another topic", "no topic"];
    with_topic(subject, &subscription, "one", bodies[0])?;
    with_topic(subject, &subscription, "two", bodies[1])?;
    subject.post(&subscription, 60, bodies[2])?;
    let mut agent = subject.back(&subscription)?;
    let mut came = Vec::new();
    for _ in bodies {
        came.push(agent.note()?.text().to_owned());
    }
    ensure(bodies.iter().all(|body| came.iter().any(|text| text == body)), || format!("these came: {came:?}"))
}

pub(super) fn deleted(subject: &Subject) -> Answer {
    let subscription = subject.absent()?;
    let response = subject.post(&subscription, 60, "deleted")?;
    let endpoint = super::subject::parsed(&subscription.url)?;
    let message = response.header("location").and_then(|location| endpoint.join(location));
    let message = message.ok_or_else(|| Miss::Fail("Location names no URL".into()))?;
    let request = Request::new("DELETE", message.target()).header("Host", &message.origin().authority());
    let status = subject.send(&subscription.url, &request)?.status;
    if matches!(status, 405 | 501) {
        return Err(Miss::NotAsked(format!("DELETE of a message is answered {status}")));
    }
    ensure(status / 100 == 2, || format!("DELETE was answered {status}"))?;
    subject.silent(&mut subject.back(&subscription)?)
}
