//! `node.*`: calls of other nodes.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::allowed::{ADDRESSES, ADDRESSES_OR_NONE, PEM, SECONDS, URL};
use super::client_certificates::ClientCertificates;
use super::key::settings;
use super::parse;
use super::parse::Secret;

settings! {
    /// `node.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Node as NODE at [node] {
        pub listen: Vec<SocketAddr> = "node.listen" ("node" "ADDR"), "127.0.0.1:8081",
            ADDRESSES,
            "Listen addresses for calls of other nodes.",
            parse::addresses;
        /// URL of this node in presence rows; `None`: `https://` and the first address of `tls.listen`, or `http://`
        /// and that of `listen`.
        pub url: Option<String> = "node.url" ("node-url" "URL"), "",
            URL,
            "URL at which other nodes reach this node; by default https:// and the first address of node.tls.listen, else http:// and that of node.listen.",
            |raw| Some(parse::url(raw)?.map(|url| url.to_string()));
        /// Bearer keys; the first is sent, all are accepted. Empty: one is made in the data directory.
        pub keys: Vec<Secret> = "node.keys" [secret live], "",
            "keys of 16 to 256 visible characters, [k1,k2] or k1,k2",
            "Keys of the node API: other nodes must present one of them, and this node presents the first. By default the server makes one in data_dir.",
            parse::bearer_keys;
        pub connections: u16 = "node.connections", "16",
            "a number from 1 to 256",
            "Maximum number of connections to each other node; further calls wait.",
            parse::number(1, 256);
        pub connect_timeout: Duration = "node.connect_timeout", "1",
            SECONDS,
            "Time limit for a connection to another node; later the connection has failed.",
            parse::positive_duration;
        pub request_timeout: Duration = "node.request_timeout", "3",
            "seconds from 0.001 to 30, as 5, 2.5 or \"250ms\"",
            "Time limit for the response to a call of another node; later the call has failed.",
            parse::seconds(0.001, 30.0);
        /// PEM certificates of the authorities of other nodes; `None`: those that this host trusts.
        pub ca: Option<PathBuf> = "node.ca" [live], "",
            PEM,
            "PEM certificates of the authorities of other nodes whose node.url begins with https; by default those that this host trusts. Read with any store.",
            parse::path;
    } with {
        pub tls: NodeTls,
    }
}

settings! {
    /// `node.tls.*`.
    #[derive(Clone, Debug, Default)]
    pub struct NodeTls as NODE_TLS at [node tls] {
        /// Addresses for calls of other nodes over TLS; empty: none.
        pub listen: Vec<SocketAddr> = "node.tls.listen", "",
            ADDRESSES_OR_NONE,
            "Listen addresses of the node API over TLS.",
            parse::addresses;
        /// Certificate of this node and those that lead to its authority, PEM; `None`: those of `tls.cert`.
        pub cert: Option<PathBuf> = "node.tls.cert" [live], "",
            PEM,
            "PEM certificate of this node for node.tls.listen, which names the host of node.url, and its intermediate certificates; by default those of tls.cert.",
            parse::path;
        pub key: Option<PathBuf> = "node.tls.key" [live], "",
            PEM,
            "PEM key of node.tls.cert, without a password.",
            parse::path;
    } with {
        /// `node.tls.client_ca` and `node.tls.client_required`.
        pub clients: ClientCertificates,
    }
}
