//! Queue of agents that connect next, with the times at which they should.

use std::collections::VecDeque;
use std::time::Instant;

/// Some agents in a row that are due at one time.
struct Due {
    at: Instant,
    left: usize,
}

/// The agents to connect, first come, first served: four bytes each.
pub(super) struct Queue {
    agents: VecDeque<u32>,
    due: VecDeque<Due>,
}

impl Queue {
    pub fn new() -> Queue {
        Queue { agents: VecDeque::new(), due: VecDeque::new() }
    }

    /// Agents that wait.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Queues these, due now.
    pub fn add(&mut self, agents: impl IntoIterator<Item = usize>, now: Instant) {
        let before = self.agents.len();
        self.agents.extend(agents.into_iter().map(|agent| agent as u32));
        let left = self.agents.len() - before;
        if left > 0 {
            self.due.push_back(Due { at: now, left });
        }
    }

    /// Time at which the first was due.
    pub fn due(&self) -> Option<Instant> {
        self.due.front().map(|due| due.at)
    }

    /// The first, and the time at which it was due.
    pub fn next(&mut self) -> Option<(u32, Instant)> {
        let due = self.due.front_mut()?;
        let at = due.at;
        due.left -= 1;
        if due.left == 0 {
            self.due.pop_front();
        }
        let agent = self.agents.pop_front()?;
        if self.agents.is_empty() {
            self.agents = VecDeque::new();
        }
        Some((agent, at))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_keeps_the_time_at_which_it_was_queued() {
        let first = Instant::now();
        let second = first + Duration::from_secs(1);
        let mut queue = Queue::new();
        queue.add(0..2, first);
        queue.add([], first);
        queue.add([7], second);
        assert_eq!((queue.len(), queue.due()), (3, Some(first)));
        assert_eq!((queue.next(), queue.next()), (Some((0, first)), Some((1, first))));
        assert_eq!((queue.due(), queue.next(), queue.next(), queue.len()), (Some(second), Some((7, second)), None, 0));
    }
}
