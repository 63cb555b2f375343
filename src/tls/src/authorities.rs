//! Authorities of client certificates.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;

use crate::certificate::{Setting, Unusable};

/// Authorities that must have signed the certificate of a client.
#[derive(Clone)]
pub struct Authorities(pub(crate) Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// Reads a PEM file. A certificate that a client shows must verify; with `is_required` a client must show one.
    ///
    /// # Errors
    /// One sentence that names the setting, the file and the reason.
    pub fn read(ca: Setting<'_>, is_required: bool) -> Result<Authorities, Unusable> {
        let read = CertificateDer::pem_file_iter(ca.1).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = read.map_err(|error| Unusable::pem(ca, error))?;
        if certificates.is_empty() {
            return Err(Unusable::file(ca, &"there is no certificate in it"));
        }
        let mut roots = RootCertStore::empty();
        for certificate in certificates {
            roots.add(certificate).map_err(|error| Unusable::file(ca, &error))?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let builder = if is_required { builder } else { builder.allow_unauthenticated() };
        builder.build().map(Authorities).map_err(|error| Unusable::file(ca, &error))
    }
}
