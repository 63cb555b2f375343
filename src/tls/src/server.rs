//! The server side of TLS as configured: certificates by name, tickets, versions. Shared by all shards.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ALL_VERSIONS, ServerConfig, SignatureAlgorithm};

use crate::authorities::Authorities;
use crate::certificate::Certificate;
use crate::challenges::{ACME_TLS, AlpnChallenges, is_challenge};
use crate::handshake::{CatchSecrets, FLIGHT_CERTIFICATES_MAX, FLIGHT_MAX};
use crate::key_exchange::provider;
use crate::tickets::{TicketKey, Tickets};

/// Certificate for a client that names a host of which there is none (`tls.unknown_name`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnknownName {
    /// None: the handshake fails.
    Refuse,
    /// That of a client that names no host.
    Default,
}

/// Oldest version of TLS that is served (`tls.min_version`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MinVersion {
    /// TLS 1.3 only.
    Tls13,
    /// TLS 1.2 too, with AEAD suites and extended master secret (RFC 7627).
    Tls12,
}

/// Settings of a server.
pub struct Settings {
    /// Certificates; the first serves clients without SNI.
    pub certificates: Vec<Certificate>,
    /// Keys of tickets; the first seals. No tickets are sent without a key.
    pub ticket_keys: Vec<TicketKey>,
    /// Answer to an unknown name.
    pub unknown_name: UnknownName,
    /// Oldest version.
    pub min_version: MinVersion,
    /// Answers to an authority that validates names. With them a server can have no certificate yet; then it refuses
    /// every other handshake.
    pub challenges: Option<AlpnChallenges>,
    /// Authorities of client certificates; `None`: clients are asked for none. With them no tickets are sent, because a
    /// resumed connection would prove nothing again.
    pub clients: Option<Authorities>,
}

/// A server that all shards share, and whose settings can be replaced while it runs.
#[derive(Clone)]
pub struct ServerTls {
    current: Arc<RwLock<Arc<ServerConfig>>>,
    /// Reason of the first failed handshake that was not logged.
    failure: Arc<Mutex<Option<String>>>,
    /// There is no certificate yet.
    waits: Arc<AtomicBool>,
    /// Clients are asked for certificates.
    asks: Arc<AtomicBool>,
}

impl ServerTls {
    /// # Errors
    /// One sentence, if there is no certificate and no challenge to answer.
    pub fn new(settings: Settings) -> Result<ServerTls, String> {
        let waits = Arc::new(AtomicBool::new(settings.certificates.is_empty()));
        let asks = Arc::new(AtomicBool::new(settings.clients.is_some()));
        Ok(ServerTls { current: Arc::new(RwLock::new(config_of(settings)?)), failure: Arc::default(), waits, asks })
    }

    /// Replaces the settings for new handshakes. Handshakes in flight and established connections go on.
    ///
    /// # Errors
    /// As [`ServerTls::new`]; then the former settings stay.
    pub fn replace(&self, settings: Settings) -> Result<(), String> {
        let (waits, asks) = (settings.certificates.is_empty(), settings.clients.is_some());
        let config = config_of(settings)?;
        self.waits.store(waits, Ordering::Relaxed);
        self.asks.store(asks, Ordering::Relaxed);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    /// Returns the bytes that a client may send in one flight.
    pub(crate) fn flight_max(&self) -> usize {
        if self.asks.load(Ordering::Relaxed) { FLIGHT_CERTIFICATES_MAX } else { FLIGHT_MAX }
    }

    /// Keeps the reason of a failed handshake, if none is kept. On any shard; it never waits.
    pub(crate) fn note_failure(&self, reason: &str) {
        if let Ok(mut failure) = self.failure.try_lock() {
            failure.get_or_insert_with(|| match self.waits.load(Ordering::Relaxed) {
                true => format!("no certificate has been issued yet: {reason}"),
                false => reason.to_owned(),
            });
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
    let Settings { certificates, ticket_keys, unknown_name, min_version, challenges, clients } = settings;
    let ticket_keys = if clients.is_some() { Vec::new() } else { ticket_keys };
    if certificates.is_empty() && challenges.is_none() {
        return Err("TLS needs at least one certificate".to_owned());
    }
    let answers_challenges = challenges.is_some();
    let resolver = ByName::new(&certificates, unknown_name, challenges);
    let versions = if min_version == MinVersion::Tls12 { ALL_VERSIONS } else { &[&TLS13] };
    let builder = ServerConfig::builder_with_provider(Arc::new(provider()))
        .with_protocol_versions(versions)
        .map_err(|error| format!("TLS is not available: {error}"))?;
    let builder = match clients {
        Some(Authorities(verifier)) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    if answers_challenges {
        config.alpn_protocols.push(ACME_TLS.to_vec());
    }
    config.require_ems = true;
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
    /// `None`: there is no certificate yet.
    first: Option<Arc<CertifiedKey>>,
    exact: HashMap<String, Keys>,
    /// By the name behind the asterisk and its dot.
    wildcard: HashMap<String, Keys>,
    unknown_name: UnknownName,
    challenges: Option<AlpnChallenges>,
}

impl ByName {
    fn new(certificates: &[Certificate], unknown_name: UnknownName, challenges: Option<AlpnChallenges>) -> ByName {
        let first = certificates.first().map(|certificate| Arc::clone(&certificate.key));
        let (exact, wildcard) = (HashMap::new(), HashMap::new());
        let mut resolver = ByName { first, exact, wildcard, unknown_name, challenges };
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
        resolver
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(challenges) = self.challenges.as_ref().filter(|_| is_challenge(&client_hello)) {
            return challenges.get(client_hello.server_name()?);
        }
        let Some(name) = client_hello.server_name() else { return self.first.clone() };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let exact = self.exact.get(&name);
        let wildcard = name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        let of_name = [exact, wildcard].into_iter().flatten().flatten();
        let schemes = client_hello.signature_schemes();
        let usable = of_name.clone().find(|key| key.key.choose_scheme(schemes).is_some());
        // A key that the client does not take makes alert 40, which names the reason.
        match usable.or(of_name.clone().next()) {
            Some(key) => Some(Arc::clone(key)),
            None => self.first.clone().filter(|_| self.unknown_name == UnknownName::Default),
        }
    }
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByName({} exact, {} wildcards)", self.exact.len(), self.wildcard.len())
    }
}
