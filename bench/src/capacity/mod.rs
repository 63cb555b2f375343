//! `murre-bench capacity`: the host that a number of sessions and their traffic need, from measurements at a hundredth
//! of it. Bytes are promised within 5 % and CPU within 20 % of what a full run then shows; `--check RESULT` says how
//! far off it was, line by line.
//!
//! Reading order: [`documented`] has the constants, [`fit`] the curves, [`hibernation`] the share of the sessions that
//! is live, [`memory`] and [`cpu`] the two models, [`nodes`] spreads the sessions, [`measure`] runs the scenarios,
//! [`check`] compares.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use config::{MAX_CONNECTIONS_MAX, SHARDS_MAX};

use crate::result::{Outcome, names};

mod documented;

mod fit;

mod hibernation;

mod memory;

mod cpu;

mod nodes;

mod measure;

mod check;

/// The load to predict, and the source of the measurements.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Results of `hold`, `push`, `store`, `storm`, `ping` to predict from. Without them `hold` and `push` are run
    /// now against --ws, --endpoint and --pid, and `ping` against a server of its own.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub from: Vec<PathBuf>,
    #[command(flatten)]
    pub mix: Mix,
    /// Compare the prediction with these results of full runs, line by line; status 1 when one is off by more than was
    /// promised. The number of sessions is then theirs, not that of --sessions.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub check: Vec<PathBuf>,
    /// The running server, when there is no --from.
    #[command(flatten)]
    pub measured: Measured,
}

/// The load to predict.
#[derive(clap::Args, Clone, Debug)]
pub struct Mix {
    /// Sessions held.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub sessions: u64,
    /// Notifications a second, to user agents that are there and that are not.
    #[arg(long, value_name = "N", default_value_t = 1_000.0)]
    pub push_rate: f64,
    /// Share of them (0 to 1) whose user agent is not there: stored, and delivered when it comes back.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    pub store_share: f64,
    /// Share of them (0 to 1) signed with a VAPID token that was not seen before.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub fresh_token_share: f64,
    /// Sessions that connect a second.
    #[arg(long, value_name = "N", default_value_t = 100.0)]
    pub connect_rate: f64,
    /// Share of those (0 to 1) that are known user agents.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95)]
    pub return_share: f64,
    /// Sessions speak TLS with the server, and those that were measured do not.
    #[arg(long)]
    pub tls: bool,
    /// Seconds between the pings of an idle session (websocket.auto_ping_interval).
    #[arg(long, value_name = "S", default_value_t = 300.0)]
    pub ping_interval: f64,
    #[command(flatten)]
    pub hibernation: hibernation::Hibernation,
    /// Cores of a host to be sized; 0: say how many it takes. Several nodes are planned where one host has too few.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub cores: u64,
    /// Memory of a host to be sized, in GiB. Several nodes are planned where one host has too little.
    #[arg(long, value_name = "GIB")]
    pub memory: Option<f64>,
    /// Shards of the server (shards.count); as measured when absent.
    #[arg(long, value_name = "N")]
    pub shards: Option<u64>,
    /// The server's --max-connections; a tenth more than --sessions when absent.
    #[arg(long, value_name = "N")]
    pub max_connections: Option<u64>,
    /// Share of the cores (0 to 1) that may be busy in a normal second: the rest is for crowds that come back and for a
    /// node that fails.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    pub utilisation: f64,
    /// Microseconds that an operation costs more with ten times the sessions, because their memory is colder. Taken
    /// from the `push` results when they differ four times in sessions or more.
    #[arg(long, value_name = "US")]
    pub cold_us: Option<f64>,
}

