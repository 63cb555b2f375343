//! The channels of the configuration (`bridge.apns.channels`), with their keys and certificates.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use protocol::wire::url::HttpUrl;
use ring::signature::RsaKeyPair;
use rustls::pki_types::pem::{PemObject as _, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use serde_json::{Map, Value};

use super::provider_token::ProviderTokens;
use crate::bridges::profiles::{check_members, is_app, read_text};
use crate::validity::Validity;

/// Way in which Apple knows who sends.
pub(in crate::bridges) enum Credential {
    /// A signed token with each request.
    Token(Arc<ProviderTokens>),
    /// A certificate in the handshake, until this time.
    Certificate { expires: Option<SystemTime> },
}

/// One channel as configured.
pub(in crate::bridges) struct Channel {
    pub name: Box<str>,
    pub topic: String,
    pub url: HttpUrl,
    pub credential: Credential,
    /// Certificate that connections show.
    pub certificate: Option<Arc<CertifiedKey>>,
}

/// Reads the channels: `text` is the JSON of all, or the name of a file with it.
///
/// # Errors
/// A sentence without a secret.
pub(in crate::bridges) fn read_channels(text: &str) -> Result<Vec<Channel>, String> {
    let text = read_text(text)?;
    let all: Map<String, Value> =
        serde_json::from_str(&text).map_err(|_| "bridge.apns.channels is not a JSON object".to_owned())?;
    let one = |(name, channel): (String, Value)| {
        let fault = |fault| format!("channel {name:?} of bridge.apns.channels: {fault}");
        read_channel(&name, &channel).map_err(fault)
    };
    all.into_iter().map(one).collect()
}

const MEMBERS: [&str; 7] = ["cert", "key", "key_id", "team_id", "topic", "sandbox", "url"];

fn read_channel(name: &str, channel: &Value) -> Result<Channel, String> {
    if !is_app(name) {
        return Err("a name has 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen".to_owned());
    }
    let members = channel.as_object().ok_or("is not a JSON object")?;
    check_members(members, &MEMBERS)?;
    let topic = text(members, "topic")?.map_or_else(|| format!("com.mozilla.org.{name}"), str::to_owned);
    let is_topic = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if topic.is_empty() || topic.len() > 255 || !topic.bytes().all(is_topic) {
        return Err("topic is not the bundle ID of an app".to_owned());
    }
    let key = text(members, "key")?.ok_or("key is missing: the .p8 file, or the key of the certificate")?;
    let key = read_pem(key)?;
    let (credential, certificate) = match (text(members, "key_id")?, text(members, "team_id")?) {
        (Some(key_id), Some(team_id)) => (provider_tokens(&key, key_id, team_id)?, None),
        (None, None) => {
            let cert =
                text(members, "cert")?.ok_or("cert is missing; set cert, or key_id and team_id with a .p8 key")?;
            let certificate = client_certificate(&read_pem(cert)?, &key)?;
            (Credential::Certificate { expires: expires(&certificate) }, Some(Arc::new(certificate)))
        }
        (Some(_), None) => return Err("key_id needs team_id; set both for a .p8 key, or neither".to_owned()),
        (None, Some(_)) => return Err("team_id needs key_id; set both for a .p8 key, or neither".to_owned()),
    };
    Ok(Channel { name: name.into(), topic, url: url(members)?, credential, certificate })
}

/// A member that is a text; absent, null and empty are the same, as existing configurations have them.
fn text<'m>(members: &'m Map<String, Value>, name: &str) -> Result<Option<&'m str>, String> {
    match members.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok((!text.is_empty()).then_some(text.as_str())),
        Some(_) => Err(format!("{name} is not a text")),
    }
}

/// `url`, or the service of `sandbox`. Apple listens on the ports 443 and 2197.
fn url(members: &Map<String, Value>) -> Result<HttpUrl, String> {
    let sandbox = match members.get("sandbox") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(sandbox)) => *sandbox,
        Some(_) => return Err("sandbox is not true or false".to_owned()),
    };
    let default = if sandbox { "https://api.development.push.apple.com" } else { "https://api.push.apple.com" };
    let url = text(members, "url")?.unwrap_or(default);
    let is_plain = |url: &HttpUrl| url.origin().https && url.target().trim_start_matches('/').is_empty();
    HttpUrl::parse(url).filter(is_plain).ok_or_else(|| {
        "url is not the https URL of a service without a path, as https://api.push.apple.com:2197".to_owned()
    })
}

/// PEM text, or the content of the file that it names.
fn read_pem(text: &str) -> Result<Cow<'_, str>, String> {
    if text.trim_start().starts_with('-') { Ok(Cow::Borrowed(text)) } else { read_text(text).map(Cow::Owned) }
}

/// The signing key of a `.p8` file.
fn provider_tokens(pem: &str, key_id: &str, team_id: &str) -> Result<Credential, String> {
    let is_id = |id: &str| id.len() == 10 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    for (name, id) in [("key_id", key_id), ("team_id", team_id)] {
        if !is_id(id) {
            return Err(format!("{name} is not an ID of ten letters and digits"));
        }
    }
    let PrivateKeyDer::Pkcs8(der) = private_key(pem)? else {
        return Err("key is not the .p8 file that Apple exports (PKCS #8)".to_owned());
    };
    let der = der.secret_pkcs8_der();
    match ProviderTokens::new(der, key_id, team_id) {
        Some(tokens) => Ok(Credential::Token(Arc::new(tokens))),
        None if RsaKeyPair::from_pkcs8(der).is_ok() => {
            Err("key is an RSA key; with key_id and team_id it must be the .p8 key (P-256) of Apple".to_owned())
        }
        None => Err("key is not a P-256 key; it must be the .p8 key of Apple".to_owned()),
    }
}

fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>, String> {
    if pem.contains("BEGIN ENCRYPTED PRIVATE KEY") || pem.contains("Proc-Type: 4,ENCRYPTED") {
        return Err(
            "key is encrypted; remove its password, for example with `openssl pkey -in FILE -out FILE`".to_owned()
        );
    }
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| "key is not a private key in PEM".to_owned())
}

fn client_certificate(cert: &str, key: &str) -> Result<CertifiedKey, String> {
    let chain: Vec<CertificateDer<'static>> = <(SectionKind, Vec<u8>)>::pem_slice_iter(cert.as_bytes())
        .filter_map(Result::ok)
        .filter(|(kind, _)| *kind == SectionKind::Certificate)
        .map(|(_, der)| CertificateDer::from(der))
        .collect();
    if chain.is_empty() {
        return Err("cert has no certificate in PEM".to_owned());
    }
    let key = private_key(key)?;
    let provider = rustls::crypto::ring::default_provider();
    let certified = CertifiedKey::from_der(chain, key, &provider);
    certified.map_err(|_| "key is not the key of cert, or of a kind that cannot be used".to_owned())
}

fn expires(certificate: &CertifiedKey) -> Option<SystemTime> {
    let own = certificate.end_entity_cert().ok()?;
    let left = Validity::of(own)?.seconds_left(SystemTime::UNIX_EPOCH);
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(left).unwrap_or(0)))
}
