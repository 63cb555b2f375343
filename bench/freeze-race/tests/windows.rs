//! Connections whose peer reads nothing: the peer's window closes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use freeze_race::freeze::{Fixed, Frozen, Refusal, fixed, record, thaw};
use freeze_race::sys;

const TCP: i32 = libc::IPPROTO_TCP;

/// A connection, and how many bytes were sent to its peer.
struct Connection {
    stream: TcpStream,
    fixed: Fixed,
    peer: TcpStream,
    sent: usize,
}

impl Connection {
    /// Returns nothing where `TCP_REPAIR` is not allowed.
    fn new() -> Option<Connection> {
        let v4 = |address| match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(address) => panic!("{address} is not of IPv4"),
        };
        let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        // A buffer without a stated size would grow.
        sys::set(&peer, libc::SOL_SOCKET, libc::SO_RCVBUF, &[65_536]).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        match fixed(&stream, v4(stream.local_addr().unwrap()), v4(from)) {
            Ok(fixed) => Some(Connection { stream, fixed, peer, sent: 0 }),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                eprintln!("skipped: cannot use TCP_REPAIR here: {error}");
                None
            }
            Err(error) => panic!("cannot read the connection out: {error}"),
        }
    }

    fn send(&mut self, bytes: usize) {
        let chunk: Vec<u8> = (self.sent..self.sent + bytes).map(byte).collect();
        self.stream.write_all(&chunk).unwrap();
        self.sent += bytes;
    }

    /// The result of a check, after the peer has acknowledged everything. The connection stays live.
    fn check(&self) -> Result<Frozen, Refusal> {
        let start = Instant::now();
        while sys::unsent(&self.stream).unwrap() > 0 {
            assert!(start.elapsed() < Duration::from_secs(30), "the peer acknowledges nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        let checked = record(&self.stream, &self.fixed).unwrap();
        if checked.is_ok() {
            const SILENT: u32 = u32::MAX;
            sys::set(&self.stream, TCP, libc::TCP_REPAIR, &[SILENT]).unwrap();
        }
        checked
    }

    /// Fills the peer's window until at most `rest` bytes of it are left; the peer reads nothing. Returns the last
    /// check.
    fn fill_up_to(&mut self, rest: usize) -> Result<Frozen, Refusal> {
        for _ in 0..1_000 {
            let checked = self.check();
            match &checked {
                // Few bytes at a time would fill the peer's memory before its window.
                Ok(frozen) if frozen.send_window as usize > rest => {
                    let window = frozen.send_window as usize;
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

/// The byte at a position of the stream. Its period is no power of two, so that a repeated block is seen.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn a_connection_with_a_closed_window_stays_live_until_the_peer_reads() {
    let Some(mut connection) = Connection::new() else { return };
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
fn a_connection_with_a_small_window_is_thawed_with_it() {
    const REST: usize = 8_000;
    let Some(mut connection) = Connection::new() else { return };
    let frozen = connection.fill_up_to(REST).unwrap();
    assert!((1..=REST).contains(&(frozen.send_window as usize)), "{frozen:?}");
    let recorded = record(&connection.stream, &connection.fixed).unwrap().unwrap();
    // The tuple must be free before it is thawed.
    let Connection { stream, fixed, peer, sent } = connection;
    drop(stream);
    let mut thawed = Connection { stream: thaw(&recorded).unwrap(), fixed, peer, sent };
    thawed.stream.set_nodelay(true).unwrap();
    // All that is sent behind the window must have room.
    sys::set(&thawed.stream, libc::SOL_SOCKET, libc::SO_SNDBUF, &[1 << 19]).unwrap();
    thawed.send(25 * REST);
    std::thread::sleep(Duration::from_millis(50));
    assert!(sys::unsent(&thawed.stream).unwrap() > 0, "more was sent than the window allows");
    thawed.read_all();
}
