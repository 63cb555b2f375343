//! A claim: the hello of a socket has a UAID that another shard owns (ARCHITECTURE.md 4).
//!
//! This file is the shard where the hello landed: it asks the owner, and moves the socket once the owner has granted.
//! `grant` is the owner.

use crate::ids::{Claim, ConnId, ShardId, Uaid};

use super::command::{CloseReason, Hello};
use super::components::conns::ConnState;
use super::components::requests::{OutgoingRequest, Waiter};
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::mail::{ClaimReply, ClaimRequest, Mail, Request};

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
}
