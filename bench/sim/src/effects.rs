//! The loop's side of the contract: carries out the effects of a machine, in order, and checks that they are allowed.

use machine::ids::{ConnId, StoreTicket, Uaid};
use machine::limits;
use machine::{Effect, Mail, MemberEvent, Request, StoreOp};

use crate::shared::Verdict;
use crate::socket::{Place, SocketId};
use crate::world::World;

impl World {
    /// Carries out one effect of a shard.
    pub(crate) fn carry_out(&mut self, shard: usize, effect: Effect) -> Verdict {
        self.log(Some(shard), format_args!("-> {effect:?}"));
        // POSTs may still come in until every shard is drained: they are stored.
        if self.shards[shard].drained && matches!(effect, Effect::LedgerAppend(..) | Effect::Move { .. }) {
            return Err(format!("shard {shard} said Drained and still requests {effect:?}"));
        }
        match effect {
            Effect::Ready(conn) => match self.here(shard, conn)? {
                Some(id) => self.now_ready(id),
                None => Ok(()),
            },
            Effect::Emit(conn, event) => match self.here(shard, conn)? {
                Some(id) if self.sockets[id].is_websocket() => {
                    self.handed(shard, &event)?;
                    self.emit(id, event)
                }
                Some(id) => self.answered(id, &event),
                None => Ok(()),
            },
            Effect::Close(conn, reason) => match self.here(shard, conn)? {
                Some(_) => self.close(shard, conn, reason),
                None => Ok(()),
            },
            Effect::Move { conn, to, claim, hello } => match self.here(shard, conn)? {
                Some(_) => self.set_out(shard, conn, to, claim, hello),
                None => Err("a move of a connection that is gone".to_owned()),
            },
            Effect::Feed(conn, bytes) => self.feed(shard, conn, &bytes.0),
            Effect::Mail(to, mail) => {
                self.check_mail(shard, usize::from(to.0), &mail)?;
                self.post_mail(shard, to, mail)
            }
            Effect::Store(ticket, op) => self.submit(shard, ticket, op),
            Effect::Peer(_, call) => Err(format!("a node that is alone calls another: {call:?}")),
            Effect::Upstream(_, call) => Err(format!("no user of this world has a bridge: {call:?}")),
            Effect::LedgerAppend(slot, message) => self.append(shard, slot, &message),
            Effect::LedgerDead(slot) => self.ledger_dead(shard, slot),
            Effect::ClockFloor(clock) => {
                self.clock_floor(shard, clock);
                Ok(())
            }
            Effect::Wake(_) => {
                self.marks.hit("wake");
                if self.plan.simple > 0 { Ok(()) } else { Err("a user of WebPush is woken".to_owned()) }
            }
            Effect::Drained => self.drained(shard),
        }
    }

    /// The socket of an effect, which is neither gone nor on its way.
    fn here(&self, shard: usize, conn: ConnId) -> Result<Option<SocketId>, String> {
        let id = self.socket_of(shard, conn)?;
        match id.map(|id| self.sockets[id].place) {
            None => Ok(None),
            Some(place) if place == (Place::At { shard, conn }) => Ok(id),
            Some(place) => Err(format!("an effect for {conn:?} of shard {shard}, which is {place:?}")),
        }
    }

    fn now_ready(&mut self, id: SocketId) -> Verdict {
        let socket = &mut self.sockets[id];
        if socket.ready {
            return Err(format!("socket {id} was made ready twice"));
        }
        if !socket.carried.is_empty() && !socket.session.fed {
            return Err(format!("socket {id} was made ready before its bytes were fed"));
        }
        socket.ready = true;
        if socket.is_websocket() { Ok(()) } else { self.poster_ready(id) }
    }

    fn check_mail(&mut self, from: usize, to: usize, mail: &Mail) -> Verdict {
        let Mail::Request { request, .. } = mail else { return Ok(()) };
        let uaid = match request {
            Request::Claim(claim) => {
                self.marks.hit("mail: claim");
                if usize::from(claim.claim.source().0) != from {
                    return Err(format!("shard {from} claims in the name of {:?}", claim.claim.source()));
                }
                claim.uaid
            }
            Request::Publish(publish) => {
                self.marks.hit("mail: publish");
                publish.uaid
            }
            Request::Registration(command) => command.uaid,
            Request::DeviceReport(report) => report.uaid,
            Request::Node(command) => command.uaid(),
            Request::Cancel(cancel) => {
                self.marks.hit("mail: cancel");
                cancel.uaid
            }
            Request::Member(_) | Request::MemberEvent(_) => return self.check_member_mail(from, to, request),
            Request::Receipt(query) => {
                self.marks.hit("mail: receipt");
                query.uaid
            }
        };
        if self.owner(uaid) != to {
            return Err(format!("shard {from} asks shard {to} about {uaid:?} of shard {}", self.owner(uaid)));
        }
        Ok(())
    }

