//! Calls of targets that a test serves on loopback.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use machine::ids::StoreTicket;
use machine::message::{Topic, Urgency};
use machine::upstream::{ForwardCall, ForwardKey, ForwardMessage, ForwardOutcome, UpstreamOp, UpstreamReply};
use protocol::wire::url::HttpUrl;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use shards::ports::NoUpstreams;

use super::super::http_client::HttpClient;
use super::super::tests::certificates::TestCertificates;
use super::super::tests::fake::{Fake, answer};
use super::call::{Forwarder, HOST_CALLS_MAX};
use super::*;

const NAME: &str = "up.example";
const LIMITS: ForwardLimits = ForwardLimits { timeout: Duration::from_secs(20), in_flight_max: 128 };

fn here(_: &str) -> std::io::Result<Vec<IpAddr>> {
    Ok(vec![IpAddr::from([127, 0, 0, 1])])
}

fn roots(certificates: &TestCertificates) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.ca()).unwrap()).unwrap();
    roots
}

/// A target with a certificate for these names.
fn target(names: &[&str], answer: impl Fn(&str) -> Option<String> + Send + 'static) -> (Fake, TestCertificates) {
    let certificates = TestCertificates::of(names);
    let chain = vec![CertificateDer::from_pem_file(certificates.cert()).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificates.key()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    (Fake::tls(config, answer), certificates)
}

/// One that may call loopback.
fn forwarder(certificates: &TestCertificates, limits: ForwardLimits) -> Forwarder {
    Forwarder::new(HttpClient::for_strangers_by(roots(certificates), here).admitting(|_| true), limits)
}

fn url(fake: &Fake) -> HttpUrl {
    HttpUrl::parse(&format!("https://{NAME}:{}/secret?a=b", fake.port())).unwrap()
}

fn message() -> ForwardMessage {
    let topic = Topic::new(b"news");
    ForwardMessage { ttl: 60, urgency: Urgency::High, topic, vapid: None, body: b"body"[..].into() }
}

#[tokio::test]
async fn a_target_gets_the_headers_of_the_message_and_no_other() {
    let (fake, certificates) = target(&[NAME], |_| answer("201 Created", "location: https://up.example/m/1\r\n", ""));
    let forwarder = forwarder(&certificates, LIMITS);
    let taken = ForwardOutcome::Answered { status: 201, retry_after: None };
    let claims = br#"{"aud":"https://own.example","exp":1700000000}"#;
    let signed = ForwardMessage { topic: None, vapid: Some((claims[..].into(), ForwardKey([5; 32]))), ..message() };
    for message in [message(), signed] {
        assert_eq!(forwarder.call_url(&url(&fake), Some(&message)).await, taken);
    }
    let heard = fake.heard();
    let fields = |request: &str| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert_eq!(body, "body");
        let mut lines = head.lines().map(str::to_owned);
        assert_eq!(lines.next().unwrap(), "post /secret?a=b http/1.1");
        let mut fields: Vec<_> = lines.collect();
        fields.sort();
        fields
    };
    let host = format!("host: {NAME}:{}", fake.port());
    let rest = ["connection: close", "content-encoding: aes128gcm", "content-length: 4", &host];
    assert_eq!(fields(&heard[0]), [&rest[..], &["topic: news", "ttl: 60", "urgency: high"]].concat());
    let signed = fields(&heard[1]);
    assert!(signed[0].starts_with("authorization: vapid t=") && signed[0].contains(",k="), "{signed:?}");
    assert_eq!(signed[1..], [&rest[..], &["ttl: 60", "urgency: high"]].concat());
}

