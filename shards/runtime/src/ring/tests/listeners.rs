//! Options that accepted sockets inherit from their listener.

use std::io::{ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::{BACKLOG_DEFAULT, Port, listen, local_address};

/// Without it the first notification behind a register waits for the delayed ack of the reply, some 40 ms
/// (PROTOCOL.md 12).
#[test]
fn accepted_sockets_do_not_delay_small_segments() {
    for port in [Port::WebSocket, Port::Endpoint, Port::Node] {
        let listener = listen("127.0.0.1:0".parse().unwrap(), port, BACKLOG_DEFAULT).unwrap();
        let address = local_address(&listener).unwrap();
        let _client = TcpStream::connect(address).unwrap();
        let (accepted, _) = TcpListener::from(listener).accept().unwrap();
        assert!(accepted.nodelay().unwrap(), "{port:?}");
    }
}

/// Bytes of kernel memory that a socket of each port holds at most when its peer reads nothing and sends on. The kernel
/// counts the pages of what it keeps, not the bytes, and lets each direction exceed its bound by one segment.
const PINNED: [(Port, usize); 2] = [(Port::WebSocket, 96 * 1024), (Port::Endpoint, 224 * 1024)];

/// The bound that LIMITS states for a blocked socket. Both sides write until neither can write more.
#[test]
fn a_peer_that_reads_nothing_and_sends_on_pins_a_bounded_amount() {
    for (port, most) in PINNED {
        let listener = listen("127.0.0.1:0".parse().unwrap(), port, BACKLOG_DEFAULT).unwrap();
        let mut client = TcpStream::connect(local_address(&listener).unwrap()).unwrap();
        let (mut accepted, _) = TcpListener::from(listener).accept().unwrap();
        let mut seen = 0;
        for _ in 0..30 {
            for stream in [&mut client, &mut accepted] {
                stream.set_nonblocking(true).unwrap();
                while stream
                    .write(&[0x5a; 4_000])
                    .map_err(|error| assert_eq!(error.kind(), ErrorKind::WouldBlock))
                    .is_ok()
                {}
            }
            std::thread::sleep(Duration::from_millis(10));
            seen = pinned(&accepted).max(seen);
        }
        println!("{port:?}: {seen} bytes");
        assert!((16 * 1024..=most).contains(&seen), "{port:?}: {seen} bytes are pinned");
    }
}

/// Received and not read, and sent and not taken, in bytes of kernel memory (SO_MEMINFO).
fn pinned(stream: &TcpStream) -> usize {
    let mut facts = [0_u32; 9];
    let mut len = size_of_val(&facts) as libc::socklen_t;
    // SAFETY: `facts` has room for `len` bytes, and both outlive the call.
    let result = unsafe {
        let target = facts.as_mut_ptr().cast();
        libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, SO_MEMINFO, target, &raw mut len)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SK_MEMINFO_RMEM_ALLOC and SK_MEMINFO_WMEM_QUEUED.
    (facts[0] + facts[5]) as usize
}

const SO_MEMINFO: i32 = 55;
