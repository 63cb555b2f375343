//! Timeouts and pings: no connection is ended before its time, in any unit of the clocks.

use machine::{AgentCommand, CloseReason};

use crate::shared::{SECOND, Verdict};
use crate::socket::SocketId;
use crate::world::World;

impl World {
    /// The server pings: not before half an interval is over.
    pub(crate) fn server_pings(&mut self, id: SocketId) -> Verdict {
        let clocks = &mut self.sockets[id].session.clocks;
        let since = clocks.pinged.unwrap_or(clocks.greeted).max(clocks.greeted);
        if self.now + TICK < since + self.plan.ping_interval.0 / 2 {
            return Err(format!("socket {id} is pinged {} ms after the last time", (self.now - since) / 1_000_000));
        }
        clocks.pinged = Some(self.now);
        clocks.pong_owed = Some(self.now);
        Ok(())
    }

    /// A command of the user agent stops or starts clocks.
    pub(crate) fn heard_of(&mut self, id: SocketId, command: &AgentCommand) {
        let clocks = &mut self.sockets[id].session.clocks;
        match command {
            AgentCommand::Ping => clocks.client_pings = [clocks.client_pings[1], Some(self.now)],
            AgentCommand::Pong => clocks.pong_owed = None,
            _ => {}
        }
    }

    /// Checks that a connection which the machine ends is late or too early.
    pub(crate) fn in_time(&self, id: SocketId, reason: CloseReason) -> Verdict {
        if self.sockets[id].relay.is_some() && !self.sockets[id].peer_open {
            return Ok(());
        }
        let clocks = &self.sockets[id].session.clocks;
        let (least, since) = match reason {
            CloseReason::HandshakeTimeout => (self.plan.hello_timeout.0, Some(clocks.opened)),
            CloseReason::PongTimeout => (self.plan.pong_timeout.0, clocks.pong_owed),
            CloseReason::PingTooSoon => {
                let [before, _] = clocks.client_pings;
                let soon = before.is_some_and(|at| self.now < at + PING_MIN_INTERVAL + 2 * TICK);
                return if soon { Ok(()) } else { Err(format!("socket {id} is closed for a ping that was in time")) };
            }
            _ => return Ok(()),
        };
        match since {
            Some(since) if self.now + TICK >= since + least => Ok(()),
            _ => Err(format!("socket {id} is closed with {reason:?} before its time")),
        }
    }

    /// A user that is there and takes everything is sent what was accepted, however many more come.
    pub(crate) fn not_starved(&self) -> Verdict {
        for (index, post) in self.oracle.posts.iter().enumerate().filter(|(_, post)| post.first_sent.is_none()) {
            let Some(served) = self.oracle.resident.get(&post.to.uaid) else { continue };
            let since = post.seen_at.max(self.sockets[*served].session.clocks.greeted);
            if post.seen.is_some() && self.now > since + STARVED && self.oracle.ended(post).is_none() {
                return Err(format!("message {index} waits for {} s beside its session", (self.now - since) / SECOND));
            }
        }
        Ok(())
    }
}

/// The clocks of the machine count in tenths of a second.
const TICK: u64 = SECOND / 10;
/// `websocket.ping_min_interval` of every world.
const PING_MIN_INTERVAL: u64 = 45 * SECOND;
const STARVED: u64 = 60 * SECOND;
