//! Orders against an authority in this process.

use std::net::TcpListener;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::body::Bytes;
use hyper::{Request, Response};
use instant_acme::{Account, BodyWrapper, BytesResponse, CertificateIdentifier, Error, HttpClient};
use machine::BroadcastVersion;
use protocol::wire::url::HttpUrl;
use rcgen::KeyPair;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::files::Files;
use super::files::tests::made;
use super::order::{Failure, Ordered, Wanted, order};
use super::{Acme, Answers, OrderBook, Outcome, schedule};
use config::Challenge;
use store::fault::FaultKind;

use crate::{Backup, BackupFault, Host};

/// An authority that answers each path in turn with these, the last one for ever, and counts requests.
#[derive(Clone, Default)]
struct Authority(Arc<Mutex<Vec<Path>>>);

struct Path {
    path: &'static str,
    answers: Vec<(u16, Value)>,
    asked: usize,
}

impl Authority {
    fn with(self, path: &'static str, answers: Vec<(u16, Value)>) -> Authority {
        self.0.lock().unwrap().push(Path { path, answers, asked: 0 });
        self
    }

    fn asked(&self, path: &str) -> usize {
        self.0.lock().unwrap().iter().find(|one| one.path == path).map_or(0, |one| one.asked)
    }

    /// The end of an order for one name.
    async fn refuses(&self, replaces: bool) -> Failure {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
        self.ends(replaces, &files).await.err().expect("no certificate")
    }

    async fn ends(&self, replaces: bool, files: &Files) -> Result<Ordered, Failure> {
        let key = URL_SAFE_NO_PAD.encode(KeyPair::generate().unwrap().serialize_der());
        let urls = ["newNonce", "newAccount", "newOrder", "renewalInfo"].map(|of| (of, format!("https://a/{of}")));
        let urls: serde_json::Map<_, _> = urls.into_iter().map(|(of, url)| (of.to_owned(), url.into())).collect();
        let credentials = json!({ "id": "https://a/account", "key_pkcs8": key, "directory": null, "urls": urls });
        let builder = Account::builder_with_http(Box::new(self.clone()));
        let account = builder.from_credentials(serde_json::from_value(credentials).unwrap()).await.unwrap();
        let replaces =
            replaces.then(|| CertificateIdentifier::new(b"key"[..].into(), b"serial"[..].into()).into_owned());
        let wanted = Wanted { name: "n.example", replaces, profile: None, challenge: Challenge::Http01 };
        order(&account, &wanted, &Answers::default(), files).await
    }
}

impl HttpClient for Authority {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let mut paths = self.0.lock().unwrap();
        let found = paths.iter_mut().find(|one| request.uri().path() == one.path);
        let (status, body) = found.map_or((200, Value::Null), |one| {
            one.asked += 1;
            one.answers[(one.asked - 1).min(one.answers.len() - 1)].clone()
        });
        let answer = Response::builder().status(status).header("replay-nonce", "bm9uY2U");
        let answer = answer.header("location", "https://a/order/1").body(()).unwrap();
        let (parts, body) = (answer.into_parts().0, Bytes::from(body.to_string()));
        Box::pin(async move { Ok(BytesResponse { parts, body: Box::new(body) }) })
    }
}

fn an_order(authorizations: &[&str]) -> Vec<(u16, Value)> {
    let order = json!({ "status": "pending", "authorizations": authorizations, "finalize": "https://a/finalize" });
    vec![(201, order)]
}

fn authorization(token: &str) -> Vec<(u16, Value)> {
    let challenge = json!({ "type": "http-01", "url": "https://a/challenge", "token": token, "status": "pending" });
    let name = json!({ "type": "dns", "value": "n.example" });
    vec![(200, json!({ "identifier": name, "status": "pending", "challenges": [challenge] }))]
}

fn problem(status: u16, kind: &str, detail: &str) -> Vec<(u16, Value)> {
    let kind = format!("urn:ietf:params:acme:error:{kind}");
    vec![(status, json!({ "type": kind, "detail": detail, "status": status }))]
}

const TOKEN: &str = "evaGxfADs6pSRb2LAv9IZf17Dt3juxGJ-PCt92wr-oA";

#[tokio::test]
async fn an_order_has_one_proof_and_its_token_is_one() {
    let several = ["https://a/authz"; 2];
    let authority = Authority::default().with("/newOrder", an_order(&several)).with("/authz", authorization(TOKEN));
    assert_eq!(authority.refuses(false).await.reason, "cannot order: the authority requires 2 proofs for one name");
    assert_eq!(authority.asked("/authz"), 0);
    for token in ["", "e", &TOKEN[..21], &"x".repeat(129), "evaGxfADs6pSRb2LAv9IZf17D/3juxGJ"] {
        let authority = Authority::default().with("/newOrder", an_order(&several[..1]));
        let failure = authority.with("/authz", authorization(token)).refuses(false).await;
        assert_eq!(failure.reason, "the authority sent a token that breaks its protocol", "{token}");
    }
}

