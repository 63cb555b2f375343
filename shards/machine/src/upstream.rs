//! Users of a mobile bridge, and calls of the services that reach them, as plain data.
//!
//! A *bridged* user holds no WebSocket: Firebase Cloud Messaging (FCM) or the Apple Push Notification service (APNs)
//! carries its notifications. Nothing of them is stored: the answer of the service is the answer to the sender.
//!
//! Lives on: every thread that has users; plain values.

use std::fmt;
use std::sync::Arc;

use crate::ids::Clock;
use crate::message::Message;
use crate::time::UnixSeconds;

/// Service that carries the notifications of a bridged user.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BridgeKind {
    /// Firebase Cloud Messaging, HTTP v1.
    Fcm,
    /// Apple Push Notification service.
    Apns,
}

/// Way to reach a bridged user. Stored with the user ([`crate::simplepush::Contact`]).
#[derive(Clone, PartialEq, Eq)]
pub struct Bridged {
    pub kind: BridgeKind,
    /// Name of the profile (FCM) or channel (APNs) in the configuration; empty in an imported record that had none.
    pub app: Box<str>,
    /// Token of the device, 1 to `limits::DEVICE_TOKEN_BYTES_MAX` bytes; empty in an imported record that had none.
    /// It identifies a device, so it is never shown.
    pub token: Box<str>,
    /// JSON text of an object that overrides parts of `aps` in the payload; only for APNs.
    pub aps: Option<Box<str>>,
    /// Clock of the owner at the registration of this token: the version of the record. Microseconds since the epoch.
    pub registered: Clock,
    /// Time at which the service first said that it does not know this token, if it did not deny that since.
    pub refused: Option<UnixSeconds>,
}

impl Bridged {
    /// Returns true if this record takes the place of `other`, a record of the same user.
    pub fn is_newer_than(&self, other: &Bridged) -> bool {
        self.registered > other.registered
    }

    /// Returns the record after its service took a notification: without a refusal, and a version later, so that no
    /// removal of this version ends it. Any registration is later still, unless the clock of its node is behind.
    pub fn taken(&self) -> Bridged {
        Bridged { registered: Clock(self.registered.0.saturating_add(1)), refused: None, ..self.clone() }
    }

    /// Time of the registration, to the second.
    pub fn seen(&self) -> UnixSeconds {
        UnixSeconds(self.registered.0 / 1_000_000)
    }

    /// Returns true if this record is of the same device as `other`, whenever each was registered.
    pub fn is_device_of(&self, other: &Bridged) -> bool {
        (self.kind, &self.app, &self.token, &self.aps) == (other.kind, &other.app, &other.token, &other.aps)
    }
}

impl fmt::Debug for Bridged {
    /// Never shows the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridged")
            .field("kind", &self.kind)
            .field("app", &self.app)
            .field("registered", &self.registered)
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}

/// One call: hand a notification to the service of a bridged user. Its [`BridgeOutcome`] comes back under the ticket it
/// was submitted with.
#[derive(Clone, Debug)]
pub struct UpstreamOp {
    pub to: Arc<Bridged>,
    /// Stamped by the owner of the user. Its payload is in the layout of the edge.
    pub message: Arc<Message>,
}

/// Result of a notification at its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeOutcome {
    /// The service took it (2xx).
    Sent,
    /// The service says that this token has ended: the user is removed, 410 errno 106.
    Gone,
    /// The service refused the token in a way that a fault of our configuration causes as well. The first time: 502
    /// errno 900 and a mark in the record. The same again `limits::REFUSED_TOKEN_SECONDS` later: as `Gone`.
    Doubted,
    /// The service did not take it for another reason. The record stays.
    Failed(BridgeFailure),
}

/// Reason for which a service did not take a notification, and the answer to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BridgeFailure {
    /// 413 errno 104: the payload is this many bytes too large for the service; 0 if the service said so itself.
    TooLarge { excess: u32 },
    /// 429 errno 201: a quota of the service is used up.
    Quota { retry_after: u32 },
    /// 500 errno 900: the service does not understand the call.
    BadRequest,
    /// 502 errno 900: the profile is not configured, is configured wrongly, or its guard is active.
    Configuration,
    /// 502 errno 901: the service does not accept our credentials.
    Authentication,
    /// 502 errno 902: no connection, no trust, or an answer that is none.
    Unreachable,
    /// 502 errno 903: no complete answer in time. The notification may have been delivered.
    NoAnswer,
    /// 503 errno 201: the service is down or overloaded, or no place for the call is left here.
    Unavailable { retry_after: u32 },
}
