//! Answers to requests: written to the connection that asked, or sent back to the shard where it is.
//!
//! The owner of a user calls [`ShardMachine::answer`]; the shard that sent the request gets it in `replied`.

use crate::ids::{ConnId, RequestId};

use super::command::Event;
use super::components::requests::{Caller, ReplyTo, Waiter};
use super::composer::{ShardMachine, StepContext};
use super::input::Effect;
use super::mail::{Mail, Reply};
use super::member::MemberReply;

impl ShardMachine {
    /// Answers a request of an app server or of another node, on the shard where it landed.
    pub(super) fn answer<A: Into<Reply> + Into<Event>>(
        &self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<A>,
        answer: A,
    ) {
        match reply_to {
            ReplyTo::Remote(caller) => self.reply(cx, caller, answer),
            ReplyTo::Local(conn) => answer_conn(cx, conn, answer),
        }
    }

    /// Replies to another shard.
    pub(super) fn reply<A: Into<Reply>>(&self, cx: &mut StepContext<'_>, caller: Caller<A>, answer: A) {
        let reply = Mail::Reply { id: caller.id, reply: answer.into() };
        cx.effects.push_back(Effect::Mail(caller.shard, reply));
    }

    pub(super) fn replied(&mut self, cx: &mut StepContext<'_>, id: RequestId, reply: Reply) {
        let Some((outgoing, next)) = self.requests.close(id) else {
            self.stats.replies_stale += 1;
            return;
        };
        self.stats.requests_sent += u64::from(next.is_some());
        cx.effects.extend(next);
        match (outgoing.waiter, reply) {
            (Waiter::Conn(conn), Reply::Publish(published)) => answer_conn(cx, conn, published),
            (Waiter::Conn(conn), Reply::Bridge(handover)) => self.call_bridge(cx, conn, *handover),
            (Waiter::Conn(conn), Reply::Registration(answer)) => answer_conn(cx, conn, *answer),
            (Waiter::Conn(conn), Reply::Cancel(cancelled)) => answer_conn(cx, conn, cancelled),
            (Waiter::Conn(conn), Reply::Receipt(answer)) => {
                self.receipts.came_back(outgoing.peer);
                answer_conn(cx, conn, answer);
            }
            (Waiter::Conn(conn), Reply::Node(answer)) => answer_conn(cx, conn, answer),
            (Waiter::Claim { conn, claim, hello }, Reply::Claim(decision)) => {
                self.claim_decided(cx, conn, outgoing.peer, claim, hello, decision);
            }
            (Waiter::Seat(conn), Reply::Member(reply)) => self.member_answered(cx, conn, reply),
            (Waiter::Nothing, Reply::Member(MemberReply::Taken)) => {}
            // Invariant: `Caller` replies to each request in its kind, and this shard made the waiter with the request.
            (Waiter::Conn(_), Reply::Claim(_) | Reply::Member(_))
            | (Waiter::Claim { .. } | Waiter::Seat(_) | Waiter::Nothing, _) => {
                unreachable!("a reply is of the kind of its request")
            }
        }
    }
}

/// Writes the answer to the request of a connection, and ends the request.
pub(super) fn answer_conn<A: Into<Event>>(cx: &mut StepContext<'_>, conn: ConnId, answer: A) {
    cx.effects.push_back(Effect::Emit(conn, answer.into()));
    cx.effects.push_back(Effect::Ready(conn));
}
