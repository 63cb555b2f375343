//! Reasons why a connection stays live: one row for each [`Refusal`], and for each way to it.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hibernate::{Ports, Queue, Refusal, Rules, Segment, Tuple, Verdicts, Waiting, check, sys};

const QUEUE: u16 = 41_023;
const TCP: i32 = libc::IPPROTO_TCP;
/// Position of each word of TCP_REPAIR_WINDOW.
const SEND_WINDOW: usize = 1;
const ACKNOWLEDGED: usize = 4;

/// A connection without a live mark, whose segments wait for a verdict.
struct Held {
    stream: TcpStream,
    peer: TcpStream,
    tuple: Tuple,
    queue: Queue,
    _rules: Rules,
}

impl Held {
    fn new() -> Held {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let peer = TcpStream::connect(address).unwrap();
        peer.set_nodelay(true).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let tuple = Tuple::of(&stream).unwrap();
        let queue = Queue::open(QUEUE).unwrap();
        let rules = Rules::install(Ports::To(&[address.port()]), QUEUE, false).unwrap();
        Held { stream, peer, tuple, queue, _rules: rules }
    }

    /// The next segment of the peer, which waits for its verdict.
    fn segment(&self) -> Segment {
        let mut buffer = vec![0; 1 << 12];
        waited("a segment", || match self.queue.next(&mut buffer).unwrap() {
            Waiting::Segment(segment) => Some(segment),
            Waiting::Unreadable(_) | Waiting::Nothing => None,
        })
    }

    /// Gives a segment to the connection. When it returns, the kernel has processed it.
    fn accept(&self, segment: &Segment) {
        let mut verdicts = Verdicts::default();
        self.queue.accept(segment.id, &mut verdicts);
        self.queue.send(&mut verdicts).unwrap();
    }

    fn say(&mut self, bytes: &[u8]) -> Segment {
        self.peer.write_all(bytes).unwrap();
        self.segment()
    }

    /// Sets a socket option in repair mode.
    fn repaired(&self, change: impl FnOnce(&TcpStream)) {
        sys::set(&self.stream, TCP, libc::TCP_REPAIR, &[1]).unwrap();
        change(&self.stream);
        sys::set(&self.stream, TCP, libc::TCP_REPAIR, &[u32::MAX]).unwrap();
    }

    /// Changes a word of both windows: what the peer would have told, or this side would not have said yet.
    fn change_window(&self, word: usize, change: impl Fn(u32) -> u32) {
        self.repaired(|stream| {
            let mut windows = sys::get::<5>(stream, TCP, libc::TCP_REPAIR_WINDOW).unwrap();
            windows[word] = change(windows[word]);
            sys::set(stream, TCP, libc::TCP_REPAIR_WINDOW, &windows).unwrap();
        });
    }
}

fn waited<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn nothing(_: &mut Held) {}

fn bytes_to_read(held: &mut Held) {
    let segment = held.say(b"unread");
    held.accept(&segment);
}

fn bytes_beyond_a_hole(held: &mut Held) {
    held.say(b"lost");
    let second = held.say(b"beyond");
    held.accept(&second);
}

/// The peer has them, and its acknowledgement waits in the queue.
fn unacknowledged_bytes(held: &mut Held) {
    held.stream.write_all(b"answer").unwrap();
    held.segment();
}

fn an_owed_acknowledgement(held: &mut Held) {
    held.change_window(ACKNOWLEDGED, |position| position.wrapping_sub(1));
}

fn a_closed_window(held: &mut Held) {
    held.change_window(SEND_WINDOW, |_| 0);
}

fn small_segments(held: &mut Held) {
    const TCP_REPAIR_OPTIONS: i32 = 22;
    const SEGMENT_SIZE: u32 = 2;
    held.repaired(|stream| sys::set(stream, TCP, TCP_REPAIR_OPTIONS, &[SEGMENT_SIZE, 60]).unwrap());
}

fn the_end_of_the_peer(held: &mut Held) {
    held.peer.shutdown(std::net::Shutdown::Write).unwrap();
    let segment = held.segment();
    assert!(!segment.is_bare, "a FIN is no sign of life");
    held.accept(&segment);
}

type Row = (fn(&mut Held), Option<Refusal>);

const ROWS: &[Row] = &[
    (nothing, None),
    (bytes_to_read, Some(Refusal::Unread)),
    (bytes_beyond_a_hole, Some(Refusal::Unread)),
    (unacknowledged_bytes, Some(Refusal::Unsent)),
    (an_owed_acknowledgement, Some(Refusal::OwedAck)),
    (a_closed_window, Some(Refusal::ZeroWindow)),
    (small_segments, Some(Refusal::SmallSegments)),
    (the_end_of_the_peer, Some(Refusal::Ended)),
];

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_connection_for_which_something_is_under_way_stays_live() {
    for (at, (prepare, expected)) in ROWS.iter().enumerate() {
        let mut held = Held::new();
        prepare(&mut held);
        let Held { stream, tuple, .. } = held;
        let checked = check(OwnedFd::from(stream), tuple);
        let refusal = checked.as_ref().err().map(|(_, refusal)| *refusal);
        assert_eq!(refusal, *expected, "row {at}");
        if let Err((socket, _)) = checked {
            let repairs = sys::get::<1>(&socket, TCP, libc::TCP_REPAIR).unwrap();
            assert_eq!(repairs, [0], "row {at}: it is as it was");
        }
    }
}

#[test]
fn a_socket_that_is_no_connection_is_refused_with_the_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let socket = OwnedFd::from(UdpSocket::bind("127.0.0.1:0").unwrap());
    let (_, refusal) = check(socket, Tuple::of(&peer).unwrap()).unwrap_err();
    assert!(matches!(refusal, Refusal::System(errno) if errno != 0), "{refusal:?}");
}
