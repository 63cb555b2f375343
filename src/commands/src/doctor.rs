//! `murre doctor`: lists the features and settings that this host lacks, and the commands that fix it.
//!
//! [`host`] judges the host, as it does for `murre serve`: by `/proc` and `/sys` (of any root directory, so that
//! reports of other hosts work), and by trials. The rest is about the configuration. Nothing is changed.

mod bridges;
mod certificates;
mod chain;
mod endpoint_url;
mod hibernation;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::{ConfigArgs, fail, status};
use config::{Config, StoreKind};
use host::{Facts, Finding, Needs, Sysctl, Verdict, runs_here};
use store::scylla::operator;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Number of connections that this host must hold; limits and memory are judged by it [default: max_connections].
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u64>,
    /// Read proc and sys below this directory, for example a copy of another host's; then no ring is set up.
    #[arg(long, default_value = "/", value_name = "DIR")]
    pub root: PathBuf,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Print only the kernel settings, for the scripts of tuning/: verdict, name, value, recommendation and reason,
    /// separated by tabs.
    #[arg(long, conflicts_with = "json")]
    pub sysctls: bool,
    /// Ask the service of each bridge profile once: Google for an access token, Apple for a TLS handshake. No
    /// notification is sent.
    #[arg(long)]
    pub online: bool,
    /// Configuration by which queues are judged. Its certificates and the credentials of bridges are checked too, the
    /// database of a shared store, and hibernation.
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Returns 0 when murre runs here (there may be advice), `status::UNAVAILABLE` when it would not.
pub fn run(args: Args) -> ExitCode {
    let here = args.root == Path::new("/");
    let config = match args.config.load() {
        Ok(config) => config,
        Err(error) => return fail(status::CONFIG, &error),
    };
    let of_config = Needs::of(&config);
    let needs = Needs { connections: args.max_connections.unwrap_or(of_config.connections), ..of_config }
        .with_frozen(here && server::hibernation_waits(&config.data_dir));
    if args.sysctls {
        let lines = to_lines(&host::sysctls(&Facts::read(&args.root), needs));
        return io::stdout().write_all(lines.as_bytes()).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let facts = if here { Facts::here(&config.data_dir, config.shards.plane) } else { Facts::read(&args.root) };
    let mut findings = host::judge(&facts, needs);
    if here {
        findings.extend(endpoint_url::examine(&config));
        findings.extend(certificates::examine(&config));
        findings.extend(bridges::examine(&config, args.online));
        findings.extend(hibernation::examine(&config));
    }
    if here && config.store.kind == StoreKind::Scylla {
        findings.extend(shared_store(&config));
    }
    let text = if args.json { to_json(&findings) } else { to_table(&findings) };
    if io::stdout().write_all(text.as_bytes()).is_err() {
        return ExitCode::FAILURE;
    }
    if runs_here(&findings) { ExitCode::SUCCESS } else { ExitCode::from(status::UNAVAILABLE) }
}

/// Findings of the preflight check that a server with this configuration runs on its database.
fn shared_store(config: &Config) -> Vec<Finding> {
    let mut faults = config::shared_store_faults(config);
    faults.extend(operator::faults(&config.store.scylla, config.store.max_skew));
    let good = Finding {
        what: "shared store",
        found: "tables, permissions, replicas and clocks are as wanted".to_owned(),
        wanted: format!("store.scylla.nodes = {}", config.store.scylla.nodes.join(",")),
        verdict: Verdict::Good,
        why: String::new(),
        mend: Vec::new(),
    };
    if faults.is_empty() {
        return vec![good];
    }
    let bad = |why: String| Finding {
        found: "not as wanted".to_owned(),
        verdict: Verdict::Fail,
        why,
        mend: vec!["murre schema check   # again, after it is mended".to_owned()],
        ..good.clone()
    };
    faults.iter().map(|fault| bad(fault.to_string())).collect()
}

/// Formats a table of the findings, and below it the commands, in the order of urgency.
fn to_table(findings: &[Finding]) -> String {
    let width = |of: fn(&Finding) -> &str| findings.iter().map(|f| of(f).len()).max().unwrap_or(0);
    let (what, found) = (width(|f| f.what), width(|f| &f.found));
    let mut text = String::new();
    for f in findings {
        text += &format!("{:4}  {:what$}  {:found$}  {}\n", f.verdict.word(), f.what, f.found, f.wanted);
    }
    for verdict in [Verdict::Fail, Verdict::Warn] {
        for f in findings.iter().filter(|f| f.verdict == verdict) {
            text += &format!("\n{}: {}\n", f.what, f.why);
            for command in &f.mend {
                text += &format!("    {command}\n");
            }
        }
    }
    let (fails, warns) = (count(findings, Verdict::Fail), count(findings, Verdict::Warn));
    let end = match (fails, warns) {
        (0, 0) => "murre runs here, nothing to mend.".to_string(),
        (0, _) => format!("murre runs here; {warns} to mend before it is loaded."),
        _ => format!("murre does not run here: {fails} to mend first, {warns} more before it is loaded."),
    };
    text + "\n" + &end + "\n"
}

/// One line for each setting, as `tuning/sysctl` reads it.
fn to_lines(sysctls: &[Sysctl]) -> String {
    let line = |s: &Sysctl| {
        let verdict = if s.good { "ok" } else { "drift" };
        format!("{verdict}\t{}\t{}\t{}\t{}\n", s.name, s.value, s.wanted, s.why)
    };
    sysctls.iter().map(line).collect()
}

fn count(findings: &[Finding], verdict: Verdict) -> usize {
    findings.iter().filter(|f| f.verdict == verdict).count()
}

fn to_json(findings: &[Finding]) -> String {
    let list: Vec<serde_json::Value> = findings
        .iter()
        .map(|f| {
            serde_json::json!({ "verdict": f.verdict.word(), "what": f.what, "found": f.found, "wanted": f.wanted,
                                "why": f.why, "mend": f.mend })
        })
        .collect();
    serde_json::json!({ "runs_here": runs_here(findings), "findings": list }).to_string() + "\n"
}
