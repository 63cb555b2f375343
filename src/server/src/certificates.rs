//! Certificates of the TLS listeners: read at start and again on SIGHUP, all of them or none.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use protocol::wire::url::HttpUrl;
use runtime::tls::Tls;
use tls::{AlpnChallenges, Authorities, Certificate, MARKED_AS_AUTHORITY, ServerTls, Settings, ShardTls, TicketKey};
use zeroize::Zeroizing;

use super::data_dir::{Keys, fault};
use super::error::NodeError;
use super::listeners::AdminListeners;
use config::{ClientCertificates, Config, MinVersion, Pair, Secret, UnknownName};
use control_plane::{
    Acme, Admin, AdminTls, Answers, CertificatesInUse, Challenges, InUse, OrderBook, Validity, is_of_authority,
};

/// The files of every TLS listener, read and checked.
pub(super) struct Certificates {
    /// For user agents, app servers and operators; empty: no listener of theirs speaks TLS.
    public: Vec<Certificate>,
    /// For other nodes; empty: they do not call over TLS.
    node: Vec<Certificate>,
    /// Authorities of the certificates of app servers and of other nodes; `None`: they are asked for none.
    clients: Clients,
    /// All files, with the certificate that was read from each.
    files: Vec<(PathBuf, Certificate)>,
    /// The first name of the first certificate of `tls.cert` that is no wildcard.
    first_name: Option<String>,
}

/// Authorities of client certificates, by listener.
#[derive(Clone, Default)]
struct Clients {
    endpoint: Option<Authorities>,
    node: Option<Authorities>,
}

impl Clients {
    fn read(config: &Config) -> Result<Clients, NodeError> {
        let one = |setting, clients: &ClientCertificates| {
            let read = |(ca, required)| Authorities::read((setting, ca), required).map_err(NodeError::Certificate);
            clients.authorities().map(read).transpose()
        };
        let endpoint = one("endpoint.tls.client_ca", &config.endpoint.clients)?;
        Ok(Clients { endpoint, node: one("node.tls.client_ca", &config.node.tls.clients)? })
    }
}

