//! Notification after a store: the node that has the user must read storage (PROTOCOL.md 4.3 step 5).
//!
//! The user is read again *after* the store. A session that came meanwhile either has its row there, and is notified,
//! or writes it later, and then reads storage later still.

use std::sync::Arc;

use crate::ids::{Clock, Uaid};

use super::super::command::{Disposition, Published};
use super::super::composer::{ShardMachine, StepContext};
use super::super::peer::{PeerOp, PeerReply, Presence};
use super::super::pending_op::{PendingOp, PendingPeerOp};
use super::super::store::{StoreError, StoreOp, UserRow};
use super::pending::PeerNotify;

impl ShardMachine {
    /// Reads the user again, and notifies the node that has the user.
    pub(in super::super) fn notify_holder(&mut self, cx: &mut StepContext<'_>, notify: PeerNotify) {
        self.stats.presence_lookups += 1;
        let op = notify.load_op();
        self.submit(cx, PendingOp::LoadForNotify(Box::new(notify)), op);
    }

    /// Notifies the nodes of known rows. The session that asks for it must not read again: it would pass the same rows
    /// by and ask again, for ever where no other node answers.
    pub(super) fn notify_holders(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, rows: Vec<Presence>) {
        let mut notify = PeerNotify { looked: true, ..PeerNotify::of_save(uaid) };
        notify.left = self.others(cx, uaid, rows);
        self.notify_next(cx, Box::new(notify));
    }

    /// Handles the second read of the user.
    pub(in super::super) fn user_loaded_for_notify(
        &mut self,
        cx: &mut StepContext<'_>,
        mut notify: Box<PeerNotify>,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let user = match result {
            Ok(user) => user,
            Err(_) => {
                // The message is safe, so the POST is over; the node of the user must still be notified.
                self.finish(cx, &mut notify);
                let op = notify.load_op();
                self.submit_later(cx, PendingOp::LoadForNotify(notify), op);
                return;
            }
        };
        let gone = match (&user, notify.row) {
            (None, _) => true,
            (Some(user), Some(row)) => !user.channels.contains(&row.chid),
            (Some(_), None) => false,
        };
        if gone {
            // Unregistered or dropped while it was being stored: the row ends by that rule.
            if let Some(row) = notify.row {
                self.settle(row);
            }
            if let Some((reply_to, _)) = notify.waits.take() {
                self.stats.publishes_unregistered += 1;
                self.answer(cx, reply_to, Published::NoSubscription);
            }
            return;
        }
        let settled = user.as_ref().map_or(Clock::default(), |user| user.low_water);
        if let Some(message) = notify.hidden.take()
            && message.stamp.clock <= settled
        {
            // Low water hides a message row there from every page. A row of a ledger has the same name and is shown.
            self.stats.saved_again += 1;
            notify.hidden = Some(Arc::clone(&message));
            self.submit(cx, PendingOp::SaveAgain(notify), StoreOp::Save { messages: vec![message] });
            return;
        }
        let minimum = user.as_ref().and_then(|user| user.contact.minimum);
        notify.left = self.others(cx, notify.uaid, user.map_or_else(Vec::new, |user| user.presence));
        // A lower minimum is written before the session reads what it held: that read comes behind this store. A
        // session that connected since got no push, and its radio may be awake.
        let held = notify.urgency.zip(minimum).is_some_and(|(urgency, minimum)| urgency < minimum);
        if let Some(holder) = notify.held_by.take().filter(|_| held) {
            notify.left.retain(|other| other.connected_at > holder.connected_at);
        }
        // The node that may have the message already is asked first: a message that was settled there must not be sent
        // again.
        if let Some(unsure) = notify.unsure.clone() {
            notify.left.retain(|other| other.node != unsure.node);
            notify.left.push(unsure);
        }
        self.notify_next(cx, notify);
    }