/// The server to measure.
#[derive(clap::Args, Clone, Debug)]
pub struct Measured {
    /// Address to which user agents connect.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub ws: SocketAddr,
    /// Address to which app servers connect.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8082")]
    pub endpoint: SocketAddr,
    /// Address of the server's metrics.
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<SocketAddr>,
    /// Process id of the server.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// Program of the server that is started to be pinged; that of --pid when absent.
    #[arg(long, value_name = "PATH")]
    pub program: Option<String>,
    /// Sessions to push to and to be pinged; twice as many are held.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub measure_sessions: u64,
    /// Seconds of pushing and of pinging. Fewer than 10 try the machinery and promise nothing.
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub seconds: f64,
    /// Keep the results in this directory.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// Predicts, prints the model line by line, and compares when asked to.
pub fn run(options: &Options) -> io::Result<bool> {
    options.mix.complaint().map_or(Ok(()), |why| Err(io::Error::other(why)))?;
    let results = if options.from.is_empty() {
        measure::run(&options.measured, &options.mix)?
    } else {
        options.from.iter().map(|file| Outcome::read(file)).collect::<io::Result<Vec<Outcome>>>()?
    };
    let basis = Basis::new(&results)?;
    if options.check.is_empty() {
        let plan = nodes::Plan::new(&basis, &options.mix).map_err(io::Error::other)?;
        plan.show(options.mix.sessions);
        let (memory, why) = memory::Prediction::best(&basis, &plan.each);
        if let Some(why) = why {
            println!("memory is not predicted from these results: {why}");
        }
        memory.show(&plan.each);
        cpu::Prediction::new(&basis, &plan.each).show(&plan.each);
        return Ok(true);
    }
    let real: Vec<Outcome> = options.check.iter().map(|file| Outcome::read(file)).collect::<io::Result<_>>()?;
    check::compare(&basis, &options.mix, &real)
}

impl Mix {
    /// Reason why the options make no sense, in a sentence.
    fn complaint(&self) -> Option<String> {
        let shares = [
            ("store-share", self.store_share),
            ("fresh-token-share", self.fresh_token_share),
            ("return-share", self.return_share),
        ];
        if let Some((name, value)) = shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            return Some(format!("--{name} {value} is no share: give a number from 0 to 1"));
        }
        let amounts = [("push-rate", self.push_rate), ("connect-rate", self.connect_rate)];
        if let Some((name, value)) = amounts.into_iter().find(|(_, value)| !value.is_finite() || *value < 0.0) {
            return Some(format!("--{name} {value} is no rate: give a number a second"));
        }
        let positive = [("ping-interval", self.ping_interval), ("utilisation", self.utilisation)];
        let wrong = positive.into_iter().find(|(_, value)| !value.is_finite() || *value <= 0.0);
        if let Some((name, value)) = wrong {
            return Some(format!("--{name} {value} must be more than 0"));
        }
        if let Some(gib) = self.memory.filter(|gib| !gib.is_finite() || *gib <= 0.0) {
            return Some(format!("--memory {gib} must be more than 0"));
        }
        if let Some(count) = self.max_connections.filter(|count| !(1..=u64::from(MAX_CONNECTIONS_MAX)).contains(count))
        {
            return Some(format!("--max-connections {count}: the server takes 1 to {MAX_CONNECTIONS_MAX}"));
        }
        if let Some(count) = self.shards.filter(|count| !(1..=u64::from(SHARDS_MAX)).contains(count)) {
            return Some(format!("--shards {count}: the server takes 1 to {SHARDS_MAX}"));
        }
        if self.sessions == 0 {
            return Some("--sessions 0 needs no host".into());
        }
        self.hibernation.complaint(self.ping_interval)
    }

    /// The load of one of `nodes` nodes that share it.
    fn part(&self, nodes: u64) -> Mix {
        let share = nodes as f64;
        Mix {
            sessions: self.sessions.div_ceil(nodes),
            push_rate: self.push_rate / share,
            connect_rate: self.connect_rate / share,
            ..self.clone()
        }
    }

    /// Connections that the server's tables are made for.
    fn max_connections(&self) -> u64 {
        self.max_connections.unwrap_or(self.sessions + self.sessions / 10)
    }
}

/// The results a prediction rests on.
struct Basis<'a> {
    /// The one with most readings of memory.
    hold: &'a Outcome,
    all: &'a [Outcome],
}

impl Basis<'_> {
    fn new(all: &[Outcome]) -> io::Result<Basis<'_>> {
        let readings = |one: &Outcome| one.series(names::USER_BYTES).map_or(0, |series| series.points.len());
        let hold = all.iter().max_by_key(|one| readings(one)).filter(|one| readings(one) >= 2);
        let hold = hold.ok_or_else(|| {
            io::Error::other(format!(
                "no result has two readings of `{}`: give one of `murre-bench hold --pid PID --json FILE`",
                names::USER_BYTES
            ))
        })?;
        Ok(Basis { hold, all })
    }

    /// Shards of the measured server.
    fn shards(&self) -> Option<f64> {
        self.all.iter().find_map(|one| one.option(names::OPTION_SHARDS))
    }

    /// Sessions of the readings of memory.
    fn sessions(&self) -> f64 {
        self.hold.series(names::USER_BYTES).and_then(|series| series.points.last()).map_or(0.0, |point| point[0])
    }
}

#[cfg(test)]
mod tests;
