//! The registration API of mobile bridges (PROTOCOL.md 3): devices without a WebSocket register here.
//!
//! The order of the rules: syntax of the UAID, the token of `access.register` or the secret of the user, type,
//! existence of the user, body, and the profile where a token is given. Existence is decided by the owner, so a broken
//! rule behind it travels with the command.

use std::sync::Arc;

use machine::ids::{Chid, Uaid};
use machine::{Command, Device, NewChannel, RegistrationAnswer, RegistrationCall, RegistrationCommand};

use super::exchange::{BodyAction, method_refused};
use super::registering::{Draft, Registering, RegistrationDraft, RegistrationSettings, Registrations};
use super::reply::Reply;
use super::response::{self, Context};
use super::{EventKind, PushEdge};
use protocol::webpush::endpoint::Subscription;
use protocol::webpush::errno::ApiError;
use protocol::webpush::registration::{self, PATH, RegistrationFault, Subscribe, Target, UserType};
use protocol::wire::http1::Head;
use protocol::wire::text::push_dashed;
use protocol::wire::upgrade;
use runtime::strangers::Access;

impl PushEdge {
    /// Takes other settings of the bridges. Users whose secret no key made are refused from now on.
    pub fn set_registrations(&mut self, settings: &Arc<RegistrationSettings>) {
        self.registrations = Registrations::new(settings);
    }

    /// Plans a call of the API. `None`: not a path of it, or the API is off.
    pub(super) fn plan_registration(&mut self, head: &Head<'_, '_>) -> Option<BodyAction> {
        let rest = head.path.strip_prefix(PATH).filter(|_| !self.registrations.secrets.is_empty())?;
        self.stats.registration_calls += 1;
        Some(self.plan_call(head, rest).unwrap_or_else(|reply| {
            let call = registration::Path::parse(rest).map(|path| call_of(path.target, head.method));
            let call = call.filter(|(_, _, allow)| allow.is_empty()).map(|(call, ..)| call);
            self.stats.registration_answered(call, reply.status());
            BodyAction::Reply(reply)
        }))
    }

    fn plan_call(&mut self, head: &Head<'_, '_>, rest: &str) -> Result<BodyAction, Reply> {
        let fault = |fault| Err(Reply::Fault(fault));
        let Some(path) = registration::Path::parse(rest) else {
            return match head.method {
                "OPTIONS" | "HEAD" => Ok(method_refused(head, "OPTIONS")),
                _ => fault(ApiError::Registration(RegistrationFault::Path)),
            };
        };
        let (call, uaid, allow) = call_of(path.target, head.method);
        if !allow.is_empty() {
            return match method_refused(head, allow) {
                BodyAction::Reply(Reply::WrongMethod(_, allow)) => {
                    Err(Reply::WrongMethod(ApiError::Registration(RegistrationFault::Method), allow))
                }
                other => Ok(other),
            };
        }
        let user = match uaid {
            // A user shows its secret later; until it has one, the token of `access.register` is its right.
            None if !self.access.admits(head) => return fault(ApiError::AccessToken),
            None => self.fresh.draw().ok_or(Reply::Fault(ApiError::Unavailable))?,
            Some(uaid) => Uaid(registration::read_uuid(uaid).ok_or(Reply::Fault(ApiError::NoUser))?),
        };
        if uaid.is_some() && !self.registrations.secrets.verify(head.header("authorization"), &user.0) {
            return fault(ApiError::Registration(RegistrationFault::Secret));
        }
        let Some(kind) = UserType::parse(path.kind) else {
            return fault(ApiError::Registration(RegistrationFault::Type));
        };
        Ok(BodyAction::Registration(Box::new(RegistrationDraft {
            call,
            uaid: user,
            kind,
            app: path.app(),
            spelled: uaid.unwrap_or_default().into(),
            agent_family: upgrade::family(head.header("user-agent").unwrap_or_default()),
            caller: self.forwarding.caller(head),
            body: Vec::new(),
        })))
    }

