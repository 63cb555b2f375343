//! Connections whose peer reads nothing: the peer's window closes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use hibernate::{Buffers, Frozen, Refusal, Tuple, check, freeze, sys};

/// A connection, and how many bytes were sent to its peer.
struct Connection {
    stream: TcpStream,
    tuple: Tuple,
    peer: TcpStream,
    sent: usize,
}

impl Connection {
    fn new() -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        // A buffer without a stated size would grow.
        sys::set(&peer, libc::SOL_SOCKET, libc::SO_RCVBUF, &[65_536]).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let tuple = Tuple::of(&stream).unwrap();
        Connection { stream, tuple, peer, sent: 0 }
    }

    fn send(&mut self, bytes: usize) {
        let chunk: Vec<u8> = (self.sent..self.sent + bytes).map(byte).collect();
        self.stream.write_all(&chunk).unwrap();
        self.sent += bytes;
    }

    /// The result of a check, after the peer has acknowledged everything. The connection stays live.
    fn check(&mut self) -> Result<Frozen, Refusal> {
        let start = Instant::now();
        while sys::unsent(&self.stream).unwrap() > 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "the peer acknowledges nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let socket = OwnedFd::from(self.stream.try_clone().unwrap());
        let checked = check(socket, self.tuple).map_err(|(_, refusal)| refusal)?;
        let frozen = *checked.frozen();
        checked.abort();
        Ok(frozen)
    }

    /// Fills the peer's window until at most `rest` bytes of it are left; the peer reads nothing. Returns the last
    /// check.
    fn fill_up_to(&mut self, rest: usize) -> Result<Frozen, Refusal> {
        for _ in 0..1_000 {
            let checked = self.check();
            match &checked {
                // Few bytes at a time would fill the peer's memory before its window.
                Ok(frozen) if send_window(frozen) > rest => {
                    let window = send_window(frozen);
                    self.send(if rest == 0 { window } else { window / 2 });
                }
                _ => return checked,
            }
        }
        panic!("the window of a peer that reads nothing stays open after {} bytes", self.sent);
    }

    /// The peer reads, and finds every byte once and in order.
    fn read_all(&mut self) {
        let mut heard = vec![0; self.sent];
        self.peer.read_exact(&mut heard).unwrap();
        assert!(heard.into_iter().eq((0..self.sent).map(byte)), "a byte is wrong");
    }
}

/// Window of the peer, as the bytes of a frozen connection have it.
fn send_window(frozen: &Frozen) -> usize {
    let bytes = frozen.to_bytes();
    u32::from_le_bytes([bytes[52], bytes[53], bytes[54], bytes[55]]) as usize
}

/// The byte at a position of the stream. Its period is no power of two, so that a repeated block is seen.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_connection_with_a_closed_window_stays_live_until_the_peer_reads() {
    let mut connection = Connection::new();
    assert_eq!(connection.fill_up_to(0).map(|_| ()), Err(Refusal::ZeroWindow));
    connection.read_all();
    // The peer announces its window after it has read.
    let start = Instant::now();
    while let Err(refusal) = connection.check() {
        assert!(start.elapsed() < Duration::from_secs(30), "{refusal:?} although the peer has read everything");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "needs CAP_NET_ADMIN: bench/check test"]
fn a_connection_with_a_small_window_is_thawed_with_it() {
    const REST: usize = 8_000;
    let mut connection = Connection::new();
    let frozen = connection.fill_up_to(REST).unwrap();
    assert!((1..=REST).contains(&send_window(&frozen)), "{frozen:?}");
    let Connection { stream, tuple, peer, sent } = connection;
    let frozen = freeze(OwnedFd::from(stream), tuple).unwrap();
    let stream = TcpStream::from(frozen.thaw(Buffers { send: 1 << 16, receive: 1 << 16 }).unwrap());
    stream.set_nonblocking(false).unwrap();
    let mut thawed = Connection { stream, tuple, peer, sent };
    // All that is sent behind the window must have room.
    sys::set(&thawed.stream, libc::SOL_SOCKET, libc::SO_SNDBUF, &[1 << 19]).unwrap();
    thawed.send(25 * REST);
    std::thread::sleep(Duration::from_millis(50));
    assert!(sys::unsent(&thawed.stream).unwrap() > 0, "more was sent than the window allows");
    thawed.read_all();
}
