//! The home of a relay: attaches and ends members, passes their commands to owners, and writes the events of their
//! sessions.

use crate::ids::{ConnId, EmissionId, ShardId, Uaid};
use crate::limits;
use crate::time::TimeSpan;

use super::super::command::{CloseReason, Hello, RelayCommand, RelayEvent, SessionCommand, SessionEvent};
use super::super::components::conns::ConnState;
use super::super::components::conns::virtual_conns::{EMISSION_BITS, EMISSION_MASK, pack};
use super::super::components::relays::Detached;
use super::super::components::requests::{OutgoingRequest, Waiter};
use super::super::composer::{ShardMachine, StepContext};
use super::super::input::Effect;
use super::super::mail::Request;
use super::super::member::{MemberEvent, MemberReply, MemberRequest, RelayId, VirtualConnId};

impl ShardMachine {
    /// Handles a message of a relay, or the one that makes a WebSocket a relay.
    pub(in crate::shard) fn relay_command(&mut self, cx: &mut StepContext<'_>, conn: ConnId, command: RelayCommand) {
        let index = match (self.conns.get(conn), &command) {
            (Some(ConnState::Relay(index)), _) => index,
            (Some(ConnState::Opened(_)), RelayCommand::Open) if self.config.relay_members > 0 => {
                return self.open_relay(cx, conn);
            }
            (_, _) => return self.refuse_command(cx, conn),
        };
        self.postpone_relay_ping(cx, index);
        let relay = self.relay_of(index);
        match command {
            RelayCommand::Open => self.refuse_command(cx, conn),
            RelayCommand::Attach(hello) => self.attach(cx, relay, hello),
            RelayCommand::For { uaid, command } => {
                let vconn = self.relays.live(relay.at).seat_of(&uaid);
                self.forward(cx, conn, uaid, vconn.map(|vconn| (vconn, command)));
            }
            RelayCommand::Bye(uaid) => {
                if !self.end_member_named(cx, relay, uaid, CloseReason::PeerClosed) {
                    self.say_bye(cx, conn, Some(uaid), CloseReason::PeerClosed);
                }
                cx.effects.push_back(Effect::Ready(conn));
            }
            RelayCommand::Ping => self.relay_ping(cx, index),
            RelayCommand::Pong => self.relay_pong(cx, index),
        }
    }

    pub(super) fn relay_at(&self, index: u32) -> Option<RelayId> {
        self.relays.at(index).map(|(at, _)| RelayId { home: self.config.shard, at })
    }

    /// Returns the relay at an index that the table of connections names.
    pub(super) fn relay_of(&self, index: u32) -> RelayId {
        // Invariant: connections name relays only while they exist; `end_relay` removes both together.
        self.relay_at(index).expect("connections name live relays")
    }

    fn open_relay(&mut self, cx: &mut StepContext<'_>, conn: ConnId) {
        let full = self.relays.len() >= limits::RELAYS_MAX;
        if full || self.draining() {
            self.stats.relays_refused += u64::from(full);
            self.close_conn(cx, conn, if full { CloseReason::Overloaded } else { CloseReason::Draining });
            return;
        }
        let interval = self.config.ping_interval;
        let ping_due = (interval > TimeSpan(0)).then(|| cx.now.mono.after(interval));
        let at = self.relays.open(conn, ping_due);
        self.conns.set(conn, ConnState::Relay(at.index));
        self.stats.relays_opened += 1;
        let opened = RelayEvent::Opened { members: self.config.relay_members };
        cx.effects.push_back(Effect::Emit(conn, opened.into()));
        cx.effects.push_back(Effect::Ready(conn));
    }

    /// Handles a hello on a relay. A present member begins a new session in place of the old one.
    fn attach(&mut self, cx: &mut StepContext<'_>, id: RelayId, hello: Box<Hello>) {
        if let Some(uaid) = hello.uaid {
            self.end_member_named(cx, id, uaid, CloseReason::Superseded);
        }
        let owner = self.config.placement.owner(hello.uaid.unwrap_or(hello.fresh));
        let draining = self.draining();
        let relay = self.relays.live(id.at);
        if draining || relay.attached() >= usize::from(self.config.relay_members) {
            let conn = relay.conn();
            self.stats.members_refused += u64::from(!draining);
            let reason = if draining { CloseReason::Draining } else { CloseReason::Overloaded };
            self.say_bye(cx, conn, hello.uaid, reason);
            cx.effects.push_back(Effect::Ready(conn));
            return;
        }
        let vconn = self.relays.attach(id, owner, &hello);
        self.stats.members_attached += 1;
        if !self.ask_owner(cx, owner, MemberRequest::Attach { vconn, hello }) {
            self.stats.members_refused += 1;
            self.end_member(cx, vconn, CloseReason::Overloaded);
        }
    }