#[tokio::test]
async fn a_token_is_masked_in_the_answer_to_a_challenge() {
    let authority = Authority::default().with("/newOrder", an_order(&["https://a/authz"]));
    let authority = authority.with("/authz", authorization(TOKEN));
    let failure = authority.with("/challenge", problem(400, "connection", &format!("no {TOKEN}"))).refuses(false).await;
    assert!(failure.reason.contains("no (token)") && !failure.reason.contains(TOKEN), "{}", failure.reason);
}

#[tokio::test]
async fn an_order_is_repeated_only_for_the_certificate_that_it_replaces() {
    for (status, kind, wanted) in [
        (409, "alreadyReplaced", 2),
        (400, "malformed", 2),
        (404, "serverInternal", 2),
        (429, "rateLimited", 1),
        (403, "unauthorized", 1),
        (400, "rejectedIdentifier", 1),
    ] {
        let authority = Authority::default().with("/newOrder", problem(status, kind, "no"));
        authority.refuses(true).await;
        assert_eq!(authority.asked("/newOrder"), wanted, "{kind}");
        let without = Authority::default().with("/newOrder", problem(status, kind, "no"));
        without.refuses(false).await;
        assert_eq!(without.asked("/newOrder"), 1, "{kind}");
    }
    let authority = Authority::default().with("/newOrder", an_order(&["https://a/authz"; 2]));
    assert!(authority.refuses(true).await.reason.contains("2 proofs"), "the first one left `replaces` out");
    assert_eq!(authority.asked("/newOrder"), 2);
}

fn state(status: &str) -> (u16, Value) {
    let finalize = json!("https://a/finalize");
    (200, json!({ "status": status, "authorizations": [], "finalize": finalize, "certificate": "https://a/cert" }))
}

#[tokio::test]
async fn an_order_goes_on_with_its_key_after_a_restart_and_is_begun_again_when_it_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
    let new = vec![(201, state("ready").1)];
    // Nothing of use comes after the request of the certificate, or the authority has no time.
    let (nothing, busy) = (vec![(200, Value::Null)], problem(503, "serverInternal", "busy"));
    let mut begun = 0;
    for answer in [nothing, busy, problem(429, "rateLimited", "later")] {
        let first = Authority::default().with("/newOrder", new.clone()).with("/order/1", vec![state("ready")]);
        let first = first.with("/finalize", answer);
        first.ends(false, &files).await.err().expect("no certificate");
        begun += first.asked("/newOrder");
    }
    for answer in [problem(503, "serverInternal", "busy"), problem(429, "rateLimited", "later")] {
        let next = Authority::default().with("/newOrder", new.clone()).with("/order/1", answer);
        next.ends(false, &files).await.err().expect("no certificate");
        begun += next.asked("/newOrder");
    }
    assert_eq!(begun, 1, "one order for all attempts");
    let key = files.pending("n.example", None).unwrap().key;
    // The next one finds it ready, or processing, or with its certificate.
    for (states, finalized) in [
        (vec![state("ready"), state("valid")], 1),
        (vec![state("processing"), state("valid")], 0),
        (vec![state("valid")], 0),
    ] {
        let next = Authority::default().with("/newOrder", new.clone()).with("/order/1", states);
        let next = next.with("/finalize", vec![state("processing")]).with("/cert", vec![(200, json!("chain"))]);
        let ordered = next.ends(false, &files).await.unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!((next.asked("/newOrder"), next.asked("/finalize"), &ordered.key), (0, finalized, &key));
    }
    // An order that the authority has refused or forgotten is over: another one with another key.
    for over in
        [vec![state("invalid"), state("valid")], [problem(404, "malformed", "no"), vec![state("valid")]].concat()]
    {
        let next = Authority::default().with("/newOrder", new.clone()).with("/order/1", over);
        let next = next.with("/finalize", vec![state("processing")]).with("/cert", vec![(200, json!("chain"))]);
        let ordered = next.ends(false, &files).await.unwrap_or_else(|failure| panic!("{failure:?}"));
        assert_eq!(next.asked("/newOrder"), 1);
        assert!(ordered.key != key && ordered.key == files.pending("n.example", None).unwrap().key);
        files.set_pending("n.example", None, "https://a/order/1", &key).unwrap();
    }
    // Its certificate was written, and the process ended before the order was forgotten.
    std::fs::write(dir.path().join("n.example.pem"), format!("https://a/dir\n{key}chain")).unwrap();
    assert!(files.pending("n.example", None).is_none());
}