    /// A member is asked for by the home of its relay, and speaks to that home only.
    fn check_member_mail(&mut self, from: usize, to: usize, request: &Request) -> Verdict {
        let (asked_by, home) = match request {
            Request::Member(request) => {
                self.marks.hit("mail: member");
                (from, request.relay().home())
            }
            Request::MemberEvent(event) => {
                self.marks.hit("mail: member event");
                if let MemberEvent::Emit { event, .. } = &**event {
                    self.handed_by_session(event, true)?;
                }
                (to, event.vconn().relay.home())
            }
            _ => return Ok(()),
        };
        if usize::from(home.0) != asked_by {
            return Err(format!("shard {from} writes to shard {to} about a relay of {home:?}"));
        }
        Ok(())
    }

    fn submit(&mut self, shard: usize, ticket: StoreTicket, op: StoreOp) -> Verdict {
        if self.owner(op.uaid()) != shard {
            return Err(format!("shard {shard} stores for {:?} of another shard", op.uaid()));
        }
        if self.store.outstanding(shard, ticket) {
            return Err(format!("shard {shard} used {ticket:?} twice"));
        }
        match &op {
            StoreOp::Publish { message, .. } => self.sighted(shard, message)?,
            StoreOp::Save { messages } => {
                self.marks.hit("store: save");
                for message in messages {
                    self.sighted(shard, message)?;
                    if message.ttl == 0 {
                        return Err(format!("TTL 0 would be saved: {message:?}"));
                    }
                }
            }
            StoreOp::Settle { rows, low_water, durable } => {
                assert!(!rows.is_empty(), "a settle names at least one row");
                if rows.iter().any(|row| row.uaid != op.uaid()) {
                    return Err("a settle of two users".to_owned());
                }
                rows.iter().for_each(|row| self.oracle.settle_asked(row.stamp));
                self.marks.hit(if *durable { "store: durable settle" } else { "store: relaxed settle" });
                if low_water.is_some() {
                    self.marks.hit("store: low water moves");
                }
            }
            StoreOp::Topics { limit, .. } | StoreOp::Messages { limit, .. } => {
                self.marks.hit("store: drain page");
                if *limit == 0 || *limit > limits::WINDOW_MAX {
                    return Err(format!("a page of {limit} rows"));
                }
            }
            StoreOp::Unregister { uaid, chid, .. } if self.plan.reconcile => {
                let channel = self.oracle.channels.entry((*uaid, *chid)).or_default();
                channel.registered = None;
                channel.version += 1;
                channel.left_out = true;
                // From here on the session takes nothing of it, also when storage keeps the channel after an error.
                self.oracle.channel_forgotten(*uaid, *chid, self.steps);
            }
            StoreOp::DropUser { uaid } => self.drops_user(*uaid)?,
            StoreOp::DropIdle { uaid } => self.drops_idle(*uaid)?,
            StoreOp::SetBridge { .. }
            | StoreOp::MarkRefused { .. }
            | StoreOp::ClearRefused { .. }
            | StoreOp::DropBridged { .. } => return Err(format!("{:?} has no bridge", op.uaid())),
            StoreOp::LoadUser { uaid } => self.oracle.taken_up(*uaid, None),
            StoreOp::Register { uaid, chid, .. } | StoreOp::Subscribe { uaid, chid, .. } => {
                self.oracle.taken_up(*uaid, Some(*chid))
            }
            // A member hears of its hello later.
            StoreOp::SetContact { uaid, contact, .. } => {
                self.oracle.minimums.remove(uaid);
                self.oracle.mode_said(*uaid, contact.mode);
            }
            StoreOp::Touch { .. }
            | StoreOp::SetPresence { .. }
            | StoreOp::ClearPresence { .. }
            | StoreOp::Unregister { .. }
            | StoreOp::Locate { .. }
            | StoreOp::Tried { .. }
            | StoreOp::Read { .. } => {}
        }
        self.store.submit(shard, ticket, op, self.now);
        Ok(())
    }

    /// A user is dropped by a rule of this world.
    fn drops_user(&mut self, uaid: Uaid) -> Verdict {
        self.marks.hit("store: user dropped");
        if !self.plan.reconcile && self.plan.msg_limit == 0 {
            return Err(format!("{uaid:?} is dropped by no rule"));
        }
        self.oracle.user_dropped(uaid, self.steps);
        Ok(())
    }

    /// A user is dropped because it has no channel: none of them may be registered for certain.
    fn drops_idle(&mut self, uaid: Uaid) -> Verdict {
        self.marks.hit("store: user without a channel dropped");
        let registered =
            self.oracle.channels.iter().find(|((of, _), channel)| *of == uaid && channel.registered == Some(true));
        match registered {
            Some(((_, chid), _)) => Err(format!("{uaid:?} is dropped as without a channel and has {chid:?}")),
            None => Ok(()),
        }
    }

    /// A stamped message passes by: its clock is below the persisted floor, and it is what was POSTed.
    pub(crate) fn sighted(&mut self, shard: usize, message: &machine::message::Message) -> Verdict {
        let floor = self.shards[shard].floor;
        if message.ttl == 0 && message.stamp == Default::default() {
            // Only the check of a subscription: it is not stored, and has no identity.
            return Ok(());
        }
        let index = self.oracle.identify(message)?;
        let post = &mut self.oracle.posts[index];
        if post.stamp.is_none() && message.stamp.clock > floor {
            return Err(format!("{message:?} has a clock above the persisted floor {floor:?}"));
        }
        self.oracle.stamped(index, message)
    }
}
