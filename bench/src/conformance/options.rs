//! Arguments of the command.

use std::path::PathBuf;

use super::answer::Level;

/// Arguments of this command.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// WebSocket URL of the server: ws://HOST:PORT/ or wss://HOST:PORT/.
    #[arg(long, value_name = "URL")]
    pub ws: String,
    /// Address to POST to instead of that in the endpoint URL: http://HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// PEM file of the authorities to trust for wss and https; by default those that this host trusts.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Requirements whose failure makes the exit status 1; `should` includes `must`.
    #[arg(long, value_enum, default_value = "must")]
    pub level: Level,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Seconds that one check may take.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub patience: u64,
    /// Milliseconds of silence that show that no message comes.
    #[arg(long, value_name = "MS", default_value_t = 700, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    pub silence: u64,
}
