//! Requests to the owner of a user, on this shard or another, and their answers.

use crate::ids::{ConnId, RequestId, Uaid};

use super::command::Event;
use super::components::requests::{Asker, Outgoing};
use super::composer::{ShardMachine, Turn};
use super::input::Effect;
use super::mail::{Mail, Reply, Request};
use super::member::MemberReply;

impl ShardMachine {
    /// Asks the owner of `uaid`: this shard itself, or another one. `refuse` is answered when too many wait already.
    pub(super) fn ask(&mut self, turn: &mut Turn<'_>, conn: ConnId, uaid: Uaid, request: Request, refuse: Reply) {
        let owner = self.config.placement.owner(uaid);
        if owner == self.config.shard {
            self.work_on(turn, Asker::Local(conn), request);
        } else if !self.send_request(turn, Outgoing { peer: owner, conn, claim: None }, request) {
            self.stats.requests_refused += 1;
            self.answer(turn, Asker::Local(conn), refuse);
        }
    }

    /// Sends a request or queues it for credit; false when too many wait at that peer.
    pub(super) fn send_request(&mut self, turn: &mut Turn<'_>, outgoing: Outgoing, request: Request) -> bool {
        let room = self.requests.has_room(outgoing.peer);
        if room {
            self.send_request_always(turn, outgoing, request);
        }
        room
    }

    /// Sends a request or queues it, however many wait: the caller has a bound of its own.
    pub(super) fn send_request_always(&mut self, turn: &mut Turn<'_>, outgoing: Outgoing, request: Request) {
        let mail = self.requests.send(outgoing, request);
        self.stats.requests_sent += u64::from(mail.is_some());
        turn.effects.extend(mail);
    }

    pub(super) fn mail(&mut self, turn: &mut Turn<'_>, mail: Mail) {
        match mail {
            Mail::Request { from, id, request } => self.work_on(turn, Asker::Remote(from, id), request),
            Mail::Reply { id, reply } => self.replied(turn, id, reply),
            Mail::Arrive(arrival) => self.mail_arrived(turn, *arrival),
            Mail::Stayed(claim) => self.stayed(turn, claim),
        }
    }

    /// The owner's side of a request.
    fn work_on(&mut self, turn: &mut Turn<'_>, asker: Asker, request: Request) {
        match request {
            Request::Claim(claim) => self.claimed(turn, asker, *claim),
            Request::Publish(publish) => self.publish(turn, asker, *publish),
            Request::Cancel(cancel) => self.cancel(turn, asker, *cancel),
            Request::Receipt(query) => self.receipt(turn, asker, *query),
            Request::NodePush(push) => self.node_push(turn, asker, *push),
            Request::NodeNotify(notify) => self.node_notify(turn, asker, &notify),
            Request::NodeDisconnect(whom) => self.node_disconnect(turn, asker, whom.0, whom.1),
            Request::Member(request) => {
                self.member_request(turn, *request);
                self.answer(turn, asker, Reply::Member(MemberReply::Taken));
            }
            Request::MemberEvent(event) => {
                let reply = self.member_event(turn, *event);
                self.answer(turn, asker, Reply::Member(reply));
            }
        }
    }

    /// Answers a request, wherever it came from.
    pub(super) fn answer(&mut self, turn: &mut Turn<'_>, asker: Asker, reply: Reply) {
        match asker {
            Asker::Remote(peer, id) => turn.effects.push_back(Effect::Mail(peer, Mail::Reply { id, reply })),
            Asker::Local(conn) => {
                let event = match reply {
                    Reply::Publish(published) => Event::Published(published),
                    Reply::Cancel(done) => Event::Cancelled { done },
                    Reply::Receipt(answer) => Event::Receipt(answer),
                    Reply::Node(answer) => Event::NodeAnswer(answer),
                    // A hello of the own slice is answered by its greeting, and home and owner in one shard answer
                    // each other without mail.
                    Reply::Claim(_) | Reply::Member(_) => unreachable!("claims and members have no local asker"),
                };
                turn.effects.push_back(Effect::Emit(conn, event));
                turn.effects.push_back(Effect::Ready(conn));
            }
        }
    }

    fn replied(&mut self, turn: &mut Turn<'_>, id: RequestId, reply: Reply) {
        let Some((outgoing, next)) = self.requests.close(id) else {
            self.stats.replies_stale += 1;
            return;
        };
        self.stats.requests_sent += u64::from(next.is_some());
        turn.effects.extend(next);
        if matches!(reply, Reply::Receipt(_)) {
            self.receipts.came_back(outgoing.peer);
        }
        match (reply, outgoing.claim) {
            (Reply::Claim(decision), Some((claim, hello))) => {
                self.claim_decided(turn, outgoing.conn, outgoing.peer, claim, hello, decision);
            }
            (Reply::Member(reply), _) => self.member_answered(turn, outgoing.conn, reply),
            (reply, _) => self.answer(turn, Asker::Local(outgoing.conn), reply),
        }
    }
}
