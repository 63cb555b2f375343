//! Agents that are connecting: which of them try again, and at what time. The pause after an attempt that failed, and
//! the number of attempts, are the caller's policy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::traffic::Traffic;
use crate::fleet::AgentEvent;

/// The arrivals of some agents. `P` returns the pause of an agent before its next attempt after a number of ends, or
/// `None` to give up.
#[derive(Debug)]
pub(super) struct Arrivals<P> {
    agents: Range<usize>,
    pause: P,
    /// Number of ended connections of each agent.
    ends: Vec<u8>,
    /// Agents whose next attempt has a time, the earliest first.
    waiting: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Time at which the last agent arrived.
    progress: Instant,
    /// Attempts of agents that waited.
    pub attempts: u64,
    /// Number of agents that arrived.
    pub came: u64,
    /// Number of agents that will not arrive.
    pub gave_up: u64,
    /// Times at which sessions ended that were not the scenario's to end.
    pub lost: Vec<Instant>,
}

impl<P: Fn(usize, u8) -> Option<Duration>> Arrivals<P> {
    /// No agent waits yet. Agents outside `agents` are ignored.
    pub fn new(agents: Range<usize>, pause: P) -> Arrivals<P> {
        Arrivals {
            pause,
            ends: vec![0; agents.len()],
            agents,
            waiting: BinaryHeap::new(),
            progress: Instant::now(),
            attempts: 0,
            came: 0,
            gave_up: 0,
            lost: Vec::new(),
        }
    }

    /// Sets the time of this agent's next attempt.
    pub fn expect(&mut self, agent: usize, at: Instant) {
        self.waiting.push(Reverse((at, agent)));
    }

    /// Launches the agents that are due, lets all clients work for a moment, until `by` at the latest, and takes in the
    /// results. `came` is called with each agent that arrived, the time of that, and the time that its hello took.
    pub fn turn(
        &mut self,
        traffic: &mut Traffic,
        by: Option<Instant>,
        mut came: impl FnMut(usize, Instant, Duration),
    ) -> io::Result<()> {
        let now = Instant::now();
        while let Some(agent) = self.due(now) {
            self.attempts += 1;
            traffic.driver.agents.launch([agent]);
        }
        let waiting = self.waiting.peek().map(|next| next.0.0);
        let until = [by, waiting].into_iter().flatten().fold(now + TURN, Instant::min);
        traffic.turn_by(until)?;
        let now = Instant::now();
        for happening in std::mem::take(&mut traffic.others) {
            match happening {
                AgentEvent::Ready { agent, hello } => {
                    (self.came, self.progress) = (self.came + 1, now);
                    came(agent, now, hello);
                }
                AgentEvent::Ended { agent, was_ready, .. } => {
                    self.lost.extend(was_ready.then_some(now));
                    self.ended(agent, now);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if no agent has arrived for this long.
    pub fn has_stalled(&self, patience: Duration) -> bool {
        self.progress.elapsed() > patience
    }

    /// Takes one whose time has come.
    fn due(&mut self, now: Instant) -> Option<usize> {
        self.waiting.peek().filter(|next| next.0.0 <= now)?;
        self.waiting.pop().map(|Reverse((_, agent))| agent)
    }

    fn ended(&mut self, agent: usize, now: Instant) {
        if !self.agents.contains(&agent) {
            return;
        }
        let ends = &mut self.ends[agent - self.agents.start];
        match (self.pause)(agent, *ends) {
            Some(pause) => self.waiting.push(Reverse((now + pause, agent))),
            None => self.gave_up += 1,
        }
        *ends = ends.saturating_add(1);
    }
}

/// Time that clients work before their events are read.
const TURN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_fails_tries_again_after_its_pause_until_it_gives_up() {
        let now = Instant::now();
        let pause = |agent, ends: u8| (ends < 2).then_some(Duration::from_secs(agent as u64 + u64::from(ends)));
        let mut arrivals = Arrivals::new(5..8, pause);
        arrivals.ended(7, now);
        arrivals.ended(5, now);
        arrivals.ended(4, now);
        assert_eq!(arrivals.due(now + Duration::from_secs(4)), None);
        let later = now + Duration::from_secs(7);
        assert_eq!([arrivals.due(later), arrivals.due(later), arrivals.due(later)], [Some(5), Some(7), None]);
        arrivals.ended(5, later);
        assert_eq!(arrivals.due(later + Duration::from_secs(5)), None, "its second pause is longer");
        assert_eq!(arrivals.due(later + Duration::from_secs(6)), Some(5));
        arrivals.ended(5, later);
        assert_eq!((arrivals.due(later + Duration::from_secs(60)), arrivals.gave_up), (None, 1));
    }
}
