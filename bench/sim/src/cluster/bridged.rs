//! Promises about bridged users, and the checks of each answer and each change of storage.

use std::collections::{BTreeMap, BTreeSet};

use machine::ids::{Chid, Clock, Uaid};
use machine::message::Message;
use machine::time::UnixSeconds;
use machine::upstream::{BridgeFailure, BridgeOutcome, Bridged};
use machine::{Disposition, Published, RegistrationAnswer, StoreOp};

use super::phones::{Asked, BROKEN, Handed, Phone, Request};
use super::service::{Device, Mood, ServiceCall, device_of};
use super::world::Cluster;
use crate::shared::{SECOND, Verdict};

/// Bridged users, and what is around them.
#[derive(Default)]
pub(super) struct Bridges {
    pub(super) phones: Vec<Phone>,
    /// Every device token that was made, by its number.
    pub(super) devices: Vec<Device>,
    pub(super) calls: Vec<ServiceCall>,
    /// The guard of the profile is active until then.
    pub(super) guard_until: u64,
    /// Every user that a phone has made, with all its states.
    pub(super) users: BTreeMap<Uaid, User>,
    /// Answers of the service, by the record that each call was made for.
    pub(super) judged: BTreeMap<(Uaid, Clock, usize), Judged>,
    /// Users whose removal was asked for.
    pub(super) removals: BTreeSet<Uaid>,
    /// Nothing is under way from before the calm.
    pub(super) settled: bool,
}

/// Every state of a user in storage, each behind the turn that made it. The first one is that there is none.
pub(super) struct User(pub(super) Vec<(u64, Option<State>)>);

/// A user in storage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) channels: BTreeSet<Chid>,
    pub(super) device: usize,
    pub(super) version: Clock,
    pub(super) refused: Option<UnixSeconds>,
}

/// Answers of the service about one record: this token, as it was registered then.
#[derive(Default)]
pub(super) struct Judged {
    pub(super) gone: bool,
    /// Times of refusals that the guard let through.
    pub(super) doubted: Vec<u64>,
}

/// Least time between two refusals that end a token (BRIDGES.md).
const APART: u64 = 60 * SECOND;

impl Cluster {
    /// Returns true if this held of the user at some instant since.
    fn held(&self, uaid: Uaid, since: u64, holds: impl Fn(Option<&State>) -> bool) -> bool {
        let Some(User(states)) = self.bridges.users.get(&uaid) else { return holds(None) };
        let later = states.iter().take_while(|(from, _)| *from <= since).count();
        states[later.saturating_sub(1)..].iter().any(|(_, state)| holds(state.as_ref()))
    }

    fn state(&self, uaid: Uaid) -> Result<Option<State>, String> {
        let Some(user) = self.store.user(uaid) else { return Ok(None) };
        let row = user.row();
        let Some(bridge) = row.contact.bridge else { return Err(format!("{uaid:?} is stored without its device")) };
        let device = device_of(&bridge)?;
        let channels = row.channels.into_iter().collect();
        Ok(Some(State { channels, device, version: bridge.registered, refused: bridge.refused }))
    }

    /// Looks at the user after an operation, if it is a bridged one.
    pub(super) fn bridged_changed(&mut self, op: &StoreOp) -> Verdict {
        let uaid = op.uaid();
        if !self.bridges.users.contains_key(&uaid) {
            return Ok(());
        }
        let after = self.state(uaid)?;
        let Some(User(states)) = self.bridges.users.get_mut(&uaid) else { return Ok(()) };
        let before = states.last().and_then(|(_, state)| state.clone());
        if before == after {
            return Ok(());
        }
        let is_new = states.len() == 1;
        states.push((self.instant, after.clone()));
        match (before, after) {
            (Some(before), None) => self.removed(uaid, op, &before),
            (None, Some(_)) if !is_new => Err(format!("{uaid:?} was removed and comes back by {op:?}")),
            (Some(before), Some(after)) => self.registered_anew(uaid, &before, &after),
            _ => Ok(()),
        }
    }