    /// Mints a fresh UAID of this shard's slice for a member whose UAID its owner does not know.
    fn stranger(&mut self, cx: &mut StepContext<'_>, vconn: VirtualConnId, hello: Box<Hello>) {
        let shard = self.config.shard;
        // Else it has left meanwhile.
        if self.relays.get_mut(vconn.relay.at).is_some_and(|relay| relay.hand_over(vconn, shard)) {
            self.mint_member(cx, vconn, hello);
        }
    }

    /// Passes on a command of a member. For a UAID that is no member the bye is repeated: it may have crossed the
    /// command.
    fn forward(
        &mut self,
        cx: &mut StepContext<'_>,
        conn: ConnId,
        uaid: Uaid,
        of: Option<(VirtualConnId, Box<SessionCommand>)>,
    ) {
        let Some((vconn, command)) = of else {
            self.stats.members_unknown += 1;
            self.say_bye(cx, conn, Some(uaid), CloseReason::WrongState);
            cx.effects.push_back(Effect::Ready(conn));
            return;
        };
        let owner = self.relays.live(vconn.relay.at).ask(vconn);
        if !self.ask_owner(cx, owner, MemberRequest::For { vconn, command }) {
            self.end_member(cx, vconn, CloseReason::Overloaded);
        }
    }

    // --- the end of members and relays -----------------------------------------------------------------

    /// Ends the membership of this UAID with a bye; false if there is none.
    fn end_member_named(&mut self, cx: &mut StepContext<'_>, id: RelayId, uaid: Uaid, reason: CloseReason) -> bool {
        let vconn = self.relays.get(id.at).and_then(|relay| relay.seat_of(&uaid));
        if let Some(vconn) = vconn {
            self.end_member(cx, vconn, reason);
        }
        vconn.is_some()
    }

    /// Ends a membership with a bye, and the session at its owner.
    fn end_member(&mut self, cx: &mut StepContext<'_>, vconn: VirtualConnId, reason: CloseReason) {
        if let Some(owner) = self.drop_member(cx, vconn, reason) {
            self.tell_owner(cx, owner, MemberRequest::Leave { vconn });
        }
    }

    /// Forgets a member with a bye. Returns its owner.
    fn drop_member(&mut self, cx: &mut StepContext<'_>, vconn: VirtualConnId, reason: CloseReason) -> Option<ShardId> {
        let Detached { conn, owner, uaid, awaited } = self.relays.detach(vconn)?;
        self.say_bye(cx, conn, uaid, reason);
        if awaited {
            cx.effects.push_back(Effect::Ready(conn));
        }
        Some(owner)
    }

    fn say_bye(&mut self, cx: &mut StepContext<'_>, conn: ConnId, uaid: Option<Uaid>, reason: CloseReason) {
        self.stats.member_byes += 1;
        cx.effects.push_back(Effect::Emit(conn, RelayEvent::Bye { uaid, reason }.into()));
    }

    /// Ends a relay with all its members: one mail to each owner, for any number of members. `goodbye` is set if the
    /// server ends it.
    pub(in crate::shard) fn end_relay(&mut self, cx: &mut StepContext<'_>, index: u32, goodbye: Option<CloseReason>) {
        let id = self.relay_of(index);
        // Invariant: `relay_of` has just found it.
        let (conn, owners) = self.relays.remove(id.at).expect("a relay ends once");
        self.conns.remove(conn);
        if let Some(reason) = goodbye {
            cx.effects.push_back(Effect::Close(conn, reason));
        }
        for owner in owners {
            self.tell_owner(cx, owner, MemberRequest::Gone { relay: id });
        }
    }

    /// Ends the relay of this connection if its last member has left: a drain ends members first.
    pub(in crate::shard) fn end_relay_without_members(&mut self, cx: &mut StepContext<'_>, index: u32) {
        if self.relays.at(index).is_some_and(|(_, relay)| relay.attached() == 0) {
            self.end_relay(cx, index, Some(CloseReason::Draining));
        }
    }

    // --- what is written ---------------------------------------------------------------------------------

