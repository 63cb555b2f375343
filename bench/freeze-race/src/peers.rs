//! Peers that never stop sending: each sends a counted stream at random moments, and checks every acknowledgement.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::epoll::Epoll;
use crate::progress::{Phase, Progress};
use crate::stream::{Random, byte_at};
use crate::stuck;

/// Pace at which peers send.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub connections: usize,
    /// Mean time between two writes of one peer.
    pub period: Duration,
    /// Largest write. One in eight writes is followed by another one at once.
    pub bytes_max: usize,
    /// Time within which everything must be acknowledged after the last write.
    pub patience: Duration,
}

/// Findings of the peers at the end.
#[derive(Default, Debug, Clone)]
pub struct Found {
    pub sent: u64,
    /// Bytes that the server has not acknowledged at the end.
    pub lost: u64,
    /// Connections with such bytes, still established.
    pub stuck: u64,
    /// Connections that ended with an error.
    pub broken: u64,
    /// Acknowledgements that are impossible: smaller than one before, or of bytes that were not sent.
    pub corrupt: u64,
    pub first_errors: Vec<String>,
    /// Ports and ends of the first connections that are stuck.
    pub stuck_ends: Vec<(u16, String)>,
}

struct Peer {
    stream: TcpStream,
    port: u16,
    sent: u64,
    acknowledged: u64,
    partial: Vec<u8>,
    error: Option<String>,
    corrupt: u64,
}

impl Peer {
    fn write(&mut self, bytes: usize) {
        let chunk: Vec<u8> = (0..bytes as u64).map(|at| byte_at(self.port, self.sent + at)).collect();
        match self.stream.write(&chunk) {
            Ok(written) => self.sent += written as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.fail(&error.to_string()),
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.fail("end of stream"),
            Ok(length) => self.partial.extend(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => self.fail(&error.to_string()),
        }
        let whole = self.partial.len() / 8 * 8;
        for record in self.partial[..whole].as_chunks::<8>().0 {
            let total = u64::from_le_bytes(*record);
            if total <= self.acknowledged || total > self.sent {
                self.corrupt += 1;
            }
            self.acknowledged = total;
        }
        self.partial.drain(..whole);
    }

    fn fail(&mut self, error: &str) {
        self.error.get_or_insert_with(|| format!("port {}: {error} after {} bytes", self.port, self.sent));
    }

    fn settled(&self) -> bool {
        self.error.is_some() || self.acknowledged == self.sent
    }
}

fn connect(to: SocketAddrV4, count: usize, epoll: &Epoll) -> io::Result<Vec<Peer>> {
    let mut peers = Vec::with_capacity(count);
    for key in 0..count {
        let stream = TcpStream::connect_timeout(&to.into(), Duration::from_secs(30))?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let port = stream.local_addr()?.port();
        epoll.add(&stream, key as u64)?;
        peers.push(Peer { stream, port, sent: 0, acknowledged: 0, partial: vec![], error: None, corrupt: 0 });
    }
    Ok(peers)
}

/// Runs all peers on the calling thread, until everything is acknowledged or the patience ends.
pub fn run(address: Ipv4Addr, port: u16, pace: Pace, seed: u64, progress: &Progress) -> io::Result<Found> {
    let epoll = Epoll::new()?;
    let mut peers = connect(SocketAddrV4::new(address, port), pace.connections, &epoll)?;
    // The server counts each stream from its first byte, so it must have accepted everything before.
    while !progress.accepted.load(Ordering::Acquire) && progress.phase() == Phase::Racing {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut random = Random(seed);
    let period = pace.period.as_micros() as u64 + 1;
    let start = Instant::now();
    let mut due: BinaryHeap<_> =
        (0..peers.len()).map(|key| Reverse((start + Duration::from_micros(random.below(period)), key))).collect();
    let mut keys = Vec::new();
    while progress.phase() == Phase::Racing {
        epoll.wait(&mut keys, 1)?;
        for key in &keys {
            receive(&mut peers[*key as usize]);
        }
        let now = Instant::now();
        while due.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((_, key))) = due.pop() else { break };
            let peer = &mut peers[key];
            if peer.error.is_some() {
                continue;
            }
            let writes = if random.below(8) == 0 { 2 } else { 1 };
            for _ in 0..writes {
                peer.write(1 + random.below(pace.bytes_max as u64) as usize);
            }
            due.push(Reverse((now + Duration::from_micros(period / 2 + random.below(period)), key)));
        }
    }
    let end = Instant::now() + pace.patience;
    while Instant::now() < end && !peers.iter().all(Peer::settled) {
        epoll.wait(&mut keys, 20)?;
        for key in &keys {
            receive(&mut peers[*key as usize]);
        }
    }
    progress.set_phase(Phase::Over);
    Ok(judge(&peers))
}

fn receive(peer: &mut Peer) {
    if peer.error.is_none() {
        peer.read();
    }
    if peer.error.is_some() {
        // The descriptor stays readable, so it must leave the poll; the socket has ended already.
        let _ = peer.stream.shutdown(std::net::Shutdown::Both);
    }
}

fn judge(peers: &[Peer]) -> Found {
    let mut found = Found::default();
    for peer in peers {
        let missing = peer.sent.saturating_sub(peer.acknowledged);
        found.sent += peer.sent;
        found.lost += missing;
        found.stuck += u64::from(peer.error.is_none() && missing > 0);
        found.broken += u64::from(peer.error.is_some());
        found.corrupt += peer.corrupt;
        if found.stuck_ends.len() < 8 && peer.error.is_none() && missing > 0 {
            let end = stuck::end(&peer.stream).map_or_else(|error| error.to_string(), |end| end.to_string());
            let (sent, acknowledged) = (peer.sent, peer.acknowledged);
            found.stuck_ends.push((peer.port, format!("sent {sent}, acknowledged {acknowledged}, {end}")));
        }
        if found.first_errors.len() < 5 {
            found.first_errors.extend(peer.error.clone());
        }
    }
    found
}
