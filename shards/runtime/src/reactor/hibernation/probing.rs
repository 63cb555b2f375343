//! Probes of frozen sessions in place of Pings, and the Ping itself where the peer does not answer in time.
//!
//! A probe is one segment, and so is its answer: one of them may be lost, or reach a socket that was thawed meanwhile.
//! A Ping is sent again by the kernel until the peer has it.

use crate::ports::Edge;
use crate::ring::{Flags, State};
use machine::ids::ConnId;
use machine::time::TimeSpan;
use machine::{AgentCommand, AgentEvent, Event};

use super::frozen_table::Kept;
use super::{Machine, Reactor};

/// Pings in place of probes without an answer that one turn sends.
const PINGS_PER_TURN: usize = 64;

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Sends a probe in place of a Ping to a frozen session. Returns false if the Ping itself is due.
    pub(in crate::reactor) fn probe(&mut self, conn: ConnId, event: &Event) -> bool {
        let (now, now_ms) = (self.now.mono, self.now_ms());
        let Some(hibernator) = &mut self.hibernator else { return false };
        let (Some(probes), Event::Agent(AgentEvent::Ping)) = (&mut hibernator.probes, event) else { return false };
        let Some(entry) = self.conns.get(conn).filter(|entry| entry.state == State::Frozen) else { return false };
        let silence = TimeSpan::from_ms(u64::from(now_ms.wrapping_sub(entry.since)));
        let Some(Kept { frozen, .. }) = hibernator.frozen.get(conn.slot) else { return false };
        let sent = probes.send(now, silence, conn, frozen);
        self.stats.probes += u64::from(sent);
        sent
    }

    /// The kernel of a peer has given a sign of life. To the machine it is a Pong, unless a command of the session is
    /// under way: then it has heard of it anyway.
    pub(super) fn answered_probe(&mut self, conn: ConnId) {
        self.stats.probes_answered += 1;
        if let Some(probes) = self.hibernator.as_mut().and_then(|hibernator| hibernator.probes.as_mut()) {
            probes.answered(conn);
        }
        let Some(entry) = self.conns.get_mut(conn) else { return };
        if entry.flags.has(Flags::KNOWN) && !entry.flags.has(Flags::BUSY) {
            entry.flags.set(Flags::BUSY);
            self.command(conn, AgentCommand::Pong);
            self.drive();
        }
    }

    /// Sends the Ping itself to sessions whose probe was not answered in time. Returns true if there was one.
    pub(super) fn ping_unanswered(&mut self) -> bool {
        let now = self.now.mono;
        let mut pinged = 0;
        while pinged < PINGS_PER_TURN
            && let Some(probes) = self.hibernator.as_mut().and_then(|hibernator| hibernator.probes.as_mut())
            && let Some(conn) = probes.overdue(now)
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
