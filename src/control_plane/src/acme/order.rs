//! One order, from the account to the certificate (RFC 8555 section 7.4).

use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::answers::Answers;
use super::files::Files;
use super::stats::Outcome;
use config::Challenge;

/// A key and the chain of its certificate, both in PEM.
pub(super) struct Ordered {
    pub key: String,
    pub chain: String,
}

/// End of an order without a certificate.
#[derive(Debug)]
pub(super) struct Failure {
    pub outcome: Outcome,
    /// One sentence for the log, without token and key.
    pub reason: String,
    /// The authority does not know the account.
    pub no_account: bool,
    /// The authority has refused the order for good; another attempt needs another order.
    ends_order: bool,
}

/// A certificate to order.
pub(super) struct Wanted<'a> {
    pub name: &'a str,
    /// The certificate that the new one replaces (RFC 9773 section 5).
    pub replaces: Option<CertificateIdentifier<'static>>,
    pub profile: Option<&'a str>,
    pub challenge: Challenge,
}

/// Time for the proof, and for the certificate afterwards, with all questions for them. Beyond it: the order fails.
const POLL_TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of a token of the authority; they are 43 with Let's Encrypt. Beyond it: the order fails.
const TOKEN_BYTES_MAX: usize = 128;
/// Characters of a reason; the rest is cut off.
const REASON_CHARS_MAX: usize = 400;

/// Orders a certificate for one name. URL and key of the order are in a file until its end, so that a later attempt
/// goes on with it, also after a restart.
///
/// # Errors
/// [`Failure`]. The answer to the authority is taken back in any case.
pub(super) async fn order(
    account: &Account,
    wanted: &Wanted<'_>,
    answers: &Answers,
    files: &Files,
) -> Result<Ordered, Failure> {
    let (mut order, key) = match resumed(account, wanted, files).await? {
        Some(resumed) => resumed,
        None => {
            let order = begun(account, wanted).await?;
            let key = KeyPair::generate().map_err(|error| Failure::new(Outcome::Failed, &error))?;
            let kept = files.set_pending(wanted.name, wanted.profile, order.url(), &key.serialize_pem());
            kept.map_err(|error| Failure::new(Outcome::Failed, &format!("the file of the order: {error}")))?;
            (order, key)
        }
    };
    let chain = complete(&mut order, &key, wanted, answers).await.inspect_err(|failure| {
        if failure.ends_order {
            files.remove_pending(wanted.name);
        }
    })?;
    Ok(Ordered { key: key.serialize_pem(), chain })
}

async fn begun(account: &Account, wanted: &Wanted<'_>) -> Result<Order, Failure> {
    let names = [Identifier::Dns(wanted.name.to_owned())];
    let new = || {
        let order = NewOrder::new(&names);
        wanted.profile.map_or(NewOrder::new(&names), |profile| order.profile(profile))
    };
    Ok(match &wanted.replaces {
        None => account.new_order(&new()).await?,
        // An authority that has forgotten the former certificate, or saw it replaced, issues another one all the same.
        Some(replaced) => match account.new_order(&new().replaces(replaced.clone())).await {
            Err(error) if is_about_former(&error) => account.new_order(&new()).await?,
            order => order?,
        },
    })
}

/// Goes on with the order of an earlier attempt. `None`: there is none of use, also because the authority has refused
/// or forgotten it.
async fn resumed(account: &Account, wanted: &Wanted<'_>, files: &Files) -> Result<Option<(Order, KeyPair)>, Failure> {
    let Some(pending) = files.pending(wanted.name, wanted.profile) else { return Ok(None) };
    let Ok(key) = KeyPair::from_pem(&pending.key) else { return Ok(None) };
    match account.order(pending.url).await {
        Ok(mut order) => Ok((order.state().status != OrderStatus::Invalid).then_some((order, key))),
        Err(error) if is_refusal(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Brings an order to its end, from any of its states, and returns the chain.
async fn complete(order: &mut Order, key: &KeyPair, wanted: &Wanted<'_>, answers: &Answers) -> Result<String, Failure> {
    let mut token = None;
    if order.state().status == OrderStatus::Pending {
        token = prove(order, wanted, answers).await?;
    }
    let failed = |error: Error| Failure::of(&error, token.as_deref());
    if order.state().status == OrderStatus::Ready {
        let unusable = |error: rcgen::Error| Failure::new(Outcome::Failed, &error);
        let mut params = CertificateParams::new(vec![wanted.name.to_owned()]).map_err(unusable)?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(key).map_err(unusable)?;
        order.finalize_csr(request.der()).await.map_err(failed)?;
    }
    order.poll_certificate(&poll()).await.map_err(failed)
}

/// Returns true for an error that can come from the field `replaces` (RFC 9773 section 5), so that an order without it
/// can succeed. Any other one would be sent twice, also against a rate limit.
fn is_about_former(error: &Error) -> bool {
    match error {
        Error::Api(problem) => {
            let kind = problem.r#type.as_deref().and_then(|kind| kind.strip_prefix("urn:ietf:params:acme:error:"));
            matches!(kind, Some("alreadyReplaced" | "malformed")) || matches!(problem.status, Some(404 | 409))
        }
        // The client compares the field in the answer.
        Error::Other(error) => error.to_string().starts_with("replaces field mismatch"),
        _ => false,
    }
}

/// Proves control over the name of the order. Returns the token of the proof.
async fn prove(order: &mut Order, wanted: &Wanted<'_>, answers: &Answers) -> Result<Option<String>, Failure> {
    let proofs = order.state().authorizations.len();
    if proofs > 1 {
        return Err(Failure::new(
            Outcome::Failed,
            &format!("cannot order: the authority requires {proofs} proofs for one name"),
        ));
    }
    let mut answering = None;
    let mut token: Option<String> = None;
    if let Some(authorization) = order.authorizations().next().await {
        let mut authorization = authorization?;
        if authorization.status != AuthorizationStatus::Valid {
            let (kind, spelled) = match wanted.challenge {
                Challenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
                Challenge::Http01 => (ChallengeType::Http01, "http-01"),
            };
            let mut challenge = authorization.challenge(kind).ok_or_else(|| {
                let offers_none = format!("the authority does not offer {spelled} for this name; set acme.challenge");
                Failure::new(Outcome::Refused, &offers_none)
            })?;
            if !is_token(&challenge.token) {
                return Err(Failure::new(Outcome::Failed, &"the authority sent a token that breaks its protocol"));
            }
            let token = &**token.insert(challenge.token.clone());
            let proof = challenge.key_authorization();
            answering = Some(match wanted.challenge {
                Challenge::TlsAlpn01 => Answering::tls_alpn(answers, wanted.name, proof.digest().as_ref())?,
                Challenge::Http01 => Answering::http(answers, token, proof.as_str())?,
            });
            challenge.set_ready().await.map_err(|error| Failure::of(&error, Some(token)))?;
        }
    }
    let proven = order.poll_ready(&poll()).await;
    drop(answering);
    match proven {
        Ok(OrderStatus::Ready) => Ok(token),
        Err(error) if !is_refusal(&error) => Err(Failure::of(&error, token.as_deref())),
        proven => {
            let reason = match refusal(order).await {
                Some(reason) => reason,
                None => proven.map_or_else(|error| error.to_string(), |status| format!("the order is {status:?}")),
            };
            Err(Failure::new(Outcome::Refused, &masked(&reason, token.as_deref())))
        }
    }
}

/// Returns true if the authority will not go on with the order. One that is busy, or limits the rate, may do so later.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Api(problem) if !matches!(problem.status, Some(429 | 500..)))
}

/// The reason for which the authority did not believe a proof, as it says.
async fn refusal(order: &mut Order) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let state = authorization.refresh().await.ok()?;
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            return Some(problem.to_string());
        }
    }
    None
}

