//! Frozen sessions of an earlier process: this shard takes their records over and says their hellos again.
//!
//! A session of a record has a slot and a name at once, so that the gate holds the segments of its peer. Its hello is
//! said when its turn comes; the machine reads the user from storage and finds what waits for it. The peer has its
//! answer from the earlier process, so the answer of this one is not sent.

use std::collections::VecDeque;

use hashbrown::HashSet;
use hibernate::{ConnName, Place, Record, Tuple};

use crate::ports::{Edge, Port};
use crate::ring::{Flags, State};
use crate::session_record;
use machine::ids::ConnId;
use machine::limits::{RESUMED_AT_ONCE_MAX, RESUMES_PER_TURN};
use machine::{AgentCommand, AgentEvent, Event, Hello, Input, SessionEvent};

use super::frozen_table::Kept;
use super::{Machine, Reactor};

/// Sessions that were taken over and are not sessions of the machine yet.
#[derive(Default)]
pub(super) struct Takeover {
    /// Names, and their hellos, in the order of their slots.
    waiting: VecDeque<(ConnId, Hello)>,
    /// Sessions whose hello is under way.
    greeting: HashSet<ConnId>,
}

impl Takeover {
    /// Returns true if a hello can be said.
    pub(super) fn is_due(&self) -> bool {
        !self.waiting.is_empty() && self.greeting.len() < RESUMED_AT_ONCE_MAX
    }

    /// Number of sessions whose hello has not been said.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of sessions that the machine does not have yet.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.greeting.len()
    }
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Takes records over, before anything is accepted. Returns what the gate must hold. A record for which no place is
    /// left, or whose session cannot be read, is dropped: the kernel resets its peer when it speaks.
    pub(in crate::reactor) fn take_over(&mut self, records: Vec<Record>) -> Vec<(Tuple, ConnName)> {
        let mut held = Vec::with_capacity(records.len());
        let (mut ring, mut direct) = (0, 0);
        for Record { frozen, mut session } in records {
            while ring < self.plane.rings() && direct >= self.accept_limit() {
                (ring, direct) = (ring + 1, 0);
            }
            let hello = session_record::hello(&session.0);
            let fits = ring < self.plane.rings() && self.has_place(Port::WebSocket);
            let Some(hello) = hello.filter(|_| fits && self.plane.occupy(ring, direct).is_ok()) else {
                self.stats.takeovers_dropped += 1;
                continue;
            };
            let (codec, since) = (self.edge.resumed(self.now), self.now_ms());
            let opened = self.conns.open(self.plane.slot(ring, direct), Port::WebSocket, Some(codec), since);
            let conn = self.settle_in(opened);
            direct += 1;
            self.conns.take_place(conn);
            let Some(entry) = self.conns.get_mut(conn) else { continue };
            entry.state = State::Frozen;
            // Nothing is read before the machine has answered the hello.
            entry.flags.set(Flags::BUSY);
            if let Some(state) = session_record::tls(&mut session.0).filter(|state| !state.is_empty()) {
                entry.flags.set(Flags::TLS);
                // It overwrites the secrets.
                if self.tls.import(conn.slot, Port::WebSocket, state) != Some(state.len()) {
                    self.stats.takeovers_dropped += 1;
                    self.close(conn);
                    continue;
                }
            }
            // Without its record in a file it is kept in memory only.
            let place = self.write_record(conn, &frozen, Some(&hello)).unwrap_or(Place::NONE);
            held.push((frozen.tuple(), ConnName { slot: conn.slot, generation: conn.generation }));
            self.stats.takeovers += 1;
            if let Some(hibernator) = &mut self.hibernator {
                hibernator.keep(conn, Kept { frozen, place });
                hibernator.takeover.waiting.push_back((conn, hello));
            }
        }
        held
    }

    /// Says the hellos of some sessions that were taken over. True when there was one.
    pub(super) fn resume_sessions(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..RESUMES_PER_TURN {
            let Some(hibernator) =
                self.hibernator.as_mut().filter(|hibernator| hibernator.begins.is_some_and(|at| at <= self.now.mono))
            else {
                break;
            };
            let Takeover { waiting, greeting } = &mut hibernator.takeover;
            if greeting.len() >= RESUMED_AT_ONCE_MAX {
                break;
            }
            let Some((conn, hello)) = waiting.pop_front() else { break };
            worked = true;
            // Its peer may have ended it meanwhile.
            let Some(entry) = self.conns.get_mut(conn) else { continue };
            if self.machine.has_user(hello.fresh) {
                // The user agent has given this connection up and has come back.
                self.stats.takeovers_dropped += 1;
                self.close(conn);
                continue;
            }
            greeting.insert(conn);
            entry.flags.set(Flags::KNOWN);
            self.inputs.push_back(Input::Opened { conn });
            self.command(conn, AgentCommand::Hello(Box::new(hello)));
            self.drive();
        }
        worked
    }

    /// Returns true if this event is the answer to a hello that the peer does not wait for. What has changed since the
    /// earlier process is told all the same.
    pub(in crate::reactor) fn keep_from_peer(&mut self, conn: ConnId, event: &Event) -> bool {
        let Some(hibernator) = &mut self.hibernator else { return false };
        if hibernator.takeover.greeting.is_empty() {
            return false;
        }
        let Event::Agent(AgentEvent::Session(SessionEvent::Hello { broadcasts, .. })) = event else { return false };
        if !hibernator.takeover.greeting.remove(&conn) {
            return false;
        }
        if !broadcasts.changed.is_empty() {
            let mut news = broadcasts.clone();
            news.unknown.clear();
            self.emit(conn, &AgentEvent::Session(SessionEvent::Broadcast(news)).into());
        }
        true
    }

    /// A session that was taken over ends before the machine has it.
    pub(super) fn leave_takeover(&mut self, conn: ConnId) {
        if let Some(hibernator) = &mut self.hibernator {
            hibernator.takeover.greeting.remove(&conn);
        }
    }
}
