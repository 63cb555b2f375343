//! What every scenario is told: where the server listens, how many sessions, where to write.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Options that all scenarios share.
#[derive(clap::Args, Clone, Debug)]
pub struct Target {
    /// Where user agents connect; several listeners of one server, separated by commas, share them evenly.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080", value_delimiter = ',')]
    pub ws: Vec<SocketAddr>,
    /// Addresses that user agents come from, on loopback 127.1.0.1 and following; as many as ports call for when absent.
    #[arg(long, value_name = "N")]
    pub sources: Option<usize>,
    /// Where app servers connect.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    pub endpoint: SocketAddr,
    /// Where the server's metrics are; without it no counter of the server is shown.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// User agents.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub sessions: usize,
    /// Process id of the server; without it neither its CPU time nor its memory is measured.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Also write every figure to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Target {
    /// The listener for a scenario that needs only one.
    pub fn first_ws(&self) -> SocketAddr {
        // Invariant: the argument has a default and takes at least one value.
        *self.ws.first().expect("--ws has a value")
    }
}
