//! `flood`: a good app server and its users, first alone and then beside strangers who send as much as the server
//! takes. The figure is the p99 from POST to frame beside the strangers by the p99 alone, in one run.

mod strangers;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::webpush::identity::Identity;

use super::traffic::{DuplicatePolicy, MessageSpec, ONE_CHANNEL, Stream, Traffic, Window, spread};
use crate::delivery_log::Expect;
use crate::fleet::Plan;
use crate::metrics::Metrics;
use crate::post::{PostSpec, PostWriter, Signing};
use crate::target::{Target, value_name};

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Server and size; `--sessions` are the users of the good app server.
    #[command(flatten)]
    pub target: Target,
    /// Requests of the strangers.
    #[arg(long, value_enum, default_value_t)]
    pub kind: Kind,
    /// Connections of the strangers at a time.
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub connections: usize,
    /// POSTs of the good app server a second, as an open loop.
    #[arg(long, value_name = "N", default_value_t = 500.0)]
    pub rate: f64,
    /// Its connections.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub in_flight: usize,
    /// Seconds of measuring alone, and as many beside the strangers.
    #[arg(long, value_name = "S", default_value_t = 10.0)]
    pub seconds: f64,
    /// Greatest allowed ratio of both p99.
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    pub ratio: f64,
}

/// Kind of a flood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Pipelined POSTs to a real endpoint whose signature (ES256) is wrong.
    #[default]
    Signatures,
    /// Pipelined POSTs to endpoints that do not exist.
    NotFound,
    /// User agents that connect, say hello and leave.
    Arrivals,
}

/// Time for which a measurement waits after the strangers have begun.
const BEGIN: Duration = Duration::from_secs(2);
/// Greatest allowed p99 beside the strangers, in microseconds.
const P99_MAX_US: f64 = 10_000.0;

/// State that the strangers share with the measurement.
#[derive(Default)]
struct Flood {
    stop: AtomicBool,
    /// Requests that were answered.
    answered: AtomicU64,
}

/// Measures both and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let target = &options.target;
    let mut report = target.report("flood");
    report.option("kind", value_name(&options.kind));
    let mut traffic = Traffic::new(target, ONE_CHANNEL, Signing::None)?;
    traffic.driver.view.stage("ramp", target.sessions);
    let climb = target.ramp.climb(&mut traffic, 0..target.sessions)?;
    climb.show(&mut report, "ramp", target.sessions);
    traffic.driver.open_publishers(target, options.in_flight)?;
    post(&mut traffic, options, BEGIN)?;
    traffic.open_window();
    post(&mut traffic, options, Duration::from_secs_f64(options.seconds))?;
    traffic.close_window();

    let flood = Arc::new(Flood::default());
    let url = traffic.driver.agents.endpoint(0, 0).unwrap_or_default();
    let strangers = begin(options, &url, &flood)?;
    post(&mut traffic, options, BEGIN)?;
    let (begun, answered) = (Instant::now(), flood.answered.load(Ordering::Relaxed));
    traffic.open_window();
    post(&mut traffic, options, Duration::from_secs_f64(options.seconds))?;
    traffic.close_window();
    let answered = flood.answered.load(Ordering::Relaxed) - answered;
    report.add("requests of the strangers that were answered", answered as f64 / begun.elapsed().as_secs_f64(), "/s");
    flood.stop.store(true, Ordering::Relaxed);
    strangers.join().map_err(|_| io::Error::other("the strangers panicked"))??;
    traffic.drain(Duration::from_secs(30))?;

    let [alone, beside] = &traffic.windows[..] else { return Err(io::Error::other("two stretches are measured")) };
    for (what, window) in [("alone", alone), ("beside the strangers", beside)] {
        window.to_frame.show(&mut report, &format!("POST to frame, {what}"));
        window.lag.show(&mut report, &format!("generator late, {what}"));
    }
    let p99 = |window: &Window| window.to_frame.us(0.99);
    report.add("p50 beside the strangers by p50 alone", beside.to_frame.us(0.5) / alone.to_frame.us(0.5).max(1.0), "");
    report.check("the strangers were served", u64::from(answered > 0), 1);
    report.check_at_most("p99 beside the strangers by p99 alone", p99(beside) / p99(alone).max(1.0), options.ratio, "");
    report.check_at_most("p99 beside the strangers", p99(beside), P99_MAX_US, "us");
    traffic.check(&mut report, "push", DuplicatePolicy::Always);
    if let Some(admin) = target.admin {
        report.shards(&Metrics::read(admin)?);
    }
    report.finish(target.json.as_deref())
}

/// The good app server posts for this long.
fn post(traffic: &mut Traffic, options: &Options, span: Duration) -> io::Result<()> {
    let agents = options.target.sessions;
    let style = MessageSpec { ttl: 3_600, topic: None, urgency: None, body_bytes: 200, expect: Expect::Once };
    traffic.run(Stream::lasting(Some(options.rate), span), |_, number| Some((spread(number, agents), style)))
}

/// Lets the strangers begin, on a thread that leaves the CPU to the good client.
fn begin(options: &Options, url: &str, flood: &Arc<Flood>) -> io::Result<JoinHandle<io::Result<()>>> {
    let (options, flood) = (options.clone(), Arc::clone(flood));
    let request = match options.kind {
        Kind::Signatures => unsigned(url)?,
        Kind::NotFound => {
            b"POST /wpush/v2/AAAA HTTP/1.1\r\nHost: push\r\nTTL: 60\r\nContent-Length: 0\r\n\r\n".to_vec()
        }
        Kind::Arrivals => Vec::new(),
    };
    std::thread::Builder::new().name("strangers".to_owned()).spawn(move || {
        rustix::process::setpriority_process(None, 10)?;
        match options.kind {
            Kind::Signatures | Kind::NotFound => strangers::pipeline(&options, &request, &flood),
            Kind::Arrivals => arrive(&options, &flood),
        }
    })
}

/// A POST to this endpoint whose signature is wrong.
fn unsigned(url: &str) -> io::Result<Vec<u8>> {
    let mut letters = PostWriter::new(Signing::Once(Identity::generate()));
    let letter = PostSpec { url, ttl: 60, topic: None, urgency: None, body_bytes: 0, number: 0 };
    let bad = || io::Error::other(format!("the server answered register with no URL: {url:?}"));
    let mut request = letters.write(&letter).ok_or_else(bad)?.to_vec();
    // Within the signature, which is 86 characters in front of the key.
    let key = request.windows(3).position(|three| three == b",k=").ok_or_else(bad)?;
    let byte = &mut request[key - 30];
    *byte = if *byte == b'A' { b'B' } else { b'A' };
    Ok(request)
}

/// User agents come, say hello and leave, over and over.
fn arrive(options: &Options, flood: &Flood) -> io::Result<()> {
    let target = Target { sessions: options.connections, ..options.target.clone() };
    while !flood.stop.load(Ordering::Relaxed) {
        let mut crowd = Traffic::new(&target, Plan::default(), Signing::None)?;
        let climb = target.ramp.climb(&mut crowd, 0..target.sessions)?;
        flood.answered.fetch_add(target.sessions as u64 - climb.failed, Ordering::Relaxed);
    }
    Ok(())
}
