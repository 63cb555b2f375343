//! State of calls about bridged users: at their service, and at storage.

use crate::ids::{Chid, Clock, ConnId, Uaid};
use crate::upstream::Bridged;

use super::command::{NewChannel, Published, RegistrationAnswer, RegistrationCall};
use super::components::requests::ReplyTo;
use super::handover::BridgeHandover;

/// A POST that is at the service of its user. Shard where it landed; bounded by `limits::UPSTREAM_CALLS_MAX`.
pub(super) struct BridgeCall {
    pub conn: ConnId,
    pub handover: BridgeHandover,
}

/// A refusal at storage: the user is read, then changed.
pub(super) struct PendingRefusal {
    pub reply_to: ReplyTo<Published>,
    pub uaid: Uaid,
    /// Version of the record whose token was refused.
    pub registered: Clock,
    /// True behind the read.
    pub changing: bool,
}

/// A call at storage.
pub(super) struct PendingRegistration {
    pub reply_to: ReplyTo<RegistrationAnswer>,
    pub uaid: Uaid,
    pub next: RegistrationStep,
}

/// Operation that storage has answered.
pub(super) enum RegistrationStep {
    /// The read of the user, before this call.
    Load(RegistrationCall),
    /// The write of a channel.
    Register(NewChannel),
    Unregister(Chid),
    /// The write of this record.
    Update(Box<Bridged>),
    /// The read behind it: a write that finds no user, or a record that is as new, changes nothing. Two nodes whose
    /// clocks are behind that of the user give their records one version.
    Updated(Box<Bridged>),
    Remove,
}
