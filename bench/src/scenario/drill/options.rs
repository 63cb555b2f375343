//! Options of a drill.

use std::path::PathBuf;

use super::fault::Fault;

/// Faults, and the size of the drill.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Faults to drill, separated by commas; when absent all that this host and these counts can do.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub faults: Vec<Fault>,
    /// Server nodes, at least 2.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub nodes: usize,
    /// Database nodes: 1 or 3. The fault `database-node` needs 3.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub databases: usize,
    /// User agents, each on a thread.
    #[arg(long, value_name = "N", default_value_t = 24)]
    pub users: usize,
    /// POSTs a second in all.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rate: u32,
    /// Seconds that the database is stopped or slow, or the nodes are cut off.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub outage: u64,
    /// Seconds of calm before a fault and after it.
    #[arg(long, value_name = "S", default_value_t = 3)]
    pub calm: u64,
    /// TLS between the nodes, each of which asks its callers for a certificate, and to the database with a client
    /// certificate; a password too where that is one node.
    #[arg(long)]
    pub tls: bool,
    /// The server binary; when absent this executable, which has `serve` too.
    #[arg(long, value_name = "PATH")]
    pub murre: Option<PathBuf>,
    /// Also write every figure to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}
