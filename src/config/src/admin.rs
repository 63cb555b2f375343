//! `admin.*` and `metrics.*`: pages for operators and scrapers.

use std::net::SocketAddr;

use super::allowed::{ADDRESSES, ADDRESSES_OR_NONE};
use super::key::settings;
use super::parse;

settings! {
    /// `admin.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Admin as ADMIN at [admin] {
        /// Addresses for operators; empty: none.
        pub listen: Vec<SocketAddr> = "admin.listen" ("admin" "ADDR"), "127.0.0.1:8083",
            ADDRESSES,
            "Listen addresses of the admin page, health routes, metrics, PUT /broadcasts and PUT /backups; changes need the token in keys/admin of data_dir. They must not be public.",
            parse::addresses;
        pub tls_listen: Vec<SocketAddr> = "admin.tls.listen" ("admin-tls" "ADDR"), "",
            ADDRESSES_OR_NONE,
            "Listen addresses of the same over TLS (https); needs tls.cert and tls.key. They must not be public either.",
            parse::addresses;
        /// Host names of requests that are answered, in lower case, beside `localhost` and IP addresses.
        pub hosts: Vec<String> = "admin.hosts", "",
            "host names as murre.internal, without ports, separated by commas, or nothing",
            "Names by which admin.listen, admin.tls.listen and metrics.listen can be called, beside localhost and every IP address; a request with another Host is answered 421.",
            parse::host_names;
    }
}

settings! {
    /// `metrics.*`.
    #[derive(Clone, Debug, Default)]
    pub struct Metrics as METRICS at [metrics] {
        /// Addresses that are only read; empty: none.
        pub listen: Vec<SocketAddr> = "metrics.listen" ("metrics" "ADDR"), "",
            ADDRESSES_OR_NONE,
            "Listen addresses of metrics and health routes alone, which change nothing and ask for no password: for scrapers and health checks of other hosts. They must not be public.",
            parse::addresses;
    }
}
