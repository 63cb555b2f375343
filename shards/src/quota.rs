//! A bound on what many hold together: bytes of unfinished input, of the connections of a shard.
//!
//! Lives on: the thread of its shard. What it counts is exact: a [`Share`] gives back what it has when it is dropped.

use std::cell::Cell;
use std::rc::Rc;

/// So much may be held together.
///
/// Half of it is for who holds little (at most [`LITTLE_BYTES`]), so that a few with long messages do not shut out the
/// many with short ones.
#[derive(Clone, Debug)]
pub struct Quota {
    used: Rc<Cell<usize>>,
    bytes_max: usize,
}

/// A notification and its head fit, and so does every message of a well-behaved user agent.
pub const LITTLE_BYTES: usize = 8 * 1024;

impl Quota {
    /// Nothing is held yet.
    pub fn new(bytes_max: usize) -> Quota {
        Quota { used: Rc::new(Cell::new(0)), bytes_max }
    }

    /// The part of one holder, who has nothing yet.
    pub fn share(&self) -> Share {
        Share { used: Rc::clone(&self.used), bytes: 0 }
    }

    /// Bytes that all hold together.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// Whether a holder who had `before` bytes must let go, now that it has `bytes`: it took more, and that is too
    /// much. Who takes nothing more may keep what it has.
    pub fn refuses(&self, before: usize, bytes: usize) -> bool {
        let bytes_max = if bytes <= LITTLE_BYTES { self.bytes_max } else { self.bytes_max / 2 };
        bytes > before && self.used() > bytes_max
    }
}

/// What one holder has of a [`Quota`].
#[derive(Debug)]
pub struct Share {
    used: Rc<Cell<usize>>,
    bytes: usize,
}

impl Share {
    /// It has so many bytes now.
    pub fn set(&mut self, bytes: usize) {
        self.used.set(self.used.get() - self.bytes + bytes);
        self.bytes = bytes;
    }

    /// How many bytes it has.
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
    fn who_holds_much_has_half_of_it_and_who_takes_nothing_more_is_left_alone() {
        let quota = Quota::new(8 * LITTLE_BYTES);
        let mut long = quota.share();
        long.set(4 * LITTLE_BYTES);
        assert!(!quota.refuses(0, 4 * LITTLE_BYTES), "the bound itself may be reached");
        long.set(4 * LITTLE_BYTES + 1);
        assert!(quota.refuses(4 * LITTLE_BYTES, 4 * LITTLE_BYTES + 1));
        assert!(!quota.refuses(4 * LITTLE_BYTES + 1, 4 * LITTLE_BYTES + 1), "it took nothing");
        let mut short: Vec<Share> = (0..3).map(|_| quota.share()).collect();
        for share in &mut short {
            share.set(LITTLE_BYTES);
            assert!(!quota.refuses(0, LITTLE_BYTES));
        }
        let mut beyond = quota.share();
        beyond.set(LITTLE_BYTES);
        assert!(quota.refuses(0, LITTLE_BYTES));
    }
}
