//! Timeouts of HTTP connections, of WebSockets before their upgrade, and of WebSockets that are stuck.
//!
//! Every HTTP connection stands in one line and is looked at each time it comes to the front: a few seconds apart, with
//! or without traffic meanwhile. An upgraded WebSocket leaves that line: its pings are the machine's. It stands in a
//! second line only while it has begun a message and not finished it, or its socket takes no bytes, since both hold
//! memory that neighbours need.
//!
//! Times are judged up to the input horizon ([`super::input_horizon`]): a peer whose bytes lie unread is not ended,
//! unless it waits in line for its TLS handshake, and a shard that is never idle ends the others all the same.

use std::collections::VecDeque;

use crate::ports::{Edge, Port};
use crate::ring::{Flags, State};
use crate::tls::GivenUp;
use machine::CloseReason;
use machine::ids::ConnId;
use machine::limits::ENDED_PER_TURN;
use machine::time::{Instant, TimeSpan};

use super::{Machine, Reactor, trim};

/// The line.
pub(super) struct HttpTimeouts {
    line: VecDeque<(Instant, ConnId)>,
    period: TimeSpan,
}

/// Looks per turn.
const LOOKS_PER_TURN: usize = 1_024;

impl HttpTimeouts {
    /// Looks come an eighth of the shorter timeout apart: a connection lives that much longer at most.
    pub(super) fn new(shorter: TimeSpan) -> HttpTimeouts {
        HttpTimeouts { line: VecDeque::new(), period: TimeSpan((shorter.0 / 8).max(10_000_000)) }
    }

    /// Connections that came one after the other are looked at together: a look each would wake an idle shard again
    /// and again.
    pub(super) fn add(&mut self, now: Instant, conn: ConnId) {
        self.line.push_back((now.after(self.period).rounded_up(TimeSpan(self.period.0 / 8)), conn));
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.line.front().map(|(at, _)| *at)
    }

    /// Takes out the first connection, if it was due to be looked at by then.
    fn take(&mut self, by: Instant) -> Option<ConnId> {
        self.line.pop_front_if(|(at, _)| *at <= by).map(|(_, conn)| conn)
    }
}

/// Connections that are looked at for one that may make room.
const IDLE_LOOKED_AT: usize = 64;
/// A connection makes room only after this: it may be about to say something.
const IDLE_MIN: TimeSpan = TimeSpan::from_secs(1);

enum Verdict {
    Forget,
    Keep,
    End(CloseReason),
}

impl<E: Edge, M: Machine> Reactor<E, M> {
    /// Ends what was too slow or idle too long. True when something was ended.
    pub(super) fn end_idle_http(&mut self) -> bool {
        let mut ended = 0;
        for _ in 0..LOOKS_PER_TURN {
            if ended == ENDED_PER_TURN {
                break;
            }
            let Some(conn) = self.http.take(self.input_horizon.until()) else { break };
            match self.judge(conn) {
                Verdict::Forget => {}
                Verdict::Keep => self.http.add(self.now.mono, conn),
                Verdict::End(reason) => {
                    ended += 1;
                    self.stats.idle_closes += 1;
                    if self.conns.get(conn).is_some_and(|entry| entry.state == State::Heading) {
                        self.stats.proxy_headers_refused += 1;
                        self.close(conn);
                        continue;
                    }
                    if self.in_handshake(conn) {
                        self.tls.give_up(conn.slot, GivenUp::Late);
                    }
                    self.lingering_close(conn, reason);
                }
            }
        }
        trim(&mut self.http.line);
        ended > 0
    }

    /// Looks at an upgraded WebSocket until it is no longer stuck.
    pub(super) fn watch_websocket(&mut self, conn: ConnId) {
        let Some(entry) = self.conns.get_mut(conn) else { return };
        let upgraded = entry.codec.as_ref().is_some_and(|codec| self.edge.is_websocket(codec));
        if upgraded && !entry.flags.has(Flags::WATCHED) {
            entry.flags.set(Flags::WATCHED);
            self.websockets.add(self.now.mono, conn);
        }
    }

    /// Ends WebSockets whose message is unfinished, or whose socket is blocked, for too long. True when one was ended.
    pub(super) fn end_stuck_websockets(&mut self) -> bool {
        let mut ended = 0;
        for _ in 0..LOOKS_PER_TURN {
            if ended == ENDED_PER_TURN {
                break;
            }
            let Some(conn) = self.websockets.take(self.input_horizon.until()) else { break };
            match self.judge_websocket(conn) {
                Verdict::Forget => {
                    if let Some(entry) = self.conns.get_mut(conn) {
                        entry.flags.clear(Flags::WATCHED);
                    }
                }
                Verdict::Keep => self.websockets.add(self.now.mono, conn),
                Verdict::End(reason) => {
                    ended += 1;
                    self.end_stuck(conn, reason);
                }
            }
        }
        trim(&mut self.websockets.line);
        ended > 0
    }

