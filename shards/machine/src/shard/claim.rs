//! A claim: the hello of a socket has a UAID that another shard owns (ARCHITECTURE.md 4).
//!
//! The source asks the owner; the owner greets the user and grants with a reserved place; then descriptor and mail go
//! to the owner in either order and are paired by the claim.

use crate::ids::{Claim, ConnId, ShardId, Uaid};

use super::command::{CloseReason, Hello};
use super::components::conns::ConnState;
use super::components::pending_hellos::{Arrived, HelloOrigin, Pair};
use super::components::requests::{Caller, OutgoingRequest, Waiter};
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::mail::{Arrival, ClaimReply, ClaimRequest, Mail, Request};
use super::slab::SlabKey;

impl ShardMachine {
    pub(super) fn claim(
        &mut self,
        cx: &mut StepContext<'_>,
        conn: ConnId,
        owner: ShardId,
        uaid: Uaid,
        hello: Box<Hello>,
    ) {
        let claim = self.requests.name_claim();
        let request = Request::Claim(Box::new(ClaimRequest { uaid, claim, channels: hello.channels.clone() }));
        let outgoing = OutgoingRequest { peer: owner, waiter: Waiter::Claim { conn, claim, hello } };
        if self.send_request(cx, outgoing, request) {
            self.pending_hellos.begin_claim();
            self.conns.set(conn, ConnState::Claiming);
        } else {
            self.stats.hellos_shed += 1;
            self.close_conn(cx, conn, CloseReason::Overloaded);
        }
    }

    /// Handles the owner's decision on a claim of this shard.
    pub(super) fn claim_decided(
        &mut self,
        cx: &mut StepContext<'_>,
        conn: ConnId,
        owner: ShardId,
        claim: Claim,
        hello: Box<Hello>,
        decision: ClaimReply,
    ) {
        self.pending_hellos.end_claim();
        if self.conns.get(conn) != Some(ConnState::Claiming) {
            // The socket went meanwhile.
            self.stats.claims_abandoned += 1;
            if decision == ClaimReply::Granted {
                cx.effects.push_back(Effect::Mail(owner, Mail::Stayed(claim)));
            }
        } else {
            match decision {
                ClaimReply::Refused => self.mint(cx, conn, hello),
                ClaimReply::Granted => {
                    self.stats.moves_out += 1;
                    self.conns.remove(conn);
                    cx.effects.push_back(Effect::Move { conn, to: owner, claim, hello });
                }
                ClaimReply::Full => self.close_conn(cx, conn, CloseReason::Overloaded),
                ClaimReply::Superseded => self.close_conn(cx, conn, CloseReason::Superseded),
                ClaimReply::Unavailable => self.close_conn(cx, conn, CloseReason::StorageDown),
            }
        }
        self.admit_waiting_hellos(cx);
    }

    /// Handles a failed move: the socket is still here.
    pub(super) fn move_failed(&mut self, cx: &mut StepContext<'_>, conn: ConnId, to: ShardId, claim: Claim) {
        self.stats.moves_failed += 1;
        cx.effects.push_back(Effect::Mail(to, Mail::Stayed(claim)));
        cx.effects.push_back(Effect::Close(conn, CloseReason::MoveFailed));
    }

    /// Handles the claim of another shard for a socket of `uaid`.
    pub(super) fn claimed(&mut self, cx: &mut StepContext<'_>, caller: Caller<ClaimReply>, request: ClaimRequest) {
        let ClaimRequest { uaid, claim, channels } = request;
        assert!(self.config.placement.owner(uaid) == self.config.shard, "claims come to the owner");
        self.stats.claims += 1;
        if self.draining() {
            self.reply(cx, caller, ClaimReply::Full);
            return;
        }
        self.greet(cx, uaid, HelloOrigin::Remote { caller, claim, channels, arrived: Arrived::default() });
    }

    /// Handles the descriptor of a moved socket. Pairs with the mail in either order.
    pub(super) fn descriptor_arrived(&mut self, cx: &mut StepContext<'_>, conn: ConnId, claim: Claim) {
        if let Some(at) = self.pending_hellos.socket_arrived(claim, conn) {
            // It may end before its mail comes: then no session begins under this name.
            self.conns.set(conn, ConnState::Greeting(at.index));
            self.pair(cx, at);
        } else {
            self.stats.arrivals_stale += 1;
            cx.effects.push_back(Effect::Close(conn, CloseReason::Superseded));
        }
    }

    /// Frees the place of a granted claim whose socket does not come.
    pub(super) fn stayed(&mut self, cx: &mut StepContext<'_>, claim: Claim) {
        self.pending_hellos.end_grant(claim);
        if let Some(at) = self.pending_hellos.of_claim(claim) {
            self.stats.grants_unused += 1;
            self.cancel_pending_hello(cx, at, CloseReason::MoveFailed);
            self.admit_waiting_hellos(cx);
        }
    }

    /// Handles state and bytes of a moved socket.
    pub(super) fn mail_arrived(&mut self, cx: &mut StepContext<'_>, arrival: Arrival) {
        self.pending_hellos.end_grant(arrival.claim);
        match self.pending_hellos.mail_arrived(arrival) {
            Some(at) => self.pair(cx, at),
            None => self.stats.arrivals_stale += 1,
        }
    }

    fn pair(&mut self, cx: &mut StepContext<'_>, at: SlabKey) {
        // The other half is still to come, or the half pair times out.
        let Some(pair) = self.pending_hellos.pair(at) else { return };
        let Pair { index, uaid, nudged, conn, hello, bytes, user } = pair;
        self.remove_resident(uaid, Resident::Hello(index));
        self.stats.moves_in += 1;
        self.stats.hellos_known += 1;
        if !bytes.0.is_empty() {
            cx.effects.push_back(Effect::Feed(conn, bytes));
        }
        self.identify(cx, conn, uaid, &hello, Some(user), nudged);
        self.admit_waiting_hellos(cx);
    }
}
