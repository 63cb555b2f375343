//! Checks of an endpoint by RFC 8030, and by the rules of HTTP where they are used.

use std::io::Write;

use client::http::{self, Request, Response, read_more};

use super::answer::{Answer, Miss, ensure};
use super::subject::{Subject, Subscription, note_of, parsed};

/// Statuses for an endpoint that is gone.
const GONE: [u16; 2] = [404, 410];

fn url_of_message(to: &Subscription, response: &Response) -> Result<String, Miss> {
    let location = response.header("location").ok_or_else(|| Miss::Fail("201 without Location".into()))?;
    let url = parsed(&to.url)?.join(location);
    let url = url.ok_or_else(|| Miss::Fail(format!("Location is no URL: {location}")))?;
    Ok(format!("{}{}", url.origin(), url.target()))
}

pub(super) fn created(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let (one, two) = (subject.post(&to, 60, "one")?, subject.post(&to, 60, "two")?);
    let (one, two) = (url_of_message(&to, &one)?, url_of_message(&to, &two)?);
    ensure(one != two, || "two messages have one Location".into())
}

/// A POST to a new subscription with one header changed must be answered with one of these statuses.
fn answered(subject: &Subject, name: &str, value: &str, statuses: &[u16]) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let request = Request::post(&to.url, 60)?.header(name, value).encrypted("body");
    subject.refused(&to, &request, statuses).map_err(|miss| match miss {
        Miss::Fail(why) => Miss::Fail(format!("{name}: {value}: {why}")),
        other => other,
    })
}

pub(super) fn ttl_required(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    subject.refused(&to, &Request::post(&to.url, 60)?.without("TTL").encrypted("body"), &[400])
}

pub(super) fn ttl_is_a_number(subject: &Subject) -> Answer {
    answered(subject, "TTL", "soon", &[400])
}

pub(super) fn ttl_not_raised(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    for asked in [60u64, 4_000_000_000] {
        let request = Request::post(&to.url, 0)?.header("TTL", &asked.to_string()).encrypted("body");
        let response = subject.accepted(&to, &request)?;
        let Some(ttl) = response.header("ttl") else { continue };
        let holds = ttl.parse::<u64>().is_ok_and(|ttl| ttl <= asked);
        ensure(holds, || format!("TTL {asked} was answered with TTL {ttl}"))?;
    }
    Ok(())
}

pub(super) fn ttl_told(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let response = subject.post(&to, 60, "body")?;
    ensure(response.header("ttl").is_some(), || "201 without TTL".into())
}

pub(super) fn topic_length(subject: &Subject) -> Answer {
    answered(subject, "Topic", &"t".repeat(32), &[201])?;
    answered(subject, "Topic", &"t".repeat(33), &[400])
}

pub(super) fn topic_alphabet(subject: &Subject) -> Answer {
    answered(subject, "Topic", "AZaz09-_", &[201])?;
    answered(subject, "Topic", "not/base64+url", &[400])
}

pub(super) fn urgency_words(subject: &Subject) -> Answer {
    ["very-low", "low", "normal", "high"].iter().try_for_each(|word| answered(subject, "Urgency", word, &[201]))
}

pub(super) fn urgency_several(subject: &Subject) -> Answer {
    answered(subject, "Urgency", "low, high", &[400])
}

pub(super) fn urgency_unknown(subject: &Subject) -> Answer {
    answered(subject, "Urgency", "at-once", &[400])
}

pub(super) fn gone(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    agent.unregister(&to.channel)?;
    subject.refused(&to, &Request::post(&to.url, 60)?.encrypted("body"), &GONE)
}

pub(super) fn never_issued(subject: &Subject) -> Answer {
    let (_agent, mut to) = subject.subscribed(None)?;
    // One character in the middle of the last segment is another.
    let mut url = to.url.into_bytes();
    let last = url.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let at = last + (url.len() - last) / 2;
    url[at] = if url[at] == b'0' { b'1' } else { b'0' };
    to.url = String::from_utf8_lossy(&url).into_owned();
    let status = subject.send(&to.url, &Request::post(&to.url, 60)?.encrypted("body"))?.status;
    ensure((400..500).contains(&status), || format!("a URL that was never issued was answered {status}"))
}

