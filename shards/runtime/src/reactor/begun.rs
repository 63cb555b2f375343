//! Requests and messages that are begun and not whole, oldest first.
//!
//! If they hold three quarters of the memory of their port, the oldest are ended. So a stranger who begins very many
//! and finishes none loses them, and a request that is whole after some round trips is served: to push it out, the
//! stranger must send as much as the port may hold within that time. Were the newest refused instead, they would be
//! refused for as long as the stranger holds the memory.

use std::collections::VecDeque;

use crate::ports::{Edge, Port};
use crate::ring::{Conns, Flags, State};
use machine::CloseReason;
use machine::ids::ConnId;

use super::{Machine, Reactor};

/// Connections of one port in the order in which their input was begun. Those that have finished stay in it until it is
/// tidied, so that finishing costs nothing.
#[derive(Default)]
pub(super) struct Begun {
    line: VecDeque<(ConnId, u32)>,
    /// Its length beyond which it is tidied: twice what was left the last time.
    tidy_at: usize,
}

/// A line that is not longer is not tidied.
const TIDY_MIN: usize = 1_024;

/// Connections that one step may end at most. Those of a stranger who sent one byte on each hold little.
const ENDED_PER_STEP: usize = 256;

impl Begun {
    fn add<C>(&mut self, conns: &Conns<C>, begun: (ConnId, u32)) {
        self.line.push_back(begun);
        if self.line.len() > self.tidy_at {
            self.line.retain(|begun| is_begun(conns, *begun));
            self.line.shrink_to(TIDY_MIN);
            self.tidy_at = (2 * self.line.len()).max(TIDY_MIN);
        }
    }

    /// Takes out the oldest that is still unfinished.
    fn take<C>(&mut self, conns: &Conns<C>) -> Option<ConnId> {
        std::iter::from_fn(|| self.line.pop_front()).find(|begun| is_begun(conns, *begun)).map(|(conn, _)| conn)
    }
}

fn is_begun<C>(conns: &Conns<C>, (conn, since): (ConnId, u32)) -> bool {
    let open = conns.get(conn).filter(|entry| entry.state == State::Open);
    open.is_some_and(|entry| entry.flags.has(Flags::PARTIAL) && entry.since == since)
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// This connection has begun a request or a message.
    pub(super) fn has_begun(&mut self, conn: ConnId) {
        if let Some(entry) = self.conns.get(conn) {
            self.begun[entry.port as usize].add(&self.conns, (conn, entry.since));
        }
    }

    /// Connections of a port in line, the finished ones included.
    #[cfg(test)]
    pub(super) fn begun_in_line(&self, port: Port) -> usize {
        self.begun[port as usize].line.len()
    }

    /// Ends the oldest unfinished input of a port while its memory is tight. `newest` has just taken some and stays.
    pub(super) fn make_room(&mut self, port: Port, newest: ConnId) {
        for _ in 0..ENDED_PER_STEP {
            if !self.buffer_pool.unfinished().of(port).is_tight() && !self.edge.unfinished_is_tight(port) {
                return;
            }
            let Some(oldest) = self.begun[port as usize].take(&self.conns) else { return };
            if oldest == newest {
                // It is the only one that could go; its own bound ends it.
                return self.has_begun(newest);
            }
            self.stats.input_evicted += 1;
            self.forget(oldest, CloseReason::Overloaded);
            self.lingering_close(oldest, CloseReason::Overloaded);
        }
    }
}
