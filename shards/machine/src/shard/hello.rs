//! Hello: the UAID of a user agent, and the shard where its socket belongs (ARCHITECTURE.md 4; PROTOCOL.md 1.5).
//!
//! A user agent without a UAID is minted on the shard of its socket. If this shard is the owner, the hello is greeted
//! (`greet`): registered, looked up, identified. Otherwise the UAID is claimed at its owner (`claim`). The owner greets
//! it, and either refuses (a stranger: minted on the shard of its socket) or grants, and then the socket moves. This
//! file has the first message of a socket; `session_begin` makes the session that the socket becomes.

use crate::ids::ConnId;
use crate::limits;

use super::command::{CloseReason, Hello};
use super::components::conns::ConnState;
use super::components::pending_hellos::HelloOrigin;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::ticks::ticks;

impl ShardMachine {
    pub(super) fn opened(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        if self.draining() {
            cx.effects.push_back(Effect::Close(conn, CloseReason::Draining));
            return;
        }
        self.conns.set(conn, ConnState::Opened(ticks(cx.now.mono)));
        self.hello_timer.arm(cx.now.mono);
    }

    /// Closes the sockets whose hello did not come in time.
    pub(super) fn hello_timeouts(&mut self, cx: &mut StepContext<'_>) {
        // No socket is silent, or it is not time to look.
        let Some(overdue) = self.hello_timer.overdue(cx.now.mono, self.keepalive.input_horizon()) else { return };
        for conn in self.conns.opened_until(overdue, limits::SWEEP_SESSIONS_PER_TURN) {
            self.close_conn(cx, conn, CloseReason::HandshakeTimeout);
        }
        self.hello_timer.looked(cx.now.mono, self.conns.opened());
    }

    /// Handles the first message of a socket. If too many hellos are under way, it waits, and its bytes with it.
    pub(super) fn hello(&mut self, cx: &mut StepContext<'_>, conn: ConnId, hello: Box<Hello>) {
        if !matches!(self.conns.get(conn), Some(ConnState::Opened(_))) {
            self.refuse_command(cx, conn);
            return;
        }
        if self.draining() {
            self.close_conn(cx, conn, CloseReason::Draining);
            return;
        }
        if self.pending_hellos.may_begin() {
            self.hello_now(cx, conn, hello);
        } else if self.pending_hellos.wait(conn, hello) {
            self.conns.set(conn, ConnState::Waiting);
        } else {
            self.stats.hellos_shed += 1;
            self.close_conn(cx, conn, CloseReason::Overloaded);
        }
    }

    /// Lets waiting hellos proceed while there are places.
    pub(super) fn admit_waiting_hellos(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some((conn, hello)) = self.pending_hellos.next_waiting()
        {
            if self.conns.get(conn) == Some(ConnState::Waiting) {
                self.hello_now(cx, conn, hello);
            }
        }
    }

    fn hello_now(&mut self, cx: &mut StepContext<'_>, conn: ConnId, hello: Box<Hello>) {
        if self.refuses_stamp() {
            self.close_conn(cx, conn, CloseReason::StorageDown);
            return;
        }
        let Some(uaid) = hello.uaid else {
            self.mint(cx, conn, hello);
            return;
        };
        let owner = self.config.placement.owner(uaid);
        if owner == self.config.shard {
            self.greet(cx, uaid, HelloOrigin::Local { conn, hello });
        } else {
            self.claim(cx, conn, owner, uaid, hello);
        }
    }

    /// Mints the fresh UAID of this shard's slice, for a new user agent or an unknown UAID. Nothing is written before
    /// its first register.
    pub(super) fn mint(&mut self, cx: &mut StepContext<'_>, conn: ConnId, hello: Box<Hello>) {
        // The home shard of its relay mints.
        let Some(hello) = self.refuse_stranger(cx, conn, hello) else { return };
        let uaid = hello.fresh;
        assert!(self.config.placement.owner(uaid) == self.config.shard, "fresh UAIDs are drawn from the own slice");
        if hello.uaid.is_some() {
            self.stats.hellos_reassigned += 1;
        } else {
            self.stats.hellos_new += 1;
        }
        self.identify(cx, conn, uaid, &hello, None, false);
    }
}
