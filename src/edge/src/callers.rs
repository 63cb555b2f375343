//! Addresses that proxies name: PROXY headers, and fields of the head of an upgrade (docs/PROXIES.md).
//!
//! The edge reads what any peer sends. The reactor knows the address of the peer, and believes trusted ones only.

use std::net::IpAddr;
use std::sync::Arc;

use protocol::wire::forwarded::{self, Kind};
use protocol::wire::http1::Head;
use protocol::wire::proxy;
use runtime::ports::ProxyHeader;
use runtime::strangers::Prefix;

/// `proxy.header`, and the proxies whose word it is.
#[derive(Clone, Default)]
pub struct Forwarding {
    /// Field that names the caller; `None`: none is read.
    pub field: Option<Kind>,
    /// `proxy.trusted`.
    pub trusted: Arc<[Prefix]>,
}

impl Forwarding {
    /// Returns the address of the caller that a head names.
    pub(super) fn caller(&self, head: &Head<'_, '_>) -> Option<IpAddr> {
        let field = self.field?;
        let trusted = |address| self.trusted.iter().any(|prefix| prefix.contains(address));
        forwarded::client(field, head.every(field.field()), trusted)
    }
}

/// Reads a PROXY header at the front of `bytes`.
pub(super) fn proxy_header(bytes: &[u8]) -> ProxyHeader {
    match proxy::read(bytes) {
        proxy::Header::Incomplete => ProxyHeader::Incomplete,
        proxy::Header::Malformed => ProxyHeader::Malformed,
        proxy::Header::Whole { len, source } => ProxyHeader::Whole { len, source },
    }
}
