//! Certificates with their keys, from PEM files.

use std::fmt::{self, Display};
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::{ResolvesClientCert, verify_server_name};
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, OtherError};
use webpki::EndEntityCert;

/// A setting that names a file: the name of the setting and the file.
pub type Setting<'a> = (&'a str, &'a Path);

/// A certificate with its key, ready to be shown.
#[derive(Clone)]
pub struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
}

impl Certificate {
    /// Reads two PEM files: the certificate of this node with those between it and the authority behind it, and its
    /// key without a password.
    ///
    /// # Errors
    /// One sentence that names the setting, the file and the reason; nothing of the key.
    pub fn read(cert: Setting<'_>, key: Setting<'_>) -> Result<Certificate, Unusable> {
        let read = CertificateDer::pem_file_iter(cert.1).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = read.map_err(|error| Unusable::pem(cert, error))?;
        if chain.is_empty() {
            return Err(Unusable::file(cert, &"there is no certificate in it"));
        }
        let private = PrivateKeyDer::from_pem_file(key.1).map_err(|error| match error {
            Error::NoItemsFound => Unusable::file(key, &"there is no key in it, or one with a password"),
            error => Unusable::pem(key, error),
        })?;
        // The provider is named: the driver of the database links another one too, and with two there is no default.
        let provider = rustls::crypto::ring::default_provider();
        let certified = CertifiedKey::from_der(chain, private, &provider).map_err(|error| {
            let (cert_path, key_path) = (cert.1.display(), key.1.display());
            let said =
                format!("{} ({key_path}) is not the key of {} ({cert_path}), or of no use: {error}", key.0, cert.0);
            Unusable { said, host: None }
        })?;
        Ok(Certificate { key: Arc::new(certified) })
    }

    /// Returns true if the certificate is for this host name.
    pub fn names(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        ParsedCertificate::try_from(self.own()).is_ok_and(|own| verify_server_name(&own, &name).is_ok())
    }

    /// Returns the DNS names of the certificate in lower case, wildcards included.
    pub fn host_names(&self) -> Vec<String> {
        let Ok(own) = EndEntityCert::try_from(self.own()) else { return Vec::new() };
        own.valid_dns_names().map(str::to_ascii_lowercase).collect()
    }

    /// Returns the DER of the certificate itself, without those behind it.
    pub fn der(&self) -> &[u8] {
        self.own()
    }

    /// Returns the DER of the certificate itself and of those behind it, in the order of the file.
    pub fn chain(&self) -> impl Iterator<Item = &[u8]> {
        self.key.cert.iter().map(|certificate| &**certificate)
    }

    /// Returns it in the form in which a client shows it to a server that asks.
    pub fn for_client(&self) -> Arc<dyn ResolvesClientCert> {
        Arc::new(SingleCertAndKey::from(Arc::clone(&self.key)))
    }

    fn own(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }
}

/// Advice about a certificate that is marked as that of an authority.
pub const MARKED_AS_AUTHORITY: &str = "it is marked as the certificate of an authority (CA:TRUE), as `openssl req \
     -x509` makes it by default, and not as that of a server; make it again with -addext \
     basicConstraints=critical,CA:FALSE and -addext subjectAltName=DNS:NAME";

/// Reason for which a certificate is not trusted, with what to do where the words of rustls do not say it.
pub fn distrust(why: &CertificateError) -> String {
    let is_authority =
        |error: &OtherError| matches!(error.0.downcast_ref::<webpki::Error>(), Some(webpki::Error::CaUsedAsEndEntity));
    match why {
        CertificateError::Other(error) if is_authority(error) => MARKED_AS_AUTHORITY.to_owned(),
        why => why.to_string(),
    }
}

/// A file that cannot be used: one sentence that names the setting, the file and the reason; nothing of a key.
#[derive(Debug)]
pub struct Unusable {
    said: String,
    host: Option<io::Error>,
}

impl Unusable {
    pub(crate) fn file((setting, path): Setting<'_>, why: &dyn Display) -> Unusable {
        let path = path.display();
        let said = format!("{setting}: {path} cannot be used: {why}; it must be PEM that this user may read");
        Unusable { said, host: None }
    }

    pub(crate) fn pem(setting: Setting<'_>, error: Error) -> Unusable {
        let unusable = Unusable::file(setting, &error);
        match error {
            Error::Io(host) => Unusable { host: Some(host), ..unusable },
            _ => unusable,
        }
    }

    /// The error of the host, if the file could not be read.
    pub fn host_error(&self) -> Option<&io::Error> {
        self.host.as_ref()
    }
}

impl Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Unusable {}
