//! Orders against an authority in this process.

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::body::Bytes;
use hyper::{Request, Response};
use instant_acme::{Account, BodyWrapper, BytesResponse, CertificateIdentifier, Error, HttpClient};
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::order::{Answers, Failure, Wanted, order};
use crate::config::Challenge;

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
        let key = URL_SAFE_NO_PAD.encode(KeyPair::generate().unwrap().serialize_der());
        let urls = ["newNonce", "newAccount", "newOrder", "renewalInfo"].map(|of| (of, format!("https://a/{of}")));
        let urls: serde_json::Map<_, _> = urls.into_iter().map(|(of, url)| (of.to_owned(), url.into())).collect();
        let credentials = json!({ "id": "https://a/account", "key_pkcs8": key, "directory": null, "urls": urls });
        let builder = Account::builder_with_http(Box::new(self.clone()));
        let account = builder.from_credentials(serde_json::from_value(credentials).unwrap()).await.unwrap();
        let replaces = replaces.then(|| CertificateIdentifier::new(b"key"[..].into(), b"serial"[..].into()).into_owned());
        let wanted = Wanted { name: "n.example", replaces, profile: None, challenge: Challenge::Http01 };
        order(&account, &wanted, &Answers::default()).await.err().expect("no certificate")
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
    assert_eq!(authority.refuses(false).await.reason, "the authority wants 2 proofs for one name");
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
