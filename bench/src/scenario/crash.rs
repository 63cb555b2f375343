//! `crash`: the faults that an accepted direct notification survives. Each round leaves six of them unacked at each
//! client, breaks something, and counts the ones that come back: all six, in order, under the ids that the POSTs were
//! answered with.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::agent::{Agent, Note, Received, channel_id};
use client::http::{Client, Request};
use serde_json::json;

use crate::process::{self, Server};
use crate::report::Report;

/// Number of rounds, and the server.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Rounds of each kind.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub rounds: usize,
    /// The server.
    #[command(flatten)]
    pub server: OwnServer,
    /// Clients of each round.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub clients: usize,
    /// Only this kind: close, reset, sigterm or kill.
    #[arg(long, value_name = "KIND")]
    pub only: Option<Kind>,
    /// Also write every figure to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Fault of a round.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The client closes as a browser does.
    Close,
    /// The client's connection is reset.
    Reset,
    /// The server is told to stop and started again.
    Sigterm,
    /// The server is killed with signal 9 and started again.
    Kill,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Close, Kind::Reset, Kind::Sigterm, Kind::Kill];

    fn name(self) -> &'static str {
        match self {
            Kind::Close => "close",
            Kind::Reset => "reset",
            Kind::Sigterm => "SIGTERM restart",
            Kind::Kill => "kill -9 restart",
        }
    }
}

const EACH: usize = 6;

struct Client6 {
    agent: Option<Agent>,
    uaid: String,
    endpoint: String,
    acked: HashSet<String>,
}

#[derive(Default)]
struct Tally {
    sent: u64,
    lost: u64,
    disordered: u64,
    twice: u64,
    shutdown_codes: u64,
    start_ms_max: u64,
}

/// Runs all rounds and reports.
pub fn run(options: &Options) -> io::Result<bool> {
    let directory = tempfile::tempdir()?;
    let mut server = options.server.start(&directory.path().join("data"))?;
    let mut report = Report::new("crash");
    for kind in Kind::ALL.into_iter().filter(|kind| options.only.is_none_or(|only| only == *kind)) {
        let mut clients = (0..options.clients).map(|_| newcomer(&server)).collect::<io::Result<Vec<_>>>()?;
        let mut tally = Tally::default();
        for round in 0..options.rounds {
            let broken = self::round(&mut server, kind, round, &mut clients, &mut tally);
            broken.map_err(|error| io::Error::other(format!("{} round {round}: {error}", kind.name())))?;
        }
        let name = kind.name();
        report.check(format!("{name}: rounds"), options.rounds as u64, options.rounds as u64);
        report.add(format!("{name}: accepted and unacked"), tally.sent, "");
        report.check(format!("{name}: lost"), tally.lost, 0);
        report.check(format!("{name}: out of order or under another id"), tally.disordered, 0);
        if kind == Kind::Kill {
            // A kill right after an ack may lose the deletion of a stored copy, never the message: at least once.
            report.add(format!("{name}: again after ack"), tally.twice, "");
        } else {
            report.check(format!("{name}: again after ack"), tally.twice, 0);
        }
        if kind == Kind::Sigterm {
            let sessions = (options.rounds * options.clients) as u64;
            report.check(format!("{name}: sessions closed with 1001"), tally.shutdown_codes, sessions);
        }
        if tally.start_ms_max > 0 {
            report.add(format!("{name}: longest start"), tally.start_ms_max, "ms");
        }
    }
    report.finish(options.json.as_deref())
}

/// A server that the scenario starts and breaks.
#[derive(clap::Args, Clone, Debug)]
pub struct OwnServer {
    /// The server binary; when absent the one beside this executable, or this executable, which has `serve` too.
    #[arg(long, value_name = "PATH")]
    pub murre: Option<PathBuf>,
    /// One more argument of `serve`; may be given again.
    #[arg(long = "serve-arg", value_name = "ARG", allow_hyphen_values = true)]
    pub serve_args: Vec<String>,
}

impl OwnServer {
    /// Starts it on `data`.
    pub(super) fn start(&self, data: &Path) -> io::Result<Server> {
        let own = std::env::current_exe()?;
        let beside = own.with_file_name("murre");
        let program = self.murre.clone().unwrap_or(if beside.exists() { beside } else { own });
        let command = vec![program.to_string_lossy().into_owned(), "serve".into()];
        let patience = Duration::from_secs(40);
        Server::start(process::Options { command, arguments: self.serve_args.clone(), patience }, data)
    }
}

fn newcomer(server: &Server) -> io::Result<Client6> {
    let mut agent = Agent::connect(server.websocket())?;
    let uaid = agent.hello(None)?;
    let endpoint = agent.register(&channel_id(), None)?;
    Ok(Client6 { agent: Some(agent), uaid, endpoint, acked: HashSet::new() })
}

