//! `push`: direct notifications to acked clients, as many as the server takes or at a fixed rate. The figure is server
//! CPU time per notification: POST in, WebSocket frame out, ack in (CAPACITY.md). Latencies count from the due time of
//! a POST.

use std::io;
use std::time::Duration;

use protocol::webpush::identity::Identity;

use super::rounds;
use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Stream, Traffic, spread};
use crate::delivery_log::Expect;
use crate::metrics::Metrics;
use crate::post::{Encoding, Signing, Vapid};
use crate::report::Report;
use crate::result::names;
use crate::target::Target;
use crate::usage::{UsageDelta, UsageSample};

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size.
    #[command(flatten)]
    pub target: Target,
    /// Bytes of bodies; several with commas take turns. 1 to 8 count as 9, which hold a number.
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "200")]
    pub body: Vec<usize>,
    /// App server connections, each with one POST under way.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub in_flight: usize,
    /// Seconds without any arrival after which missing messages count as lost.
    #[arg(long, value_name = "S", default_value_t = 60)]
    pub patience: u64,
    /// Register with a VAPID key and sign every POST with one token, used again as libraries do; in the spelling of
    /// this draft, 02 (RFC 8292) if none is named.
    #[arg(long, value_name = "DRAFT", num_args = 0..=1, default_missing_value = "02")]
    pub vapid: Option<Vapid>,
    /// Content coding that bodies have by their headers.
    #[arg(long, value_enum, default_value_t)]
    pub encoding: Encoding,
    /// With a VAPID key, sign every POST anew: no token comes twice.
    #[arg(long)]
    pub fresh_tokens: bool,
    /// POSTs a second as an open loop; as many as the server takes when absent.
    #[arg(long, value_name = "N")]
    pub rate: Option<f64>,
    /// Seconds before measuring.
    #[arg(long, value_name = "S", default_value_t = 2.0)]
    pub warmup: f64,
    /// Seconds of measuring.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// TTL of every POST in seconds.
    #[arg(long, value_name = "S", default_value_t = 3600)]
    pub ttl: u32,
    /// Number of measurements, in windows aligned to the wall clock; the median is shown.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rounds: usize,
    /// A window begins whenever the clock is at a multiple of this many seconds ...
    #[arg(long, value_name = "S", default_value_t = 30.0)]
    pub period: f64,
    /// ... plus this many. Two generators with two offsets push in turn.
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    pub offset: f64,
    /// Wait for this file before the first window: the caller of several generators creates it when all are ready.
    #[arg(long, value_name = "FILE")]
    pub gate: Option<std::path::PathBuf>,
}

impl Options {
    fn signing(&self) -> Signing {
        match (self.vapid, self.fresh_tokens) {
            (_, true) => Signing::Each(Identity::generate()),
            (Some(_), false) => Signing::Once(Identity::generate()),
            (None, false) => Signing::None,
        }
    }

    fn is_signed(&self) -> bool {
        self.vapid.is_some() || self.fresh_tokens
    }

    /// Posts for this long, to all agents in turn.
    pub fn go(&self, traffic: &mut Traffic, seconds: f64) -> io::Result<()> {
        let agents = self.target.sessions;
        let style = |number: u64| MessageSpec {
            ttl: self.ttl,
            topic: None,
            body_bytes: self.body[number as usize % self.body.len()],
            // With TTL 0 a session that is just gone costs its message.
            expect: if self.ttl == 0 { Expect::Perhaps } else { Expect::Once },
        };
        let stream = Stream::lasting(self.rate, Duration::from_secs_f64(seconds.max(0.0)));
        traffic.run(stream, |_, number| Some((spread(number, agents), style(number))))
    }
}

/// Result of one window.
pub struct Measured {
    /// Notifications that came in its time.
    pub counted: u64,
    /// Pings of the server that were answered meanwhile: a million sessions bring thousands per second, and their cost
    /// is not part of the cost of a notification.
    pub pings: u64,
    pub spent: UsageDelta,
}

