//! Options of every scenario: the addresses of the server, the number of sessions, the measured processes, the output.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::report::Report;
use crate::result::names;

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

/// Options that all scenarios share.
#[derive(clap::Args, Clone, Debug)]
pub struct Target {
    /// Address for user agents; several listeners of one server, separated by commas, share them evenly.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_delimiter = ',')]
    pub ws: Vec<SocketAddr>,
    /// Addresses that user agents come from, on loopback 127.1.0.1 and following; as many as ports call for when
    /// absent.
    #[arg(long, value_name = "N")]
    pub sources: Option<usize>,
    /// Address for app servers.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    pub endpoint: SocketAddr,
    /// Speak TLS to `--ws` and `--endpoint`, and trust the certificates in this PEM file.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Name of the server in its certificate.
    #[arg(long, value_name = "NAME", default_value = "localhost")]
    pub tls_name: String,
    /// Address of murre's metrics; without it no counter of the server is shown.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
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
    /// No live view, even on a terminal: a line of progress every few seconds.
    #[arg(long)]
    pub no_view: bool,
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
    /// The file of trusted certificates and the name of the server, if both ends speak TLS.
    pub fn tls(&self) -> Option<(PathBuf, String)> {
        self.ca.clone().map(|ca| (ca, self.tls_name.clone()))
    }

    /// The listener for a scenario that needs only one.
    pub fn first_ws(&self) -> SocketAddr {
        // Invariant: the argument has a default and takes at least one value.
        *self.ws.first().expect("--ws has a value")
    }
}
