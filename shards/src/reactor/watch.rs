//! Timeouts of HTTP connections, and of WebSockets before their upgrade.
//!
//! Every such connection stands in one line and is looked at each time it comes to the front: a few seconds
//! apart, whatever it did meanwhile. An upgraded WebSocket leaves the line for good: its timers are the machine's.

use std::collections::VecDeque;

use crate::ids::ConnId;
use crate::machine::CloseReason;
use crate::ports::{Edge, Port};
use crate::ring::{Flags, State};
use crate::time::{Instant, Span};

use super::{Machine, PlaneLimits, Reactor, trim};

/// The line.
pub(super) struct Watch {
    line: VecDeque<(Instant, ConnId)>,
    period: Span,
}

/// Looks per turn.
const LOOKS_PER_TURN: usize = 1_024;

impl Watch {
    /// Looks come an eighth of the shorter timeout apart: a connection lives that much longer at most.
    pub(super) fn new(limits: &PlaneLimits) -> Watch {
        let shorter = limits.request_timeout.min(limits.keep_alive_timeout);
        Watch { line: VecDeque::new(), period: Span((shorter.0 / 8).max(10_000_000)) }
    }

    /// Connections that came one after the other are looked at together: a look each would wake an idle shard again
    /// and again.
    pub(super) fn add(&mut self, now: Instant, conn: ConnId) {
        self.line.push_back((now.after(self.period).rounded_up(Span(self.period.0 / 8)), conn));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.line.front().map(|(at, _)| *at)
    }
}

enum Verdict {
    Forget,
    Keep,
    End,
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Ends what was too slow or idle too long. True when something was ended.
    pub(super) fn end_idle_http(&mut self) -> bool {
        let mut worked = false;
        for _ in 0..LOOKS_PER_TURN {
            if self.http.next().is_none_or(|at| at > self.now.mono) {
                break;
            }
            let Some((_, conn)) = self.http.line.pop_front() else { break };
            match self.judge(conn) {
                Verdict::Forget => {}
                Verdict::Keep => self.http.add(self.now.mono, conn),
                Verdict::End => {
                    worked = true;
                    self.stats.idle_closes += 1;
                    self.goodbye(conn, CloseReason::Idle);
                }
            }
        }
        trim(&mut self.http.line);
        worked
    }

    fn judge(&self, conn: ConnId) -> Verdict {
        let Some(entry) = self.conns.get(conn) else { return Verdict::Forget };
        let upgraded = entry.codec.as_ref().is_none_or(|codec| self.edge.is_websocket(codec));
        if upgraded || entry.state != State::Open {
            return Verdict::Forget;
        }
        if entry.flags.has(Flags::BUSY) {
            return Verdict::Keep;
        }
        let slow = entry.flags.has(Flags::PARTIAL) || entry.flags.has(Flags::BLOCKED) || entry.port == Port::WebSocket;
        let allowed = if slow { self.limits.request_timeout } else { self.limits.keep_alive_timeout };
        let since = self.now_ms().wrapping_sub(entry.since);
        if Span::from_ms(u64::from(since)) >= allowed { Verdict::End } else { Verdict::Keep }
    }
}
