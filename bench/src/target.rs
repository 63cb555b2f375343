//! Options of every scenario: the addresses of the server, the number of sessions, the measured processes, the output.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::str::FromStr;

use rustls::ClientConfig;
use tls::{classical_client_config, client_config};

use crate::report::Report;
use crate::result::names;

/// Name of an option's value on the command line, which is also its name in results and on the wire.
pub fn value_name(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Rate of arrivals.
#[derive(clap::Args, Clone, Debug)]
pub struct Ramp {
    /// Handshakes under way at once.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub ramp: usize,
    /// Arrivals a second as an open loop; then `--ramp` does not limit them.
    #[arg(long, value_name = "N")]
    pub ramp_rate: Option<f64>,
}

/// TLS of user agents and app servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientTls {
    /// File of trusted certificates.
    pub ca: PathBuf,
    /// Name of the server.
    pub name: String,
    /// ML-KEM is offered beside X25519.
    pub has_ml_kem: bool,
}

impl ClientTls {
    /// The configuration of a client.
    ///
    /// # Errors
    /// If the file of certificates cannot be used.
    pub fn config(&self) -> io::Result<ClientConfig> {
        let config = if self.has_ml_kem { client_config(&self.ca) } else { classical_client_config(&self.ca) };
        config.map_err(io::Error::other)
    }
}

/// Options that all scenarios share.
#[derive(clap::Args, Clone, Debug)]
pub struct Target {
    /// Address for user agents, or its URL; several listeners of one server, separated by commas, share them evenly.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_delimiter = ',')]
    pub ws: Vec<Listener>,
    /// Addresses that user agents come from, on loopback 127.1.0.1 and following; as many as ports call for when
    /// absent.
    #[arg(long, value_name = "N")]
    pub sources: Option<usize>,
    /// Address for app servers, or its URL.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    pub endpoint: Listener,
    /// Speak TLS to `--ws` and `--endpoint`, and trust the certificates in this PEM file.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Offer key exchanges without ML-KEM only, as older clients do.
    #[arg(long, requires = "ca")]
    pub no_ml_kem: bool,
    /// Name of the server in its certificate; that of the URL when absent, or localhost.
    #[arg(long, value_name = "NAME", default_value = "")]
    pub tls_name: String,
    /// Address of murre's metrics; without it no counter of the server is shown.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// File with the token of the operator, `keys/admin` of the data directory of the server: for scenarios that set a
    /// broadcast.
    #[arg(long, value_name = "FILE")]
    pub admin_token: Option<PathBuf>,
    /// User agents.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub sessions: usize,
    /// Way in which sessions arrive.
    #[command(flatten)]
    pub ramp: Ramp,
    /// Process id of the server, several with commas or given again; their children are counted too. Without it
    /// neither CPU time nor memory of the server is measured.
    #[arg(long = "pid", value_name = "PID", value_delimiter = ',')]
    pub pids: Vec<u32>,
    /// Also write every figure to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Name of the server in results: two that differ stand side by side in a report.
    #[arg(long, value_name = "NAME", default_value = "murre")]
    pub label: String,
}

impl Target {
    /// An empty report of this scenario with the name of the server and the number of sessions.
    pub fn report(&self, scenario: &'static str) -> Report {
        let mut report = Report::new(scenario);
        report.server(&self.label);
        report.option(names::OPTION_SESSIONS, self.sessions);
        report
    }
}

impl Target {
    /// TLS of the clients, if both ends speak it.
    ///
    /// # Errors
    /// One end is named by a URL of TLS and no certificate is trusted, or by one of plain text and some are.
    pub fn tls(&self) -> io::Result<Option<ClientTls>> {
        let all = || self.ws.iter().chain([&self.endpoint]);
        if all().any(|listener| listener.tls.is_some_and(|tls| tls != self.ca.is_some())) {
            return Err(io::Error::other("cannot choose TLS: wss:// and https:// need --ca, and others exclude it"));
        }
        let of_url = || all().find_map(|listener| listener.name.clone()).unwrap_or_else(|| "localhost".to_owned());
        let name = if self.tls_name.is_empty() { of_url() } else { self.tls_name.clone() };
        Ok(self.ca.clone().map(|ca| ClientTls { ca, name, has_ml_kem: !self.no_ml_kem }))
    }

    /// The listeners for user agents.
    pub fn ws_addresses(&self) -> Vec<SocketAddr> {
        self.ws.iter().map(|listener| listener.address).collect()
    }

