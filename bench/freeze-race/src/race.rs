//! The race: a server that freezes, peers that never stop sending, and the count of everything at the end.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hibernate::{Ports, Queue, Rules};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::freeze::Form;
use crate::network::{Link, Network, enter, inside};
use crate::path::{Faults, PathStats, carry};
use crate::peers::{self, Found, Pace};
use crate::progress::{Phase, Progress};
use crate::server::Server;
use crate::stream::Random;
use crate::stuck;

/// Port of the server, in its own namespace.
pub const PORT: u16 = 9_000;

/// Number of its packet queue.
pub const QUEUE: u16 = 1;

/// One race.
#[derive(Clone, Copy, Debug)]
pub struct Race {
    pub link: Link,
    pub form: Form,
    /// Candidates of one batch, for which there is one grace period.
    pub batch: usize,
    pub pace: Pace,
    pub duration: Duration,
    /// Maximum number of freezes: the race ends early at it.
    pub freezes_max: u64,
    pub faults: Faults,
    /// Listen on the address of the server instead of the wildcard address.
    pub one_address: bool,
    /// Freeze on while the reader of the queue is behind, until the kernel drops segments.
    pub unpaced: bool,
    pub seed: u64,
}

/// Result of a race.
#[derive(Debug, Default)]
pub struct Outcome {
    pub freezes: u64,
    pub batches: u64,
    pub refused_unread: u64,
    pub refused_unsent: u64,
    pub refused_owed_ack: u64,
    pub refused_other: u64,
    pub thaws_by_segment: u64,
    pub thaws_by_send: u64,
    pub thaw_failures: u64,
    pub segments_queued: u64,
    /// Segments that the kernel dropped because the queue was full.
    pub queue_dropped: u64,
    pub server_corrupt: u64,
    pub peers: Found,
    pub path: [u64; 3],
    pub seconds: f64,
}

impl Outcome {
    /// Nothing was lost, corrupted or stuck, and no connection broke.
    pub fn clean(&self) -> bool {
        let Found { lost, stuck, broken, corrupt, .. } = self.peers;
        [lost, stuck, broken, corrupt, self.server_corrupt] == [0; 5]
    }
}

/// Runs a race in namespaces of its own. `report` gets a line every ten seconds.
pub fn run(race: &Race, report: &mut (dyn Write + Send)) -> io::Result<Outcome> {
    let start = Instant::now();
    let mut network = Network::new(race.link)?;
    let address = network.address;
    let listen = SocketAddrV4::new(if race.one_address { address } else { Ipv4Addr::UNSPECIFIED }, PORT);
    // The rules go when their owner is dropped.
    let (server, _rules, queue) = inside(&network.server, || -> io::Result<_> {
        let queue = Queue::open(QUEUE)?;
        let rules = Rules::install(Ports::To(&[PORT]), QUEUE, false)?;
        Ok((Server::new(race.form, listen, address, race.pace.connections)?, rules, queue))
    })??;
    let (progress, stats) = (Progress::default(), PathStats::default());
    let tun = network.tun.take();
    let found = std::thread::scope(|scope| -> io::Result<Found> {
        let (progress, stats, network) = (&progress, &stats, &network);
        let path = tun.map(|ends| scope.spawn(|| carry(ends, race.faults, race.seed, stats, &progress.over)));
        let peers = scope.spawn(move || {
            enter(&network.peers)?;
            peers::run(address, PORT, race.pace, race.seed ^ 1, progress)
        });
        // The server ends by itself when the peers end, with or without an error.
        let peers_end = scope.spawn(move || {
            let found = peers.join();
            progress.set_phase(Phase::Over);
            found.unwrap_or_else(|_| Err(io::Error::other("the thread of the peers panicked")))
        });
        let served = inside(&network.server, || serve(&server, queue, race, progress, report));
        progress.set_phase(Phase::Over);
        served??;
        if let Some(path) = path {
            path.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the path panicked")))?;
        }
        peers_end.join().unwrap_or_else(|_| Err(io::Error::other("the thread of the peers panicked")))
    })?;
    if found.stuck > 0 {
        report_stuck(&server, &network, &found, report)?;
    }
    let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let counts = &server.counts;
    Ok(Outcome {
        freezes: read(&counts.freezes),
        batches: read(&counts.batches),
        refused_unread: read(&counts.unread),
        refused_unsent: read(&counts.unsent),
        refused_owed_ack: read(&counts.owed_ack),
        refused_other: read(&counts.other),
        thaws_by_segment: read(&counts.thaws_by_segment),
        thaws_by_send: read(&counts.thaws_by_send),
        thaw_failures: read(&counts.thaw_failures),
        segments_queued: read(&counts.segments_queued),
        queue_dropped: read(&counts.queue_dropped),
        server_corrupt: read(&counts.corrupt),
        peers: found,
        path: [read(&stats.carried), read(&stats.lost), read(&stats.duplicated)],
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Writes both ends of connections that are stuck, and what TCP has counted in both namespaces.
fn report_stuck(server: &Server, network: &Network, found: &Found, report: &mut (dyn Write + Send)) -> io::Result<()> {
    for (port, end) in &found.stuck_ends {
        writeln!(report, "port {port}, peer: {end}")?;
        writeln!(report, "port {port}, server: {}", server.end(*port))?;
    }
    for (name, namespace) in [("server", &network.server), ("peers", &network.peers)] {
        writeln!(report, "counters of the {name}: {}", inside(namespace, stuck::counters)??)?;
    }
    Ok(())
}

/// Accepts, then freezes until the end, with the reader of the queue beside it.
fn serve(
    server: &Server,
    queue: Queue,
    race: &Race,
    progress: &Progress,
    report: &mut (dyn Write + Send),
) -> io::Result<()> {
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| judge_until_over(server, &queue, progress));
        let result = freeze_until_over(server, race, progress, report);
        progress.set_phase(Phase::Over);
        reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader of the queue panicked")))?;
        // The kernel forgets the count with the queue.
        server.counts.queue_dropped.store(stuck::queue_dropped()?, Ordering::Relaxed);
        result
    })
}

