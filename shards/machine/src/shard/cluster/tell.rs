//! After something was stored for a user: the node that has the user is to look at storage (PROTOCOL.md 4.3 step 5).
//!
//! The user is read again *after* the store, so that a session that came meanwhile either has its row there, and is
//! told, or writes it later, and then looks at storage later still.

use std::sync::Arc;

use crate::ids::{Clock, Uaid};

use super::super::command::{Disposition, Published};
use super::super::composer::{ShardMachine, Turn};
use super::super::peer::{PeerOp, PeerReply, Presence};
use super::super::store::{StoreError, StoreOp, UserRow};
use super::super::work::{PeerWork, Work};
use super::pending::Tale;

impl ShardMachine {
    /// Reads the user again, and tells who has it.
    pub(in super::super) fn tell(&mut self, turn: &mut Turn<'_>, tale: Tale) {
        self.stats.looks += 1;
        let op = tale.look();
        self.submit(turn, Work::LookAgain(Box::new(tale)), op);
    }

    /// Tells the nodes that rows named already. The session that asks for it is not to look again: it would pass the
    /// same rows by and ask again, for ever where no other node answers.
    pub(super) fn tell_about(&mut self, turn: &mut Turn<'_>, uaid: Uaid, rows: Vec<Presence>) {
        let mut tale = Tale { looked: true, ..Tale::of_save(uaid) };
        tale.left = self.others(turn, uaid, rows);
        self.tell_next(turn, Box::new(tale));
    }

    /// The user was read again.
    pub(in super::super) fn looked_again(
        &mut self,
        turn: &mut Turn<'_>,
        mut tale: Box<Tale>,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let user = match result {
            Ok(user) => user,
            Err(_) => {
                // The message is safe, so the POST is over; whoever has the user still has to hear of it.
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
            // No page shows a message row there. A row of a ledger has the same name and is shown.
            self.stats.saved_again += 1;
            tale.hidden = Some(Arc::clone(&message));
            self.submit(turn, Work::SaveAgain(tale), StoreOp::Save { messages: vec![message] });
            return;
        }
        tale.left = self.others(turn, tale.uaid, user.map_or_else(Vec::new, |user| user.presence));
        // Who may have it already is asked first: what was settled there is not to be sent anywhere.
        if let Some(unsure) = tale.unsure.clone() {
            tale.left.retain(|other| other.node != unsure.node);
            tale.left.push(unsure);
        }
        self.tell_next(turn, tale);
    }

    /// The message is stored where low water does not hide it, or that is not sure. Then its POST is refused; one that
    /// was accepted after a look that failed keeps its message, which is saved until it is stored. The user is read
    /// once more, because the look was before this write.
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
        let Some(next) = tale.left.pop() else {
            if let Some(at) = self.session_of(tale.uaid).filter(|_| !tale.looked) {
                // It came here meanwhile.
                self.check_storage(turn, at);
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

    /// A node answered, or did not.
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
            // It knows now that there is a row, if it has the message. The user may have gone on from there since.
            PeerReply::Done | PeerReply::Busy if tale.unsure.is_some() && tale.asked == tale.unsure => {
                let before = tale.unsure.take().map_or(0, |unsure| unsure.connected_at);
                tale.left.retain(|other| other.connected_at > before);
                tale.send = None;
                self.tell_next(turn, tale);
            }
            // The row is there already, and nothing has told the session of it yet.
            PeerReply::Busy if sent => self.notify_instead(turn, tale),
            PeerReply::Done | PeerReply::Busy => self.finish(turn, &mut tale),
            PeerReply::NotHere => {
                if let Some(stale) = tale.asked.take() {
                    self.clear_presence(turn, tale.uaid, stale);
                }
                self.tell_next(turn, tale);
            }
            // The copy from memory was not taken, or perhaps not: the session is to look instead.
            PeerReply::NoAnswer | PeerReply::Unreachable if sent => self.notify_instead(turn, tale),
            // Whoever carries the call calls again until there is an answer; an older row may lead to the session.
            PeerReply::NoAnswer | PeerReply::Unreachable => self.tell_next(turn, tale),
        }
    }

    /// The same node once more, without the message.
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
