//! Bytes of one connection that were received and are not decoded: half a request, or what came behind one.

use crate::quota::{Quota, Share};

/// The bytes, and their part of what the connections of the shard may keep aside together. Counted is the memory, not
/// what is in it: what was drained and not given back is held all the same. An empty one holds none.
pub(crate) struct PendingInput {
    bytes: Vec<u8>,
    share: Share,
}

/// Bytes that an inbox keeps of memory that is mostly unused.
const KEPT_BYTES: usize = 8 * 1024;

impl PendingInput {
    pub(crate) fn new(quota: &Quota) -> PendingInput {
        PendingInput { bytes: Vec::new(), share: quota.share() }
    }

    /// Charges the memory to another quota from now on.
    pub(crate) fn charge_to(&mut self, quota: &Quota) {
        self.share = quota.share();
        self.share.set(self.bytes.capacity());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes, oldest first; an edge may unmask them where they are.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Memory it holds, in bytes.
    pub(crate) fn held(&self) -> usize {
        self.share.bytes()
    }

    /// Appends what was received.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.share.set(self.bytes.capacity());
    }

    /// Puts what is older in front.
    pub(crate) fn keep_first(&mut self, bytes: &[u8]) {
        self.bytes.splice(..0, bytes.iter().copied());
        self.share.set(self.bytes.capacity());
    }

    /// Drops `len` bytes from the front, and the memory if most of it is unused now.
    pub(crate) fn consume(&mut self, len: usize) {
        self.bytes.drain(..len);
        if self.bytes.is_empty() {
            drop(self.take());
        } else if self.bytes.capacity() / 4 > self.bytes.len() {
            self.bytes.shrink_to(KEPT_BYTES);
            self.share.set(self.bytes.capacity());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.share.set(0);
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_holds_is_counted_as_it_grows_and_shrinks() {
        let quota = Quota::new(1 << 20);
        let mut input = PendingInput::new(&quota);
        assert_eq!(quota.used(), 0, "an empty one has no memory");
        for _ in 0..64 {
            input.keep(&[b'x'; 1_024]);
            assert!(quota.used() == input.held() && input.held() >= input.bytes().len());
        }
        input.keep_first(b"older");
        assert!(input.bytes().starts_with(b"olderx"));
        input.consume(64 * 1_024);
        assert_eq!((input.bytes().len(), quota.used()), (5, KEPT_BYTES), "one byte must not hold 64 KiB");
        assert_eq!(input.take(), b"xxxxx");
        assert_eq!(quota.used(), 0);
        input.keep(b"more");
        input.consume(4);
        assert_eq!(quota.used(), 0, "an empty one has no memory");
        input.keep(b"more");
        drop(input);
        assert_eq!(quota.used(), 0);
    }
}
