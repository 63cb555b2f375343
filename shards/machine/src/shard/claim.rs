//! A claim: the hello of a socket has a UAID that another shard owns (ARCHITECTURE.md 4).
//!
//! The source asks the owner; the owner greets the user and grants with a reserved place; then descriptor and mail go
//! to the owner in either order and are paired by the claim.

use crate::ids::{Claim, ConnId, ShardId, Uaid};

use super::command::{CloseReason, Hello};
use super::components::conns::ConnState;
use super::components::greetings::{Arrived, From, Pair};
use super::components::requests::{Caller, Outgoing, Waiter};
use super::components::user_index::Resident;
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::mail::{Arrival, ClaimReply, ClaimRequest, Mail, Request};
use super::slab::Ref;

impl ShardMachine {
    pub(super) fn claim(&mut self, turn: &mut Turn<'_>, conn: ConnId, owner: ShardId, uaid: Uaid, hello: Box<Hello>) {
        let claim = self.requests.name_claim();
        let request = Request::Claim(Box::new(ClaimRequest { uaid, claim, channels: hello.channels.clone() }));
        let outgoing = Outgoing { peer: owner, waiter: Waiter::Claim { conn, claim, hello } };
        if self.send_request(turn, outgoing, request) {
            self.greetings.begin_claim();
            self.conns.set(conn, ConnState::Claiming);
        } else {
            self.stats.hellos_shed += 1;
            self.close_conn(turn, conn, CloseReason::Overloaded);
        }
    }

    /// Handles the owner's decision on a claim of this shard.
    pub(super) fn claim_decided(
        &mut self,
        turn: &mut Turn<'_>,
        conn: ConnId,
        owner: ShardId,
        claim: Claim,
        hello: Box<Hello>,
        decision: ClaimReply,
    ) {
        self.greetings.end_claim();
        if self.conns.get(conn) != Some(ConnState::Claiming) {
            // The socket went meanwhile.
            self.stats.claims_abandoned += 1;
            if decision == ClaimReply::Granted {
                turn.effects.push_back(Effect::Mail(owner, Mail::Stayed(claim)));
            }
        } else {
            match decision {
                ClaimReply::Refused => self.mint(turn, conn, hello),
                ClaimReply::Granted => {
                    self.stats.moves_out += 1;
                    self.conns.remove(conn);
                    turn.effects.push_back(Effect::Move { conn, to: owner, claim, hello });
                }
                ClaimReply::Full => self.close_conn(turn, conn, CloseReason::Overloaded),
                ClaimReply::Superseded => self.close_conn(turn, conn, CloseReason::Superseded),
                ClaimReply::Unavailable => self.close_conn(turn, conn, CloseReason::StorageDown),
            }
        }
        self.admit_waiting_hellos(turn);
    }

    /// Handles a failed move: the socket is still here.
    pub(super) fn move_failed(&mut self, turn: &mut Turn<'_>, conn: ConnId, to: ShardId, claim: Claim) {
        self.stats.moves_failed += 1;
        turn.effects.push_back(Effect::Mail(to, Mail::Stayed(claim)));
        turn.effects.push_back(Effect::Close(conn, CloseReason::MoveFailed));
    }

    /// Handles the claim of another shard for a socket of `uaid`.
    pub(super) fn claimed(&mut self, turn: &mut Turn<'_>, caller: Caller<ClaimReply>, request: ClaimRequest) {
        let ClaimRequest { uaid, claim, channels } = request;
        assert!(self.config.placement.owner(uaid) == self.config.shard, "claims come to the owner");
        self.stats.claims += 1;
        if self.draining() {
            self.reply(turn, caller, ClaimReply::Full);
            return;
        }
        self.greet(turn, uaid, From::Remote { caller, claim, channels, arrived: Arrived::default() });
    }

    /// Handles the descriptor of a moved socket. Pairs with the mail in either order.
    pub(super) fn descriptor_arrived(&mut self, turn: &mut Turn<'_>, conn: ConnId, claim: Claim) {
        if let Some(at) = self.greetings.socket_arrived(claim, conn) {
            // It may end before its mail comes: then no session begins under this name.
            self.conns.set(conn, ConnState::Greeting(at.index));
            self.pair(turn, at);
        } else {
            self.stats.arrivals_stale += 1;
            turn.effects.push_back(Effect::Close(conn, CloseReason::Superseded));
        }
    }

    /// Frees the place of a granted claim whose socket does not come.
    pub(super) fn stayed(&mut self, turn: &mut Turn<'_>, claim: Claim) {
        self.greetings.end_grant(claim);
        if let Some(at) = self.greetings.of_claim(claim) {
            self.stats.grants_unused += 1;
            self.cancel_greeting(turn, at, CloseReason::MoveFailed);
            self.admit_waiting_hellos(turn);
        }
    }

    /// Handles state and bytes of a moved socket.
    pub(super) fn mail_arrived(&mut self, turn: &mut Turn<'_>, arrival: Arrival) {
        self.greetings.end_grant(arrival.claim);
        match self.greetings.mail_arrived(arrival) {
            Some(at) => self.pair(turn, at),
            None => self.stats.arrivals_stale += 1,
        }
    }

    fn pair(&mut self, turn: &mut Turn<'_>, at: Ref) {
        // The other half is still to come, or the half pair times out.
        let Some(pair) = self.greetings.pair(at) else { return };
        let Pair { index, uaid, nudged, conn, hello, bytes, user } = pair;
        self.remove_resident(uaid, Resident::Greeting(index));
        self.stats.moves_in += 1;
        self.stats.hellos_known += 1;
        if !bytes.0.is_empty() {
            turn.effects.push_back(Effect::Feed(conn, bytes));
        }
        self.identify(turn, conn, uaid, &hello, Some(user), nudged);
        self.admit_waiting_hellos(turn);
    }
}