#[tokio::test]
async fn statuses_are_reported_and_redirects_are_not_followed() {
    let (fake, certificates) = target(&[NAME], |_| None);
    let forwarder = forwarder(&certificates, LIMITS);
    for (status, fields, retry_after) in [
        ("200 OK", "", None),
        ("307 Temporary Redirect", "location: https://up.example/other\r\n", None),
        ("429 Too Many Requests", "retry-after: 77\r\n", Some(77)),
        ("429 Too Many Requests", "retry-after: 1\r\n", Some(10)),
        ("503 Service Unavailable", "retry-after: 99999999999\r\n", Some(3_600)),
        ("503 Service Unavailable", "retry-after: Wed, 21 Oct 2099 07:28:00 GMT\r\n", Some(3_600)),
        ("404 Not Found", "", None),
    ] {
        fake.answer_now(move |_| answer(status, fields, &"x".repeat(100_000)));
        let outcome = ForwardOutcome::Answered { status: status[..3].parse().unwrap(), retry_after };
        assert_eq!(forwarder.call_url(&url(&fake), Some(&message())).await, outcome);
    }
    assert_eq!(fake.heard().len(), 7);
    fake.answer_now(|_| Some("nonsense".to_owned()));
    assert_eq!(forwarder.call_url(&url(&fake), Some(&message())).await, ForwardOutcome::Unreachable);
    fake.answer_now(|_| Some(format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(20_000))));
    assert_eq!(forwarder.call_url(&url(&fake), Some(&message())).await, ForwardOutcome::Unreachable);
}

#[tokio::test]
async fn a_target_is_called_by_a_name_that_its_certificate_has() {
    let (fake, certificates) = target(&["other.example"], |_| answer("201 Created", "", ""));
    let outcome = forwarder(&certificates, LIMITS).call_url(&url(&fake), Some(&message())).await;
    assert_eq!((outcome, fake.heard().len()), (ForwardOutcome::Unreachable, 0));
    let stranger =
        Forwarder::new(HttpClient::for_strangers_by(RootCertStore::empty(), here).admitting(|_| true), LIMITS);
    assert_eq!(stranger.call_url(&url(&fake), Some(&message())).await, ForwardOutcome::Unreachable);
}

#[tokio::test]
async fn a_host_with_one_address_that_is_not_public_is_never_called() {
    let (fake, certificates) = target(&[NAME], |_| answer("201 Created", "", ""));
    let mixed: fn(&str) -> std::io::Result<Vec<IpAddr>> =
        |_| Ok(vec![IpAddr::from([192, 31, 196, 1]), IpAddr::from([127, 0, 0, 1])]);
    for ask in [here, mixed] {
        let forwarder = Forwarder::new(HttpClient::for_strangers_by(roots(&certificates), ask), LIMITS);
        for message in [None, Some(&message())] {
            assert_eq!(forwarder.call_url(&url(&fake), message).await, ForwardOutcome::Forbidden);
        }
    }
    let literal = HttpUrl::parse(&format!("https://127.0.0.1:{}/", fake.port())).unwrap();
    let forwarder = Forwarder::new(HttpClient::for_strangers_by(roots(&certificates), here), LIMITS);
    assert_eq!(forwarder.call_url(&literal, Some(&message())).await, ForwardOutcome::Forbidden);
    let call = ForwardCall { url: "https://10.0.0.1/".into(), message: Some(message()) };
    assert_eq!(forwarder.call(&call).await, ForwardOutcome::Forbidden, "the rules for URLs hold here too");
    assert_eq!(fake.heard().len(), 0);
}

static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

/// A public address at the first lookup, and loopback from then on.
fn rebinding(_: &str) -> std::io::Result<Vec<IpAddr>> {
    let first = LOOKUPS.fetch_add(1, Ordering::SeqCst) == 0;
    Ok(vec![IpAddr::from(if first { [192, 31, 196, 1] } else { [127, 0, 0, 1] })])
}

