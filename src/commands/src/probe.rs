//! `murre probe`: an end-to-end self-check against a running server, for people and for monitoring.
//!
//! The probe is a user agent and an app server at once: connect, hello, register with a key, POST an encrypted message
//! with VAPID, receive it, decrypt it, ack it, unregister. A failure ends the probe with the exit status of its step
//! and one sentence. One deadline covers everything but the last word of a probe that failed.
//! `--quick` asks less, and leaves nothing behind ([`quick`]).
//!
//! A user without a channel is dropped when its session ends (PROTOCOL.md 1.10), so a probe that unregisters leaves
//! nothing in the store.

mod public;
mod quick;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::ConfigArgs;
use client::agent::{Agent, Note, channel_id};
use client::encryption::{SubscriptionKeys, random_text};
use client::http::{Client, Request, Response};
use client::stream::Trust;
use protocol::webpush::identity::Identity;
use protocol::wire::url::HttpUrl;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Public server to check from outside, https://NAME: the whole way of a message, and the demands of app servers on
    /// its endpoint URLs. With tokens it is https://NAME/t/TOKEN/.
    #[arg(value_name = "https://NAME", value_parser = public::server_url, conflicts_with_all = ["ws", "endpoint"])]
    pub server: Option<HttpUrl>,
    /// WebSocket URL of the server: ws://HOST:PORT/ or wss://HOST:PORT/.
    #[arg(long, default_value = "ws://127.0.0.1:8080/", value_name = "URL")]
    pub ws: String,
    /// Address to POST to instead of that in the endpoint URL (behind a proxy, before DNS): http://HOST:PORT or
    /// https://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// PEM file of the authorities to trust for wss and https; by default those that this host trusts.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Give up after this many seconds in all.
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
    /// Print nothing but the last sentence.
    #[arg(long)]
    pub quiet: bool,
    /// Check only that the server of this configuration, on this host or in this container, is alive: its health route,
    /// an upgrade, and a POST to an endpoint that does not exist. Makes no user and no message; for health checks.
    #[arg(long, conflicts_with_all = ["server", "ws", "endpoint", "ca"])]
    pub quick: bool,
    /// Configuration of the server that is checked with --quick.
    #[command(flatten, next_help_heading = "With --quick")]
    pub config: ConfigArgs,
}

/// Seconds for which a VAPID token of the probe is good.
const TOKEN_SECONDS: u64 = 600;
/// Seconds for which the server may keep the message of a probe that died.
const TTL: u32 = 60;
/// Longest wait for the unregister of a probe that failed to be sent.
const FAREWELL: Duration = Duration::from_secs(1);
/// Messages that the probe passes over while it waits for another.
const STRAYS_MAX: usize = 64;

/// Steps of a probe, in this order. Each has its own exit status (docs/OPERATIONS.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// TCP, TLS and the opening handshake of RFC 6455.
    Connect,
    /// hello and its reply.
    Hello,
    /// register with a key, and its reply.
    Register,
    /// POST with VAPID and an aes128gcm body; 201.
    Post,
    /// The notification, with the id that `Location` named.
    Receive,
    /// Decrypt and compare.
    Decrypt,
    /// ack, unregister and its reply.
    Unregister,
    /// The demands of app servers on the endpoint URL, for a public server.
    Public,
    /// The health route, for a quick probe.
    Health,
}

impl Step {
    /// Those of every probe of a whole message.
    pub const ALL: [Step; 7] =
        [Step::Connect, Step::Hello, Step::Register, Step::Post, Step::Receive, Step::Decrypt, Step::Unregister];

    /// Status when this step fails; 10 to 18, apart from those of other commands.
    pub fn status(self) -> u8 {
        10 + self as u8
    }

    pub fn name(self) -> &'static str {
        match self {
            Step::Connect => "connect",
            Step::Hello => "hello",
            Step::Register => "register",
            Step::Post => "post",
            Step::Receive => "receive",
            Step::Decrypt => "decrypt",
            Step::Unregister => "unregister",
            Step::Public => "public",
            Step::Health => "health",
        }
    }
}

/// Reason why a step failed, one sentence without its subject.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(text: impl Into<String>) -> Failure {
        Failure(text.into())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::new("no answer in time"),
            io::ErrorKind::UnexpectedEof => Failure::new("the server closed the connection"),
            _ => Failure(error.to_string()),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Runs the probe. Returns 0 when all steps succeeded, else the status of the step that failed.
