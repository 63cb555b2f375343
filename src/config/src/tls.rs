//! `tls.*`: certificates of the TLS listeners, and the rules of their handshakes.

use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::settings::{Config, NodeTls, ServerTls};

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