/// Shows the work and the resource use of the server in all of these windows together.
pub fn show_load(report: &mut Report, windows: &[Measured]) {
    let wall: f64 = windows.iter().map(|one| one.spent.wall.as_secs_f64()).sum();
    let rate = |count: fn(&Measured) -> u64| windows.iter().map(count).sum::<u64>() as f64 / wall.max(1e-9);
    report.add(names::NOTIFICATION_RATE, rate(|one| one.counted), "/s");
    report.add(names::PING_RATE, rate(|one| one.pings), "/s");
    let cpu: Option<f64> = windows.iter().map(|one| Some(one.spent.cpu?.run_ns as f64 / 1e9)).sum();
    if let Some(seconds) = cpu {
        report.add(names::CORES, seconds / wall.max(1e-9), "cores");
    }
}

/// Pushes and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    if options.body.is_empty() || target.sessions == 0 {
        return Err(io::Error::other("at least one size of --body and one of --sessions"));
    }
    let mut report = target.report("push");
    let vapid = options.vapid.unwrap_or_default();
    let mut traffic = Traffic::spelled(target, ONE_CHANNEL, options.signing(), vapid, options.encoding)?;
    traffic.driver.view.stage("ramp", target.sessions);
    let climb = target.ramp.climb(&mut traffic, 0..target.sessions)?;
    if traffic.driver.agents.connected() < target.sessions {
        let connected = traffic.driver.agents.connected();
        return Err(io::Error::other(format!("only {connected} of {} sessions could connect", target.sessions)));
    }
    climb.show(&mut report, "ramp", target.sessions);
    traffic.driver.open_publishers(target, options.in_flight)?;
    describe(&mut report, options);
    if options.rounds > 0 {
        rounds::run(&mut traffic, options, &mut report)?;
    } else {
        traffic.driver.view.stage("warm up", target.sessions);
        options.go(&mut traffic, options.warmup)?;
        let measured = measure(&mut traffic, options)?;
        traffic.drain(Duration::from_secs(options.patience))?;
        show(&mut report, &traffic, options, &measured)?;
    }
    traffic.check(&mut report, "push", DuplicatePolicy::Always);
    report.check("sessions lost", traffic.ended, climb.again);
    // At the end: a shard publishes its counters once per second, and not before its first second.
    if let Some(admin) = target.admin {
        report.shards(&Metrics::read(admin)?);
    }
    traffic.driver.view.curves(&mut report);
    report.finish(target.json.as_deref())
}

/// Measures for the seconds of the options.
pub fn measure(traffic: &mut Traffic, options: &Options) -> io::Result<Measured> {
    traffic.driver.view.stage("push", options.target.sessions);
    let before = UsageSample::read(&options.target)?;
    let (delivered, pings) = (traffic.ledger.delivered_count(), traffic.driver.agents.pings());
    traffic.open_window();
    options.go(traffic, options.seconds)?;
    traffic.close_window();
    let spent = before.spent(&options.target)?;
    let counted = traffic.ledger.delivered_count() - delivered;
    Ok(Measured { counted, pings: traffic.driver.agents.pings() - pings, spent })
}

fn describe(report: &mut Report, options: &Options) {
    report.option("body", options.body.clone());
    report.option("vapid", options.is_signed());
    report.option("vapid_draft", options.is_signed().then(|| options.vapid.unwrap_or_default().draft()));
    report.option("encoding", options.encoding.name());
    report.option("fresh_tokens", options.fresh_tokens);
    report.option("in_flight", options.in_flight);
    report.option("rate", options.rate);
    report.add("sessions", options.target.sessions as u64, "");
    report.add("body", format!("{:?}", options.body), "B");
    report.add("VAPID", options.is_signed(), "");
    report.add("POSTs under way at once", options.in_flight as u64, "");
}

fn show(report: &mut Report, traffic: &Traffic, options: &Options, measured: &Measured) -> io::Result<()> {
    let Measured { counted, spent, .. } = measured;
    report.add("notifications in the measured time", *counted, "");
    show_load(report, std::slice::from_ref(measured));
    spent.show(report, "notification", *counted);
    if let Some(us) = spent.us_each(*counted).filter(|_| options.vapid.is_some() && !options.fresh_tokens) {
        report.add(names::CPU_NOTIFICATION_VAPID, us, "us");
    }
    traffic.window()?.to_answer.show(report, names::TO_ANSWER);
    traffic.window()?.to_frame.show(report, names::TO_FRAME);
    traffic.window()?.lag.show(report, "generator late");
    traffic.window()?.series.show(report, names::TO_FRAME);
    if let Some(metrics) = &spent.metrics {
        crate::view::say(metrics.json().to_string());
    }
    Ok(())
}
