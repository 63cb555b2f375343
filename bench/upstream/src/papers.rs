//! The certificate authority of a run, its certificates, and the credentials that the stand-ins accept.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PKCS_ECDSA_P256_SHA256, PublicKeyData as _, SanType, date_time_ymd,
};
use ring::rsa;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use serde_json::json;

/// File of the certificate authority.
pub const CA: &str = "ca.pem";
/// File of the service account, as Google's console exports it.
pub const SERVICE_ACCOUNT: &str = "service-account.json";
/// Value of `bridge.fcm.credentials` with one profile, `firefox`.
pub const FCM_CREDENTIALS: &str = "fcm.json";
/// Value of `bridge.apns.channels`: `firefox` with a key, `beta` with a certificate.
pub const APNS_CHANNELS: &str = "apns.json";
/// Signing key of APNs, as Apple's portal exports it.
pub const APNS_KEY: &str = "AuthKey.p8";
/// Certificate that a provider shows to APNs in place of a token.
pub const CLIENT_CERTIFICATE: &str = "apns-certificate.pem";
/// Key of [`CLIENT_CERTIFICATE`].
pub const CLIENT_KEY: &str = "apns-key.pem";

/// Project of FCM.
pub const PROJECT: &str = "murre-test";
/// `client_email` of the service account.
pub const SERVICE_ACCOUNT_EMAIL: &str = "push@murre-test.iam.gserviceaccount.com";
/// `kid` of provider tokens.
pub const KEY_ID: &str = "ABC123DEFG";
/// `iss` of provider tokens.
pub const TEAM_ID: &str = "DEF123GHIJ";
/// The one `apns-topic` that is taken.
pub const TOPIC: &str = "com.mozilla.org.firefox";

/// Key of the service account. ring makes no RSA keys, so the tests of TLS and these stand-ins share one.
const RSA_KEY: &str = include_str!("../../../src/tls/tests/tls/rsa.pem");

/// Certificate that a stand-in shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CertificateKind {
    #[default]
    Good,
    Expired,
    WrongName,
    /// Signed by another authority.
    Untrusted,
}

/// Everything that is made at start.
#[derive(Clone)]
pub struct Papers {
    pub ca_pem: String,
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) good: Arc<CertifiedKey>,
    pub(crate) expired: Arc<CertifiedKey>,
    pub(crate) wrong_name: Arc<CertifiedKey>,
    pub(crate) untrusted: Arc<CertifiedKey>,
    /// Public point of the signing key of APNs.
    pub(crate) apns_point: Vec<u8>,
    /// DER of the public key of the service account.
    pub(crate) account_key: Vec<u8>,
    apns_key_pem: String,
    client_pem: (String, String),
}

impl Papers {
    /// Makes an authority and certificates for `localhost` and `ip`.
    ///
    /// # Errors
    /// If a key cannot be made.
    pub fn new(ip: IpAddr) -> Result<Papers, Box<dyn std::error::Error + Send + Sync>> {
        let (authority, other) = (Authority::new()?, Authority::new()?);
        let local = || -> Result<CertificateParams, rcgen::Error> {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
            params.subject_alt_names.push(SanType::IpAddress(ip));
            Ok(params)
        };
        let mut expired = local()?;
        (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        let elsewhere = CertificateParams::new(vec!["elsewhere.example".to_owned()])?;
        let mut client = CertificateParams::new(vec![])?;
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let client_key = KeyPair::generate()?;
        let client_pem = client.signed_by(&client_key, &authority.issuer)?.pem();
        let apns_key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let account = PrivatePkcs8KeyDer::from_pem_slice(RSA_KEY.as_bytes())?;
        let account = rsa::KeyPair::from_pkcs8(account.secret_pkcs8_der()).map_err(|error| error.to_string())?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes())?)?;
        Ok(Papers {
            good: authority.sign(&local()?)?,
            expired: authority.sign(&expired)?,
            wrong_name: authority.sign(&elsewhere)?,
            untrusted: other.sign(&local()?)?,
            ca_pem: authority.pem,
            roots: Arc::new(roots),
            apns_point: apns_key.der_bytes().to_vec(),
            account_key: account.public().as_ref().to_vec(),
            apns_key_pem: apns_key.serialize_pem(),
            client_pem: (client_pem, client_key.serialize_pem()),
        })
    }

    pub(crate) fn of(&self, kind: CertificateKind) -> Arc<CertifiedKey> {
        Arc::clone(match kind {
            CertificateKind::Good => &self.good,
            CertificateKind::Expired => &self.expired,
            CertificateKind::WrongName => &self.wrong_name,
            CertificateKind::Untrusted => &self.untrusted,
        })
    }

    /// Writes everything that a provider needs, for the owner only.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, directory: &Path, google: SocketAddr, apple: SocketAddr) -> io::Result<()> {
        let path = |name: &str| directory.join(name);
        let account = json!({
            "type": "service_account",
            "project_id": PROJECT,
            "private_key_id": "0123456789abcdef0123456789abcdef01234567",
            "private_key": RSA_KEY,
            "client_email": SERVICE_ACCOUNT_EMAIL,
            "client_id": "100000000000000000000",
            "token_uri": token_uri(google),
        });
        let fcm = json!({"firefox": {"project_id": PROJECT, "credential": path(SERVICE_ACCOUNT)}});
        let url = format!("https://localhost:{}", apple.port());
        let apns = json!({
            "firefox": {"key": path(APNS_KEY), "key_id": KEY_ID, "team_id": TEAM_ID, "topic": TOPIC, "url": url},
            "beta": {"cert": path(CLIENT_CERTIFICATE), "key": path(CLIENT_KEY), "topic": TOPIC, "url": url},
        });
        write(&path(CA), &self.ca_pem)?;
        write(&path(SERVICE_ACCOUNT), &account.to_string())?;
        write(&path(FCM_CREDENTIALS), &fcm.to_string())?;
        write(&path(APNS_KEY), &self.apns_key_pem)?;
        write(&path(CLIENT_CERTIFICATE), &self.client_pem.0)?;
        write(&path(CLIENT_KEY), &self.client_pem.1)?;
        write(&path(APNS_CHANNELS), &apns.to_string())
    }
}

/// `token_uri` of the service account, and the `aud` of its assertions.
pub(crate) fn token_uri(google: SocketAddr) -> String {
    format!("https://localhost:{}/token", google.port())
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))
}

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Result<Authority, rcgen::Error> {
        let mut params = CertificateParams::new(vec![])?;
        // OpenSSL takes a certificate whose issuer has its own name for self-signed.
        params.distinguished_name.push(DnType::CommonName, "authority of the stand-ins");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        Ok(Authority { pem, issuer: Issuer::new(params, key) })
    }

    fn sign(&self, params: &CertificateParams) -> Result<Arc<CertifiedKey>, Box<dyn std::error::Error + Send + Sync>> {
        let key = KeyPair::generate()?;
        let chain = vec![params.signed_by(&key, &self.issuer)?.der().clone()];
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = rustls::crypto::ring::default_provider();
        Ok(Arc::new(CertifiedKey::from_der(chain, der, &provider)?))
    }
}
