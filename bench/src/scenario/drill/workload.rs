//! User agents and app servers of a drill, each on a thread, and their counts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use client::agent::{Agent, Note, Received, channel_id};
use client::http::{Client, Request};

use super::cluster::{Addresses, TestCluster};
use crate::random::Random;

/// Counts of a drill.
#[derive(Default)]
pub(super) struct Tally {
    /// Sequence numbers that were answered 201.
    pub accepted: HashSet<u64>,
    received: HashSet<u64>,
    acked: HashSet<u64>,
    /// Notifications received again after an ack was sent.
    pub again: u64,
    /// Hellos answered with another UAID.
    pub renamed: u64,
    /// Number of answers to POSTs by status; 0 stands for no answer.
    pub statuses: BTreeMap<u16, u64>,
    /// Answers 503 with a time to come again.
    pub orderly: u64,
    /// Sessions that their user agent did not end, by the address of the node.
    pub closed: HashMap<SocketAddr, u64>,
}

struct Shared {
    addresses: Arc<Mutex<Addresses>>,
    tally: Mutex<Tally>,
    posting: AtomicBool,
    living: AtomicBool,
    /// Users of [`AWAY`] are not connected.
    away: AtomicBool,
    next: AtomicU64,
    endpoints: Vec<String>,
    gentle: bool,
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server has ended a session in which these were acked: the last of them it need not have read.
    fn crossed(&self, acks: &[(Instant, u64)]) {
        let mut tally = self.tally();
        for (_, number) in acks.iter().filter(|(at, _)| at.elapsed() < ACK_READ_WITHIN) {
            tally.acked.remove(number);
        }
    }

    fn any(&self, which: impl Fn(&Addresses) -> &[SocketAddr], dice: &mut Random) -> Option<SocketAddr> {
        let addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let known = which(&addresses);
        (!known.is_empty()).then(|| known[dice.index(known.len())])
    }
}

/// User agents and app servers of a drill.
pub(super) struct Workload {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// App servers; each has one POST under way.
const POSTERS: usize = 8;
/// One user in `STAYS` stays connected as long as it can. No later hello finds messages for it, so another node that
/// stores or owes it a message must notify its node.
const STAYS: usize = 3;
/// The users of this remainder by `STAYS` can be sent away.
const AWAY: usize = 1;
/// Longest wait for a user to be registered.
const REGISTER_WITHIN: Duration = Duration::from_secs(60);
/// An ack that is no older when the server says goodbye may have crossed it and be unread: its message may come again.
const ACK_READ_WITHIN: Duration = Duration::from_secs(2);

impl Workload {
    /// Registers the users and starts all threads. `gentle`: no user leaves without a close, so that no ack is lost.
    pub(super) fn gather(town: &TestCluster, users: usize, rate: u32, gentle: bool) -> io::Result<Workload> {
        let addresses = town.addresses();
        let mut dice = Random(1);
        let mut known = Vec::new();
        let mut endpoints = Vec::new();
        for _ in 0..users {
            let all = addresses.lock().unwrap_or_else(PoisonError::into_inner).websocket.clone();
            let (uaid, endpoint) = register(all[dice.index(all.len())])?;
            known.push(uaid);
            endpoints.push(endpoint);
        }
        let shared = Arc::new(Shared {
            addresses,
            tally: Mutex::default(),
            posting: AtomicBool::new(true),
            living: AtomicBool::new(true),
            away: AtomicBool::new(false),
            next: AtomicU64::new(1),
            endpoints,
            gentle,
        });
        let mut threads = Vec::new();
        for (n, uaid) in known.into_iter().enumerate() {
            let shared = Arc::clone(&shared);
            let (moves, leaves) = (n % STAYS != 0, n % STAYS == AWAY);
            threads.push(thread::spawn(move || live(&shared, uaid, (moves, leaves), Random(n as u64 + 10))));
        }
        let pause = Duration::from_secs(1) * POSTERS as u32 / rate.max(1);
        for n in 0..POSTERS {
            let shared = Arc::clone(&shared);
            threads.push(thread::spawn(move || post(&shared, pause, Random(n as u64 + 1_000))));
        }
        Ok(Workload { shared, threads })
    }

    /// Lets no user of a third of them connect while `away`, so that messages wait for them.
    pub(super) fn send_away(&self, away: bool) {
        self.shared.away.store(away, Ordering::Relaxed);
    }

    /// No POST from now on.
    pub(super) fn stop_posting(&self) {
        self.shared.posting.store(false, Ordering::Relaxed);
    }

    /// Number of accepted notifications that no user has received.
    pub(super) fn missing(&self) -> usize {
        let tally = self.shared.tally();
        tally.accepted.difference(&tally.received).count()
    }