    /// A user is removed: as its phone has asked, or because the service ended the very token that it has.
    fn removed(&mut self, uaid: Uaid, op: &StoreOp, had: &State) -> Verdict {
        match op {
            StoreOp::DropUser { .. } if self.bridges.removals.contains(&uaid) => {
                self.marks.hit("user: removed as asked");
                Ok(())
            }
            StoreOp::DropBridged { .. } => {
                let none = Judged::default();
                let judged = self.bridges.judged.get(&(uaid, had.version, had.device)).unwrap_or(&none);
                // Each clock may be this far from the right time, and counts whole seconds.
                let wrong = if self.plan.faults.runaway > 0 { APART } else { 2 * self.plan.skew_us * 1_000 + SECOND };
                let least = APART.saturating_sub(wrong);
                let twice = match (judged.doubted.first(), judged.doubted.last()) {
                    (Some(first), Some(last)) => judged.doubted.len() > 1 && last - first >= least,
                    _ => false,
                };
                self.marks.hit(if judged.gone { "user: removed as gone" } else { "user: removed as refused twice" });
                if judged.gone || twice {
                    return Ok(());
                }
                let seconds: Vec<u64> = judged.doubted.iter().map(|at| at / SECOND).collect();
                Err(format!("{uaid:?} is removed, and its token was refused at {seconds:?} s only: {had:?}"))
            }
            op => Err(format!("{uaid:?} is removed by {op:?}")),
        }
    }

    fn registered_anew(&mut self, uaid: Uaid, before: &State, after: &State) -> Verdict {
        let newer = after.version > before.version;
        if after.version < before.version || (after.device != before.device && !newer) {
            return Err(format!("an older registration of {uaid:?} replaces a newer one: {before:?} {after:?}"));
        }
        if after.refused.is_some() && newer {
            return Err(format!("a new record of {uaid:?} begins with a mark: {after:?}"));
        }
        let key = (uaid, after.version, after.device);
        if after.refused.is_some() && self.bridges.judged.get(&key).is_none_or(|judged| judged.doubted.is_empty()) {
            return Err(format!("{uaid:?} is marked without a refusal: {after:?}"));
        }
        self.marks.hit(match (before.device == after.device, newer, after.refused.is_some()) {
            (false, _, _) => "user: other device",
            (true, true, _) => "user: mark cleared",
            (true, false, true) => "user: marked",
            (true, false, false) => "user: other channels",
        });
        Ok(())
    }

    /// A machine calls the service for a POST.
    pub(super) fn called(&mut self, index: usize, to: &Bridged, device: usize, message: &Message) -> Verdict {
        let post = &self.posts[index];
        let Some(handed) = post.handed.as_ref().filter(|handed| handed.called.is_none() && !handed.refused) else {
            return Err(format!("the service is called for {message:?}: {post:?}"));
        };
        let fits = |state: &State| {
            state.device == device && state.version == to.registered && state.channels.contains(&message.chid)
        };
        if !self.held(message.uaid, handed.since, |state| state.is_some_and(fits)) {
            return Err(format!("the service is called with a record that was not there: {post:?}"));
        }
        self.handed(index)?.called = Some(message.stamp);
        Ok(())
    }

    fn handed(&mut self, index: usize) -> Result<&mut Handed, String> {
        self.posts[index].handed.as_mut().ok_or_else(|| format!("message {index} has no bridge"))
    }

    /// The service has answered the call of a POST.
    pub(super) fn judged(
        &mut self,
        post: usize,
        record: (Uaid, Clock, usize),
        outcome: BridgeOutcome,
        guarded: bool,
    ) -> Verdict {
        self.handed(post)?.verdict = Some(outcome);
        let judged = self.bridges.judged.entry(record).or_default();
        match outcome {
            BridgeOutcome::Gone => judged.gone = true,
            BridgeOutcome::Doubted if !guarded => judged.doubted.push(self.now),
            BridgeOutcome::Doubted | BridgeOutcome::Sent | BridgeOutcome::Failed(_) => {}
        }
        Ok(())
    }

    /// A POST to a bridged user is answered.
    pub(super) fn handed_over(&mut self, index: usize, handed: &Handed, published: Published) -> Verdict {
        let post = &self.posts[index];
        if self.bridges.settled && !matches!(published, Published::Accepted { .. }) {
            return Err(format!("nothing fails, and {post:?} is answered {published:?}"));
        }
        let (mark, is_true) = match published {
            Published::Accepted { stamp, disposition: Disposition::Bridged } => {
                ("201", handed.verdict == Some(BridgeOutcome::Sent) && handed.called == Some(stamp))
            }
            Published::NotBridged(failure) => {
                let doubted = failure == BridgeFailure::Configuration && handed.verdict == Some(BridgeOutcome::Doubted);
                ("not bridged", doubted || handed.verdict == Some(BridgeOutcome::Failed(failure)))
            }
            Published::NoSubscription => {
                let gone = |state: Option<&State>| state.is_none_or(|state| !state.channels.contains(&post.to.chid));
                ("410", self.held(post.to.uaid, handed.since, gone))
            }
            Published::Refused(refusal) => ("refused", handed.refused && refusal == BROKEN),
            Published::Unavailable => ("503", true),
            Published::Accepted { .. }
            | Published::OtherMode
            | Published::TooMany { .. }
            | Published::OverBudget { .. } => ("", false),
        };
        if !is_true {
            return Err(format!("a POST was answered {published:?}: {post:?}"));
        }
        self.marks.hit(&format!("bridged: {mark}"));
        Ok(())
    }

