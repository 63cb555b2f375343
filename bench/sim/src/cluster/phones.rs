//! Phones that call the registration API, and app servers that POST to them, at any node.

use machine::ids::{Chid, Stamp, Uaid};
use machine::upstream::BridgeOutcome;
use machine::{NewChannel, Refusal, RegistrationCall, RegistrationCommand};

use super::bridged::User;
use super::parts::{Pending, Post};
use super::service::device_named;
use super::world::Cluster;
use crate::shared::Verdict;

/// One installation of an app.
#[derive(Default)]
pub(super) struct Phone {
    pub(super) uaid: Option<Uaid>,
    /// Channels that it was told of.
    pub(super) channels: Vec<Chid>,
}

/// A call of the registration API that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) uaid: Uaid,
    pub(super) asked: Asked,
    pub(super) phone: usize,
    /// Turn at which it began.
    pub(super) since: u64,
}

/// Content of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    Create { chid: Chid, device: usize },
    Update(usize),
    Subscribe(Chid),
    Unsubscribe(Chid),
    List,
    Remove,
}

/// Way of a POST to a bridged user.
#[derive(Clone, Debug, Default)]
pub(super) struct Handed {
    /// It broke a rule of the edge.
    pub(super) refused: bool,
    /// Turn at which it began.
    pub(super) since: u64,
    /// Stamp with which the service was called.
    pub(super) called: Option<Stamp>,
    /// Answer of the service.
    pub(super) verdict: Option<BridgeOutcome>,
}

/// Rule that a POST breaks.
pub(super) const BROKEN: Refusal = Refusal(3);

impl Cluster {
    /// A phone, an app server or the service does something.
    pub(super) fn phones_act(&mut self) -> Verdict {
        self.guard_changes();
        match self.rng.clients.below(11) {
            0..4 => self.phone_acts(),
            4..10 => self.posts_to_some_phone(),
            _ => {
                self.mood_changes();
                Ok(())
            }
        }
    }

    fn phone_acts(&mut self) -> Verdict {
        let phone = self.rng.clients.index(self.bridges.phones.len());
        let waits = |pending: &Pending| matches!(pending, Pending::Phone(request) if request.phone == phone);
        let waits = self.pending.values().any(|(pending, _)| waits(pending));
        if waits && !self.rng.clients.permille(self.plan.bridges.impatience) {
            return Ok(());
        }
        let at = self.rng.clients.index(self.bridges.phones[phone].channels.len().max(1));
        let known = self.bridges.phones[phone].channels.get(at).copied();
        let asked = match (self.rng.clients.below(100), known) {
            _ if self.bridges.phones[phone].uaid.is_none() => return self.registers(phone),
            (0..45, _) => Asked::Update(self.new_device()),
            (45..60, _) | (_, None) => Asked::Subscribe(Chid(self.rng.clients.bytes16())),
            (60..65, Some(chid)) => Asked::Subscribe(chid),
            (65..75, Some(chid)) => Asked::Unsubscribe(chid),
            (75..92, _) => Asked::List,
            _ => Asked::Remove,
        };
        self.asks_registration(phone, asked)
    }

    /// A phone registers for the first time, or anew.
    pub(super) fn registers(&mut self, phone: usize) -> Verdict {
        let (uaid, chid) = (Uaid(self.rng.clients.bytes16()), Chid(self.rng.clients.bytes16()));
        let device = self.new_device();
        self.bridges.phones[phone] = Phone { uaid: Some(uaid), channels: Vec::new() };
        self.bridges.users.insert(uaid, User(vec![(0, None)]));
        self.asks_registration(phone, Asked::Create { chid, device })
    }

    /// A phone that has a UAID calls some node.
    pub(super) fn asks_registration(&mut self, phone: usize, asked: Asked) -> Verdict {
        let Some(uaid) = self.bridges.phones[phone].uaid else { return Ok(()) };
        let channel = |chid| NewChannel { chid, key: None };
        let call = match asked {
            Asked::Create { chid, device } => {
                RegistrationCall::Create { device: Some(device_named(device)), channel: channel(chid), caller: None }
            }
            Asked::Update(device) => RegistrationCall::Update(Ok(Some(device_named(device)))),
            Asked::Subscribe(chid) => RegistrationCall::Subscribe(Ok(channel(chid))),
            Asked::Unsubscribe(chid) => RegistrationCall::Unsubscribe(Some(chid)),
            Asked::List => RegistrationCall::List,
            Asked::Remove => {
                self.bridges.removals.insert(uaid);
                RegistrationCall::Remove
            }
        };
        if asked == Asked::Remove {
            // It forgets its registration before it knows the answer.
            self.bridges.phones[phone] = Phone::default();
        }
        let request = Request { uaid, asked, phone, since: self.instant };
        let Some(n) = self.some_node() else {
            self.unanswered(&request);
            return Ok(());
        };
        let s = self.rng.clients.index(self.nodes[n].shards.len());
        self.log(Some(n), format_args!("{asked:?} of {uaid:?}"));
        self.request((n, s), Pending::Phone(request), RegistrationCommand { uaid, call }.into())
    }

    fn posts_to_some_phone(&mut self) -> Verdict {
        let of_phones = |post: &&Post| post.handed.is_some();
        let earlier = self.posts.iter().filter(of_phones).count();
        if self.rng.clients.permille(100) && earlier > 0 {
            // To an endpoint of before.
            let at = self.rng.clients.index(earlier);
            let to = self.posts.iter().filter(of_phones).nth(at).map(|post| (post.to.uaid, post.to.chid));
            return to.map_or(Ok(()), |to| self.posts_to_phone(to));
        }
        let phone = self.rng.clients.index(self.bridges.phones.len());
        let Phone { uaid: Some(uaid), channels } = &self.bridges.phones[phone] else { return Ok(()) };
        let Some(chid) = channels.get(self.rng.clients.index(channels.len().max(1))) else { return Ok(()) };
        let to = (*uaid, *chid);
        self.posts_to_phone(to)
    }

    /// An app server POSTs to some node.
    pub(super) fn posts_to_phone(&mut self, to: (Uaid, Chid)) -> Verdict {
        let refused = !self.calm && self.rng.clients.permille(50);
        let ttl = if self.rng.clients.permille(300) { 0 } else { 1_000 };
        let Some(n) = self.some_node() else { return Ok(()) };
        let handed = Handed { refused, since: self.instant, ..Handed::default() };
        self.lands(n, to, (ttl, None), Some(handed)).map(drop)
    }

    /// The connection of a request ends without an answer.
    pub(super) fn unanswered(&mut self, request: &Request) {
        if matches!(request.asked, Asked::Create { .. }) {
            // It does not know its UAID.
            self.phone_is_new(request);
        }
    }

    pub(super) fn phone_is_new(&mut self, request: &Request) {
        let phone = &mut self.bridges.phones[request.phone];
        if phone.uaid == Some(request.uaid) {
            *phone = Phone::default();
        }
    }
}