#[tokio::test]
async fn a_name_that_becomes_private_after_its_check_is_not_called() {
    let (fake, certificates) = target(&[NAME], |_| answer("201 Created", "", ""));
    let forwarder = Forwarder::new(HttpClient::for_strangers_by(roots(&certificates), rebinding), LIMITS);
    assert_eq!(forwarder.call_url(&url(&fake), None).await, ForwardOutcome::Allowed);
    assert_eq!(forwarder.call_url(&url(&fake), Some(&message())).await, ForwardOutcome::Forbidden);
    assert_eq!((LOOKUPS.load(Ordering::SeqCst), fake.heard().len()), (2, 0), "one lookup for one connection");
}

#[tokio::test]
async fn a_name_without_an_address_is_unreachable() {
    let certificates = TestCertificates::of(&[NAME]);
    let nothing: fn(&str) -> std::io::Result<Vec<IpAddr>> = |_| Ok(Vec::new());
    let fails: fn(&str) -> std::io::Result<Vec<IpAddr>> = |_| Err(std::io::Error::other("no such name"));
    for ask in [nothing, fails] {
        let forwarder = Forwarder::new(HttpClient::for_strangers_by(roots(&certificates), ask), LIMITS);
        for message in [None, Some(message())] {
            let call = ForwardCall { url: format!("https://{NAME}/").into(), message };
            assert_eq!(forwarder.call(&call).await, ForwardOutcome::Unreachable);
        }
    }
}

#[tokio::test]
async fn a_target_that_does_not_answer_takes_the_time_of_its_own_calls_only() {
    let (fake, certificates) = target(&[NAME], |_| None);
    let limits = ForwardLimits { timeout: Duration::from_millis(700), in_flight_max: HOST_CALLS_MAX + 1 };
    let forwarder = Arc::new(forwarder(&certificates, limits));
    let begin = |name: &str| {
        let url = HttpUrl::parse(&format!("https://{name}:{}/", fake.port())).unwrap();
        let forwarder = Arc::clone(&forwarder);
        tokio::spawn(async move { forwarder.call_url(&url, Some(&message())).await })
    };
    let calls: Vec<_> = (0..HOST_CALLS_MAX).map(|_| begin(NAME)).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(begin(NAME).await.unwrap(), ForwardOutcome::Unavailable, "beyond the bound of a host");
    // Another host has its place, until the bound of all hosts.
    let other = begin("other.example");
    tokio::task::yield_now().await;
    assert_eq!(begin("third.example").await.unwrap(), ForwardOutcome::Unavailable, "beyond the bound of all");
    assert_eq!(other.await.unwrap(), ForwardOutcome::Unreachable, "its certificate has another name");
    for call in calls {
        assert_eq!(call.await.unwrap(), ForwardOutcome::NoAnswer);
    }
    let in_flight = forwarder.in_flight.lock().unwrap();
    assert_eq!((in_flight.all, in_flight.by_host.len()), (0, 0), "every place is free again");
}

#[tokio::test]
async fn a_shard_gets_one_reply_for_each_call() {
    let queue = Arc::new(ForwardQueue::new().unwrap());
    let nothing: fn(&str) -> std::io::Result<Vec<IpAddr>> = |_| Ok(Vec::new());
    let client = HttpClient::for_strangers_by(RootCertStore::empty(), nothing);
    let driver = ForwardDriver::with(Arc::clone(&queue), Forwarder::new(client, LIMITS));
    let woken = Arc::new(tokio::sync::Notify::new());
    let bell = Arc::clone(&woken);
    let mut port = queue.port(Arc::new(move || bell.notify_one()), Box::new(NoUpstreams::default()));
    let ticket = StoreTicket { index: 3, generation: 4 };
    let call = Arc::new(ForwardCall { url: format!("https://{NAME}/").into(), message: None });
    let running = tokio::spawn(driver.run());
    port.submit(ticket, UpstreamOp::Forward(call));
    woken.notified().await;
    let reply = UpstreamReply::Forward(ForwardOutcome::Unreachable);
    assert_eq!((port.collect(), port.collect()), (Some((ticket, reply)), None));
    running.abort();
}
