//! `tls.*`: certificates of the TLS listeners, and the rules of their handshakes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::allowed::{PEMS, SECONDS};
use super::error::ConfigError;
use super::key::settings;
use super::node::NodeTls;
use super::parse;
use super::parse::Secret;
use super::settings::Config;

settings! {
    /// `tls.*`.
    #[derive(Clone, Debug, Default)]
    pub struct ServerTls as TLS at [tls] {
        /// PEM files, each with a certificate and its intermediate certificates.
        pub cert: Vec<PathBuf> = "tls.cert" [live] ("tls-cert" "FILE"), "",
            PEMS,
            "PEM certificates of the TLS listeners, each with its intermediate certificates. The name that a client asks for selects one; the first serves clients that name none.",
            parse::paths;
        /// The key of each certificate, in the same order.
        pub key: Vec<PathBuf> = "tls.key" [live] ("tls-key" "FILE"), "",
            PEMS,
            "PEM keys of tls.cert without passwords, in the same order.",
            parse::paths;
        pub unknown_name: UnknownName = "tls.unknown_name" [live], "refuse",
            "refuse, or default for the first certificate",
            "Certificate for a client that asks for a name that no certificate has.",
            parse::word([("refuse", UnknownName::Refuse), ("default", UnknownName::Default)]);
        pub min_version: MinVersion = "tls.min_version" [live], "1.3",
            "1.3, or 1.2 for TLS 1.2 too",
            "Oldest version of TLS on every listener.",
            parse::word([("1.3", MinVersion::Tls13), ("1.2", MinVersion::Tls12)]);
        pub handshake_timeout: Duration = "tls.handshake_timeout", "10",
            SECONDS,
            "Time limit from the accept of a TLS connection to the end of its handshake; later it is closed.",
            parse::positive_duration;
        /// Seconds in `Strict-Transport-Security` of answers over TLS; `None`: as `public.domain` has it.
        pub(super) hsts: Option<u32> = "tls.hsts", "",
            "seconds from 0 (off) to a year, as 31536000, \"10m\" or \"365d\"; nothing is a year with public.domain, else 0",
            "Time in the header Strict-Transport-Security of answers over TLS, for which browsers reach this name over TLS alone.",
            parse::optional(|raw| Some(parse::duration(raw)?.as_secs() as u32));
        /// Secrets of 32 bytes in base64; the first seals tickets, all open them. Empty: one is made in the data
        /// directory.
        pub ticket_keys: Vec<Secret> = "tls.ticket_keys" [secret live], "",
            "secrets of 32 bytes in base64, [k1,k2] or k1,k2",
            "Keys of the tickets with which clients resume TLS connections: the first seals, every key opens. Nodes with the same keys resume each other's connections. By default the server makes one in data_dir.",
            parse::fernet_keys;
    }
}

/// `tls.unknown_name`: certificate for a name that none of them has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UnknownName {
    #[default]
    Refuse,
    Default,
}

/// `tls.min_version`: oldest version of TLS that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MinVersion {
    #[default]
    Tls13,
    Tls12,
}

/// A file with a certificate and the file with its key.
pub type Pair<'a> = (&'a Path, &'a Path);

impl Config {
    /// Certificates of the public, WebSocket, endpoint and admin listeners with TLS; empty without such a listener.
    pub fn public_pairs(&self) -> Vec<Pair<'_>> {
        if self.has_public_tls() { self.tls.pairs() } else { Vec::new() }
    }

    /// Certificates of `node.tls.listen`; empty without an address in it, or without the role connect.
    pub fn node_pairs(&self) -> Vec<Pair<'_>> {
        let NodeTls { cert, key, .. } = &self.node.tls;
        if !self.has_node_tls() {
            return Vec::new();
        }
        cert.as_deref().zip(key.as_deref()).map_or_else(|| self.tls.pairs(), |own| vec![own])
    }

    /// The certificate that this node shows to a node that asks for one: the first that it has for other nodes.
    pub fn node_client_pair(&self) -> Option<Pair<'_>> {
        let NodeTls { cert, key, .. } = &self.node.tls;
        cert.as_deref().zip(key.as_deref()).or_else(|| self.tls.pairs().first().copied())
    }

    fn has_public_tls(&self) -> bool {
        self.public_tls().into_iter().any(|(is_open, _)| is_open)
    }

    fn has_node_tls(&self) -> bool {
        self.roles.connect && !self.node.tls.listen.is_empty()
    }

    /// For each listener that shows `tls.cert`: true if it has an address and its role is on, and the refusal of a
    /// configuration without certificates.
    fn public_tls(&self) -> [(bool, &'static str); 4] {
        let Config { websocket, endpoint, admin, roles, .. } = self;
        [
            (!self.public.listen().is_empty(), "public.listen needs tls.cert and tls.key, or acme.agree"),
            (roles.connect && !websocket.tls_listen.is_empty(), "websocket.tls.listen needs tls.cert and tls.key"),
            (roles.endpoint && !endpoint.tls_listen.is_empty(), "endpoint.tls.listen needs tls.cert and tls.key"),
            (!admin.tls_listen.is_empty(), "admin.tls.listen needs tls.cert and tls.key"),
        ]
    }
}

impl ServerTls {
    fn pairs(&self) -> Vec<Pair<'_>> {
        self.cert.iter().map(PathBuf::as_path).zip(self.key.iter().map(PathBuf::as_path)).collect()
    }
}

/// Checks that every TLS listener has a certificate, and every certificate a listener. Listeners of a role that is off
/// do not count.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let conflict = |sentence| Err(ConfigError::Conflict(sentence));
    let (tls, node) = (&config.tls, &config.node.tls);
    if tls.cert.len() != tls.key.len() {
        return conflict("tls.cert and tls.key need each other: give both the same number of files, in the same order");
    }
    if tls.cert.is_empty()
        && !config.acme.agree
        && let Some((_, sentence)) = config.public_tls().into_iter().find(|(is_open, _)| *is_open)
    {
        return conflict(sentence);
    }
    if config.acme.agree && !config.has_public_tls() {
        return conflict(
            "acme.agree needs an address in public.listen, websocket.tls.listen, endpoint.tls.listen or \
             admin.tls.listen: a listener that shows the certificates",
        );
    }
    if node.cert.is_some() != node.key.is_some() {
        return conflict("node.tls.cert and node.tls.key need each other");
    }
    let (has_own, has_shared) = (node.cert.is_some(), !tls.cert.is_empty());
    if config.has_node_tls() && !has_own && !has_shared {
        return conflict("node.tls.listen needs node.tls.cert and node.tls.key, or tls.cert and tls.key");
    }
    if node.listen.is_empty() && has_own {
        return conflict("node.tls.cert and node.tls.key need an address in node.tls.listen");
    }
    let is_used = config.has_public_tls() || (config.has_node_tls() && !has_own);
    if has_shared && !is_used {
        return conflict(
            "tls.cert and tls.key need an address in public.listen, websocket.tls.listen, endpoint.tls.listen, \
             admin.tls.listen or node.tls.listen; a listener of a role that is off does not count",
        );
    }
    Ok(())
}