/// An answer to the authority. Taken back when it is dropped.
struct Answering<'a> {
    answers: &'a Answers,
    kind: Challenge,
    /// The name or the token.
    key: String,
}

impl<'a> Answering<'a> {
    /// Shows a certificate with this digest to the authority (RFC 8737 section 3).
    fn tls_alpn(answers: &'a Answers, name: &str, digest: &[u8]) -> Result<Answering<'a>, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(Outcome::Failed, error);
        let key = KeyPair::generate().map_err(|error| failed(&error))?;
        let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(|error| failed(&error))?;
        params.custom_extensions.push(CustomExtension::new_acme_identifier(digest));
        let made = params.self_signed(&key).map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|error| failed(&error))?;
        let certificate = CertificateDer::from(made.der().to_vec());
        answers.tls_alpn.insert(name, certificate, key).map_err(|error| failed(&error))?;
        Ok(Answering { answers, kind: Challenge::TlsAlpn01, key: name.to_owned() })
    }

    /// Answers the request for this token (RFC 8555 section 8.3).
    fn http(answers: &'a Answers, token: &str, proof: &str) -> Result<Answering<'a>, Failure> {
        if !answers.http.insert(token, proof) {
            return Err(Failure::new(Outcome::Failed, &"too many challenges at a time"));
        }
        Ok(Answering { answers, kind: Challenge::Http01, key: token.to_owned() })
    }
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        match self.kind {
            Challenge::TlsAlpn01 => self.answers.tls_alpn.remove(&self.key),
            Challenge::Http01 => self.answers.http.remove(&self.key),
        }
    }
}

impl Failure {
    pub(super) fn new(outcome: Outcome, reason: &dyn std::fmt::Display) -> Failure {
        let (reason, ends_order) = (shortened(&reason.to_string()), outcome == Outcome::Refused);
        Failure { outcome, reason, no_account: false, ends_order }
    }
}

impl Failure {
    /// With this token masked in the words of the authority.
    fn of(error: &Error, token: Option<&str>) -> Failure {
        let outcome = match error {
            Error::Api(_) | Error::Unsupported(_) => Outcome::Refused,
            Error::Timeout(_) => Outcome::Timeout,
            Error::Other(_) => Outcome::Unreachable,
            _ => Outcome::Failed,
        };
        let kind = if let Error::Api(problem) = error { problem.r#type.as_deref() } else { None };
        let no_account = kind == Some("urn:ietf:params:acme:error:accountDoesNotExist");
        Failure {
            no_account,
            ends_order: is_refusal(error),
            ..Failure::new(outcome, &masked(&error.to_string(), token))
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::of(&error, None)
    }
}

/// Returns true for base64url of 128 bits or more (RFC 8555 section 8.3), in at most 128 characters.
fn is_token(text: &str) -> bool {
    let of_alphabet = |c: u8| c.is_ascii_alphanumeric() || b"-_".contains(&c);
    (22..=TOKEN_BYTES_MAX).contains(&text.len()) && text.bytes().all(of_alphabet)
}

/// A sentence without the token. One that [`is_token`] accepts makes it shorter, never longer.
fn masked(reason: &str, token: Option<&str>) -> String {
    token.map_or_else(|| reason.to_owned(), |token| reason.replace(token, "(token)"))
}

fn poll() -> RetryPolicy {
    RetryPolicy::new().initial_delay(Duration::from_millis(250)).backoff(1.5).timeout(POLL_TIME_MAX)
}

/// A sentence of another server, for the log.
fn shortened(reason: &str) -> String {
    reason.chars().take(REASON_CHARS_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
