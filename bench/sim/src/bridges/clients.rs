//! Phones that call the registration API, and app servers that POST, at any node.

use std::sync::Arc;

use machine::ids::{Chid, Stamp, Uaid};
use machine::message::{Message, Urgency};
use machine::{
    Command, Event, Input, NewChannel, Publish, RegistrationCall, RegistrationCommand, SenderCommand, SenderEvent,
};

use super::parts::{Asked, BROKEN, Phone, Post, Request};
use super::world::Bridges;
use crate::shared::Verdict;

impl Bridges {
    /// The world around does something.
    pub(super) fn act(&mut self, idle: bool) -> Verdict {
        self.weather()?;
        match self.rng.clients.below(20) {
            0..4 => self.phone_acts(),
            4..10 => self.posts_something(),
            10 => {
                self.mood_changes();
                Ok(())
            }
            _ if idle => {
                self.pass_time();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn phone_acts(&mut self) -> Verdict {
        let phone = self.rng.clients.index(self.phones.len());
        let waits = |request: &Request| request.phone == phone && !matches!(request.asked, Asked::Post(_));
        if self.requests.values().any(waits) && !self.rng.clients.permille(self.plan.impatience) {
            return Ok(());
        }
        let at = self.rng.clients.index(self.phones[phone].channels.len().max(1));
        let known = self.phones[phone].channels.get(at).copied();
        let asked = match (self.rng.clients.below(100), known) {
            _ if self.phones[phone].uaid.is_none() => return self.registers(phone),
            (0..45, _) => Asked::Update(self.new_device()),
            (45..60, _) | (_, None) => Asked::Subscribe(Chid(self.rng.clients.bytes16())),
            (60..65, Some(chid)) => Asked::Subscribe(chid),
            (65..75, Some(chid)) => Asked::Unsubscribe(chid),
            (75..92, _) => Asked::List,
            _ => Asked::Remove,
        };
        self.asks(phone, asked)
    }

    /// A phone registers for the first time, or anew.
    pub(super) fn registers(&mut self, phone: usize) -> Verdict {
        let (uaid, chid) = (Uaid(self.rng.clients.bytes16()), Chid(self.rng.clients.bytes16()));
        let device = self.new_device();
        self.phones[phone] = Phone { uaid: Some(uaid), channels: Vec::new() };
        self.asks(phone, Asked::Create { chid, device })
    }

    /// A phone that has a UAID calls some node.
    pub(super) fn asks(&mut self, phone: usize, asked: Asked) -> Verdict {
        let Some(uaid) = self.phones[phone].uaid else { return Ok(()) };
        let channel = |chid| NewChannel { chid, key: None };
        let call = match asked {
            Asked::Post(_) => return Ok(()),
            Asked::Create { chid, device } => RegistrationCall::Create {
                device: Some(Bridges::device_named(device)),
                channel: channel(chid),
                caller: None,
            },
            Asked::Update(device) => RegistrationCall::Update(Ok(Some(Bridges::device_named(device)))),
            Asked::Subscribe(chid) => RegistrationCall::Subscribe(Ok(channel(chid))),
            Asked::Unsubscribe(chid) => RegistrationCall::Unsubscribe(Some(chid)),
            Asked::List => RegistrationCall::List,
            Asked::Remove => {
                self.removals.insert(uaid);
                RegistrationCall::Remove
            }
        };
        if asked == Asked::Remove {
            // It forgets its registration before it knows the answer.
            self.phones[phone] = Phone::default();
        }
        self.requested((phone, uaid), asked, RegistrationCommand { uaid, call }.into())
    }

    fn posts_something(&mut self) -> Verdict {
        if self.rng.clients.permille(100) && !self.posts.is_empty() {
            // To an endpoint of before.
            let post = &self.posts[self.rng.clients.index(self.posts.len())];
            let (uaid, chid) = (post.uaid, post.chid);
            return self.posts(0, (uaid, chid));
        }
        let phone = self.rng.clients.index(self.phones.len());
        let Phone { uaid: Some(uaid), channels } = &self.phones[phone] else { return Ok(()) };
        let Some(chid) = channels.get(self.rng.clients.index(channels.len().max(1))) else { return Ok(()) };
        let at = (*uaid, *chid);
        self.posts(phone, at)
    }

    /// An app server POSTs to some node.
    pub(super) fn posts(&mut self, phone: usize, (uaid, chid): (Uaid, Chid)) -> Verdict {
        let index = self.posts.len();
        let refused = !self.calm && self.rng.clients.permille(50);
        let message = Message {
            uaid,
            chid,
            stamp: Stamp::default(),
            ttl: if self.rng.clients.permille(300) { 0 } else { 1_000 },
            accepted: Default::default(),
            urgency: Urgency::Normal,
            topic: None,
            receipt: false,
            tries: Default::default(),
            payload: (index as u64).to_be_bytes().into(),
        };
        let message = if refused { Err(BROKEN) } else { Ok(Arc::new(message)) };
        self.posts.push(Post { uaid, chid, refused, since: self.instant, called: None, verdict: None });
        let command = SenderCommand::Publish(Box::new(Publish { uaid, chid, message }));
        self.requested((phone, uaid), Asked::Post(index), command.into())
    }

    /// A request lands on a shard of a node that runs; none is made when the node that was tried does not.
    fn requested(&mut self, (phone, uaid): (usize, Uaid), asked: Asked, command: Command) -> Verdict {
        let n = self.rng.clients.index(self.nodes.len());
        if !self.nodes[n].up || self.nodes[n].shards.iter().any(|shard| shard.drained) {
            let request = Request { uaid, asked, phone, since: self.instant, began: self.now };
            self.unanswered(&request);
            return Ok(());
        }
        let s = self.rng.clients.index(self.nodes[n].shards.len());
        let conn = self.fresh_conn();
        self.log(Some(n), format_args!("{asked:?} of {uaid:?}"));
        let request = Request { uaid, asked, phone, since: self.instant, began: self.now };
        self.requests.insert((n, s, conn.slot), request);
        self.step(n, s, Input::Command { conn, command })
    }

    /// The connection of a request ends without an answer.
    pub(super) fn unanswered(&mut self, request: &Request) {
        if matches!(request.asked, Asked::Create { .. }) {
            // It does not know its UAID.
            self.phone_is_new(request);
        }
    }

    pub(super) fn phone_is_new(&mut self, request: &Request) {
        let phone = &mut self.phones[request.phone];
        if phone.uaid == Some(request.uaid) {
            *phone = Phone::default();
        }
    }

    /// A machine answers a request.
    pub(super) fn answered(&mut self, at: (usize, usize, u32), event: Event) -> Verdict {
        let Some(request) = self.requests.remove(&at) else {
            return Err(format!("an answer without a request: {event:?}"));
        };
        match (request.asked, event) {
            (Asked::Post(post), Event::Sender(SenderEvent::Published(published))) => self.published(post, published),
            (Asked::Post(_), event) => Err(format!("{request:?} was answered {event:?}")),
            (_, Event::Registration(answer)) => self.registered(&request, &answer),
            (_, event) => Err(format!("{request:?} was answered {event:?}")),
        }
    }
}
