//! Login and certificates of connections to the database (`store.scylla.user`, `.password`, `.tls_*`).
//!
//! A session makes new connections for as long as it lives, and a password or an authority may change meanwhile. The
//! driver therefore asks [`Access`] for both at every connection, and a reload replaces what it answers. Connections
//! that are there stay as they are. Lives on: shared by the store's runtime and by the thread that reloads.

use std::fmt;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use scylla::authentication::{AuthError, AuthenticatorProvider, AuthenticatorSession, PlainTextAuthenticator};

use crate::shared::error::DatabaseError;
use crate::shared::options::{Options, Tls};

/// A value that a reload replaces.
type Current<T> = RwLock<Arc<T>>;

fn get<T>(current: &Current<T>) -> Arc<T> {
    Arc::clone(&current.read().unwrap_or_else(PoisonError::into_inner))
}

fn replace<T>(current: &Current<T>, new: &Current<T>) {
    let new = get(new);
    *current.write().unwrap_or_else(PoisonError::into_inner) = new;
}

/// Login and certificates for the next connection.
pub struct Access {
    login: Arc<Login>,
    /// `None` without TLS, which a session has from its start or never.
    tls: Option<Arc<TlsFiles>>,
}

impl Access {
    /// Reads the files of this configuration.
    ///
    /// # Errors
    /// A file of `store.scylla.tls_*` cannot be used.
    pub fn read(config: &Options) -> Result<Access, DatabaseError> {
        let tls = if config.tls.enabled { Some(Certificates::read(&config.tls)?) } else { None };
        Ok(Access {
            login: Arc::new(Login(Current::new(Arc::new(authenticator(config))))),
            tls: tls.map(|read| Arc::new(TlsFiles(Current::new(Arc::new(read))))),
        })
    }

    /// Replaces both for connections that are made from now on. `store.scylla.tls` itself stays as it was at the start.
    pub(super) fn renew(&self, new: &Access) {
        replace(&self.login.0, &new.login.0);
        if let (Some(files), Some(new)) = (&self.tls, &new.tls) {
            replace(&files.0, &new.0);
        }
    }

    pub(super) fn login(&self) -> Arc<dyn AuthenticatorProvider> {
        Arc::clone(&self.login) as Arc<dyn AuthenticatorProvider>
    }

    /// The client side of TLS. The provider is named: the driver links another one too, and with two there is no
    /// default. No connection resumes an earlier one: it would skip the check of the certificate by a new authority.
    pub(super) fn client_config(&self) -> Result<Option<Arc<ClientConfig>>, DatabaseError> {
        let Some(files) = &self.tls else { return Ok(None) };
        let verifier = Arc::clone(files) as Arc<dyn ServerCertVerifier>;
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| impossible(&error))?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let mut config = builder.with_client_cert_resolver(Arc::clone(files) as Arc<dyn ResolvesClientCert>);
        config.resumption = Resumption::disabled();
        Ok(Some(Arc::new(config)))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn impossible(error: &dyn fmt::Display) -> DatabaseError {
    DatabaseError::lasting(format!("TLS to the database is not possible: {error}"))
}

fn authenticator(config: &Options) -> Option<PlainTextAuthenticator> {
    let (user, password) = (config.user.as_ref()?, config.password.as_ref()?);
    Some(PlainTextAuthenticator::new(user.clone(), password.reveal().to_owned()))
}

/// The login; `None` where the database asks for none.
struct Login(Current<Option<PlainTextAuthenticator>>);

/// Result of the start of an exchange: the first answer of the client, and the rest of the exchange.
type Started = Result<(Option<Vec<u8>>, Box<dyn AuthenticatorSession>), AuthError>;

impl AuthenticatorProvider for Login {
    fn start_authentication_session<'a, 'b, 'c>(
        &'a self,
        authenticator_name: &'b str,
    ) -> Pin<Box<dyn Future<Output = Started> + Send + 'c>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        let current = get(&self.0);
        Box::pin(async move {
            match &*current {
                Some(login) => login.start_authentication_session(authenticator_name).await,
                None => Err("no login is configured".to_owned()),
            }
        })
    }
}

/// Authorities that a connection trusts, and the certificate that it shows.
#[derive(Debug)]
struct Certificates {
    verifier: Arc<dyn ServerCertVerifier>,
    shown: Option<Arc<CertifiedKey>>,
}

impl Certificates {
    fn read(tls: &Tls) -> Result<Certificates, DatabaseError> {
        let (provider, roots) = (provider(), Arc::new(roots(tls)?));
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| impossible(&error))?;
        let verifier: Arc<dyn ServerCertVerifier> =
            if tls.verify_host { verifier } else { Arc::new(Nameless(verifier)) };
        let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else { return Ok(Certificates { verifier, shown: None }) };
        let chain = certificates("store.scylla.tls_cert", cert)?;
        let private =
            PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("store.scylla.tls_key", key, &error))?;
        let shown = CertifiedKey::from_der(chain, private, &provider).map_err(|error| {
            DatabaseError::lasting(format!(
                "store.scylla.tls_key is not the key of store.scylla.tls_cert, or of no use: {error}"
            ))
        })?;
        Ok(Certificates { verifier, shown: Some(Arc::new(shown)) })
    }
}

/// The certificates of the next connection, as rustls asks for them.
#[derive(Debug)]
struct TlsFiles(Current<Certificates>);

impl ResolvesClientCert for TlsFiles {
    fn resolve(&self, _root_hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        get(&self.0).shown.clone()
    }

    fn has_certs(&self) -> bool {
        get(&self.0).shown.is_some()
    }
}

impl ServerCertVerifier for TlsFiles {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        get(&self.0).verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        get(&self.0).verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        get(&self.0).verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        get(&self.0).verifier.supported_verify_schemes()
    }
}

fn roots(tls: &Tls) -> Result<RootCertStore, DatabaseError> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(path) => {
            for certificate in certificates("store.scylla.tls_ca", path)? {
                roots.add(certificate).map_err(|error| unreadable("store.scylla.tls_ca", path, &error))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                let said =
                    "this host trusts no certificates; set store.scylla.tls_ca to what signs those of the database";
                return Err(DatabaseError::lasting(said.to_owned()));
            }
        }
    }
    Ok(roots)
}

/// At least one.
fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, DatabaseError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| unreadable(key, path, &error))?;
    if certificates.is_empty() {
        return Err(unreadable(key, path, &"there is no certificate in it"));
    }
    Ok(certificates)
}

fn unreadable(key: &str, path: &Path, error: &dyn fmt::Display) -> DatabaseError {
    DatabaseError::lasting(format!(
        "{key}: {} cannot be used: {error}; it must be PEM that this user may read",
        path.display()
    ))
}

/// Checks the signature of a certificate and not its names (`store.scylla.tls_verify_host = false`): nodes are often
/// reached by addresses that their certificates do not have, and their CA signs no other host.
#[derive(Debug)]
struct Nameless(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for Nameless {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        // The name is checked last: when only the name is wrong, everything else was right.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
