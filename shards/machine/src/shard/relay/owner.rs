//! The owner of a member: its virtual connection, with an ordinary session, and the events of that session.
//!
//! The machine treats a virtual connection as any connection. At the end of a step `carry_to_relays` takes the effects
//! that name a virtual connection out of the queue and sends them to the home of the relay.

use crate::ids::ConnId;

use super::super::command::Hello;
use super::super::components::conns::ConnState;
use super::super::components::conns::virtual_conns::VirtualConn;
use super::super::composer::{ShardMachine, StepContext};
use super::super::member::{MemberEvent, MemberRequest, RelayId, VirtualConnId};

impl ShardMachine {
    /// Handles a message of a relay's home about a member that this shard owns.
    pub(in crate::shard) fn member_request(&mut self, cx: &mut StepContext<'_>, request: MemberRequest) {
        // A missing virtual connection is empty by now: the home has been notified, or has ended it itself.
        match request {
            MemberRequest::Attach { vconn, hello } => {
                let uaid = hello.uaid.unwrap_or(hello.fresh);
                assert!(self.config.placement.owner(uaid) == self.config.shard, "members are brought to their owner");
                let conn = self.conns.virtual_conns.take(vconn, ConnState::Opened(0));
                self.hello(cx, conn, hello);
            }
            MemberRequest::For { vconn, command } => {
                if let Some(conn) = self.conns.virtual_conns.find(vconn) {
                    self.session_command(cx, conn, *command);
                }
            }
            MemberRequest::Unsent { vconn, emission, wakes } => {
                if let Some(conn) = self.conns.virtual_conns.find(vconn) {
                    self.refused(cx, conn, Some(emission), wakes);
                }
            }
            MemberRequest::Leave { vconn } => {
                if let Some(conn) = self.conns.virtual_conns.find(vconn) {
                    self.gone(cx, conn);
                }
            }
            MemberRequest::Writable { relay, wakes } => self.wake_virtual_conns(cx, relay, wakes),
            MemberRequest::Gone { relay } => self.empty_virtual_conns(cx, relay),
        }
    }

    /// Handles a hello with an unknown UAID, on the virtual connection of another shard's relay: that shard mints, so
    /// that strangers cannot crowd one shard. Returns the hello if this shard must mint.
    pub(in crate::shard) fn refuse_stranger(
        &mut self,
        cx: &mut StepContext<'_>,
        conn: ConnId,
        hello: Box<Hello>,
    ) -> Option<Box<Hello>> {
        let vconn = self.conns.virtual_conns.get(conn).map(VirtualConn::id);
        let Some(vconn) = vconn.filter(|vconn| vconn.relay.home != self.config.shard) else { return Some(hello) };
        self.conns.remove(conn);
        self.stats.claims_refused += 1;
        self.tell_home(cx, conn, MemberEvent::UnknownUaid { vconn, hello });
        None
    }

    /// Mints a UAID after the home was refused as above: it is the owner of the fresh UAID.
    pub(super) fn mint_member(&mut self, cx: &mut StepContext<'_>, vconn: VirtualConnId, hello: Box<Hello>) {
        let conn = self.conns.virtual_conns.take(vconn, ConnState::Opened(0));
        self.mint(cx, conn, hello);
    }

    fn wake_virtual_conns(&mut self, cx: &mut StepContext<'_>, relay: RelayId, wakes: u64) {
        self.relays.wake_virtual_conns(relay, wakes);
        self.relay_turn(cx);
    }

    fn empty_virtual_conns(&mut self, cx: &mut StepContext<'_>, relay: RelayId) {
        self.relays.end_seats(relay);
        self.relay_turn(cx);
    }

    /// Runs one turn of the pending work for virtual connections and relays.
    pub(in crate::shard) fn relay_turn(&mut self, cx: &mut StepContext<'_>) {
        // Ended relays come first: events for their members would be lost and count as delivered.
        self.relay_pings(cx);
        while cx.has_room()
            && let Some(from) = self.relays.next_ending()
        {
            if let Some((id, conn)) = self.conns.virtual_conns.next_from(from) {
                self.relays.go_on_ending(id.next());
                self.gone(cx, conn);
            }
        }
        while cx.has_room()
            && let Some((from, wakes)) = self.relays.next_waking()
        {
            if let Some((id, conn)) = self.conns.virtual_conns.next_from(from) {
                self.relays.go_on_waking(id.next(), wakes);
                if let Some(vconn) = self.conns.virtual_conns.get_mut(conn) {
                    vconn.woken(wakes);
                }
                self.next_round(cx, conn);
            }
        }
        while cx.has_room()
            && let Some(conn) = self.relays.next_resuming()
        {
            self.next_round(cx, conn);
        }
        self.end_choked(cx);
    }

    /// Sends the refused notifications again, in their order, once all of them are known.
    fn next_round(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        if self.conns.virtual_conns.get_mut(conn).is_some_and(VirtualConn::begin_round) {
            self.writable(cx, conn);
        }
    }
}
