//! Notification after a store: the node that has the user must read storage (PROTOCOL.md 4.3 step 5).
//!
//! The user is read again *after* the store. A session that came meanwhile either has its row there, and is notified,
//! or writes it later, and then reads storage later still.

use std::sync::Arc;

use crate::ids::{Clock, Uaid};

use super::super::command::{Disposition, Published};
use super::super::composer::{ShardMachine, Turn};
use super::super::peer::{PeerOp, PeerReply, Presence};
use super::super::store::{StoreError, StoreOp, UserRow};
use super::super::work::{PeerWork, Work};
use super::pending::Tale;

impl ShardMachine {
    /// Reads the user again, and notifies the node that has the user.
    pub(in super::super) fn tell(&mut self, turn: &mut Turn<'_>, tale: Tale) {
        self.stats.looks += 1;
        let op = tale.look();
        self.submit(turn, Work::LookAgain(Box::new(tale)), op);
    }

    /// Notifies the nodes of known rows. The session that asks for it must not read again: it would pass the same rows
    /// by and ask again, for ever where no other node answers.
    pub(super) fn tell_about(&mut self, turn: &mut Turn<'_>, uaid: Uaid, rows: Vec<Presence>) {
        let mut tale = Tale { looked: true, ..Tale::of_save(uaid) };
        tale.left = self.others(turn, uaid, rows);
        self.tell_next(turn, Box::new(tale));
    }

    /// Handles the second read of the user.
    pub(in super::super) fn looked_again(
        &mut self,
        turn: &mut Turn<'_>,
        mut tale: Box<Tale>,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let user = match result {
            Ok(user) => user,
            Err(_) => {
                // The message is safe, so the POST is over; the node of the user must still be notified.
                self.finish(turn, &mut tale);
                let op = tale.look();
                self.submit_later(turn, Work::LookAgain(tale), op);
                return;
            }
        };
        let gone = match (&user, tale.row) {
            (None, _) => true,
            (Some(user), Some(row)) => !user.channels.contains(&row.chid),
            (Some(_), None) => false,
        };
        if gone {
            // Unregistered or dropped while it was being stored: the row ends by that rule.
            if let Some(row) = tale.row {
                self.settle(row);
            }
            if let Some((asker, _)) = tale.waits.take() {
                self.stats.publishes_unregistered += 1;
                self.answer(turn, asker, Published::NoSubscription);
            }
            return;
        }
        let settled = user.as_ref().map_or(Clock::default(), |user| user.low_water);
        if let Some(message) = tale.hidden.take()
            && message.stamp.clock <= settled
        {
            // Low water hides a message row there from every page. A row of a ledger has the same name and is shown.
            self.stats.saved_again += 1;
            tale.hidden = Some(Arc::clone(&message));
            self.submit(turn, Work::SaveAgain(tale), StoreOp::Save { messages: vec![message] });
            return;
        }
        // A lower minimum is written before the session reads what it held: that read comes behind this store.
        let minimum = user.as_ref().and_then(|user| user.contact.minimum);
        tale.held = tale.urgency.zip(minimum).is_some_and(|(urgency, minimum)| urgency < minimum);
        tale.left = self.others(turn, tale.uaid, user.map_or_else(Vec::new, |user| user.presence));
        // The node that may have the message already is asked first: a message that was settled there must not be sent
        // again.
        if let Some(unsure) = tale.unsure.clone() {
            tale.left.retain(|other| other.node != unsure.node);
            tale.left.push(unsure);
        }
        self.tell_next(turn, tale);
    }

    /// Handles the end of the second store, whose row low water does not hide. If that store is not certain, the POST
    /// is refused. A POST that was accepted after a failed look keeps its message, which is saved until it is stored.
    /// The user is read once more, because the look was before this write.
    pub(in super::super) fn saved_again(&mut self, turn: &mut Turn<'_>, mut tale: Box<Tale>, done: bool) {
        let op = tale.look();
        if !done && tale.waits.is_none() {
            self.submit_later(turn, Work::LookAgain(tale), op);
            return;
        }
        tale.hidden = None;
        if !done && let Some((asker, _)) = tale.waits.take() {
            self.stats.publishes_unavailable += 1;
            self.answer(turn, asker, Published::Unavailable);
        }
        self.submit(turn, Work::LookAgain(tale), op);
    }

    fn tell_next(&mut self, turn: &mut Turn<'_>, mut tale: Box<Tale>) {
        if tale.held && tale.unsure.is_none() && tale.send.is_none() {
            tale.left.clear();
        }
        let Some(next) = tale.left.pop() else {
            match self.session_of(tale.uaid).filter(|_| !tale.looked) {
                // The user connected here meanwhile.
                Some(at) if tale.urgency.is_some_and(|urgency| urgency < self.minimum(turn.now.mono, at)) => {
                    self.hold(at)
                }
                Some(at) => self.check_storage(turn, at),
                None => {}
            }
            self.finish(turn, &mut tale);
            return;
        };
        let (to, uaid) = (next.node.clone(), tale.uaid);
        tale.asked = Some(next);
        let op = match &tale.send {
            Some(message) if tale.unsure.is_none() && !message.expired(turn.now.unix()) => {
                PeerOp::Push { to, message: message.clone(), stored: true }
            }
            _ => PeerOp::Notify { to, uaid, unsure: tale.row.filter(|_| tale.unsure.is_some()) },
        };
        self.call(turn, PeerWork::Tell(tale), op);
    }

    /// Handles the reply of a node, or its absence.
    pub(super) fn told(&mut self, turn: &mut Turn<'_>, mut tale: Box<Tale>, reply: PeerReply) {
        let sent = tale.send.is_some() && tale.unsure.is_none();
        match reply {
            PeerReply::Done if sent => {
                self.stats.pushed += 1;
                if let Some((_, Published::Accepted { disposition, .. })) = &mut tale.waits {
                    *disposition = Disposition::Direct;
                }
                self.finish(turn, &mut tale);
            }
            // The node knows now that there is a row, if it has the message. The user may have moved on from there
            // since.
            PeerReply::Done | PeerReply::Busy if tale.unsure.is_some() && tale.asked == tale.unsure => {
                let before = tale.unsure.take().map_or(0, |unsure| unsure.connected_at);
                tale.left.retain(|other| other.connected_at >= before);
                tale.send = None;
                self.tell_next(turn, tale);
            }
            // The row is there already, and the session has not been notified of it yet.
            PeerReply::Busy if sent => self.notify_instead(turn, tale),
            PeerReply::Done | PeerReply::Busy => self.finish(turn, &mut tale),
            PeerReply::NotHere => {
                if let Some(stale) = tale.asked.take() {
                    self.clear_presence(turn, tale.uaid, stale);
                }
                self.tell_next(turn, tale);
            }
            // The copy from memory was not taken, or perhaps not: the session must read storage instead.
            PeerReply::NoAnswer | PeerReply::Unreachable if sent => self.notify_instead(turn, tale),
            // The peer client calls again until there is an answer; an older row may lead to the session.
            PeerReply::NoAnswer | PeerReply::Unreachable => self.tell_next(turn, tale),
        }
    }

    /// Notifies the same node once more, without the message.
    fn notify_instead(&mut self, turn: &mut Turn<'_>, mut tale: Box<Tale>) {
        tale.send = None;
        tale.left.extend(tale.asked.take());
        self.tell_next(turn, tale);
    }

    fn finish(&mut self, turn: &mut Turn<'_>, tale: &mut Tale) {
        if let Some((asker, published)) = tale.waits.take() {
            self.answer(turn, asker, published);
        }
    }
}