    /// The listener for a scenario that needs only one.
    pub fn first_ws(&self) -> SocketAddr {
        // Invariant: the argument has a default and takes at least one value.
        self.ws.first().expect("--ws has a value").address
    }
}

/// A listener of the server, given as an address or as a URL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listener {
    pub address: SocketAddr,
    /// Name in the URL.
    pub name: Option<String>,
    /// True for a URL of TLS and false for one of plain text; `None` for an address.
    pub tls: Option<bool>,
}

impl From<SocketAddr> for Listener {
    fn from(address: SocketAddr) -> Listener {
        Listener { address, name: None, tls: None }
    }
}

impl FromStr for Listener {
    type Err = String;

    /// Reads `ADDR:PORT`, or `ws`, `wss`, `http` or `https` with `://NAME:PORT/`, and looks the name up.
    fn from_str(text: &str) -> Result<Listener, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            let unknown = |error| format!("cannot read an address: {error}");
            return text.parse().map(|address: SocketAddr| address.into()).map_err(unknown);
        };
        let tls = match scheme {
            "ws" | "http" => false,
            "wss" | "https" => true,
            _ => return Err("cannot read a URL: it begins with ws, wss, http or https".to_owned()),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let bad = || format!("cannot read {text}: a URL has a name, a port and no path");
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse::<u16>().map_err(|_| bad())?),
            _ => (authority, if tls { 443 } else { 80 }),
        };
        let host = host.trim_matches(['[', ']']);
        if host.is_empty() || host.contains('/') {
            return Err(bad());
        }
        let unknown = |error| format!("cannot look up {host}: {error}");
        let address = (host, port).to_socket_addrs().map_err(unknown)?.next();
        let address = address.ok_or_else(|| format!("cannot look up {host}: it has no address"))?;
        let name = Some(host.to_owned());
        Ok(Listener { address, name, tls: Some(tls) })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        target: Target,
    }

    fn parsed(arguments: &[&str]) -> Option<Target> {
        Cli::try_parse_from([&["bench"], arguments].concat()).ok().map(|cli| cli.target)
    }

    #[test]
    fn listeners_are_addresses_or_urls_whose_name_is_that_of_the_certificate() {
        let (ws, endpoint) = ("wss://127.0.0.1:8443/", "https://[::1]/");
        let target = parsed(&["--ws", ws, "--endpoint", endpoint, "--ca", "a.pem"]).unwrap();
        assert_eq!(target.ws_addresses(), ["127.0.0.1:8443".parse().unwrap()]);
        assert_eq!(target.endpoint.address, "[::1]:443".parse().unwrap());
        let tls = |name: &str| ClientTls { ca: "a.pem".into(), name: name.to_owned(), has_ml_kem: true };
        assert_eq!(target.tls().unwrap(), Some(tls("127.0.0.1")));
        let named = ["--ws", ws, "--endpoint", endpoint, "--ca", "a.pem", "--tls-name", "push.example"];
        assert_eq!(parsed(&named).unwrap().tls().unwrap(), Some(tls("push.example")));
        let plain = parsed(&["--ws", "127.0.0.1:1,ws://127.0.0.1:2", "--endpoint", "http://127.0.0.1"]).unwrap();
        assert_eq!((plain.ws.len(), plain.endpoint.address.port()), (2, 80));
        assert_eq!(plain.tls().unwrap(), None);
        let addresses = parsed(&["--ca", "a.pem"]).unwrap();
        assert_eq!(addresses.tls().unwrap(), Some(tls("localhost")));
        let classical = parsed(&["--ca", "a.pem", "--no-ml-kem"]).unwrap();
        assert_eq!(classical.tls().unwrap(), Some(ClientTls { has_ml_kem: false, ..tls("localhost") }));
    }

    #[test]
    fn urls_and_certificates_that_do_not_fit_are_refused() {
        assert!(parsed(&["--ws", "wss://127.0.0.1:1"]).unwrap().tls().is_err());
        assert!(parsed(&["--ws", "ws://127.0.0.1:1", "--ca", "a.pem"]).unwrap().tls().is_err());
        assert!(parsed(&["--no-ml-kem"]).is_none());
        for bad in ["", "127.0.0.1", "ftp://127.0.0.1", "wss://", "wss://127.0.0.1:1/path", "wss://127.0.0.1:99999"] {
            assert!(parsed(&["--ws", bad]).is_none(), "{bad}");
        }
    }
}
