//! The broadcast source: its requests, and the result of each kind of bad answer.

use std::collections::BTreeMap;
use std::time::Duration;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{RootCertStore, ServerConfig};

use super::super::http_client::HttpClientError;
use super::super::{broadcast_poller, broadcasts};
use super::*;
use config::Secret;
use fixtures::{Fake, answer, broadcasts as values};

/// A poller of this URL with the token `sesame`, and a recorder of its results.
fn poller(url: &str, client: HttpClient) -> (BroadcastPoller, Arc<Recorder>) {
    let host = Arc::new(Recorder::new());
    let known = Arc::new(Broadcasts::default());
    known.attach(Arc::clone(&host) as Arc<dyn Host>);
    let token = Some(Secret::new("sesame"));
    let source = BroadcastSource { url: HttpUrl::parse(url).unwrap(), token, interval: Duration::from_secs(3600) };
    (BroadcastPoller::new(source, Arc::new(client), known), host)
}

/// Those numbers that are not zero.
fn numbers(poller: &BroadcastPoller) -> BTreeMap<&'static str, u64> {
    let board = poller.board();
    board.read().filter(|(_, value)| *value > 0).map(|(meaning, value)| (&meaning.name[17..], value)).collect()
}

fn last(poller: &BroadcastPoller) -> Option<Result<(), HttpClientError>> {
    broadcast_poller::lock(&poller.state()).last.clone()
}

