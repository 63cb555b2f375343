//! The two bridges: what each asks of its service, and what its answers mean.
//!
//! A bridge makes a request of a notification ([`Bridge::prepare`]), adds its credentials ([`Bridge::authorize`]) and
//! reads the answer ([`Bridge::judge`]). Connections, deadlines, second attempts, breaker and guard are the same for
//! both ([`super::profile`]).

use std::sync::Arc;
use std::time::SystemTime;

use machine::message::Message;
use machine::upstream::Bridged;
use tokio::time::Instant;

use super::apns::{self, Apns};
use super::fcm::Fcm;
use super::judgement::Judgement;
use super::request::{Answer, Authorization, CredentialAges, Prepared};

/// Bridge of one profile.
pub(super) enum Bridge {
    Fcm(Fcm),
    Apns(Box<Apns>),
}

impl Bridge {
    /// Makes the request. An error is the outcome without a call, for example because the payload is too large.
    pub fn prepare(&self, to: &Arc<Bridged>, message: &Message, _now: SystemTime) -> Result<Prepared, Judgement> {
        match self {
            Bridge::Fcm(fcm) => fcm.prepare(to, message),
            Bridge::Apns(apns) => apns.prepare(to, message),
        }
    }

    /// Returns the credentials, waiting for the first ones if need be. An error is the outcome without a call.
    pub async fn authorize(&self) -> Result<Authorization, Judgement> {
        match self {
            Bridge::Fcm(fcm) => fcm.authorize().await,
            Bridge::Apns(apns) => apns.authorize(),
        }
    }

    /// Discards credentials that the service refused. Returns true if others are to be had for a second attempt.
    pub fn renew(&self, refused: &Authorization) -> bool {
        match self {
            Bridge::Fcm(fcm) => fcm.renew(refused.generation),
            Bridge::Apns(apns) => apns.renew(refused.generation),
        }
    }

    /// Returns true if both send for one project of FCM, or for one app of APNs with the same credentials.
    pub fn leads_to(&self, other: &Bridge) -> bool {
        match (self, other) {
            (Bridge::Fcm(one), Bridge::Fcm(other)) => one.leads_to(other),
            (Bridge::Apns(one), Bridge::Apns(other)) => one.leads_to(other),
            _ => false,
        }
    }

    /// Keeps the credentials of the same profile before a reload, if they are to change seldom.
    pub fn adopt(&mut self, before: &Bridge) {
        if let (Bridge::Apns(apns), Bridge::Apns(before)) = (self, before) {
            apns.adopt(before);
        }
    }

    /// Reads an answer.
    pub fn judge(&self, answer: &Answer, to: &Bridged, now: SystemTime) -> Judgement {
        match self {
            Bridge::Fcm(_) => super::fcm::judge(answer, now),
            Bridge::Apns(apns) => apns.judge(answer.status.as_u16(), &answer.body, to),
        }
    }

    /// Renews credentials that expire soon. Called about ten times a second, on the control plane.
    pub fn tick(&self, now: Instant) {
        match self {
            Bridge::Fcm(fcm) => fcm.tick(now),
            Bridge::Apns(_) => {}
        }
    }

    /// Returns the age of the credentials.
    pub fn ages(&self) -> CredentialAges {
        match self {
            Bridge::Fcm(fcm) => CredentialAges { token: fcm.token_age(), certificate_expires: None },
            Bridge::Apns(apns) => apns.ages(),
        }
    }

    /// Text of the error line when the guard becomes active: what an operator should check.
    pub fn guard_hint(&self) -> &'static str {
        match self {
            Bridge::Fcm(_) => "check project_id and the credential of this profile in bridge.fcm.credentials",
            Bridge::Apns(_) => apns::GUARD_HINT,
        }
    }
}
