//! The registration API at the owner of the user (PROTOCOL.md 3): each call is in storage before it is answered.

use crate::ids::{Chid, Uaid};
use crate::limits;
use crate::simplepush::Contact;
use crate::upstream::Bridged;

use super::command::{CloseReason, Device, NewChannel, RegistrationAnswer, RegistrationCall, RegistrationCommand};
use super::components::requests::ReplyTo;
use super::composer::{ShardMachine, StepContext};
use super::pending_bridge::{PendingRegistration, RegistrationStep};
use super::pending_op::{ListChannels, PendingOp};
use super::store::{StoreError, StoreOp, StoreReply, UserRow};

impl ShardMachine {
    pub(super) fn registration(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<RegistrationAnswer>,
        command: RegistrationCommand,
    ) {
        let RegistrationCommand { uaid, call } = command;
        if !self.tickets.room() || self.refuses_stamp() || !self.registering.begin(uaid) {
            self.stats.registrations_unavailable += 1;
            self.answer(cx, reply_to, RegistrationAnswer::Unavailable);
            return;
        }
        match call {
            RegistrationCall::Create { device, channel, caller } => {
                let contact = Contact { bridge: self.bridged(cx, device), ..Contact::default() };
                let NewChannel { chid, key } = channel;
                let (at, seen, contact) = (self.tick(cx), cx.now.unix(), Some(Box::new(contact)));
                let maker = caller.map(|caller| self.config.placement.address(caller));
                let op = StoreOp::Register { uaid, chid, key, at, seen, contact, presence: None, maker };
                self.register_channel(cx, reply_to, channel, op);
            }
            call => {
                let next = RegistrationStep::Load(call);
                let work = PendingRegistration { reply_to, uaid, next };
                self.submit(cx, PendingOp::Registration(Box::new(work)), StoreOp::LoadUser { uaid });
            }
        }
    }

    /// Returns the record of a device.
    fn bridged(&mut self, cx: &mut StepContext<'_>, device: Option<Device>) -> Option<Box<Bridged>> {
        let Device { kind, app, token, aps } = device?;
        Some(Box::new(Bridged { kind, app, token, aps, registered: self.tick(cx), refused: None }))
    }

    fn register_channel(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<RegistrationAnswer>,
        channel: NewChannel,
        op: StoreOp,
    ) {
        let uaid = op.uaid();
        self.endpoint_registering(uaid, channel.chid);
        self.submit_registration(cx, reply_to, uaid, RegistrationStep::Register(channel), op);
    }

    pub(super) fn registration_stored(
        &mut self,
        cx: &mut StepContext<'_>,
        work: PendingRegistration,
        result: Result<StoreReply, StoreError>,
    ) {
        let PendingRegistration { reply_to, uaid, next } = work;
        let answer = match (next, result) {
            (RegistrationStep::Load(call), Ok(reply)) => match reply.user() {
                Some(user) => return self.registration_loaded(cx, reply_to, (uaid, call), *user),
                None => RegistrationAnswer::NoUser,
            },
            (RegistrationStep::Register(channel), result) => {
                self.endpoint_registering(uaid, channel.chid);
                match result {
                    Ok(StoreReply::NoSubscription) => RegistrationAnswer::NoUser,
                    Ok(StoreReply::OtherKey) => RegistrationAnswer::Conflict,
                    Ok(_) => {
                        self.stats.channels_by_https += 1;
                        self.enter_channel(cx, uaid, channel.chid);
                        RegistrationAnswer::Registered { uaid, channel }
                    }
                    Err(_) => RegistrationAnswer::Unavailable,
                }
            }
            (RegistrationStep::Unregister(chid), Ok(_)) => {
                self.endpoint_unregistering(uaid, chid);
                self.end_receipts_of_channel(uaid, chid);
                if let Some(session) = self.session_of(uaid) {
                    self.list_channels(cx, ListChannels { session, uaid, chid, is_command: false });
                }
                RegistrationAnswer::Done
            }
            (RegistrationStep::Remove, Ok(_)) => {
                self.stats.bridge_users_removed_requested += 1;
                self.end_receipts_of_user(uaid);
                RegistrationAnswer::Done
            }
            (RegistrationStep::Update(written), Ok(_)) => {
                let next = RegistrationStep::Updated(written);
                return self.submit_registration(cx, reply_to, uaid, next, StoreOp::LoadUser { uaid });
            }
            (RegistrationStep::Updated(written), Ok(reply)) => match reply.user().map(|user| user.contact.bridge) {
                None => RegistrationAnswer::NoUser,
                Some(Some(bridge)) if bridge.is_device_of(&written) => RegistrationAnswer::Done,
                // Another registration came first: a new try decides.
                Some(_) => RegistrationAnswer::Unavailable,
            },
            (
                RegistrationStep::Load(_)
                | RegistrationStep::Unregister(_)
                | RegistrationStep::Remove
                | RegistrationStep::Update(_)
                | RegistrationStep::Updated(_),
                Err(_),
            ) => RegistrationAnswer::Unavailable,
        };
        self.end_registration(cx, reply_to, uaid, answer);
    }

