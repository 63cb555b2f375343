//! `kills`: SIGKILL in the middle of traffic. App servers post to every user agent, half of the messages with a topic,
//! while the user agents ack at once, ack in batches, never ack, never read or reconnect all the time. After each kill
//! the server starts again and every user agent returns. The scenario compares the messages that arrive with those
//! answered 201.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use client::agent::{Agent, Note, Received, channel_id};
use client::http::{Client, Request, exchange};
use serde_json::Value;

use super::crash::OwnServer;
use crate::process::Server;
use crate::random::Random;
use crate::report::Report;

/// Options of the scenario.
#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Kills.
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub rounds: usize,
    /// The server.
    #[command(flatten)]
    pub server: OwnServer,
    /// User agents; their habits take turns.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub clients: usize,
    /// Longest time of traffic before a kill, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub traffic_ms_max: u64,
    /// Seed of the lengths of the rounds and of the choice of topics.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write every figure to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Behaviour of a user agent until the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    AcksAtOnce,
    AcksInBatches,
    NeverAcks,
    NeverReads,
    Reconnects,
}

const HABITS: [Habit; 5] =
    [Habit::AcksAtOnce, Habit::AcksInBatches, Habit::NeverAcks, Habit::NeverReads, Habit::Reconnects];

/// Topics of each user agent.
const TOPICS: u64 = 3;

/// Longest wait for the next frame while a backlog arrives.
const DRAIN_WAIT: Duration = Duration::from_secs(30);

/// A message that was posted. Its number is its place in [`Peer::posts`] and the beginning of its body.
#[derive(Clone, Copy, Debug)]
struct Post {
    topic: Option<u64>,
    accepted: bool,
}

/// One user agent and the app server that posts to it, over all rounds.
struct Peer {
    habit: Habit,
    uaid: String,
    endpoint: String,
    posts: Vec<Post>,
    /// Numbers of the messages that were acked, or that arrived after a kill and were acked then.
    settled: HashSet<usize>,
}

#[derive(Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    replaced: u64,
    lost: u64,
    again: u64,
    strangers: u64,
    uaids_changed: u64,
    start_ms_max: u64,
}

/// Runs all rounds and reports. `Ok(false)` when a message that was answered 201 did not arrive.
pub fn run(options: &Options) -> io::Result<bool> {
    let directory = tempfile::tempdir()?;
    let mut server = options.server.start(&directory.path().join("data"))?;
    let mut peers = (0..options.clients)
        .map(|n| Peer::register(&server, HABITS[n % HABITS.len()]))
        .collect::<io::Result<Vec<_>>>()?;
    let (mut tally, mut random) = (Tally::default(), Random(options.seed));
    for round in 0..options.rounds {
        let length = Duration::from_millis(5 + random.below(options.traffic_ms_max.max(1)));
        let done = traffic_until_kill(&mut server, &mut peers, length, random.bits(), &mut tally)
            .and_then(|()| restart(&mut server, &mut tally))
            .and_then(|()| peers.iter_mut().try_for_each(|peer| peer.come_back(&server, &mut tally)));
        done.map_err(|error| io::Error::other(format!("round {round}: {error}\n{}", server.log())))?;
    }
    let mut report = Report::new("kills");
    report.option("seed", options.seed);
    report.check("rounds", options.rounds as u64, options.rounds as u64);
    report.add("accepted (201)", tally.accepted, "");
    report.add("refused", tally.refused, "");
    report.add("replaced by a later message of their topic", tally.replaced, "");
    report.check("lost", tally.lost, 0);
    report.check("arrived without having been posted", tally.strangers, 0);
    report.check("UAIDs changed", tally.uaids_changed, 0);
    // A kill right after an ack can undo the delete of a stored copy, never the message: at least once.
    report.add("again after ack", tally.again, "");
    report.add("longest start", tally.start_ms_max, "ms");
    report.finish(options.json.as_deref())
}

