//! `murre probe`: an end-to-end self-check against a running server, for people and for monitoring.
//!
//! It is a user agent and an app server at once: connect, hello, register with a key, POST an encrypted message with
//! VAPID, receive it, decrypt it, ack it, unregister. Whatever fails ends it with the exit status of its step and one
//! sentence. Blocking sockets, one deadline for everything.

mod agent;
mod crypto;
mod deadline;
mod post;
#[cfg(test)]
mod tests;
mod tls;

use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use agent::Agent;
use crypto::Receiver;
use deadline::Deadline;
use tls::Trust;

use protocol::webpush::identity::Identity;

/// Arguments of this command.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where user agents connect: ws://HOST:PORT/ or wss://HOST:PORT/.
    #[arg(long, default_value = "ws://127.0.0.1:8080/", value_name = "URL")]
    pub ws: String,
    /// Where to POST, if not where the endpoint URL says (behind a proxy, before DNS): http://HOST:PORT or
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
}

/// Seconds for which a VAPID token of the probe is good.
const TOKEN_SECONDS: u64 = 600;

/// What is done, in this order. Each has an exit status of its own (docs/OPERATIONS.md).
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
}

impl Step {
    /// Every step in order.
    pub const ALL: [Step; 7] =
        [Step::Connect, Step::Hello, Step::Register, Step::Post, Step::Receive, Step::Decrypt, Step::Unregister];

    /// Status when this step fails; 10 to 16, apart from those of other commands.
    pub fn status(self) -> u8 {
        10 + self as u8
    }

    /// As printed.
    pub fn name(self) -> &'static str {
        match self {
            Step::Connect => "connect",
            Step::Hello => "hello",
            Step::Register => "register",
            Step::Post => "post",
            Step::Receive => "receive",
            Step::Decrypt => "decrypt",
            Step::Unregister => "unregister",
        }
    }
}

/// Why a step failed, one sentence without its subject.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// Anything that can be said.
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

/// 0 when a message made the whole way, else the status of the step that failed.
pub fn run(args: Args) -> ExitCode {
    let (report, outcome) = check(&args);
    let mut out = io::stdout().lock();
    if !args.quiet {
        // Nobody may be reading; the exit status says it all.
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

/// What each step took, the one that failed included.
#[derive(Debug, Default)]
pub struct Report {
    /// In the order in which they were done.
    pub steps: Vec<(Step, Duration)>,
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
        self.steps.iter().map(|(step, took)| format!("{:<10} {:>12}\n", step.name(), milliseconds(*took))).collect()
    }
}

fn milliseconds(took: Duration) -> String {
    format!("{:.3} ms", took.as_secs_f64() * 1e3)
}

/// The whole way of one message; what it took, and where it ended if it did not arrive.
pub fn check(args: &Args) -> (Report, Result<(), (Step, Failure)>) {
    let mut report = Report::default();
    let outcome = all_steps(args, &mut report);
    (report, outcome)
}

fn all_steps(args: &Args, report: &mut Report) -> Result<(), (Step, Failure)> {
    let deadline = Deadline::after(Duration::from_secs(args.timeout));
    let (mut agent, trust) = report.time(Step::Connect, || {
        let trust = Trust::read(args.ca.as_deref())?;
        Ok((Agent::connect(&args.ws, &trust, deadline)?, trust))
    })?;
    report.time(Step::Hello, || agent.hello())?;
    let sender = Identity::generate();
    let receiver = Receiver::generate().map_err(|why| (Step::Register, why))?;
    let push_endpoint = report.time(Step::Register, || agent.register(&sender.public_key()))?;

    let plain = crypto::random_text().map_err(|why| (Step::Post, why))?;
    let message_id = report.time(Step::Post, || {
        let url = post::url(&push_endpoint)?;
        let target = args.endpoint.as_deref().map(post::url).transpose()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| Failure::new("the clock is before 1970"))?;
        let authorization = sender.authorization(&url.origin().to_string(), now.as_secs() + TOKEN_SECONDS);
        let body = receiver.encrypt(plain.as_bytes())?;
        let stream = trust.connect(target.as_ref().unwrap_or(&url).origin(), url.origin(), deadline)?;
        post::post(stream, &url, &authorization, &body)
    })?;
    let notification = report.time(Step::Receive, || agent.notification(&message_id))?;
    report.time(Step::Decrypt, || {
        let opened = receiver.decrypt(&notification.data)?;
        match opened == plain.as_bytes() {
            true => Ok(()),
            false => Err(Failure::new("the message that arrived is not the one that was sent")),
        }
    })?;
    report.time(Step::Unregister, || {
        agent.ack(&notification.version)?;
        agent.unregister()
    })
}