    fn end_stuck(&mut self, conn: ConnId, reason: CloseReason) {
        self.stats.stuck_closes += 1;
        let Some(entry) = self.conns.get(conn) else { return };
        if entry.state == State::Moving {
            // Its owner waits for a descriptor that cannot leave before its last bytes are sent.
            return self.lost(conn);
        }
        self.forget(conn, reason);
        self.lingering_close(conn, reason);
    }

    fn judge_websocket(&mut self, conn: ConnId) -> Verdict {
        let Some(entry) = self.conns.get(conn) else { return Verdict::Forget };
        if !matches!(entry.state, State::Open | State::Moving | State::Frozen) {
            return Verdict::Forget;
        }
        if entry.flags.has(Flags::BLOCKED) {
            // Without an armed poll the socket has room, and the send is under way.
            let waits = entry.flags.has(Flags::POLL_OUT);
            let since = self.buffer_pool.get(entry.buffers).map(|buffers| buffers.blocked_since);
            let late = since.is_some_and(|since| self.silence(since) >= self.limits.blocked_timeout);
            return if waits && late { Verdict::End(CloseReason::NotReading) } else { Verdict::Keep };
        }
        if !entry.flags.has(Flags::PARTIAL) {
            return Verdict::Forget;
        }
        let waits = entry.state == State::Open && !entry.flags.has(Flags::BUSY);
        let late = waits && self.silence(entry.since) >= self.unfinished_timeout(entry.flags);
        if late { Verdict::End(CloseReason::MessageTimeout) } else { Verdict::Keep }
    }

    /// Time from `since` (milliseconds, wrapping) to the input horizon. Bytes that came later may lie unread.
    fn silence(&self, since: u32) -> TimeSpan {
        let unread = self.now.mono.since(self.input_horizon.until());
        let span = TimeSpan::from_ms(u64::from(self.now_ms().wrapping_sub(since)));
        TimeSpan(span.0.saturating_sub(unread.0))
    }

    /// Time that a request or a message has to arrive. Without an armed poll more has come, and may lie aside until it
    /// is decoded: the time is doubled then, and not without end, so that a peer which always sends more is ended too.
    fn unfinished_timeout(&self, flags: Flags) -> TimeSpan {
        let timeout = self.limits.request_timeout;
        if flags.has(Flags::POLL_IN) { timeout } else { TimeSpan(timeout.0.saturating_mul(2)) }
    }

    /// Closes the connection of this port on which nothing was said for longest, of those that are looked at next, so
    /// that its place is free. An idle connection of HTTP may be closed at any time (RFC 9112 section 9.5), and a
    /// stranger with very many of them must not shut out those with something to say. Returns false if none is idle.
    pub(super) fn end_idle_for_another(&mut self, port: Port) -> bool {
        self.end_longest_idle(port, false)
    }

    /// As above, of those that are heard without a place. A request that is begun does not keep them: it is short.
    pub(super) fn end_silent_placeless(&mut self, port: Port) -> bool {
        self.end_longest_idle(port, true)
    }

    fn end_longest_idle(&mut self, port: Port, placeless: bool) -> bool {
        let idle = |conn: &ConnId| {
            let entry = self.conns.get(*conn)?;
            // One without a place has none to give.
            let asked_for = entry.port == port && entry.flags.has(Flags::REFUSED) == placeless;
            let waits = asked_for && entry.state == State::Open && entry.flags.has(Flags::POLL_IN);
            let begun = entry.flags.has(Flags::BUSY) || (entry.flags.has(Flags::PARTIAL) && !placeless);
            let upgraded = entry.codec.as_ref().is_none_or(|codec| self.edge.is_websocket(codec));
            let span = self.silence(entry.since);
            (waits && !begun && !upgraded && span >= IDLE_MIN).then_some((span, *conn))
        };
        let looked_at = self.http.line.iter().take(IDLE_LOOKED_AT).map(|(_, conn)| conn);
        let Some((_, longest)) = looked_at.filter_map(idle).max_by_key(|(span, _)| span.0) else { return false };
        self.stats.idle_evicted += 1;
        self.close(longest);
        true
    }

    fn judge(&self, conn: ConnId) -> Verdict {
        let Some(entry) = self.conns.get(conn) else { return Verdict::Forget };
        let upgraded = entry.codec.as_ref().is_none_or(|codec| self.edge.is_websocket(codec));
        if upgraded || !matches!(entry.state, State::Open | State::Heading) {
            return Verdict::Forget;
        }
        if entry.flags.has(Flags::BUSY) {
            return Verdict::Keep;
        }
        let allowed = if self.in_handshake(conn) || entry.state == State::Heading {
            self.limits.handshake_timeout
        } else if entry.flags.has(Flags::BLOCKED) {
            self.limits.request_timeout
        } else if entry.flags.has(Flags::PARTIAL) || entry.port == Port::WebSocket {
            self.unfinished_timeout(entry.flags)
        } else {
            self.limits.keep_alive_timeout
        };
        if self.silence(entry.since) >= allowed { Verdict::End(CloseReason::Idle) } else { Verdict::Keep }
    }
}