    /// Returns the command of a call whose body has been read, and the facts for its answer.
    pub(super) fn finish_registration(
        &mut self,
        draft: RegistrationDraft,
        is_too_large: bool,
    ) -> Result<(Command, Registering), Reply> {
        let too_large = if is_too_large { Err(ApiError::TooLarge) } else { Ok(()) };
        let call = match draft.call {
            Draft::Create => {
                let created = self.read_first(&draft, too_large);
                created.inspect_err(|reply| self.stats.registration_answered(Some(draft.call), reply.status()))?
            }
            Draft::Update => {
                let device = too_large.and_then(|()| self.read_device(&draft));
                RegistrationCall::Update(device.map_err(ApiError::refusal))
            }
            Draft::Subscribe => {
                let channel = too_large.and_then(|()| self.read_channel(&draft.body));
                RegistrationCall::Subscribe(channel.map_err(ApiError::refusal))
            }
            Draft::List => RegistrationCall::List,
            Draft::Remove => RegistrationCall::Remove,
            Draft::Unsubscribe(chid) => RegistrationCall::Unsubscribe(chid),
        };
        self.forwarded = draft.caller;
        let asked = Registering { call: draft.call, spelled: draft.spelled, agent_family: draft.agent_family };
        Ok((RegistrationCommand { uaid: draft.uaid, call }.into(), asked))
    }

    fn read_first(
        &mut self,
        draft: &RegistrationDraft,
        too_large: Result<(), ApiError>,
    ) -> Result<RegistrationCall, Reply> {
        let device = too_large.and_then(|()| self.read_device(draft)).map_err(Reply::Fault)?;
        let channel = self.read_channel(&draft.body).map_err(Reply::Fault)?;
        Ok(RegistrationCall::Create { device, channel, caller: None })
    }

    fn read_device(&self, draft: &RegistrationDraft) -> Result<Option<Device>, ApiError> {
        let registration::Device { token, aps } = registration::read_device(draft.kind, &draft.body)?;
        let UserType::Bridge(kind) = draft.kind else { return Ok(None) };
        let known = |app: &&str| self.registrations.has(kind, app);
        let app = draft.app.as_deref().filter(known).ok_or(ApiError::Registration(RegistrationFault::App))?;
        Ok(Some(Device { kind, app: app.into(), token, aps }))
    }

    fn read_channel(&mut self, body: &[u8]) -> Result<NewChannel, ApiError> {
        let Subscribe { chid, key } = registration::read_subscribe(body)?;
        let key = match key {
            None => None,
            Some(text) => {
                Some(self.points.check(text.as_bytes()).ok_or(ApiError::Registration(RegistrationFault::Key))?)
            }
        };
        if !self.access.may_register(key) {
            self.refuse_access(Access::Vapid);
            return Err(ApiError::Registration(RegistrationFault::Key));
        }
        let chid = match chid {
            Some(chid) => Chid(chid),
            None => self.fresh.draw_channel().ok_or(ApiError::Unavailable)?,
        };
        Ok(NewChannel { chid, key })
    }

