//! Events of the sessions of members, carried to the homes of their relays, and what the homes answer.

use crate::ids::{ConnId, EmissionId, ShardId};

use super::super::command::{AgentEvent, CloseReason, Event, SessionEvent};
use super::super::components::conns::virtual_conns::is_virtual;
use super::super::components::requests::{OutgoingRequest, Waiter};
use super::super::composer::{ShardMachine, StepContext};
use super::super::input::Effect;
use super::super::mail::Request;
use super::super::member::{MemberEvent, MemberReply};

impl ShardMachine {
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
    pub(super) fn end_choked(&mut self, cx: &mut StepContext<'_>) {
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
    pub(super) fn tell_home(&mut self, cx: &mut StepContext<'_>, conn: ConnId, event: MemberEvent) {
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

    pub(super) fn refused(&mut self, cx: &mut StepContext<'_>, conn: ConnId, emission: Option<EmissionId>, wakes: u64) {
        if let Some(vconn) = self.conns.virtual_conns.get_mut(conn) {
            vconn.refuse(wakes);
        }
        self.blocked(conn);
        if let Some(emission) = emission {
            self.unsent(cx, conn, emission);
        }
    }
}

fn names_virtual_conn(effect: &Effect) -> bool {
    matches!(effect, Effect::Ready(conn) | Effect::Emit(conn, _) | Effect::Close(conn, _) if is_virtual(*conn))
}
