//! Effects of a machine, carried out in the simulated world.

use machine::ids::ConnId;
use machine::{AgentEvent, Arrival, Carried, CloseReason, Effect, Event, Mail, SessionEvent};
use runtime::mailbox::Lane;

use super::sock::{Frame, Place, SockId};
use super::world::Cluster;
use crate::shared::{Verdict, lane_of};

impl Cluster {
    /// Returns true for the only session of its user, which lacks a channel only because an unregister was refused.
    fn must_stay(&self, id: usize) -> bool {
        let sock = &self.socks[id];
        self.alone && sock.unsure && self.agents[sock.agent].sock == Some(id)
    }

    pub(super) fn carry_out(&mut self, n: usize, s: usize, effect: Effect) -> Verdict {
        self.log(Some(n), format_args!("{s} -> {effect:?}"));
        match effect {
            Effect::Ready(conn) => {
                if let Some(id) = self.sock_at(n, s, conn) {
                    self.socks[id].ready = true;
                }
                Ok(())
            }
            Effect::Emit(conn, event) => match self.sock_at(n, s, conn) {
                Some(id) => {
                    self.emitted(id, &event)?;
                    self.said(id, &event)?;
                    self.socks[id].outbox.extend(Frame::of(event));
                    Ok(())
                }
                None => self.answered(n, s, conn, &event),
            },
            Effect::Close(conn, reason) => {
                if let Some(id) = self.nodes[n].shards[s].conns.remove(&conn.slot) {
                    if reason == CloseReason::Elsewhere && self.must_stay(id) {
                        return Err(format!("socket {id} lacks a channel for a refused unregister, and is closed"));
                    }
                    self.socks[id].place = Place::Ended;
                    self.socks[id].outbox.push_back(Frame::Closed);
                }
                Ok(())
            }
            Effect::Move { conn, to, claim, hello } => {
                let id = self.nodes[n].shards[s].conns.remove(&conn.slot).ok_or("a move of a socket that is gone")?;
                self.sets_out(n, usize::from(to.0), id, claim);
                let arrival = Mail::Arrive(Box::new(Arrival { claim, hello, bytes: Carried::default() }));
                self.nodes[n].shards[usize::from(to.0)].lanes[Lane::Arrivals as usize].push_back(arrival);
                Ok(())
            }
            Effect::Wake(_) if self.plan.simple == 0 => Err("a user of WebPush is woken".to_owned()),
            Effect::Feed(..) | Effect::Wake(_) => Ok(()),
            Effect::Mail(to, mail) => {
                self.nodes[n].shards[usize::from(to.0)].lanes[lane_of(&mail) as usize].push_back(mail);
                Ok(())
            }
            Effect::Store(ticket, op) => self.submit(n, s, ticket, op),
            Effect::Peer(ticket, op) => {
                self.asks(n, Some((s, ticket)), op);
                Ok(())
            }
            Effect::Upstream(ticket, op) => self.calls_service((n, s), ticket, op),
            Effect::LedgerAppend(slot, message) => {
                let post = self.sighted(&message)?;
                if self.posts[post].handed.is_some() {
                    return Err(format!("a message of a bridged user is in a ledger: {message:?}"));
                }
                self.taken(n, post, message.stamp)?;
                self.posts[post].held = true;
                let before = self.nodes[n].shards[s].ledger.insert(slot.0, message);
                before.map_or(Ok(()), |_| Err(format!("{slot:?} of node {n} is used twice")))
            }
            Effect::LedgerDead(slot) => match self.nodes[n].shards[s].ledger.remove(&slot.0) {
                Some(message) => self.all_held(message.uaid, "when a ledger record died"),
                None => Err(format!("{slot:?} of node {n} died twice")),
            },
            Effect::ClockFloor(clock) => {
                self.nodes[n].floor = self.nodes[n].floor.max(clock);
                Ok(())
            }
            Effect::Drained => {
                self.nodes[n].shards[s].drained = true;
                Ok(())
            }
        }
    }

    fn sock_at(&self, n: usize, s: usize, conn: ConnId) -> Option<SockId> {
        self.nodes[n].shards[s].conns.get(&conn.slot).copied()
    }

    /// A notification leaves a machine.
    fn emitted(&mut self, id: SockId, event: &Event) -> Verdict {
        let Event::Agent(AgentEvent::Session(SessionEvent::Notification { message, .. })) = event else {
            return Ok(());
        };
        let index = self.sighted(message)?;
        let sock = &mut self.socks[id];
        sock.sent_up_to = sock.sent_up_to.max(Some(message.stamp));
        let span = self.plan.release_on_activity.0;
        let awake = span > 0 && self.now < sock.spoke + span;
        if message.urgency < sock.minimum && awake {
            self.marks.hit("urgency: released by activity");
        } else if message.urgency < sock.minimum {
            return Err(format!("{message:?} of urgency {:?} is below the minimum of its user", message.urgency));
        }
        let (boot, read) = (self.nodes[sock.node].id.boot, self.agents[sock.agent].sock == Some(id));
        if read && self.posts[index].acked.is_some() && !self.comes_again(index, boot) {
            return Err(format!("a message comes again after its ack: {:?}", self.posts[index]));
        }
        let post = &mut self.posts[index];
        post.sent += 1;
        post.sent_on = Some(id);
        if !post.pushed_twice && post.seen.is_some_and(|_| post.stamp != Some(message.stamp)) {
            return Err(format!("a message is sent as {:?}, its 201 said otherwise: {post:?}", message.stamp));
        }
        post.sent_as = Some(message.stamp);
        Ok(())
    }
}