/// Settings of the certificates that all listeners can show.
pub(super) const PUBLIC: [&str; 2] = ["tls.cert", "tls.key"];
/// The same, if they were ordered.
const ACME: [&str; 2] = ["the certificate of acme.agree", "its key"];
/// Least interval between two lines about failed handshakes.
const FAILURE_INTERVAL: Duration = Duration::from_secs(60);

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// [`NodeError::Edge`] for files that cannot be used.
    pub(super) fn read(config: &Config) -> Result<Certificates, NodeError> {
        let ordered = ordered(config)?;
        let (mut public_pairs, node_pairs) = (config.public_pairs(), config.node_pairs());
        public_pairs.extend(ordered.iter().map(|file| (file.as_path(), file.as_path())));
        let of_node = if config.node.tls.cert.is_some() { ["node.tls.cert", "node.tls.key"] } else { PUBLIC };
        let of_public = if config.acme.agree { ACME } else { PUBLIC };
        let (public, node) = (read(&public_pairs, of_public)?, read(&node_pairs, of_node)?);
        let only_node = node_pairs.iter().zip(&node).filter(|(pair, _)| !public_pairs.contains(pair));
        let all = public_pairs.iter().zip(&public).chain(only_node);
        let files = all.map(|((cert, _), certificate)| ((*cert).to_owned(), certificate.clone())).collect();
        let first = if of_node == PUBLIC { public.first().or(node.first()) } else { public.first() };
        let names = first.map_or_else(Vec::new, Certificate::host_names);
        // Without a certificate yet, the name that one was ordered for.
        let names = config.acme_names().iter().cloned().chain(names);
        let first_name = names.into_iter().find(|name| !name.starts_with("*."));
        let certificates = Certificates { public, node, clients: Clients::read(config)?, files, first_name };
        certificates.warn(config);
        Ok(certificates)
    }

    /// The first name of the first certificate of `tls.cert` that is no wildcard.
    pub(super) fn first_name(&self) -> Option<String> {
        self.first_name.clone()
    }

    /// Warns of certificates that clients will refuse.
    fn warn(&self, config: &Config) {
        for (at, (file, certificate)) in self.files.iter().enumerate() {
            let file = file.display();
            if let Some(validity) = Validity::of(certificate.der()).filter(|validity| validity.is_over()) {
                // Not refused: the client judges.
                tracing::warn!(%file, last_day = validity.last_day(), "certificate expired");
            }
            if is_of_authority(certificate.der()) {
                // Not refused: the client judges, and browsers take it.
                tracing::warn!(%file, advice = MARKED_AS_AUTHORITY, "certificate of an authority found");
            }
            // The public certificates come first. That of other nodes is compared with `node.url`.
            let is_public = at < self.public.len();
            let refuses = config.tls.unknown_name == UnknownName::Refuse;
            if is_public && refuses && certificate.host_names().is_empty() {
                // Not refused: clients that connect to an IP address ask for no name.
                tracing::warn!(
                    %file,
                    "certificate without host names found; clients that ask for a name do not get it"
                );
            }
        }
        let is_named = |name: &&String| self.public.iter().any(|certificate| certificate.names(name));
        for name in config.public.domain.iter().filter(|name| !self.public.is_empty() && !is_named(name)) {
            tracing::warn!(name, "name of public.domain found in no certificate; its clients refuse the connection");
        }
        let Some(url) = config.node.url.as_deref().and_then(HttpUrl::parse).filter(|_| !self.node.is_empty()) else {
            return;
        };
        let host = &url.origin().host;
        if !url.origin().https {
            tracing::warn!(%url, "node.url without https found beside node.tls.listen; other nodes call without TLS");
        } else if !self.node.iter().any(|certificate| certificate.names(host)) {
            // Not refused: a proxy with its own certificate can answer at that name.
            tracing::warn!(
                host,
                "host of node.url not found in node.tls.cert; other nodes refuse this node, and store instead"
            );
        }
    }

    /// Logs the certificates that are shown from now on, and lists them for the metrics.
    fn announce(&self, in_use: &CertificatesInUse) {
        let listed = |(file, certificate): &(PathBuf, Certificate)| {
            let names = Some(certificate.host_names()).filter(|names| !names.is_empty());
            let names = names.unwrap_or_else(|| vec![file.display().to_string()]);
            Some(InUse::new(names, Validity::of(certificate.der())?))
        };
        in_use.set(self.files.iter().filter_map(listed).collect());
        if self.files.is_empty() {
            return;
        }
        let certificates = || self.files.iter().map(|(_, certificate)| certificate);
        let first_to_end = certificates().filter_map(|certificate| Validity::of(certificate.der())).min();
        let last_day = first_to_end.map_or_else(|| "unknown".to_owned(), |validity| validity.last_day());
        let mut names: Vec<String> = certificates().flat_map(Certificate::host_names).collect();
        names.sort();
        names.dedup();
        tracing::info!(files = self.files.len(), names = names.join(","), last_day, "certificates taken");
    }
}

/// Files of the certificates that were ordered and have come.
///
/// # Errors
/// [`NodeError::DataDir`] if the host does not say so: a certificate that seems to be missing would not be shown.
pub fn ordered(config: &Config) -> Result<Vec<PathBuf>, NodeError> {
    let mut files = Vec::new();
    for file in config.acme_names().iter().map(|name| config.acme_file(name)) {
        let unknown = |error| fault(&file, "look for the certificate", error);
        if file.try_exists().map_err(unknown)? {
            files.push(file);
        }
    }
    Ok(files)
}