#[tokio::test]
async fn an_authority_that_is_busy_while_it_looks_at_a_proof_ends_no_order() {
    for answer in [problem(503, "serverInternal", "busy"), problem(429, "rateLimited", "later")] {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
        let authority = Authority::default().with("/newOrder", an_order(&["https://a/authz"]));
        let challenge = json!({ "type": "http-01", "url": "https://a/challenge", "token": TOKEN, "status": "valid" });
        let authority = authority.with("/authz", authorization(TOKEN)).with("/challenge", vec![(200, challenge)]);
        authority.with("/order/1", answer).ends(false, &files).await.err().expect("no certificate");
        assert!(files.pending("n.example", None).is_some());
    }
}

#[tokio::test]
async fn a_token_is_masked_behind_its_proof_and_a_refusal_ends_the_order() {
    let dir = tempfile::tempdir().unwrap();
    let files = Files::new(dir.path().to_owned(), "https://a/dir".to_owned());
    let authority = Authority::default().with("/newOrder", an_order(&["https://a/authz"]));
    let authority = authority.with("/authz", authorization(TOKEN)).with("/order/1", vec![state("ready")]);
    let challenge = json!({ "type": "http-01", "url": "https://a/challenge", "token": TOKEN, "status": "valid" });
    let authority = authority.with("/challenge", vec![(200, challenge)]);
    let authority = authority.with("/finalize", problem(403, "unauthorized", &format!("no {TOKEN}")));
    let reason = authority.ends(false, &files).await.err().expect("refused").reason;
    assert!(reason.contains("no (token)") && !reason.contains(TOKEN), "{reason}");
    assert!(files.pending("n.example", None).is_none(), "the next attempt begins another one");
}

/// A host that fails to take certificates this many times.
struct Failing(AtomicU32);

impl Host for Failing {
    fn set_broadcasts(&self, _: Arc<[BroadcastVersion]>) {}

    fn read_storage(&self) {}

    fn refresh(&self) {}

    fn is_stopping(&self) -> bool {
        false
    }

    fn renew_certificates(&self) -> Result<(), String> {
        let left = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() { Err("unreadable".to_owned()) } else { Ok(()) }
    }

    fn backup(&self, _: &str) -> Result<Backup, BackupFault> {
        Err(BackupFault { said: "no backup".to_owned(), kind: FaultKind::Lasting })
    }
}

fn failing(times: u32) -> Arc<dyn Host> {
    Arc::new(Failing(AtomicU32::new(times)))
}

/// With these names, in an empty directory.
fn acme(names: &[&str], directory: &str) -> (Acme, Arc<OrderBook>, tempfile::TempDir) {
    let (dir, book) = (tempfile::tempdir().unwrap(), Arc::new(OrderBook::default()));
    let settings = config::Acme { directory: HttpUrl::parse(directory), ..config::Acme::default() };
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let acme = Acme::new(settings, &names, dir.path().to_owned(), (Answers::default(), Arc::clone(&book)));
    (acme.unwrap().unwrap(), book, dir)
}

const NO_AUTHORITY: &str = "https://127.0.0.1:1/directory";

#[tokio::test]
async fn certificates_that_were_not_shown_are_shown_later_and_awaited_until_then() {
    let (mut acme, book, _dir) = acme(&["n.example"], NO_AUTHORITY);
    let [key, chain] = made("n.example", 2999);
    let issued = acme.files.set_issued("n.example", &key, &chain).unwrap();
    let host = failing(1);
    acme.issued(0, issued, &host).await;
    assert!(book.waits_for().is_some());
    assert!(acme.unshown == 1 && acme.show_at > Instant::now() + schedule::BACK_OFF_MIN / 2);
    acme.show_at = Instant::now();
    let shown = async {
        while book.waits_for().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = acme.run(host) => {}
        () = shown => {}
    }
    assert_eq!((book.waits_for(), book.orders(Outcome::Issued)), (None, 1));
}

#[tokio::test]
async fn certificates_that_are_due_at_once_are_ordered_with_growing_pauses() {
    let (mut acme, _book, _dir) = acme(&["n.example"], NO_AUTHORITY);
    for minutes in [5, 10, 20, 40] {
        let [key, chain] = made("n.example", 2020);
        let issued = acme.files.set_issued("n.example", &key, &chain).unwrap();
        acme.issued(0, issued, &failing(0)).await;
        let pause = acme.names[0].order_in();
        assert!(pause > Duration::from_secs(minutes * 60 - 1), "{pause:?} after {minutes}");
    }
    let [key, chain] = made("n.example", 2999);
    let issued = acme.files.set_issued("n.example", &key, &chain).unwrap();
    acme.issued(0, issued, &failing(0)).await;
    assert_eq!(acme.names[0].failures, 0);
}

#[tokio::test]
async fn the_time_of_the_next_order_is_known_while_the_authority_is_silent() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = format!("https://{}/directory", silent.local_addr().unwrap());
    let (acme, book, _dir) = acme(&["a.example", "b.example"], &directory);
    tokio::select! {
        biased;
        () = acme.run(failing(0)) => {}
        // Ends at the first await of the orders.
        () = std::future::ready(()) => {}
    }
    assert_eq!(book.next_seconds(SystemTime::now()), Some(0));
}
