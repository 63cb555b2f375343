//! Probes of frozen sessions in place of Pings, and the Ping itself where the peer does not answer in time.
//!
//! A probe is one segment, and so is its answer: one of them may be lost, or reach a socket that was thawed meanwhile.
//! A Ping is sent again by the kernel until the peer has it.

use std::collections::VecDeque;

use hashbrown::HashMap;

use crate::ports::{Edge, Probes};
use crate::ring::{Flags, State};
use machine::ids::ConnId;
use machine::time::{Instant, TimeSpan};
use machine::{AgentCommand, AgentEvent, Event, Input};

use super::frozen_table::Kept;
use super::{Machine, Reactor};

/// Pings in place of probes without an answer that one turn sends.
const PINGS_PER_TURN: usize = 64;

/// The probes of a shard.
pub(super) struct Prober {
    probes: Probes,
    /// Connections by slot whose peer has not answered.
    unanswered: HashMap<u32, ConnId>,
    /// Every probe, with the time at which its answer is due: the oldest first.
    due: VecDeque<(Instant, ConnId)>,
}

impl Prober {
    pub(super) fn new(probes: Probes) -> Prober {
        Prober { probes, unanswered: HashMap::new(), due: VecDeque::new() }
    }

    /// Time for the answer to a probe.
    pub(super) fn answer_within(&self) -> TimeSpan {
        self.probes.answer_within
    }

    /// Time at which the next answer is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Returns a connection whose answer was due by now and has not come.
    fn overdue(&mut self, now: Instant) -> Option<ConnId> {
        while let Some((_, conn)) = self.due.pop_front_if(|(at, _)| *at <= now) {
            if self.unanswered.get(&conn.slot) == Some(&conn) {
                self.unanswered.remove(&conn.slot);
                return Some(conn);
            }
        }
        None
    }

    /// Gives back what a crowd of probes needed.
    pub(super) fn trim(&mut self) {
        super::super::trim(&mut self.due);
        if self.unanswered.capacity() > 1_024 && self.unanswered.len() < self.unanswered.capacity() / 4 {
            self.unanswered.shrink_to(self.unanswered.capacity() / 2);
        }
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Sends a probe in place of a Ping to a frozen session. Returns false if the Ping itself is due.
    pub(in crate::reactor) fn probe(&mut self, conn: ConnId, event: &Event) -> bool {
        let (now, now_ms) = (self.now.mono, self.now_ms());
        let Some(hibernator) = &mut self.hibernator else { return false };
        let (Some(prober), Event::Agent(AgentEvent::Ping)) = (&mut hibernator.prober, event) else { return false };
        let Some(entry) = self.conns.get(conn).filter(|entry| entry.state == State::Frozen) else { return false };
        let silence = TimeSpan::from_ms(u64::from(now_ms.wrapping_sub(entry.since)));
        let Some(Kept { frozen, .. }) = hibernator.frozen.get(conn.slot) else { return false };
        if silence >= prober.probes.ping_after || prober.probes.prober.send(frozen).is_err() {
            return false;
        }
        prober.unanswered.insert(conn.slot, conn);
        prober.due.push_back((now.after(prober.probes.answer_within), conn));
        self.stats.probes += 1;
        true
    }

    /// The kernel of a peer has given a sign of life. To the machine it is a Pong, unless a command of the session is
    /// under way: then it has heard of it anyway.
    pub(super) fn answered_probe(&mut self, conn: ConnId) {
        self.stats.probes_answered += 1;
        if let Some(prober) = self.hibernator.as_mut().and_then(|hibernator| hibernator.prober.as_mut()) {
            prober.unanswered.remove(&conn.slot);
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.flags.has(Flags::KNOWN) && !entry.flags.has(Flags::BUSY) {
            entry.flags.set(Flags::BUSY);
            self.inputs.push_back(Input::Command { conn, command: AgentCommand::Pong.into() });
            self.drive();
        }
    }

    /// Sends the Ping itself to sessions whose probe was not answered in time. Returns true if there was one.
    pub(super) fn ping_unanswered(&mut self) -> bool {
        let now = self.now.mono;
        let mut pinged = 0;
        while pinged < PINGS_PER_TURN
            && let Some(prober) = self.hibernator.as_mut().and_then(|hibernator| hibernator.prober.as_mut())
            && let Some(conn) = prober.overdue(now)
        {
            pinged += 1;
            // Else it has ended meanwhile.
            if self.conns.get(conn).is_some() {
                self.stats.probes_unanswered += 1;
                self.write_event(conn, &AgentEvent::Ping.into());
            }
        }
        pinged > 0
    }
}