    /// A call of the registration API is answered.
    pub(super) fn registered(&mut self, request: &Request, answer: &RegistrationAnswer) -> Verdict {
        let Request { uaid, asked, phone, since, .. } = *request;
        let held = |holds: &dyn Fn(&State) -> bool| self.held(uaid, since, |state| state.is_some_and(holds));
        let is_absent = || self.held(uaid, since, |state| state.is_none());
        let is_true = match (asked, answer) {
            (Asked::Create { chid, device }, RegistrationAnswer::Registered { channel, .. }) => {
                channel.chid == chid && held(&|state| state.channels.contains(&chid) && state.device == device)
            }
            (Asked::Subscribe(chid), RegistrationAnswer::Registered { channel, .. }) => {
                channel.chid == chid && held(&|state| state.channels.contains(&chid))
            }
            (Asked::Update(device), RegistrationAnswer::Done) => held(&|state| state.device == device),
            (Asked::Unsubscribe(chid), RegistrationAnswer::Done) => {
                is_absent() || held(&|state| !state.channels.contains(&chid))
            }
            (Asked::Unsubscribe(chid), RegistrationAnswer::NoChannel) => held(&|state| !state.channels.contains(&chid)),
            (Asked::List, RegistrationAnswer::Channels(list)) => {
                let list: BTreeSet<Chid> = list.iter().copied().collect();
                held(&|state| state.channels == list)
            }
            (Asked::Remove, RegistrationAnswer::Done) => is_absent(),
            (Asked::Create { .. }, RegistrationAnswer::NoUser) => false,
            (_, RegistrationAnswer::NoUser) => is_absent(),
            (_, RegistrationAnswer::Unavailable) => !self.bridges.settled,
            _ => false,
        };
        if !is_true {
            return Err(format!("{request:?} was answered {answer:?}"));
        }
        self.marks.hit(match answer {
            RegistrationAnswer::NoUser => "phone: no user",
            RegistrationAnswer::NoChannel => "phone: no channel",
            RegistrationAnswer::Unavailable => "phone: unavailable",
            _ => "phone: done",
        });
        let mine = self.bridges.phones[phone].uaid == Some(uaid);
        let channels = &mut self.bridges.phones[phone].channels;
        match (asked, answer) {
            _ if !mine => {}
            (_, RegistrationAnswer::NoUser) | (Asked::Create { .. }, RegistrationAnswer::Unavailable) => {
                self.phone_is_new(request);
            }
            (Asked::Create { chid, .. } | Asked::Subscribe(chid), RegistrationAnswer::Registered { .. })
                if !channels.contains(&chid) =>
            {
                channels.push(chid);
            }
            (Asked::Unsubscribe(chid), RegistrationAnswer::Done | RegistrationAnswer::NoChannel) => {
                channels.retain(|known| *known != chid)
            }
            _ => {}
        }
        Ok(())
    }

    /// Nothing fails any more: every phone registers a new token and is reached.
    pub(super) fn phones_are_reached(&mut self) -> Verdict {
        self.bridges.settled = true;
        for phone in 0..self.bridges.phones.len() {
            let device = self.new_device();
            self.asks_registration(phone, Asked::Update(device))?;
            self.answers()?;
            if self.bridges.phones[phone].uaid.is_none() {
                self.registers(phone)?;
                self.answers()?;
            }
            let Some(uaid) = self.bridges.phones[phone].uaid else {
                return Err(format!("phone {phone} cannot register"));
            };
            let chid = Chid(self.rng.clients.bytes16());
            self.asks_registration(phone, Asked::Subscribe(chid))?;
            self.answers()?;
            self.posts_to_phone((uaid, chid))?;
            self.answers()?;
        }
        Ok(())
    }

    /// Every device is as it should be, and the guard is off.
    pub(super) fn service_recovers(&mut self) {
        let plan = &mut self.plan.bridges;
        (plan.whims, plan.answered_twice, plan.guard) = (0, 0, 0);
        self.bridges.guard_until = self.now;
        self.bridges.devices.iter_mut().for_each(|device| device.mood = Mood::Fine);
    }
}