#[tokio::test]
async fn what_the_source_says_reaches_the_shards_once() {
    let fake = Fake::start(|_| values("a/b", "1"));
    let (mut poller, host) = poller(&fake.url("/v1/all?env=test"), HttpClient::new());
    assert_eq!(last(&poller), None);
    poller.poll().await;
    poller.poll().await;
    fake.answer_now(|_| answer("203 Other", "", r#"{"code":200,"broadcasts":{"a/b":"1","c":"2"}}"#));
    poller.poll().await;
    assert_eq!(host.heard(), [vec![("a/b", "1")], vec![("c", "2")]].map(owned));
    assert_eq!(numbers(&poller), BTreeMap::from([("ok", 3), ("news", 2), ("up", 1)]));
    assert_eq!(last(&poller), Some(Ok(())));
    let request = &fake.heard()[0];
    assert!(request.starts_with("get /v1/all?env=test http/1.1\r\n"), "{request}");
    for field in [
        format!("\r\nhost: 127.0.0.1:{}\r\n", fake.port()),
        "\r\naccept: application/json\r\n".to_owned(),
        "\r\nauthorization: bearer sesame\r\n".to_owned(),
        "\r\nconnection: close\r\n".to_owned(),
        "\r\nuser-agent: murre/".to_owned(),
    ] {
        assert!(request.contains(&field), "{field:?} in {request}");
    }
}

#[tokio::test]
async fn a_source_that_asks_for_a_pause_gets_one() {
    let fake = Fake::start(|_| None);
    let (mut poller, _) = poller(&fake.url("/"), HttpClient::new());
    let date = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
    for (status, fields, seconds) in [
        ("503 Down", "retry-after: 77\r\n".to_owned(), 77),
        ("429 Busy", format!("{date}retry-after: Sun, 06 Nov 1994 09:19:37 GMT\r\n"), 1_800),
        ("503 Down", "retry-after: 99999999999999999999999\r\n".to_owned(), 3_600),
        ("503 Down", "retry-after: soon\r\n".to_owned(), 0),
        ("500 Broken", "retry-after: 77\r\n".to_owned(), 0),
    ] {
        let shown = fields.clone();
        fake.answer_now(move |_| answer(status, &fields, ""));
        poller.poll().await;
        assert_eq!(poller.pause, Duration::from_secs(seconds), "{status} {shown}");
    }
    fake.answer_now(|_| values("a/b", "1"));
    poller.poll().await;
    assert_eq!(poller.pause, Duration::ZERO);
}

#[tokio::test]
async fn redirects_are_followed_and_who_is_elsewhere_never_sees_the_token() {
    let away = Fake::start(|_| None);
    let (home, elsewhere) = (Fake::start(|_| None), away.url("/away"));
    home.answer_now(move |request| match request.split(' ').nth(1).unwrap() {
        "/start/here" => answer("302 Found", "location: next?x\r\n", "moved"),
        "/start/next?x" => answer("307 Away", &format!("location: {elsewhere}\r\n"), ""),
        _ => values("a", "1"),
    });
    let back = home.url("/back");
    away.answer_now(move |_| answer("301 Back", &format!("location: {back}\r\n"), ""));
    let (mut poller, host) = poller(&home.url("/start/here"), HttpClient::new());
    poller.poll().await;
    assert_eq!(host.heard(), [vec![("a", "1")]].map(owned));
    let with_token: Vec<bool> = home.heard().iter().map(|request| request.contains("sesame")).collect();
    assert_eq!(with_token, [true, true, false], "who was sent back by somebody else is not at home any more");
    assert_eq!(away.heard().len(), 1);
    assert!(!away.heard()[0].contains("authorization"), "{}", away.heard()[0]);
}

#[tokio::test]
async fn redirects_that_lead_nowhere_end() {
    let fake = Fake::start(|_| answer("302 Found", "location: /again\r\n", ""));
    let (mut poller, host) = poller(&fake.url("/"), HttpClient::new());
    poller.poll().await;
    assert_eq!(fake.heard().len(), 4, "the first and three redirects");
    for fields in ["", "location: ftp://127.0.0.1/\r\n", "location: http://\r\n"] {
        fake.answer_now(move |_| answer("301 Moved", fields, ""));
        poller.poll().await;
    }
    assert_eq!(numbers(&poller), BTreeMap::from([("redirect", 4)]));
    assert!(host.heard().is_empty());
}

/// One poll that must fail, and for which reason.
async fn fails(poller: &mut BroadcastPoller, reason: &'static str) {
    let before = numbers(poller).get(reason).copied().unwrap_or(0);
    poller.poll().await;
    let after = numbers(poller);
    assert_eq!(after.get(reason), Some(&(before + 1)), "{after:?} {:?}", last(poller));
    assert_eq!(after.get("up"), None);
}

#[tokio::test]
async fn failures_are_counted_by_reason_and_what_is_known_stays() {
    let fake = Fake::start(|_| values("a", "1"));
    let (mut poller, host) = poller(&fake.url("/"), HttpClient::new());
    poller.poll().await;
    for status in ["500 Down", "404 Gone", "304 Same", "300 Choose"] {
        fake.answer_now(move |_| answer(status, "location: /\r\n", r#"{"broadcasts":{"a":"2"}}"#));
        fails(&mut poller, "status").await;
    }
    let long = "x".repeat(129);
    for body in ["", "<html>", r#"{"a":"2"}"#, &format!(r#"{{"broadcasts":{{"a":"{long}"}}}}"#)] {
        let body = body.to_owned();
        fake.answer_now(move |_| answer("200 OK", "", &body));
        fails(&mut poller, "body").await;
    }
    let many: Vec<String> = (0..1024).map(|id| format!("\"{id}\":\"1\"")).collect();
    fake.answer_now(move |_| answer("200 OK", "", &format!("{{\"broadcasts\":{{{}}}}}", many.join(","))));
    fails(&mut poller, "body").await;
    // Too large, said at once or not; and cut off.
    let large = broadcasts::BROADCASTS_BODY_BYTES_MAX + 1;
    fake.answer_now(move |_| answer("200 OK", "", &" ".repeat(large)));
    fails(&mut poller, "body").await;
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", " ".repeat(large));
    fake.answer_now(move |_| Some(endless.clone()));
    fails(&mut poller, "body").await;
    fake.answer_now(|_| Some("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_owned()));
    fails(&mut poller, "body").await;
    for garbage in [String::new(), "what?\r\n\r\n".to_owned(), format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(99_999))]
    {
        fake.answer_now(move |_| Some(garbage.clone()));
        fails(&mut poller, "connect").await;
    }
    assert_eq!(host.heard(), [vec![("a", "1")]].map(owned));
    fake.answer_now(|_| values("a", "2"));
    poller.poll().await;
    assert_eq!(host.heard().len(), 2);
    assert_eq!((numbers(&poller)["up"], last(&poller)), (1, Some(Ok(()))));
}

#[tokio::test]
async fn a_source_that_does_not_answer_or_is_not_there_is_given_up() {
    let fake = Fake::start(|_| None);
    let (mut asking, host) = poller(&fake.url("/"), HttpClient::new());
    asking.patience = Duration::from_millis(50);
    fails(&mut asking, "timeout").await;
    // Half an answer is none.
    fake.answer_now(|_| Some("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n".to_owned() + &" ".repeat(98)));
    asking.patience = Duration::from_secs(20);
    fails(&mut asking, "body").await;
    fake.answer_now(|_| values("a", "1"));
    asking.poll().await;
    assert_eq!(host.heard().len(), 1);

    let (mut asking, _) = poller("http://127.0.0.1:1/", HttpClient::new());
    fails(&mut asking, "connect").await;
    let said = last(&asking).unwrap().unwrap_err().to_string();
    assert!(said.starts_with("cannot talk to it: Connection refused"), "{said}");
}

#[tokio::test]
async fn names_are_looked_up() {
    let fake = Fake::start(|_| values("a", "1"));
    let (mut poller, host) = poller(&format!("http://LocalHost:{}/", fake.port()), HttpClient::new());
    poller.poll().await;
    assert_eq!(host.heard().len(), 1, "{:?}", last(&poller));
    assert!(fake.heard()[0].contains(&format!("\r\nhost: localhost:{}\r\n", fake.port())));
}

#[tokio::test]
async fn https_wants_a_certificate_that_is_trusted_and_of_this_name() {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key.into()).unwrap();
    let fake = Fake::tls(config, |_| values("a", "1"));
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).unwrap();
    let named = format!("https://localhost:{}/", fake.port());

    let (mut trusting, host) = poller(&named, HttpClient::trusting(roots.clone()));
    trusting.poll().await;
    assert_eq!(host.heard(), [vec![("a", "1")]].map(owned), "{:?}", last(&trusting));
    assert!(fake.heard()[0].contains("sesame"));

    let (mut trusting_nobody, _) = poller(&named, HttpClient::trusting(RootCertStore::empty()));
    fails(&mut trusting_nobody, "connect").await;
    let other_name = format!("https://127.0.0.1:{}/", fake.port());
    let (mut misled, _) = poller(&other_name, HttpClient::trusting(roots.clone()));
    fails(&mut misled, "connect").await;
    assert_eq!(fake.heard().len(), 1, "nothing is said to who is not trusted");

    // Not even to the same host.
    fake.answer_now(|_| answer("302 Found", "location: http://localhost/\r\n", ""));
    fails(&mut trusting, "redirect").await;
}
