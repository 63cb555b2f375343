//! The race: connections are frozen and thawed under peers that never stop sending, and every byte counts
//! ([decision 0033](../../../docs/decisions/0033-hibernation-go-or-no-go.md)).
//!
//! A shard freezes by the gate, the packet queue, the rules and the records of the server, and sends back what it
//! reads. Peers check each byte. The same race breaks when one of the guards of the decision is left out.
//!
//! Other rules of the decision have their own tests: what a check refuses is in `refusals.rs`, the wait for an empty
//! queue in `src/gate/tests.rs`.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hibernate::{
    Buffers, ConnName, Frozen, Gate, HeldDir, News, Place, Ports, RecordDir, RecordFiles, Refusal, Segment, ShardGate,
    Tuple, check, set_live, sys,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Freezes of a race that does not break.
const FREEZES: u64 = 1_000;
/// Time after which a race fails: several retransmission timeouts.
const PATIENCE: Duration = Duration::from_secs(120);

const CONNECTIONS: usize = 32;
/// Bytes that a peer sends before it has them back, at most: less than any buffer.
const AHEAD_MAX: u64 = 8 << 10;
/// Pause between two looks at the sockets.
const TURN_PAUSE: Duration = Duration::from_micros(100);
const BUFFERS: Buffers = Buffers { send: 16 << 10, receive: 64 << 10 };

/// Port and queue of the server, in a namespace of the test.
const PORT: u16 = 9_000;
const QUEUE: u16 = 1;

/// Guard of the decision that a race can leave out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guard {
    /// Rule 1: segments without a live socket wait in the queue.
    Queue,
    /// Rule 2: a candidate loses its mark.
    Mark,
    /// Rule 2: the check comes when the gate says that the grace period is over, and holds the segments of the batch.
    Grace,
    /// Rule 3: a thaw comes before the verdict.
    Thaw,
}

/// End of a race that is not clean.
#[derive(Debug)]
enum Broken {
    /// The kernel has acknowledged bytes that the shard does not get.
    Lost,
    /// A byte is wrong: one before it came twice, or not at all.
    Wrong,
    /// A connection has ended.
    Reset,
}

#[derive(Debug, Default)]
struct Counts {
    freezes: u64,
    thaws_by_segment: u64,
    thaws_by_frame: u64,
}

/// End of a peer.
struct Peer {
    number: usize,
    stream: TcpStream,
    /// Bytes that it has sent, and of these the bytes that it has back.
    progress: Mutex<(u64, u64)>,
}

struct Peers {
    all: Vec<Peer>,
    /// The peers write no more, and wait for the bytes that they do not have back.
    are_settling: AtomicBool,
    is_over: AtomicBool,
}

/// Ends both threads when one of them ends, also by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Peers {
    fn send(&self) -> Result<(), Broken> {
        let _over = Over(&self.is_over);
        while !self.is_over.load(Ordering::Acquire) {
            let are_settling = self.are_settling.load(Ordering::Acquire);
            let mut missing = 0;
            for peer in &self.all {
                missing += peer.turn(are_settling)?;
            }
            if are_settling && missing == 0 {
                break;
            }
            thread::sleep(TURN_PAUSE);
        }
        Ok(())
    }
}

impl Peer {
    /// Reads, and writes up to 200 bytes unless it has too little back. Returns how many bytes it does not have back.
    fn turn(&self, is_settling: bool) -> Result<u64, Broken> {
        let (sent, returned) = &mut *self.progress.lock().unwrap();
        *returned = read(&self.stream, self.number, *returned)?;
        if !is_settling && *sent - *returned < AHEAD_MAX {
            *sent = write(&self.stream, self.number, *sent..*sent + 1 + *sent * 31 % 200)?;
        }
        Ok(*sent - *returned)
    }

    /// Returns the number of bytes that the kernel of the other end has acknowledged.
    fn acknowledged(&self) -> u64 {
        let (sent, _) = *self.progress.lock().unwrap();
        sent.saturating_sub(sys::unsent(&self.stream).unwrap() as u64)
    }
}

/// A connection of the shard.
struct Conn {
    tuple: Tuple,
    socket: Option<TcpStream>,
    frozen: Option<(Frozen, Place)>,
    is_apart: bool,
    received: u64,
    returned: u64,
}

struct Shard<'a> {
    left_out: Option<Guard>,
    gate: ShardGate,
    records: RecordFiles,
    conns: Vec<Conn>,
    peers: &'a Peers,
    counts: Counts,
}

