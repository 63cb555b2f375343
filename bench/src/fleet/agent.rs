//! State of an agent: 28 bytes, and more only while it needs more.

use std::time::Instant;

use super::endpoints::NONE as NO_ENDPOINT;
use super::user_data::ConnKey;

/// Event that an agent waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Phase {
    Absent,
    Upgrading,
    Greeting,
    Registering,
    Subscribing,
    Idle,
}

/// One user agent.
pub(super) struct Agent {
    uaid: [u8; 16],
    /// First of its chain in `Endpoints`.
    pub endpoints: u32,
    /// Its entry in [`Sides`].
    pub side: u32,
    pub generation: u16,
    pub phase: Phase,
    flags: u8,
}

const _: () = assert!(size_of::<Agent>() == 28, "28 MB for a million agents");

const KNOWN: u8 = 1;
const RENAMED: u8 = 1 << 1;
const REGISTERING: u8 = 1 << 2;

impl Agent {
    pub fn new() -> Agent {
        Agent { uaid: [0; 16], endpoints: NO_ENDPOINT, side: NO_SIDE, generation: 0, phase: Phase::Absent, flags: 0 }
    }

    pub fn name(&self, agent: u32) -> ConnKey {
        ConnKey { agent, generation: self.generation }
    }

    /// The UAID it says hello with.
    pub fn uaid(&self) -> Option<[u8; 16]> {
        (self.flags & KNOWN != 0).then_some(self.uaid)
    }

    pub fn set_uaid(&mut self, uaid: Option<[u8; 16]>) {
        self.set(KNOWN, uaid.is_some());
        self.uaid = uaid.unwrap_or_default();
    }

    /// The answer of a hello; true when another UAID was offered.
    pub fn greeted(&mut self, uaid: [u8; 16]) -> bool {
        let renamed = self.uaid().is_some_and(|offered| offered != uaid);
        self.set(RENAMED, renamed);
        self.set_uaid(Some(uaid));
        renamed
    }

    pub fn renamed(&self) -> bool {
        self.flags & RENAMED != 0
    }

    /// A `register` beside the plan is under way.
    pub fn registering(&self) -> bool {
        self.flags & REGISTERING != 0
    }

    pub fn set_registering(&mut self, registering: bool) {
        self.set(REGISTERING, registering);
    }

    fn set(&mut self, flag: u8, on: bool) {
        self.flags = if on { self.flags | flag } else { self.flags & !flag };
    }
}

/// State that an agent needs while it connects, while a message is half received, and while the socket is full.
pub(super) struct Side {
    pub upgraded: Instant,
    pub greeted: Instant,
    /// Number of the plan's channels that this connection still registers.
    pub to_register: usize,
    pub inbox: Vec<u8>,
    pub outbox: Vec<u8>,
    /// TLS only: the start of a record.
    pub sealed: Vec<u8>,
}

impl Side {
    pub fn new(now: Instant) -> Side {
        let (inbox, outbox, sealed) = (Vec::new(), Vec::new(), Vec::new());
        Side { upgraded: now, greeted: now, to_register: 0, inbox, outbox, sealed }
    }
}

/// No entry.
pub(super) const NO_SIDE: u32 = u32::MAX;
/// Entries that are kept when no agent has one.
const SIDES_KEPT: usize = 1_024;

/// All sides.
pub(super) struct Sides {
    entries: Vec<Option<Side>>,
    free: Vec<u32>,
}

impl Sides {
    pub fn new() -> Sides {
        Sides { entries: Vec::new(), free: Vec::new() }
    }

    pub fn add(&mut self, side: Side) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = Some(side);
                at
            }
            None => {
                self.entries.push(Some(side));
                self.entries.len() as u32 - 1
            }
        }
    }

    pub fn get(&mut self, at: u32) -> Option<&mut Side> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    /// The entry at `at`, which becomes a new one when there is none.
    pub fn get_or_add(&mut self, at: &mut u32, now: Instant) -> &mut Side {
        if self.get(*at).is_none() {
            *at = self.add(Side::new(now));
        }
        self.entries[*at as usize].get_or_insert_with(|| Side::new(now))
    }

    /// Takes an entry out. When it was the last, what a burst needed is given back.
    pub fn remove(&mut self, at: u32) -> Option<Side> {
        let side = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        if self.free.len() == self.entries.len() && self.entries.len() > SIDES_KEPT {
            *self = Sides::new();
        }
        Some(side)
    }

    /// Entries that are in use, and that there is room for.
    #[cfg(test)]
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.len() - self.free.len(), self.entries.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_used_again_and_a_burst_is_given_back() {
        let mut sides = Sides::new();
        let side = || Side::new(Instant::now());
        let first = sides.add(side());
        assert!(sides.remove(first).is_some() && sides.remove(first).is_none());
        assert_eq!(sides.add(side()), first);
        let more: Vec<u32> = (0..5_000).map(|_| sides.add(side())).collect();
        assert_eq!(sides.counts().0, 5_001);
        for at in more {
            sides.remove(at);
        }
        assert!(sides.counts().1 > 5_000);
        sides.remove(first);
        assert_eq!(sides.counts(), (0, 0));
        assert!(sides.get(NO_SIDE).is_none() && sides.remove(NO_SIDE).is_none());
    }

    #[test]
    fn an_agent_knows_when_it_was_renamed() {
        let mut agent = Agent::new();
        assert!(agent.uaid().is_none() && !agent.greeted([1; 16]) && !agent.renamed());
        assert!(!agent.greeted([1; 16]) && agent.greeted([2; 16]) && agent.renamed());
        agent.set_uaid(None);
        assert!(!agent.greeted([3; 16]) && !agent.renamed());
        agent.set_registering(true);
        agent.set_registering(false);
        assert!(!agent.registering() && agent.uaid() == Some([3; 16]));
    }
}