/// Judges the segments in the queue until the end, which an error brings about.
fn judge_until_over(server: &Server, queue: &Queue, progress: &Progress) -> io::Result<()> {
    const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let judge = || -> io::Result<()> {
        if !server.judge(queue)? {
            server.queue_was_empty.store(true, Ordering::Release);
            poll(&mut [PollFd::new(queue.socket(), PollFlags::IN)], Some(&WAIT))?;
        }
        Ok(())
    };
    while progress.phase() != Phase::Over {
        judge().inspect_err(|_| progress.set_phase(Phase::Over))?;
    }
    Ok(())
}

fn freeze_until_over(
    server: &Server,
    race: &Race,
    progress: &Progress,
    report: &mut (dyn Write + Send),
) -> io::Result<()> {
    let mut keys = Vec::new();
    let mut random = Random(race.seed ^ 2);
    let mut cursor = 0;
    // A reply needs an acknowledgement before the next freeze, so not every write gets one.
    const REPLY_AFTER: u64 = 600;
    while server.accept()? < race.pace.connections {
        server.serve(&mut keys, 1, REPLY_AFTER)?;
        if progress.phase() == Phase::Over {
            return Ok(());
        }
    }
    progress.accepted.store(true, Ordering::Release);
    let start = Instant::now();
    let mut next_report = start + Duration::from_secs(10);
    while progress.phase() == Phase::Racing {
        server.serve(&mut keys, 0, REPLY_AFTER)?;
        if !(race.unpaced || server.queue_was_empty.load(Ordering::Acquire))
            || server.freeze_batch(race.batch, &mut cursor)? == 0
        {
            server.serve(&mut keys, 1, REPLY_AFTER)?;
        }
        for _ in 0..race.batch.div_ceil(16) {
            server.tell_one(random.below(race.pace.connections as u64) as usize)?;
        }
        let freezes = server.counts.freezes.load(Ordering::Relaxed);
        if start.elapsed() >= race.duration || freezes >= race.freezes_max {
            progress.set_phase(Phase::Settling);
        }
        if Instant::now() >= next_report {
            next_report += Duration::from_secs(10);
            writeln!(report, "{:.0} s: {freezes} freezes", start.elapsed().as_secs_f64())?;
            report.flush()?;
        }
    }
    while progress.phase() == Phase::Settling {
        server.serve(&mut keys, 5, 1)?;
        for key in 0..race.pace.connections {
            server.tell_one(key)?;
        }
    }
    Ok(())
}