    /// Handles an event of an owner for a member.
    pub(in crate::shard) fn member_event(&mut self, cx: &mut StepContext<'_>, event: MemberEvent) -> MemberReply {
        match event {
            MemberEvent::Emit { vconn, round, event } => return self.member_says(cx, vconn, round, event),
            MemberEvent::Ready { vconn } => {
                if let Some(relay) = self.relays.get_mut(vconn.relay.at)
                    && relay.answered(vconn)
                {
                    cx.effects.push_back(Effect::Ready(relay.conn()));
                }
            }
            MemberEvent::UnknownUaid { vconn, hello } => self.stranger(cx, vconn, hello),
            MemberEvent::Ended { vconn, reason } => {
                self.drop_member(cx, vconn, reason);
            }
        }
        MemberReply::Taken
    }

    fn member_says(
        &mut self,
        cx: &mut StepContext<'_>,
        vconn: VirtualConnId,
        round: u64,
        mut event: SessionEvent,
    ) -> MemberReply {
        let relay = self.relays.get_mut(vconn.relay.at);
        let Some(relay) = relay.filter(|relay| relay.has(vconn)) else { return no_longer_here(&event) };
        if let SessionEvent::Hello { uaid, .. } = &event {
            relay.rename(vconn, *uaid);
        }
        let (conn, uaid) = (relay.conn(), relay.uaid_of(vconn));
        let mut reply = MemberReply::Taken;
        match &mut event {
            SessionEvent::Notification { emission, .. } => {
                if let Some(wakes) = relay.refuse_notification(vconn, round) {
                    self.stats.member_words_refused += 1;
                    return MemberReply::Refused { emission: Some(*emission), wakes };
                }
                *emission = pack(vconn.place(), *emission);
            }
            // At most one of them is kept for each member: its session takes itself for blocked from then on.
            SessionEvent::Broadcast(_) => {
                if let Some(wakes) = relay.refuse_after_broadcast(vconn, round) {
                    reply = MemberReply::Refused { emission: None, wakes };
                }
            }
            _ => {}
        }
        let event = RelayEvent::Of { uaid, event: Box::new(event) };
        cx.effects.push_back(Effect::Emit(conn, event.into()));
        reply
    }

    pub(in crate::shard) fn relay_blocked(&mut self, index: u32) {
        self.relays.live(self.relay_of(index).at).block();
    }

    /// Handles a frame of which the socket took nothing. The next events of this member must not overtake it.
    pub(in crate::shard) fn relay_unsent(&mut self, cx: &mut StepContext<'_>, index: u32, emission: EmissionId) {
        let relay = self.relays.live(self.relay_of(index).at);
        // It has left meanwhile: its unacked notifications are saved.
        let Some((vconn, owner, wakes)) = relay.refuse_unsent((emission.0 >> EMISSION_BITS) as usize) else { return };
        let emission = EmissionId(emission.0 & EMISSION_MASK);
        if !self.ask_owner(cx, owner, MemberRequest::Unsent { vconn, emission, wakes }) {
            // Its unacked notifications are saved, and delivered to its next session.
            self.end_member(cx, vconn, CloseReason::Overloaded);
        }
    }

    pub(in crate::shard) fn relay_writable(&mut self, cx: &mut StepContext<'_>, index: u32) {
        let id = self.relay_of(index);
        let (wakes, owners) = self.relays.live(id.at).unblock();
        for owner in owners {
            self.tell_owner(cx, owner, MemberRequest::Writable { relay: id, wakes });
        }
    }

    // --- to the owner ------------------------------------------------------------------------------------

    /// Sends a request to the owner of a member; false if too many wait for credit there.
    #[must_use]
    fn ask_owner(&mut self, cx: &mut StepContext<'_>, owner: ShardId, request: MemberRequest) -> bool {
        if owner == self.config.shard {
            self.member_request(cx, request);
            return true;
        }
        self.send_request(
            cx,
            OutgoingRequest { peer: owner, waiter: Waiter::Nothing },
            Request::Member(Box::new(request)),
        )
    }

    /// Sends a request that the owner must receive, if necessary beyond the bound on waiters: at most one such mail for
    /// each member and relay, and no member attaches while too many wait.
    fn tell_owner(&mut self, cx: &mut StepContext<'_>, owner: ShardId, request: MemberRequest) {
        if owner == self.config.shard {
            self.member_request(cx, request);
        } else {
            self.send_request_always(
                cx,
                OutgoingRequest { peer: owner, waiter: Waiter::Nothing },
                Request::Member(Box::new(request)),
            );
        }
    }
}

/// Returns the answer to an event for a member that has left. A notification was not delivered, and no other round
/// begins.
fn no_longer_here(event: &SessionEvent) -> MemberReply {
    match event.emission() {
        Some(emission) => MemberReply::Refused { emission: Some(emission), wakes: u64::MAX },
        None => MemberReply::Taken,
    }
}