impl Shard<'_> {
    fn run(mut self) -> Result<Counts, Broken> {
        let (_over, begin) = (Over(&self.peers.is_over), Instant::now());
        while !self.peers.is_over.load(Ordering::Acquire) {
            assert!(begin.elapsed() < PATIENCE, "bytes neither come nor are lost: {:?}", self.counts);
            while let Some(news) = self.gate.next() {
                match news {
                    News::Segment(name, segment, _) => self.judge(name.slot as usize, segment),
                    // A frame thaws before the segments that wait.
                    News::GraceOver => {
                        self.freeze();
                        break;
                    }
                }
            }
            for number in 0..self.conns.len() {
                self.serve(number)?;
            }
            let is_owed = |conn: &Conn| conn.frozen.is_some() && conn.returned < conn.received;
            if let Some(number) = self.conns.iter().position(is_owed) {
                self.counts.thaws_by_frame += self.thaw(number);
            }
            if self.counts.freezes >= FREEZES {
                self.peers.are_settling.store(true, Ordering::Release);
            } else if !self.conns.iter().any(|conn| conn.is_apart) {
                self.set_apart();
            }
            // News of the gate ends it.
            thread::park_timeout(TURN_PAUSE);
        }
        assert_eq!(self.gate.stats().dropped.load(Ordering::Relaxed), 0, "segments that the gate has dropped");
        Ok(self.counts)
    }

    /// Thaws the connection of a segment if it is frozen, and lets the segment in.
    fn judge(&mut self, number: usize, segment: Segment) {
        if self.left_out != Some(Guard::Thaw) {
            self.counts.thaws_by_segment += self.thaw(number);
        }
        self.gate.accept(segment);
        // At once, so that no freeze comes before it.
        self.gate.send_verdicts();
    }

    /// Reads what has come, sends back what is owed unless the connection is set apart, and counts.
    fn serve(&mut self, number: usize) -> Result<(), Broken> {
        let (conn, peer) = (&mut self.conns[number], &self.peers.all[number]);
        // Before the read: what is acknowledged now has come.
        let acknowledged = peer.acknowledged();
        conn.receive(number)?;
        if let Some(socket) = conn.socket.as_ref().filter(|_| !conn.is_apart) {
            conn.returned = write(socket, number, conn.returned..conn.received)?;
        }
        if acknowledged > conn.received { Err(Broken::Lost) } else { Ok(()) }
    }

    /// Sets all connections apart whose peer has acknowledged everything.
    fn set_apart(&mut self) {
        let mut batch = Vec::new();
        for (number, conn) in self.conns.iter_mut().enumerate() {
            let Some(socket) = &conn.socket else { continue };
            if sys::unsent(socket).unwrap() == 0 {
                if self.left_out != Some(Guard::Mark) {
                    set_live(socket, false).unwrap();
                }
                conn.is_apart = true;
                batch.push((conn.tuple, name(number)));
            }
        }
        if !batch.is_empty() {
            self.gate.set_apart(batch);
        }
        if self.left_out == Some(Guard::Grace) {
            self.freeze();
        }
    }

    /// Checks, records and closes the batch whose grace period is over.
    fn freeze(&mut self) {
        let mut batch = Vec::new();
        for (number, conn) in self.conns.iter_mut().enumerate().filter(|(_, conn)| conn.is_apart) {
            conn.is_apart = false;
            // The next turn sees an end again.
            let _ = conn.receive(number);
            let Some(socket) = conn.socket.take() else { continue };
            match check(OwnedFd::from(socket), conn.tuple) {
                Ok(checked) => batch.push((number, checked)),
                Err((socket, refusal)) => {
                    assert!(!matches!(refusal, Refusal::System(_)), "{refusal:?}");
                    conn.go_live(number, socket, &self.gate);
                }
            }
        }
        for (number, checked) in batch {
            let conn = &mut self.conns[number];
            // Half of the peers write between the check and the close. Their own thread sees an end, too.
            let _ = self.peers.all[number].turn(number % 4 < 2);
            let place = self.records.write(checked.frozen(), &conn.received.to_le_bytes()).unwrap();
            conn.frozen = Some((checked.close(), place));
            self.counts.freezes += 1;
        }
    }

    /// Returns 1 if the connection was frozen.
    fn thaw(&mut self, number: usize) -> u64 {
        let conn = &mut self.conns[number];
        let Some((frozen, place)) = conn.frozen.take() else { return 0 };
        let record = self.records.take(place).unwrap();
        assert_eq!(*record.0, conn.received.to_le_bytes(), "the record of another connection");
        conn.go_live(number, frozen.thaw(BUFFERS).unwrap(), &self.gate);
        1
    }
}

impl Conn {
    fn receive(&mut self, number: usize) -> Result<(), Broken> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let before = self.received;
        self.received = read(socket, number, before)?;
        if self.received > before {
            // An acknowledgement that the kernel delays would refuse the freeze.
            sys::set(socket, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &[1]).unwrap();
        }
        Ok(())
    }

    fn go_live(&mut self, number: usize, socket: OwnedFd, gate: &ShardGate) {
        set_live(&socket, true).unwrap();
        gate.live(self.tuple, name(number));
        self.socket = Some(TcpStream::from(socket));
    }
}

fn name(number: usize) -> ConnName {
    ConnName { slot: number as u32, generation: 1 }
}

