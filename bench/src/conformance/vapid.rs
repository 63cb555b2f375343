//! Checks of RFC 8292: tokens on locked subscriptions.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use client::agent::Agent;
use client::http::Request;
use protocol::webpush::identity::Identity;

use super::answer::{Answer, Miss, ensure};
use super::subject::{Subject, Subscription, note_of, parsed};

const HOUR: u64 = 3_600;
/// Statuses that refuse a sender.
const REFUSED: [u16; 3] = [400, 401, 403];

/// A locked subscription with its key.
struct Locked {
    agent: Agent,
    to: Subscription,
    identity: Identity,
}

fn locked(subject: &Subject) -> Result<Locked, Miss> {
    let identity = Identity::generate();
    let (agent, to) = subject.subscribed(Some(&identity.public_key()))?;
    Ok(Locked { agent, to, identity })
}

fn now() -> io::Result<u64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(since.map_err(|_| io::Error::other("the clock of this host is before 1970"))?.as_secs())
}

fn audience(to: &Subscription) -> io::Result<String> {
    Ok(parsed(&to.url)?.origin().to_string())
}

/// A POST with this `Authorization`.
fn signed(to: &Subscription, authorization: &str) -> io::Result<Request> {
    Ok(Request::post(&to.url, 60)?.header("Authorization", authorization).encrypted("signed"))
}

/// Checks that a good token of this identity is accepted.
pub(super) fn accepts(subject: &Subject, to: &Subscription, identity: &Identity) -> Answer {
    let authorization = identity.authorization(&audience(to)?, now()? + HOUR);
    subject.accepted(to, &signed(to, &authorization)?).map(drop)
}

pub(super) fn good(subject: &Subject) -> Answer {
    let mut locked = locked(subject)?;
    accepts(subject, &locked.to, &locked.identity)?;
    note_of(&mut locked.agent, "signed").map(drop)
}

pub(super) fn unlocked(subject: &Subject) -> Answer {
    let (_agent, to) = subject.subscribed(None)?;
    accepts(subject, &to, &Identity::generate())
}

pub(super) fn missing(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    subject.refused(&locked.to, &Request::post(&locked.to.url, 60)?.encrypted("signed"), &REFUSED)
}

pub(super) fn missing_status(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    subject.refused(&locked.to, &Request::post(&locked.to.url, 60)?.encrypted("signed"), &[401])
}

pub(super) fn challenge(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let response = subject.send(&locked.to.url, &Request::post(&locked.to.url, 60)?.encrypted("signed"))?;
    if response.status != 401 {
        return Err(Miss::NotAsked(format!("the refusal is {}, not 401", response.status)));
    }
    ensure(response.header("www-authenticate").is_some(), || "401 without WWW-Authenticate".into())
}

pub(super) fn other_key(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let authorization = Identity::generate().authorization(&audience(&locked.to)?, now()? + HOUR);
    subject.refused(&locked.to, &signed(&locked.to, &authorization)?, &REFUSED)
}

pub(super) fn expired(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let authorization = locked.identity.authorization(&audience(&locked.to)?, now()? - HOUR);
    subject.refused(&locked.to, &signed(&locked.to, &authorization)?, &REFUSED)
}

pub(super) fn far_future(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let authorization = locked.identity.authorization(&audience(&locked.to)?, now()? + 48 * HOUR);
    subject.refused(&locked.to, &signed(&locked.to, &authorization)?, &REFUSED)
}

pub(super) fn other_audience(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let authorization = locked.identity.authorization("https://elsewhere.example", now()? + HOUR);
    subject.refused(&locked.to, &signed(&locked.to, &authorization)?, &REFUSED)
}

pub(super) fn changed_signature(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let good = locked.identity.authorization(&audience(&locked.to)?, now()? + HOUR);
    let other = locked.identity.authorization(&audience(&locked.to)?, now()? + 2 * HOUR);
    // Header and claims of one token, the signature of the other.
    let token = |text: &str| text.split(',').next().unwrap_or_default().to_owned();
    let (good, other) = (token(&good), token(&other));
    let (claims, _) = good.rsplit_once('.').unwrap_or_default();
    let (_, signature) = other.rsplit_once('.').unwrap_or_default();
    let forged = format!("{claims}.{signature},k={}", locked.identity.public_key());
    subject.refused(&locked.to, &signed(&locked.to, &forged)?, &REFUSED)
}

pub(super) fn key_missing(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let good = locked.identity.authorization(&audience(&locked.to)?, now()? + HOUR);
    let token = good.split(',').next().unwrap_or_default();
    subject.refused(&locked.to, &signed(&locked.to, token)?, &REFUSED)
}

/// The key of the sender in the header of the content (RFC 8188 section 2.1) is the key that signs.
pub(super) fn one_key_for_both(subject: &Subject) -> Answer {
    let locked = locked(subject)?;
    let authorization = locked.identity.authorization(&audience(&locked.to)?, now()? + HOUR);
    let mut body = vec![7; 16];
    body.extend_from_slice(&4_096u32.to_be_bytes());
    body.push(65);
    body.extend_from_slice(locked.identity.point());
    body.extend_from_slice(&[7; 18]);
    let request = Request::post(&locked.to.url, 60)?.header("Authorization", &authorization).encrypted(body);
    subject.refused(&locked.to, &request, &[400])
}