    fn end_registration(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<RegistrationAnswer>,
        uaid: Uaid,
        answer: RegistrationAnswer,
    ) {
        self.stats.registrations_unavailable += u64::from(answer == RegistrationAnswer::Unavailable);
        self.registering.end(uaid);
        self.answer(cx, reply_to, answer);
    }

    /// Goes on with a call for a user that exists.
    fn registration_loaded(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<RegistrationAnswer>,
        (uaid, call): (Uaid, RegistrationCall),
        user: UserRow,
    ) {
        if self.clock.advance(cx.now, user.newest_clock()).is_err() {
            self.stats.clocks_refused += 1;
        }
        let answer = match call {
            RegistrationCall::Update(Err(refusal)) | RegistrationCall::Subscribe(Err(refusal)) => {
                RegistrationAnswer::Refused(refusal)
            }
            RegistrationCall::Update(Ok(device)) if device.is_some() != user.contact.bridge.is_some() => {
                RegistrationAnswer::Conflict
            }
            RegistrationCall::Update(Ok(device)) => {
                self.touch_registered(cx, uaid);
                if let Some(bridge) = self.bridged(cx, device) {
                    let next = RegistrationStep::Update(bridge.clone());
                    let op = StoreOp::SetBridge { uaid, bridge };
                    return self.submit_registration(cx, reply_to, uaid, next, op);
                }
                RegistrationAnswer::Done
            }
            RegistrationCall::Subscribe(Ok(channel)) => {
                if user.channels.len() < limits::CHANNELS_MAX || user.channels.contains(&channel.chid) {
                    self.touch_registered(cx, uaid);
                    let NewChannel { chid, key } = channel;
                    let op = StoreOp::Subscribe { uaid, chid, key, at: self.tick(cx) };
                    return self.register_channel(cx, reply_to, channel, op);
                }
                RegistrationAnswer::Full
            }
            RegistrationCall::List => {
                self.touch_registered(cx, uaid);
                RegistrationAnswer::Channels(user.channels.into())
            }
            RegistrationCall::Remove => {
                if let Some(at) = self.session_of(uaid) {
                    self.end_session(cx, at, Some(CloseReason::Reset));
                }
                return self.submit_registration(
                    cx,
                    reply_to,
                    uaid,
                    RegistrationStep::Remove,
                    StoreOp::DropUser { uaid },
                );
            }
            RegistrationCall::Unsubscribe(chid) => match chid.filter(|chid| user.channels.contains(chid)) {
                Some(chid) => {
                    self.endpoint_unregistering(uaid, chid);
                    let op = StoreOp::Unregister { uaid, chid, at: self.tick(cx) };
                    return self.submit_registration(cx, reply_to, uaid, RegistrationStep::Unregister(chid), op);
                }
                None => RegistrationAnswer::NoChannel,
            },
            // Invariant: `registration` writes this one without a read.
            RegistrationCall::Create { .. } => unreachable!("the user is new"),
        };
        self.end_registration(cx, reply_to, uaid, answer);
    }

    fn submit_registration(
        &mut self,
        cx: &mut StepContext<'_>,
        reply_to: ReplyTo<RegistrationAnswer>,
        uaid: Uaid,
        next: RegistrationStep,
        op: StoreOp,
    ) {
        let work = PendingRegistration { reply_to, uaid, next };
        self.submit(cx, PendingOp::Registration(Box::new(work)), op);
    }

    /// Refreshes the expiry of a user that has called.
    fn touch_registered(&mut self, cx: &mut StepContext<'_>, uaid: Uaid) {
        let seen = cx.now.unix();
        self.submit(cx, PendingOp::Touch, StoreOp::Touch { uaid, seen });
    }

    /// Adds a channel to the session of its user, if there is one.
    pub(super) fn enter_channel(&mut self, cx: &mut StepContext<'_>, uaid: Uaid, chid: Chid) {
        let fingerprint = self.config.placement.fingerprint(chid);
        let Some(at) = self.session_of(uaid) else { return };
        let session = self.sessions.live_mut(at);
        if session.channels.contains(fingerprint) {
            return;
        }
        session.channels.insert(fingerprint);
        if session.stored.is_unsure() {
            self.read_passed_over(cx, at);
        }
    }
}
