//! The server side of TLS as configured: certificates by name, tickets, versions. Shared by all shards.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SignatureAlgorithm};

use crate::certificate::Certificate;
use crate::handshake::CatchSecrets;
use crate::tickets::{TicketKey, Tickets};

/// Certificate for a client that names a host of which there is none (`tls.unknown_name`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnknownName {
    /// None: the handshake fails.
    Refuse,
    /// That of a client that names no host.
    Default,
}

/// Settings of a server.
pub struct Settings {
    /// Certificates; the first serves clients without SNI.
    pub certificates: Vec<Certificate>,
    /// Keys of tickets; the first seals. No tickets are sent without a key.
    pub ticket_keys: Vec<TicketKey>,
    /// Answer to an unknown name.
    pub unknown_name: UnknownName,
}

/// A server that all shards share, and whose settings can be replaced while it runs.
#[derive(Clone)]
pub struct ServerTls {
    current: Arc<RwLock<Arc<ServerConfig>>>,
    /// Reason of the first failed handshake that was not logged.
    failure: Arc<Mutex<Option<String>>>,
}

impl ServerTls {
    /// # Errors
    /// One sentence, if there is no certificate.
    pub fn new(settings: Settings) -> Result<ServerTls, String> {
        Ok(ServerTls { current: Arc::new(RwLock::new(config_of(settings)?)), failure: Arc::default() })
    }

    /// Replaces the settings for new handshakes. Handshakes in flight and established connections go on.
    ///
    /// # Errors
    /// As [`ServerTls::new`]; then the former settings stay.
    pub fn replace(&self, settings: Settings) -> Result<(), String> {
        let config = config_of(settings)?;
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Keeps the reason of a failed handshake, if none is kept. On any shard; it never waits.
    pub(crate) fn note_failure(&self, reason: &str) {
        if let Ok(mut failure) = self.failure.try_lock() {
            failure.get_or_insert_with(|| reason.to_owned());
        }
    }

    /// Takes the reason of the first handshake that failed since the last call.
    pub fn take_failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the current settings in the form of rustls.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn config_of(settings: Settings) -> Result<Arc<ServerConfig>, String> {
    let Settings { certificates, ticket_keys, unknown_name } = settings;
    let resolver = ByName::new(&certificates, unknown_name).ok_or("TLS needs at least one certificate")?;
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| format!("TLS 1.3 is not available: {error}"))?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = usize::from(!ticket_keys.is_empty());
    config.ticketer = Arc::new(Tickets::new(ticket_keys));
    // No early data: it can be replayed (RFC 8446 section 8).
    config.max_early_data_size = 0;
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(CatchSecrets);
    Ok(Arc::new(config))
}

type Keys = Vec<Arc<CertifiedKey>>;

/// Choice of a certificate by the name that the client asks for.
struct ByName {
    first: Arc<CertifiedKey>,
    exact: HashMap<String, Keys>,
    /// By the name behind the asterisk and its dot.
    wildcard: HashMap<String, Keys>,
    unknown_name: UnknownName,
}

impl ByName {
    fn new(certificates: &[Certificate], unknown_name: UnknownName) -> Option<ByName> {
        let first = Arc::clone(&certificates.first()?.key);
        let mut resolver = ByName { first, exact: HashMap::new(), wildcard: HashMap::new(), unknown_name };
        for certificate in certificates {
            for name in certificate.host_names() {
                let keys = match name.strip_prefix("*.") {
                    Some(parent) => resolver.wildcard.entry(parent.to_string()),
                    None => resolver.exact.entry(name),
                };
                keys.or_default().push(Arc::clone(&certificate.key));
            }
        }
        for keys in resolver.exact.values_mut().chain(resolver.wildcard.values_mut()) {
            keys.sort_by_key(|key| key.key.algorithm() == SignatureAlgorithm::RSA);
        }
        Some(resolver)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Some(name) = client_hello.server_name() else { return Some(Arc::clone(&self.first)) };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let exact = self.exact.get(&name);
        let wildcard = name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        let of_name = [exact, wildcard].into_iter().flatten().flatten();
        let schemes = client_hello.signature_schemes();
        let usable = of_name.clone().find(|key| key.key.choose_scheme(schemes).is_some());
        // A key that the client does not take makes alert 40, which names the reason.
        match usable.or(of_name.clone().next()) {
            Some(key) => Some(Arc::clone(key)),
            None => (self.unknown_name == UnknownName::Default).then(|| Arc::clone(&self.first)),
        }
    }
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByName({} exact, {} wildcards)", self.exact.len(), self.wildcard.len())
    }
}