/// Returns the byte at a position of the stream of a peer. Its period is no power of two, so that a repeated block is
/// seen.
fn byte(number: usize, position: u64) -> u8 {
    ((position + 7 * number as u64) % 251) as u8
}

/// Reads all that is there of a stream, and checks it. Returns the position behind it.
fn read(mut stream: &TcpStream, number: usize, mut position: u64) -> Result<u64, Broken> {
    let mut buffer = [0; 4_096];
    loop {
        let bytes = match stream.read(&mut buffer) {
            Ok(len) if len > 0 => &buffer[..len],
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(position),
            _ => return Err(Broken::Reset),
        };
        let end = position + bytes.len() as u64;
        if !bytes.iter().copied().eq((position..end).map(|at| byte(number, at))) {
            return Err(Broken::Wrong);
        }
        position = end;
    }
}

/// Writes these positions of a stream, as far as its buffer takes them. Returns the position behind them.
fn write(mut stream: &TcpStream, number: usize, positions: std::ops::Range<u64>) -> Result<u64, Broken> {
    let start = positions.start;
    let bytes: Vec<u8> = positions.map(|at| byte(number, at)).collect();
    match stream.write(&bytes) {
        Ok(len) => Ok(start + len as u64),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(start),
        Err(_) => Err(Broken::Reset),
    }
}

/// Connects a peer, and accepts it as a server does.
fn connect(number: usize, listener: &TcpListener, address: &str) -> (Peer, Conn) {
    let stream = TcpStream::connect((address, PORT)).unwrap();
    let (socket, _) = listener.accept().unwrap();
    for end in [&stream, &socket] {
        end.set_nodelay(true).unwrap();
        end.set_nonblocking(true).unwrap();
    }
    set_live(&socket, true).unwrap();
    let tuple = Tuple::of(&socket).unwrap();
    let conn = Conn { tuple, socket: Some(socket), frozen: None, is_apart: false, received: 0, returned: 0 };
    (Peer { number, stream, progress: Mutex::default() }, conn)
}

/// Moves the calling thread and those that it spawns into a new network namespace with nothing but loopback addresses.
fn enter_namespace() {
    let mut holder = Command::new("unshare")
        .args(["--net", "--", "sh", "-c", "ip link set lo up && echo up && read _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare (util-linux) runs");
    let mut up = [0; 3];
    holder.stdout.as_mut().unwrap().read_exact(&mut up).expect("root, and ip (iproute2)");
    let namespace = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    // It closes the input, at whose end the holder ends.
    holder.wait().unwrap();
}

/// Runs a race on the calling thread, which has no other use.
fn race_in_namespace(left_out: Option<Guard>) -> Result<Counts, Broken> {
    enter_namespace();
    let dir = format!("/dev/shm/murre-race-{}", std::process::id());
    let records = RecordDir::open(HeldDir::make(dir.as_ref()).unwrap(), [7; 16]).unwrap().shard(0).unwrap();
    // The files stay until they are closed.
    std::fs::remove_dir_all(&dir).unwrap();
    let port = if left_out == Some(Guard::Queue) { PORT + 1 } else { PORT };
    let (_open, mut gates) = Gate::open(Ports::To(&[port]), QUEUE, 1, false).unwrap();
    let (gate, shard) = (gates.pop().unwrap(), thread::current());
    gate.attach(Vec::new(), move || shard.unpark());
    // A listener on all addresses and one on a single address: a rule could take either for a live socket.
    let listeners = ["0.0.0.0", "::1"].map(|address| TcpListener::bind((address, PORT)).unwrap());
    let connect = |number| connect(number, &listeners[number % 2], ["127.0.0.1", "::1"][number % 2]);
    let (all, conns) = (0..CONNECTIONS).map(connect).unzip();
    let peers = Peers { all, are_settling: AtomicBool::default(), is_over: AtomicBool::default() };
    let shard = Shard { left_out, gate, records, conns, peers: &peers, counts: Counts::default() };
    thread::scope(|scope| {
        let sending = scope.spawn(|| peers.send());
        let served = shard.run();
        sending.join().unwrap().and(served)
    })
}

/// Runs one race at a time: a process that begins has all descriptors until it is another program, and a socket with a
/// second descriptor stays in the kernel when it is closed.
fn race(left_out: Option<Guard>) -> Result<Counts, Broken> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    thread::spawn(move || race_in_namespace(left_out)).join().unwrap()
}

#[test]
#[ignore = "needs root and network namespaces: bench/check test"]
fn every_byte_of_peers_that_never_stop_sending_arrives_once() {
    let counts = race(None).unwrap();
    assert!(counts.thaws_by_segment > 0 && counts.thaws_by_frame > 0, "{counts:?}");
}

#[test]
#[ignore = "needs root and network namespaces: bench/check test"]
fn a_race_breaks_when_a_guard_is_left_out() {
    for guard in [Guard::Queue, Guard::Mark, Guard::Grace, Guard::Thaw] {
        let ended = race(Some(guard));
        assert!(ended.is_err(), "without {guard:?}: {ended:?}");
    }
}
