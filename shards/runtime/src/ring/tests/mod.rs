//! Facts of the kernel that the rings rely on (RULES.md), and its rules 2 and 3, which the poll plane keeps, too. The
//! other rules are the reactor's: `reactor/tests`.

mod call_filter;
mod close;
mod facts;
mod fence;
mod listeners;
mod peers;
mod sends;

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::poll::PollPlane;
use crate::ports::Port;
use machine::ids::ConnId;
use machine::limits::BACKLOG_DEFAULT;

use super::{Completion, CompletionKey, Plane, PlaneConfig, RingPlane, RingUses, eventfd, listen, local_address};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const ALL_USES: RingUses = RingUses { asks_addresses: true, freezes: true };

/// A plane of these tests.
pub(crate) trait TestPlane: Plane + Sized {
    fn open(config: PlaneConfig, event: BorrowedFd<'_>) -> Self;
}

impl TestPlane for RingPlane {
    fn open(config: PlaneConfig, event: BorrowedFd<'_>) -> RingPlane {
        RingPlane::new(config, ALL_USES, event).unwrap()
    }
}

impl TestPlane for PollPlane {
    fn open(config: PlaneConfig, event: BorrowedFd<'_>) -> PollPlane {
        PollPlane::new(config, event).unwrap()
    }
}

/// A plane with one listener armed in ring 0.
pub(crate) struct Kit<P = RingPlane> {
    pub plane: P,
    event: OwnedFd,
    listener: OwnedFd,
    address: SocketAddr,
}

impl<P: TestPlane> Kit<P> {
    pub fn new(rings: u16, table: u32) -> Kit<P> {
        let event = eventfd().unwrap();
        let mut plane = P::open(PlaneConfig { rings, table, sq: 64, cq: 256 }, event.as_fd());
        let listener = listen("127.0.0.1:0".parse().unwrap(), Port::WebSocket, BACKLOG_DEFAULT).unwrap();
        let address = local_address(&listener).unwrap();
        plane.accept(0, 0, 0, listener.as_fd());
        plane.enter();
        Kit { plane, event, listener, address }
    }

    /// A client, and the name of its server side.
    pub fn connect(&mut self) -> (TcpStream, ConnId) {
        self.connect_in(0)
    }

    /// A client whose server side is in the ring in which the listener is armed.
    fn connect_in(&mut self, armed: u16) -> (TcpStream, ConnId) {
        let client = TcpStream::connect(self.address).unwrap();
        let direct = self.until("accept", |completion| match completion {
            Completion::Accepted { ring, result, .. } if ring == armed => Some(result as u32),
            _ => None,
        });
        self.plane.accept(armed, u32::from(armed > 0), 0, self.listener.as_fd());
        (client, ConnId { slot: self.plane.slot(armed, direct), generation: 0 })
    }

    /// Arms the listener in the next ring instead.
    fn arm_next(&mut self, ring: u16) {
        self.plane.accept(ring, 1, 0, self.listener.as_fd());
        self.plane.cancel_accepts(ring - 1, u32::from(ring > 1), 0);
        self.plane.enter();
        self.until("cancel", |completion| match completion {
            Completion::Accepted { result, .. } => (result == -libc::ECANCELED).then_some(()),
            _ => None,
        });
    }

    /// Enters until a completion is what is waited for.
    pub fn until<T>(&mut self, what: &str, mut wanted: impl FnMut(Completion) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            self.plane.enter();
            while let Some(completion) = self.plane.next() {
                if let Some(found) = wanted(completion) {
                    return found;
                }
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: did not happen");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Waits for what the kernel does by itself: on a busy host it hands a segment on when it comes to it.
    pub fn eventually(&mut self, what: &str, mut done: impl FnMut(&mut Kit<P>) -> bool) {
        let begun = Instant::now();
        while !done(self) {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn closed(&mut self, conn: ConnId) {
        let done = CompletionKey { slot: conn.slot, generation: 0 };
        self.until("close", |completion| match completion {
            Completion::Closed { done: closed, result: 0 } if closed == done => Some(()),
            _ => None,
        });
    }
}

/// Returns the peer's view within `wait`: the end of the stream, an error, or nothing.
pub(crate) fn ending(client: &mut TcpStream, wait: Duration) -> Option<Result<(), ErrorKind>> {
    client.set_read_timeout(Some(wait)).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match client.read(&mut buffer) {
            Ok(0) => return Some(Ok(())),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            // Work that the kernel does for the rings of this thread interrupts a wait with a limit.
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Some(Err(error.kind())),
        }
    }
}