pub(super) fn urls_differ(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let other = agent.register(&client::agent::channel_id(), None)?;
    let common = to.url.bytes().zip(other.bytes()).take_while(|(one, two)| one == two).count();
    let token = to.url.rfind('/').map_or(0, |slash| slash + 1);
    // A version of a few characters may be common.
    ensure(common < token + 8, || format!("the first {} characters of the two tokens are equal", common - token))
}

pub(super) fn body_of_4096(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let body = "b".repeat(4096);
    subject.post(&to, 60, &body)?;
    note_of(&mut agent, &body).map(drop)
}

pub(super) fn large_body(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let body = "b".repeat(20_000);
    let response = subject.send(&to.url, &Request::post(&to.url, 60)?.encrypted(body.as_str()))?;
    match response.status {
        413 => Ok(()),
        201 => note_of(&mut agent, &body).map(drop),
        status => Err(Miss::Fail(format!("a body of 20,000 bytes was answered {status}"))),
    }
}

pub(super) fn receipt(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let request = Request::post(&to.url, 60)?.header("Prefer", "respond-async").encrypted("body");
    let response = subject.send(&to.url, &request)?;
    match response.status {
        202 => {
            let link = response.header("link").unwrap_or_default();
            ensure(link.contains("urn:ietf:params:push:receipt"), || format!("202 with Link {link:?}"))
        }
        201 => Err(Miss::NotAsked("the server has no receipts".into())),
        status => Err(Miss::Fail(format!("answered {status}"))),
    }
}

pub(super) fn https(subject: &Subject) -> Answer {
    if !subject.ws_url.origin().https {
        return Err(Miss::NotAsked("the server is asked without TLS".into()));
    }
    let (_agent, to) = subject.subscribed(None)?;
    ensure(to.url.starts_with("https://"), || "the endpoint URL is not https".into())
}

/// Sends these bytes to the endpoint's server and reads one response.
fn raw(subject: &Subject, to: &Subscription, bytes: &[u8]) -> Result<Response, Miss> {
    let mut stream = subject.endpoint_stream(&parsed(&to.url)?)?;
    stream.write_all(bytes)?;
    let mut inbox = Vec::new();
    loop {
        if let Some((response, _)) = http::parse(&inbox).map_err(Miss::Fail)? {
            return Ok(response);
        }
        if read_more(&mut stream, &mut inbox)? == 0 {
            return Err(Miss::Fail("the connection ended without a response".into()));
        }
    }
}

pub(super) fn chunked(subject: &Subject) -> Answer {
    let (mut agent, to) = subject.subscribed(None)?;
    let url = parsed(&to.url)?;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nTTL: 60\r\nContent-Encoding: aes128gcm\r\nTransfer-Encoding: chunked\r\n\r\n",
        url.target(),
        url.origin().authority()
    );
    let response = raw(subject, &to, &[head.as_bytes(), b"3\r\nchu\r\n4\r\nnked\r\n0\r\n\r\n"].concat())?;
    ensure(response.status == 201, || format!("answered {}", response.status))?;
    note_of(&mut agent, "chunked").map(drop)
}

pub(super) fn host_required(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let target = parsed(&to.url)?;
    let request = format!("POST {} HTTP/1.1\r\nTTL: 60\r\nContent-Length: 0\r\n\r\n", target.target());
    let status = raw(subject, &to, request.as_bytes())?.status;
    ensure(status == 400, || format!("answered {status}"))
}

pub(super) fn allowed_methods(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    let url = parsed(&to.url)?;
    let request = Request::new("PATCH", url.target()).header("Host", &url.origin().authority());
    let response = subject.send(&to.url, &request)?;
    let allow = response.header("allow").unwrap_or_default();
    match response.status {
        405 => ensure(allow.contains("POST"), || format!("405 with Allow {allow:?}")),
        400..=599 => Ok(()),
        status => Err(Miss::Fail(format!("PATCH was answered {status}"))),
    }
}
