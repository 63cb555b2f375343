//! `endpoint.tls.client_*` and `node.tls.client_*`: certificates of clients.

use std::path::{Path, PathBuf};

use super::allowed::PEM;
use super::error::ConfigError;
use super::key::settings;
use super::parse;
use super::settings::Config;

/// Certificates that clients of one listener show.
#[derive(Clone, Debug, Default)]
pub struct ClientCertificates {
    /// PEM certificates of the authorities; `None`: clients are asked for no certificate.
    pub ca: Option<PathBuf>,
    pub required: bool,
}

settings! {
    ENDPOINT_CLIENTS at [endpoint clients] {
        ca = "endpoint.tls.client_ca" [live], "",
            PEM,
            "PEM certificates of the authorities of application servers on endpoint.tls.listen: a certificate that one shows must verify. Excludes public.listen.",
            parse::path;
        required = "endpoint.tls.client_required" [live], "false",
            "true or false",
            "Refuses application servers without a certificate on endpoint.tls.listen.",
            parse::flag;
    }
}

settings! {
    NODE_CLIENTS at [node tls clients] {
        ca = "node.tls.client_ca" [live], "",
            PEM,
            "PEM certificates of the authorities of other nodes on node.tls.listen: a certificate that one shows must verify.",
            parse::path;
        required = "node.tls.client_required" [live], "false",
            "true or false",
            "Refuses nodes without a certificate on node.tls.listen. A node shows the certificate of node.tls.cert.",
            parse::flag;
    }
}

impl ClientCertificates {
    /// Returns the file of the authorities, and whether a client must show a certificate.
    pub fn authorities(&self) -> Option<(&Path, bool)> {
        Some((self.ca.as_deref()?, self.required))
    }
}

/// Refuses authorities without a listener that asks for certificates, and a demand without authorities.
///
/// # Errors
/// [`ConfigError::Conflict`].
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let Config { endpoint, node, public, .. } = config;
    let (of_endpoint, of_node) = (&endpoint.clients, &node.tls.clients);
    let conflict = if of_endpoint.required && of_endpoint.ca.is_none() {
        "endpoint.tls.client_required needs endpoint.tls.client_ca: the authorities of the certificates"
    } else if of_node.required && of_node.ca.is_none() {
        "node.tls.client_required needs node.tls.client_ca: the authorities of the certificates"
    } else if of_endpoint.ca.is_some() && !public.listen().is_empty() {
        "endpoint.tls.client_ca excludes public.listen, where browsers connect, which have no such certificate; set \
         public.listen = none, and listen with websocket.tls.listen and endpoint.tls.listen"
    } else if of_endpoint.ca.is_some() && endpoint.tls_listen.is_empty() {
        "endpoint.tls.client_ca needs an address in endpoint.tls.listen"
    } else if of_node.ca.is_some() && node.tls.listen.is_empty() {
        "node.tls.client_ca needs an address in node.tls.listen"
    } else {
        return Ok(());
    };
    Err(ConfigError::Conflict(conflict))
}