pub fn run(args: Args) -> ExitCode {
    let (report, outcome) = check(&args);
    let mut out = io::stdout().lock();
    if !args.quiet {
        // Standard output can be closed; the exit status has the result.
        let _ = out.write_all(report.to_text().as_bytes());
    }
    let total = report.total();
    match outcome {
        Ok(()) => {
            let _ = writeln!(out, "murre probe: all well, {} in all", milliseconds(total));
            ExitCode::SUCCESS
        }
        Err((step, why)) => {
            let _ = writeln!(out, "murre probe: {} failed after {}: {why}", step.name(), milliseconds(total));
            ExitCode::from(step.status())
        }
    }
}

/// Duration of each step, the one that failed included.
#[derive(Debug, Default)]
pub struct Report {
    pub steps: Vec<(Step, Duration)>,
    /// Findings beside the steps, such as the demands of app servers on a public server.
    pub rows: Vec<public::Row>,
}

impl Report {
    /// Runs one step and keeps its time, also when it fails.
    fn time<T>(&mut self, step: Step, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, (Step, Failure)> {
        let start = Instant::now();
        let result = work();
        self.steps.push((step, start.elapsed()));
        result.map_err(|why| (step, why))
    }

    fn total(&self) -> Duration {
        self.steps.iter().map(|(_, took)| *took).sum()
    }

    fn to_text(&self) -> String {
        let steps = self.steps.iter().map(|(step, took)| format!("{:<11} {:>12}\n", step.name(), milliseconds(*took)));
        let rows = self.rows.iter().map(|row| format!("{:<11} {:<4} {}\n", row.name, row.verdict.word(), row.found));
        steps.chain(rows).collect()
    }
}

fn milliseconds(took: Duration) -> String {
    format!("{:.3} ms", took.as_secs_f64() * 1e3)
}

/// Runs all steps of this probe. Returns their durations, and the step that failed if one did.
pub fn check(args: &Args) -> (Report, Result<(), (Step, Failure)>) {
    let mut report = Report::default();
    let end = Instant::now() + Duration::from_secs(args.timeout);
    let outcome = match args.quick {
        true => quick::all_steps(&args.config, end, &mut report),
        false => all_steps(args, end, &mut report),
    };
    (report, outcome)
}

/// Sends one message the whole way.
fn all_steps(args: &Args, end: Instant, report: &mut Report) -> Result<(), (Step, Failure)> {
    let (mut agent, trust) = report.time(Step::Connect, || connect(args, end))?;
    report.time(Step::Hello, || match agent.hello(None)?.len() {
        32 => Ok(()),
        _ => Err(Failure::new("hello gave no uaid")),
    })?;
    let channel = channel_id();
    let subscribed = subscribe_and_deliver(args, report, &mut agent, &channel, &trust);
    if subscribed.is_err() {
        agent.give_up(&channel, FAREWELL);
    }
    // A courtesy: the server may be gone already.
    let _ = agent.leave();
    let (push_endpoint, delivered) = match subscribed {
        Ok(push_endpoint) => (push_endpoint, Ok(())),
        Err((Some(push_endpoint), failed)) => (push_endpoint, Err(failed)),
        Err((None, failed)) => return Err(failed),
    };
    let judged = args.server.as_ref().map_or(Ok(()), |server| {
        let mut demands = Vec::new();
        let judged = report.time(Step::Public, || {
            demands = public::examine(server, &url(&push_endpoint)?, &trust);
            public::outcome(&demands)
        });
        report.rows = demands;
        judged
    });
    delivered.and(judged)
}

/// A step that failed, and the endpoint URL if there was one by then.
type NotDelivered = (Option<String>, (Step, Failure));

/// Registers a channel and sends a message to it. Returns the endpoint URL.
fn subscribe_and_deliver(
    args: &Args,
    report: &mut Report,
    agent: &mut Agent,
    channel: &str,
    trust: &Trust,
) -> Result<String, NotDelivered> {
    let sender = Identity::generate();
    let keys = SubscriptionKeys::generate().map_err(|why| (None, (Step::Register, why.into())))?;
    let push_endpoint = report
        .time(Step::Register, || Ok(agent.register(channel, Some(&sender.public_key()))?))
        .map_err(|failed| (None, failed))?;
    let subscription = Subscription { channel, sender, keys, push_endpoint: &push_endpoint };
    match deliver(args, report, agent, &subscription, trust) {
        Ok(()) => Ok(push_endpoint),
        Err(failed) => Err((Some(push_endpoint), failed)),
    }
}

/// A subscription of the probe, both sides of it.
struct Subscription<'a> {
    channel: &'a str,
    sender: Identity,
    keys: SubscriptionKeys,
    push_endpoint: &'a str,
}

