//! The binary `murre-upstream`: the stand-ins as a process. It prints its addresses as one line of JSON.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use clap::Parser;
use serde_json::json;
use upstream::Upstream;

/// The command line.
#[derive(Parser, Debug)]
#[command(name = "murre-upstream", version, about = "Stands in for FCM and APNs in tests")]
struct Cli {
    /// Address to listen on
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    ip: IpAddr,
    /// Existing directory for the certificate authority and the credentials
    #[arg(long)]
    directory: PathBuf,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cli = Cli::parse();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let upstream = Upstream::start(cli.ip, &cli.directory).await?;
        let [google, apple, control] = [upstream.google, upstream.apple, upstream.control].map(|at| at.to_string());
        println!("{}", json!({"google": google, "apple": apple, "control": control}));
        tokio::signal::ctrl_c().await?;
        Ok(())
    })
}
