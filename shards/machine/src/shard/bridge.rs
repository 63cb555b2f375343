//! Notifications of bridged users (ARCHITECTURE.md 8.11): the shard where the POST landed calls the service, and its
//! answer is the answer to the sender. Nothing is stored and nothing is sent again. The owner decides on refusals of
//! the device, each for the token that was refused only.

use std::sync::Arc;

use crate::ids::ConnId;
use crate::limits;
use crate::message::Message;
use crate::simplepush::Mode;
use crate::time::UnixSeconds;
use crate::upstream::{BridgeFailure, BridgeOutcome, Bridged, UpstreamOp};

use super::command::Published;
use super::components::requests::ReplyTo;
use super::composer::{ShardMachine, StepContext};
use super::handover::{BridgeHandover, DeviceReport, DeviceVerdict};
use super::input::Effect;
use super::mail::{Mail, Reply};
use super::pending_bridge::{BridgeCall, PendingRefusal};
use super::pending_op::PendingOp;
use super::pending_publish::PendingPublish;
use super::shard_replies::answer_conn;
use super::store::{StoreError, StoreOp, StoreReply};

impl ShardMachine {
    /// Handles the answer of storage that the user of a message has a bridge: nothing was stored.
    pub(super) fn publish_bridged(&mut self, cx: &mut StepContext<'_>, work: PendingPublish, to: Box<Bridged>) {
        let uaid = work.row.uaid;
        if work.orders() {
            self.writes.end(uaid);
        }
        self.rates.refund_budget(cx.now, uaid, work.charged);
        match work.refusal {
            Some(refusal) => self.answer(cx, work.reply_to, Published::Refused(refusal)),
            None => self.hand_over(cx, work.reply_to, to, work.message),
        }
    }

    /// Brings a notification to the shard where its POST landed.
    pub(super) fn hand_over(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Published>,
        to: Box<Bridged>,
        message: Arc<Message>,
    ) {
        if message.mode() != Mode::WebPush {
            self.stats.publishes_other_mode += 1;
            self.answer(cx, reply_to, Published::OtherMode);
            return;
        }
        if let Err(retry_after) = self.rates.charge_bridged(cx.now, &message, &mut self.stats) {
            self.answer(cx, reply_to, Published::OverBudget { retry_after });
            return;
        }
        let handover = BridgeHandover { to: Arc::from(to), message };
        match reply_to {
            ReplyTo::Local(conn) => self.call_bridge(cx, conn, handover),
            ReplyTo::Remote(caller) => {
                let reply = Mail::Reply { id: caller.id, reply: Reply::Bridge(Box::new(handover)) };
                cx.effects.push_back(Effect::Mail(caller.shard, reply));
            }
        }
    }

    /// Hands a notification to the service of its user.
    pub(super) fn call_bridge(&mut self, cx: &mut StepContext<'_>, conn: ConnId, handover: BridgeHandover) {
        let op = UpstreamOp { to: handover.to.clone(), message: handover.message.clone() };
        let work = Box::new(BridgeCall { conn, handover });
        if !self.call_upstream(cx, work, op) {
            self.stats.publishes_unavailable += 1;
            answer_conn(cx, conn, Published::Unavailable);
        }
    }

    /// Answers the POST with the outcome at the service.
    pub(super) fn bridge_replied(&mut self, cx: &mut StepContext<'_>, call: BridgeCall, outcome: BridgeOutcome) {
        let BridgeCall { conn, handover: BridgeHandover { to, message } } = call;
        let (uaid, chid, registered) = (message.uaid, message.chid, to.registered);
        let is_believed = to.refused.is_some_and(|since| is_believed(since, cx.now.unix()));
        let verdict = match outcome {
            BridgeOutcome::Sent if to.refused.is_none() => {
                self.stats.bridged += 1;
                return answer_conn(cx, conn, Published::bridged(message.stamp));
            }
            BridgeOutcome::Failed(failure) => return answer_conn(cx, conn, Published::NotBridged(failure)),
            BridgeOutcome::Sent => DeviceVerdict::Taken { stamp: message.stamp },
            BridgeOutcome::Doubted if !is_believed => DeviceVerdict::Doubted { marked: to.refused.is_some() },
            BridgeOutcome::Doubted | BridgeOutcome::Gone => DeviceVerdict::Ended,
        };
        match verdict {
            DeviceVerdict::Taken { .. } => self.stats.bridged += 1,
            DeviceVerdict::Doubted { .. } | DeviceVerdict::Ended => self.stats.bridges_refused += 1,
        }
        self.device_report_command(cx, conn, DeviceReport { uaid, chid, registered, verdict });
    }

    /// Decides as the owner on a verdict of the service.
    pub(super) fn device_reported(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Published>,
        report: DeviceReport,
    ) {
        let DeviceReport { uaid, chid, registered, verdict } = report;
        match verdict {
            DeviceVerdict::Taken { stamp } => {
                if self.tickets.room() {
                    // Lost: the next one clears it.
                    self.submit(cx, PendingOp::Touch, StoreOp::ClearRefused { uaid, registered });
                }
                self.answer(cx, reply_to, Published::bridged(stamp));
            }
            DeviceVerdict::Doubted { marked } => {
                if !marked && self.tickets.room() {
                    // Lost: the next refusal is the first.
                    let op = StoreOp::MarkRefused { uaid, registered, at: cx.now.unix() };
                    self.submit(cx, PendingOp::Touch, op);
                }
                self.answer(cx, reply_to, Published::NotBridged(BridgeFailure::Configuration));
            }
            DeviceVerdict::Ended if self.tickets.room() && self.registering.begin(uaid) => {
                let work = PendingRefusal { reply_to, uaid, registered, changing: false };
                self.submit(cx, PendingOp::DeviceRefused(Box::new(work)), StoreOp::Locate { uaid, chid });
            }
            // The device may be a new one by the next try.
            DeviceVerdict::Ended => self.answer(cx, reply_to, Published::Unavailable),
        }
    }

    pub(super) fn refusal_stored(
        &mut self,
        cx: &mut StepContext<'_>,
        work: PendingRefusal,
        result: Result<StoreReply, StoreError>,
    ) {
        let PendingRefusal { reply_to, uaid, registered, changing } = work;
        let answer = match result {
            Err(_) => Published::Unavailable,
            // A registration came first, maybe on another node: a new try reaches the new device.
            Ok(StoreReply::Kept) => Published::Unavailable,
            Ok(_) if changing => {
                self.stats.bridge_users_removed_refused += 1;
                self.end_receipts_of_user(uaid);
                Published::NoSubscription
            }
            Ok(reply) => match reply.user().map(|user| user.contact.bridge) {
                None => Published::NoSubscription,
                Some(Some(bridge)) if bridge.registered == registered => {
                    let work = PendingRefusal { reply_to, uaid, registered, changing: true };
                    let op = StoreOp::DropBridged { uaid, registered };
                    return self.submit(cx, PendingOp::DeviceRefused(Box::new(work)), op);
                }
                // The user has another device by now: a new try reaches it.
                Some(_) => Published::Unavailable,
            },
        };
        if answer == Published::NoSubscription {
            self.stats.publishes_unregistered += 1;
        }
        self.registering.end(uaid);
        self.answer(cx, reply_to, answer);
    }
}

/// Returns true if a token that was refused at `since` and is refused again now has ended.
fn is_believed(since: UnixSeconds, now: UnixSeconds) -> bool {
    now.0 >= since.0.saturating_add(limits::REFUSED_TOKEN_SECONDS)
}