    pub(super) fn emit_registration(
        &mut self,
        context: &Context,
        asked: &Registering,
        answer: &RegistrationAnswer,
        out: &mut Vec<u8>,
    ) {
        let mut body = Vec::with_capacity(256);
        let fault = match answer {
            RegistrationAnswer::Registered { uaid, channel } => {
                match self.push_registered(matches!(asked.call, Draft::Create), *uaid, *channel, &mut body) {
                    Some(()) => None,
                    // The channel is registered. A second call gives the URL that could not be made now.
                    None => Some(ApiError::Unavailable),
                }
            }
            RegistrationAnswer::Done => {
                body.extend_from_slice(b"{}");
                None
            }
            RegistrationAnswer::Channels(channels) => {
                self.stats.registration_checks += 1;
                self.tell(EventKind::Checked { agent_family: asked.agent_family });
                push_channels(&asked.spelled, channels, &mut body);
                None
            }
            RegistrationAnswer::NoUser => Some(ApiError::NoUser),
            RegistrationAnswer::NoChannel => Some(ApiError::NoSubscription),
            RegistrationAnswer::Conflict => Some(ApiError::Registration(RegistrationFault::Conflict)),
            RegistrationAnswer::Full => Some(ApiError::Registration(RegistrationFault::Full)),
            RegistrationAnswer::Refused(refusal) => Some(ApiError::of(*refusal)),
            RegistrationAnswer::TooMany { .. } => Some(ApiError::Registration(RegistrationFault::TooMany)),
            RegistrationAnswer::Unavailable => Some(ApiError::Unavailable),
        };
        self.stats.registration_answered(Some(asked.call), fault.map_or(200, |fault| fault.row().status));
        match fault {
            Some(fault) => {
                self.stats.registrations_refused += 1;
                self.report_error(fault);
                match answer {
                    RegistrationAnswer::TooMany { retry_after } => {
                        response::fault_until(&self.date, context, fault, *retry_after, out);
                    }
                    _ => response::fault(&self.date, context, fault, out),
                }
            }
            None => response::start(&self.date, context, 200, out)
                .header("Content-Type", b"application/json")
                .body(&body, context.to_head),
        }
    }

    /// Appends the channel that was registered, with its user if that is new.
    fn push_registered(
        &mut self,
        creates: bool,
        uaid: Uaid,
        NewChannel { chid, key }: NewChannel,
        out: &mut Vec<u8>,
    ) -> Option<()> {
        self.url.clear();
        self.tokens.seal(&Subscription { uaid, chid, key }, &mut self.url)?;
        out.push(b'{');
        if creates {
            self.stats.registrations += 1;
            out.extend_from_slice(br#""uaid":""#);
            push_dashed(&uaid.0, out);
            out.extend_from_slice(br#"","#);
        }
        out.extend_from_slice(br#""channelID":""#);
        push_dashed(&chid.0, out);
        out.extend_from_slice(br#"","endpoint":""#);
        out.extend_from_slice(&self.url);
        if creates {
            out.extend_from_slice(br#"","secret":""#);
            self.registrations.secrets.push_secret(&uaid.0, out);
        }
        out.extend_from_slice(br#""}"#);
        Some(())
    }
}

/// Returns the call of a path and a method, its UAID, and the allowed methods if the method is none of them.
fn call_of<'p>(target: Target<'p>, method: &str) -> (Draft, Option<&'p str>, &'static str) {
    match (target, method) {
        (Target::Users, "POST") => (Draft::Create, None, ""),
        (Target::Users, _) => (Draft::Create, None, "POST, OPTIONS"),
        (Target::User(uaid), "PUT") => (Draft::Update, Some(uaid), ""),
        (Target::User(uaid), "GET") => (Draft::List, Some(uaid), ""),
        (Target::User(uaid), "DELETE") => (Draft::Remove, Some(uaid), ""),
        (Target::User(uaid), _) => (Draft::List, Some(uaid), "GET, PUT, DELETE, OPTIONS"),
        (Target::Channels(uaid), "POST") => (Draft::Subscribe, Some(uaid), ""),
        (Target::Channels(uaid), _) => (Draft::Subscribe, Some(uaid), "POST, OPTIONS"),
        (Target::Channel { uaid, chid }, "DELETE") => {
            (Draft::Unsubscribe(registration::read_uuid(chid).map(Chid)), Some(uaid), "")
        }
        (Target::Channel { uaid, .. }, _) => (Draft::Unsubscribe(None), Some(uaid), "DELETE, OPTIONS"),
    }
}

/// Appends the channels of a user, whose UAID is spelled as the client spelled it.
fn push_channels(spelled: &str, channels: &[Chid], out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"uaid":""#);
    out.extend_from_slice(spelled.as_bytes());
    out.extend_from_slice(br#"","channelIDs":["#);
    for (at, chid) in channels.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
        push_dashed(&chid.0, out);
        out.push(b'"');
    }
    out.extend_from_slice(b"]}");
}