    /// Stops all threads and returns their counts.
    pub(super) fn disperse(self) -> Tally {
        self.stop_posting();
        self.shared.living.store(false, Ordering::Relaxed);
        for thread in self.threads {
            // One that panicked has said so.
            let _ = thread.join();
        }
        std::mem::take(&mut *self.shared.tally())
    }
}

/// A new user with one channel. A database that has just begun may be too slow for a while, and a node must then
/// refuse.
fn register(address: SocketAddr) -> io::Result<(String, String)> {
    let begun = Instant::now();
    loop {
        let registered = || {
            let mut agent = Agent::connect(address)?;
            Ok((agent.hello(None)?, agent.register(&channel_id(), None)?))
        };
        match registered() {
            Err(_) if begun.elapsed() < REGISTER_WITHIN => thread::sleep(Duration::from_millis(200)),
            done => return done,
        }
    }
}

/// The life of a user agent: connects anywhere, acks, and if it `moves` it goes elsewhere now and then, with a close or
/// without. One that `leaves` can be sent away.
fn live(shared: &Shared, uaid: String, (moves, leaves): (bool, bool), mut dice: Random) {
    while shared.living.load(Ordering::Relaxed) {
        if leaves && shared.away.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
            continue;
        }
        let connected = shared
            .any(|known| &known.websocket, &mut dice)
            .map(|address| stay(shared, address, &uaid, moves, &mut dice));
        if !matches!(connected, Some(Ok(()))) {
            thread::sleep(Duration::from_millis(100 + dice.below(200)));
        }
    }
}

fn stay(shared: &Shared, address: SocketAddr, uaid: &str, moves: bool, dice: &mut Random) -> io::Result<()> {
    let mut agent = Agent::connect(address)?;
    if agent.hello(Some(uaid))? != uaid {
        shared.tally().renamed += 1;
        return Err(io::Error::other("another UAID"));
    }
    let stayed = serve(shared, agent, moves, dice);
    if stayed.is_err() {
        *shared.tally().closed.entry(address).or_default() += 1;
    }
    stayed
}

/// Takes what comes until it leaves of its own accord.
///
/// # Errors
/// The other side ended it.
fn serve(shared: &Shared, mut agent: Agent, moves: bool, dice: &mut Random) -> io::Result<()> {
    let mut acks: Vec<(Instant, u64)> = Vec::new();
    let until = moves.then(|| Instant::now() + Duration::from_millis(500 + dice.below(4_000)));
    while shared.living.load(Ordering::Relaxed) {
        match agent.receive(Duration::from_millis(100))? {
            Received::Message(message) => {
                if let Some(note) = Note::read(message) {
                    let taken = take(shared, &mut agent, &note).inspect_err(|_| shared.crossed(&acks))?;
                    acks.extend(taken.map(|number| (Instant::now(), number)));
                }
            }
            Received::Close(_) | Received::End => {
                shared.crossed(&acks);
                return Err(io::Error::other("closed"));
            }
            Received::Nothing if until.is_some_and(|until| Instant::now() > until) => {
                // The result of a goodbye does not matter.
                let _ = match dice.below(3) {
                    _ if shared.gentle => agent.close(),
                    0 => agent.close(),
                    1 => agent.reset(),
                    _ => Ok(()),
                };
                return Ok(());
            }
            Received::Nothing => {}
        }
    }
    Ok(())
}

/// Acks a notification; its number when that is the first ack of it.
fn take(shared: &Shared, agent: &mut Agent, note: &Note) -> io::Result<Option<u64>> {
    let number = note.body.first_chunk().map_or(0, |number| u64::from_be_bytes(*number));
    {
        let mut tally = shared.tally();
        tally.received.insert(number);
        if tally.acked.contains(&number) {
            tally.again += 1;
        }
    }
    agent.ack([note])?;
    Ok(shared.tally().acked.insert(number).then_some(number))
}

/// An app server: posts to any node for any user.
fn post(shared: &Shared, pause: Duration, mut dice: Random) {
    let mut clients: HashMap<SocketAddr, Client> = HashMap::new();
    while shared.posting.load(Ordering::Relaxed) {
        thread::sleep(pause);
        let Some(address) = shared.any(|known| &known.endpoint, &mut dice) else { continue };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let mut body = number.to_be_bytes().to_vec();
        body.resize(100, 7);
        let url = &shared.endpoints[dice.index(shared.endpoints.len())];
        let client = match clients.remove(&address) {
            Some(client) => Ok(client),
            None => Client::connect(address),
        };
        let answer =
            client.and_then(|mut client| Ok((client.exchange(&Request::post(url, 3_600)?.encrypted(body))?, client)));
        let (status, says_when) = match answer {
            Ok((response, client)) => {
                clients.insert(address, client);
                (response.status, response.header("retry-after").is_some())
            }
            Err(_) => (0, false),
        };
        let mut tally = shared.tally();
        tally.orderly += u64::from(status == 503 && says_when);
        *tally.statuses.entry(status).or_default() += 1;
        if status == 201 {
            tally.accepted.insert(number);
        }
    }
}
