//! `hello.reconcile`: the user agent's list of channels is the truth (PROTOCOL.md 1.5; off by default).
//!
//! A channel that only the server has is unregistered: its user agent will never take its messages. A channel that the
//! server lacks cannot be created here, because a hello does not name the key that locks its endpoint. Its user starts
//! over under a fresh UAID, which makes the user agent subscribe anew.

use std::collections::BTreeSet;

use crate::ids::{Chid, Uaid};

use super::command::CloseReason;
use super::components::dead_endpoints::Epoch;
use super::composer::{ShardMachine, StepContext};
use super::pending_op::PendingOp;
use super::slab::SlabKey;
use super::store::{StoreOp, UserRow};

impl ShardMachine {
    /// Returns true if a hello names a channel that is not registered: then its user starts over.
    pub(super) fn starts_over(&self, said: Option<&[Chid]>, channels: &[Chid]) -> bool {
        let known: BTreeSet<&Chid> = channels.iter().collect();
        said.filter(|_| self.config.reconcile).is_some_and(|said| said.iter().any(|chid| !known.contains(chid)))
    }

    /// Drops the user of this hello. The user agent may get another UAID only after storage has done it: a user left
    /// behind would go on taking messages that no user agent reads.
    pub(super) fn start_over(&mut self, cx: &mut StepContext<'_>, pending_hello: SlabKey, uaid: Uaid) {
        self.submit(cx, PendingOp::StartOver { pending_hello, uaid }, StoreOp::DropUser { uaid });
    }

    pub(super) fn started_over(&mut self, cx: &mut StepContext<'_>, pending_hello: SlabKey, uaid: Uaid, done: bool) {
        if done {
            self.stats.resets_reconciled += 1;
            self.end_receipts_of_user(uaid);
            self.user_unknown(cx, pending_hello);
        } else {
            self.cancel_pending_hello(cx, pending_hello, CloseReason::StorageDown);
        }
        self.admit_waiting_hellos(cx);
    }

    /// Removes the channels that a hello left out from the user's channels. Returns them.
    pub(super) fn left_out(&self, said: Option<&[Chid]>, user: &mut UserRow) -> Vec<Chid> {
        let Some(said) = said.filter(|_| self.config.reconcile) else { return Vec::new() };
        let said: BTreeSet<&Chid> = said.iter().collect();
        user.channels.extract_if(.., |chid| !said.contains(chid)).collect()
    }

    /// Unregisters the channels that the hello of this session left out.
    pub(super) fn forget_channels(
        &mut self,
        cx: &mut StepContext<'_>,
        session: SlabKey,
        uaid: Uaid,
        channels: Vec<Chid>,
    ) {
        for chid in channels {
            self.stats.channels_reconciled += 1;
            let at = self.tick(cx);
            self.endpoint_unregistering(uaid, chid);
            let asked = self.dead_epoch(uaid, chid);
            let work = PendingOp::UnregisterReconciled { session, uaid, chid, asked };
            self.submit(cx, work, StoreOp::Unregister { uaid, chid, at });
        }
    }

    /// Handles the reply of storage. After an error the channel is unregistered again, unless its user agent has
    /// registered it since or the session is over: the next hello leaves it out again.
    pub(super) fn unregister_reconciled(
        &mut self,
        cx: &mut StepContext<'_>,
        (session, uaid): (SlabKey, Uaid),
        (chid, asked): (Chid, Epoch),
        done: bool,
    ) {
        if done {
            self.endpoint_unregistering(uaid, chid);
            self.end_receipts_of_channel(uaid, chid);
        } else if self.sessions.get(session).is_some() && self.dead_epoch(uaid, chid) == asked {
            self.sessions.live_mut(session).stored.mark_unsure();
            let at = self.tick(cx);
            self.endpoint_unregistering(uaid, chid);
            let asked = self.dead_epoch(uaid, chid);
            let work = PendingOp::UnregisterReconciled { session, uaid, chid, asked };
            self.submit_later(cx, work, StoreOp::Unregister { uaid, chid, at });
        }
    }
}
