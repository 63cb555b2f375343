//! The owner of a member: its seat, with an ordinary session, and the events of that session.
//!
//! The machine treats a seat as any connection. At the end of a step `carry_to_relays` takes the effects that name a
//! seat out of the queue and sends them to the home of the relay.

use crate::ids::{ConnId, EmissionId, ShardId};

use super::super::command::{AgentEvent, CloseReason, Event, Hello, SessionEvent};
use super::super::components::conns::ConnState;
use super::super::components::conns::seats::{Seat, is_seat};
use super::super::components::requests::{Outgoing, Waiter};
use super::super::composer::{ShardMachine, Turn};
use super::super::input::Effect;
use super::super::mail::Request;
use super::super::member::{MemberEvent, MemberReply, MemberRequest, RelayId, SeatId};

impl ShardMachine {
    /// Handles a message of a relay's home about a member that this shard owns.
    pub(in crate::shard) fn member_request(&mut self, turn: &mut Turn<'_>, request: MemberRequest) {
        // A missing seat is empty by now: the home has been notified, or has ended it itself.
        match request {
            MemberRequest::Attach { seat, hello } => {
                let uaid = hello.uaid.unwrap_or(hello.fresh);
                assert!(self.config.placement.owner(uaid) == self.config.shard, "members are brought to their owner");
                let conn = self.conns.seats.take(seat, ConnState::Opened(0));
                self.hello(turn, conn, hello);
            }
            MemberRequest::For { seat, command } => {
                if let Some(conn) = self.conns.seats.find(seat) {
                    self.session_command(turn, conn, *command);
                }
            }
            MemberRequest::Unsent { seat, emission, wakes } => {
                if let Some(conn) = self.conns.seats.find(seat) {
                    self.refused(turn, conn, Some(emission), wakes);
                }
            }
            MemberRequest::Leave { seat } => {
                if let Some(conn) = self.conns.seats.find(seat) {
                    self.gone(turn, conn);
                }
            }
            MemberRequest::Writable { relay, wakes } => self.wake_seats(turn, relay, wakes),
            MemberRequest::Gone { relay } => self.empty_seats(turn, relay),
        }
    }

    /// Handles a hello with an unknown UAID, on the seat of another shard's relay: that shard mints, so that strangers
    /// cannot crowd one shard. Returns the hello if this shard must mint.
    pub(in crate::shard) fn refuse_stranger(
        &mut self,
        turn: &mut Turn<'_>,
        conn: ConnId,
        hello: Box<Hello>,
    ) -> Option<Box<Hello>> {
        let seat = self.conns.seats.get(conn).map(Seat::id);
        let Some(seat) = seat.filter(|seat| seat.relay.home != self.config.shard) else { return Some(hello) };
        self.conns.remove(conn);
        self.stats.claims_refused += 1;
        self.tell_home(turn, conn, MemberEvent::Stranger { seat, hello });
        None
    }

    /// Mints a UAID after the home was refused as above: it is the owner of the fresh UAID.
    pub(super) fn mint_member(&mut self, turn: &mut Turn<'_>, seat: SeatId, hello: Box<Hello>) {
        let conn = self.conns.seats.take(seat, ConnState::Opened(0));
        self.mint(turn, conn, hello);
    }

    // --- what the session says -----------------------------------------------------------------------------

    /// Sends the events of this step on seats to the homes of their relays, in their order.
    pub(in crate::shard) fn carry_to_relays(&mut self, turn: &mut Turn<'_>) {
        if self.conns.seats.is_empty() {
            return;
        }
        let mut from = turn.before;
        while turn.effects.range(from..).any(names_seat) {
            let mut said = turn.effects.split_off(from);
            while let Some(effect) = said.pop_front() {
                match effect {
                    Effect::Emit(conn, Event::Agent(AgentEvent::Session(event))) if is_seat(conn) => {
                        self.carry(turn, conn, event);
                    }
                    Effect::Ready(conn) if is_seat(conn) => {
                        let seat = self.conns.seats.live(conn).id();
                        self.tell_home(turn, conn, MemberEvent::Ready { seat });
                    }
                    Effect::Close(conn, reason) if is_seat(conn) => {
                        let seat = self.conns.seats.live(conn).id();
                        self.tell_home(turn, conn, MemberEvent::Ended { seat, reason });
                    }
                    other => turn.effects.push_back(other),
                }
            }
            from = turn.effects.len();
            self.end_choked(turn);
        }
        self.conns.seats.free_left();
    }

    /// Ends the sessions of choked seats, as far as this step has room; the rest in the next ones.
    fn end_choked(&mut self, turn: &mut Turn<'_>) {
        while turn.has_room()
            && let Some(conn) = self.relays.next_choked()
        {
            if self.conns.get(conn).is_some() {
                // No accepted message is lost: its unacked notifications are saved, and its next session gets them.
                self.stats.members_choked += 1;
                self.close_conn(turn, conn, CloseReason::Overloaded);
            }
        }
    }

