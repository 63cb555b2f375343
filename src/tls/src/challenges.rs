//! Answers to an authority that validates names by a handshake: TLS-ALPN-01 (RFC 8737).

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;

/// Protocol of these handshakes (RFC 8737 section 6.2). Nothing is sent after them.
pub const ACME_TLS: &[u8] = b"acme-tls/1";

/// Certificates for [`ACME_TLS`], by name. The control plane writes, and every shard reads. Copies share them.
#[derive(Clone, Default)]
pub struct AlpnChallenges(Arc<RwLock<HashMap<String, Arc<CertifiedKey>>>>);

impl AlpnChallenges {
    /// Shows this certificate to the authority that asks for `name`, which is in lower case. Its critical extension
    /// makes it one of no other use (RFC 8737 section 3), so it is not examined here.
    ///
    /// # Errors
    /// If the key is of an unknown kind.
    pub fn insert(
        &self,
        name: &str,
        certificate: CertificateDer<'static>,
        key: PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        let key = rustls::crypto::ring::default_provider().key_provider.load_private_key(key)?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate], key));
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), certified);
        Ok(())
    }

    /// Shows none for `name` any more.
    pub fn remove(&self, name: &str) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let names = self.0.read().unwrap_or_else(PoisonError::into_inner);
        names.get(&name.to_ascii_lowercase()).cloned()
    }
}

/// Returns true for a client that offers [`ACME_TLS`] and nothing else (RFC 8737 section 3).
pub(crate) fn is_challenge(client_hello: &ClientHello<'_>) -> bool {
    client_hello.alpn().is_some_and(|mut offered| offered.next() == Some(ACME_TLS) && offered.next().is_none())
}
