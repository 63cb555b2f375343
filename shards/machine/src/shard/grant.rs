//! A claim at the owner of its user: the owner greets the user (`pending_hello` decides). Behind a grant, descriptor
//! and mail of the socket arrive in either order and are paired by the claim (ARCHITECTURE.md 4).

use crate::ids::{Claim, ConnId};

use super::command::CloseReason;
use super::components::conns::ConnState;
use super::components::pending_hellos::{Arrived, HelloOrigin, Pair};
use super::components::requests::Caller;
use super::components::user_index::Resident;
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::mail::{Arrival, ClaimReply, ClaimRequest};
use super::slab::SlabKey;

impl ShardMachine {
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
        self.count_hello(user.is_some());
        if !bytes.0.is_empty() {
            cx.effects.push_back(Effect::Feed(conn, bytes));
        }
        self.identify(cx, conn, uaid, &hello, user, nudged);
        self.admit_waiting_hellos(cx);
    }
}
