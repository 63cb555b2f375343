//! A POST for a user who is not connected here (PROTOCOL.md 4.3).
//!
//! Look at the user -> push to the node that has it -> else store -> look again and tell (`tell`). The races of the
//! servers that murre replaces are closed: the look comes again after the store, an answer "not here" clears exactly
//! the row that led there, and a push whose answer was lost keeps its id in the row, so that a delivered message is not
//! sent again.

use std::sync::Arc;

use crate::message::Message;
use crate::simple::Mode;
use crate::time::Instant;

use super::super::command::{Disposition, Publish, Published};
use super::super::components::requests::Asker;
use super::super::components::user_index::Resident;
use super::super::composer::{ShardMachine, Turn};
use super::super::peer::{PeerOp, PeerReply, Presence};
use super::super::pending_publish::Storing;
use super::super::store::{StoreError, StoreOp, UserRow};
use super::super::work::{PeerWork, Work};
use super::pending::{Lookup, Route};

impl ShardMachine {
    /// Looks the user up. Nothing is stamped yet: the clock first has to pass the clock in the user's row.
    pub(in super::super) fn route(&mut self, turn: &mut Turn<'_>, asker: Asker<Published>, publish: Publish) {
        if !self.tickets.room() {
            self.stats.publishes_unavailable += 1;
            self.answer(turn, asker, Published::Unavailable);
            return;
        }
        let Publish { uaid, chid, message } = publish;
        let lookup = Box::new(Lookup { asker, uaid, chid, message });
        self.stats.looks += 1;
        self.submit(turn, Work::Look(lookup), StoreOp::Locate { uaid, chid });
    }

    /// Routes the POST after the user was read.
    pub(in super::super) fn looked(
        &mut self,
        turn: &mut Turn<'_>,
        lookup: Lookup,
        result: Result<Option<Box<UserRow>>, StoreError>,
    ) {
        let Lookup { asker, uaid, chid, message } = lookup;
        let refused = |machine: &mut ShardMachine, turn: &mut Turn<'_>, published| {
            machine.answer(turn, asker, published);
        };
        let user = match result {
            Ok(user) => user.filter(|user| user.channels.contains(&chid)),
            Err(_) => {
                self.stats.publishes_unavailable += 1;
                return refused(self, turn, Published::Unavailable);
            }
        };
        let Some(user) = user else {
            self.stats.publishes_unregistered += 1;
            return refused(self, turn, Published::NoSubscription);
        };
        let seen = user.newest_clock();
        let UserRow { contact, presence, .. } = *user;
        if self.clock.advance(turn.now, seen).is_err() {
            self.stats.clocks_refused += 1;
        }
        let message = match message {
            Err(refusal) => return refused(self, turn, Published::Refused(refusal)),
            Ok(message) if message.mode() != contact.mode => {
                self.stats.publishes_other_mode += 1;
                return refused(self, turn, Published::OtherMode);
            }
            Ok(message) => self.stamp(turn, message),
        };
        let stamped = turn.now.mono;
        if let Some(at) = self.session_with(uaid, chid) {
            // The user connected here meanwhile.
            self.offer(turn, asker, at, (message, stamped));
            return;
        }
        if let Some(at) = self.session_of(uaid) {
            // The session does not have the channel: registered elsewhere, or a moment ago here.
            self.doubt(turn, at);
        }
        let mut left = self.others(turn, uaid, presence);
        if let Some(Resident::Greeting(index)) = self.resident(uaid) {
            // The user is connecting here: the rows are out of date, and the check of the new session finds what is
            // stored now.
            self.nudge_greeting(index);
            left.clear();
        }
        // A SimplePush version is not pushed to a session (PROTOCOL.md 4.2 has no place for it): it is stored, and the
        // session notified.
        let stored_first = (self.config.durable && message.ttl > 0) || contact.mode == Mode::Simple;
        if stored_first {
            self.store_routed(turn, asker, (message, stamped), None);
        } else {
            self.push_on(turn, Box::new(Route { asker, uaid, chid, message, stamped, left, asked: None }));
        }
    }

    /// Pushes the message to the next node that may have the user, or stores it if there is none.
    fn push_on(&mut self, turn: &mut Turn<'_>, mut route: Box<Route>) {
        if let Some(next) = route.left.pop() {
            let op = PeerOp::Push { to: next.node.clone(), message: route.message.clone(), stored: false };
            route.asked = Some(next);
            self.call(turn, PeerWork::Push(route), op);
        } else {
            self.store_routed(turn, route.asker, (route.message, route.stamped), None);
        }
    }

    /// Handles the reply of a node to a push, or its absence.
    pub(super) fn pushed(&mut self, turn: &mut Turn<'_>, mut route: Box<Route>, reply: PeerReply) {
        let message = route.message.clone();
        let (fleeting, now) = (message.ttl == 0, turn.now.mono);
        match reply {
            PeerReply::Done => {
                self.stats.pushed += 1;
                let accepted = Published::Accepted { stamp: message.stamp, disposition: Disposition::Direct };
                self.answer(turn, route.asker, accepted);
            }
            PeerReply::NotHere => {
                self.stats.pushes_not_here += 1;
                if let Some(stale) = route.asked.take() {
                    self.clear_presence(turn, route.uaid, stale);
                }
                if let Some(at) = self.session_with(route.uaid, route.chid) {
                    self.offer(turn, route.asker, at, (message, route.stamped));
                } else {
                    self.push_on(turn, route);
                }
            }
            // The message was not taken, and may now be behind what the session was sent since: it gets a new stamp.
            PeerReply::Busy if !fleeting => {
                self.stats.pushes_busy += 1;
                let message = self.stamp(turn, message);
                self.store_routed(turn, route.asker, (message, now), None);
            }
            PeerReply::NoAnswer => {
                self.stats.pushes_unsure += 1;
                // It becomes a saved row, which low water does not cover: only the write itself has to be in time.
                self.store_routed(turn, route.asker, (message, now), route.asked.take());
            }
            PeerReply::Busy | PeerReply::Unreachable => {
                self.stats.pushes_refused += 1;
                self.store_routed(turn, route.asker, (message, route.stamped), None);
            }
        }
    }

    /// Stores a message that no session took; TTL 0 ends here.
    fn store_routed(
        &mut self,
        turn: &mut Turn<'_>,
        asker: Asker<Published>,
        (message, stamped): (Arc<Message>, Instant),
        unsure: Option<Presence>,
    ) {
        if message.ttl == 0 {
            self.stats.ttl_zero_dropped += 1;
            let dropped = Published::Accepted { stamp: message.stamp, disposition: Disposition::Dropped };
            self.answer(turn, asker, dropped);
            return;
        }
        let send = self.config.durable && message.mode() == Mode::WebPush;
        let storing = Storing::Routed { message: message.clone(), send, unsure };
        self.store_publish(turn, asker, (message, stamped), storing);
    }
}
