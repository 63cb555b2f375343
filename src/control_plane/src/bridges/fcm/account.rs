//! Service accounts of Google, and the profiles that name them (`bridge.fcm.credentials`).

use std::fmt;
use std::time::{Duration, SystemTime};

use protocol::wire::base64url;
use protocol::wire::url::HttpUrl;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::bridges::profiles::{check_members, is_app, read_text};

/// One profile as configured.
pub(in crate::bridges) struct FcmProfile {
    pub app: Box<str>,
    pub project: String,
    pub account: ServiceAccount,
}

/// Reads the profiles: `text` is the JSON of all, or the name of a file with it.
///
/// # Errors
/// A sentence without a secret.
pub(in crate::bridges) fn read_profiles(text: &str) -> Result<Vec<FcmProfile>, String> {
    let text = read_text(text)?;
    let all: Map<String, Value> =
        serde_json::from_str(&text).map_err(|_| "bridge.fcm.credentials is not a JSON object".to_owned())?;
    all.into_iter().map(|(app, profile)| read_profile(&app, &profile)).collect()
}

fn read_profile(app: &str, profile: &Value) -> Result<FcmProfile, String> {
    let fault = |fault: String| format!("profile {app:?} of bridge.fcm.credentials: {fault}");
    if !is_app(app) {
        return Err(fault("a name has 1 to 64 characters of A-Z, a-z, 0-9, dot, underscore and hyphen".to_owned()));
    }
    let members = profile.as_object().ok_or_else(|| fault("is not a JSON object".to_owned()))?;
    check_members(members, &["project_id", "credential"]).map_err(fault)?;
    let project = members.get("project_id").and_then(Value::as_str).unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if project.is_empty() || project.len() > 64 || !project.bytes().all(is_plain) {
        return Err(fault("project_id is missing, or is not the ID of a project".to_owned()));
    }
    let account = match members.get("credential") {
        Some(Value::String(text)) => ServiceAccount::parse(&read_text(text).map_err(fault)?),
        Some(Value::Object(account)) => ServiceAccount::parse(&Value::Object(account.clone()).to_string()),
        _ => Err("credential is missing: the file of a service account, or its JSON".to_owned()),
    };
    Ok(FcmProfile { app: app.into(), project: project.to_owned(), account: account.map_err(fault)? })
}

/// Key that signs assertions for access tokens (RFC 7523).
pub(in crate::bridges) struct ServiceAccount {
    email: String,
    key: RsaKeyPair,
    key_id: Option<String>,
    pub token_uri: HttpUrl,
    /// `token_uri` as it is spelled.
    audience: String,
}

impl fmt::Debug for ServiceAccount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccount").field("token_uri", &self.token_uri.to_string()).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct AccountFile {
    #[serde(rename = "type")]
    kind: Option<String>,
    client_email: String,
    private_key: String,
    private_key_id: Option<String>,
    token_uri: Option<String>,
}

impl ServiceAccount {
    /// Reads the JSON that the Google Cloud console writes.
    ///
    /// # Errors
    /// A sentence without a secret.
    pub fn parse(text: &str) -> Result<ServiceAccount, String> {
        let file: AccountFile = serde_json::from_str(text)
            .map_err(|_| "credential has no client_email and private_key: it is no service account".to_owned())?;
        if file.kind.as_deref().is_some_and(|kind| kind != "service_account") {
            return Err("credential is not of the type service_account".to_owned());
        }
        let audience = file.token_uri.unwrap_or_else(|| "https://oauth2.googleapis.com/token".to_owned());
        let token_uri = HttpUrl::parse(&audience).ok_or("token_uri of the credential is not a URL")?;
        let key = PrivateKeyDer::from_pem_slice(file.private_key.as_bytes());
        let key = match &key {
            Ok(PrivateKeyDer::Pkcs8(der)) => RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()),
            Ok(PrivateKeyDer::Pkcs1(der)) => RsaKeyPair::from_der(der.secret_pkcs1_der()),
            _ => return Err("private_key of the credential is not an RSA key in PEM".to_owned()),
        };
        let key =
            key.map_err(|_| "private_key of the credential is not an RSA key of 2,048 bits or more".to_owned())?;
        Ok(ServiceAccount { email: file.client_email, key, key_id: file.private_key_id, token_uri, audience })
    }

    /// Signs an assertion that asks for a token. `None`: no random numbers.
    pub fn assertion(&self, now: SystemTime) -> Option<String> {
        let issued = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
        let mut header = json!({"alg": "RS256", "typ": "JWT"});
        if let Some(key_id) = &self.key_id {
            header["kid"] = key_id.as_str().into();
        }
        let claims = json!({
            "iss": self.email,
            "scope": SCOPE,
            "aud": self.audience,
            "iat": issued,
            "exp": issued + ASSERTION_SECONDS,
        });
        let encoded = |json: &Value| base64url::encode(json.to_string().as_bytes());
        let signed = format!("{}.{}", encoded(&header), encoded(&claims));
        let mut signature = vec![0; self.key.public().modulus_len()];
        self.key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), signed.as_bytes(), &mut signature).ok()?;
        Some(format!("{signed}.{}", base64url::encode(&signature)))
    }

    #[cfg(test)]
    pub fn public_key(&self) -> &[u8] {
        self.key.public().as_ref()
    }
}

const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// Longest time that Google permits.
const ASSERTION_SECONDS: u64 = 3_600;