/// Posts to all user agents at once for `length`, then kills the server under the traffic.
fn traffic_until_kill(
    server: &mut Server,
    peers: &mut [Peer],
    length: Duration,
    seed: u64,
    tally: &mut Tally,
) -> io::Result<()> {
    let (websocket, endpoint) = (server.websocket(), server.endpoint());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut tasks = Vec::new();
        for (number, peer) in peers.iter_mut().enumerate() {
            let (uaid, habit, over) = (peer.uaid.clone(), peer.habit, &over);
            let begin = peer.posts.len();
            let random = Random(seed.wrapping_add(number as u64));
            let url = peer.endpoint.clone();
            let reader = scope.spawn(move || read_until_kill(websocket, &uaid, habit, over));
            let writer = scope.spawn(move || post_until_kill(endpoint, &url, begin, random, over));
            tasks.push((peer, reader, writer));
        }
        thread::sleep(length);
        let killed = server.kill();
        over.store(true, Ordering::Release);
        for (peer, reader, writer) in tasks {
            // Invariant: the closures return errors of their sockets as the end of the traffic; they do not panic.
            let acked = reader.join().expect("a reader does not panic");
            let posts = writer.join().expect("a writer does not panic");
            tally.accepted += posts.iter().filter(|post| post.accepted).count() as u64;
            tally.refused += posts.iter().filter(|post| !post.accepted).count() as u64;
            peer.posts.extend(posts);
            peer.settled.extend(acked);
        }
        killed
    })
}

/// Reads as `habit` says until the connection ends. Returns the numbers of the messages that were acked.
fn read_until_kill(server: std::net::SocketAddr, uaid: &str, habit: Habit, over: &AtomicBool) -> Vec<usize> {
    let mut acked = Vec::new();
    // An error of the socket is the kill.
    let _: io::Result<()> = (|| {
        while !over.load(Ordering::Acquire) {
            let mut agent = Agent::connect(server)?;
            agent.hello(Some(uaid))?;
            if habit == Habit::NeverReads {
                while !over.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(1));
                }
                return Ok(());
            }
            read_session(&mut agent, habit, over, &mut acked)?;
        }
        Ok(())
    })();
    acked
}

