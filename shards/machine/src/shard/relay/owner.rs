//! The owner of a member: its virtual connection, with an ordinary session, and the events of that session.
//!
//! The machine treats a virtual connection as any connection. At the end of a step `carry_to_relays` takes the effects
//! that name a virtual connection out of the queue and sends them to the home of the relay.

use crate::ids::{ConnId, EmissionId, ShardId};

use super::super::command::{AgentEvent, CloseReason, Event, Hello, SessionEvent};
use super::super::components::conns::ConnState;
use super::super::components::conns::virtual_conns::{VirtualConn, is_virtual};
use super::super::components::requests::{OutgoingRequest, Waiter};
use super::super::composer::{ShardMachine, StepContext};
use super::super::input::Effect;
use super::super::mail::Request;
use super::super::member::{MemberEvent, MemberReply, MemberRequest, RelayId, VirtualConnId};

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

    // --- what the session says -----------------------------------------------------------------------------

    /// Sends the events of this step on virtual connections to the homes of their relays, in their order.
    pub(in crate::shard) fn carry_to_relays(&mut self, cx: &mut StepContext<'_>) {
        if self.conns.virtual_conns.is_empty() {
            return;
        }
        let mut from = cx.before;
        while cx.effects.range(from..).any(names_virtual_conn) {
            let mut said = cx.effects.split_off(from);
            while let Some(effect) = said.pop_front() {
                match effect {
                    Effect::Emit(conn, Event::Agent(AgentEvent::Session(event))) if is_virtual(conn) => {
                        self.carry(cx, conn, event);
                    }
                    Effect::Ready(conn) if is_virtual(conn) => {
                        let vconn = self.conns.virtual_conns.live(conn).id();
                        self.tell_home(cx, conn, MemberEvent::Ready { vconn });
                    }
                    Effect::Close(conn, reason) if is_virtual(conn) => {
                        let vconn = self.conns.virtual_conns.live(conn).id();
                        self.tell_home(cx, conn, MemberEvent::Ended { vconn, reason });
                    }
                    other => cx.effects.push_back(other),
                }
            }
            from = cx.effects.len();
            self.end_choked(cx);
        }
        self.conns.virtual_conns.free_left();
    }

    /// Ends the sessions of choked virtual connections, as far as this step has room; the rest in the next ones.
    fn end_choked(&mut self, cx: &mut StepContext<'_>) {
        while cx.has_room()
            && let Some(conn) = self.relays.next_choked()
        {
            if self.conns.get(conn).is_some() {
                // No accepted message is lost: its unacked notifications are saved, and its next session gets them.
                self.stats.members_choked += 1;
                self.close_conn(cx, conn, CloseReason::Overloaded);
            }
        }
    }

    fn carry(&mut self, cx: &mut StepContext<'_>, conn: ConnId, event: SessionEvent) {
        let vconn = self.conns.virtual_conns.live_mut(conn);
        let said = MemberEvent::Emit { vconn: vconn.id(), round: vconn.round(), event };
        let home = vconn.id().relay.home;
        if home == self.config.shard {
            let reply = self.member_event(cx, said);
            self.answered(cx, conn, reply);
        } else if vconn.is_choked() {
            vconn.said(false);
        } else {
            self.say_at_home(cx, conn, home, said);
        }
    }

    /// Sends an event to another shard. It waits for credit; if too many wait, the session ends.
    fn say_at_home(&mut self, cx: &mut StepContext<'_>, conn: ConnId, home: ShardId, said: MemberEvent) {
        let outgoing = OutgoingRequest { peer: home, waiter: Waiter::Seat(conn) };
        let sent = self.send_request(cx, outgoing, Request::MemberEvent(Box::new(said)));
        let vconn = self.conns.virtual_conns.live_mut(conn);
        vconn.said(sent);
        if !sent && self.conns.get(conn).is_some() {
            self.relays.choke(conn);
        }
    }

    /// Sends an event that the home must receive, if necessary beyond the bound on waiters: at most one such mail for
    /// each command under way and one for the end of each virtual connection.
    fn tell_home(&mut self, cx: &mut StepContext<'_>, conn: ConnId, event: MemberEvent) {
        let home = self.conns.virtual_conns.live(conn).id().relay.home;
        if home == self.config.shard {
            self.member_event(cx, event);
        } else {
            self.send_request_always(
                cx,
                OutgoingRequest { peer: home, waiter: Waiter::Nothing },
                Request::MemberEvent(Box::new(event)),
            );
        }
    }

    /// Handles the answer of the home to an event of a virtual connection.
    pub(in crate::shard) fn member_answered(&mut self, cx: &mut StepContext<'_>, conn: ConnId, reply: MemberReply) {
        self.answered(cx, conn, reply);
        // The virtual connection was left since, and is free again.
        let Some(vconn) = self.conns.virtual_conns.get_mut(conn) else { return };
        vconn.answered();
        if vconn.may_begin() {
            // In the next turn: a reply causes no mail.
            self.relays.resume(conn);
        }
    }

    fn answered(&mut self, cx: &mut StepContext<'_>, conn: ConnId, reply: MemberReply) {
        if let MemberReply::Refused { emission, wakes } = reply {
            self.refused(cx, conn, emission, wakes);
        }
    }

    fn refused(&mut self, cx: &mut StepContext<'_>, conn: ConnId, emission: Option<EmissionId>, wakes: u64) {
        if let Some(vconn) = self.conns.virtual_conns.get_mut(conn) {
            vconn.refuse(wakes);
        }
        self.blocked(conn);
        if let Some(emission) = emission {
            self.unsent(cx, conn, emission);
        }
    }

    // --- a relay's virtual connections, a budget of them per turn
    // -----------------------------------------------------------

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

fn names_virtual_conn(effect: &Effect) -> bool {
    matches!(effect, Effect::Ready(conn) | Effect::Emit(conn, _) | Effect::Close(conn, _) if is_virtual(*conn))
}
