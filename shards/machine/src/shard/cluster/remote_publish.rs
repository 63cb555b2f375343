//! A POST for a user who is not connected here (PROTOCOL.md 4.3).
//!
//! Look at the user -> push to the node that has it -> else store -> look again and tell (`tell`). The races of the
//! servers that murre replaces are closed: the look comes again after the store, an answer "not here" clears exactly
//! the row that led there, and a push whose answer was lost keeps its id in the row, so that a delivered message is not
//! sent again.

use std::sync::Arc;

use crate::message::Message;
use crate::simplepush::Mode;
use crate::time::Instant;

use super::super::command::{Disposition, Publish, Published};
use super::super::components::requests::ReplyTo;
use super::super::components::user_index::Resident;
use super::super::composer::{ShardMachine, StepContext};
use super::super::peer::{PeerOp, PeerReply};
use super::super::pending_op::{PendingOp, PendingPeerOp};
use super::super::pending_publish::{AfterCommit, PushOutcome};
use super::super::store::{StoreError, StoreOp, UserRow};
use super::pending::{Lookup, RemotePublish};

impl ShardMachine {
    /// Looks the user up. Nothing is stamped yet: the clock first has to pass the clock in the user's row.
    pub(in super::super) fn route(&mut self, cx: &mut StepContext<'_>, reply_to: ReplyTo<Published>, publish: Publish) {
        if !self.tickets.room() {
            self.stats.publishes_unavailable += 1;
            self.answer(cx, reply_to, Published::Unavailable);
            return;
        }
        let Publish { uaid, chid, message } = publish;
        let lookup = Box::new(Lookup { reply_to, uaid, chid, message });
        self.stats.presence_lookups += 1;
        self.submit(cx, PendingOp::LoadForPublish(lookup), StoreOp::Locate { uaid, chid });
    }

    /// Routes the POST after the user was read.
    pub(in super::super) fn user_loaded_for_publish(
        &mut self,
        cx: &mut StepContext<'_>,
        lookup: Lookup,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let Lookup { reply_to, uaid, chid, message } = lookup;
        let refused = |machine: &mut ShardMachine, cx: &mut StepContext<'_>, published| {
            machine.answer(cx, reply_to, published);
        };
        let user = match result {
            Ok(user) => user.filter(|user| user.channels.contains(&chid)),
            Err(_) => {
                self.stats.publishes_unavailable += 1;
                return refused(self, cx, Published::Unavailable);
            }
        };
        let Some(user) = user else {
            self.stats.publishes_unregistered += 1;
            return refused(self, cx, Published::NoSubscription);
        };
        let seen = user.newest_clock();
        let UserRow { contact, presence, .. } = *user;
        if self.clock.advance(cx.now, seen).is_err() {
            self.stats.clocks_refused += 1;
        }
        let message = match message {
            Err(refusal) => return refused(self, cx, Published::Refused(refusal)),
            Ok(message) if message.mode() != contact.mode => {
                self.stats.publishes_other_mode += 1;
                return refused(self, cx, Published::OtherMode);
            }
            Ok(message) => self.stamp(cx, message),
        };
        if let Some(to) = contact.bridge {
            return self.hand_over(cx, reply_to, to, message);
        }
        let stamped = cx.now.mono;
        if let Some(at) = self.session_with(uaid, chid) {
            // The user connected here meanwhile.
            self.offer(cx, reply_to, at, (message, stamped));
            return;
        }
        if let Some(at) = self.session_of(uaid) {
            // The session does not have the channel: registered elsewhere, or a moment ago here.
            self.check_presence(cx, at);
        }
        let mut left = self.others(cx, uaid, presence);
        if let Some(Resident::Hello(index)) = self.resident(uaid) {
            // The user is connecting here: the rows are out of date, and the check of the new session finds what is
            // stored now.
            self.nudge_pending_hello(index);
            left.clear();
        }
        // A SimplePush version is not pushed to a session (PROTOCOL.md 4.2 has no place for it): it is stored, and the
        // session notified.
        let stored_first = (self.config.durable && message.ttl > 0) || contact.mode == Mode::Simple;
        if stored_first {
            self.store_routed(cx, reply_to, (message, stamped), PushOutcome::NotTaken);
        } else {
            self.push_to_next(
                cx,
                Box::new(RemotePublish { reply_to, uaid, chid, message, stamped, left, asked: None }),
            );
        }
    }

    /// Pushes the message to the next node that may have the user, or stores it if there is none.
    fn push_to_next(&mut self, cx: &mut StepContext<'_>, mut remote: Box<RemotePublish>) {
        if let Some(next) = remote.left.pop() {
            let op = PeerOp::Push { to: next.node.clone(), message: remote.message.clone(), stored: false };
            remote.asked = Some(next);
            self.call(cx, PendingPeerOp::Push(remote), op);
        } else {
            self.store_routed(cx, remote.reply_to, (remote.message, remote.stamped), PushOutcome::NotTaken);
        }
    }

    /// Handles the reply of a node to a push, or its absence.
    pub(super) fn push_replied(&mut self, cx: &mut StepContext<'_>, mut remote: Box<RemotePublish>, reply: PeerReply) {
        let message = remote.message.clone();
        let (fleeting, now) = (message.ttl == 0, cx.now.mono);
        match reply {
            PeerReply::Done => {
                self.stats.pushed += 1;
                let accepted = Published::Accepted { stamp: message.stamp, disposition: Disposition::Direct };
                self.answer(cx, remote.reply_to, accepted);
            }
            PeerReply::NotHere => {
                self.stats.pushes_not_here += 1;
                if let Some(stale) = remote.asked.take() {
                    self.clear_presence(cx, remote.uaid, stale);
                }
                if let Some(at) = self.session_with(remote.uaid, remote.chid) {
                    self.offer(cx, remote.reply_to, at, (message, remote.stamped));
                } else {
                    self.push_to_next(cx, remote);
                }
            }
            // The message was not taken, and may now be behind what the session was sent since: it gets a new stamp.
            PeerReply::Busy | PeerReply::Held if !fleeting => {
                self.stats.pushes_busy += 1;
                let message = self.stamp(cx, message);
                let holder = remote.asked.take().filter(|_| reply == PeerReply::Held);
                self.store_routed(
                    cx,
                    remote.reply_to,
                    (message, now),
                    holder.map_or(PushOutcome::NotTaken, PushOutcome::Held),
                );
            }
            PeerReply::NoAnswer => {
                self.stats.pushes_unsure += 1;
                // It becomes a saved row, which low water does not cover: only the write itself has to be in time.
                let push = remote.asked.take().map_or(PushOutcome::NotTaken, PushOutcome::Unsure);
                self.store_routed(cx, remote.reply_to, (message, now), push);
            }
            PeerReply::Busy | PeerReply::Held | PeerReply::Unreachable => {
                self.stats.pushes_refused += 1;
                self.store_routed(cx, remote.reply_to, (message, remote.stamped), PushOutcome::NotTaken);
            }
        }
    }

    /// Stores a message that no session took; TTL 0 ends here.
    fn store_routed(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<Published>,
        (message, stamped): (Arc<Message>, Instant),
        push: PushOutcome,
    ) {
        if message.ttl == 0 {
            self.stats.ttl_zero_dropped += 1;
            let dropped = Published::Accepted { stamp: message.stamp, disposition: Disposition::Dropped };
            self.answer(cx, reply_to, dropped);
            return;
        }
        let send = self.config.durable && message.mode() == Mode::WebPush;
        let storing = AfterCommit::Routed { message: message.clone(), send, push };
        self.store_publish(cx, reply_to, (message, stamped), storing);
    }
}