    fn carry(&mut self, turn: &mut Turn<'_>, conn: ConnId, event: SessionEvent) {
        let seat = self.conns.seats.live_mut(conn);
        let said = MemberEvent::Say { seat: seat.id(), round: seat.round(), event };
        let home = seat.id().relay.home;
        if home == self.config.shard {
            let reply = self.member_event(turn, said);
            self.answered(turn, conn, reply);
        } else if seat.is_choked() {
            seat.said(false);
        } else {
            self.say_at_home(turn, conn, home, said);
        }
    }

    /// Sends an event to another shard. It waits for credit; if too many wait, the session ends.
    fn say_at_home(&mut self, turn: &mut Turn<'_>, conn: ConnId, home: ShardId, said: MemberEvent) {
        let outgoing = Outgoing { peer: home, waiter: Waiter::Seat(conn) };
        let sent = self.send_request(turn, outgoing, Request::MemberEvent(Box::new(said)));
        let seat = self.conns.seats.live_mut(conn);
        seat.said(sent);
        if !sent && self.conns.get(conn).is_some() {
            self.relays.choke(conn);
        }
    }

    /// Sends an event that the home must receive, if necessary beyond the bound on waiters: at most one such mail for
    /// each command under way and one for the end of each seat.
    fn tell_home(&mut self, turn: &mut Turn<'_>, conn: ConnId, event: MemberEvent) {
        let home = self.conns.seats.live(conn).id().relay.home;
        if home == self.config.shard {
            self.member_event(turn, event);
        } else {
            self.send_request_always(
                turn,
                Outgoing { peer: home, waiter: Waiter::Nothing },
                Request::MemberEvent(Box::new(event)),
            );
        }
    }

    /// Handles the answer of the home to an event of a seat.
    pub(in crate::shard) fn member_answered(&mut self, turn: &mut Turn<'_>, conn: ConnId, reply: MemberReply) {
        self.answered(turn, conn, reply);
        // The seat was left since, and is free again.
        let Some(seat) = self.conns.seats.get_mut(conn) else { return };
        seat.answered();
        if seat.may_begin() {
            // In the next turn: a reply causes no mail.
            self.relays.resume(conn);
        }
    }

    fn answered(&mut self, turn: &mut Turn<'_>, conn: ConnId, reply: MemberReply) {
        if let MemberReply::Refused { emission, wakes } = reply {
            self.refused(turn, conn, emission, wakes);
        }
    }

    fn refused(&mut self, turn: &mut Turn<'_>, conn: ConnId, emission: Option<EmissionId>, wakes: u64) {
        if let Some(seat) = self.conns.seats.get_mut(conn) {
            seat.refuse(wakes);
        }
        self.blocked(conn);
        if let Some(emission) = emission {
            self.unsent(turn, conn, emission);
        }
    }

    // --- a relay's seats, a budget of them per turn -----------------------------------------------------------

    fn wake_seats(&mut self, turn: &mut Turn<'_>, relay: RelayId, wakes: u64) {
        self.relays.wake_seats(relay, wakes);
        self.relay_turn(turn);
    }

    fn empty_seats(&mut self, turn: &mut Turn<'_>, relay: RelayId) {
        self.relays.end_seats(relay);
        self.relay_turn(turn);
    }

    /// Runs one turn of the pending work for seats and relays.
    pub(in crate::shard) fn relay_turn(&mut self, turn: &mut Turn<'_>) {
        // Ended relays come first: events for their members would be lost and count as delivered.
        self.relay_pings(turn);
        while turn.has_room()
            && let Some(from) = self.relays.next_ending()
        {
            if let Some((id, conn)) = self.conns.seats.next_from(from) {
                self.relays.go_on_ending(id.next());
                self.gone(turn, conn);
            }
        }
        while turn.has_room()
            && let Some((from, wakes)) = self.relays.next_waking()
        {
            if let Some((id, conn)) = self.conns.seats.next_from(from) {
                self.relays.go_on_waking(id.next(), wakes);
                if let Some(seat) = self.conns.seats.get_mut(conn) {
                    seat.woken(wakes);
                }
                self.next_round(turn, conn);
            }
        }
        while turn.has_room()
            && let Some(conn) = self.relays.next_resuming()
        {
            self.next_round(turn, conn);
        }
        self.end_choked(turn);
    }

    /// Sends the refused notifications again, in their order, once all of them are known.
    fn next_round(&mut self, turn: &mut Turn<'_>, conn: ConnId) {
        if self.conns.seats.get_mut(conn).is_some_and(Seat::begin_round) {
            self.writable(turn, conn);
        }
    }
}

fn names_seat(effect: &Effect) -> bool {
    matches!(effect, Effect::Ready(conn) | Effect::Emit(conn, _) | Effect::Close(conn, _) if is_seat(*conn))
}