/// One session of [`read_until_kill`]; a habit of reconnecting ends it after a few messages.
fn read_session(agent: &mut Agent, habit: Habit, over: &AtomicBool, acked: &mut Vec<usize>) -> io::Result<()> {
    let mut unacked: Vec<Note> = Vec::new();
    let mut count = 0;
    while !over.load(Ordering::Acquire) {
        match agent.receive(Duration::from_millis(20))? {
            Received::Message(message) => {
                let Some(note) = Note::read(message) else { continue };
                count += 1;
                unacked.push(note);
            }
            Received::Nothing => {}
            Received::Close(_) | Received::End => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let batch = match habit {
            Habit::AcksAtOnce => 1,
            Habit::AcksInBatches => 20,
            Habit::Reconnects => 3,
            Habit::NeverAcks | Habit::NeverReads => usize::MAX,
        };
        if unacked.len() >= batch {
            agent.ack(&unacked)?;
            acked.extend(unacked.drain(..).filter_map(|note| number_of(&note)));
        }
        if habit == Habit::Reconnects && count >= 5 {
            return Ok(());
        }
    }
    Ok(())
}

/// Posts one message after another until the server is gone; `begin` is the number of the first.
fn post_until_kill(
    server: std::net::SocketAddr,
    url: &str,
    begin: usize,
    mut random: Random,
    over: &AtomicBool,
) -> Vec<Post> {
    let mut posts = Vec::new();
    let Ok(mut client) = Client::connect(server) else { return posts };
    while !over.load(Ordering::Acquire) {
        let topic = (random.below(2) == 0).then(|| random.below(TOPICS));
        let body = format!("{} {}", begin + posts.len(), "x".repeat(random.below(300) as usize));
        let Ok(mut request) = Request::post(url, 3600) else { break };
        if let Some(topic) = topic {
            request = request.header("Topic", &format!("topic{topic}"));
        }
        let response = client.exchange(&request.encrypted(body));
        let end = response.is_err();
        posts.push(Post { topic, accepted: response.is_ok_and(|response| response.status == 201) });
        if end {
            break;
        }
    }
    posts
}

fn restart(server: &mut Server, tally: &mut Tally) -> io::Result<()> {
    let begin = Instant::now();
    server.start_again()?;
    tally.start_ms_max = tally.start_ms_max.max(begin.elapsed().as_millis() as u64);
    Ok(())
}

impl Peer {
    fn register(server: &Server, habit: Habit) -> io::Result<Peer> {
        let mut agent = Agent::connect(server.websocket())?;
        let uaid = agent.hello(None)?;
        let endpoint = agent.register(&channel_id(), None)?;
        agent.close()?;
        Ok(Peer { habit, uaid, endpoint, posts: Vec::new(), settled: HashSet::new() })
    }

    /// Reads and acks everything up to a marker that is posted now, then counts the missing messages.
    fn come_back(&mut self, server: &Server, tally: &mut Tally) -> io::Result<()> {
        let mut agent = Agent::connect(server.websocket())?;
        tally.uaids_changed += u64::from(agent.hello(Some(&self.uaid))? != self.uaid);
        let marker = self.posts.len();
        let request = Request::post(&self.endpoint, 3600)?.encrypted(format!("{marker} "));
        let response = exchange(server.endpoint(), &request)?;
        if response.status != 201 {
            return Err(io::Error::other(format!("the marker was answered {}", response.status)));
        }
        self.posts.push(Post { topic: None, accepted: true });
        let mut arrived = HashSet::new();
        while !arrived.contains(&marker) {
            let note = match agent.receive(DRAIN_WAIT)? {
                Received::Message(message) => note_of(message)?,
                other => return Err(io::Error::other(format!("waited for a backlog of {marker}, got {other:?}"))),
            };
            let number = number_of(&note).filter(|number| *number < self.posts.len());
            let Some(number) = number else {
                tally.strangers += 1;
                continue;
            };
            tally.again += u64::from(self.settled.contains(&number));
            arrived.insert(number);
            agent.ack([&note])?;
        }
        agent.close()?;
        self.settled.extend(arrived);
        self.count_missing(tally);
        Ok(())
    }

    /// A message that was accepted is there, or a later message of its topic is. Nothing is asked of it twice.
    fn count_missing(&mut self, tally: &mut Tally) {
        let mut last_of_topic: HashMap<u64, usize> = HashMap::new();
        for (number, post) in self.posts.iter().enumerate() {
            if let Some(topic) = post.topic
                && self.settled.contains(&number)
            {
                last_of_topic.insert(topic, number);
            }
        }
        for (number, post) in self.posts.iter_mut().enumerate() {
            if !post.accepted || self.settled.contains(&number) {
                continue;
            }
            post.accepted = false;
            let replaced = post.topic.and_then(|topic| last_of_topic.get(&topic)).is_some_and(|last| *last > number);
            if replaced {
                tally.replaced += 1;
            } else {
                tally.lost += 1;
            }
        }
    }
}

fn note_of(message: Value) -> io::Result<Note> {
    let shown = message.to_string();
    Note::read(message).ok_or_else(|| io::Error::other(format!("not a notification: {shown}")))
}

/// The number at the beginning of a message's body.
fn number_of(note: &Note) -> Option<usize> {
    note.text().split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(posts: &[(Option<u64>, bool)], settled: &[usize]) -> Peer {
        let posts = posts.iter().map(|&(topic, accepted)| Post { topic, accepted }).collect();
        let settled = settled.iter().copied().collect();
        Peer { habit: Habit::AcksAtOnce, uaid: String::new(), endpoint: String::new(), posts, settled }
    }

    fn counted(mut peer: Peer) -> (u64, u64) {
        let mut tally = Tally::default();
        peer.count_missing(&mut tally);
        (tally.lost, tally.replaced)
    }

    #[test]
    fn accepted_message_without_topic_is_lost_unless_it_arrived() {
        assert_eq!(counted(peer(&[(None, true), (None, true), (None, false)], &[1])), (1, 0));
    }

    #[test]
    fn message_of_a_topic_is_excused_only_by_a_later_one_that_arrived() {
        assert_eq!(counted(peer(&[(Some(1), true), (Some(1), true)], &[0])), (1, 0), "the earlier one excuses nothing");
        assert_eq!(
            counted(peer(&[(Some(1), true), (Some(1), false)], &[1])),
            (0, 1),
            "its answer was lost in the kill"
        );
        assert_eq!(counted(peer(&[(Some(1), true), (Some(2), true)], &[1])), (1, 0), "another topic excuses nothing");
        assert_eq!(counted(peer(&[(Some(1), true), (Some(1), true)], &[])), (2, 0));
    }

    #[test]
    fn each_missing_message_is_counted_once() {
        let mut peer = peer(&[(None, true)], &[]);
        let mut tally = Tally::default();
        peer.count_missing(&mut tally);
        peer.count_missing(&mut tally);
        assert_eq!(tally.lost, 1);
    }
}
