//! A bound on the bytes that many holders have together: bytes of unfinished input, of the connections of a shard.
//!
//! Lives on: the thread of its shard. What it counts is exact: a [`Share`] gives back what it has when it is dropped.

use std::cell::Cell;
use std::rc::Rc;

use machine::limits::SMALL_HOLDER_BYTES_MAX;

use crate::ports::Port;

/// A number of bytes that many may hold together.
///
/// Half of it is for holders of little (at most [`SMALL_HOLDER_BYTES_MAX`]), so that a few with long messages do not
/// shut out the many with short ones.
#[derive(Clone, Debug)]
pub struct Quota {
    used: Rc<Cell<usize>>,
    bytes_max: usize,
}

impl Quota {
    pub fn new(bytes_max: usize) -> Quota {
        Quota { used: Rc::new(Cell::new(0)), bytes_max }
    }

    /// The part of one holder, which has nothing yet.
    pub fn share(&self) -> Share {
        Share { used: Rc::clone(&self.used), bytes: 0 }
    }

    /// Bytes that all hold together.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Returns true if more than three quarters are held: the oldest holders should then go, so that new ones find
    /// room.
    pub fn is_tight(&self) -> bool {
        self.used() > self.bytes_max / 4 * 3
    }

    /// Returns true if a holder that had `before` bytes and now has `bytes` must let go: it took more, and that is too
    /// much. A holder that takes nothing more may keep its bytes.
    pub fn refuses(&self, before: usize, bytes: usize) -> bool {
        let bytes_max = if bytes <= SMALL_HOLDER_BYTES_MAX { self.bytes_max } else { self.bytes_max / 2 };
        bytes > before && self.used() > bytes_max
    }
}

/// One quota for each port, so that the peers of one port cannot use up the memory of another.
///
/// User agents are by far the most, so WebSockets have half of the bytes. App servers have three eighths, and other
/// nodes, which are few, one eighth.
#[derive(Clone, Debug)]
pub struct PortQuotas {
    websocket: Quota,
    endpoint: Quota,
    node: Quota,
}

impl PortQuotas {
    /// Divides `bytes_max` among the ports.
    pub fn new(bytes_max: usize) -> PortQuotas {
        let eighth = bytes_max / 8;
        PortQuotas { websocket: Quota::new(4 * eighth), endpoint: Quota::new(3 * eighth), node: Quota::new(eighth) }
    }

    /// Returns the quota of connections of this port.
    pub fn of(&self, port: Port) -> &Quota {
        match port {
            Port::WebSocket => &self.websocket,
            // What is not whole there is the body of an app server.
            Port::Endpoint | Port::Public => &self.endpoint,
            Port::Node => &self.node,
        }
    }

    /// Returns the bytes that connections of all ports hold together.
    pub fn used(&self) -> usize {
        self.websocket.used() + self.endpoint.used() + self.node.used()
    }
}

/// Bytes that one holder has of a [`Quota`].
#[derive(Debug)]
pub struct Share {
    used: Rc<Cell<usize>>,
    bytes: usize,
}

impl Share {
    pub fn set(&mut self, bytes: usize) {
        self.used.set(self.used.get() - self.bytes + bytes);
        self.bytes = bytes;
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back() {
        let quota = Quota::new(100);
        let (mut one, mut other) = (quota.share(), quota.share());
        one.set(70);
        other.set(20);
        one.set(40);
        assert_eq!((quota.used(), one.bytes()), (60, 40));
        drop(one);
        assert_eq!(quota.used(), 20);
        drop(other);
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn a_port_that_is_full_leaves_the_others_theirs() {
        let quotas = PortQuotas::new(16 * SMALL_HOLDER_BYTES_MAX);
        let mut held: Vec<Share> = (0..8).map(|_| quotas.of(Port::WebSocket).share()).collect();
        held.iter_mut().for_each(|share| share.set(SMALL_HOLDER_BYTES_MAX));
        let mut beyond = quotas.of(Port::WebSocket).share();
        beyond.set(1);
        assert!(quotas.of(Port::WebSocket).refuses(0, 1));
        for (port, most) in [(Port::Endpoint, 6), (Port::Node, 2)] {
            let mut others: Vec<Share> = (0..most).map(|_| quotas.of(port).share()).collect();
            for share in &mut others {
                share.set(SMALL_HOLDER_BYTES_MAX);
                assert!(!quotas.of(port).refuses(0, SMALL_HOLDER_BYTES_MAX), "{port:?}");
            }
        }
        assert_eq!(quotas.used(), 8 * SMALL_HOLDER_BYTES_MAX + 1, "those of the other ports have given theirs back");
    }

    #[test]
    fn who_holds_much_has_half_of_it_and_who_takes_nothing_more_is_left_alone() {
        let quota = Quota::new(8 * SMALL_HOLDER_BYTES_MAX);
        let mut long = quota.share();
        long.set(4 * SMALL_HOLDER_BYTES_MAX);
        assert!(!quota.refuses(0, 4 * SMALL_HOLDER_BYTES_MAX), "the bound itself may be reached");
        long.set(4 * SMALL_HOLDER_BYTES_MAX + 1);
        assert!(quota.refuses(4 * SMALL_HOLDER_BYTES_MAX, 4 * SMALL_HOLDER_BYTES_MAX + 1));
        assert!(!quota.refuses(4 * SMALL_HOLDER_BYTES_MAX + 1, 4 * SMALL_HOLDER_BYTES_MAX + 1), "it took nothing");
        let mut short: Vec<Share> = (0..3).map(|_| quota.share()).collect();
        for share in &mut short {
            share.set(SMALL_HOLDER_BYTES_MAX);
            assert!(!quota.refuses(0, SMALL_HOLDER_BYTES_MAX));
        }
        let mut beyond = quota.share();
        beyond.set(SMALL_HOLDER_BYTES_MAX);
        assert!(quota.refuses(0, SMALL_HOLDER_BYTES_MAX));
    }
}