fn round(server: &mut Server, kind: Kind, round: usize, clients: &mut [Client6], tally: &mut Tally) -> io::Result<()> {
    let mut ids = vec![Vec::new(); clients.len()];
    let mut publisher = Client::connect(server.endpoint())?;
    for n in 0..EACH {
        for (client, ids) in clients.iter().zip(&mut ids) {
            let body = format!("round {round} number {n} {}", "x".repeat(100));
            let response = publisher.exchange(&Request::post(&client.endpoint, 3600)?.encrypted(body))?;
            if response.status != 201 {
                return Err(io::Error::other(format!("POST answered {} {:?}", response.status, response.errno())));
            }
            ids.push(response.message_id().unwrap_or_default().to_owned());
            tally.sent += 1;
        }
    }
    // Every second round breaks before anything was read: frames may still be under way.
    if round.is_multiple_of(2) {
        for (client, ids) in clients.iter_mut().zip(&ids) {
            collect(client, ids.len(), tally)?;
        }
    }
    breakage(server, kind, clients, tally)?;
    for (client, ids) in clients.iter_mut().zip(&ids) {
        come_back(server, client, ids, tally)?;
    }
    Ok(())
}

fn breakage(server: &mut Server, kind: Kind, clients: &mut [Client6], tally: &mut Tally) -> io::Result<()> {
    let restart = |server: &mut Server, tally: &mut Tally| {
        let begin = Instant::now();
        server.start_again()?;
        tally.start_ms_max = tally.start_ms_max.max(begin.elapsed().as_millis() as u64);
        Ok(())
    };
    let agents = clients.iter_mut().filter_map(|client| client.agent.take());
    match kind {
        Kind::Close => agents.into_iter().try_for_each(Agent::close),
        Kind::Reset => agents.into_iter().try_for_each(Agent::reset),
        Kind::Sigterm => {
            let status = server.terminate()?;
            if status != Some(0) {
                return Err(io::Error::other(format!("exit status {status:?} after SIGTERM\n{}", server.log())));
            }
            for mut agent in agents {
                tally.shutdown_codes += u64::from(last_word(&mut agent)? == Received::Close(1001));
            }
            restart(server, tally)
        }
        Kind::Kill => {
            server.kill()?;
            restart(server, tally)
        }
    }
}

/// The close frame or the end, past any notification that was not read.
fn last_word(agent: &mut Agent) -> io::Result<Received> {
    loop {
        match agent.receive(Duration::from_secs(2))? {
            Received::Message(_) => {}
            other => return Ok(other),
        }
    }
}

fn come_back(server: &Server, client: &mut Client6, ids: &[String], tally: &mut Tally) -> io::Result<()> {
    let mut agent = Agent::connect(server.websocket())?;
    let uaid = agent.hello(Some(&client.uaid))?;
    if uaid != client.uaid {
        return Err(io::Error::other("the server does not know the UAID any more"));
    }
    client.agent = Some(agent);
    let notes = collect(client, ids.len(), tally)?;
    let versions: Vec<&String> = notes.iter().map(|note| &note.version).collect();
    tally.lost += ids.iter().filter(|id| !versions.contains(id)).count() as u64;
    tally.disordered += u64::from(!versions.iter().eq(&ids.iter().collect::<Vec<_>>()));
    let Some(agent) = &mut client.agent else { return Ok(()) };
    agent.ack(&notes)?;
    // The answer shows that the server has processed the ack before it.
    agent.send(&json!({"messageType": "broadcast_subscribe", "broadcasts": {"murre-bench/none": "v"}}))?;
    loop {
        match agent.receive(Duration::from_secs(10))? {
            Received::Message(message) if message["messageType"] == "broadcast" => break,
            Received::Message(_) => tally.twice += 1,
            other => return Err(io::Error::other(format!("after the ack: {other:?}"))),
        }
    }
    client.acked.extend(notes.into_iter().map(|note| note.version));
    Ok(())
}

/// The next `count` notifications; those acked before are counted and acked again. Fewer when no more come in time.
fn collect(client: &mut Client6, count: usize, tally: &mut Tally) -> io::Result<Vec<Note>> {
    let mut notes = Vec::new();
    let Some(agent) = &mut client.agent else { return Ok(notes) };
    while notes.len() < count {
        let Ok(note) = agent.note() else { break };
        if client.acked.contains(&note.version) {
            tally.twice += 1;
            agent.ack([&note])?;
        } else {
            notes.push(note);
        }
    }
    Ok(notes)
}
