//! Certificate of this node for callers over TLS: `node.tls.cert` and `node.tls.key`.

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;

/// A certificate with its key, ready to be shown.
#[derive(Clone)]
pub struct Certificate {
    config: Arc<ServerConfig>,
    own: CertificateDer<'static>,
}

impl Certificate {
    /// Reads two PEM files: the certificate of this node with those between it and the authority behind it, and its
    /// key without a password.
    ///
    /// # Errors
    /// One sentence that names the setting, the file and the reason; nothing of the key.
    pub fn read(cert: &Path, key: &Path) -> Result<Certificate, String> {
        let read = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let chain = read.map_err(|error| unusable("node.tls.cert", cert, &error))?;
        let none = || unusable("node.tls.cert", cert, &"there is no certificate in it");
        let own = chain.first().cloned().ok_or_else(none)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
            Error::NoItemsFound => unusable("node.tls.key", key, &"there is no key in it, or one with a password"),
            error => unusable("node.tls.key", key, &error),
        })?;
        // The provider is named: the driver of the database links another one too, and with two there is no default.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
            .map_err(|error| {
                let (cert, key) = (cert.display(), key.display());
                format!("node.tls.key ({key}) is not the key of node.tls.cert ({cert}), or of no use: {error}")
            })?;
        Ok(Certificate { config: Arc::new(config), own })
    }

    /// Returns true if the certificate is for this host name.
    pub fn names(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host) else { return false };
        ParsedCertificate::try_from(&self.own).is_ok_and(|own| verify_server_name(&own, &name).is_ok())
    }

    pub(super) fn into_config(self) -> Arc<ServerConfig> {
        self.config
    }
}

fn unusable(key: &str, path: &Path, why: &dyn Display) -> String {
    format!("{key}: {} cannot be used: {why}; it must be PEM that this user may read", path.display())
}