fn read(pairs: &[Pair<'_>], [cert_key, key_key]: [&str; 2]) -> Result<Vec<Certificate>, NodeError> {
    let one =
        |(cert, key): &Pair<'_>| Certificate::read((cert_key, *cert), (key_key, *key)).map_err(NodeError::Certificate);
    pairs.iter().map(one).collect()
}

/// TLS of the listeners of a node. Copies share their certificates.
#[derive(Clone, Default)]
pub(super) struct NodeTls {
    public: Option<ServerTls>,
    /// With the certificates of `public`, for app servers.
    endpoint: Option<ServerTls>,
    node: Option<ServerTls>,
    in_use: Arc<CertificatesInUse>,
    /// Configuration and keys as of the last reload. Locked while files are read and put in place, so that a renewal
    /// beside a reload does not undo it.
    last: Arc<Mutex<Option<(Config, Keys)>>>,
    /// With `acme.agree`: answers to the authority, and the state of the orders.
    acme: Option<(Answers, Arc<OrderBook>)>,
    /// Time of the last line about a failed handshake.
    logged: Arc<Mutex<Option<Instant>>>,
}

impl NodeTls {
    /// TLS with these certificates.
    ///
    /// # Errors
    /// [`NodeError::Edge`] for settings that TLS does not take.
    pub(super) fn new(certificates: &Certificates, config: &Config, keys: &Keys) -> Result<NodeTls, NodeError> {
        let acme: Option<(Answers, Arc<OrderBook>)> = config.acme.agree.then(Default::default);
        let challenges = acme.as_ref().map(|(answers, _)| answers.tls_alpn.clone());
        let of = |shown: &[Certificate], challenges: Option<AlpnChallenges>, clients| {
            let is_served = !shown.is_empty() || challenges.is_some();
            let tls = is_served.then(|| ServerTls::new(settings(shown, config, keys, challenges, clients)));
            tls.transpose().map_err(NodeError::Edge)
        };
        let Certificates { public, node, clients, .. } = certificates;
        let (public, endpoint) =
            (of(public, challenges.clone(), None)?, of(public, challenges, clients.endpoint.clone())?);
        let node = of(node, None, clients.node.clone())?;
        let last = Arc::new(Mutex::new(Some((config.clone(), keys.clone()))));
        let tls = NodeTls { public, endpoint, node, last, acme, ..NodeTls::default() };
        certificates.announce(&tls.in_use);
        Ok(tls)
    }

    /// Reads the files of this configuration and shows them from the next handshake on. A listener keeps its old
    /// certificates where there are none for it.
    ///
    /// # Errors
    /// As [`Certificates::read`] and [`NodeTls::new`]; then all stays what it was.
    pub(super) fn reload(&self, config: &Config, keys: &Keys) -> Result<(), NodeError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.show(config, keys)?;
        *last = Some((config.clone(), keys.clone()));
        Ok(())
    }

    /// Reads the files of the last configuration again, as [`NodeTls::reload`].
    ///
    /// # Errors
    /// As [`NodeTls::reload`].
    pub(super) fn read_again(&self) -> Result<(), NodeError> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map_or(Ok(()), |(config, keys)| self.show(config, keys))
    }

    fn show(&self, config: &Config, keys: &Keys) -> Result<(), NodeError> {
        let certificates = Certificates::read(config)?;
        let challenges = self.acme.as_ref().map(|(answers, _)| answers.tls_alpn.clone());
        let Certificates { public, node, clients, .. } = &certificates;
        for (tls, shown, challenges, clients) in [
            (&self.public, public, challenges.clone(), None),
            (&self.endpoint, public, challenges, clients.endpoint.clone()),
            (&self.node, node, None, clients.node.clone()),
        ] {
            if let Some(tls) = tls.as_ref().filter(|_| !shown.is_empty()) {
                // The others cannot fail where the first did not: each has a certificate.
                tls.replace(settings(shown, config, keys, challenges, clients)).map_err(NodeError::Edge)?;
            }
        }
        certificates.announce(&self.in_use);
        Ok(())
    }

    /// Returns the task that orders certificates, if this configuration requires one.
    ///
    /// # Errors
    /// [`NodeError::Edge`] for a file of authorities that cannot be used.
    pub(super) fn orders(&self, config: &Config) -> Result<Option<Acme>, NodeError> {
        let Some(of_node) = self.acme.clone() else { return Ok(None) };
        let dir = config.data_dir.join("acme");
        let unusable = |error| NodeError::Edge(format!("acme.ca: {error}; it must be a file of PEM certificates"));
        Acme::new(config.acme.clone(), config.acme_names(), dir, of_node).map_err(unusable)
    }

    /// Returns the answers to HTTP-01 challenges; empty for ever without `acme.agree`.
    pub(super) fn http_challenges(&self) -> Arc<Challenges> {
        self.acme.as_ref().map(|(answers, _)| Arc::clone(&answers.http)).unwrap_or_default()
    }

    /// Makes the task look at all names again, also those that failed.
    pub(super) fn order_again(&self) {
        if let Some((_, book)) = &self.acme {
            book.look_again();
        }
    }

    /// Returns the certificates that are shown, as of the last reload.
    pub(super) fn in_use(&self) -> Arc<CertificatesInUse> {
        Arc::clone(&self.in_use)
    }

    /// Says which certificate is missing, or refused by clients for its dates.
    pub(super) fn trouble(&self, now: SystemTime) -> Option<String> {
        let missing = || {
            let awaited = self.acme.as_ref().and_then(|(_, book)| book.waits_for());
            awaited.map(|awaited| format!("the node waits for {awaited}"))
        };
        let is_served = self.public.is_some() || self.node.is_some();
        let none = || (is_served && self.in_use.is_empty()).then(|| "there is no certificate".to_owned());
        missing().or_else(none).or_else(|| self.in_use.trouble(now))
    }

    /// Logs the reason of the first handshake that failed since the last line, at most once a minute.
    pub(super) fn log_failure(&self) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_some_and(|at| at.elapsed() < FAILURE_INTERVAL) {
            return;
        }
        // Failures of public clients are frequent, so they come last and leave a line for the others.
        let public = [&self.endpoint, &self.public].map(|tls| (tls, "tls.cert"));
        for (tls, certificates) in [(&self.node, "node.tls.cert")].into_iter().chain(public) {
            if let Some(cause) = tls.as_ref().and_then(ServerTls::take_failure) {
                tracing::warn!(certificates, cause, "TLS handshake failed");
                *logged = Some(Instant::now());
                return;
            }
        }
    }

    /// Makes TLS of one shard, on its thread.
    pub(super) fn of_shard(&self) -> Box<dyn FnOnce() -> Box<dyn Tls> + Send> {
        let NodeTls { public, endpoint, node, .. } = self.clone();
        Box::new(move || Box::new(ShardTls::new(public, node).with_endpoint(endpoint)))
    }

    /// Listeners of the control plane.
    pub(super) fn admin(&self, config: &Config, bound: AdminListeners, token: Secret) -> Admin {
        let AdminListeners { plain, tls: listeners, metrics } = bound;
        let with = |tls| AdminTls { listeners, tls, handshake_timeout: config.tls.handshake_timeout };
        let (tls, hosts) = (self.public.clone().map(with), config.admin.hosts.clone());
        Admin { listeners: plain, tls, metrics, hosts, token }
    }
}

fn settings(
    shown: &[Certificate],
    config: &Config,
    keys: &Keys,
    challenges: Option<AlpnChallenges>,
    clients: Option<Authorities>,
) -> Settings {
    let key = |key: &Secret| {
        // One byte more than a key, because the decoder requires room for its estimate of the length.
        let mut bytes = Zeroizing::new([0; 33]);
        let length = URL_SAFE.decode_slice(key.reveal(), &mut bytes[..]);
        let key = bytes.first_chunk::<32>().filter(|_| length == Ok(32));
        // Invariant: the configuration and the data directory take keys of 32 bytes only, in this alphabet.
        TicketKey::from(*key.expect("a key of 32 bytes"))
    };
    Settings {
        certificates: shown.to_vec(),
        ticket_keys: keys.tickets.iter().map(key).collect(),
        unknown_name: match config.tls.unknown_name {
            UnknownName::Refuse => tls::UnknownName::Refuse,
            UnknownName::Default => tls::UnknownName::Default,
        },
        min_version: match config.tls.min_version {
            MinVersion::Tls13 => tls::MinVersion::Tls13,
            MinVersion::Tls12 => tls::MinVersion::Tls12,
        },
        challenges,
        clients,
    }
}