    /// Handles the end of the second store, whose row low water does not hide. If that store is not certain, the POST
    /// is refused. A POST that was accepted after a failed look keeps its message, which is saved until it is stored.
    /// The user is read once more, because the look was before this write.
    pub(in super::super) fn saved_again(&mut self, cx: &mut StepContext<'_>, mut notify: Box<PeerNotify>, done: bool) {
        let op = notify.load_op();
        if !done && notify.waits.is_none() {
            self.submit_later(cx, PendingOp::LoadForNotify(notify), op);
            return;
        }
        notify.hidden = None;
        if !done && let Some((reply_to, _)) = notify.waits.take() {
            self.stats.publishes_unavailable += 1;
            self.answer(cx, reply_to, Published::Unavailable);
        }
        self.submit(cx, PendingOp::LoadForNotify(notify), op);
    }

    fn notify_next(&mut self, cx: &mut StepContext<'_>, mut notify: Box<PeerNotify>) {
        let Some(next) = notify.left.pop() else {
            match self.session_of(notify.uaid).filter(|_| !notify.looked) {
                // The user connected here meanwhile.
                Some(at) if notify.urgency.is_some_and(|urgency| urgency < self.minimum(cx.now.mono, at)) => {
                    self.hold(at)
                }
                Some(at) => self.check_storage(cx, at),
                None => {}
            }
            self.finish(cx, &mut notify);
            return;
        };
        let (to, uaid) = (next.node.clone(), notify.uaid);
        notify.asked = Some(next);
        let op = match &notify.send {
            Some(message) if notify.unsure.is_none() && !message.expired(cx.now.unix()) => {
                PeerOp::Push { to, message: message.clone(), stored: true }
            }
            _ => PeerOp::Notify { to, uaid, unsure: notify.row.filter(|_| notify.unsure.is_some()) },
        };
        self.call(cx, PendingPeerOp::Notify(notify), op);
    }

    /// Handles the reply of a node, or its absence.
    pub(super) fn notify_replied(&mut self, cx: &mut StepContext<'_>, mut notify: Box<PeerNotify>, reply: PeerReply) {
        let sent = notify.send.is_some() && notify.unsure.is_none();
        match reply {
            PeerReply::Done if sent => {
                self.stats.pushed += 1;
                if let Some((_, Published::Accepted { disposition, .. })) = &mut notify.waits {
                    *disposition = Disposition::Direct;
                }
                self.finish(cx, &mut notify);
            }
            // The node knows now that there is a row, if it has the message. The user may have moved on from there
            // since.
            PeerReply::Done | PeerReply::Busy | PeerReply::Held
                if notify.unsure.is_some() && notify.asked == notify.unsure =>
            {
                let before = notify.unsure.take().map_or(0, |unsure| unsure.connected_at);
                notify.left.retain(|other| other.connected_at >= before);
                notify.send = None;
                self.notify_next(cx, notify);
            }
            // The row is there already, and the session has not been notified of it yet.
            PeerReply::Busy if sent => self.notify_instead(cx, notify),
            PeerReply::Done | PeerReply::Busy | PeerReply::Held => self.finish(cx, &mut notify),
            PeerReply::NotHere => {
                if let Some(stale) = notify.asked.take() {
                    self.clear_presence(cx, notify.uaid, stale);
                }
                self.notify_next(cx, notify);
            }
            // The copy from memory was not taken, or perhaps not: the session must read storage instead.
            PeerReply::NoAnswer | PeerReply::Unreachable if sent => self.notify_instead(cx, notify),
            // The peer client calls again until there is an answer; an older row may lead to the session.
            PeerReply::NoAnswer | PeerReply::Unreachable => self.notify_next(cx, notify),
        }
    }

    /// Notifies the same node once more, without the message.
    fn notify_instead(&mut self, cx: &mut StepContext<'_>, mut notify: Box<PeerNotify>) {
        notify.send = None;
        notify.left.extend(notify.asked.take());
        self.notify_next(cx, notify);
    }

    fn finish(&mut self, cx: &mut StepContext<'_>, notify: &mut PeerNotify) {
        if let Some((reply_to, published)) = notify.waits.take() {
            self.answer(cx, reply_to, published);
        }
    }
}
