//! A session with the database as `store.scylla.*` describes it: contact points, login, TLS, time limits.
//!
//! One session serves the whole process, as the maintainers of the driver advise: it keeps one connection to every
//! shard of every node, and a session for each shard of murre would multiply them. Lives on: the control plane's
//! runtime.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use scylla::client::SelfIdentity;
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind as Setup, DbError, MetadataError,
    NewSessionError,
};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::Consistency;

use super::error::DatabaseError;
use super::options::{Level, Options, Tls};

/// Connects. By default statements are at `read_consistency`, within `request_timeout`, and not retried: the caller
/// knows the budget and may retry.
///
/// # Errors
/// No node of `store.scylla.nodes` accepts a session with this configuration.
pub(crate) async fn connect(config: &Options) -> Result<Session, DatabaseError> {
    let mut builder = SessionBuilder::new()
        .known_nodes(&config.nodes)
        .connection_timeout(config.connect_timeout)
        .metadata_request_clientside_timeout(config.request_timeout.max(config.connect_timeout))
        .hostname_resolution_timeout(Some(config.connect_timeout))
        // The driver's limit ends with the TCP handshake; these two find peers that are silent after it.
        .keepalive_interval(config.connect_timeout)
        .keepalive_timeout(config.connect_timeout)
        .keyspaces_to_fetch([&config.keyspace])
        .custom_identity(identity())
        .default_execution_profile_handle(profile(config).into_handle());
    if let (Some(user), Some(password)) = (&config.user, &config.password) {
        builder = builder.user(user, password.reveal());
    }
    if config.tls.enabled {
        builder = builder.tls_context(Some(Arc::new(client_config(&config.tls)?)));
    }
    // Neither finds a peer that takes the connection and not its TLS. One contact point after the other is tried.
    let patience = config.connect_timeout * (3 * config.nodes.len() as u32 + 3);
    match tokio::time::timeout(patience, builder.build()).await {
        Ok(built) => built.map_err(|error| explain(config, &error)),
        Err(_) => {
            let nodes = config.nodes.join(",");
            Err(DatabaseError::passing(format!("store.scylla.nodes = {nodes}: {}", silent(patience))))
        }
    }
}

fn silent(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    format!("no answer within {seconds} s; is it the right address, and is TLS on or off at both ends?")
}

/// Entry of murre in the database's list of clients.
fn identity() -> SelfIdentity<'static> {
    SelfIdentity::new().with_application_name("murre").with_application_version(env!("CARGO_PKG_VERSION"))
}

/// Defaults of every statement.
fn profile(config: &Options) -> ExecutionProfile {
    let mut policy = DefaultPolicy::builder().token_aware(true);
    if let Some(datacenter) = &config.datacenter {
        // Levels that count replicas of one datacenter must not ask another: it would count its own.
        let local = config.read_consistency.is_local() || config.write_consistency.is_local();
        policy = policy.prefer_datacenter(datacenter.clone()).permit_dc_failover(!local);
    }
    ExecutionProfile::builder()
        .consistency(consistency(config.read_consistency))
        .request_timeout(Some(config.request_timeout))
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .load_balancing_policy(policy.build())
        .build()
}

/// The level as the driver spells it.
pub(super) fn consistency(level: Level) -> Consistency {
    match level {
        Level::One => Consistency::One,
        Level::LocalOne => Consistency::LocalOne,
        Level::Quorum => Consistency::Quorum,
        Level::LocalQuorum => Consistency::LocalQuorum,
        Level::All => Consistency::All,
    }
}

/// The client side of TLS. The provider is named: the driver links another one too, and with two there is no default.
fn client_config(tls: &Tls) -> Result<ClientConfig, DatabaseError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots = Arc::new(roots(tls)?);
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| DatabaseError::lasting(format!("TLS to the database is not possible: {error}")))?;
    let builder = if tls.verify_host {
        builder.with_root_certificates(roots)
    } else {
        let verifier = Nameless::new(roots, provider)?;
        builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
    };
    let (Some(cert), Some(key)) = (&tls.cert, &tls.key) else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates("store.scylla.tls_cert", cert)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable("store.scylla.tls_key", key, &error))?;
    builder.with_client_auth_cert(chain, private).map_err(|error| {
        DatabaseError::lasting(format!(
            "store.scylla.tls_key is not the key of store.scylla.tls_cert, or of no use: {error}"
        ))
    })
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

impl Nameless {
    fn new(roots: Arc<RootCertStore>, provider: Arc<CryptoProvider>) -> Result<Nameless, DatabaseError> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        verifier
            .map(Nameless)
            .map_err(|error| DatabaseError::lasting(format!("TLS to the database is not possible: {error}")))
    }
}

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

/// Cause and remedy. Never shows the password: the database may repeat it in its own words, so for a refused login the
/// text has only the refusal.
fn explain(config: &Options, error: &NewSessionError) -> DatabaseError {
    let nodes = config.nodes.join(",");
    let NewSessionError::MetadataError(MetadataError::ConnectionPoolError(ConnectionPoolError::Broken {
        last_connection_error,
    })) = error
    else {
        let (hint, passes) = match error {
            NewSessionError::FailedToResolveAnyHostname(_) => ("no name in it resolves", true),
            NewSessionError::MetadataError(_) => ("the database answers, and not as expected", true),
            _ => ("the database answers, and not as expected", false),
        };
        return DatabaseError::new(format!("store.scylla.nodes = {nodes}: {hint}: {error}"), passes);
    };
    let mut lasts = false;
    let said = match last_connection_error {
        ConnectionError::ConnectTimeout => silent(config.connect_timeout),
        ConnectionError::IoError(error) => {
            let tls = if config.tls.enabled { ", or the TLS of one end is not that of the other" } else { "" };
            format!("{error}; it does not run there{tls}")
        }
        ConnectionError::ConnectionSetupRequestError(request) => match request.get_error() {
            Setup::MissingAuthentication => {
                lasts = true;
                "it requires a user name and a password; set store.scylla.user and store.scylla.password".to_owned()
            }
            Setup::DbError(DbError::AuthenticationError, _) => {
                lasts = true;
                "it does not take store.scylla.user with store.scylla.password".to_owned()
            }
            Setup::BrokenConnection(error) => {
                format!("{error}; is it a database, and is TLS on or off at both ends?")
            }
            other => other.to_string(),
        },
        other => other.to_string(),
    };
    DatabaseError::new(format!("store.scylla.nodes = {nodes}: {said}"), !lasts)
}
