//! Checks of content: RFC 8291 as far as a server sees it, and the server requirements of UnifiedPush.

use client::encryption::SubscriptionKeys;
use client::http::Request;

use super::answer::{Answer, Miss, ensure};
use super::subject::{Subject, parsed};

/// Bytes of an endpoint URL at most.
const URL_BYTES_MAX: usize = 1_000;

pub(super) fn decrypts(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let keys = SubscriptionKeys::generate()?;
    let plain = b"conformance";
    subject.accepted(&to, &Request::post(&to.url, 60)?.encrypted(keys.encrypt(plain)?))?;
    let note = agent.note()?;
    ensure(keys.decrypt(&note.body)? == plain, || "the content was changed".into())
}

pub(super) fn encoding_required(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    subject.refused(&to, &Request::post(&to.url, 60)?.body("body"), &[400, 415])
}

pub(super) fn encoding_unknown(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let request = Request::post(&to.url, 60)?.header("Content-Encoding", "rot13").encrypted("body");
    subject.refused(&to, &request, &[400, 415])
}

pub(super) fn old_encoding(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let request = Request::post(&to.url, 60)?
        .header("Content-Encoding", "aesgcm")
        .header("Encryption", "salt=DGv6ra1nlYgDCS1FRnbzlw")
        .header(
            "Crypto-Key",
            "dh=BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8",
        )
        .encrypted("body");
    subject.accepted(&to, &request)?;
    let headers = agent.note()?.headers;
    let has = |name: &str, part: &str| headers[name].as_str().is_some_and(|value| value.contains(part));
    ensure(has("encryption", "salt=") && has("crypto_key", "dh="), || format!("the headers are {headers}"))
}

pub(super) fn every_byte(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let body: Vec<u8> = (0..=255).collect();
    subject.accepted(&to, &Request::post(&to.url, 60)?.encrypted(body.as_slice()))?;
    ensure(agent.note()?.body == body, || "the content was changed".into())
}

pub(super) fn url_length(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    ensure(to.url.len() <= URL_BYTES_MAX, || format!("the URL has {} bytes", to.url.len()))
}

pub(super) fn without_identity(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    subject.post(&to, 60, "body").map(drop)
}

pub(super) fn discovery(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let url = parsed(&to.url)?;
    let request = Request::new("GET", url.target()).header("Host", &url.origin().authority());
    let response = subject.send(&to.url, &request)?;
    let said: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let holds = response.status == 200 && said["unifiedpush"]["version"] == 1;
    ensure(holds, || format!("GET was answered {}", response.status))
}

pub(super) fn unguessable(_: &Subject) -> Answer {
    Err(Miss::NotAsked("a few tokens do not show that they cannot be guessed".into()))
}

pub(super) fn http_2(_: &Subject) -> Answer {
    Err(Miss::NotAsked("user agents of this kind of server use a WebSocket in place of HTTP/2".into()))
}

pub(super) fn too_many_requests(_: &Subject) -> Answer {
    Err(Miss::NotAsked("the limit would be found only by load".into()))
}

pub(super) fn expired_subscription(_: &Subject) -> Answer {
    Err(Miss::NotAsked("no message makes a subscription expire".into()))
}

pub(super) fn server_ping(_: &Subject) -> Answer {
    Err(Miss::NotAsked("servers ping after minutes".into()))
}
