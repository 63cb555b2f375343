//! Memory of queues that a burst has filled.

use std::collections::VecDeque;

/// Gives back what a burst made a queue grow to, once it is mostly over: idle sessions do not pay for a storm.
pub(in crate::shard) fn give_back<T>(queue: &mut VecDeque<T>) {
    if queue.capacity() > QUEUE_KEPT && queue.len() < queue.capacity() / 4 {
        queue.shrink_to(QUEUE_KEPT.max(queue.len() * 2));
    }
}

/// Entries for which a queue keeps room at all times.
const QUEUE_KEPT: usize = 256;
