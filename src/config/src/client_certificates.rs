//! `endpoint.tls.client_*` and `node.tls.client_*`: certificates of clients.

use std::path::Path;

use super::allowed::PEM;
use super::error::ConfigError;
use super::key::keys;
use super::parse;
use super::settings::{ClientCertificates, Config};

impl ClientCertificates {
    /// Returns the file of the authorities, and whether a client must show a certificate.
    pub fn authorities(&self) -> Option<(&Path, bool)> {
        Some((self.ca.as_deref()?, self.required))
    }
}

keys! {
    /// Certificates of clients.
    const CLIENT_CERTIFICATES;
    #[live] "endpoint.tls.client_ca" = "",
        PEM,
        "PEM certificates of the authorities of application servers on endpoint.tls.listen: a certificate that one shows must verify. Excludes public.listen.",
        |c, raw| { c.endpoint.clients.ca = parse::path(raw)?; Some(()) };
    #[live] "endpoint.tls.client_required" = "false",
        "true or false",
        "Refuses application servers without a certificate on endpoint.tls.listen.",
        |c, raw| { c.endpoint.clients.required = parse::flag(raw)?; Some(()) };
    #[live] "node.tls.client_ca" = "",
        PEM,
        "PEM certificates of the authorities of other nodes on node.tls.listen: a certificate that one shows must verify.",
        |c, raw| { c.node.tls.clients.ca = parse::path(raw)?; Some(()) };
    #[live] "node.tls.client_required" = "false",
        "true or false",
        "Refuses nodes without a certificate on node.tls.listen. A node shows the certificate of node.tls.cert.",
        |c, raw| { c.node.tls.clients.required = parse::flag(raw)?; Some(()) };
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
