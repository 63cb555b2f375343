//! Queue of agents that connect next, with the times at which they should.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Some agents in a row that follow one schedule.
struct ScheduleSegment {
    begin: Instant,
    /// Seconds from one to the next; 0 for all at once.
    interval: f64,
    queued: usize,
    started: usize,
}

impl ScheduleSegment {
    fn due(&self) -> Instant {
        self.begin + Duration::from_secs_f64(self.interval * self.started as f64)
    }
}

/// The agents to connect, first come, first served: four bytes each.
pub(super) struct Queue {
    agents: VecDeque<u32>,
    stretches: VecDeque<ScheduleSegment>,
}

impl Queue {
    pub fn new() -> Queue {
        Queue { agents: VecDeque::new(), stretches: VecDeque::new() }
    }

    /// Agents that wait.
    pub fn len(&self) -> usize {
        self.agents.len()
    }

    /// Queues these: the first at `begin`, the others at `per_second`, or all at once.
    pub fn add(&mut self, agents: impl IntoIterator<Item = usize>, begin: Instant, per_second: Option<f64>) {
        let before = self.agents.len();
        self.agents.extend(agents.into_iter().map(|agent| agent as u32));
        let interval = per_second.map_or(0.0, |rate| 1.0 / rate.max(1e-6));
        let queued = self.agents.len() - before;
        if queued > 0 {
            self.stretches.push_back(ScheduleSegment { begin, interval, queued, started: 0 });
        }
    }

    /// Time at which the first is due.
    pub fn due(&self) -> Option<Instant> {
        self.stretches.front().map(ScheduleSegment::due)
    }

    /// The first, when it is due, and the time at which it was due.
    pub fn next(&mut self, now: Instant) -> Option<(u32, Instant)> {
        let stretch = self.stretches.front_mut()?;
        let due = stretch.due();
        if due > now {
            return None;
        }
        stretch.started += 1;
        if stretch.started == stretch.queued {
            self.stretches.pop_front();
        }
        let agent = self.agents.pop_front()?;
        if self.agents.is_empty() {
            self.agents = VecDeque::new();
        }
        Some((agent, due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_instant_however_late_it_is_asked_for() {
        let begin = Instant::now();
        let mut queue = Queue::new();
        queue.add(0..3, begin, Some(10.0));
        queue.add([], begin, None);
        queue.add([7, 8], begin, None);
        assert_eq!((queue.len(), queue.due()), (5, Some(begin)));
        assert_eq!(queue.next(begin), Some((0, begin)));
        assert_eq!(queue.next(begin), None, "the next one is due 100 ms later");
        let late = begin + Duration::from_secs(9);
        let tenth = Duration::from_millis(100);
        assert_eq!(queue.next(late), Some((1, begin + tenth)));
        assert_eq!(queue.next(late), Some((2, begin + tenth * 2)));
        assert_eq!((queue.next(late), queue.next(late)), (Some((7, begin)), Some((8, begin))));
        assert_eq!((queue.next(late), queue.due(), queue.len()), (None, None, 0));
    }
}