/// Sends a message to this subscription, and ends it when the message has arrived.
fn deliver(
    args: &Args,
    report: &mut Report,
    agent: &mut Agent,
    to: &Subscription<'_>,
    trust: &Trust,
) -> Result<(), (Step, Failure)> {
    let Subscription { channel, sender, keys, push_endpoint } = to;
    let plain = random_text().map_err(|why| (Step::Post, why.into()))?;
    let message_id = report.time(Step::Post, || {
        let origin = url(push_endpoint)?.origin().clone();
        let target = args.endpoint.as_deref().map(url).transpose()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| Failure::new("the clock is before 1970"))?;
        let request = Request::post(push_endpoint, TTL)?
            .header("Urgency", "high")
            .header("Content-Type", "application/octet-stream")
            .header("Authorization", &sender.authorization(&origin.to_string(), now.as_secs() + TOKEN_SECONDS))
            .header("Connection", "close")
            .encrypted(keys.encrypt(plain.as_bytes())?);
        let stream = trust.connect(target.as_ref().map_or(&origin, |target| target.origin()), &origin)?;
        accepted(&Client::over(stream).exchange(&request)?)
    })?;
    let note = report.time(Step::Receive, || {
        let note = agent.note()?;
        expected(&note, channel, &message_id).map(|()| note)
    })?;
    report.time(Step::Decrypt, || match keys.decrypt(&note.body)? == plain.as_bytes() {
        true => Ok(()),
        false => Err(Failure::new("the message that arrived is not the one that was sent")),
    })?;
    report.time(Step::Unregister, || {
        agent.ack([&note])?;
        Ok(agent.unregister(channel)?)
    })
}

fn connect(args: &Args, end: Instant) -> Result<(Agent, Trust), Failure> {
    let trust = Trust::read(args.ca.as_deref(), end).map_err(|error| {
        let path = args.ca.as_ref().map_or_else(String::new, |path| path.display().to_string());
        Failure::new(format!("cannot read --ca {path}: {error}; give a file of PEM certificates"))
    })?;
    let ws = args.server.as_ref().map(|url| format!("wss://{}{}", url.origin().authority(), url.target()));
    let ws = ws.as_ref().unwrap_or(&args.ws);
    let http = ws.strip_prefix("ws").filter(|rest| rest.starts_with("://") || rest.starts_with("s://"));
    let http = http.ok_or_else(|| Failure::new(format!("{ws} does not begin with ws:// or wss://")))?;
    let at = url(&format!("http{http}"))?;
    let mut agent = Agent::upgrade(ws, trust.connect(at.origin(), at.origin())?)?;
    agent.pass_over(STRAYS_MAX);
    Ok((agent, trust))
}

fn url(text: &str) -> Result<HttpUrl, Failure> {
    HttpUrl::parse(text).ok_or_else(|| Failure::new(format!("{text} is not like http://HOST:PORT/PATH")))
}

/// The message id of a 201 with `Location` and `TTL`.
fn accepted(response: &Response) -> Result<String, Failure> {
    if response.status != 201 {
        let why = String::from_utf8_lossy(&response.body);
        let why: String = why.chars().filter(|c| !c.is_control()).take(300).collect();
        return Err(Failure::new(format!("POST was answered with {} {why}", response.status)));
    }
    for name in ["Location", "TTL"] {
        response.header(&name.to_lowercase()).ok_or_else(|| Failure::new(format!("201 without {name}")))?;
    }
    response.message_id().map(str::to_owned).ok_or_else(|| Failure::new("Location names no message"))
}

/// Checks that this notification is the one that was posted.
fn expected(note: &Note, channel: &str, message_id: &str) -> Result<(), Failure> {
    if note.channel != channel {
        return Err(Failure::new("a notification of another channel came"));
    }
    if note.version != message_id {
        return Err(Failure::new("the notification's version is not the id in Location"));
    }
    match note.headers["encoding"] == "aes128gcm" {
        true => Ok(()),
        false => Err(Failure::new(format!("headers.encoding is {}", note.headers["encoding"]))),
    }
}
